"""Figures of pruning: error against weights kept, weights kept by layer, the headline figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from numpy.typing import ArrayLike

from bayesieve.assess.figures import style
from bayesieve.assess.figures.quality import draw_reliability
from bayesieve.assess.metrics import ReliabilityBins


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


def sieve_overview(
    path: str | Path,
    *,
    curve: Sequence[Sequence[float]],
    chosen: int,
    dense_error: float,
    layers: Mapping[str, tuple[int, int]],
    reliability: Mapping[str, ReliabilityBins],
) -> Path:
    """Draw error against weights kept, share kept per layer, and reliability, side by side.

    Args:
        path: PNG file to write.
        curve: points (zeros, error), fractions.
        chosen: index of the chosen point of the curve.
        dense_error: error of the network before sieving, a fraction.
        layers: for each layer the numbers of weights (kept, total), in order.
        reliability: bins under labels such as dense and sieved.

    Example:
        >>> bins = ReliabilityBins((0.3, 0.8), (0.2, 0.7), (4, 6), (0.0, 0.5, 1.0))
        >>> panels = {"layers": {"fc1": (80, 1000)}, "reliability": {"dense": bins}}
        >>> curve = [(0.5, 0.02), (0.9, 0.021), (0.99, 0.05)]
        >>> sieve_overview("overview.png", curve=curve, chosen=1, dense_error=0.02, **panels).name
        'overview.png'
    """
    _check_points("sieve_overview", curve)
    if not (0 <= chosen < len(curve) and curve[chosen][0] < 1):
        raise ValueError(
            f"sieve_overview: chosen must name a point that keeps a weight, got {chosen} of "
            f"{len(curve)} points."
        )
    if not (layers and reliability):
        raise ValueError("sieve_overview: layers and reliability must not be empty.")
    figure = style.new_figure(10.6, 3.6)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    _draw_curve(left, curve, dense=dense_error)
    _mark(left, curve, chosen)
    _draw_layers(middle, list(layers), *zip(*layers.values(), strict=True), counts=False)
    draw_reliability(right, reliability)
    return style.save(figure, path)


def _draw_curve(
    axes: Axes,
    points: Sequence[Sequence[float]],
    *,
    likelihood: bool = False,
    dense: float | None = None,
) -> None:
    """Draw points (zeros, error), or (zeros, nll) for the likelihood, on `axes`.

    With `dense`, the error of the whole network is drawn as a level and a diamond.
    """
    table = np.array([(1 - point[0], point[1]) for point in points if point[0] < 1], dtype=float)
    kept, value = table[np.argsort(-table[:, 0], kind="stable")].T
    axes.plot(kept, value, color=style.BLUE, lw=2, marker="o", ms=4)
    least = float(kept[-1]) / 1.3
    axes.set_xscale("log")
    axes.set_xlim(1.15, least)  # all weights on the left, sparser to the right
    style.log_ticks(axes.xaxis, least, 1.0)
    style.percent_ticks(axes.xaxis)
    if dense is not None:
        axes.axhline(dense, color=style.MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
        axes.plot(1.0, dense, "D", ms=7, color=style.INK, zorder=5)
        _annotate(axes, f"dense, {style.percent(dense, 3)}", (1.0, dense), (6, -15))
        value = np.append(value, dense)
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


def kept_per_layer(
    names: Sequence[str], kept: Sequence[int], total: Sequence[int], path: str | Path
) -> Path:
    """Draw the share of weights kept in every layer, first layer on top, with the counts.

    Example:
        >>> kept_per_layer(["fc1", "fc2"], [120, 40], [1000, 100], "layers.png").name
        'layers.png'
    """
    style.check_same_length("kept_per_layer", names=names, kept=kept, total=total)
    figure = style.new_figure(6.4, 1.3 + 0.34 * len(names))
    _draw_layers(figure.subplots(), names, kept, total)
    return style.save(figure, path)


def _draw_layers(
    axes: Axes,
    names: Sequence[str],
    kept: Sequence[int],
    total: Sequence[int],
    *,
    counts: bool = True,
) -> None:
    """Draw one bar per layer on `axes`; `counts` adds the numbers of weights to the percentages."""
    if any(not 0 <= k <= n or n < 1 for k, n in zip(kept, total, strict=True)):
        raise ValueError("kept_per_layer: kept must lie between 0 and total, and total be >= 1.")
    share = np.array(kept, dtype=float) / np.array(total, dtype=float)
    rows = np.arange(len(names))
    axes.barh(rows, share, height=0.56, color=style.BLUE)
    for row, (k, n) in enumerate(zip(kept, total, strict=True)):
        text = style.percent(k / n) + (f"  ({k:,} of {n:,})" if counts else "")
        beside = axes.get_yaxis_transform()  # right of the axis, which ends where shares end
        axes.text(1.02, row, text, va="center", fontsize=style.NOTE_SIZE, color=style.INK,
                  transform=beside)  # fmt: skip
    n = sum(total)
    size = f"{n / 1e6:.1f} million" if n >= 1_000_000 else f"{n:,}"
    whole = f"{style.percent(sum(kept) / n)} of {size} weights kept"
    title = f"Kept per layer: {whole}" if counts else whole
    style.dress(axes, title=title, xlabel="share of the layer's weights kept", ylabel="", grid="x")
    style.name_rows(axes, names)
    axes.set_xlim(0, min(max(1.05 * float(share.max()), 1e-9), 1.0))
    axes.spines["left"].set_visible(False)
    style.percent_ticks(axes.xaxis)


def inclusion_cdf(values: Mapping[str, ArrayLike], path: str | Path) -> Path:
    """Draw, for every layer, the share of weights whose inclusion probability is at most p.

    Args:
        values: inclusion probabilities of each layer, any shape.
        path: PNG file to write.

    Example:
        >>> inclusion_cdf({"fc1": [0.01, 0.02, 0.99]}, "cdf.png").name
        'cdf.png'
    """
    if not values:
        raise ValueError("inclusion_cdf: at least one layer is needed, got none.")
    few = len(values) <= 6
    figure = style.new_figure(6.4 if few else 7.8, 4.0)
    axes = figure.subplots()
    grid = np.linspace(0, 1, 801)
    styles = zip(style.series_colors(len(values)), style.series_dashes(len(values)), strict=True)
    for (name, layer), (color, dash) in zip(values.items(), styles, strict=True):
        inclusion = np.sort(np.asarray(layer, dtype=float).ravel())
        if inclusion.size == 0 or not (inclusion[0] >= 0 and inclusion[-1] <= 1):
            raise ValueError(f"inclusion_cdf: layer '{name}' must hold numbers between 0 and 1.")
        share = np.searchsorted(inclusion, grid, side="right") / inclusion.size
        axes.step(grid, share, where="post", color=color, ls=dash, lw=2, label=name)
    axes.axvline(0.5, color=style.GRID, lw=1.5, zorder=0)
    labels = {"xlabel": "inclusion probability p", "ylabel": "share of weights at most p"}
    style.dress(axes, title="Inclusion probabilities per layer", **labels)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    style.percent_ticks(axes.yaxis)
    style.legend(axes, "lower right" if few else "upper left", outside=not few)
    return style.save(figure, path)


def _mark(axes: Axes, points: Sequence[Sequence[float]], chosen: int) -> None:
    """Draw a ring around one of the points (zeros, error), and label it."""
    kept, error = 1 - points[chosen][0], float(points[chosen][1])
    axes.plot(kept, error, "o", ms=11, mfc="white", mec=style.BLUE, mew=2.2, zorder=4)
    axes.plot(kept, error, "o", ms=4, color=style.BLUE, zorder=5)
    least_kept = min(1 - point[0] for point in points if point[0] < 1)
    on_left = kept > least_kept**0.4
    text = f"keep {style.percent(kept)}\n{style.percent(error, 3)} error"
    offset, side = ((-4, 12), "left") if on_left else ((-8, 12), "right")
    note = _annotate(axes, text, (kept, error), offset)
    note.set(ha=side, color=style.BLUE, fontweight="bold")


def _annotate(
    axes: Axes, text: str, point: tuple[float, float], offset: tuple[int, int]
) -> Annotation:
    """Write beside a point, with an offset in points."""
    note = axes.annotate(text, point, offset, textcoords="offset points", color=style.INK)
    note.set_fontsize(style.NOTE_SIZE)
    return note
