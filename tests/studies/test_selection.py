"""Feature selection on simulated data, at a size that takes seconds."""

import pytest
import torch

from studies import selection as study
from studies.record import read


def test_a_mean_over_starts_is_nearer_to_the_inclusion_of_all_models():
    one_start, mean_of_starts = [], []
    for seed in (1, 3):
        x, y, true = (torch.as_tensor(values) for values in study.WEIGHTS.draw(seed))
        exact, starts = study.exact_inclusion(x, y), study.starts_inclusion(x, y, seed)
        assert starts[:, ~true].max() > 0.9  # some start is sure of a null column
        one_start.append(float((starts - exact).abs().mean()))
        mean_of_starts.append(float((starts.mean(0) - exact).abs().mean()))
    assert sum(mean_of_starts) < 0.7 * sum(one_start)
    assert max(mean_of_starts) < 0.15


def test_the_study_writes_rates_and_calibration(tmp_path):
    flags = [
        "--quick",
        "--seeds",
        "2",
        "--designs",
        "independent",
        "--out",
        str(tmp_path / "r.json"),
    ]
    assert study.main(flags) == 0
    (row,) = read(tmp_path / "r.json", "selection")["rows"]
    assert row["metrics"]["ours power 0.1"] > 0.5
    assert sum(n for n, _, _ in row["detail"]["bins"]) == 2 * 50
    study.main(["--quick", "--join", str(tmp_path / "r.json"), "--out", str(tmp_path / "all.json")])
    whole = read(tmp_path / "all.json", "selection")
    assert "--designs" not in whole["command"]


def test_benjamini_and_hochberg_by_hand():
    x, y, true = study.Design(2.0, n=80, p=5, n_true=2).draw(0)
    assert study.least_squares(x, y)[0.1][true].all()
    assert study.rates(~true, true) == pytest.approx((1.0, 0.0))


def test_parts_join_to_the_whole(tmp_path):
    """Also the lasso, which is told the truth about all data sets at once."""
    design, name = study.Design(0.6, n=60, p=12, n_true=4), "small"
    whole = study.row_of(name, design, range(4))
    parts = [study.row_of(name, design, range(first, 4, 2)) for first in (0, 1)]
    joint = study.pool(parts)
    for row in (whole, joint):
        for numbers in (row["metrics"], *row["each"]):
            numbers.pop("seconds")
    assert joint["each"] == whole["each"]
    assert joint["metrics"] == pytest.approx(whole["metrics"])
    assert joint["seeds"] == whole["seeds"] == [0, 1, 2, 3]
    assert joint["detail"]["bins"][0] == pytest.approx(whole["detail"]["bins"][0])
