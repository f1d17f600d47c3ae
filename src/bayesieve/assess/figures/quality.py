"""Figures of quality: calibration, confusion, uncertainty."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from bayesieve.assess.figures import style
from bayesieve.assess.metrics import ReliabilityBins

_SHARES = (0.0, 0.01, 0.1, 0.5, 1.0)  # ticks of the colour bar of a confusion matrix


def reliability_diagram(runs: Mapping[str, ReliabilityBins], path: str | Path) -> Path:
    """Draw accuracy against confidence, with a histogram of the confidence below.

    Args:
        runs: bins under the label of each run, for example before and after scaling.
        path: PNG file to write.

    Example:
        >>> bins = ReliabilityBins((0.3, 0.8), (0.2, 0.7), (4, 6), (0.0, 0.5, 1.0))
        >>> reliability_diagram({"before": bins}, "reliability.png").name
        'reliability.png'
    """
    if not runs:
        raise ValueError("reliability_diagram: at least one run is needed, got none.")
    figure = style.new_figure(4.8, 5.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    draw_reliability(top, runs)
    top.set_xlabel("")
    widths = [np.diff(bins.edges) for bins in runs.values()]
    equal = all(np.allclose(width, width[0]) for width in widths)
    colors = style.series_colors(len(runs))
    for bins, width, color in zip(runs.values(), widths, colors, strict=True):
        share = np.array(bins.count) / sum(bins.count)
        wide = width > 0  # bins of equal mass may share an edge
        height = share if equal else share[wide] / width[wide]
        edges = np.array(bins.edges)[np.append(True, wide)]
        bottom.stairs(height, edges, color=color, lw=1.6)
        bottom.stairs(height, edges, color=color, alpha=0.15, fill=True)
    label = "share of examples" if equal else "density"
    style.dress(bottom, title="", xlabel="confidence", ylabel=label, grid="y")
    bottom.set_ylim(bottom=0)
    style.percent_ticks(bottom.xaxis)
    if equal:
        style.percent_ticks(bottom.yaxis)
    return style.save(figure, path)


def draw_reliability(axes: Axes, runs: Mapping[str, ReliabilityBins]) -> None:
    """Draw the reliability curves on `axes`, the area of each marker growing with its bin.

    Neighbouring bins are taken together, see `ReliabilityBins.groups`. A bar spans the accuracies
    that so many examples leave plausible, Wilson's interval of 90%. The axes begin at the fifth
    below all of it.

    Example:
        >>> axes = style.new_figure(3, 3).add_subplot()
        >>> bins = ReliabilityBins((0.3, 0.8), (0.2, 0.7), (40, 60), (0.0, 0.5, 1.0))
        >>> draw_reliability(axes, {"before": bins})
        >>> axes.get_legend().get_texts()[0].get_text()
        'before (ECE 10%)'
    """
    axes.plot([0, 1], [0, 1], color=style.MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
    floor = 1.0
    styles = zip(style.series_colors(len(runs)), cycle(style.MARKERS), strict=False)
    for (label, bins), (color, marker) in zip(runs.items(), styles, strict=False):
        if sum(bins.count) == 0:
            raise ValueError(f"reliability_diagram: the bins of '{label}' are empty.")
        x, y, count, low, high = np.array(bins.groups()).T
        area = 14 + 70 * np.sqrt(count / count.sum())
        text = f"{label} (ECE {style.percent(bins.ece)})"
        # lines, since the legend avoids lines but not markers
        axes.plot(np.stack([x, x]), np.stack([low, high]), color=color, lw=1.4, alpha=0.55)
        axes.plot(x, y, color=color, marker=marker, lw=2, ms=4, zorder=2, label=text)
        axes.scatter(x, y, s=area, color=color, marker=marker, edgecolor="white", lw=0.8, zorder=3)
        least_sure = min(c for c, n in zip(bins.confidence, bins.count, strict=True) if n)
        floor = min(floor, least_sure, float(low.min()))
    ylabel = "accuracy, with its 90% interval"
    style.dress(axes, title="Reliability", xlabel="confidence", ylabel=ylabel)
    start = math.floor(5 * floor) / 5  # nothing is sure by less, nor right less often
    axes.set_xlim(start, 1.015)
    axes.set_ylim(start - 0.015, 1.015)
    style.percent_ticks(axes.xaxis)
    style.percent_ticks(axes.yaxis)
    style.legend(axes)


def confusion_matrix(matrix: ArrayLike, class_names: Sequence[str], path: str | Path) -> Path:
    """Draw the confusion matrix, counts in the cells, colour by share of the true class.

    Args:
        matrix: counts, rows true and columns predicted, shape (C, C).
        class_names: C names.
        path: PNG file to write.

    Example:
        >>> confusion_matrix([[9, 1], [2, 8]], ["cat", "dog"], "confusion.png").name
        'confusion.png'
    """
    counts = np.asarray(matrix, dtype=float)
    n = len(class_names)
    if counts.shape != (n, n) or n < 1:
        raise ValueError(
            f"confusion_matrix: matrix must have shape ({n}, {n}) for {n} class names, "
            f"got {counts.shape}."
        )
    size = 2.2 + 0.46 * n
    figure = style.new_figure(size + 0.5, size)
    axes = figure.subplots()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    # the square root lets a confusion of 1% be seen beside a diagonal of 98%
    image = axes.imshow(np.sqrt(share), cmap=style.HEAT, vmin=0, vmax=1)
    for row, column in np.ndindex(counts.shape):
        if counts[row, column] and len(counts) <= 25:
            color = "white" if share[row, column] > 0.36 else style.INK
            text = f"{counts[row, column]:.0f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
    wrong = 1 - counts.trace() / max(counts.sum(), 1)
    title = f"Confusion: {100 * wrong:.2f}% of {counts.sum():,.0f} wrong"
    style.dress(axes, title=title, xlabel="predicted class", ylabel="true class", grid="none")
    upright = max(map(len, class_names)) <= 3
    axes.set_xticks(range(n), labels=list(class_names))
    if not upright:
        for tick in axes.get_xticklabels():
            tick.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(n), labels=list(class_names))
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    bar = style.color_bar(axes, image, "share of the true class")
    bar.set_ticks(
        [share**0.5 for share in _SHARES], labels=[style.percent(share, 1) for share in _SHARES]
    )
    return style.save(figure, path)


def uncertainty_per_class(
    aleatoric: Sequence[float],
    epistemic: Sequence[float],
    class_names: Sequence[str],
    path: str | Path,
) -> Path:
    """Draw the mean uncertainty of each class as a bar of two parts, most uncertain on top.

    Args:
        aleatoric: mean expected entropy of each class, nats, C numbers.
        epistemic: mean mutual information of each class, nats, C numbers.
        class_names: C names.
        path: PNG file to write.

    Example:
        >>> uncertainty_per_class([0.1, 0.3], [0.01, 0.1], ["cat", "dog"], "classes.png").name
        'classes.png'
    """
    columns = {"aleatoric": aleatoric, "epistemic": epistemic, "class_names": class_names}
    style.check_same_length("uncertainty_per_class", **columns)
    noise, doubt = np.asarray(aleatoric, dtype=float), np.asarray(epistemic, dtype=float)
    order = np.argsort(-(noise + doubt), kind="stable")
    noise, doubt = noise[order], doubt[order]
    rows = np.arange(len(order))
    figure = style.new_figure(6.4, 1.5 + 0.3 * len(order))
    axes = figure.subplots()
    axes.barh(rows, noise, 0.66, color=style.BLUE, label="aleatoric (the data)")
    axes.barh(rows, doubt, 0.66, noise, color=style.ORANGE, label="epistemic (the model)")
    title = "Uncertainty per true class"
    style.dress(axes, title=title, xlabel="mean entropy (nats)", ylabel="", grid="x")
    style.name_rows(axes, [class_names[i] for i in order])
    style.legend(axes, "lower right")
    return style.save(figure, path)
