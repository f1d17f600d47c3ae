"""Figures and the printed table of the model-reduction study, from the records of its file."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesieve.assess.figures.reduction import method_curves, weight_cdfs, weight_maps

TITLES = {"map": "MAP", "flat": "Flat-FF", "tiered": "Tiered-FF", "bmr": "BMR-S&S"}
Record = Mapping[str, Any]


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw curves, weight sizes and first-layer weights of each network; return the files.

    Rows of "paper-weights" stand in a figure of "paper" for methods that it lacks.
    """
    groups: dict[str, dict[str, Record]] = {}
    for record in sorted(records, key=lambda own: str(own["preset"]), reverse=True):
        preset = record["preset"].removesuffix("-weights")
        key = f"{record['data']}_{record['net']}_{preset}"
        groups.setdefault(key, {})[TITLES[record["method"]]] = record
    paths = []
    for key, own in sorted(groups.items()):
        methods = {title: own[title] for title in TITLES.values() if title in own}
        curves = {title: record["curve"] for title, record in methods.items()}
        paths.append(method_curves(curves, folder / f"{key}_curves.png"))
        layers: dict[str, dict[str, Sequence[float]]] = {}
        for title, record in methods.items():
            for layer, quantiles in record["quantiles"].items():
                layers.setdefault(layer, {})[title] = quantiles
        paths.append(weight_cdfs(layers, folder / f"{key}_cdf.png"))
        maps = {title: unpack(record["first_layer"]) for title, record in methods.items()}
        paths.append(weight_maps(maps, folder / f"{key}_first_layer.png"))
    return paths


def unpack(packed: Mapping[str, Any]) -> NDArray[np.float64]:
    """The pictures that `bmr_training.pack` stored, (units, height, width)."""
    codes = np.frombuffer(base64.b64decode(packed["int8"]), dtype=np.int8)
    return codes.reshape(packed["shape"]) * (packed["scale"] / 127)


def line(record: Record) -> str:
    """One row of the printed table: ours, then the paper's.

    Example:
        >>> row = {"name": "a/b", "accuracy": 0.9, "ece": 0.01, "nll": 0.3, "pruned": 0.8,
        ...        "zeros": 0.7, "published": {"accuracy": ".9", "ece": ".02", "nll": ".4"},
        ...        "seconds": {"fit": 1.0, "score": 2.0}}
        >>> line(row).split()
        ['a/b', '.900/.010/.300', 'pruned', '.800', 'zeros', '.700', 'paper', '.9/.02/.4', '3', 's']
    """
    ours = "/".join(_short(record[key]) for key in ("accuracy", "ece", "nll"))
    theirs = "/".join(record["published"].values())
    seconds = sum(record["seconds"].values())
    return (
        f"{record['name']:<36} {ours:<16} pruned {_short(record['pruned'])}  "
        f"zeros {_short(record['zeros'])}  paper {theirs:<21} {seconds:.0f} s"
    )


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")
