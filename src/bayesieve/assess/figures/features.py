"""Figures of feature selection: importance of inputs, error against inputs kept."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from bayesieve.assess.figures import style

_MOST_BARS = 40


def importance_bars(
    names: Sequence[str],
    importance: ArrayLike,
    path: str | Path,
    *,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    kept: Sequence[bool] | None = None,
    title: str = "Importance of the inputs",
    xlabel: str = "importance φ",
) -> Path:
    """Draw one bar per input, the most important on top; the first 40 where there are more.

    Args:
        names: of the D inputs.
        importance: (D,).
        path: PNG file to write.
        low: (D,), lower ends of the uncertainty, with `high`.
        high: (D,), upper ends.
        kept: which inputs are selected: the others are drawn pale.
        title: headline.
        xlabel: what the bars measure.

    Example:
        >>> importance_bars(["age", "size"], [0.2, 1.0], "bars.png").name
        'bars.png'
    """
    values = np.asarray(importance, dtype=float)
    chosen = [True] * len(names) if kept is None else list(kept)
    style.check_same_length("importance_bars", names=names, importance=list(values), kept=chosen)
    if (low is None) != (high is None):
        raise ValueError("importance_bars: low and high must be given together.")
    order = np.argsort(-values, kind="stable")[:_MOST_BARS]
    figure = style.new_figure(6.4, 1.4 + 0.24 * len(order))
    axes = figure.add_subplot()
    places = np.arange(len(order))
    colors = [style.BLUE if chosen[j] else style.RULE for j in order]
    axes.barh(places, values[order], color=colors, height=0.72)
    if low is not None and high is not None:
        ends = np.asarray([low, high], dtype=float)[:, order]
        gaps = np.clip([values[order] - ends[0], ends[1] - values[order]], 0, None)
        axes.errorbar(values[order], places, xerr=gaps, fmt="none", ecolor=style.INK,
                      elinewidth=0.9, capsize=2)  # fmt: skip
    axes.set_yticks(places, [str(names[j]) for j in order])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    shown = f" (first {_MOST_BARS} of {len(names)})" if len(names) > _MOST_BARS else ""
    style.dress(axes, title=title + shown, xlabel=xlabel, ylabel="", grid="x")
    if kept is not None:
        note = f"{sum(chosen)} of {len(names)} kept"
        axes.text(0.98, 0.02, note, transform=axes.transAxes, ha="right", va="bottom",
                  fontsize=style.NOTE_SIZE, color=style.MUTED)  # fmt: skip
    return style.save(figure, path)


def error_path(
    shares: Sequence[float],
    mean: ArrayLike,
    path: str | Path,
    *,
    standard_error: ArrayLike | None = None,
    chosen: int | None = None,
    title: str = "Error against the inputs kept",
) -> Path:
    """Draw cross-validated error against the share of inputs kept, with the chosen share.

    Args:
        shares: of the inputs, ascending, P of them.
        mean: (P,), mean error over the folds.
        path: PNG file to write.
        standard_error: (P,), of the mean: drawn as a band.
        chosen: index of the choice.
        title: headline.

    Example:
        >>> error_path([0.1, 0.2, 0.5], [0.9, 0.4, 0.5], "path.png", chosen=1).name
        'path.png'
    """
    values = np.asarray(mean, dtype=float)
    style.check_same_length("error_path", shares=shares, mean=list(values))
    figure = style.new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    if standard_error is not None:
        half = np.asarray(standard_error, dtype=float)
        axes.fill_between(
            shares, values - half, values + half, color=style.BLUE, alpha=0.18, linewidth=0,
            label="± one standard error",
        )  # fmt: skip
    axes.plot(shares, values, color=style.BLUE, marker="o", markersize=4, label="mean over folds")
    best = int(values.argmin())
    axes.plot(shares[best], values[best], "D", color=style.GREEN, label="lowest error")
    if chosen is not None:
        axes.axvline(shares[chosen], color=style.VERMILION, linestyle="--", linewidth=1.2,
                     label=f"chosen: {shares[chosen]:g}")  # fmt: skip
    style.dress(axes, title=title, xlabel="share of inputs kept", ylabel="cross-validated error")
    style.legend(axes)
    return style.save(figure, path)
