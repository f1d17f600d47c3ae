"""The tables of the UCI study: published numbers, targets, and what was measured beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """What others report for one set, and what this study aims at.

    Args:
        sbnn: RMSE of [Saha], table 3.
        sbnn_half: the same with 50 % of the weights removed.
        dropout_log_lik: MC-dropout, run again by [Mukhoti].
        target: RMSE to reach, whole and half-pruned.
        half_bound: RMSE the half-pruned network must not exceed where the paper's breaks down;
            None asks for two standard errors of the whole network.
    """

    sbnn: float
    sbnn_half: float
    dropout_log_lik: float
    target: float
    half_bound: float | None = None


PUBLISHED = {
    "boston": Published(3.07, 3.07, -2.40, 2.90),
    "concrete": Published(5.54, 5.54, -2.93, 4.90),
    "energy": Published(0.69, 0.69, -1.21, 0.50),
    "kin8nm": Published(0.08, 0.33, 1.14, 0.078, 0.09),
    "naval": Published(0.00, 0.01, 4.45, 0.001),
    "power": Published(4.00, 8.77, -2.80, 4.00, 4.2),
    "protein": Published(4.48, 4.84, -2.87, 4.30, 4.5),
    "wine": Published(0.62, 0.62, -0.93, 0.62),
    "yacht": Published(0.94, 0.94, -1.25, 0.65),
}
OUR_ROWS = ("sbnn", "sbnn-het", "sbnn-dropout", "flat-vi")


def verdicts(name: str, rows: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether the better of our engines reaches its targets on one set; None without a row."""
    own = {row: rows[row] for row in OUR_ROWS if row in rows}
    if not own:
        return None
    aim = PUBLISHED[name]
    best = min(own, key=lambda row: own[row]["full"]["rmse"])
    best_half = min(own, key=lambda row: own[row]["half"]["rmse"])
    full, half = own[best]["full"], own[best_half]["half"]
    error = full["rmse_standard_error"] or 0.0
    bound = full["rmse"] + 2 * error if aim.half_bound is None else aim.half_bound
    log_lik = max(row["full"]["log_lik"] for row in own.values())
    return {
        "best": best, "rmse": full["rmse"], "rmse_met": full["rmse"] <= aim.target,
        "half_rmse": half["rmse"], "half_met": half["rmse"] <= bound,
        "log_lik": log_lik, "log_lik_met": log_lik >= aim.dropout_log_lik,
    }  # fmt: skip


def findings(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The better of our engines on every set: RMSE, RMSE with half the weights, log-likelihood."""
    found = {}
    for name in PUBLISHED:
        own = verdicts(name, result["sets"].get(name, {}))
        if own is not None:
            found[name] = {"rmse": own["rmse"], "rmse_50": own["half_rmse"],
                           "log_lik": own["log_lik"]}  # fmt: skip
    return found


def page(result: Mapping[str, Any]) -> str:
    """Markdown: one table of RMSE, one of log-likelihood, one of targets."""
    sets = [name for name in PUBLISHED if name in result["sets"]]
    labels = _labels(result, sets)
    parts = ["# UCI regression", f"Command: `{result['command']}`. Machine: {result['machine']}."]
    for title, key, digits in (("RMSE", "rmse", 3), ("Log-likelihood, nats", "log_lik", 3)):
        lines = [f"| {' | '.join(['', *sets])} |", f"| --- |{' ---: |' * len(sets)}"]
        for label, row, part in labels:
            cells = [_cell(result["sets"][name].get(row, {}).get(part), key, digits)
                     for name in sets]  # fmt: skip
            lines.append(f"| {' | '.join([label, *cells])} |")
        parts += [f"## {title} (± one standard error)", "\n".join(lines)]
    parts += ["## Targets", _targets(result, sets)]
    if result.get("calls"):
        parts += ["## Time", _time(result["calls"])]
    return "\n\n".join(parts) + "\n"


def _time(calls: Sequence[Mapping[str, Any]]) -> str:
    cores = sorted({own["cores"] for own in calls})
    total = sum(own["seconds"] for own in calls)
    return (
        f"{len(calls)} calls, {total:.0f} s ({total / 60:.1f} minutes) by the clock, one after "
        f"the other; processor cores of each: {', '.join(map(str, cores))}."
    )


def _labels(result: Mapping[str, Any], sets: list[str]) -> list[tuple[str, str, str]]:
    rows = list(dict.fromkeys(row for name in sets for row in result["sets"][name]))
    labels = []
    for row in sorted(rows, key=lambda own: (own not in OUR_ROWS, own)):
        labels.append((row, row, "full"))
        if row in OUR_ROWS:
            labels.append((f"{row}, 50 % removed", row, "half"))
    return labels


def _cell(record: Mapping[str, Any] | None, key: str, digits: int) -> str:
    if record is None or record.get(key) is None:
        return ""
    error = record.get(f"{key}_standard_error")
    spread = "" if error is None else f" ± {error:.2g}"
    return f"{record[key]:.{digits}g}{spread}"


def _targets(result: Mapping[str, Any], sets: list[str]) -> str:
    lines = ["| set | RMSE | target | met | 50 % removed | met | log-lik | MC-dropout | met |",
             "| --- | ---: | ---: | --- | ---: | --- | ---: | ---: | --- |"]  # fmt: skip
    for name in sets:
        own, aim = verdicts(name, result["sets"][name]), PUBLISHED[name]
        if own is None:
            continue
        met = {True: "yes", False: "no"}
        lines.append(
            f"| {name} ({own['best']}) | {own['rmse']:.4g} | {aim.target:g} | "
            f"{met[own['rmse_met']]} | {own['half_rmse']:.4g} | {met[own['half_met']]} | "
            f"{own['log_lik']:.3f} | {aim.dropout_log_lik:g} | {met[own['log_lik_met']]} |"
        )
    return "\n".join(lines)
