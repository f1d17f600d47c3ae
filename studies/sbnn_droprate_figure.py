"""Error against weights dropped in one shot, by both rankings, beside the paper's points."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.assess.figures.style import (
    BLUE,
    GREEN,
    MUTED,
    VERMILION,
    Corner,
    dress,
    legend,
    new_figure,
    save,
)
from studies.sbnn_published import CIFAR10, LENET5, MNIST, column

Record = Mapping[str, Any]

TITLES = {
    "m1200": "MNIST, 2 x 1200 units", "cifar10": "CIFAR-10 flattened, 2 x 1200 units",
    "l5-set1": "LeNet-5-Caffe, prior set 1", "l5-set2": "LeNet-5-Caffe, prior set 2",
}  # fmt: skip
PAPER = {"m1200": column(MNIST, 0), "cifar10": column(CIFAR10, 0), "l5-set1": column(LENET5, 0),
         "l5-set2": column(LENET5, 1)}  # fmt: skip
BASELINE = {"m1200": column(MNIST, 1), "cifar10": column(CIFAR10, 1)}
_LOOKS = {"snr": (BLUE, "sBNN, by signal to noise"), "inclusion": (VERMILION, "sBNN, by inclusion")}
# where a panel has room for one; the curves of prior set 1 fill theirs
_LEGENDS: Mapping[str, Corner] = {
    "m1200": "upper left", "cifar10": "lower right", "l5-set2": "upper left",
}  # fmt: skip
_TICKS = (0.5, 0.9, 0.98, 0.995, 0.999)
_ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def draw_droprates(records: Sequence[Record], path: Path) -> Path:
    """One panel per record that the paper has points for; Bayes by backprop joins its network's.

    Args:
        records: of the study; at least one of them named in PAPER.
        path: PNG to write.
    """
    by_name = {own["name"]: own for own in records}
    known = [name for name in PAPER if name in by_name]
    if not known:
        raise ValueError(f"draw_droprates: no record of {', '.join(PAPER)} to draw.")
    columns = 2 if len(known) == 4 else min(3, len(known))
    figure = new_figure(4.4 * columns, 3.6 * math.ceil(len(known) / columns))
    for i, name in enumerate(known, start=1):
        axes = figure.add_subplot(math.ceil(len(known) / columns), columns, i)
        _panel(axes, by_name[name], by_name.get(f"{name}-bbb"))
        dress(axes, title=TITLES[name], xlabel="dropped", ylabel="test error")
        if name in _LEGENDS:
            legend(axes, _LEGENDS[name])
    return save(figure, path)


def _panel(axes: Any, record: Record, baseline: Record | None) -> None:
    """Our curves, the paper's crosses in the same hue, and the error of the whole network."""
    name = record["name"]
    for score, curve in record["curves"].items():
        _curve(axes, curve, *_LOOKS[score])
    _crosses(axes, PAPER[name], BLUE, "the paper's sBNN")
    if baseline is not None:
        _curve(axes, baseline["curves"]["snr"], GREEN, "Bayes by backprop")
        _crosses(axes, BASELINE[name], GREEN, "the paper's")
    axes.axhline(record["error_mean"], color=MUTED, linewidth=1)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_ylim(_ERRORS[0] * 0.6, 1.1)
    axes.set_yticks(_ERRORS, [f"{100 * error:g} %" for error in _ERRORS])
    axes.set_xticks([left(rate) for rate in _TICKS], [f"{100 * rate:g} %" for rate in _TICKS])


def left(droprate: float) -> float:
    """Where a droprate stands on the axis: each step halves, or so, what is left.

    Example:
        >>> round(left(0.999) - left(0.99), 6)
        1.0
    """
    return -math.log10(1 - droprate)


def _curve(axes: Any, curve: Sequence[Mapping[str, float]], color: str, label: str) -> None:
    x, y = zip(*((left(point["droprate"]), point["error"]) for point in curve), strict=True)
    axes.plot(x, y, color=color, marker="o", markersize=3.5, label=label)


def _crosses(axes: Any, errors: Mapping[float, float], color: str, label: str) -> None:
    x, y = zip(*((left(rate / 100), error / 100) for rate, error in errors.items()), strict=True)
    axes.plot(x, y, "x", color=color, markersize=6, label=label)
