"""Several methods on one network: quality over epochs, sizes of weights, first-layer weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from bayesieve.assess.figures.style import (
    INK,
    LABEL_SIZE,
    dress,
    legend,
    new_figure,
    percent_ticks,
    save,
    series_colors,
)

# (name of the quantity, title, label of its axis, whether it is a fraction)
_PANELS = (
    ("accuracy", "Accuracy", "right predictions", True),
    ("ece", "Calibration error", "20 bins of equal mass", False),
    ("nll", "Negative log-likelihood", "nats per example", False),
    ("pruned", "Pruned", "share of the weights", True),
)


def method_curves(runs: Mapping[str, Sequence[Mapping[str, float]]], path: str | Path) -> Path:
    """Draw accuracy, calibration error, likelihood and pruned fraction over epochs.

    Args:
        runs: for each label rows with `epoch` and any of accuracy, ece, nll and pruned.
        path: PNG file to write.

    Example:
        >>> import tempfile
        >>> runs = {"BMR": [{"epoch": 1, "nll": 0.5}, {"epoch": 2, "nll": 0.4}]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     method_curves(runs, Path(folder) / "curves.png").name
        'curves.png'
    """
    seen = {key for rows in runs.values() for row in rows for key in row}
    panels = [panel for panel in _PANELS if panel[0] in seen]
    if not panels:
        raise ValueError("method_curves: no run holds accuracy, ece, nll or pruned.")
    figure = new_figure(3.6 * len(panels) + 0.4, 3.2)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (key, title, label, fraction) in zip(grid, panels, strict=True):
        for (name, rows), color in zip(runs.items(), series_colors(len(runs)), strict=True):
            points = [(row["epoch"], row[key]) for row in rows if key in row]
            if points:
                x, y = zip(*points, strict=True)
                marker = "o" if len(points) <= 15 else ""
                axes.plot(x, y, color=color, lw=2, marker=marker, ms=4, label=name)
        dress(axes, title=title, xlabel="epoch", ylabel=label, grid="y")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
        if fraction:
            percent_ticks(axes.yaxis)
    legend(grid[0])
    return save(figure, path)


def weight_cdfs(layers: Mapping[str, Mapping[str, Sequence[float]]], path: str | Path) -> Path:
    """Draw how large the mean weights of each layer are: the share that is at most so large.

    Args:
        layers: for each layer and method equally spaced quantiles of |E w|, least to greatest.
        path: PNG file to write.

    Example:
        >>> import tempfile
        >>> layers = {"fc1": {"BMR": [0.0, 0.0, 0.3], "Flat-FF": [0.01, 0.1, 0.4]}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     weight_cdfs(layers, Path(folder) / "cdf.png").name
        'cdf.png'
    """
    if not layers:
        raise ValueError("weight_cdfs: at least one layer is needed, got none.")
    n_columns = min(len(layers), 4)
    n_rows = -(-len(layers) // n_columns)
    figure = new_figure(3.2 * n_columns + 0.4, 2.8 * n_rows)
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    for axes in grid.flat[len(layers) :]:
        axes.set_axis_off()
    labels = list(dict.fromkeys(label for own in layers.values() for label in own))
    colors = dict(zip(labels, series_colors(len(labels)), strict=True))
    for axes, (layer, methods) in zip(grid.flat, layers.items(), strict=False):
        for label, quantiles in methods.items():
            share = np.linspace(0, 1, len(quantiles))
            axes.plot(quantiles, share, color=colors[label], lw=2, label=label)
        dress(axes, title=layer, xlabel="|mean weight|", ylabel="share of weights")
        axes.set_ylim(0, 1.02)
        percent_ticks(axes.yaxis)
    legend(grid[0, 0], "lower right")
    return save(figure, path)


def weight_maps(maps: Mapping[str, ArrayLike], path: str | Path) -> Path:
    """Draw the mean weights into the first units as pictures, one row of them per method.

    Args:
        maps: for each method an array of shape (units, height, width); red is positive, blue
            negative, white 0, on one scale per method.
        path: PNG file to write.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     weight_maps({"BMR": np.ones((3, 5, 5))}, Path(folder) / "maps.png").name
        'maps.png'
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
