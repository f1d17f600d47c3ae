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
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from bayesieve.runs.folder import CERTIFICATE, RunFolder
from bayesieve.runs.options import Certify, n_samples_of
from bayesieve.runs.run import load, parent_of

LEVELS = (0.5, 0.9, 0.95)  # of the intervals whose coverage is checked


def certify(asked: Certify) -> dict[str, Any]:
    """Compare a run with its parent; returns what certificate.json holds."""
    RunFolder(Path(asked.run)).check_open(CERTIFICATE, flag="`run`")
    run = load(asked.run, device=asked.device, trust=asked.trust)
    assert run.folder is not None
    against = None if asked.against is None else RunFolder(Path(asked.against))
    parent, name = parent_of(run, against, device=asked.device, flag="`against`", trust=asked.trust)
    if parent is None:
        raise UsageError(
            f"certify: found no dense parent of {asked.run}: it was not pruned from a run, or that "
            "run has moved. Name one: `against=DENSE`."
        )
    examples, n_samples = run.data.test, n_samples_of(asked.samples)
    dense, sieved = (
        predict(model, examples.x, n_samples=n_samples, seed=asked.seed, targets=examples.y)
        for model in (parent, run.model)
    )
    checks = compare_predictions(dense, sieved, examples.y, asked, examples.target_std)
    if run.familiarity is not None:
        strangers = strangers_check(
            run.familiarity.distance,
            examples.x,
            asked.strangers,
            level=asked.level,
            seed=asked.seed,
        )
        checks.append(strangers)
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


def _bootstrap(asked: Certify) -> Bootstrap:
    return Bootstrap(asked.level, asked.resamples, asked.seed)


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
        was, now = (ClassLosses.of(one, targets) for one in (dense, sieved))
        checks = _class_checks(was, now, asked)
    elif isinstance(dense, RealPrediction) and isinstance(sieved, RealPrediction):
        same = torch.equal(dense.mean, sieved.mean) and torch.equal(dense.std, sieved.std)
        first, second = (RealLosses.of(one, targets, target_std) for one in (dense, sieved))
        checks = _real_checks(first, second, asked)
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


def _class_checks(dense: ClassLosses, sieved: ClassLosses, asked: Certify) -> list[Check]:
    pair, bootstrap = (dense, sieved), _bootstrap(asked)
    right, n, z = [one.right for one in pair], len(dense.right), z_of(asked.level)
    nll, ece = [mean_of(one.nll) for one in pair], [one.ece for one in pair]
    risk = [kept_loss(-one.sure, (~one.right).double()) for one in pair]
    shares = [float(r.double().mean()) for r in right]
    agreeing = int((dense.label == sieved.label).sum())
    return [
        Check("accuracy", shares[0], shares[1], shares[0] - shares[1], paired_interval(right, z),
              asked.accuracy),
        _worst_class(right, dense.truth, asked),
        resampled("nll", nll, n, asked.nll, bootstrap),
        resampled("ece", ece, n, asked.ece, bootstrap),
        resampled(f"error of the {KEPT:.0%} most certain", risk, n, asked.risk, bootstrap,
                  share_of=KEPT * n),
        Check("agreement", None, agreeing / n, 1 - agreeing / n,
              exact_interval(n - agreeing, n, asked.level), asked.agreement),
    ]  # fmt: skip


def _real_checks(dense: RealLosses, sieved: RealLosses, asked: Certify) -> list[Check]:
    pair, bootstrap, n = (dense, sieved), _bootstrap(asked), len(dense.targets)
    squares, nll = [mean_of(one.square) for one in pair], [mean_of(one.nll) for one in pair]
    stds = [one.prediction.std.cpu().double().reshape(n, -1).mean(1) for one in pair]
    kept = [kept_loss(std, one.square) for std, one in zip(stds, pair, strict=True)]
    apart = ((dense.mean - sieved.mean) * dense.scale).square().mean(1)
    checks = [
        resampled("rmse, relative", squares, n, asked.rmse, bootstrap, relative=True),
        resampled("nll", nll, n, asked.nll, bootstrap),
    ]
    for level in LEVELS:
        inside = [one.inside(level) for one in pair]
        gaps = [distance_to(level, share) for share in inside]
        shown = [float(share.mean()) for share in inside]
        name = f"coverage of {level:.0%} intervals"
        check = resampled(name, gaps, n, asked.coverage, bootstrap, share_of=n)
        checks.append(Check(**{**asdict(check), "dense": shown[0], "sieved": shown[1]}))
    name = f"rmse of the {KEPT:.0%} most certain, relative"
    checks.append(resampled(name, kept, n, asked.rmse, bootstrap, relative=True))
    far = [mean_of(0 * apart), mean_of(apart)]
    both = resampled("agreement", far, n, asked.apart, bootstrap, unit=squares[0])
    note = "distance of the two predictions in units of the dense RMSE"
    return [*checks, Check(**{**asdict(both), "dense": None, "note": note})]


def _worst_class(right: Sequence[Tensor], labels: Tensor, asked: Certify) -> Check:
    """The class that loses most; its interval holds for all C classes at once (Bonferroni)."""
    classes = labels.unique().tolist()
    z = z_of(1 - (1 - asked.level) / len(classes))
    members = {c: [r[labels == c] for r in right] for c in classes}
    accuracy = {c: [float(r.double().mean()) for r in rows] for c, rows in members.items()}
    worst = max(classes, key=lambda c: accuracy[c][0] - accuracy[c][1])
    intervals = [paired_interval(rows, z) for rows in members.values()]
    interval = tuple(max(ends) for ends in zip(*intervals, strict=True))
    was, now = accuracy[worst]
    return Check("worst class", was, now, was - now, (interval[0], interval[1]), asked.worst_class,
                 f"class {worst}, {len(members[worst][0])} examples")  # fmt: skip
