"""Only what was checked is said, and nothing within chance is called a difference."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bayesieve.assess.evaluate import Evaluation, evaluate
from bayesieve.assess.paired import paired_interval, z_of
from bayesieve.cli.commands import passed
from bayesieve.core.likelihoods import ClassPrediction, Gaussian, RealPrediction
from bayesieve.core.posterior import Samples
from bayesieve.data import DataSet, Examples
from bayesieve.report import verdicts
from bayesieve.report.collect import collect
from bayesieve.report.packing import pack
from bayesieve.report.quality import evaluations
from bayesieve.report.source import Source
from bayesieve.report.verdicts import _honest, _speed, claims_of, compare, sentence_of, verdict_of
from reports import QUICK, digits_source

N = 400


@pytest.fixture(scope="module")
def source():
    return digits_source()


@pytest.fixture(scope="module")
def run(source):
    return collect([source], limits=QUICK)["runs"][0]


def classes(accuracy, confidence, epistemic=0.0, seed=0):
    """A classifier of two classes that says `confidence` of all, right in a share of N examples."""
    labels = torch.zeros(N, dtype=torch.long)
    right = torch.arange(N) < accuracy * N
    sure = torch.full((N,), confidence, dtype=torch.float64)
    zero = torch.where(right, sure, 1 - sure)
    x = torch.zeros(N, 2)
    data = DataSet("x", Examples(x, labels), Examples(x, labels), "classification", ("a", "b"))
    prediction = ClassPrediction(torch.stack([zero, 1 - zero], -1).log()[None])
    return Evaluation({"error": 1 - accuracy, "n_examples": N, "nll": 0.0}, prediction), data


def test_verdicts_are_about_the_whole_interval():
    assert verdict_of((-0.1, -0.01), 0.0) == "pass"
    assert verdict_of((-0.1, 0.1), 0.1) == "pass"
    assert verdict_of((-0.1, 0.1), 0.05) == "within chance"
    assert verdict_of((0.01, 0.1), 0.05) == "fail"


def test_two_more_mistakes_of_400_are_within_chance_and_forty_are_not():
    (dense, data), (two, _), (forty, _) = (classes(a, 0.9) for a in (0.95, 0.945, 0.85))
    near, far = compare(dense, two, data)["error"], compare(dense, forty, data)["error"]
    assert near.worse_by == pytest.approx(0.005)
    assert near.interval[0] < 0 < near.interval[1]
    assert verdict_of(far.interval, far.tolerance) == "fail"
    rows = [{"beyond_chance": False, "worse_by": 0.005}]
    assert sentence_of(two, rows, dense, "dense") == (
        "It makes 22 mistakes on 400 test examples, the dense network 20: the difference is not "
        "significant."
    )
    rows = [{"beyond_chance": True, "worse_by": 0.1}]
    assert sentence_of(forty, rows, dense, "dense").endswith("it is significantly worse.")
    assert sentence_of(forty, rows, None, "dense") == "It makes 60 mistakes on 400 test examples."


@pytest.mark.parametrize(
    ("accuracy", "confidence", "verdict"),
    [(0.9, 0.9, "within chance"), (0.9, 0.99, "fail"), (1.0, 0.99, "pass")],
)
def test_confidence_is_held_against_accuracy(accuracy, confidence, verdict):
    assert _honest(*classes(accuracy, confidence))["verdict"] == verdict


def test_coverage_has_the_exact_interval():
    y = torch.linspace(-1, 1, 400)[:, None].double()
    data = DataSet("x", Examples(y, y), Examples(y, y), "regression")
    mean = torch.zeros(1, 400, 1, dtype=torch.float64)
    for noise, verdict in ((1.0 / 1.645 * 0.9, "pass"), (1.0, "fail"), (0.1, "fail")):
        prediction = RealPrediction(mean, torch.full_like(mean, noise), Gaussian())
        row = _honest(Evaluation({}, prediction), data)
        assert row["verdict"] == verdict
        assert row["interval"][0] <= row["worse_by"] <= row["interval"][1]


def test_a_tenth_is_no_difference_of_times():
    def verdict(low, ratio, high, *, busy=False):
        row = {"where": "torch", "ratio": ratio, "interval": [low, high], "busy": busy}
        return _speed(row, whole=False)

    assert verdict(1.5, 2.0, 2.5)["verdict"] == "pass"
    assert verdict(1.05, 1.5, 2.5)["verdict"] == "within chance"
    assert verdict(0.4, 0.5, 0.6)["verdict"] == "fail"
    assert verdict(0.4, 0.5, 0.6)["words"] == "2× slower in torch (1.7 to 2.5)"
    assert "busy" in verdict(1.5, 2.0, 2.5, busy=True)["words"]


def test_an_unpruned_network_is_not_faster_than_itself(source):
    run = collect([Source("a", "a", source.before, source.data)], limits=QUICK)["runs"][0]
    speed = next(row for row in run["checks"] if row["name"] == "speed")
    assert (speed["verdict"], speed["words"]) == ("not checked", "No weight was removed.")
    assert run["headline"]["speedup"] is None
    assert run["title"] == "Handwritten digits: all weights in use"
    assert {row["verdict"] for row in run["checks"][:2]} == {"not checked"}


def test_the_headline_names_one_predictor(source, run):
    assert run["headline"]["way"] == "after"
    assert run["headline"]["predictor"] == "mean weights"
    assert set(run["headline"]["differences"]) == {"before", "sampled"}
    posterior = source.before
    draws = posterior.mean + posterior.std * torch.randn(
        4, len(posterior.mean), generator=torch.Generator().manual_seed(0)
    )
    chain = Samples(posterior.network, draws)
    chained = replace(source, model=chain, before=chain)
    sampled = collect([chained], limits=QUICK)["runs"][0]
    assert sampled["headline"]["predictor"] == "average of 4 draws"
    same = evaluate(chain, source.data.test, n_samples=4)["error"]
    assert sampled["headline"]["before"]["quality"]["error"] == pytest.approx(same, rel=1e-5)
    assert sampled["checks"][0]["verdict"] in ("pass", "within chance")
    assert sampled["checks"][0]["worse_by"] == 0


def test_doubt_is_praised_only_where_it_points_at_mistakes(source):
    found = evaluations(source, QUICK)
    assert any("predicts its mistakes" in text for text in claims_of(found, "after", source.data))
    flat, data = classes(0.9, 0.9)  # as sure of mistakes as of the rest
    assert claims_of({"after": flat}, "after", data) == []
    noisy = ClassPrediction(found["after"].prediction.sample_log_probs * 0.2)
    noisy = ClassPrediction(noisy.sample_log_probs.log_softmax(-1).expand(4, -1, -1))
    worse = {**found, "sampled": Evaluation(found["after"].numbers, noisy)}
    claims = claims_of(worse, "after", source.data)
    assert any("Averaging over draws makes the NLL worse" in text for text in claims)
    assert not any("Posterior samples disagree" in text for text in claims)


def test_the_checks_are_the_exit_code(run):
    result = {"runs": [{"checks": run["checks"]}]}
    assert any(row["verdict"] == "fail" for row in run["checks"])
    assert passed(SimpleNamespace(check=True), result) == 1
    assert passed(SimpleNamespace(check=False), result) == 0
    fine = [row for row in run["checks"] if row["verdict"] != "fail"]
    assert passed(SimpleNamespace(check=True), {"runs": [{"checks": fine}]}) == 0


def packed_run(task, error, nll=None, test="a"):
    nll = error if nll is None else nll
    losses = {"test": test, "error": pack(error.double(), "f4"), "nll": pack(nll.double(), "f4")}
    return {"task": task, "losses": losses}


def test_runs_are_ranked_by_pairs_of_mistakes_and_of_losses():
    generator = torch.Generator().manual_seed(0)
    few, many = (torch.rand(200, generator=generator) < p for p in (0.1, 0.3))
    nll = torch.randn(2, 200, generator=generator)
    runs = [packed_run("classification", e, n) for e, n in zip((many, few), nll, strict=True)]
    found = verdicts.ranked(runs)
    assert (found["error"]["order"], found["error"]["beyond"]) == ([1, 0], [True])
    assert found["error"]["gaps"][1] is None
    interval = paired_interval([~few, ~many], z_of(0.95))
    assert found["error"]["gaps"][0]["interval"] == pytest.approx(interval, rel=1e-5)
    low = found["nll"]["order"][0]
    gap = nll[1 - low] - nll[low]
    half = z_of(0.95) * float(gap.std(correction=0)) / 200**0.5
    ends = [float(gap.mean()) - half, float(gap.mean()) + half]
    assert found["nll"]["gaps"][1 - low]["interval"] == pytest.approx(ends, rel=1e-4)


def test_equal_runs_are_within_chance_and_other_examples_are_not_compared():
    error = torch.tensor([0, 1, 1])
    same = verdicts.ranked([packed_run("classification", error)] * 2)["error"]
    low, high = same["gaps"][1]["interval"]
    assert low < 0 == same["gaps"][1]["worse_by"] < high
    assert same["beyond"] == [False]
    assert verdicts.ranked([packed_run("classification", error)]) == {}
    other = packed_run("classification", error, test="b")
    assert verdicts.ranked([packed_run("classification", error), other]) == {}


def test_the_interval_of_a_difference_of_rmse_is_that_of_many_resamples():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(400, generator=generator, dtype=torch.float64) * s for s in (1.0, 1.1))
    squares = torch.stack([a, b]).square()
    found = verdicts.ranked([packed_run("regression", one) for one in squares])["error"]["gaps"][1]
    roots = squares.mean(1).sqrt()
    assert found["worse_by"] == pytest.approx(float(roots[1] - roots[0]), rel=1e-5)
    chosen = torch.randint(400, (4000, 400), generator=generator)
    means = squares[:, chosen].mean(2).sqrt()
    half = z_of(0.95) * float((means[1] - means[0]).std())
    assert (found["interval"][1] - found["interval"][0]) / 2 == pytest.approx(half, rel=0.05)
