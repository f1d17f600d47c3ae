"""How good a run is: the numbers behind the pictures."""

import math

import pytest
import torch
from scipy import stats

from bayesieve.core.likelihoods import Gaussian, StudentT
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.data import DataSet, Examples
from bayesieve.nets import mlp
from bayesieve.report.packing import unpack
from bayesieve.report.quality import calibration, doubt_map, evaluations, losses
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
