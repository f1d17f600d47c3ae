"""A fitted network as a plain module in the user's own units, and the files it can become."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesieve.core.likelihoods import Gaussian, Likelihood, StudentT
from bayesieve.core.posterior import SparseModel
from bayesieve.deliver.bundle import save_bundle
from bayesieve.deliver.c_header import export_c
from bayesieve.deliver.likelihood_json import likelihood_to_json
from bayesieve.deliver.onnx import export_onnx
from bayesieve.deliver.pt2 import export_pt2
from bayesieve.estimators._tables import Scale


def raw_module(sparse: SparseModel, x_scale: Scale, y_scale: Scale | None) -> nn.Module:
    """The posterior mean's network with standardisation folded into its first and last layer.

    W (x - μ) / s + b is (W / s) x + (b - W μ / s); zeros stay zeros. The second half of a
    heteroscedastic network's outputs (log standard deviations) is left out.
    """
    module = sparse.to_module()
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    first, last = linear[0], linear[-1]
    with torch.no_grad():
        weight = first.weight.double() / torch.as_tensor(x_scale.std)
        first.bias.copy_(first.bias.double() - weight @ torch.as_tensor(x_scale.mean))
        first.weight.copy_(weight)
        if y_scale is not None:
            m = len(y_scale.std)
            mean, std = torch.as_tensor(y_scale.mean), torch.as_tensor(y_scale.std)
            weight, bias = last.weight[:m].double(), last.bias[:m].double()
            last.weight = nn.Parameter((weight * std[:, None]).to(last.weight.dtype))
            last.bias = nn.Parameter((bias * std + mean).to(last.weight.dtype))
            last.out_features = m
    return module


def raw_likelihood(sparse: SparseModel, y_scale: Scale | None) -> Likelihood | None:
    """The noise in the target's own units; None for classes, and where one number cannot say it.

    Targets of different spread share a noise level only once standardised, and the log standard
    deviations of a heteroscedastic network are not among the outputs of `raw_module`.
    """
    likelihood = sparse.network.likelihood
    if y_scale is None or (y_scale.std != y_scale.std[0]).any():
        return None
    std, numbers = float(y_scale.std[0]), likelihood_to_json(likelihood, sparse.posterior) or {}
    if isinstance(likelihood, Gaussian):
        return Gaussian(noise_std=numbers["noise_std"] * std)
    if isinstance(likelihood, StudentT):
        return StudentT(scale=numbers["scale"] * std, df=likelihood.df)
    return None


def export_module(
    module: nn.Module,
    path: Path,
    example: Tensor,
    *,
    likelihood: Likelihood | None,
    classes: Sequence[str] | None,
    feature_names: Sequence[str] | None,
) -> Path:
    """Write a module in the format its path's ending names; bundles and ONNX state the noise."""
    if path.suffix == ".onnx":
        return export_onnx(module, path, example, classes=classes, likelihood=likelihood)
    if path.suffix == ".pt2":
        return export_pt2(module, path, example)
    if path.suffix == ".h":
        return export_c(module, path, example)
    if path.suffix:
        raise ValueError(
            f"export: the file must end in .onnx, .pt2 or .h, or be a folder, got {path.name!r}."
        )
    return save_bundle(
        module, path, example=example, classes=classes, feature_names=feature_names,
        likelihood=likelihood,
    )  # fmt: skip
