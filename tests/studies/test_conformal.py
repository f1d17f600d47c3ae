"""The study of conformal coverage: its tables, and a record of a short run."""

import numpy as np
import pytest

from studies import conformal
from studies.record import read


@pytest.mark.parametrize("noise", [conformal.normal, conformal.heavy, conformal.uneven])
def test_noise_has_std_1(noise):
    """Of 200,000 draws; the heaviest law has a fourth moment that is infinite."""
    source = np.random.default_rng(0)
    drawn = noise(source, source.normal(size=(200_000, 5)))
    assert drawn.std() == pytest.approx(1, abs=0.05)


def test_a_short_run_is_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(conformal, "SETTINGS", {**conformal.SETTINGS, "epochs": 2})
    monkeypatch.setattr(conformal, "N_SETS", {"quick": 2, "full": 3, "": 2})
    path = tmp_path / "conformal.json"
    arguments = ["--quick", "--only", "40 rows,input outliers", "--out", str(path)]
    assert conformal.main(arguments) == 0
    rows = {row["name"]: row for row in read(path, "conformal")["rows"]}
    assert list(rows) == ["40 rows", "input outliers"]
    assert all(0 <= one["coverage"] <= 1 for row in rows.values() for one in row["each"])
    assert rows["40 rows"]["metrics"]["split"] == 1  # eight scores bound no interval of 90 %
    with pytest.raises(ValueError, match="case must be one of"):
        conformal.main(["--quick", "--only", "40"])
