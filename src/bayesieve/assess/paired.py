"""Two models on the same examples: by how much one is worse, and the interval of that number.

Intervals. Accuracy, and accuracy of each class, are shares of paired examples: with a examples that
only the first model gets right and b that only the second one does, of n,

    d = (a - b) / (n + 2),    var d = ((a + b + 1) / (n + 2) - d²) / (n + 2)     [Bonett and Price]

which stays open where no example differs. Shares of one model have the exact (Clopper-Pearson)
interval, an AUROC that of DeLong, DeLong and Clarke-Pearson. Everything else takes a paired
bootstrap over examples: a resample holds the same examples for both models.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from bayesieve.assess.metrics import ReliabilityBins
from bayesieve.assess.predict import ClassPrediction, Prediction, RealPrediction

KEPT = 0.8  # share of the examples, the most certain ones, that selective risk is about
_BINS = 15
_WEIGHTS_AT_ONCE = 4_000_000
Interval = tuple[float, float]
Measure = Callable[[Tensor], Tensor]  # weights of the examples (B, N) to numbers (B,)


@dataclass(frozen=True)
class Bootstrap:
    """Settings of resampling: level of the intervals, number of resamples, seed."""

    level: float = 0.95
    resamples: int = 1000
    seed: int = 0


@dataclass(frozen=True)
class Check:
    """One comparison of a dense model and a sieved one.

    Args:
        name: what is compared.
        dense: its value for the parent; None where it is about both models.
        sieved: its value for the sieved model.
        worse_by: how much worse the sieved model is; below 0 if it is better.
        interval: of `worse_by`.
        tolerance: largest `worse_by` that passes.
        note: more about it, such as which class is the worst.

    Example:
        >>> Check("accuracy", 0.95, 0.94, 0.01, (0.004, 0.016), 0.01).verdict
        'unsure'
    """

    name: str
    dense: float | None
    sieved: float
    worse_by: float
    interval: Interval
    tolerance: float
    note: str | None = None

    @property
    def verdict(self) -> str:
        """Return whether the interval is within the tolerance, beyond it, or on both sides."""
        low, high = self.interval
        if high <= self.tolerance:
            return "pass"
        return "fail" if low > self.tolerance else "unsure"


def strangers_check(
    distance: Callable[[Tensor], Tensor],
    x: Tensor,
    tolerance: float = 0.05,
    *,
    level: float = 0.95,
    seed: int = 0,
) -> Check:
    """Check that familiarity, by its distance, ranks OOD inputs below test inputs, (N, ...).

    An OOD input is a test image with its pixels in another order, or a test row of a table moved by
    three standard deviations in every column, up or down. Familiarity belongs to the data, not to
    the network, so the dense and the sieved model share it.
    """
    flat, generator = x.detach().cpu().float().flatten(1), Generator().manual_seed(seed)
    if x.dim() > 2:
        orders = torch.rand(flat.shape, generator=generator).argsort(1)
        shifted = flat.gather(1, orders)
    else:
        signs = torch.randint(0, 2, flat.shape, generator=generator) * 2 - 1
        shifted = flat + 3 * signs * flat.std(0, correction=0)
    far = distance(shifted.reshape(x.shape)).double()
    near = distance(x).double()
    auroc, interval = auroc_interval(far, near, z_of(level))
    ends = (1 - interval[1], 1 - interval[0])
    note = "AUROC of test inputs against OOD inputs; of the data, so the same for both models"
    return Check("familiarity", None, auroc, 1 - auroc, ends, tolerance, note)


# ----------------------------------------------------------------------------------------- losses


@dataclass(frozen=True)
class ClassLosses:
    """One prediction of classes, example by example.

    Args:
        truth: true class, (N,).
        label: predicted class, (N,).
        right: whether it is true, (N,) bool.
        sure: probability of the predicted class, (N,).
        nll: negative log probability of the true class, (N,).
    """

    truth: Tensor
    label: Tensor
    right: Tensor
    sure: Tensor
    nll: Tensor

    @classmethod
    def of(cls, prediction: ClassPrediction, targets: Tensor) -> "ClassLosses":
        """The losses on these targets; of answers per position those that count, flat."""
        rows, labels = prediction.scored(targets)
        logs, labels = rows.log_probs.cpu().double(), labels.cpu()
        highest, label = logs.max(1)
        nll = -logs.gather(1, labels[:, None])[:, 0]
        return cls(labels, label, label == labels, highest.exp(), nll)

    @property
    def ece(self) -> "Measure":
        """Calibration error, of weighted examples."""
        return calibration_of(self.sure, self.right)


@dataclass(frozen=True)
class RealLosses:
    """One prediction of numbers, example by example.

    Args:
        prediction: of N examples.
        targets: (N, m), in its unit.
        scale: of the targets in their original unit, (m,).
    """

    prediction: RealPrediction
    targets: Tensor
    scale: Tensor

    @classmethod
    def of(
        cls, prediction: RealPrediction, targets: Tensor, target_std: Tensor | float
    ) -> "RealLosses":
        """The losses on targets, (N,) or (N, m), that were divided by `target_std`."""
        y = targets.cpu().double().reshape(len(targets), -1)
        return cls(prediction, y, torch.as_tensor(target_std).cpu().double().expand(y.shape[1]))

    @property
    def mean(self) -> Tensor:
        """Predicted means, (N, m)."""
        return self.prediction.mean.cpu().double().reshape(self.targets.shape)

    @property
    def square(self) -> Tensor:
        """Squared error in the original unit, (N,)."""
        return ((self.mean - self.targets) * self.scale).square().mean(1)

    @property
    def nll(self) -> Tensor:
        """Negative log density in the original unit, (N,)."""
        return surprise_of(self.prediction, self.targets, self.scale)

    def inside(self, level: float) -> Tensor:
        """Share of the targets of each example inside its central interval, (N,)."""
        ends = self.prediction.interval(level)
        low, high = (end.cpu().double().reshape(self.targets.shape) for end in ends)
        return ((low <= self.targets) & (self.targets <= high)).double().mean(1)


def losses_of(
    prediction: Prediction, y: Tensor, target_std: Tensor | float
) -> ClassLosses | RealLosses:
    """Losses of single examples with targets y, (N,) or (N, m)."""
    if isinstance(prediction, ClassPrediction):
        return ClassLosses.of(prediction, y)
    assert isinstance(prediction, RealPrediction)
    return RealLosses.of(prediction, y, target_std)


# --------------------------------------------------------------------------------------- measures


def mean_of(values: Tensor) -> Measure:
    """The mean of one number per example, (N,)."""
    return lambda weights: weights @ values / weights.sum(1)


def surprise_of(prediction: RealPrediction, targets: Tensor, scale: Tensor) -> Tensor:
    """Negative log density of each target, (N, m), in the unit of `scale`, (m,); shape (N,)."""
    draws, noise = prediction.sample_means.cpu().double(), prediction.noise_std.cpu().double()
    density = prediction.likelihood.log_density(targets.reshape(draws.shape[1:]), draws, noise)
    density = density.reshape(len(draws), len(targets), -1).sum(2).logsumexp(0)
    return math.log(len(draws)) + scale.log().sum() - density


def distance_to(level: float, inside: Tensor) -> Measure:
    """Return how far the share of examples inside their intervals is from its level."""
    return lambda weights: (mean_of(inside)(weights) - level).abs()


def calibration_of(confidence: Tensor, right: Tensor) -> Measure:
    """The calibration error with 15 bins of equal width, as `metrics.ece`."""
    edges = torch.arange(1, _BINS).double() / _BINS
    gaps = torch.zeros(len(confidence), _BINS, dtype=torch.float64)
    place = torch.bucketize(confidence, edges)
    gaps[torch.arange(len(confidence)), place] = right.double() - confidence
    return lambda weights: (weights @ gaps).abs().sum(1) / weights.sum(1)


def kept_loss(uncertainty: Tensor, losses: Tensor) -> Measure:
    """Mean loss of the 80 % least uncertain examples; ties count in proportion."""
    order = uncertainty.argsort(stable=True)
    ranked = uncertainty[order]
    last = torch.cat([ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool)])

    def measure(weights: Tensor) -> Tensor:
        sorted_weights = weights[:, order]
        count = sorted_weights.cumsum(1)[:, last]
        total = (sorted_weights * losses[order]).cumsum(1)[:, last]
        zero = torch.zeros(len(weights), 1, dtype=torch.float64)
        sizes, sums = count.diff(dim=1, prepend=zero), total.diff(dim=1, prepend=zero)
        room = KEPT * weights.sum(1, keepdim=True)
        part = ((room - count + sizes) / sizes.clamp_min(1e-12)).clamp(0, 1)
        return (part * sums).sum(1) / room[:, 0]

    return measure


# -------------------------------------------------------------------------------------- intervals


def paired_interval(right: Sequence[Tensor], z: float) -> Interval:
    """Compare how often two (N,) bool are true: the first minus the second, z standard errors.

    Example:
        >>> same = [torch.ones(98).bool()] * 2
        >>> [round(end, 4) for end in paired_interval(same, 1.96)]  # no example differs
        [-0.0196, 0.0196]
    """
    was, now = right
    n = len(was) + 2
    lost, won = int((was & ~now).sum()), int((now & ~was).sum())
    middle = (lost - won) / n
    width = z * (((lost + won + 1) / n - middle**2) / n) ** 0.5
    return max(middle - width, -1.0), min(middle + width, 1.0)


def auroc_interval(high: Tensor, low: Tensor, z: float) -> tuple[float, Interval]:
    """Return how often numbers of one kind, (m,), exceed those of another, (n,), and its interval.

    Ties count half. The width is z standard errors by DeLong's variance, and never less than that
    of as many pairs without any overlap can show.

    Example:
        >>> auroc_interval(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 3.0]), 0.0)[0]
        0.75
    """

    def placed(these: Tensor, among: Tensor) -> Tensor:  # share of `among` below each of `these`
        ranked = among.sort().values
        sides = [torch.searchsorted(ranked, these, right=right) for right in (False, True)]
        return (sides[0] + sides[1]).double() / (2 * len(among))

    above, below = placed(high, low), 1 - placed(low, high)
    spread = [values.var().nan_to_num() / len(values) for values in (above, below)]
    middle = float(above.mean())
    width = max(z * float(sum(spread)) ** 0.5, z / (min(len(high), len(low)) + 2))
    return middle, (middle - width, min(1.0, middle + width))


def exact_interval(hits: int, n: int, level: float) -> Interval:
    """Clopper and Pearson's interval of a share.

    Example:
        >>> [round(end, 4) for end in exact_interval(0, 100, 0.95)]
        [0.0, 0.0362]
    """
    from scipy.stats import beta  # here: it takes a second to import

    tail = (1 - level) / 2
    low = float(beta.ppf(tail, hits, n - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0


def resampled(
    name: str,
    measures: Sequence[Measure],
    n: int,
    tolerance: float,
    bootstrap: Bootstrap,
    *,
    relative: bool = False,
    share_of: float | None = None,
    unit: Measure | None = None,
) -> Check:
    """A check with a percentile interval of the paired bootstrap.

    Args:
        name: of the check.
        measures: of the dense and of the sieved model.
        n: how many examples there are.
        tolerance: of the check.
        bootstrap: level, seed and how often to resample.
        relative: whether measures are mean squares, whose roots are compared by their ratio.
        share_of: of shares, of how many examples: no interval is narrower than that of so many
            examples without any difference, where resampling is blind.
        unit: the difference is the root of its ratio to this mean square.
    """

    def values(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        was, now = (measure(weights) for measure in measures)
        if unit is not None:
            was, now = was, (now / unit(weights)).sqrt()
        if relative:
            was, now = was.sqrt(), now.sqrt()
            return was, now, now / was - 1
        return was, now, now - was

    generator = Generator().manual_seed(bootstrap.seed)
    block, worse = max(1, _WEIGHTS_AT_ONCE // n), []
    for start in range(0, bootstrap.resamples, block):
        rows = min(block, bootstrap.resamples - start)
        chosen = torch.randint(n, (rows, n), generator=generator)
        weights = torch.zeros(rows, n, dtype=torch.float64)
        weights.scatter_add_(1, chosen, torch.ones(rows, n, dtype=torch.float64))
        worse.append(values(weights)[2])
    was, now, middle = (float(value) for value in values(torch.ones(1, n, dtype=torch.float64)))
    tail = (1 - bootstrap.level) / 2
    ends = torch.cat(worse).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    low, high = ends
    if share_of is not None:
        width = z_of(bootstrap.level) / (share_of + 2)
        low, high = min(low, middle - width), max(high, middle + width)
    return Check(name, was, now, middle, (low, high), tolerance)


class Group(NamedTuple):
    """Neighbouring bins taken together, and the accuracies that so few examples leave plausible."""

    confidence: float
    accuracy: float
    n: int
    low: float
    high: float


def groups_of(bins: ReliabilityBins) -> list[Group]:
    """Join neighbouring bins until each group has 10 examples and 0.2 % of them.

    The accuracy of fewer is mostly noise. Groups begin at the most confident bin;
    too few at the end join the last group. Returned with the least confident first.

    Example:
        >>> bins = ReliabilityBins((0.3, 0.8), (0.2, 0.7), (4, 96), (0.0, 0.5, 1.0))
        >>> [(group.n, round(group.accuracy, 2)) for group in groups_of(bins)]
        [(100, 0.68)]
    """
    least, sums = max(10, 0.002 * sum(bins.count)), [[0.0, 0.0, 0.0]]
    rows = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
    for n, confidence, accuracy in reversed([row for row in rows if row[0]]):
        if sums[-1][0] >= least:
            sums.append([0.0, 0.0, 0.0])
        for i, value in enumerate((n, n * confidence, n * accuracy)):
            sums[-1][i] += value
    if sums[-1][0] < least and len(sums) > 1:
        rest = sums.pop()
        sums[-1] = [a + b for a, b in zip(sums[-1], rest, strict=True)]
    whole = [(round(n), confidence / n, accuracy / n) for n, confidence, accuracy in sums[::-1]]
    return [Group(c, a, n, *plausible(a, n)) for n, c, a in whole]


def plausible(share: float, n: int) -> Interval:
    """Wilson's interval of 90 % for a share of n examples.

    Example:
        >>> [round(end, 3) for end in plausible(0.5, 100)]
        [0.419, 0.581]
    """
    z2 = 1.645**2 / n
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_check(name: str, losses: Sequence[Tensor], tolerance: float, level: float) -> Check:
    """Means of one number per example: the interval is that of the mean of paired differences."""
    was, now = (float(loss.mean()) for loss in losses)
    gap = losses[1] - losses[0]
    width = z_of(level) * float(gap.std(correction=0)) / len(gap) ** 0.5
    return Check(name, was, now, now - was, (now - was - width, now - was + width), tolerance)


def root_check(name: str, squares: Sequence[Tensor], tolerance: float, level: float) -> Check:
    """Roots of mean squares, (N,) each; the interval is that of their linearised difference."""
    was, now = (max(float(one.mean().sqrt()), 1e-12) for one in squares)
    halves = [one / (2 * root) for one, root in zip(squares, (was, now), strict=True)]
    return replace(mean_check(name, halves, tolerance, level), dense=was, sieved=now,
                   worse_by=now - was)  # fmt: skip


def compared(
    first: ClassLosses | RealLosses,
    second: ClassLosses | RealLosses,
    limits: Mapping[str, float],
    bootstrap: Bootstrap,
) -> dict[str, Check]:
    """By how much the second of two predictions of the same kind is worse, by name of the number.

    Args:
        first: losses of the one.
        second: of the other.
        limits: tolerance of each number.
        bootstrap: level of all intervals, and how examples are resampled where needed.
    """
    pair, n = (first, second), len(first.nll)
    checks = {"nll": mean_check("nll", [one.nll for one in pair], limits["nll"], bootstrap.level)}
    if isinstance(first, ClassLosses) and isinstance(second, ClassLosses):
        was, now = (float((~one.right).double().mean()) for one in (first, second))
        ends, ece = error_interval(first, second, bootstrap.level), (first.ece, second.ece)
        error = Check("error", was, now, now - was, ends, limits["error"])
        return {"error": error, **checks, "ece": resampled("ece", ece, n, limits["ece"], bootstrap)}
    assert isinstance(first, RealLosses)
    assert isinstance(second, RealLosses)
    squares = mean_of(first.square), mean_of(second.square)
    gaps = distance_to(0.9, first.inside(0.9)), distance_to(0.9, second.inside(0.9))
    rmse = resampled("rmse", squares, n, limits["rmse"], bootstrap, relative=True)
    coverage = resampled("coverage_90", gaps, n, limits["coverage_90"], bootstrap, share_of=n)
    return {"rmse": rmse, **checks, "coverage_90": coverage}


def error_interval(
    first: ClassLosses | RealLosses, second: ClassLosses | RealLosses, level: float
) -> Interval:
    """The interval of how much larger the second's error, or mean squared error, is."""
    if isinstance(first, ClassLosses) and isinstance(second, ClassLosses):
        return paired_interval((first.right, second.right), z_of(level))
    assert isinstance(first, RealLosses)
    assert isinstance(second, RealLosses)
    return mean_check("squares", (first.square, second.square), 0.0, level).interval


def z_of(level: float) -> float:
    """Standard errors on each side of a normal interval of this level.

    Example:
        >>> round(z_of(0.95), 2)
        1.96
    """
    return NormalDist().inv_cdf((1 + level) / 2)
