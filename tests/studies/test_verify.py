"""Numbers of the records are computed again, and a wrong one is noticed."""

import json
from pathlib import Path

import pytest

from records import record_of
from studies import tdamp_uci
from studies.record import make_row
from studies.reproduce import running
from studies.reproduce.catalogue import Check, Study
from studies.reproduce.running import Checked, recounted

RESULTS = Path(__file__).parents[2] / "results"
CHEAP = ("sbnn_mnist_l300", "bmr_mnist_l5", "structured_lenet5", "laplace_bmr", "tdamp_uci",
         "tdamp_mnist", "aeb_linear", "sbnn_droprate_set2", "bmr_images", "aeb_uci",
         "sbnn_tables")  # fmt: skip


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_agreement():
    assert Checked("s", "k", "f", 1.0, 1.05, 0.06).agrees
    assert not Checked("s", "k", "f", 1.0, 1.07, 0.06).agrees


@pytest.mark.parametrize("name", CHEAP)
def test_the_committed_numbers_agree(name):
    numbers = list(recounted(read(name)))
    assert numbers
    assert [entry for entry in numbers if not entry.agrees] == []


def test_a_changed_mean_is_noticed():
    record = read("sbnn_mnist_l300")
    record["rows"][0]["metrics"]["error"] += 1e-4
    wrong = [entry.field for entry in recounted(record) if not entry.agrees]
    assert wrong == ["error"]


def test_a_changed_size_is_noticed():
    record = read("structured_lenet5")
    record["rows"][0]["metrics"]["parameters"] += 1
    wrong = [(entry.field, entry.how) for entry in recounted(record) if not entry.agrees]
    assert wrong == [("parameters", "counted")]


def test_linear_regressions_are_solved_again(monkeypatch):
    monkeypatch.setattr(running.uci, "run_row", lambda *_: {"metrics": {"rmse": 1.25}})
    rows = [make_row(f"{name}/linear", {"set": name, "row": "linear"},
                     [{"rmse": 1.1}, {"rmse": 1.3}], seeds=[0, 1])
            for name in ("yacht", "wine")]  # fmt: skip
    numbers = [(one.key, one.how, one.agrees) for one in recounted(record_of("uci", rows))]
    assert numbers == [
        ("yacht/linear", "averaged", True), ("wine/linear", "averaged", True),
        ("yacht/linear", "solved", False),
    ]  # fmt: skip


def test_short_runs_are_compared_with_their_record(tmp_path, monkeypatch, capsys):
    record = read("tdamp_uci_rest")
    results = tmp_path / "results"
    results.mkdir()
    (results / "a.json").write_text(json.dumps(record))
    yacht = next(row for row in record["rows"] if row["name"] == "yacht")

    def main(arguments):
        assert arguments[:2] == ["--sets", "yacht"]
        print("a study talks")
        one = make_row("yacht", {}, [], seeds=1, metrics={"first_split_rmse": 9.0})
        out = Path(arguments[arguments.index("--out") + 1])
        out.write_text(json.dumps({**record, "rows": [one]}))

    check = Check(("--sets", "yacht"), (("yacht", "first_split_rmse"),), 0.02)
    monkeypatch.setattr(tdamp_uci, "main", main)
    monkeypatch.setattr(running, "STUDIES", {"tdamp-uci": Study("tdamp_uci", check=check)})
    told = []
    numbers = running.verify(results, tmp_path / "scratch", told.append)
    (run,) = (entry for entry in numbers if entry.how == "run")
    assert (run.recorded, run.again, run.agrees) == (yacht["each"][0]["rmse"], 9.0, False)
    assert told == ["a.json: 8 numbers counted, averaged or solved again",
                    "tdamp-uci: running --sets yacht"]  # fmt: skip
    assert capsys.readouterr().out == ""  # standard output is for the result
