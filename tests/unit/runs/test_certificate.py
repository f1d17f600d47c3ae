"""`certify`: exact cases, coverage of its intervals by simulation, and exit codes for a build."""

import inspect
import json
import math
from dataclasses import fields

import pytest
import torch
from scipy.stats import binom

from bayesieve import runs
from bayesieve.assess.metrics import ece
from bayesieve.assess.paired import (
    Bootstrap,
    auroc_interval,
    calibration_of,
    kept_loss,
    mean_of,
    paired_interval,
    resampled,
    strangers_check,
)
from bayesieve.core.likelihoods import ClassPrediction, Gaussian, RealPrediction
from bayesieve.runs.certificate import Tolerances, certify, compare_predictions, mcnemar
from bayesieve.uncertainty.calibration import risk_coverage
from bayesieve.uncertainty.familiarity import Familiarity
from commands import call, ok, refused
from problems import normal, seeded

DEFAULTS = inspect.signature(certify).parameters
ONES = torch.ones(1, 2000, dtype=torch.float64)


def classes(n=2000, n_classes=4, seed=0):
    """Logits of a good classifier, and labels."""
    labels = torch.arange(n) % n_classes
    logits = normal(n, n_classes, seed=seed, dtype=torch.float64)
    logits[torch.arange(n), labels] += 4
    return logits, labels


def prediction(logits):
    return ClassPrediction(logits.log_softmax(-1)[None])


def real(n=500, noise=1.0, seed=0):
    """Means, and a prediction with the right noise around them."""
    mean = normal(1, n, 1, seed=seed, dtype=torch.float64)
    return RealPrediction(mean, torch.full((1, n, 1), noise, dtype=torch.float64), Gaussian())


def checks(*arguments, **tolerances):
    usual = {spec.name: DEFAULTS[spec.name].default for spec in fields(Tolerances)}
    allowed, bootstrap = Tolerances(**usual | tolerances), Bootstrap(resamples=200)
    return {c.name: c for c in compare_predictions(*arguments, allowed, bootstrap)}


# --- exact cases


def test_equal_models_pass_with_no_difference():
    logits, labels = classes()
    mean = real()
    for found in (
        checks(prediction(logits), prediction(logits), labels),
        checks(mean, real(), mean.mean + normal(500, 1, seed=1, dtype=torch.float64)),
    ):
        assert {check.verdict for check in found.values()} == {"pass"}
        assert {check.worse_by for check in found.values()} == {0.0}
        assert {check.interval for check in found.values()} == {(0.0, 0.0)}
    assert mcnemar(prediction(logits), prediction(logits), labels) == 1.0


def test_a_model_broken_on_one_class_fails_there_though_others_hide_it():
    logits, labels = classes(4000, 20)
    logits[torch.arange(4000), labels] += 20  # all right
    broken = logits.clone()
    half = (labels == 7) & (torch.arange(4000) < 2000)
    broken[half] = -logits[half]
    found = checks(prediction(logits), prediction(broken), labels, accuracy=0.05, nll=9.0)
    worst = found["worst class"]
    assert (worst.verdict, worst.note) == ("fail", "class 7, 200 examples")
    assert (worst.dense, worst.sieved, worst.worse_by) == (1.0, 0.5, 0.5)
    assert found["accuracy"].worse_by == pytest.approx(0.025)
    assert found["accuracy"].verdict == "pass"  # 100 of 4,000 examples


def test_verdicts_are_about_the_interval():
    logits, labels = classes()
    other = prediction(logits + 0.3 * normal(2000, 4, seed=5, dtype=torch.float64))
    low, high = checks(prediction(logits), other, labels)["nll"].interval
    assert low < high
    verdicts = [
        checks(prediction(logits), other, labels, nll=limit)["nll"].verdict
        for limit in (max(low - 1e-6, 0), (low + high) / 2, high)
    ]
    assert verdicts == ["fail", "unsure", "pass"]


def test_few_examples_are_not_enough_though_none_differs():
    logits, labels = classes(20)
    other = prediction(logits + 1e-9 * normal(20, 4, seed=5, dtype=torch.float64))
    found = checks(prediction(logits), other, labels)
    for name in ("accuracy", "worst class", "error of the 80% most certain", "agreement"):
        assert found[name].worse_by == 0
        assert found[name].verdict == "unsure", name


def test_coverage_that_leaves_its_level_fails():
    mean = real(4000)
    targets = mean.mean + normal(4000, 1, seed=1, dtype=torch.float64)
    found = checks(mean, real(4000, noise=0.5), targets)
    for name in ("coverage of 50% intervals", "coverage of 90% intervals"):
        assert found[name].verdict == "fail"
    assert found["rmse, relative"].worse_by == 0
    assert found["agreement"].worse_by == 0


def test_measures_are_the_metrics():
    logits, labels = classes()
    probs = logits.softmax(-1)
    confidence, label = probs.max(-1)
    confidence = (confidence * 50).round() / 50  # with ties
    wrong = label != labels
    assert float(calibration_of(probs.max(-1).values, ~wrong)(ONES)) == pytest.approx(
        ece(probs, labels), abs=1e-12
    )
    _, risk = risk_coverage(-confidence, wrong.double())
    kept = float(kept_loss(-confidence, wrong.double())(ONES))
    assert kept == pytest.approx(float(risk[1599]), abs=1e-12)


# --- coverage of the intervals


def test_paired_intervals_cover_the_difference():
    # 95 % intervals of 2,000 data sets of 150 examples; true difference .06 - .03. Of 2,000, less
    # than .93 happens once in 10,000 where coverage is .95.
    n_sets, covered = 2000, 0
    for seed in range(n_sets):
        u = torch.rand(150, generator=seeded(seed))
        low, high = paired_interval([u > 0.03, (u <= 0.03) | (u > 0.09)], 1.959964)
        # right: only the second below .03, only the first between .03 and .09
        covered += low <= 0.03 <= high
    assert binom.cdf(covered, n_sets, 0.95) > 1e-4


def test_no_share_falls_by_more_than_all():
    right = torch.ones(40).bool()
    assert paired_interval([right, ~right], 2.8)[1] == 1
    assert paired_interval([~right, right], 2.8)[0] == -1


def test_bootstrap_intervals_cover_the_difference():
    # Mean losses 0 and .1 of two models of 300 examples, correlated, skewed; 400 data sets. A
    # bootstrap of a mean of 300 numbers covers .94 or more; below .90 happens once in 1,000.
    inside, asked = 0, Bootstrap(resamples=200)
    for seed in range(400):
        shared, one, two = normal(3, 300, seed=seed, dtype=torch.float64)
        losses = ((shared + 0.5 * one).square(), (shared + 0.5 * two).square() + 0.1)
        check = resampled("loss", [mean_of(loss) for loss in losses], 300, 0.0, asked)
        inside += check.interval[0] <= 0.1 <= check.interval[1]
    assert 360 <= inside <= 392


def test_the_auroc_is_the_share_of_pairs_and_its_interval_covers():
    high, low = torch.tensor([3.0, 1.0, 2.0, 5.0]), torch.tensor([1.0, 2.0, 0.0])
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in high for b in low]
    assert auroc_interval(high, low, 0.0)[0] == pytest.approx(sum(pairs) / len(pairs))
    # Normals one apart: AUROC is Phi(1 / sqrt 2). 400 data sets of 80 and 60: DeLong's interval
    # covers about .945; below .91 or above .98 happens less than once in 1,000.
    true, inside = 0.5 * (1 + math.erf(0.5)), 0
    for seed in range(400):
        numbers = normal(140, seed=seed, dtype=torch.float64)
        _, (left, right) = auroc_interval(numbers[:80] + 1, numbers[80:], 1.96)
        inside += left <= true <= right
    assert 364 <= inside <= 392
    assert auroc_interval(high + 9, low, 1.96)[1] == (pytest.approx(1 - 1.96 / 5), 1.0)


def test_strangers_are_told_from_test_inputs_of_tables_and_images():
    rows = normal(400, 4, seed=0)
    images = normal(400, 1, 3, 3, seed=1).cumsum(3).cumsum(2)
    for x in (rows, images):
        check = strangers_check(Familiarity.of(x[:300]).distance, x[300:])
        assert check.dense is None
        assert check.sieved > 0.9
        assert check.interval[0] <= check.worse_by <= check.interval[1]
    blind = Familiarity.of(10 * normal(300, 4, seed=2))  # to it, all of this is ordinary
    assert strangers_check(blind.distance, rows).verdict == "fail"


# --- the command


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run, one with 10 % and one with 85 % zeros."""
    out = tmp_path_factory.mktemp("certify")
    runs.train(data="digits", net="mlp:16", epochs=5, out=out / "a", device="cpu", figures=False)
    for name, zeros in (("b", 0.1), ("c", 0.85)):
        runs.prune(out / "a", out / name, zeros=zeros, device="cpu", figures=False)
    return out


def test_a_certificate_is_an_exit_code(folders):
    free = ("--accuracy", "1", "--worst-class", "1", "--nll", "9", "--ece", "1", "--risk", "1",
            "--agreement", "1")  # fmt: skip
    assert ok("certify", folders / "b", *free).stdout.rstrip().endswith("certified")
    failed = call("certify", folders / "c", "--json")
    assert failed.exit_code == 1
    result = json.loads(failed.stdout)
    assert not result["certified"]
    assert result == json.loads((folders / "c" / "certificate.json").read_text())
    assert result == runs.certify(folders / "c")
    assert "not certified" in call("certify", folders / "c").stdout


def test_unsure_checks_may_be_allowed(folders):
    every = {"accuracy": 0.5, "worst_class": 1.0, "nll": 9.0, "ece": 1.0, "risk": 1.0}
    unsure = runs.certify(folders / "b", agreement=0.0, **every)
    assert [c["verdict"] for c in unsure["checks"]].count("unsure") == 1
    assert not unsure["certified"]
    assert runs.certify(folders / "b", agreement=0.0, allow_unsure=True, **every)["certified"]


def test_report_and_cards_show_the_certificate(folders):
    result = runs.certify(folders / "c")
    assert result["checks"][-1]["name"] == "familiarity"
    runs.report([folders / "c"], out=folders / "page.html", points=2, device="cpu")
    assert '"certificate":{"run"' in (folders / "page.html").read_text().replace(" ", "")
    runs.export(folders / "c", "bundle", folders / "bundle", masked_ok=True)
    assert "**not certified**" in (folders / "bundle" / "README.md").read_text()
    runs.export(folders / "a", "bundle", folders / "plain", masked_ok=True)
    assert "Certificate" not in (folders / "plain" / "README.md").read_text()


def test_a_parent_that_is_not_known_is_asked_for(folders):
    message = refused(2, "certify", folders / "a")
    assert "no dense parent" in message
    assert "--against DENSE" in message
    result = runs.certify(folders / "a", folders / "a")
    assert result["certified"]
