"""Tables of speed: every measured row is there, with the numbers of the record."""

import json
from pathlib import Path

from pages.speed import full_table, short_table

RESULTS = Path(__file__).parents[2] / "results"


def test_every_timed_row_is_in_the_full_table():
    record = json.loads((RESULTS / "inference.json").read_text(encoding="utf-8"))
    timed = [row for row in record["rows"] if row["batch"] is not None]
    lines = full_table(record).splitlines()[4:]
    assert len(lines) == len({(row["net"], row["name"]) for row in timed})
    for row in timed:
        cells = f"{row['ms']:.4f} | {row['value']:.2f}"
        assert any(row["name"] in line and cells in line for line in lines), row


def test_a_network_that_was_not_measured_is_left_out():
    record = json.loads((RESULTS / "inference.json").read_text(encoding="utf-8"))
    rows = [row for row in record["rows"] if row["net"] != "LeNet-300-100"]
    assert "LeNet-300-100" in short_table(record)
    assert "LeNet-300-100" not in short_table({**record, "rows": rows})
    cut = [row for row in record["rows"] if row["batch"] != 64]
    assert full_table({**record, "rows": cut}).splitlines()[4].endswith("|  |  |")
