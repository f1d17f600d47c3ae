"""One look for every figure: palette, axes, percentages, and a save that is all or nothing.

The palette is that of Okabe and Ito, distinct for readers with any color vision.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bayesieve.files import write_atomically

Dash: TypeAlias = str | tuple[float, tuple[float, ...]]

BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
ORANGE = "#E69F00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
INK = "#262626"
MUTED = "#6B6B6B"
RULE = "#C8C8C8"
GRID = "#ECECEC"
MARKERS = "os^DvP"  # one per colour of the palette, for readers in grey
DASHES: tuple[Dash, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.2, 1.4)),
    (0, (6, 2, 1.2, 2)),
    (0, (8, 2)),
    (0, (3, 1.5, 1, 1.5, 1, 1.5)),
)

Corner = Literal["best", "upper left", "lower right"]

DPI = 150
_MARKED = 15  # points of a line, up to which each has a marker
TITLE: dict[str, Any] = {"fontsize": 12.0, "fontweight": "bold", "color": INK}
LABEL_SIZE = 10.5
TICK_SIZE = 9.5
NOTE_SIZE = 9.5


def new_figure(width: float, height: float) -> Figure:
    """Return an empty white figure with an Agg canvas; sizes in inches.

    Example:
        >>> new_figure(6.4, 4.0).get_size_inches().tolist()
        [6.4, 4.0]
    """
    layout = ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09, wspace=0.03, hspace=0.03)
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def panel_grid(n: int, n_columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with n panels of this size, row by row; the rest of the last row is empty.

    Example:
        >>> figure, panels = panel_grid(3, 2, 4.0, 3.0)
        >>> len(panels), len(figure.axes)
        (3, 4)
    """
    n_rows = -(-n // n_columns)
    figure = new_figure(width * n_columns + 0.4, height * n_rows)
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes in panels[n:]:
        axes.set_axis_off()
    return figure, panels[:n]


def dress(axes: Axes, *, title: str, xlabel: str, ylabel: str, grid: str = "both") -> None:
    """Give axes the house look; `grid` is "x", "y", "both" or "none".

    Example:
        >>> axes = new_figure(2, 2).add_subplot()
        >>> dress(axes, title="Error", xlabel="epoch", ylabel="error", grid="y")
        >>> axes.get_title(loc="left")
        'Error'
    """
    axes.set_title(title, loc="left", pad=9, **TITLE)
    axes.set_xlabel(xlabel, fontsize=LABEL_SIZE, color=INK)
    axes.set_ylabel(ylabel, fontsize=LABEL_SIZE, color=INK)
    axes.tick_params(which="major", labelsize=TICK_SIZE, colors=MUTED, labelcolor=INK, length=3)
    axes.tick_params(which="minor", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
    axes.set_axisbelow(True)
    if grid in ("x", "both"):
        axes.xaxis.grid(True, color=GRID, linewidth=0.8)
    if grid in ("y", "both"):
        axes.yaxis.grid(True, color=GRID, linewidth=0.8)


def legend(axes: Axes, loc: Corner = "best", *, outside: bool = False) -> None:
    """Add a frameless legend in the house sizes, inside or to the right of the axes.

    Example:
        >>> axes = new_figure(2, 2).add_subplot()
        >>> _ = axes.plot([0, 1], label="loss")
        >>> legend(axes)
        >>> len(axes.get_legend().get_texts())
        1
    """
    box = axes.legend(
        loc=loc,
        bbox_to_anchor=(1.02, 1.0) if outside else None,
        fontsize=NOTE_SIZE,
        labelcolor=INK,
        handlelength=1.6,
        borderaxespad=0.3,
        framealpha=0.85,
        edgecolor="none",
        facecolor="white",
    )
    box.set_in_layout(outside)


def series_colors(n: int) -> list[str]:
    """Return n colours: the palette while it lasts, else an ordered ramp (deep networks).

    Example:
        >>> series_colors(2), len(set(series_colors(20)))
        (['#0072B2', '#D55E00'], 20)
    """
    if n <= len(PALETTE):
        return list(PALETTE[:n])
    ramp = colormaps["viridis"]
    return [to_hex(ramp(0.92 * i / (n - 1))) for i in range(n)]


def series_dashes(n: int) -> list[Dash]:
    """Return n line styles beside `series_colors`, so that lines are distinct in gray too.

    The ramp of many lines goes from dark to light, and stays solid.

    Example:
        >>> series_dashes(2), set(series_dashes(20))
        (['-', (0, (5, 2))], {'-'})
    """
    return list(DASHES[:n]) if n <= len(DASHES) else ["-"] * n


def draw_series(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    place: int,
    n: int,
    *,
    label: str,
    spread: Sequence[float] | None = None,
) -> None:
    """Draw series number `place` of n with its colour, dash and marker, and a band of its spread.

    Many points go without markers. The band is y ± spread.

    Example:
        >>> axes = new_figure(2, 2).add_subplot()
        >>> draw_series(axes, [0, 1], [2, 3], 1, 2, label="b", spread=[0.1, 0.1])
        >>> axes.lines[0].get_marker(), len(axes.collections)
        ('s', 1)
    """
    color, dash = series_colors(n)[place], series_dashes(n)[place]
    marker = MARKERS[place % len(MARKERS)] if len(x) <= _MARKED else ""
    axes.plot(x, y, color=color, ls=dash, lw=1.8, marker=marker, ms=4.5, label=label)
    if spread is not None:
        low, high = ([a + side * b for a, b in zip(y, spread, strict=True)] for side in (-1, 1))
        axes.fill_between(x, low, high, color=color, alpha=0.18, lw=0)


def percent(fraction: float, significant: int = 2) -> str:
    """Format a fraction as a percentage; above 90% the digits count from the missing rest.

    Example:
        >>> percent(0.5), percent(0.01), percent(0.00034), percent(0.9987), percent(0.0128, 3)
        ('50%', '1.0%', '0.034%', '99.87%', '1.28%')
    """
    value = 100 * fraction
    rest = 100 - value if 90 < value < 100 else abs(value)
    if rest < 1e-6 or rest == 100:
        return f"{value:.0f}%"
    decimals = significant - 1 - math.floor(math.log10(rest) + 1e-12)
    return f"{value:.{max(decimals, 0)}f}%"


def percent_ticks(axis: Axis) -> None:
    """Label an axis of fractions in percent.

    Example:
        >>> axes = new_figure(2, 2).add_subplot()
        >>> percent_ticks(axes.yaxis)
        >>> axes.yaxis.get_major_formatter()(0.125)
        '12.5%'
    """
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))


def plain_ticks(axis: Axis) -> None:
    """Label an axis with plain numbers, thousands set apart.

    Example:
        >>> axes = new_figure(2, 2).add_subplot()
        >>> plain_ticks(axes.yaxis)
        >>> axes.yaxis.get_major_formatter()(-40000.0)
        '−40,000'
    """

    def plain(value: float, _: object) -> str:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return text.replace("-", "\N{MINUS SIGN}")

    axis.set_major_formatter(FuncFormatter(plain))


def log_ticks(axis: Axis, low: float, high: float) -> None:
    """Put about five ticks at round numbers on a logarithmic axis from `low` to `high`.

    Example:
        >>> axes = new_figure(2, 2).add_subplot()
        >>> log_ticks(axes.yaxis, 0.01, 0.2)
        >>> [round(float(tick), 3) for tick in axes.yaxis.get_majorticklocs()]
        [0.01, 0.02, 0.05, 0.1, 0.2]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    per_decade = ((6, (1, 1.5, 2, 3, 5, 7)), (50, (1, 2, 5)), (1000, (1, 3)), (math.inf, (1,)))
    steps = next(steps for limit, steps in per_decade if high / low < limit)
    ticks = [step * 10.0**power for power in powers for step in steps]
    inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    axis.set_major_locator(FixedLocator(inside))
    axis.set_minor_locator(NullLocator())


def check_same_length(who: str, **columns: Sequence[object]) -> None:
    """Raise unless the named sequences have one length, at least 1.

    Example:
        >>> check_same_length("importance_bars", names=["a"], kept=[1, 2])
        Traceback (most recent call last):
        ValueError: importance_bars: names, kept must have one length >= 1, got 1, 2.
    """
    lengths = [len(column) for column in columns.values()]
    if len(set(lengths)) != 1 or lengths[0] < 1:
        got = ", ".join(map(str, lengths))
        raise ValueError(f"{who}: {', '.join(columns)} must have one length >= 1, got {got}.")


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure as PNG, all or nothing; return the path.

    Example:
        >>> path = save(new_figure(1, 1), "empty.png")
        >>> path.read_bytes()[1:4]
        b'PNG'
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"figure: path must end in .png, got '{path.name}'.")
    path.parent.mkdir(parents=True, exist_ok=True)
    # no software tag: the same figure gives the same bytes
    draw = partial(figure.savefig, format="png", dpi=DPI, metadata={"Software": None})
    return write_atomically(path, draw)
