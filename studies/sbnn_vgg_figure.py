"""Error of the VGG-like network against its zeros, beside the paper's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.assess.figures.style import (
    BLUE,
    MUTED,
    VERMILION,
    dress,
    legend,
    new_figure,
    percent_ticks,
    save,
)
from studies.sbnn_published import VGG


def draw_errors(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Error against the weights left; the dense networks as lines, the paper's pair in another hue.

    Args:
        rows: of the study, at least one of them sparse.
        path: PNG to write.
    """
    sparse = sorted((100 - row["setting"]["zeros"], row["error"] / 100)
                    for row in rows if row["setting"]["zeros"])  # fmt: skip
    if not sparse:
        raise ValueError("draw_errors: no sparse network among the rows.")
    figure = new_figure(6.4, 3.8)
    axes = figure.add_subplot()
    axes.plot(*zip(*sparse, strict=True), color=BLUE, marker="o", markersize=5, label="sparse")
    for row in rows:
        if row["setting"]["zeros"] == 0:
            axes.axhline(row["error"] / 100, color=BLUE, linewidth=1, linestyle="--",
                         label=f"dense, {row['setting']['epochs']} epochs")  # fmt: skip
    axes.plot([1.5], [VGG[98.5] / 100], color=VERMILION, marker="x", linestyle="none",
              label="the paper's sparse network")  # fmt: skip
    axes.axhline(VGG[0.0] / 100, color=MUTED, linewidth=1, linestyle=":",
                 label="the paper's dense network")  # fmt: skip
    axes.set_xscale("log")
    shares = sorted({1.5, *(left for left, _ in sparse)})
    axes.set_xticks(shares, [f"{share:g} %" for share in shares])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    percent_ticks(axes.yaxis)
    dress(axes, title="VGG-like network, CIFAR-10 (JPEG copy)", xlabel="parameters left",
          ylabel="test error")  # fmt: skip
    legend(axes, "lower right")
    return save(figure, path)
