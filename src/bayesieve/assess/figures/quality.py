"""Figures of quality: calibration, fit of a regression, and error against the weights kept."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import NormalDist

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from bayesieve.assess.figures import style
from bayesieve.assess.metrics import ReliabilityBins
from bayesieve.assess.paired import groups_of


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

    Neighbouring bins are taken together, see `groups_of`. A bar spans the accuracies
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
        x, y, count, low, high = np.array(groups_of(bins)).T
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


def error_vs_sparsity(points: Sequence[Sequence[float]], path: str | Path) -> Path:
    """Draw error, and likelihood where it is known, against the share of weights kept.

    Args:
        points: (zeros, error) or (zeros, error, nll), fractions and nats per example; points that
            keep no weight cannot stand on the axis and are left out.
        path: PNG file to write.

    Example:
        >>> error_vs_sparsity([(0.0, 0.012), (0.9, 0.012), (0.99, 0.03)], "curve.png").name
        'curve.png'
    """
    _check_points("error_vs_sparsity", points)
    with_nll = all(len(point) > 2 for point in points)
    figure = style.new_figure(9.6 if with_nll else 6.4, 4.0)
    panels = figure.subplots(1, 2 if with_nll else 1, squeeze=False)[0]
    _draw_curve(panels[0], points)
    if with_nll:
        _draw_curve(panels[1], [(zeros, nll) for zeros, _, nll in points], likelihood=True)
    return style.save(figure, path)


def regression_fit(mean: ArrayLike, std: ArrayLike, targets: ArrayLike, path: str | Path) -> Path:
    """Draw predictions against targets with bars of the central 90 % of each normal prediction.

    Args:
        mean: predictive mean, shape (N,).
        std: predictive standard deviation, shape (N,).
        targets: shape (N,).
        path: PNG file to write.

    Example:
        >>> regression_fit([1.0, 2.0], [0.1, 0.1], [1.1, 1.9], "fit.png").name
        'fit.png'
    """
    y, bar, x = (np.asarray(a, dtype=float) for a in (mean, std, targets))
    if not (y.shape == bar.shape == x.shape and y.ndim == 1 and y.size):
        raise ValueError("regression_fit: mean, std and targets must all have one shape (N,).")
    figure = style.new_figure(5.2, 4.8)
    axes = figure.subplots()
    _draw_fit(axes, x, y, bar)
    title = f"Fit: RMSE {np.sqrt(np.mean((x - y) ** 2)):.3g}"
    style.dress(axes, title=title, xlabel="target", ylabel="prediction and its 90% interval")
    style.legend(axes, "upper left")
    return style.save(figure, path)


def _draw_curve(
    axes: Axes,
    points: Sequence[Sequence[float]],
    *,
    likelihood: bool = False,
) -> None:
    """Draw points (zeros, error), or (zeros, nll) for the likelihood, on `axes`."""
    table = np.array([(1 - point[0], point[1]) for point in points if point[0] < 1], dtype=float)
    kept, value = table[np.argsort(-table[:, 0], kind="stable")].T
    axes.plot(kept, value, color=style.BLUE, lw=2, marker="o", ms=4)
    least = float(kept[-1]) / 1.3
    axes.set_xscale("log")
    axes.set_xlim(1.15, least)  # all weights on the left, sparser to the right
    style.log_ticks(axes.xaxis, least, 1.0)
    style.percent_ticks(axes.xaxis)
    low, high = float(value.min()), float(value.max())
    if low > 0 and high / low > 6:
        axes.set_yscale("log")
        low, high = low / 1.7, high * 1.3
        style.log_ticks(axes.yaxis, low, high)
    else:
        low, high = low - 0.3 * (high - low) - 1e-4, high + 0.35 * (high - low) + 1e-4
    axes.set_ylim(low, high)
    (style.plain_ticks if likelihood else style.percent_ticks)(axes.yaxis)
    what = "Likelihood" if likelihood else "Error"
    ylabel = "negative log-likelihood (nats)" if likelihood else "error"
    style.dress(axes, title=f"{what} against weights kept", xlabel="weights kept", ylabel=ylabel)


def _check_points(who: str, points: Sequence[Sequence[float]]) -> None:
    """Raise unless points are (zeros, error[, nll]) and at least one can be drawn."""
    for point in points:
        if len(point) not in (2, 3) or not 0 <= point[0] <= 1:
            raise ValueError(
                f"{who}: points must be (zeros, error[, nll]) with zeros between 0 and 1, got "
                f"{tuple(point)}."
            )
    if not any(point[0] < 1 for point in points):
        raise ValueError(f"{who}: there is no point that keeps a weight.")


def _draw_fit(
    axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], bar: NDArray[np.float64]
) -> None:
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    pad = 0.05 * (high - low) + 1e-12
    ends = (low - pad, high + pad)
    axes.plot(ends, ends, color=style.MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
    half = NormalDist().inv_cdf(0.95) * bar
    inside = np.abs(x - y) <= half
    alpha = float(np.clip(30 / np.sqrt(y.size), 0.25, 0.9))
    kinds = ((inside, style.BLUE, "o", "inside"), (~inside, style.VERMILION, "D", "outside"))
    for members, color, marker, word in kinds:
        label = f"{word} the 90% interval ({style.percent(members.mean())})"
        axes.vlines(x[members], (y - half)[members], (y + half)[members], color, lw=1, alpha=0.4)
        (dots,) = axes.plot(x[members], y[members], marker, ms=4, mew=0, color=color, label=label)
        dots.set_alpha(alpha)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
