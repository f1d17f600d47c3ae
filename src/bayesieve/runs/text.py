"""Results as text, and remarks while a run is under way. Nothing here imports torch."""

import logging
from collections.abc import Mapping
from typing import Any

from bayesieve.text import as_bytes, as_percent, sparkline

_LOG = logging.getLogger("bayesieve.runs")


def note(text: str) -> None:
    """Log how far a run is; the command line prints these remarks on standard error."""
    _LOG.info(text)


def warn(text: str) -> None:
    """Log something the user should know of."""
    _LOG.warning(text)


def quality_header(task: str) -> tuple[str, ...]:
    """Column names of the comparison that every command prints."""
    classes, reals = ("error", "NLL", "ECE"), ("RMSE", "log-lik", "90 % coverage")
    return ("", *(reals if task == "regression" else classes), "weights kept", "bytes")


def quality_row(label: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the comparison."""
    kept = f"{result['weights']:,} ({as_percent(1 - result['zeros'])})"
    size = (kept, as_bytes(result["bytes"]))
    error = result.get("nll_mc_error")
    if "rmse" in result:
        density = f"{result['log_lik']:.3f}" + ("" if error is None else f" ± {error:.3f}")
        quality = (f"{result['rmse']:.4g}", density, as_percent(result["coverage_90"]))
    else:
        nll = f"{result['nll']:.4f}" + ("" if error is None else f" ± {error:.4f}")
        quality = (as_percent(result["error"]), nll, as_percent(result["ece"]))
    return (label, *quality, *size)


# Numbers of `evaluate` for people: key, name, kind of number, meaning.
_NAMED = (
    ("error", "error", "percent", "wrong answers"),
    ("error_answered", "error, answered", "percent", "wrong answers among inputs it answers"),
    ("rmse", "RMSE", "number", "root mean squared error, in the unit of the target"),
    ("rmse_answered", "RMSE, answered", "number", "the same among inputs it answers"),
    ("mae", "mean absolute error", "number", "in the unit of the target"),
    ("answered", "answered", "percent", "inputs familiar enough to answer"),
    ("nll", "NLL", "number", "nats per example"),
    ("nll_mc_error", "± of the draws", "number", "standard error of the NLL"),
    ("ece", "ECE", "percent", "gap between confidence and accuracy"),
    ("brier", "Brier score", "number", "squared distance of the probabilities from the truth"),
    ("f1", "F1", "percent", "mean over classes of precision and recall together"),
    ("coverage_90", "90 % interval holds", "percent", "targets inside it; 90 % is right"),
    ("interval_width_90", "90 % interval width", "number", "mean, in the unit of the target"),
    ("entropy", "entropy", "number", "mean entropy of the answers, nats"),
    ("epistemic", "epistemic uncertainty", "number", "its part by which draws disagree, nats"),
    ("aleatoric_std", "noise of the data", "number", "standard deviation, unit of the target"),
    ("epistemic_std", "epistemic uncertainty", "number", "standard deviation, unit of the target"),
    ("zeros", "zeros", "percent", "parameters that are exactly 0"),
    ("weights", "parameters kept", "count", "biases counted"),
    ("bytes", "size", "bytes", "kept weights and their indices, before `compact`"),
    ("n_examples", "examples", "count", "tested"),
    ("temperature", "temperature", "number", "that calibrates it on the validation split"),
    ("kl", "KL weight", "number", "1 is Bayes' rule; smaller behaves like more data"),
)  # fmt: skip
_OF_DRAWS = ("epistemic", "epistemic_std", "kl")  # mean nothing without draws


def evaluation_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The numbers of `evaluate` that people read: name, value, meaning.

    Example:
        >>> evaluation_rows({"error": 0.025, "epistemic": 0.0, "samples": 0})
        [('error', '2.50 %', 'wrong answers')]
    """
    write = {
        "percent": as_percent,
        "number": lambda value: f"{value:.4g}",
        "count": lambda value: f"{value:,}",
        "bytes": as_bytes,
    }
    return [
        (name, write[kind](result[key]), meaning)
        for key, name, kind, meaning in _NAMED
        if result.get(key) is not None and (result["samples"] or key not in _OF_DRAWS)
    ]


_COURSES = {  # numbers of an epoch, in words
    "elbo": "evidence lower bound", "log_lik": "log-likelihood", "kl": "KL to the prior",
    "zeros": "zeros", "lr_scale": "learning rate, of its start", "val_nll": "NLL, held out",
    "val_error": "error, held out", "val_log_lik": "log-likelihood, held out",
}  # fmt: skip
_SHARES = ("zeros", "val_error", "lr_scale")


def watched_lines(seen: Mapping[str, Any]) -> list[str]:
    r"""Lines of `watch`, in at most 80 columns: a bar, and one line per recorded number.

    Example:
        >>> seen = {"run": "runs/a", "finished": False, "epoch": 3, "epochs": 4, "seconds": 9.0,
        ...         "seconds_left": 3.0, "numbers": {"zeros": {"now": 0.9, "course": [0.1, 0.9]}}}
        >>> print("\n".join(watched_lines(seen)))
        runs/a: epoch 3 of 4, 75 %, 9 s, 3 s left
        zeros                       90.00 %     ▁█
    """
    done, of = seen["epoch"], seen["epochs"]
    parts = [f"epoch {done}" + (f" of {of}, {done / of:.0%}".replace("%", " %") if of else "")]
    parts.append(f"{seen['seconds']:.0f} s")
    if seen["finished"]:
        parts.append("finished")
    elif seen["seconds_left"] is not None:
        parts.append(f"{seen['seconds_left']:.0f} s left")
    lines = [f"{seen['run']}: {', '.join(parts)}"]
    for name, row in seen["numbers"].items():
        now, course = row["now"], row["course"]
        low, word = min(course), _COURSES.get(name, name.replace("_", " "))
        value = as_percent(now) if name in _SHARES else f"{now:.5g}"
        lines.append(f"{word:<28}{value:<12}{sparkline([v - low for v in course])}")
    return lines


def with_draws(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The results of a run by name: those of the mean weights and, if any, those of draws.

    Example:
        >>> list(with_draws({"sampled": {"draws": 80, "chains": 4}}))
        ['mean weights', '80 draws of 4 chains']
    """
    rows = {"mean weights": result}
    if "sampled" in result:
        sampled = result["sampled"]
        chains = f" of {sampled['chains']} chains" if sampled.get("chains", 1) > 1 else ""
        rows[f"{sampled['draws']} draws{chains}"] = sampled
    return rows
