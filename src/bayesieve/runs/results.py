"""Numbers of a finished model: the same words in metrics.json, in tables and in reports."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bayesieve.assess.calibration import fit_temperature
from bayesieve.assess.evaluate import Evaluation, error_curve
from bayesieve.assess.evaluate import evaluate as score_model
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.posterior import Factorised, Model, SparseModel, posterior_of
from bayesieve.data import Examples
from bayesieve.engines.sbnn import stuck_in_slab
from bayesieve.errors import UsageError
from bayesieve.runs.options import Evaluate
from bayesieve.runs.run import Run, load
from bayesieve.sieve.prune import sparsity_curve
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.scores import ScoreName

Curve = list[dict[str, float]]
_ZEROS = (
    0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.975, 0.98, 0.985, 0.99, 0.995,
    0.998,
)  # fmt: skip


def evaluate(asked: Evaluate) -> dict[str, Any]:
    """Every number of a run on one split."""
    split, samples, seed = asked.split, asked.samples, asked.seed
    if split not in ("test", "train", "val"):
        raise UsageError(f"--split must be test, train or val, got {split!r}.")
    opened = load(asked.run, member=asked.member, device=asked.device)
    model = opened.pooled() if samples and asked.member is None else opened.model
    examples = {"test": opened.data.test, "train": opened.train, "val": opened.held_out}[split]
    if examples is None:
        raise UsageError("--split val: this run held nothing out; train with --val-fraction.")
    extra: dict[str, Any] = {"split": split, "samples": samples}
    if asked.temperature:
        extra["temperature"] = _temperature(opened, model, samples, seed)
    scored = score_model(
        model, examples, n_samples=samples, seed=seed, temperature=extra.get("temperature", 1.0)
    )
    return {**numbers(scored, model), **extra}


def _temperature(run: Run, model: Model, samples: int, seed: int) -> float:
    if run.held_out is None:
        raise UsageError("--temperature needs held-out examples; train with --val-fraction.")
    prediction = predict(model, run.held_out.x, n_samples=samples, seed=seed)
    if not isinstance(prediction, ClassPrediction):
        raise UsageError("--temperature is for classification.")
    return fit_temperature(prediction.log_probs.cpu(), run.held_out.y)


def storage_bytes(model: Model) -> int:
    """Bytes of the mean weights: all of them, or the kept ones and the cheaper way to place them.

    A place takes one bit per parameter, or a 32-bit index per kept one.
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
