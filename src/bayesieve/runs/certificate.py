"""`certify`: whether a sieved run is as good as its dense parent, with intervals and a verdict.

Both models predict the same test examples. Each check states by how much the sieved model is worse,
an interval for that number, and the tolerance:

    pass      the whole interval is within the tolerance
    fail      the whole interval is beyond it
    unsure    the tolerance is inside the interval: not enough data to say

Intervals. Accuracy, and accuracy of each class, are shares of paired examples: with a examples that
only the dense model gets right and b that only the sieved one does, of n,

    d = (a - b) / (n + 2),    var d = ((a + b + 1) / (n + 2) - d²) / (n + 2)     [Bonett and Price]

which stays open where no example differs. Agreement has the exact (Clopper-Pearson) interval, the
AUROC of familiarity against made-up strangers that of DeLong, DeLong and Clarke-Pearson.
Everything else takes a paired bootstrap over examples: a resample holds the same examples for both
models. Models whose outputs are equal on every example differ by 0, interval [0, 0].
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta, binomtest, norm
from torch import Generator, Tensor

from bayesieve.assess.familiarity import Familiarity
from bayesieve.assess.predict import ClassPrediction, Prediction, RealPrediction, predict
from bayesieve.errors import UsageError
from bayesieve.runs.folder import CERTIFICATE, RunFolder
from bayesieve.runs.options import Certify, n_samples_of
from bayesieve.runs.run import load, parent_of

LEVELS = (0.5, 0.9, 0.95)  # of the intervals whose coverage is checked
KEPT = 0.8  # share of the examples, the most certain ones, that selective risk is about
_BINS = 15
_WEIGHTS_AT_ONCE = 4_000_000
Interval = tuple[float, float]
Measure = Callable[[Tensor], Tensor]  # weights of the examples (B, N) to numbers (B,)


@dataclass(frozen=True)
class Check:
    """One line of a certificate.

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
        """Whether the interval is within the tolerance, beyond it, or on both sides."""
        low, high = self.interval
        if high <= self.tolerance:
            return "pass"
        return "fail" if low > self.tolerance else "unsure"


def certify(asked: Certify) -> dict[str, Any]:
    """Compare a run with its parent; returns what certificate.json holds."""
    RunFolder(Path(asked.run)).check_open(CERTIFICATE, flag="RUN")
    run = load(asked.run, device=asked.device, trust=asked.trust)
    assert run.folder is not None
    against = None if asked.against is None else RunFolder(Path(asked.against))
    parent, name = parent_of(run, against, device=asked.device, flag="--against", trust=asked.trust)
    if parent is None:
        raise UsageError(
            f"certify: found no dense parent of {asked.run}: it was not pruned from a run, or that "
            "run has moved. Name one: --against DENSE."
        )
    examples, n_samples = run.data.test, n_samples_of(asked.samples)
    dense, sieved = (
        predict(model, examples.x, n_samples=n_samples, seed=asked.seed, targets=examples.y)
        for model in (parent, run.model)
    )
    checks = compare_predictions(dense, sieved, examples.y, asked, examples.target_std)
    if run.familiarity is not None:
        checks.append(strangers_check(run.familiarity, examples.x, asked))
    verdicts = [check.verdict for check in checks]
    accepted = ("pass", "unsure") if asked.allow_unsure else ("pass",)
    result = {
        "run": str(asked.run),
        "against": name if against is None else str(against.path),
        "data": run.data.name,
        "n_examples": len(examples.x),
        "level": asked.level,
        "samples": 0 if n_samples == 0 else sieved.n_draws,
        "checks": [_row(check) for check in checks],
        "mcnemar_p": mcnemar(dense, sieved, examples.y),
        "certified": all(verdict in accepted for verdict in verdicts),
    }
    with run.folder.locked():
        run.folder.write(CERTIFICATE, result)
        run.folder.seal()
    return result


def _row(check: Check) -> dict[str, Any]:
    return {**asdict(check), "interval": list(check.interval), "verdict": check.verdict}


def compare_predictions(
    dense: Prediction,
    sieved: Prediction,
    targets: Tensor,
    asked: Certify,
    target_std: Tensor | float = 1.0,
) -> list[Check]:
    """Every check of two predictions of the same examples.

    Args:
        dense: of the parent.
        sieved: of the sieved model, of the same kind.
        targets: class labels (N,), or numbers (N,) or (N, m) in the unit of the predictions.
        asked: tolerances, level and size of the bootstrap.
        target_std: what targets were divided by; errors are shown in the original unit.
    """
    if isinstance(dense, ClassPrediction) and isinstance(sieved, ClassPrediction):
        same = torch.equal(dense.log_probs, sieved.log_probs)
        (dense, labels), (sieved, _) = dense.scored(targets), sieved.scored(targets)
        checks = _class_checks(dense, sieved, labels.cpu(), asked)
    elif isinstance(dense, RealPrediction) and isinstance(sieved, RealPrediction):
        same = torch.equal(dense.mean, sieved.mean) and torch.equal(dense.std, sieved.std)
        checks = _real_checks(dense, sieved, targets.cpu(), asked, torch.as_tensor(target_std))
    else:
        raise UsageError("certify: one run predicts classes, the other numbers; compare alike.")
    return [Check(**{**asdict(c), "interval": (0.0, 0.0)}) for c in checks] if same else checks


def strangers_check(known: Familiarity, x: Tensor, asked: Certify) -> Check:
    """Whether familiarity ranks made-up strangers below the test inputs, (N, ...).

    A stranger is a test image with its pixels in another order, or a test row of a table moved by
    three standard deviations in every column, up or down. Familiarity belongs to the data, not to
    the network, so the dense and the sieved model share it.
    """
    flat, generator = x.detach().cpu().float().flatten(1), Generator().manual_seed(asked.seed)
    if x.dim() > 2:
        orders = torch.rand(flat.shape, generator=generator).argsort(1)
        strangers = flat.gather(1, orders)
    else:
        signs = torch.randint(0, 2, flat.shape, generator=generator) * 2 - 1
        strangers = flat + 3 * signs * flat.std(0, correction=0)
    far = known.distance(strangers.reshape(x.shape)).double()
    near = known.distance(x).double()
    auroc, interval = auroc_interval(far, near, _z(asked.level))
    ends = (1 - interval[1], 1 - interval[0])
    note = "AUROC of test inputs against strangers; of the data, so the same for both models"
    return Check("familiarity", None, auroc, 1 - auroc, ends, asked.strangers, note)


def mcnemar(dense: Prediction, sieved: Prediction, targets: Tensor) -> float | None:
    """Exact two-sided p-value that both models are right equally often; None for regression."""
    if not isinstance(dense, ClassPrediction) or not isinstance(sieved, ClassPrediction):
        return None
    rows = [prediction.scored(targets) for prediction in (dense, sieved)]
    was, now = (prediction.label == labels for prediction, labels in rows)
    lost, won = int((was & ~now).sum()), int((now & ~was).sum())
    return float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def _class_checks(
    dense: ClassPrediction, sieved: ClassPrediction, labels: Tensor, asked: Certify
) -> list[Check]:
    pair = (dense, sieved)
    log_probs = [prediction.log_probs.cpu().double() for prediction in pair]
    right = [rows.argmax(1) == labels for rows in log_probs]
    confidence = [rows.max(1).values.exp() for rows in log_probs]
    nll = [mean_of(-rows.gather(1, labels[:, None])[:, 0]) for rows in log_probs]
    ece = [calibration_of(c, r) for c, r in zip(confidence, right, strict=True)]
    risk = [kept_loss(-c, (~r).double()) for c, r in zip(confidence, right, strict=True)]
    n, z = len(labels), _z(asked.level)
    shares = [float(r.double().mean()) for r in right]
    agreeing = int((log_probs[0].argmax(1) == log_probs[1].argmax(1)).sum())
    return [
        Check("accuracy", shares[0], shares[1], shares[0] - shares[1], paired_interval(right, z),
              asked.accuracy),
        _worst_class(right, labels, asked),
        resampled("nll", nll, n, asked.nll, asked),
        resampled("ece", ece, n, asked.ece, asked),
        resampled(f"error of the {KEPT:.0%} most certain", risk, n, asked.risk, asked,
                   share_of=KEPT * n),
        Check("agreement", None, agreeing / n, 1 - agreeing / n,
              exact_interval(n - agreeing, n, asked.level), asked.agreement),
    ]  # fmt: skip


def _real_checks(
    dense: RealPrediction,
    sieved: RealPrediction,
    targets: Tensor,
    asked: Certify,
    target_std: Tensor,
) -> list[Check]:
    n = len(targets)
    y = targets.double().reshape(n, -1)
    scale = target_std.cpu().double().expand(y.shape[1])
    means, stds, losses, nll = [], [], [], []
    for prediction in (dense, sieved):
        means.append(prediction.mean.cpu().double().reshape(n, -1))
        stds.append(prediction.std.cpu().double().reshape(n, -1).mean(1))
        losses.append(((means[-1] - y) * scale).square().mean(1))
        draws, noise = prediction.sample_means.cpu().double(), prediction.noise_std.cpu().double()
        density = prediction.likelihood.log_density(y.reshape(draws.shape[1:]), draws, noise)
        density = density.reshape(len(draws), n, -1).sum(2).logsumexp(0)
        nll.append(mean_of(math.log(len(draws)) + scale.log().sum() - density))
    squares = [mean_of(loss) for loss in losses]
    kept = [kept_loss(std, loss) for std, loss in zip(stds, losses, strict=True)]
    apart = ((means[0] - means[1]) * scale).square().mean(1)
    checks = [
        resampled("rmse, relative", squares, n, asked.rmse, asked, relative=True),
        resampled("nll", nll, n, asked.nll, asked),
    ]
    for level in LEVELS:
        inside = []
        for prediction in (dense, sieved):
            low, high = (end.cpu().double().reshape(n, -1) for end in prediction.interval(level))
            inside.append(((low <= y) & (y <= high)).double().mean(1))
        gaps = [distance_to(level, share) for share in inside]
        shown = [float(share.mean()) for share in inside]
        name = f"coverage of {level:.0%} intervals"
        check = resampled(name, gaps, n, asked.coverage, asked, share_of=n)
        checks.append(Check(**{**asdict(check), "dense": shown[0], "sieved": shown[1]}))
    name = f"rmse of the {KEPT:.0%} most certain, relative"
    checks.append(resampled(name, kept, n, asked.rmse, asked, relative=True))
    both = resampled("agreement", [mean_of(0 * apart), mean_of(apart)], n, asked.apart, asked,
                      unit=squares[0])  # fmt: skip
    note = "distance of the two predictions in units of the dense RMSE"
    return [*checks, Check(**{**asdict(both), "dense": None, "note": note})]


def _worst_class(right: Sequence[Tensor], labels: Tensor, asked: Certify) -> Check:
    """The class that loses most; its interval holds for all C classes at once (Bonferroni)."""
    classes = labels.unique().tolist()
    z = _z(1 - (1 - asked.level) / len(classes))
    members = {c: [r[labels == c] for r in right] for c in classes}
    accuracy = {c: [float(r.double().mean()) for r in rows] for c, rows in members.items()}
    worst = max(classes, key=lambda c: accuracy[c][0] - accuracy[c][1])
    intervals = [paired_interval(rows, z) for rows in members.values()]
    interval = tuple(max(ends) for ends in zip(*intervals, strict=True))
    was, now = accuracy[worst]
    return Check("worst class", was, now, was - now, (interval[0], interval[1]), asked.worst_class,
                 f"class {worst}, {len(members[worst][0])} examples")  # fmt: skip


# --------------------------------------------------------------------------------------- measures


def mean_of(values: Tensor) -> Measure:
    """The mean of one number per example, (N,)."""
    return lambda weights: weights @ values / weights.sum(1)


def distance_to(level: float, inside: Tensor) -> Measure:
    """How far the share of examples inside their intervals is from its level."""
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
    """How much rarer the second of two (N,) bool is true than the first, within z standard errors.

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
    """How often numbers of one kind, (m,), exceed those of another, (n,), and its interval.

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
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, hits, n - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0


def resampled(
    name: str,
    measures: Sequence[Measure],
    n: int,
    tolerance: float,
    asked: Certify,
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
        asked: level, seed and how often to resample.
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

    generator = Generator().manual_seed(asked.seed)
    block, worse = max(1, _WEIGHTS_AT_ONCE // n), []
    for start in range(0, asked.resamples, block):
        rows = min(block, asked.resamples - start)
        chosen = torch.randint(n, (rows, n), generator=generator)
        weights = torch.zeros(rows, n, dtype=torch.float64)
        weights.scatter_add_(1, chosen, torch.ones(rows, n, dtype=torch.float64))
        worse.append(values(weights)[2])
    was, now, middle = (float(value) for value in values(torch.ones(1, n, dtype=torch.float64)))
    tail = (1 - asked.level) / 2
    ends = torch.cat(worse).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    low, high = ends
    if share_of is not None:
        width = _z(asked.level) / (share_of + 2)
        low, high = min(low, middle - width), max(high, middle + width)
    return Check(name, was, now, middle, (low, high), tolerance)


def _z(level: float) -> float:
    return float(norm.ppf((1 + level) / 2))
