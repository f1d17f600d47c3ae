"""Numbers of a finished model: the same words in metrics.json, in tables and in reports."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bayesieve.assess.diagnostics import differing_buffers, pooled
from bayesieve.assess.evaluate import Evaluation, error_curve
from bayesieve.core.posterior import (
    Factorised,
    Model,
    Samples,
    SparseModel,
    has_spread,
    posterior_of,
)
from bayesieve.data import Examples
from bayesieve.engines.sbnn import stuck_in_slab
from bayesieve.runs.text import as_bytes, as_percent
from bayesieve.sieve.prune import sparsity_curve
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.scores import ScoreName

Curve = list[dict[str, float]]
_ZEROS = (
    0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.975, 0.98, 0.985, 0.99, 0.995,
    0.998,
)  # fmt: skip
DRAWS = 32  # posterior draws behind uncertainties, next to predictions with the mean weights


def storage_bytes(model: Model) -> int:
    """Bytes of the mean weights: all of them, or the kept ones and the cheaper way to place them.

    Places are told by one bit per parameter or by a 32-bit index per kept one.
    """
    layout, width = model.layout, posterior_of(model).mean.element_size()
    if not isinstance(model, SparseModel):
        return layout.size * width
    kept = int(model.keep.sum())
    return min(kept * width + min(-(-layout.size // 8), 4 * kept), layout.size * width)


def numbers(evaluation: Evaluation, model: Model) -> dict[str, Any]:
    """Everything `evaluate` reports, with the size of the model."""
    posterior = posterior_of(model)
    result = {**evaluation.to_dict(), "bytes": storage_bytes(model)}
    if isinstance(posterior, Factorised) and posterior.logit_inclusion is not None:
        result["stuck_in_slab"] = stuck_in_slab(posterior)
    return result


def draws_of(model: Model) -> int:
    """How many draws to average: all of a chain, some of a variational posterior, none of a point.

    Example:
        >>> from bayesieve.sieve.scores import small_posterior
        >>> draws_of(small_posterior())
        32
    """
    posterior = posterior_of(model)
    if isinstance(posterior, Samples):
        return len(posterior.draws) if len(posterior.draws) > 1 else 0
    return DRAWS if has_spread(model) else 0


def together(models: Sequence[Model]) -> Model:
    """The draws of all chains of a sampler as one posterior; of other models the first one.

    Chains whose module buffers differ (other than BatchNorm's) cannot share a posterior either.
    """
    chains = [own for own in map(posterior_of, models) if isinstance(own, Samples)]
    if len(chains) < 2 or len(chains) < len(models) or draws_of(chains[0]) == 0:
        return models[0]
    if differing_buffers(chains):
        return models[0]
    return pooled(chains)


def quality_header(task: str) -> tuple[str, ...]:
    """Column names of the comparison that every command prints."""
    own = ("RMSE", "log-lik", "90 % coverage") if task == "regression" else ("error", "NLL", "ECE")
    return ("", *own, "weights kept", "bytes")


def quality_row(label: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the comparison."""
    kept = f"{result['weights']:,} ({as_percent(1 - result['zeros'])})"
    size = (kept, as_bytes(result["bytes"]))
    if "rmse" in result:
        own = (f"{result['rmse']:.4g}", f"{result['log_lik']:.3f}",
               as_percent(result["coverage_90"]))  # fmt: skip
    else:
        own = (as_percent(result["error"]), f"{result['nll']:.4f}", as_percent(result["ece"]))
    return (label, *own, *size)


def with_draws(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The results of a run by name: those of the mean weights and, if any, those of draws."""
    rows = {"mean weights": result}
    if "sampled" in result:
        rows[draws_label(result["sampled"])] = result["sampled"]
    return rows


def draws_label(sampled: Mapping[str, Any]) -> str:
    """What the results of draws are called in tables.

    Example:
        >>> draws_label({"draws": 80, "chains": 4})
        '80 draws of 4 chains'
    """
    chains = sampled.get("chains", 1)
    return f"{sampled['draws']} draws" + (f" of {chains} chains" if chains > 1 else "")


def curve_of(model: Model, examples: Examples, score: ScoreName) -> Curve:
    """Error, or RMSE, against zeros when ever more weights go in one shot, from here on."""
    posterior = posterior_of(model)
    priorities = keep_zeros(0.0, score).priorities(posterior)
    d = model.layout.size
    most = 1 - int((priorities > model.layout.n_sparse).sum()) / d
    now = 1 - int((priorities > 0).sum()) / d
    zeros = sorted({now, *(z for z in _ZEROS if now < z <= most)})
    with torch.no_grad():
        masks = sparsity_curve(posterior, zeros, score=score)
    return error_curve(posterior, masks, examples)


def curve_points(curve: Sequence[Mapping[str, float]]) -> list[tuple[float, float, float]]:
    """Points (zeros, error, nll) for the figure; none for regression."""
    return [(row["zeros"], row["error"], row["nll"]) for row in curve if "error" in row]
