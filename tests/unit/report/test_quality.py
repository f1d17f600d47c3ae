"""How good a run is: the numbers behind the pictures."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bayesieve.core.likelihoods import Gaussian, StudentT
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.data import DataSet, Examples
from bayesieve.nets import mlp
from bayesieve.report.packing import unpack
from bayesieve.report.quality import baselines, calibration, doubt_map, evaluations, losses
from bayesieve.report.source import Limits, Source
from reports import QUICK, digits_source, table_source


def source(likelihood, targets):
    """A network that always answers 0, and those targets."""
    network = Network.of(mlp((1,), 1, (2,)), likelihood)
    weights = torch.zeros(network.layout.size)
    part = Examples(torch.zeros(len(targets), 1), targets)
    data = DataSet("toy", part, part, "regression", None, ("a",), {"kind": "table"})
    return Source("toy", "toy", Factorised(network, weights, weights), data)


def test_the_map_shows_mistakes_first_and_every_example_of_a_small_set():
    made = digits_source(epochs=1)
    found = evaluations(made, QUICK)["after"]
    rows = doubt_map(found, made.known, made.data)
    assert sorted(rows["index"]) == list(range(len(made.data.test)))
    assert rows["label"] == made.data.test.y[rows["index"]].tolist()
    wrong = sum(a != b for a, b in zip(rows["label"], rows["said"], strict=True))
    assert wrong == round(found["error"] * 364)
    assert min(rows["familiarity"]) >= 0
    assert doubt_map(evaluations(table_source(), QUICK)["after"], None, table_source().data) is None


def test_losses_of_examples_add_up_to_the_numbers():
    for made in (digits_source(epochs=1), table_source()):
        found = evaluations(made, QUICK)["after"]
        rows = losses(found, made.data)
        error, nll = (unpack(rows[key]).double().mean() for key in ("error", "nll"))
        expected = found["rmse"] ** 2 if "rmse" in found else found["error"]
        assert float(error) == pytest.approx(expected, rel=1e-5)
        assert float(nll) == pytest.approx(found["nll"], rel=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "noise"),
    [
        (Gaussian(0.5), stats.norm(scale=0.5)),
        (StudentT(0.5, df=3.0), stats.t(3.0, scale=0.5)),
        (StudentT(0.5, df=2.2), stats.t(2.2, scale=0.5)),
    ],
)
def test_intervals_hold_as_many_targets_as_their_level_says(likelihood, noise):
    n = 999  # quantiles of the noise itself, none of which is the end of an interval
    targets = torch.tensor(noise.ppf([(i + 0.5) / n for i in range(n)])).float()
    run = source(likelihood, targets)
    rows = calibration(evaluations(run, Limits()), run.data)["after"]["intervals"]
    for level, coverage in zip(rows["level"], rows["coverage"], strict=True):
        inside = (targets.abs() <= noise.ppf((1 + level) / 2)).double().mean().item()
        assert coverage == pytest.approx(inside, abs=1e-5)
        assert math.isclose(coverage, level, abs_tol=2 / n)


def test_baselines_are_the_mean_and_least_squares():
    made = table_source()
    mean, linear = baselines(made.data)
    train, test = made.data.train, made.data.test
    scale = float(test.target_std)
    gap = (test.y.double().flatten() - train.y.double().mean()) * scale
    assert mean["rmse"] == pytest.approx(float(gap.square().mean().sqrt()), rel=1e-5)
    x, inputs = (np.c_[part.x.double().numpy(), np.ones(len(part))] for part in (train, test))
    weights, *_ = np.linalg.lstsq(x, train.y.double().flatten().numpy(), rcond=None)
    rest = test.y.double().flatten().numpy() - inputs @ weights
    assert linear["rmse"] == pytest.approx(scale * np.sqrt(np.mean(rest**2)), rel=1e-4)
    std = np.std(train.y.double().flatten().numpy() - x @ weights)
    nll = -stats.norm(scale=std * scale).logpdf(rest * scale).mean()
    assert linear["nll"] == pytest.approx(nll, rel=1e-4)
    assert linear["rmse"] < mean["rmse"]


def test_a_linear_model_of_classes_beats_the_most_frequent_one():
    most, linear = baselines(table_source("classification").data)
    assert (most["name"], linear["name"]) == ("most frequent class", "linear model")
    assert linear["nll"] < most["nll"]
    assert baselines(digits_source(epochs=1).data)[1:] == []  # pictures are no table


def test_ranks_are_flat_where_the_noise_is_right_and_hollow_where_it_is_small():
    targets = torch.tensor(stats.norm.ppf((np.arange(1000) + 0.5) / 1000)).float()[:, None]
    right, small = (
        calibration({"after": evaluations(made, QUICK)["after"]}, made.data)["after"]["ranks"]
        for made in (source(Gaussian(std), targets) for std in (1.0, 0.3))
    )
    assert sum(right) == sum(small) == 1000
    assert max(right) < 1.35 * min(right)
    assert small[0] > 3 * small[4]
