"""Classification metrics against scikit-learn, brute force and closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn import metrics as sk
from torch import Tensor

from bayesieve.assess.metrics import (
    ReliabilityBins,
    accuracy,
    brier,
    classification_report,
    confusion_matrix,
    ece,
    error,
    negative_log_likelihood,
    precision_recall_f1,
    reliability_bins,
)
from bayesieve.core.likelihoods import ClassPrediction


def _case(seed: int, n: int = 200, n_classes: int = 5, sharp: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(n_classes, (n,), generator=generator)
    return logits.log_softmax(-1), labels


@pytest.mark.parametrize("seed", range(3))
def test_scores_agree_with_sklearn(seed: int) -> None:
    log_probs, labels = _case(seed)
    probs, predicted = log_probs.exp(), log_probs.argmax(-1)
    assert accuracy(probs, labels) == pytest.approx(sk.accuracy_score(labels, predicted))
    assert error(probs, labels) == pytest.approx(sk.zero_one_loss(labels, predicted))
    expected = sk.confusion_matrix(labels, predicted, labels=range(5))
    assert confusion_matrix(probs, labels).tolist() == expected.tolist()
    nll = sk.log_loss(labels, probs.numpy(), labels=range(5))
    assert negative_log_likelihood(log_probs, labels) == pytest.approx(nll, rel=1e-12)


@pytest.mark.parametrize("n", [3, 6, 50])  # with 3 examples some of 5 classes never occur
def test_macro_scores_agree_with_sklearn_and_are_zero_for_0_over_0(n: int) -> None:
    log_probs, labels = _case(7, n=n)
    found, truth = log_probs.argmax(-1).numpy(), labels.numpy()
    expected = sk.precision_recall_fscore_support(
        truth, found, labels=range(5), average="macro", zero_division=0
    )[:3]
    assert precision_recall_f1(log_probs.exp(), labels) == pytest.approx(expected)


def test_brier_is_twice_the_binary_one_and_sums_over_classes() -> None:
    log_probs, labels = _case(1, n_classes=2)
    binary = sk.brier_score_loss(labels, log_probs.exp()[:, 1].numpy())
    assert brier(log_probs.exp(), labels) == pytest.approx(2 * binary, rel=1e-12)
    log_probs, labels = _case(2, n=10)
    slow = 0.0
    for row, label in zip(log_probs.exp().tolist(), labels.tolist(), strict=True):
        slow += sum((p - (c == label)) ** 2 for c, p in enumerate(row)) / 10
    assert brier(log_probs.exp(), labels) == pytest.approx(slow, rel=1e-12)


def test_nll_is_finite_where_the_probability_underflows() -> None:
    log_probs = torch.tensor([[0.0, -2000.0]], dtype=torch.float64)
    assert negative_log_likelihood(log_probs, torch.tensor([1])) == 2000.0
    certain = torch.tensor([[0.0, -math.inf]])
    assert negative_log_likelihood(certain, torch.tensor([0])) == 0.0
    assert negative_log_likelihood(certain, torch.tensor([1])) == math.inf


def test_float32_input_is_computed_in_float64() -> None:
    log_probs, labels = _case(3)
    single = log_probs.float()
    assert brier(single.exp(), labels) == pytest.approx(brier(log_probs.exp(), labels), rel=1e-6)
    assert ClassPrediction(single.unsqueeze(0)).log_probs.dtype == torch.float64


def _slow_ece(probs: Tensor, labels: Tensor, n_bins: int) -> float:
    confidence, predicted = (a.tolist() for a in probs.max(-1))
    total = 0.0
    for b in range(n_bins):
        inside = [i for i, c in enumerate(confidence) if b / n_bins < c <= (b + 1) / n_bins]
        if inside:
            right = sum(predicted[i] == int(labels[i]) for i in inside) / len(inside)
            sure = sum(confidence[i] for i in inside) / len(inside)
            total += len(inside) / len(labels) * abs(right - sure)
    return total


@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_equal_width_ece_is_the_definition(n_bins: int) -> None:
    log_probs, labels = _case(4)
    slow = _slow_ece(log_probs.exp(), labels, n_bins)
    assert ece(log_probs.exp(), labels, n_bins) == pytest.approx(slow, rel=1e-12)


@pytest.mark.parametrize("n", [7, 15, 200])
def test_equal_mass_bins_are_the_sorted_examples_cut_evenly(n: int) -> None:
    log_probs, labels = _case(5, n=n)
    confidence, predicted = log_probs.exp().max(-1)
    order = confidence.argsort()
    bins = reliability_bins(log_probs.exp(), labels, n_bins=5, binning="equal-mass")
    cuts = [n * k // 5 for k in range(6)]
    for b, (start, stop) in enumerate(itertools.pairwise(cuts)):
        members = order[start:stop]
        right = (predicted == labels)[members].double().mean()
        assert bins.count[b] == len(members)
        assert bins.accuracy[b] == pytest.approx(float(right))
        assert bins.confidence[b] == pytest.approx(float(confidence[members].mean()))


@pytest.mark.parametrize("binning", ["equal-width", "equal-mass"])
def test_ece_ignores_the_order_of_tied_examples(binning: str) -> None:
    probs = torch.tensor([[0.8, 0.2]] * 6 + [[0.6, 0.4]] * 5, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 1])
    mixed = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    first = ece(probs, labels, 4, binning)  # type: ignore[arg-type]
    second = ece(probs[mixed], labels[mixed], 4, binning)  # type: ignore[arg-type]
    assert first == pytest.approx(second, rel=1e-12)
    assert first == pytest.approx((6 * abs(0.8 - 2 / 6) + 5 * abs(0.6 - 3 / 5)) / 11)


def test_confidence_on_an_edge_belongs_to_the_lower_bin() -> None:
    probs = torch.tensor([[0.8, 0.2], [1.0, 0.0]], dtype=torch.float64)
    bins = reliability_bins(probs, torch.tensor([0, 0]), n_bins=5)
    assert bins.count == (0, 0, 0, 1, 1)
    assert bins.edges == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def test_bins_hold_every_example_and_their_means() -> None:
    log_probs, labels = _case(6)
    for binning in ("equal-width", "equal-mass"):
        bins = reliability_bins(log_probs.exp(), labels, 15, binning)  # type: ignore[arg-type]
        assert isinstance(bins, ReliabilityBins)
        assert sum(bins.count) == 200
        right = sum(a * n for a, n in zip(bins.accuracy, bins.count, strict=True)) / 200
        assert right == pytest.approx(accuracy(log_probs.exp(), labels))
        assert len(bins.edges) == 16


def _draws(seed: int, s: int = 6, n: int = 9, c: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(s, n, c, generator=generator, dtype=torch.float64)).log_softmax(-1)


def test_entropies_agree_with_scipy() -> None:
    draws = _draws(0)
    probs = draws.exp().numpy()
    total = entropy(probs.mean(0), axis=-1)
    aleatoric = entropy(probs, axis=-1).mean(0)
    assert np.allclose(ClassPrediction(draws).entropy, total, rtol=1e-12)
    assert np.allclose(ClassPrediction(draws).aleatoric, aleatoric, rtol=1e-12)
    assert np.allclose(ClassPrediction(draws).epistemic, total - aleatoric, atol=1e-12)
    assert np.allclose(ClassPrediction(draws).probs, probs.mean(0), rtol=1e-12)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 6), st.floats(0, 300))
def test_uncertainty_is_bounded_and_adds_up(seed: int, s: int, c: int, sharp: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(s, 3, c, generator=generator, dtype=torch.float64)
    draws = logits.log_softmax(-1)
    prediction = ClassPrediction(draws)
    total, aleatoric = prediction.entropy, prediction.aleatoric
    epistemic = prediction.epistemic
    for part in (total, aleatoric, epistemic):
        assert bool((part >= 0).all())
        assert bool((part <= math.log(c) + 1e-12).all())
    assert bool((epistemic <= math.log(s) + 1e-12).all())
    assert torch.allclose(total, aleatoric + epistemic, rtol=0, atol=1e-10)


def test_impossible_classes_and_agreeing_draws() -> None:
    certain = torch.tensor([[[0.0, -math.inf, -math.inf]]]).expand(4, 2, 3)
    for name in ("entropy", "aleatoric", "epistemic"):
        assert getattr(ClassPrediction(certain), name).tolist() == [0.0, 0.0]
    same = _draws(1, s=1).expand(5, -1, -1)
    assert float(ClassPrediction(same).epistemic.max()) < 1e-15
    tiny = _draws(1, s=1) + torch.tensor([1e-9, -1e-9]).view(2, 1, 1)  # no cancellation at 1e-18
    assert float(ClassPrediction(tiny).epistemic.max()) < 1e-15


GOOD = torch.tensor([[0.5, 0.5], [0.2, 0.8]])


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (GOOD[0], torch.tensor([0]), r"probs must have shape \(N, C\), got \(2,\)"),
        (GOOD[:0], torch.tensor([], dtype=torch.long), r"must have shape \(N, C\)"),
        (GOOD, torch.tensor([0]), r"labels must have shape \(2,\), got \(1,\)"),
        (GOOD, torch.tensor([0, 2]), r"labels must lie in 0..1, got 0..2"),
        (GOOD, torch.tensor([-1, 0]), r"labels must lie in 0..1, got -1..0"),
        (GOOD * 2, torch.tensor([0, 1]), "probs must be between 0 and 1"),
        (GOOD * math.nan, torch.tensor([0, 1]), "probs must be between 0 and 1"),
        (GOOD * 0.9, torch.tensor([0, 1]), "rows of probs must sum to 1, got a row that sums"),
    ],
)
def test_wrong_probabilities_raise(probs: Tensor, labels: Tensor, message: str) -> None:
    for metric in (accuracy, error, brier, ece, confusion_matrix, precision_recall_f1):
        with pytest.raises(ValueError, match=message):
            metric(probs, labels)


def test_wrong_kinds_raise() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(TypeError, match="labels must be whole numbers"):
        accuracy(GOOD, labels.float())
    with pytest.raises(ValueError, match=r"Pass log_softmax\(logits\)"):
        negative_log_likelihood(torch.zeros(2, 2), labels)
    with pytest.raises(ValueError, match="must sum to 1"):
        classification_report(torch.full((1, 2, 2), math.nan), labels)
    with pytest.raises(ValueError, match=r"must have shape \(S, N, C\), got \(2, 2\)"):
        classification_report(GOOD.log(), labels)
    with pytest.raises(ValueError, match="Did you mean 'equal-mass'"):
        ece(GOOD, labels, binning="equal-mas")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_bins must be > 0"):
        ece(GOOD, labels, n_bins=0)
