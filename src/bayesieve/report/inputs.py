"""The inputs of a network: how a reader of the page makes one, and which of them matter."""

import math
from typing import Any

import torch
from torch import Tensor

from bayesieve.data import DataSet
from bayesieve.data.images import PixelScale
from bayesieve.errors import UnsupportedModelError
from bayesieve.report.packing import Json, pack, rounded, short, spread_out
from bayesieve.report.source import Source
from bayesieve.select import feature_importance
from bayesieve.uncertainty.dependence import partial_dependence
from bayesieve.uncertainty.familiarity import Familiarity

_MOST_COLUMNS = 200
_INK = 0.25  # of the full range, from which a pixel counts as drawn
_LEAST_INK = 0.25  # quantile of the ink of training pictures that a drawing is thickened to
_TYPICAL = 500  # training pictures that say how large drawings are
_EXAMPLES = 256  # whose slopes are averaged
_MOST_UNITS = 24
_MOST_CURVES = 14  # columns with a curve of partial dependence
_AVERAGED = 100  # rows that one averages over
_GRID = 15  # values of a number at which it is taken
_RANGE = torch.tensor([0.01, 0.99], dtype=torch.float64)  # of its training values


def describe_inputs(data: DataSet) -> Json:
    """Describe the inputs: {"kind": "image", ...}, {"kind": "table", ...} or {"kind": "none"}.

    Example:
        >>> from bayesieve.data import load_data
        >>> inputs = describe_inputs(load_data("digits"))
        >>> inputs["kind"], inputs["drawable"], inputs["box"]
        ('image', True, 8)
    """
    if is_image(data):
        row: Json = {key: data.preprocessing[key] for key in ("shape", "mean", "std")}
        pixels = PixelScale.of(data.preprocessing).pixels(data.train.x[:_TYPICAL].cpu().float())
        edge = torch.cat([pixels[..., 0, :].flatten(), pixels[..., -1, :].flatten()])
        drawable = data.input_shape[0] == 1 and float(edge.median()) < _INK
        row |= {"kind": "image", "drawable": drawable, "box": None, "ink": None}
        if drawable:  # the median, in pixels, of the longer side of what is drawn
            shades = pixels[:, 0]
            inked = shades > _INK * shades.amax((1, 2), keepdim=True).clamp(min=1e-6)
            sides = torch.stack([_extent(inked.any(2)), _extent(inked.any(1))]).amax(0)
            row["box"] = int(sides.median())
            row["ink"] = short(float(shades.sum((1, 2)).quantile(_LEAST_INK)), 4)
        return row
    if len(data.input_shape) == 1 and data.input_shape[0] <= _MOST_COLUMNS:
        return {"kind": "table", "columns": _columns(data)}
    return {"kind": "none"}


def familiarity(known: Familiarity | None) -> Json | None:
    """Pack the tensors of the familiarity of the inputs; None where inputs have none.

    Example:
        >>> from bayesieve.data import load_data
        >>> familiarity(Familiarity.of(load_data("digits").train.x))["centres"]["shape"]
        [16, 25]
    """
    if known is None:
        return None
    tensors = dict(known.named_buffers())
    tensors["roots"] = known.roots[:, *torch.tril_indices(*known.roots.shape[1:])]
    packed = {name: pack(value, "f4") for name, value in tensors.items()}
    return {"shape": list(known.shape), "bands": known.bands, **packed}


def _extent(line: Tensor) -> Tensor:
    """Length from the first to the last True of each row, (n, m) -> (n,)."""
    place = torch.arange(line.shape[1])
    last = torch.where(line, place, -1).amax(1)
    first = torch.where(line, place, line.shape[1]).amin(1)
    return (last - first + 1).clamp(min=1)


def _columns(data: DataSet) -> list[Json]:
    """Columns of a table in their own unit, with the place of each in the input vector."""
    if data.preprocessing.get("kind") == "table":
        recipes: list[dict[str, Any]] = data.preprocessing["columns"]
    else:
        plain = {"kind": "numeric", "mean": 0.0, "std": 1.0}
        recipes = [{"name": name, **plain} for name in feature_names(data)]
    rows, place = [], 0
    for recipe in recipes:
        row: Json = {"name": recipe["name"], "kind": recipe["kind"], "at": place}
        if recipe["kind"] == "numeric":
            mean, std = recipe["mean"], recipe["std"]
            numbers = data.train.x[:, place].double().cpu() * std + mean
            middle = torch.stack([numbers.amin(), numbers.median(), numbers.amax()])
            low, start, high = rounded(middle, 6)
            whole = bool((numbers - numbers.round()).abs().max() < 1e-4 * max(1.0, abs(high)))
            row |= {"mean": mean, "std": std, "low": low, "high": high, "start": start}
            row["whole"] = whole
            row |= {"limit": recipe["limit"]} if "limit" in recipe else {}
            place += 1
        else:
            levels = recipe["levels"]
            counts = data.train.x[:, place : place + len(levels)].sum(0)
            row |= {"levels": list(levels), "start": int(counts.argmax())}
            place += len(levels)
        rows.append(row)
    if place != math.prod(data.input_shape):
        raise ValueError(
            f"report: the recipe of {data.name} describes {place} columns, its inputs have "
            f"{math.prod(data.input_shape)}."
        )
    return rows


def dependence(source: Source, slopes: Tensor) -> Json | None:
    """Partial dependence of the columns that matter most, with bands; None for other inputs.

    Returns:
        By name of a column: `at` (values of a number in its unit; of a category none), `mean`, and
        `low` and `high` where there are draws, (values, classes), or (values, 1) in the unit of the
        target.
    """
    data = source.data
    described = describe_inputs(data)
    if described["kind"] != "table":
        return None
    strength = slopes.mean(0).flatten()
    columns = [
        (float(strength[c["at"] : c["at"] + (n := len(c.get("levels", "1")))].max()), c, n)
        for c in described["columns"]
    ]
    x = data.train.x[spread_out(len(data.train), _AVERAGED)]
    scale, shift = (float(v.double().reshape(-1)[0]) for v in
                    (data.test.target_std, data.test.target_mean))  # fmt: skip
    curves: Json = {}
    for _, column, n in sorted(columns, key=lambda row: -row[0])[:_MOST_CURVES]:
        at = None
        if column["kind"] == "numeric":
            low, high = data.train.x[:, column["at"]].double().quantile(_RANGE).tolist()
            grid = torch.linspace(low, high, _GRID, dtype=torch.float64)[:, None]
            at = rounded(grid[:, 0] * column["std"] + column["mean"], 5)
        else:
            grid = torch.eye(n)
        place = slice(column["at"], column["at"] + n)
        made = partial_dependence(source.averaged, x, place, grid)
        rows = {"mean": made.mean, "low": made.low, "high": made.high}
        if data.task == "regression":
            rows = {k: None if v is None else v[:, :1] * scale + shift for k, v in rows.items()}
        curves[column["name"]] = {"at": at} | {
            key: None if values is None else rounded(values, 4) for key, values in rows.items()
        }
    return curves


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

    None where the posterior has none, or the layers are not Linear ones that follow one another.
    """
    posterior = source.posterior
    if posterior.inclusion is None:
        return None
    try:
        return feature_importance(posterior, source="inclusion").phi.cpu()
    except UnsupportedModelError:
        return None


def attention_maps(source: Source, slopes: Tensor) -> Json | None:
    """Maps of the pixels that matter: φ, then slopes over all examples and by class."""
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
    data = source.data
    name, weight = _first_weight(source)
    if weight.dim() == 4:
        frames = weight.mean(1)
    elif is_image(data) and weight.shape[1:] == (math.prod(data.input_shape),):
        frames = weight.view(len(weight), *data.input_shape).mean(1)
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
    return {"name": name, "units": best.tolist(), "alive": alive, "n_units": len(weight),
            "top": short(top, 4), "weights": pack(values, "i2")}  # fmt: skip


def _first_weight(source: Source) -> tuple[str, Tensor]:
    """Name and values of the first tensor that can be pruned; an empty one if none can be."""
    weights = source.posterior.layout.unflatten(source.posterior.mean.cpu())
    name = next(iter(source.posterior.layout.prunable), "")
    return name, weights.get(name, torch.zeros(0, 0))


def feature_ranking(source: Source, slopes: Tensor) -> list[Json] | None:
    """Columns of a table by mean absolute slope, the steepest first; None for other inputs."""
    data = source.data
    if len(data.input_shape) != 1:
        return None
    strength = slopes.mean(0).flatten()
    names = feature_names(data)
    _, weight = _first_weight(source)
    counts = torch.full_like(strength, -1)  # unknown
    if weight.shape[1:] == (len(names),):
        counts = (weight != 0).sum(0)
    phi = needed(source)
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


def shown(x: Tensor, data: DataSet) -> Any:
    """Inputs, (n, ...): pixels 0 to 255, (n, C, H, W), or columns as the network reads them.

    Example:
        >>> from bayesieve.data import load_data
        >>> data = load_data("digits")
        >>> shown(data.test.x[:2], data)["shape"]
        [2, 1, 8, 8]
    """
    if is_image(data):
        pixels = PixelScale.of(data.preprocessing).pixels(x.cpu().float())
        return pack((pixels * 255).round().clamp(0, 255), "u1")
    return rounded(x.cpu().flatten(1), 5)


def is_image(data: DataSet) -> bool:
    """Return whether inputs are pictures of one or three channels that can be shown.

    Example:
        >>> from bayesieve.data import load_data
        >>> is_image(load_data("digits"))
        True
    """
    shape = data.input_shape
    return data.preprocessing.get("kind") == "image" and len(shape) == 3 and shape[0] in (1, 3)
