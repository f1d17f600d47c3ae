"""Results as text, and remarks while a run is under way. Nothing here imports torch."""

import logging
from collections.abc import Mapping
from typing import Any

from bayesieve.text import as_bytes, as_percent

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
