"""What the linear regression study reports, beside [Deng], table 1.

The paper scores the posterior mean on 50 test points; the noise floor is an MSE of 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesieve.assess.figures.style import dress, legend, log_ticks, new_figure, series_colors
from bayesieve.assess.figures.style import save as save_figure
from studies.aeb_journal import table

SETTINGS = ((0.01, 2.0), (0.1, 2.0), (0.01, 1.0), (0.1, 1.0))  # (v₀, σ)
# MAE and MSE in the order of SETTINGS; "paper" and "sa" are SGLD-SA
_SA = ((1.89, 5.56), (1.72, 5.64), (1.48, 3.51), (1.54, 4.42))
PAPER = {
    "sa": _SA,
    "paper": _SA,
    "em": ((3.49, 19.31), (2.23, 8.22), (2.23, 19.28), (2.07, 6.94)),
    "sgld": ((15.85, 416.39), (15.85, 416.39), (11.86, 229.38), (7.72, 88.90)),
}


@dataclass(frozen=True)
class Row:
    """One chain: its setting and how its posterior mean does."""

    data_seed: int
    method: str
    spike_scale: float
    init_scale: float
    mse: float
    mae: float
    mse_50: float
    selected: int
    true_selected: int
    average_selected: int
    average_true_selected: int
    scale: float
    slab_prob: float


def summary(rows: list[Row]) -> list[dict[str, Any]]:
    """Means over data sets of each method and setting."""
    lines: list[dict[str, Any]] = []
    cells = dict.fromkeys((row.method, row.spike_scale, row.init_scale) for row in rows)
    for method, spike, scale in cells:
        own = [
            row
            for row in rows
            if (row.method, row.spike_scale, row.init_scale) == (method, spike, scale)
        ]
        lines.append(
            {
                "method": method,
                "spike_scale": spike,
                "init_scale": scale,
                "mse": round(sum(row.mse for row in own) / len(own), 3),
                "mse_worst": round(max(row.mse for row in own), 3),
                "mse_50": round(sum(row.mse_50 for row in own) / len(own), 3),
                "mae": round(sum(row.mae for row in own) / len(own), 3),
                "all_three_selected": sum(row.true_selected == 3 for row in own),
                "exact_support": sum(row.true_selected == row.selected == 3 for row in own),
                "exact_support_by_average": sum(
                    row.average_true_selected == row.average_selected == 3 for row in own
                ),
                "data_sets": len(own),
            }
        )
    return lines


def shown(lines: Sequence[dict[str, Any]]) -> str:
    """A table beside the paper's MSE on 50 points."""
    head = ["method", "v0", "sigma", "MSE", "worst", "MSE on 50", "paper", "all three", "exactly",
            "by average"]  # fmt: skip
    text = [head]
    for line in lines:
        place = SETTINGS.index((line["spike_scale"], line["init_scale"]))
        counts = [f"{line[name]}/{line['data_sets']}"
                  for name in ("all_three_selected", "exact_support",
                               "exact_support_by_average")]  # fmt: skip
        errors = [f"{line[name]:.2f}" for name in ("mse", "mse_worst", "mse_50")]
        text.append([line["method"], f"{line['spike_scale']:g}", f"{line['init_scale']:g}",
                     *errors, f"{PAPER[line['method']][place][1]:.2f}", *counts])  # fmt: skip
    return table(text)


def draw(rows: Sequence[Row], path: Path) -> Path:
    """Test MSE of every data set by setting, one colour per method."""
    figure = new_figure(7.2, 4.0)
    axes = figure.add_subplot()
    methods = list(dict.fromkeys(row.method for row in rows))
    for i, (color, method) in enumerate(zip(series_colors(len(methods)), methods, strict=True)):
        own = [row for row in rows if row.method == method]
        place = [SETTINGS.index((row.spike_scale, row.init_scale)) for row in own]
        shift = 0.16 * (i - (len(methods) - 1) / 2)
        axes.plot([at + shift for at in place], [row.mse for row in own], "o", color=color,
                  markersize=4, alpha=0.7, label=method)  # fmt: skip
    axes.set_yscale("log")
    log_ticks(axes.yaxis, min(row.mse for row in rows), max(row.mse for row in rows))
    axes.set_xticks(range(4), [f"v0 = {spike:g}, σ = {scale:g}" for spike, scale in SETTINGS])
    dress(axes, title="Linear regression, p = 1000, n = 100", xlabel="", ylabel="test MSE",
          grid="y")  # fmt: skip
    legend(axes)
    return save_figure(figure, path)
