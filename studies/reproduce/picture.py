"""One picture of a study's rows: ours as dots, the paper's as crosses, one column per metric."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.assess.figures.style import BLUE, VERMILION, dress, new_figure, save

Shown = Mapping[str, Any]  # one object of `table.listing`
_WIDE = 20  # largest number over smallest from which an axis is logarithmic
_LABEL = 62  # characters


def draw_rows(rows: Sequence[Shown], path: Path) -> Path:
    """Draw every row that has a number of ours.

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
    for axes, metric in zip(
        figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0], metrics, strict=True
    ):
        _column(axes, metric, [row for row in measured if row["metric"] == metric], names)
    first = figure.axes[0]
    first.set_yticks(range(len(names)), names)
    first.set_ylim(len(names) - 0.5, -0.5)
    return save(figure, path)


def _column(axes: Any, metric: str, rows: Sequence[Shown], names: Sequence[str]) -> None:
    """One metric: a dot for each of our numbers, a cross for what it is compared with."""
    aims = [_aim(row) for row in rows]
    heights = [names.index(_label(row)) for row in rows]
    known = [(aim, y) for aim, y in zip(aims, heights, strict=True) if aim is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "x", color=VERMILION)
    axes.plot([row["ours"] for row in rows], heights, "o", color=BLUE, markersize=5)
    values = [*(row["ours"] for row in rows), *(aim for aim, _ in known)]
    if min(values) > 0 and max(values) > _WIDE * min(values):
        axes.set_xscale("log")
    marks = "\u25cf ours, \u00d7 paper or target" if known else "\u25cf ours"
    dress(axes, title=metric, xlabel=marks, ylabel="")


def _aim(row: Shown) -> float | None:
    aim: float | None = row["target"] if row["paper"] is None else row["paper"]
    return aim


def _label(row: Shown) -> str:
    """Item and row, shortened in the middle so that what tells rows apart stays."""
    text = f"{row['item']}: {row['what']}"
    if len(text) <= _LABEL:
        return text
    return f"{text[: _LABEL // 2 - 1]} … {text[-_LABEL // 2 + 2 :]}"
