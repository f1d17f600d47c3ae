"""The figures of the simulated experiments, after the paper's 1 to 10."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesieve.assess.figures.features import error_path, lines, scatter
from bayesieve.select.proportion import RULES

Rows = list[dict[str, Any]]


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """Figures after the paper's 1 to 10, as PNG files."""
    if "e1" in found:
        rows = found["e1"]
        shares = [r["share"] for r in rows]
        own = {"ψ₁": (shares, [r["psi_1"] for r in rows]),
               "ψ₂": (shares, [r["psi_2"] for r in rows])}  # fmt: skip
        lines(own, folder / "figure_1.png", title="Importance of two inputs",
              xlabel="share of variance of input 2", ylabel="ψ")  # fmt: skip
    if "e2" in found:
        for number, nonlinear in ((2, False), (3, True)):
            chosen = [r for r in found["e2"] if r["nonlinear"] == nonlinear]
            kind = "non-linear" if nonlinear else "linear"
            lines(_by(chosen, ("net", "d"), "alpha", "correlation"),
                  folder / f"figure_{number}.png", title=f"φ and effect sizes, {kind}",
                  xlabel="alpha", ylabel="correlation")  # fmt: skip
    if "e3" in found:
        for number, net in ((4, "20-10"), (5, "additive")):
            chosen = [r for r in found["e3"] if r["net"] == net]
            lines(_by(chosen, ("d",), "alpha", "accuracy"), folder / f"figure_{number}.png",
                  title=f"Inputs told rightly, {net}", xlabel="alpha", ylabel="accuracy",
                  level=0.9)  # fmt: skip
    if "e3-cv" in found:
        _draw_proportions(found["e3-cv"], folder)
    if "e4" in found:
        lines(_by(found["e4"], ("share",), "removed", "mse"), folder / "figure_9.png",
              title="Error against weights removed", xlabel="weights removed",
              ylabel="test error / variance", percent_x=True)  # fmt: skip
    if "fdr" in found:
        own_rates = {k: v for k, v in found["fdr"].items() if isinstance(v, dict)}
        scatter([v["fdr"] for v in own_rates.values()], [v["power"] for v in own_rates.values()],
                folder / "figure_10.png", title=f"Level {found['fdr']['level']}",
                xlabel="realised false-discovery rate", ylabel="power",
                groups=list(own_rates))  # fmt: skip


def _draw_proportions(rows: Rows, folder: Path) -> None:
    shares = [r["share"] for r in rows]
    rules = (*RULES, "fixed")
    lines({rule: (shares, [r[rule]["accuracy"] for r in rows]) for rule in rules},
          folder / "figure_6.png", title="Inputs told rightly", level=0.85,
          xlabel="π, share of inputs that matter", ylabel="accuracy")  # fmt: skip
    kept: dict[str, tuple[Any, Any]] = {
        rule: (shares, [r[rule]["proportion"] for r in rows]) for rule in RULES
    }
    lines({**kept, "truth": (shares, shares)}, folder / "figure_7.png",
          title="Share of inputs kept", xlabel="π", ylabel="share kept")  # fmt: skip
    compared = [r for r in rows if "mse" in r]
    at = [r["share"] for r in compared]
    names = list(compared[0]["mse"]) if compared else []
    lines({name: (at, [r["mse"][name] for r in compared]) for name in names},
          folder / "figure_8.png", title="Test error after selection", xlabel="π",
          ylabel="test error / variance")  # fmt: skip
    middle = rows[len(rows) // 2]
    title = f"One data set, π = {middle['share']}"
    error_path(middle["proportions"], middle["path"], folder / "path.png", title=title,
               xlabel="share of inputs kept")  # fmt: skip


def _by(rows: Rows, keys: tuple[str, ...], x: str, y: str) -> dict[str, tuple[Any, Any]]:
    series: dict[str, tuple[list[Any], list[Any]]] = {}
    for row in rows:
        label = ", ".join(f"{key} {row[key]}" for key in keys)
        own = series.setdefault(label, ([], []))
        own[0].append(row[x])
        own[1].append(row[y])
    return dict(series)
