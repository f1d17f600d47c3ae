"""Delivery of a fitted estimator: one plain module on raw columns, written in each format."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import SparseModel
from bayesieve.data.encoding import feature_names, is_plain
from bayesieve.deliver.bundle import save_bundle
from bayesieve.deliver.c import export_c
from bayesieve.deliver.onnx import export_onnx
from bayesieve.deliver.pt2 import export_pt2
from bayesieve.estimators.population import DTYPE
from bayesieve.estimators.scale import Scale
from bayesieve.nets import PiecewiseLinear
from bayesieve.sieve.compact import compact

if TYPE_CHECKING:
    from bayesieve.estimators.base import SieveEstimator


def compact_of(model: "SieveEstimator") -> fx.GraphModule:
    """The compact module of a fitted estimator's first network, from raw columns."""
    module = raw_module(model.sparse_, model.x_scale_, model.y_scale_)
    return compact(module, _example(model))


def export(model: "SieveEstimator", path: str | Path) -> Path:
    """Write the compact module of a fitted estimator; see `SieveEstimator.export`."""
    path, example, module = Path(path), _example(model), compact_of(model)
    if path.suffix == ".pt2":
        return export_pt2(module, path, example)
    known = getattr(model, "familiarity_", None)  # old pickles have none
    if known is not None:  # of standardised rows
        known = known.in_units(*map(torch.as_tensor, (model.x_scale_.mean, model.x_scale_.std)))
    if path.suffix == ".h":
        return export_c(module, path, example, familiarity=known)
    likelihood = raw_likelihood(model.sparse_, model.y_scale_)
    classes = [str(label) for label in model.classes_] if hasattr(model, "classes_") else None
    recipe = {"kind": "table", "columns": model.encoding_}
    preprocessing = None if is_plain(model.encoding_) else recipe
    if path.suffix == ".onnx":
        return export_onnx(
            module, path, example, classes=classes, likelihood=likelihood, familiarity=known,
            preprocessing=preprocessing,
        )  # fmt: skip
    if path.suffix:
        raise ValueError(
            f"export: the file must end in .onnx, .pt2 or .h, or be a folder, got {path.name!r}."
        )
    named = preprocessing is not None or hasattr(model, "feature_names_in_")
    return save_bundle(
        module, path, example=example, classes=classes, likelihood=likelihood,
        familiarity=known, preprocessing=preprocessing,
        feature_names=list(feature_names(model.encoding_)) if named else None,
    )  # fmt: skip


def _example(model: "SieveEstimator") -> Tensor:
    mean = torch.as_tensor(model.x_scale_.mean).to(DTYPE)
    std = torch.as_tensor(model.x_scale_.std).to(DTYPE)
    return torch.stack([mean, mean + std, mean - std])


def raw_module(sparse: SparseModel, x_scale: Scale, y_scale: Scale | None) -> nn.Module:
    """The posterior mean's network with standardisation folded into its first and last layer.

    W (x - μ) / s + b is (W / s) x + (b - W μ / s); zeros stay zeros. Inputs z that end at ±l pass
    through two layers of one unit each before: z + l = ReLU(2l - ReLU(l - z)) is exact however far
    out z is, and every form of delivery knows ReLU. The second half of a heteroscedastic network's
    outputs (log standard deviations) is left out.
    """
    module = sparse.to_module()
    if isinstance(embedding := next(iter(module.children()), None), PiecewiseLinear):
        module = nn.Sequential(embedding.layers(), *list(module.children())[1:])
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    first, last = linear[0], linear[-1]
    with torch.no_grad():
        mean, std = torch.as_tensor(x_scale.mean), torch.as_tensor(x_scale.std)
        if (limit := x_scale.limit) < math.inf:
            ones = torch.ones_like(std)
            cut = [_diagonal(-1 / std, limit + mean / std), nn.ReLU()]
            cut += [_diagonal(-ones, 2 * limit * ones), nn.ReLU()]
            module = nn.Sequential(*cut, module)
            mean, std = limit * ones, ones
        weight = first.weight.double() / std
        first.bias.copy_(first.bias.double() - weight @ mean)
        first.weight.copy_(weight)
        if y_scale is not None:
            m = len(y_scale.std)
            mean, std = torch.as_tensor(y_scale.mean), torch.as_tensor(y_scale.std)
            weight, bias = last.weight[:m].double(), last.bias[:m].double()
            last.weight = nn.Parameter((weight * std[:, None]).to(last.weight.dtype))
            last.bias = nn.Parameter((bias * std + mean).to(last.weight.dtype))
            last.out_features = m
    return module


def _diagonal(factor: Tensor, shift: Tensor) -> nn.Linear:
    """A layer that multiplies each column by a factor and adds a shift, (p,) both."""
    layer = nn.Linear(len(factor), len(factor))
    layer.weight.copy_(factor.diag())
    layer.bias.copy_(shift)
    return layer


def raw_likelihood(sparse: SparseModel, y_scale: Scale | None) -> Likelihood | None:
    """The noise in the units of the target; None for a class, and where one number cannot say it.

    Targets of different spread share a noise level only once standardised, and the log standard
    deviations of a heteroscedastic network are not among the outputs of `raw_module`.
    """
    if y_scale is None:
        likelihood = sparse.network.likelihood
        return None if likelihood.soft_targets else likelihood  # several labels of a row stay
    if (y_scale.std != y_scale.std[0]).any():
        return None
    return sparse.network.likelihood_at(sparse.posterior.mean).scaled(float(y_scale.std[0]))
