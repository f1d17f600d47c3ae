"""The headline of a run as one picture of 1200x630 pixels, as links and slides show it."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bayesieve.assess.figures.style import (
    BLUE,
    DPI,
    GREEN,
    INK,
    MUTED,
    RULE,
    SKY,
    VERMILION,
    log_ticks,
    percent,
    save,
)  # fmt: skip

_WIDTH, _HEIGHT = 1200 / DPI, 630 / DPI
_MARKS = {
    "pass": ("pass", GREEN),
    "fail": ("fail", VERMILION),
    "within chance": ("within chance", INK),
}
Point = tuple[float, float, bool]  # share of weights kept, error, whether within chance


def headline_card(
    path: Path | str,
    *,
    title: str,
    sentence: str,
    checks: Sequence[tuple[str, str]],
    numbers: Sequence[tuple[str, str]],
    curve: Sequence[Point],
    metric: Literal["test error", "RMSE"],
) -> Path:
    """Draw title, sentence, checks, numbers and the error against what is kept.

    Args:
        path: PNG file to write.
        title: of the run, in words.
        sentence: how good it is.
        checks: question and verdict of each.
        numbers: name and value of each, at most four.
        curve: share of the weights kept, error, and whether that is within chance of the start.
        metric: what the error is.

    Example:
        >>> path = headline_card("card.png", title="Digits: 90 % removed", sentence="It errs.",
        ...     checks=[("As accurate?", "pass")], numbers=[("size", "5.3 kB")],
        ...     curve=[(0.1, 0.02, True), (0.02, 0.5, False)], metric="test error")
        >>> path.read_bytes()[16:24].hex()  # width and height of the picture
        '000004b000000276'
    """
    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    lines = textwrap.wrap(title, 52)[:2]
    top = 0.91
    for line in lines:
        figure.text(0.045, top, line, fontsize=17, fontweight="bold", color=INK, va="center")
        top -= 0.085
    for line in textwrap.wrap(sentence, 88)[:2]:
        figure.text(0.045, top, line, fontsize=10, color=INK, va="center")
        top -= 0.055
    y = 0.63
    for question, verdict in checks[:5]:
        word, color = _MARKS.get(verdict, (verdict, MUTED))
        figure.text(0.045, y, question, fontsize=9.5, color=MUTED, va="center")
        figure.text(
            0.487, y, word, fontsize=9.5, fontweight="bold", color=color, va="center", ha="right"
        )
        y -= 0.062
    for i, (name, value) in enumerate(numbers[:4]):
        x = 0.045 + 0.185 * (i % 2)
        at = 0.235 - 0.125 * (i // 2)
        figure.text(x, at, value, fontsize=15, fontweight="bold", color=INK, va="center")
        figure.text(x, at - 0.052, name, fontsize=8.5, color=MUTED, va="center")
    _draw_curve(figure, curve, metric)
    figure.text(0.955, 0.045, "bayesieve", fontsize=9, color=MUTED, ha="right", va="center")
    return save(figure, path)


def _draw_curve(figure: Figure, curve: Sequence[Point], metric: str) -> None:
    """The error against the share of weights that is kept, on the right half."""
    axes = figure.add_axes((0.575, 0.16, 0.38, 0.46))
    kept, errors = [point[0] for point in curve], [point[1] for point in curve]
    safe = [point[0] for point in curve if point[2]]
    axes.plot(kept, errors, "o-", color=BLUE, markersize=3.5, linewidth=1.8)
    if safe:
        axes.axvspan(max(safe) * 1.03, min(safe) * 0.97, color=SKY, alpha=0.18, linewidth=0)
    axes.plot(kept[:1], errors[:1], "o", color=BLUE, markersize=8, markeredgecolor="white")
    axes.set_xscale("log")
    axes.set_xlim(max(kept) * 1.08, min(kept) * 0.92)
    if min(kept) < max(kept):
        log_ticks(axes.xaxis, min(kept), max(kept))
    share = FuncFormatter(lambda value, _: percent(value))
    axes.xaxis.set_major_formatter(share)
    if metric == "test error":
        axes.yaxis.set_major_formatter(share)
    axes.set_ylim(0, 1.08 * max(errors) or 1)
    axes.set_title(
        f"{metric} against parameters kept (log scale)", loc="left", fontsize=9, color=MUTED
    )
    axes.tick_params(labelsize=8, colors=MUTED)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
