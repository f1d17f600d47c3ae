"""Figures of inputs: their importance, how predictions depend on them, error against those kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bayesieve.assess.figures import style

_MOST_BARS = 40
_ACROSS = 3  # small pictures side by side


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


def dependence_curves(
    curves: Sequence[Mapping[str, Any]], path: str | Path, *, output: int = 0, ylabel: str = ""
) -> Path:
    """Draw how predictions depend on some columns: a curve with its band, or level by level.

    Args:
        curves: as `estimators.dependence.Dependence.as_json` makes them.
        path: PNG file to write.
        output: which target or class.
        ylabel: what is predicted.

    Example:
        >>> bands = {"mean": [[1.0], [2.0]], "low": [[0.5], [1.8]], "high": [[1.5], [2.2]]}
        >>> curve = {"column": "age", "kind": "number", "at": [30.0, 50.0], **bands}
        >>> dependence_curves([curve], "dependence.png").name
        'dependence.png'
    """
    if not curves:
        raise ValueError("dependence_curves: give at least one curve.")
    down = -(-len(curves) // _ACROSS)
    figure = style.new_figure(3.0 * min(len(curves), _ACROSS) + 0.6, 2.5 * down + 0.3)
    first = None
    for i, curve in enumerate(curves):
        axes = figure.add_subplot(down, min(len(curves), _ACROSS), i + 1, sharey=first)
        first = first or axes
        mean, low, high = (
            np.asarray(curve[name], dtype=float)[:, output] for name in ("mean", "low", "high")
        )
        known = [j for j, value in enumerate(curve["at"]) if value is not None]
        if curve["kind"] == "number" and len(known) > 1:
            at = np.asarray([curve["at"][j] for j in known], dtype=float)
            axes.fill_between(
                at, low[known], high[known], color=style.BLUE, alpha=0.18, linewidth=0
            )
            axes.plot(at, mean[known], color=style.BLUE)
        else:
            places = np.arange(len(mean))
            axes.errorbar(places, mean, yerr=np.clip([mean - low, high - mean], 0, None), fmt="o",
                          color=style.BLUE, markersize=4, elinewidth=0.9, capsize=2)  # fmt: skip
            words = ["(missing)" if value is None else str(value)[:12] for value in curve["at"]]
            axes.set_xticks(places, words, rotation=45, ha="right")
        style.dress(
            axes, title=str(curve["column"]), xlabel="", ylabel="" if i % _ACROSS else ylabel
        )
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
