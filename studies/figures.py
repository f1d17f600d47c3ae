"""Figures that only studies draw: rows beside the paper's, labelled lines, methods side by side."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from bayesieve.assess.figures.style import (
    BLUE,
    INK,
    LABEL_SIZE,
    MARKERS,
    MUTED,
    VERMILION,
    draw_series,
    dress,
    legend,
    new_figure,
    panel_grid,
    percent_ticks,
    save,
    series_colors,
)

Series = dict[str, tuple[list[float], list[float]]]  # (x, y) by label
Lines = Mapping[str, tuple[Sequence[float], ...]]  # (x, y) or (x, y, spread) by label
Shown = Mapping[str, Any]  # one object of `table.listing`
_WIDE = 20  # largest number over smallest from which an axis is logarithmic
_LABEL = 62  # characters
_PANELS = (  # key in a row of a curve, title, axis, whether it is a fraction
    ("accuracy", "Accuracy", "right predictions", True),
    ("ece", "Calibration error", "20 bins of equal mass", False),
    ("nll", "Negative log-likelihood", "nats per example", False),
    ("pruned", "Pruned", "share of the weights", True),
    ("entropy", "Uncertainty", "entropy in nats", False),
)


def draw_rows(rows: Sequence[Shown], path: Path) -> Path:
    """Draw every row that has a number of ours as a dot, the paper's as a cross, by metric.

    Args:
        rows: objects of `table.listing`; at least one was measured.
        path: PNG to write.
    """
    measured = [row for row in rows if row["ours"] is not None]
    if not measured:
        raise ValueError("draw_rows: no row has a number of ours.")
    names = list(dict.fromkeys(_label(row) for row in measured))
    metrics = list(dict.fromkeys(row["metric"] for row in measured))
    figure = new_figure(4.2 + 2.6 * len(metrics), 1.3 + 0.26 * len(names))
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        shown = [row for row in measured if row["metric"] == metric]
        heights = [names.index(_label(row)) for row in shown]
        aims = [row["target"] if row["paper"] is None else row["paper"] for row in shown]
        known = [(aim, y) for aim, y in zip(aims, heights, strict=True) if aim is not None]
        if known:
            axes.plot(*zip(*known, strict=True), "x", color=VERMILION)
        axes.plot([row["ours"] for row in shown], heights, "o", color=BLUE, markersize=5)
        values = [*(row["ours"] for row in shown), *(aim for aim, _ in known)]
        if min(values) > 0 and max(values) > _WIDE * min(values):
            axes.set_xscale("log")
        marks = "\u25cf ours, \u00d7 paper or target" if known else "\u25cf ours"
        dress(axes, title=metric, xlabel=marks, ylabel="")
    first = figure.axes[0]
    first.set_yticks(range(len(names)), names)
    first.set_ylim(len(names) - 0.5, -0.5)
    return save(figure, path)


def _label(row: Shown) -> str:
    """Item and row, shortened in the middle so that what tells rows apart stays."""
    text = f"{row['item']}: {row['what']}"
    if len(text) <= _LABEL:
        return text
    return f"{text[: _LABEL // 2 - 1]} … {text[-_LABEL // 2 + 2 :]}"


def series_of(points: Iterable[tuple[str, float, float]]) -> Series:
    """Points (label, x, y) as curves by label, for `lines`.

    Example:
        >>> series_of([("a", 0, 1), ("b", 0, 2), ("a", 5, 3)])
        {'a': ([0, 5], [1, 3]), 'b': ([0], [2])}
    """
    series: Series = {}
    for label, x, y in points:
        xs, ys = series.setdefault(label, ([], []))
        xs.append(x)
        ys.append(y)
    return series


def lines(
    series: Lines,
    path: Path,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    level: float | None = None,
    level_name: str | None = None,
    from_zero: bool = False,
    log_x: bool = False,
    top: float | None = None,
    percent_x: bool = False,
    percent_y: bool = False,
) -> Path:
    """Draw labelled curves, each (x, y) of one length, over a common axis.

    Args:
        series: label to (x, y), or to (x, y, spread) for a band of y ± spread.
        path: PNG file to write.
        title: headline.
        xlabel: of the horizontal axis.
        ylabel: of the vertical axis.
        level: a horizontal line to compare with.
        level_name: what it is, for the legend.
        from_zero: whether the vertical axis begins at 0.
        log_x: whether the horizontal axis is logarithmic, with a tick at every x of a point.
        top: end of the vertical axis; points above it are not seen.
        percent_x: whether x are fractions, shown in percent.
        percent_y: the same for y.
    """
    if not series:
        raise ValueError("lines: series must not be empty.")
    beside = len(series) + (level_name is not None) > 3  # more lines leave no corner free
    figure = new_figure(7.8 if beside else 6.4, 4.0)
    axes = figure.add_subplot()
    for i, (label, (x, y, *spread)) in enumerate(series.items()):
        draw_series(axes, x, y, i, len(series), label=label, spread=spread[0] if spread else None)
    if level is not None:
        axes.axhline(level, color=MUTED, linestyle=(0, (2, 2)), linewidth=1.2, label=level_name)
    if from_zero:
        axes.set_ylim(bottom=0)
    if top is not None:
        axes.set_ylim(top=top)
    if log_x:
        ticks = sorted({float(value) for x, *_ in series.values() for value in np.ravel(x)})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    for axis, in_percent in ((axes.xaxis, percent_x), (axes.yaxis, percent_y)):
        if in_percent:
            percent_ticks(axis)
    dress(axes, title=title, xlabel=xlabel, ylabel=ylabel)
    legend(axes, "upper left" if beside else "best", outside=beside)
    return save(figure, path)


def method_curves(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    path: Path,
    over: str = "epoch",
    *,
    ends: Mapping[str, Mapping[str, float]] | None = None,
    end_name: str = "end",
    n_examples: int | None = None,
) -> Path:
    """Draw accuracy, calibration error, likelihood, pruned fraction and entropy side by side.

    Args:
        runs: for each label rows with `over` and any of accuracy, ece, nll, pruned and entropy.
        path: PNG file to write.
        over: name of what grows along the horizontal axis.
        ends: a row for each label that was measured otherwise than the others: it gets a hollow
            marker and no line.
        end_name: of these, for the legend.
        n_examples: test examples; accuracies then have a band of one standard error of so many.
    """
    seen = {key for rows in runs.values() for row in rows for key in row}
    panels = [panel for panel in _PANELS if panel[0] in seen]
    if not panels:
        raise ValueError("method_curves: no run holds accuracy, ece, nll, pruned or entropy.")
    figure, grid = panel_grid(len(panels), len(panels), 3.6, 3.2)
    for axes, (key, title, label, is_fraction) in zip(grid, panels, strict=True):
        for i, (method, rows) in enumerate(runs.items()):
            x, y = [[row[name] for row in rows if key in row] for name in (over, key)]
            known = key == "accuracy" and n_examples is not None
            spread = [(p * (1 - p) / (n_examples or 1)) ** 0.5 for p in y] if known else None
            if x:
                draw_series(axes, x, y, i, len(runs), label=method, spread=spread)
            end = (ends or {}).get(method, {})
            if key in end:
                axes.plot(end[over], end[key], MARKERS[i], color=series_colors(len(runs))[i], ms=9,
                          mfc="none", mew=1.6)  # fmt: skip
        if ends and axes is grid[0]:
            axes.plot([], [], "o", color=MUTED, ms=9, mfc="none", mew=1.6, label=end_name)
        dress(axes, title=title, xlabel=over, ylabel=label, grid="y")
        if over == "epoch":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
        if is_fraction:
            percent_ticks(axes.yaxis)
    legend(grid[0])
    return save(figure, path)


def weight_cdfs(layers: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> Path:
    """Draw how large the mean weights of each layer are: the share that is at most so large.

    Args:
        layers: for each layer and method equally spaced quantiles of |E w|, least to greatest.
        path: PNG file to write.
    """
    if not layers:
        raise ValueError("weight_cdfs: at least one layer is needed, got none.")
    figure, grid = panel_grid(len(layers), min(len(layers), 4), 3.2, 2.8)
    labels = list(dict.fromkeys(label for methods in layers.values() for label in methods))
    for axes, (layer, methods) in zip(grid, layers.items(), strict=True):
        for label, quantiles in methods.items():
            share = np.linspace(0, 1, len(quantiles))
            place = labels.index(label)
            draw_series(axes, quantiles, share.tolist(), place, len(labels), label=label)
        dress(axes, title=layer, xlabel="|mean weight|", ylabel="share of weights")
        axes.set_ylim(0, 1.02)
        percent_ticks(axes.yaxis)
    legend(grid[0], "lower right")
    return save(figure, path)


def weight_maps(maps: Mapping[str, ArrayLike], path: Path) -> Path:
    """Draw the mean weights into the first units as pictures, one row of them per method.

    Args:
        maps: for each method an array of shape (units, height, width); red is positive, blue
            negative, white 0, on one scale per method.
        path: PNG file to write.
    """
    arrays = {label: np.asarray(array, dtype=float) for label, array in maps.items()}
    if not arrays or any(array.ndim != 3 or array.size == 0 for array in arrays.values()):
        raise ValueError("weight_maps: every map must have shape (units, height, width).")
    n_columns = max(len(array) for array in arrays.values())
    figure = new_figure(0.75 * n_columns + 0.9, 0.85 * len(arrays) + 0.2)
    grid = figure.subplots(len(arrays), n_columns, squeeze=False)
    for row, (label, array) in zip(grid, arrays.items(), strict=True):
        limit = float(np.abs(array).max()) or 1.0
        row[0].set_ylabel(label, fontsize=LABEL_SIZE, color=INK)
        for axes in row[len(array) :]:
            axes.set_axis_off()
        for axes, picture in zip(row, array, strict=False):
            axes.imshow(picture, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
    return save(figure, path)
