"""Figures of feature selection: importance of inputs, error against inputs kept."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from bayesieve.assess.figures.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    NOTE_SIZE,
    RULE,
    VERMILION,
    check_same_length,
    dress,
    legend,
    new_figure,
    save,
)

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
    check_same_length("importance_bars", names=names, importance=list(values), kept=chosen)
    if (low is None) != (high is None):
        raise ValueError("importance_bars: low and high must be given together.")
    order = np.argsort(-values, kind="stable")[:_MOST_BARS]
    figure = new_figure(6.4, 1.4 + 0.24 * len(order))
    axes = figure.add_subplot()
    places = np.arange(len(order))
    colors = [BLUE if chosen[j] else RULE for j in order]
    axes.barh(places, values[order], color=colors, height=0.72)
    if low is not None and high is not None:
        ends = np.asarray([low, high], dtype=float)[:, order]
        gaps = np.clip([values[order] - ends[0], ends[1] - values[order]], 0, None)
        axes.errorbar(
            values[order], places, xerr=gaps, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2
        )
    axes.set_yticks(places, [str(names[j]) for j in order])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    shown = f" (first {_MOST_BARS} of {len(names)})" if len(names) > _MOST_BARS else ""
    dress(axes, title=title + shown, xlabel=xlabel, ylabel="", grid="x")
    if kept is not None:
        note = f"{sum(chosen)} of {len(names)} kept"
        axes.text(0.98, 0.02, note, transform=axes.transAxes, ha="right", va="bottom",
                  fontsize=NOTE_SIZE, color=MUTED)  # fmt: skip
    return save(figure, path)


def error_path(
    counts: Sequence[float],
    mean: ArrayLike,
    path: str | Path,
    *,
    standard_error: ArrayLike | None = None,
    chosen: int | None = None,
    title: str = "Error against the inputs kept",
    xlabel: str = "inputs kept",
    ylabel: str = "cross-validated error",
) -> Path:
    """Draw error against the number of inputs kept, with the number that was chosen.

    Args:
        counts: numbers (or shares) of inputs, ascending, P of them.
        mean: (P,), mean error over the folds.
        path: PNG file to write.
        standard_error: (P,), of the mean: drawn as a band.
        chosen: index of the choice.
        title: headline.
        xlabel: what `counts` are.
        ylabel: what the error is.

    Example:
        >>> error_path([1, 2, 3], [0.9, 0.4, 0.5], "path.png", chosen=1).name
        'path.png'
    """
    values = np.asarray(mean, dtype=float)
    check_same_length("error_path", counts=counts, mean=list(values))
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    if standard_error is not None:
        half = np.asarray(standard_error, dtype=float)
        axes.fill_between(
            counts, values - half, values + half, color=BLUE, alpha=0.18, linewidth=0,
            label="± one standard error",
        )  # fmt: skip
    axes.plot(counts, values, color=BLUE, marker="o", markersize=4, label="mean over folds")
    best = int(values.argmin())
    axes.plot(counts[best], values[best], "D", color=GREEN, label="lowest error")
    if chosen is not None:
        axes.axvline(counts[chosen], color=VERMILION, linestyle="--", linewidth=1.2,
                     label=f"chosen: {counts[chosen]:g}")  # fmt: skip
    dress(axes, title=title, xlabel=xlabel, ylabel=ylabel)
    legend(axes)
    return save(figure, path)
