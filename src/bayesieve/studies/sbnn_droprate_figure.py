"""Error against weights dropped in one shot, by both rankings, beside the paper's points."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.assess.figures.style import (
    BLUE,
    MUTED,
    VERMILION,
    dress,
    legend,
    new_figure,
    save,
)

Curve = Sequence[Mapping[str, float]]

TITLES = {
    "m1200": "MNIST, 2 x 1200 units", "cifar10": "CIFAR-10 flattened, 2 x 1200 units",
    "l5-set1": "LeNet-5-Caffe, prior set 1", "l5-set2": "LeNet-5-Caffe, prior set 2",
}  # fmt: skip
# droprate and error in % ([Saha], tables 5, 6 and 8)
PAPER = {
    "m1200": ((50, 1.57), (75, 1.52), (95, 1.54), (98, 1.61)),
    "cifar10": ((50, 27.02), (75, 27.04), (90, 26.63), (95, 27.45), (98, 33.92)),
    "l5-set1": ((96, 0.69), (97, 0.87), (98, 1.56), (98.2, 1.78), (98.5, 2.64), (98.7, 3.39),
                (99, 4.46), (99.2, 9.99), (99.5, 24.93), (99.7, 63.82), (99.9, 83.08)),
    "l5-set2": ((96, 1.01), (97, 1.01), (98, 1.01), (98.2, 0.99), (98.5, 1.00), (98.7, 1.02),
                (99, 1.03), (99.2, 1.06), (99.5, 1.30), (99.7, 1.78), (99.9, 31.62)),
}  # fmt: skip
_LOOKS = {"snr": (BLUE, "by signal to noise"), "inclusion": (VERMILION, "by inclusion")}
_TICKS = (0.5, 0.9, 0.98, 0.995, 0.999)
_ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def draw_droprates(records: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """One panel per record that the paper has points for.

    Args:
        records: of the study; at least one of them named in PAPER.
        path: PNG to write.
    """
    known = [own for own in records if own["name"] in PAPER]
    if not known:
        raise ValueError(f"draw_droprates: no record of {', '.join(PAPER)} to draw.")
    columns = 2 if len(known) == 4 else min(3, len(known))
    figure = new_figure(4.4 * columns, 3.6 * math.ceil(len(known) / columns))
    for i, record in enumerate(known, start=1):
        axes = figure.add_subplot(math.ceil(len(known) / columns), columns, i)
        for score, curve in record["curves"].items():
            color, label = _LOOKS[score]
            _plot(axes, [(p["droprate"], p["error"]) for p in curve], color, label)
        paper = [(rate / 100, error / 100) for rate, error in PAPER[record["name"]]]
        x, y = zip(*((left(rate), error) for rate, error in paper), strict=True)
        axes.plot(x, y, "x", color=MUTED, markersize=5, label="the paper")
        axes.axhline(record["error_mean"], color=MUTED, linewidth=1, label="nothing dropped")
        axes.set_yscale("log")
        dress(axes, title=TITLES[record["name"]], xlabel="dropped", ylabel="test error")
        axes.minorticks_off()
        axes.set_ylim(_ERRORS[0] * 0.6, 1.1)
        axes.set_yticks(_ERRORS, [f"{100 * error:g} %" for error in _ERRORS])
        axes.set_xticks([left(rate) for rate in _TICKS], [f"{100 * r:g} %" for r in _TICKS])
        if i == len(known):  # set 2 leaves the corner free
            legend(axes, "upper left")
    return save(figure, path)


def left(droprate: float) -> float:
    """Where a droprate stands on the axis: each step halves, or so, what is left.

    Example:
        >>> round(left(0.999) - left(0.99), 6)
        1.0
    """
    return -math.log10(1 - droprate)


def _plot(axes: Any, points: Sequence[tuple[float, float]], color: str, label: str) -> None:
    x, y = zip(*((left(rate), error) for rate, error in points), strict=True)
    axes.plot(x, y, color=color, marker="o", markersize=3.5, label=label)
