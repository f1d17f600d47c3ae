"""Claims about a run: questions with answers and intervals, and sentences that hold.

Every sentence of the headline has a condition that is computed here from the test examples. A check
compares two predictions of the same examples. It is

    pass           the whole interval of the loss is within the tolerance
    fail           the loss is significantly above 0, and may be beyond the tolerance
    undecided      the interval holds 0 and reaches beyond the tolerance: more examples would decide
    not checked    there is nothing to compare with; the words say why
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from bayesieve.assess.evaluate import Evaluation
from bayesieve.assess.paired import (
    Bootstrap,
    Check,
    ClassLosses,
    auroc_interval,
    compared,
    error_interval,
    exact_interval,
    losses_of,
    mean_check,
    paired_interval,
    root_check,
    strangers_check,
    z_of,
)
from bayesieve.assess.predict import ClassPrediction
from bayesieve.data import DataSet
from bayesieve.report.packing import Json, short, unpack
from bayesieve.report.source import Source
from bayesieve.text import signed
from bayesieve.uncertainty.familiarity import Familiarity

LEVEL = 0.95
FASTER = 1.1  # a smaller factor between two times is no difference
_TOLERANCES = {"error": 0.01, "ece": 0.02, "nll": 0.05, "rmse": 0.05, "coverage_90": 0.05}
_STRANGERS = 0.05
_SURE = 0.02  # by which confidence and accuracy may differ
_LEAST_MISTAKES = 5  # for a sentence about them
_RESAMPLED = 4_000_000  # examples drawn by the bootstrap of one number
_SETS = {
    "digits": "Handwritten digits",
    "mnist": "Handwritten digits (MNIST)",
    "fashion-mnist": "Pictures of clothes (Fashion-MNIST)",
    "cifar10": "Photographs (CIFAR-10)",
    "cifar100": "Photographs (CIFAR-100)",
}


def title_of(data: DataSet, zeros: float) -> str:
    """Title of a run, in words.

    Example:
        >>> from bayesieve.data import load_data
        >>> title_of(load_data("digits"), 0.9)
        'Handwritten digits: 90 % of the weights removed'
    """
    target = data.preprocessing.get("target", {}).get("name")
    subject = f"{target} of {data.name}" if len(target or "") > 1 else data.name
    what = _SETS.get(data.name.lower(), subject).replace("uci/", "")
    removed = f"{_share(zeros)} of the weights removed" if zeros else "all weights in use"
    return f"{what[0].upper()}{what[1:]}: {removed}"


def called(name: str) -> str:
    """The network before in a sentence.

    Example:
        >>> called("dense"), called("run a")
        ('the dense network', 'run a')
    """
    return "the dense network" if name == "dense" else name


def _share(fraction: float) -> str:
    """Percent with as many decimals as the smaller side needs.

    Example:
        >>> _share(0.9), _share(0.985), _share(0.9987)
        ('90 %', '98.5 %', '99.87 %')
    """
    decimals = 0 if fraction < 0.95 else 1 if fraction < 0.99 else 2
    return f"{100 * fraction:.{decimals}f} %"


# ------------------------------------------------------------------------------------- comparison


def compare(
    first: Evaluation, second: Evaluation, data: DataSet, seed: int = 0
) -> dict[str, Check]:
    """By how much the second prediction is worse than the first, by the name of the number."""
    y, std = data.test.y, data.test.target_std
    was, now = (losses_of(one.prediction, y, std) for one in (first, second))
    bootstrap = Bootstrap(LEVEL, max(200, min(1000, _RESAMPLED // len(was.nll))), seed)
    return compared(was, now, _TOLERANCES, bootstrap)


def is_safe(reference: Evaluation, now: Evaluation, data: DataSet) -> bool:
    """Return whether the error is not significantly above that of a reference."""
    y, std = data.test.y, data.test.target_std
    pair = [losses_of(one.prediction, y, std) for one in (reference, now)]
    return error_interval(pair[0], pair[1], LEVEL)[0] <= 0


def ranked(runs: Sequence[Json]) -> dict[str, Json]:
    """Compare several runs in pairs, by the name of the loss; {} unless tested on the same.

    Returns:
        order: the runs from the lowest mean loss to the highest, by number. beyond: whether the
            next run in that order is significantly above each. gaps: how far each run is above the
            lowest, as `difference` writes it; null for the lowest.
    """
    if len({(run["losses"]["test"], run["task"]) for run in runs}) > 1 or len(runs) < 2:
        return {}
    found = {}
    for key in ("error", "nll"):
        values = [unpack(run["losses"][key]).double() for run in runs]
        if len({len(one) for one in values}) > 1:
            return {}
        kind = "nll" if key == "nll" else "error" if runs[0]["task"] == "classification" else "rmse"
        means = [float(one.mean()) for one in values]
        order = sorted(range(len(runs)), key=means.__getitem__)
        checks = [_pair(kind, values[i], values[j]) for i, j in pairwise(order)]
        gaps = [_pair(kind, values[order[0]], one) for one in values]
        found[key] = {
            "order": order,
            "beyond": [check.interval[0] > 0 for check in checks],
            "gaps": [None if i == order[0] else difference(gap) for i, gap in enumerate(gaps)],
        }
    return found


def _pair(kind: str, first: Tensor, second: Tensor) -> Check:
    """By how much the second of two runs has a larger loss, of examples in pairs."""
    if kind == "error":
        was, now = float(first.mean()), float(second.mean())
        interval = paired_interval([first == 0, second == 0], z_of(LEVEL))
        return Check(kind, was, now, now - was, interval, 0.0)
    check = mean_check if kind == "nll" else root_check
    return check(kind, [first, second], 0.0, LEVEL)


def difference(check: Check) -> Json:
    """A comparison as plain data; `beyond_chance` says whether its interval is without 0."""
    low, high = check.interval
    return {
        "worse_by": short(check.worse_by),
        "interval": [short(low), short(high)],
        "beyond_chance": low > 0 or high < 0,
    }


# ----------------------------------------------------------------------------------------- checks


def verdict_of(interval: tuple[float, float], tolerance: float) -> str:
    """The verdict on a loss with this interval.

    Example:
        >>> verdict_of((-0.01, 0.005), 0.01), verdict_of((-0.01, 0.02), 0.01)
        ('pass', 'within chance')
        >>> verdict_of((0.001, 0.02), 0.01)
        'fail'
    """
    low, high = interval
    if high <= tolerance:
        return "pass"
    return "fail" if low > 0 else "within chance"


def checks_of(
    source: Source,
    evaluations: Mapping[str, Evaluation],
    way: str,
    known: Familiarity | None,
    sieved: Json,
) -> list[Json]:
    """The checks of the first screen: accurate, calibrated, honest, faster, detects OOD inputs.

    Args:
        source: the run.
        evaluations: by way to predict.
        way: which of them the headline is about.
        known: the familiarity of inputs, if they have one.
        sieved: the curve and its times, as `curve.sieve_further` returns them.
    """
    data, name = source.data, called(source.before_name)
    now, rows = evaluations[way], []
    compared = compare(evaluations["before"], now, data) if "before" in evaluations else {}
    for row in _AGAINST[data.task]:
        rows.append(_against(compared.get(row["key"]), row, name, now["n_examples"]))
    rows.append(_honest(now, data))
    rows.append(_speed(sieved["times"]["speedup"], whole=sieved["points"][0]["zeros"] == 0))
    if known is not None:
        rows.append(_strangers(known, data))
    return rows


_AGAINST: Mapping[str, Sequence[Mapping[str, str]]] = {
    "classification": (
        {"key": "error", "question": "As accurate as {}?", "unit": "points of error"},
        {"key": "ece", "question": "As calibrated as {}?", "unit": "points of calibration error"},
    ),
    "regression": (
        {"key": "rmse", "question": "As accurate as {}?", "unit": "% of RMSE"},
        {"key": "nll", "question": "As likely as {}?", "unit": "nats of NLL"},
    ),
}


def _against(check: Check | None, row: Mapping[str, str], name: str, n: int) -> Json:
    """A comparison with the network before."""
    question = row["question"].format(name)
    if check is None:
        return _check(row["key"], row["question"].format("before"), "not checked",
                      "No network to compare with is known: name one with `before`.")  # fmt: skip
    scale = 1 if row["key"] == "nll" else 100
    worse, low, high = (scale * v for v in (check.worse_by, *check.interval))
    digits = 3 if scale == 1 else 2
    words = (
        f"{signed(worse, digits)} {row['unit']} ({signed(low, digits)} to {signed(high, digits)})"
    )
    if row["key"] == "error":
        more = round(check.worse_by * n)
        count = "as many mistakes" if more == 0 else (
            f"{abs(more):,} {'more' if more > 0 else 'fewer'} mistake{'s' * (abs(more) != 1)}"
        )  # fmt: skip
        words = f"{count} on {n:,} examples: {words}"
    verdict = verdict_of(check.interval, check.tolerance)
    return _check(row["key"], question, verdict, words, difference(check), check.tolerance)


def _honest(evaluation: Evaluation, data: DataSet) -> Json:
    """Return whether it is right as often as it says."""
    losses = losses_of(evaluation.prediction, data.test.y, data.test.target_std)
    if isinstance(losses, ClassLosses):
        sure, right = losses.sure, losses.right.double()
        n, gap = len(right), float((sure - right).mean())
        width = z_of(LEVEL) * max(float((sure - right).std(correction=0)) / n**0.5, 1 / (n + 2))
        low, high = gap - width, gap + width
        words = (
            f"sure of {100 * float(sure.mean()):.1f} %, right in {100 * float(right.mean()):.1f} %:"
            f" {signed(100 * gap, 1)} points ({signed(100 * low, 1)} to {signed(100 * high, 1)})"
        )
        name, question, limit = "confidence", "Is its confidence right?", _SURE
    else:
        n, share = len(losses.targets), float(losses.inside(0.9).mean())
        ends = exact_interval(round(share * n), n, LEVEL)
        gap, low, high = share - 0.9, ends[0] - 0.9, ends[1] - 0.9
        words = (
            f"{100 * share:.1f} % of the targets are inside ({100 * ends[0]:.1f} to "
            f"{100 * ends[1]:.1f} %)"
        )
        name, question = "coverage", "Do 90 % intervals hold 90 %?"
        limit = _TOLERANCES["coverage_90"]
    if max(-low, high) <= limit:
        verdict = "pass"
    else:
        verdict = "fail" if low > 0 or high < 0 else "within chance"
    both = difference(Check(name, None, 0.0, gap, (low, high), limit))
    return _check(name, question, verdict, words, both, limit)


def _speed(speedup: Json | None, *, whole: bool) -> Json:
    """Return whether it is faster than with all its weights, by more than the dead band."""
    name, question = "speed", "Faster than with all weights?"
    if speedup is None:
        why = "No weight was removed." if whole else "This network could not be made smaller."
        return _check(name, question, "not checked", why)
    ratio, (low, high) = speedup["ratio"], speedup["interval"]
    verdict = "pass" if low > FASTER else "fail" if high < 1 / FASTER else "within chance"
    where = "bayesieve's runtime" if speedup["where"] == "runtime" else "torch"
    size = f"{ratio:.2g}× faster" if ratio >= 1 else f"{1 / ratio:.2g}× slower"
    ends = (low, high) if ratio >= 1 else (1 / high, 1 / low)
    words = f"{size} in {where} ({ends[0]:.2g} to {ends[1]:.2g})"
    if speedup["busy"]:
        words += "; the machine was busy, so measure again"
    return _check(name, question, verdict, words)


def _strangers(known: Familiarity, data: DataSet) -> Json:
    """Check that generated OOD inputs are less familiar than test inputs."""
    check = strangers_check(known.distance, data.test.x, _STRANGERS, level=LEVEL)
    low, high = check.interval
    kind = "shuffled pixels" if data.test.x.dim() > 2 else "columns moved by 3 standard deviations"
    words = (
        f"AUROC {check.sieved:.3f} ({1 - high:.3f} to {1 - low:.3f}); OOD inputs are test inputs "
        f"with {kind}"
    )
    verdict = "fail" if low > _STRANGERS else "pass" if high <= _STRANGERS else "within chance"
    return _check("strangers", "Detects OOD inputs?", verdict, words, difference(check), _STRANGERS)


def _check(
    name: str,
    question: str,
    verdict: str,
    words: str,
    loss: Json | None = None,
    tolerance: float | None = None,
) -> Json:
    empty = {"worse_by": None, "interval": None, "beyond_chance": False}
    return {"name": name, "question": question, "verdict": verdict, "words": words,
            "tolerance": tolerance, **(loss or empty)}  # fmt: skip


# -------------------------------------------------------------------------------------- sentences


def sentence_of(
    now: Evaluation, checks: Sequence[Json], before: Evaluation | None, name: str
) -> str:
    """The headline in one sentence: how good it is, and whether that differs from before."""
    name = called(name)
    if "rmse" in now:
        told = f"On {now['n_examples']:,} test examples its RMSE is {now['rmse']:.4g}"
        other = None if before is None else f"that of {name} {before['rmse']:.4g}"
    else:
        wrong = round(now["error"] * now["n_examples"])
        told = f"It makes {wrong:,} mistakes on {now['n_examples']:,} test examples"
        other = None if before is None else f"{name} {round(before['error'] * now['n_examples']):,}"
    if other is None:
        return f"{told}."
    check = checks[0]
    end = "the difference is not significant"
    if check["beyond_chance"]:
        end = f"it is significantly {'worse' if check['worse_by'] > 0 else 'better'}"
    return f"{told}, {other}: {end}."


def claims_of(evaluations: Mapping[str, Evaluation], way: str, data: DataSet) -> list[str]:
    """Sentences about uncertainty that hold for this run, by the test examples; perhaps none."""
    claims = []
    now = evaluations[way].prediction
    if isinstance(now, ClassPrediction):
        claims += _points_at_mistakes(now, data, epistemic=False)
    if "sampled" not in evaluations:
        return claims
    drawn, mean = evaluations["sampled"], evaluations["after"]
    gap = compare(mean, drawn, data)["nll"]
    chosen = z_of(LEVEL) * (drawn.get("nll_mc_error") or 0.0)  # by the choice of draws
    worse = gap.interval[0] - chosen > 0
    if isinstance(drawn.prediction, ClassPrediction) and not worse:
        claims += _points_at_mistakes(drawn.prediction, data, epistemic=True)
    if worse:
        claims.append(
            f"Averaging over draws makes the NLL worse by {gap.worse_by:.3g} nats: use the mean "
            "weights."
        )
    return claims


def _points_at_mistakes(
    prediction: ClassPrediction, data: DataSet, *, epistemic: bool
) -> list[str]:
    rows, labels = prediction.scored(data.test.y)
    doubt = (rows.epistemic if epistemic else rows.entropy).cpu().double()
    wrong = rows.label.cpu() != labels.cpu()
    if int(wrong.sum()) < _LEAST_MISTAKES or bool(wrong.all()):
        return []
    share, (low, high) = auroc_interval(doubt[wrong], doubt[~wrong], z_of(LEVEL))
    if low <= 0.5:
        return []
    what = "Its uncertainty predicts its mistakes: wrong answers have more entropy than right ones"
    if epistemic:
        what = "Posterior samples disagree more about a mistake than about a right answer"
    return [f"{what} in {100 * share:.0f} % of pairs ({100 * low:.0f} to {100 * high:.0f} %)."]
