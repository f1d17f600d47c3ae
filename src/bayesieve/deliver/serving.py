"""Predictions of a delivered model, as columns of a table.

A classifier gives `class`, `probability` (of that class), `entropy`, `aleatoric` and `epistemic`
(nats); a regression `mean`, `std`, `aleatoric`, `epistemic` (standard deviations), `lower_90` and
`upper_90`, in the unit of the target. Without posterior draws `epistemic` is 0. A model that knows
what its training inputs look like adds `familiarity`, and `abstained` (0 or 1) where that is asked.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from bayesieve.assess.predict import ClassPrediction, Prediction, predict
from bayesieve.core.likelihoods import Bernoulli, Gaussian, RealLikelihood
from bayesieve.deliver.bundle import Bundle
from bayesieve.deliver.bundle.posterior import likelihood_from_json
from bayesieve.deliver.export import delivered
from bayesieve.deliver.onnx import OnnxModel

Columns = dict[str, list[Any]]
_UNKNOWN = "does not hold the familiarity of inputs. Export it again from a run that has it."


def predict_bundle(
    bundle: Bundle,
    x: Tensor,
    *,
    n_samples: int | None = 0,
    seed: int = 0,
    abstain: float | None = None,
) -> Prediction:
    """Predict with the compacted mean, or with draws from the bundle's posterior.

    Args:
        bundle: what `read_bundle` returned.
        x: prepared inputs, (N, ...).
        n_samples: posterior draws; 0 uses the module, None as many as `predict` finds enough.
        seed: of the draws.
        abstain: mark inputs less familiar than this fraction of held-out examples.
    """
    known = bundle.familiarity
    if abstain is not None and known is None:
        raise ValueError(f"predict: abstain: {bundle.path} {_UNKNOWN}")
    model = bundle.point if n_samples == 0 else bundle.posterior
    return predict(model, x, n_samples=n_samples, seed=seed, familiarity=known, abstain=abstain)


def bundle_columns(
    prediction: Prediction, classes: Sequence[str] | None, recipe: Mapping[str, Any] | None
) -> Columns:
    """The columns of a prediction.

    Args:
        prediction: of N inputs.
        classes: their names; numbers if None.
        recipe: preprocessing; its target says how predictions map to their own unit.

    Example:
        >>> prediction = ClassPrediction(torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log())
        >>> columns = bundle_columns(prediction, ["no", "yes"], None)
        >>> columns["class"], [round(value, 4) for value in columns["probability"]]
        (['yes'], [0.75])
    """
    family = None if isinstance(prediction, ClassPrediction) else prediction.likelihood
    columns = _columns(delivered(prediction), classes, recipe, family)
    return columns | _familiar(prediction.familiarity, prediction.abstained)


def onnx_columns(model: OnnxModel, x: Tensor, abstain: float | None = None) -> Columns:
    """The columns of an ONNX file's outputs for prepared inputs, (N, ...)."""
    outputs = model.run(x)
    score = outputs.pop("familiarity", None)
    if abstain is not None and score is None:
        raise ValueError(f"predict: abstain: {model.path} {_UNKNOWN}")
    marked = None if abstain is None or score is None else score < 1 - abstain
    return _onnx_columns(model, outputs, len(x)) | _familiar(score, marked)


def _familiar(score: Tensor | None, marked: Tensor | None) -> Columns:
    """The columns of familiarity, where there is one."""
    columns = {} if score is None else {"familiarity": score.tolist()}
    return columns | ({} if marked is None else {"abstained": marked.int().tolist()})


def _onnx_columns(model: OnnxModel, outputs: Mapping[str, Tensor], n: int) -> Columns:
    classes = model.metadata.get("classes")
    recipe = model.metadata.get("preprocessing")
    likelihood = likelihood_from_json(model.metadata.get("likelihood"), classes)
    if len(outputs) > 1:  # draws are baked in
        return _columns(outputs, classes, recipe, cast(RealLikelihood | None, likelihood))
    output = next(iter(outputs.values()))
    if likelihood is None:  # a file that does not say what its outputs mean
        return _in_unit({"mean": output.reshape(n, -1)}, recipe)
    output = output if output.dim() > 2 else output.reshape(n, -1)
    if output.shape[1] == 1 and classes is not None and len(classes) == 2:
        likelihood = Bernoulli()
    return bundle_columns(likelihood.predictive(output[None], {}), classes, recipe)


def _columns(
    outputs: Mapping[str, Tensor],
    classes: Sequence[str] | None,
    recipe: Mapping[str, Any] | None,
    likelihood: RealLikelihood | None,
) -> Columns:
    """The columns of tensors that have the names of `Likelihood.delivered`.

    Several labels for each input have columns of their own: class_1, class_2, ...
    """
    if "probability" in outputs:
        entropy, epistemic = outputs["entropy"], outputs["mutual_information"]
        best, label = outputs["probability"].max(-1)
        n_classes = outputs["probability"].shape[-1]
        if classes is not None and len(classes) != n_classes:
            raise ValueError(
                f"predict: the model gives {n_classes} probabilities but names {len(classes)} "
                "classes."
            )
        values = {"class": label, "probability": best, "entropy": entropy,
                  "aleatoric": entropy - epistemic, "epistemic": epistemic}  # fmt: skip
        columns = _one_each(values)
        if classes is not None:
            for name in columns:
                if name.startswith("class"):
                    columns[name] = [str(classes[i]) for i in columns[name]]
        return columns
    mean, noise, spread = (
        outputs[name].reshape(len(outputs["mean"]), -1)
        for name in ("mean", "aleatoric_std", "epistemic_std")
    )
    std = (noise.square() + spread.square()).sqrt()
    low, high = (likelihood or Gaussian()).interval(mean, std, 0.9)
    values = {"mean": mean, "std": std, "aleatoric": noise, "epistemic": spread}
    return _in_unit(values | {"lower_90": low, "upper_90": high}, recipe)


def _in_unit(values: Mapping[str, Tensor], recipe: Mapping[str, Any] | None) -> Columns:
    """Numbers, (N, m), as columns in the unit of the target."""
    target = (recipe or {}).get("target") or {}
    shift = torch.tensor(target.get("mean", 0.0), dtype=torch.float64)
    scale = torch.tensor(target.get("std", 1.0), dtype=torch.float64)
    columns: Columns = {}
    for name, numbers in values.items():
        moved = shift if name in ("mean", "lower_90", "upper_90") else 0.0
        columns |= _one_each({name: numbers.double() * scale + moved})
    return columns


def _one_each(values: Mapping[str, Tensor]) -> Columns:
    """Columns of tensors (N,) or (N, ...): one for every number of an input, counted from 1."""
    columns: Columns = {}
    for name, tensor in values.items():
        rows = tensor.reshape(len(tensor), -1)
        for j, column in enumerate(rows.T):
            columns[name if rows.shape[1] == 1 else f"{name}_{j + 1}"] = column.tolist()
    return columns
