"""What a network looks at: slopes at its inputs, weights of its first layer, ranking of columns."""

import math

import torch
from torch import Tensor

from bayesieve.data import DataSet
from bayesieve.errors import UnsupportedModelError
from bayesieve.report.curve import prunable
from bayesieve.report.packing import Json, pack, rounded, short
from bayesieve.report.quality import is_image
from bayesieve.report.source import Source
from bayesieve.select import feature_importance

_EXAMPLES = 256
_MOST_UNITS = 24


def importance(source: Source) -> Tensor:
    """Mean absolute slope of the answer along each input, over test examples, shape (C, ...).

    The answer is the log-probability of the predicted class, or the predicted mean; row c holds
    the mean over examples predicted as class c, zeros if there are none. A regression has one row.
    """
    posterior = source.posterior
    module = posterior.to_module()
    module.requires_grad_(False)
    x = source.data.test.x[:_EXAMPLES].to(posterior.network.device).clone().requires_grad_()
    output = module(x).reshape(len(x), -1)
    if source.data.task == "regression":
        chosen, answer = torch.zeros(len(x), dtype=torch.long), output[:, 0]
    elif output.shape[1] == 1:
        chosen = (output[:, 0] > 0).long().cpu()
        answer = -torch.nn.functional.softplus(-output[:, 0].abs())
    else:
        chosen = output.argmax(1).cpu()
        answer = torch.log_softmax(output, 1).amax(1)
    (slope,) = torch.autograd.grad(answer.sum(), x)
    slope = slope.abs().cpu()
    n_rows = 1 if source.data.classes is None else len(source.data.classes)
    rows = slope.new_zeros(n_rows, *slope.shape[1:]).index_add_(0, chosen, slope)
    counts = torch.bincount(chosen, minlength=n_rows).clamp(min=1)
    return rows / counts.reshape(-1, *[1] * (slope.dim() - 1))


def needed(source: Source) -> Tensor | None:
    """Importance φ of each input from the inclusion probabilities on its paths, (n_features,).

    None where the posterior has none, or the network is not a chain of Linear layers.
    """
    posterior = source.posterior
    if posterior.inclusion is None:
        return None
    try:
        return feature_importance(posterior, source="inclusion").phi.cpu()
    except UnsupportedModelError:
        return None


def attention_maps(source: Source, slopes: Tensor) -> Json | None:
    """Where in a picture the network looks: φ, then slopes over all examples and by class."""
    if not is_image(source.data):
        return None
    maps = torch.cat([slopes.mean(0, keepdim=True), slopes]).mean(1)
    names = ["all classes", *(source.data.classes or ())]
    phi = needed(source)
    if phi is not None:
        picture = phi.view(source.data.input_shape).mean(0, keepdim=True).to(maps.dtype)
        maps, names = torch.cat([picture, maps]), ["inclusion φ", *names]
    top = maps.flatten(1).amax(1).clamp(min=1e-30)
    scaled = (maps / top[:, None, None] * 255).round()
    return {"names": names, "maps": pack(scaled, "u1"), "top": rounded(top, 4)}


def first_layer(source: Source) -> Json | None:
    """Weights of the strongest units of the first layer as small pictures, int16 of their top."""
    posterior, data = source.posterior, source.data
    parts = prunable(posterior)
    if not parts:
        return None
    name, part = parts[0]
    shape = dict(zip(posterior.layout.names, posterior.layout.shapes, strict=True))[name]
    weight = posterior.mean[part].view(shape).cpu()
    if len(shape) == 4:
        frames = weight.mean(1)
    elif is_image(data) and shape[1] == math.prod(data.input_shape):
        frames = weight.view(shape[0], *data.input_shape).mean(1)
    else:
        return None
    size = frames.flatten(1).abs().sum(1)
    best = size.argsort(descending=True, stable=True)[:_MOST_UNITS]
    best = best[size[best] > 0]
    if not len(best):
        return None
    top = float(frames[best].abs().max())
    values = (frames[best] / top * 32767).round()
    alive = int((size > 0).sum())
    return {"name": name, "units": best.tolist(), "alive": alive, "n_units": int(shape[0]),
            "top": short(top, 4), "weights": pack(values, "i2")}  # fmt: skip


def reads(source: Source) -> Tensor:
    """How many kept first-layer weights read each input, shape (n_features,); -1 unknown."""
    posterior = source.posterior
    n = math.prod(source.data.input_shape)
    parts = prunable(posterior)
    if not parts:
        return torch.full((n,), -1)
    name, part = parts[0]
    shape = dict(zip(posterior.layout.names, posterior.layout.shapes, strict=True))[name]
    if len(shape) != 2 or shape[1] != n:
        return torch.full((n,), -1)
    return (posterior.mean[part].view(shape) != 0).sum(0).cpu()


def feature_ranking(source: Source, slopes: Tensor) -> list[Json] | None:
    """Columns of a table by mean absolute slope, the steepest first; None for other inputs."""
    data = source.data
    if len(data.input_shape) != 1:
        return None
    strength = slopes.mean(0).flatten()
    names = feature_names(data)
    counts, phi = reads(source), needed(source)
    order = strength.argsort(descending=True, stable=True).tolist()
    return [
        {
            "name": names[i],
            "slope": short(float(strength[i]), 5),
            "reads": int(counts[i]),
            "phi": None if phi is None else short(float(phi[i]), 4),
        }
        for i in order
    ]


def feature_names(data: DataSet) -> tuple[str, ...]:
    """Names of the flattened inputs.

    Example:
        >>> from bayesieve.data import load_data
        >>> feature_names(load_data("digits"))[:2]
        ('x1', 'x2')
    """
    if data.feature_names is not None:
        return data.feature_names
    return tuple(f"x{i + 1}" for i in range(math.prod(data.input_shape)))
