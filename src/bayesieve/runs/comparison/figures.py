"""One picture of a comparison: every method in every metric, with standard errors."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bayesieve.assess.figures.style import (
    BLUE,
    INK,
    MUTED,
    NOTE_SIZE,
    VERMILION,
    dress,
    new_figure,
)
from bayesieve.runs.comparison.standings import HIGHER_IS_BETTER, Standing

_COLUMNS = 3
_LOG_RANGE = 20  # a panel whose values span more than this factor gets a log scale
_KEY = ((VERMILION, "best"), (BLUE, "within two standard errors of it"), (MUTED, "others"))


def comparison_figure(standings: Sequence[Standing], names: Sequence[str]) -> Figure:
    """Means and two standard errors; the best and those tied with it are coloured.

    Args:
        standings: one panel each.
        names: methods from top to bottom, the same in every panel.
    """
    n_rows = -(-len(standings) // _COLUMNS)
    columns = min(_COLUMNS, len(standings))
    figure = new_figure(4.3 * columns, (1.2 + 0.32 * len(names)) * n_rows + 0.3)
    panels = figure.subplots(n_rows, columns, squeeze=False)
    for index, panel in enumerate(panels.flat):
        if index < len(standings):
            _draw(panel, standings[index], names)
            panel.set_yticks(
                range(len(names)), names if index % columns == 0 else [""] * len(names)
            )
        else:
            panel.set_visible(False)
    marks = [Line2D([], [], color=color, marker="o", linestyle="") for color, _ in _KEY]
    figure.legend(
        marks,
        [words for _, words in _KEY],
        loc="outside lower center",
        ncols=len(_KEY),
        frameon=False,
        fontsize=NOTE_SIZE,
    )
    return figure


def _draw(panel: Axes, standing: Standing, names: Sequence[str]) -> None:
    """One metric: points with whiskers, and the means in figures at the right edge."""
    better = "higher" if standing.metric in HIGHER_IS_BETTER else "lower"
    percent = standing.metric.startswith(("error", "ECE"))
    unit = 100.0 if percent else 1.0
    xlabel = f"{'%, ' if percent else ''}{better} is better"
    dress(panel, title=standing.metric, xlabel=xlabel, ylabel="", grid="x")
    low, high = unit * min(standing.means), unit * max(standing.means)
    wide = low > 0 and high > _LOG_RANGE * low
    if wide:
        panel.set_xscale("log")
    tied = standing.tied()
    for name, mean, error in zip(standing.names, standing.means, standing.errors, strict=True):
        color = VERMILION if name == standing.names[0] else BLUE if name in tied else MUTED
        row, at, reach = names.index(name), unit * mean, 2 * unit * (error or 0.0)
        down = min(reach, at * 0.999) if wide else reach  # a log scale has no room below 0
        panel.errorbar(at, row, xerr=[[down], [reach]], fmt="o", color=color, capsize=2)
        panel.annotate(
            f"{at:.2f}" if percent else f"{at:.3f}",
            (1.02, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=NOTE_SIZE,
            color=color if color != MUTED else INK,
        )
    panel.xaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5), numticks=6) if wide else MaxNLocator(4)
    )
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_ylim(len(names) - 0.5, -0.5)
