"""What a reader of the page may change: pixels of a drawing, or the columns of a table."""

import math
from typing import Any

import torch
from torch import Tensor

from bayesieve.data import DataSet
from bayesieve.data.preprocessing import PixelScale
from bayesieve.report.looks import feature_names
from bayesieve.report.packing import Json, rounded
from bayesieve.report.quality import is_image

_MOST_COLUMNS = 200
_INK = 0.25  # of the full range, from which a pixel counts as drawn
_TYPICAL = 500  # training pictures that say how large drawings are


def describe_inputs(data: DataSet) -> Json:
    """How inputs are made: {"kind": "image", ...}, {"kind": "table", ...} or {"kind": "none"}.

    Example:
        >>> from bayesieve.data import load_data
        >>> found = describe_inputs(load_data("digits"))
        >>> found["kind"], found["drawable"], found["box"]
        ('image', True, 8)
    """
    if is_image(data):
        return _image(data)
    if len(data.input_shape) == 1 and data.input_shape[0] <= _MOST_COLUMNS:
        return {"kind": "table", "columns": _columns(data)}
    return {"kind": "none"}


def _image(data: DataSet) -> Json:
    recipe = data.preprocessing
    row: Json = {key: recipe[key] for key in ("shape", "mean", "std")}
    row["kind"] = "image"
    channels = data.input_shape[0]
    pixels = PixelScale.of(recipe).pixels(data.train.x[:_TYPICAL].cpu().float())
    edge = torch.cat([pixels[..., 0, :].flatten(), pixels[..., -1, :].flatten()])
    row["drawable"] = channels == 1 and float(edge.median()) < _INK
    row["box"] = _typical_box(pixels[:, 0]) if row["drawable"] else None
    return row


def _typical_box(pixels: Tensor) -> int:
    """Median over pictures, (n, H, W), of the longer side of what is drawn, in pixels."""
    inked = pixels > _INK * pixels.amax((1, 2), keepdim=True).clamp(min=1e-6)
    sides = torch.stack([_extent(inked.any(2)), _extent(inked.any(1))]).amax(0)
    return int(sides.median())


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
        own = ((name, {"kind": "numeric", "mean": 0.0, "std": 1.0}) for name in feature_names(data))
        recipes = [{"name": name, **rest} for name, rest in own]
    rows, place = [], 0
    for recipe in recipes:
        row: Json = {"name": recipe["name"], "kind": recipe["kind"], "at": place}
        if recipe["kind"] == "numeric":
            row |= _range(data.train.x[:, place].double(), recipe["mean"], recipe["std"])
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


def _range(values: Tensor, mean: float, std: float) -> Json:
    own = values.cpu() * std + mean
    low, start, high = rounded(torch.stack([own.amin(), own.median(), own.amax()]), 6)
    whole = bool((own - own.round()).abs().max() < 1e-4 * max(1.0, abs(high)))
    return {"mean": mean, "std": std, "low": low, "high": high, "start": start, "whole": whole}
