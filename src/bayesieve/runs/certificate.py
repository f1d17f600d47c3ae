"""`certify`: whether a sieved run is as good as its dense parent, with intervals and a verdict.

Both models predict the same test examples. Each check states by how much the sieved model is worse,
an interval for that number, and the tolerance:

    pass      the whole interval is within the tolerance
    fail      the whole interval is beyond it
    unsure    the tolerance is inside the interval: not enough data to say

`assess.paired` has the intervals. Models whose outputs are equal on every example differ by 0,
interval [0, 0].
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
from scipy.stats import binomtest
from torch import Tensor

from bayesieve.assess.paired import (
    KEPT,
    Bootstrap,
    Check,
    ClassLosses,
    RealLosses,
    distance_to,
    exact_interval,
    kept_loss,
    mean_of,
    paired_interval,
    resampled,
    strangers_check,
    z_of,
)
from bayesieve.assess.predict import ClassPrediction, Prediction, RealPrediction, predict
from bayesieve.errors import UsageError
from bayesieve.runs.arguments import (
    ARGUMENT,
    Count,
    Draws,
    Json,
    NotNegative,
    Place,
    Share,
    command,
    n_samples_of,
)
from bayesieve.runs.folder import CERTIFICATE, RunFolder
from bayesieve.runs.run import load, parent_of


@dataclass(frozen=True)
class Tolerances:
    """Losses that a sieved model may have: arguments of `certify`."""

    accuracy: float
    worst_class: float
    nll: float
    ece: float
    risk: float
    agreement: float
    rmse: float
    coverage: float
    apart: float


LEVELS = (0.5, 0.9, 0.95)  # of the intervals whose coverage is checked


@command
def certify(
    run: Annotated[Place, ARGUMENT],
    against: Place | None = None,
    *,
    accuracy: NotNegative = 0.01,
    worst_class: NotNegative = 0.05,
    nll: NotNegative = 0.05,
    ece: NotNegative = 0.02,
    risk: NotNegative = 0.01,
    agreement: NotNegative = 0.05,
    rmse: NotNegative = 0.05,
    coverage: NotNegative = 0.05,
    apart: NotNegative = 0.5,
    strangers: NotNegative = 0.05,
    level: Share = 0.95,
    allow_unsure: bool = False,
    samples: Draws = 0,
    resamples: Count = 1000,
    seed: int = 0,
    device: str = "auto",
    trust: bool = False,
) -> Json:
    """Compare a sieved run with its dense parent; exit code 1 unless every check passes.

    A check passes when the interval of what the sieved model loses is within the tolerance, fails
    when it is beyond, and is undecided when it holds the tolerance: more examples would decide.

    Args:
        run: Run folder of `prune`, `sieve` or `demo`.
        against: Dense run; the one it was pruned from unless given.
        accuracy: Accuracy may fall by this.
        worst_class: Accuracy of any class may fall by this.
        nll: Negative log-likelihood may rise by this, nats per example.
        ece: Calibration error may rise by this.
        risk: Error of the 80 % most certain may rise by this.
        agreement: Share of examples whose class may change.
        rmse: Regression: RMSE may rise by this fraction, of all and of the 80 % most certain.
        coverage: Regression: coverage at 50, 90 and 95 % may be this much farther from its level.
        apart: Regression: distance of the two predictions, in units of the dense RMSE.
        strangers: Familiarity may rank so many pairs of an OOD and a test input wrongly.
        level: Of the intervals.
        allow_unsure: Checks without enough data to say do not fail.
        samples: Posterior draws to average over; 0 uses the mean weights, auto as many draws as
            bring their standard error below 2 %.
        resamples: Bootstrap samples of the examples.
        seed: Seed of draws and resamples.
        device: auto, cpu, cuda or cuda:N.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    RunFolder(Path(run)).check_open(CERTIFICATE, flag="`run`")
    opened = load(run, device=device, trust=trust)
    assert opened.folder is not None
    named = None if against is None else RunFolder(Path(against))
    parent, name = parent_of(opened, named, device=device, flag="`against`", trust=trust)
    if parent is None:
        raise UsageError(
            f"certify: found no dense parent of {run}: it was not pruned from a run, or that "
            "run has moved. Name one: `against=DENSE`."
        )
    examples, n_samples = opened.data.test, n_samples_of(samples)
    dense, sieved = (
        predict(model, examples.x, n_samples=n_samples, seed=seed, targets=examples.y)
        for model in (parent, opened.model)
    )
    tolerances = Tolerances(accuracy, worst_class, nll, ece, risk, agreement, rmse, coverage, apart)
    bootstrap = Bootstrap(level, resamples, seed)
    checks = compare_predictions(
        dense, sieved, examples.y, tolerances, bootstrap, examples.target_std
    )
    if opened.familiarity is not None:
        check = strangers_check(
            opened.familiarity.distance,
            examples.x,
            strangers,
            level=level,
            seed=seed,
        )
        checks.append(check)
    verdicts = [check.verdict for check in checks]
    accepted = ("pass", "unsure") if allow_unsure else ("pass",)
    result = {
        "run": str(run),
        "against": name if named is None else str(named.path),
        "data": opened.data.name,
        "n_examples": len(examples.x),
        "level": level,
        "samples": 0 if n_samples == 0 else sieved.n_draws,
        "checks": [_row(check) for check in checks],
        "mcnemar_p": mcnemar(dense, sieved, examples.y),
        "certified": all(verdict in accepted for verdict in verdicts),
    }
    with opened.folder.locked():
        opened.folder.write(CERTIFICATE, result)
        opened.folder.seal()
    return result


def _row(check: Check) -> Json:
    return {**asdict(check), "interval": list(check.interval), "verdict": check.verdict}


def compare_predictions(
    dense: Prediction,
    sieved: Prediction,
    targets: Tensor,
    allowed: Tolerances,
    bootstrap: Bootstrap,
    target_std: Tensor | float = 1.0,
) -> list[Check]:
    """Every check of two predictions of the same examples.

    Args:
        dense: of the parent.
        sieved: of the sieved model, of the same kind.
        targets: class labels (N,), or numbers (N,) or (N, m) in the unit of the predictions.
        allowed: what the sieved model may lose.
        bootstrap: level and size.
        target_std: what targets were divided by; errors are shown in the original unit.
    """
    if isinstance(dense, ClassPrediction) and isinstance(sieved, ClassPrediction):
        same = torch.equal(dense.log_probs, sieved.log_probs)
        was, now = (ClassLosses.of(one, targets) for one in (dense, sieved))
        checks = _class_checks(was, now, allowed, bootstrap)
    elif isinstance(dense, RealPrediction) and isinstance(sieved, RealPrediction):
        same = torch.equal(dense.mean, sieved.mean) and torch.equal(dense.std, sieved.std)
        first, second = (RealLosses.of(one, targets, target_std) for one in (dense, sieved))
        checks = _real_checks(first, second, allowed, bootstrap)
    else:
        raise UsageError("certify: one run predicts classes, the other numbers; compare alike.")
    return [Check(**{**asdict(c), "interval": (0.0, 0.0)}) for c in checks] if same else checks


def mcnemar(dense: Prediction, sieved: Prediction, targets: Tensor) -> float | None:
    """Exact two-sided p-value that both models are right equally often; None for regression."""
    if not isinstance(dense, ClassPrediction) or not isinstance(sieved, ClassPrediction):
        return None
    rows = [prediction.scored(targets) for prediction in (dense, sieved)]
    was, now = (prediction.label == labels for prediction, labels in rows)
    lost, won = int((was & ~now).sum()), int((now & ~was).sum())
    return float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def _class_checks(
    dense: ClassLosses, sieved: ClassLosses, allowed: Tolerances, bootstrap: Bootstrap
) -> list[Check]:
    pair = (dense, sieved)
    right, n, z = [one.right for one in pair], len(dense.right), z_of(bootstrap.level)
    nll, ece = [mean_of(one.nll) for one in pair], [one.ece for one in pair]
    risk = [kept_loss(-one.sure, (~one.right).double()) for one in pair]
    shares = [float(r.double().mean()) for r in right]
    agreeing = int((dense.label == sieved.label).sum())
    return [
        Check("accuracy", shares[0], shares[1], shares[0] - shares[1], paired_interval(right, z),
              allowed.accuracy),
        _worst_class(right, dense.truth, allowed.worst_class, bootstrap.level),
        resampled("nll", nll, n, allowed.nll, bootstrap),
        resampled("ece", ece, n, allowed.ece, bootstrap),
        resampled(f"error of the {KEPT:.0%} most certain", risk, n, allowed.risk, bootstrap,
                  share_of=KEPT * n),
        Check("agreement", None, agreeing / n, 1 - agreeing / n,
              exact_interval(n - agreeing, n, bootstrap.level), allowed.agreement),
    ]  # fmt: skip


def _real_checks(
    dense: RealLosses, sieved: RealLosses, allowed: Tolerances, bootstrap: Bootstrap
) -> list[Check]:
    pair, n = (dense, sieved), len(dense.targets)
    squares, nll = [mean_of(one.square) for one in pair], [mean_of(one.nll) for one in pair]
    stds = [one.prediction.std.cpu().double().reshape(n, -1).mean(1) for one in pair]
    kept = [kept_loss(std, one.square) for std, one in zip(stds, pair, strict=True)]
    apart = ((dense.mean - sieved.mean) * dense.scale).square().mean(1)
    checks = [
        resampled("rmse, relative", squares, n, allowed.rmse, bootstrap, relative=True),
        resampled("nll", nll, n, allowed.nll, bootstrap),
    ]
    for level in LEVELS:
        inside = [one.inside(level) for one in pair]
        gaps = [distance_to(level, share) for share in inside]
        shown = [float(share.mean()) for share in inside]
        name = f"coverage of {level:.0%} intervals"
        check = resampled(name, gaps, n, allowed.coverage, bootstrap, share_of=n)
        checks.append(Check(**{**asdict(check), "dense": shown[0], "sieved": shown[1]}))
    name = f"rmse of the {KEPT:.0%} most certain, relative"
    checks.append(resampled(name, kept, n, allowed.rmse, bootstrap, relative=True))
    far = [mean_of(0 * apart), mean_of(apart)]
    both = resampled("agreement", far, n, allowed.apart, bootstrap, unit=squares[0])
    note = "distance of the two predictions in units of the dense RMSE"
    return [*checks, Check(**{**asdict(both), "dense": None, "note": note})]


def _worst_class(right: Sequence[Tensor], labels: Tensor, tolerance: float, level: float) -> Check:
    """The class that loses most; its interval holds for all C classes at once (Bonferroni)."""
    classes = labels.unique().tolist()
    z = z_of(1 - (1 - level) / len(classes))
    members = {c: [r[labels == c] for r in right] for c in classes}
    accuracy = {c: [float(r.double().mean()) for r in rows] for c, rows in members.items()}
    worst = max(classes, key=lambda c: accuracy[c][0] - accuracy[c][1])
    intervals = [paired_interval(rows, z) for rows in members.values()]
    interval = tuple(max(ends) for ends in zip(*intervals, strict=True))
    was, now = accuracy[worst]
    return Check("worst class", was, now, was - now, (interval[0], interval[1]), tolerance,
                 f"class {worst}, {len(members[worst][0])} examples")  # fmt: skip
