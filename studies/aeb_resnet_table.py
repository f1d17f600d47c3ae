"""What the ResNet-20 study reports, beside [Deng], table 3.

The paper's accuracies are the best on test images after the target sparsity was reached.
"""

from collections.abc import Sequence
from pathlib import Path

from bayesieve.assess.figures.style import (
    MUTED,
    dress,
    legend,
    new_figure,
    percent_ticks,
    series_colors,
)
from bayesieve.assess.figures.style import save as save_figure
from studies.aeb_journal import Row, table

PAPER = {
    "dense": {0: 93.90},
    "a-sghmc": {30: 94.07, 50: 94.16, 70: 93.16, 90: 90.59},
    "a-sghmc-em": {30: 94.18, 50: 94.19, 70: 93.41, 90: 91.26},
    "sghmc-sa": {30: 94.13, 50: 94.11, 70: 93.52, 90: 91.45},
    "a-sghmc-sa": {30: 94.23, 50: 94.27, 70: 93.74, 90: 91.68},
}


def shown(rows: Sequence[Row]) -> str:
    """The table beside the paper's numbers."""
    lines = [["method", "zeros %", "lr", "v0", "v1", "omega", "single %", "average %", "paper %"]]
    for row in rows:
        own = row["setting"]
        lines.append(
            [
                own["method"], f"{100 * row['zeros']:.2f}", f"{own['lr']:g}",
                f"{own['spike_scale']:g}", f"{own['slab_var']:g}", f"{own['omega']:g}",
                f"{row['single']:.2f}", f"{row['average']:.2f}",
                "" if row["paper"] is None else f"{row['paper']:.2f}",
            ]
        )  # fmt: skip
    return table(lines)


def draw_table(rows: Sequence[Row], path: Path) -> Path:
    """Accuracy of each method against the fraction of zeros, the dense network as a line."""
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    sparse = [row for row in rows if row["setting"]["method"] != "dense"]
    methods = list(dict.fromkeys(row["setting"]["method"] for row in sparse))
    for color, method in zip(series_colors(len(methods)), methods, strict=True):
        own = sorted(
            (row["zeros"], row["average"] / 100)
            for row in sparse
            if row["setting"]["method"] == method
        )
        axes.plot(*zip(*own, strict=True), color=color, marker="o", markersize=4, label=method)
    for row in rows:
        if row["setting"]["method"] == "dense":
            axes.axhline(row["average"] / 100, color=MUTED, linewidth=1, label="dense")
    title = "ResNet-20, CIFAR-10"
    dress(axes, title=title, xlabel="zeros", ylabel="accuracy of the average")
    percent_ticks(axes.xaxis)
    percent_ticks(axes.yaxis)
    legend(axes)
    return save_figure(figure, path)
