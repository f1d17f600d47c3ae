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


def test_parts_join_to_the_whole(tmp_path, monkeypatch):
    def coverage(case, seeds, conformal):
        return [{"coverage": seed / 30, "width": 1.0} for seed in seeds]

    monkeypatch.setattr(conformal, "coverage", coverage)
    flags, paths = ["--quick", "--only", "40 rows"], [tmp_path / f"{i}.json" for i in range(4)]
    for i in (1, 2, 3):
        conformal.main([*flags, "--part", f"{i}/3", "--out", str(paths[i])])
    conformal.main([*flags, "--out", str(paths[0])])
    whole = read(paths[0])["rows"][0]
    joint = tmp_path / "joint.json"
    conformal.main(["--join", *map(str, paths[1:]), "--out", str(joint)])
    (row,) = read(joint)["rows"]
    assert {**row, "seconds": 0} == {**whole, "seconds": 0}
    assert row["seeds"] == 20
    with pytest.raises(ValueError, match="two of the parts"):
        conformal.main(["--join", str(paths[1]), str(paths[1]), "--out", str(joint)])
    with pytest.raises(SystemExit):
        conformal.main([*flags, "--part", "4/3"])
