"""How posterior averages hold against the fast gradient sign attack ([Deng], figure 2).

The curves are drawn for networks that `aeb_images --attack` has just trained, so that no weights
need to be stored:

    python -m studies.aeb_images --full --tasks mnist --attack --figures figures

Paper, MNIST at strength 0.5: SGHMC-SA about 11 points above the plain networks, 1 above SGHMC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bayesieve.assess.figures.style import dress, legend, new_figure, percent_ticks, series_colors
from bayesieve.assess.figures.style import save as save_figure
from bayesieve.assess.robustness import Attacked, fgsm_curve
from bayesieve.core.posterior import Samples
from bayesieve.data.examples import Examples
from bayesieve.data.preprocessing import PixelScale
from studies.aeb_journal import Row

STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)

Curve = list[dict[str, float]]


def attack(
    posterior: Samples, test: Examples, scale: PixelScale, strengths: Sequence[float] = STRENGTHS
) -> Curve:
    """Accuracy, entropy, calibration error and nll of the average over all draws, per strength."""
    device = posterior.network.device
    attacked = Attacked(posterior, n_samples=len(posterior.draws), scale=scale)
    points = fgsm_curve(attacked, test.x.to(device), test.y.to(device), strengths)
    return [asdict(point) for point in points]


def draw_attacks(rows: Sequence[Row], folder: Path) -> list[Path]:
    """One figure for each task of which some method was attacked."""
    found: dict[str, dict[str, Curve]] = {}
    for row in rows:
        if "fgsm" in row:
            found.setdefault(row["task"], {})[row["setting"]["method"]] = row["fgsm"]
    return [draw_curves(curves, folder / f"aeb_{task}_fgsm.png", f"Fast gradient sign, {task}")
            for task, curves in found.items()]  # fmt: skip


def draw_curves(curves: Mapping[str, Curve], path: Path, title: str) -> Path:
    """Accuracy and predictive entropy against the strength of the attack, one line per method."""
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    for color, (method, curve) in zip(series_colors(len(curves)), curves.items(), strict=True):
        strength = [point["strength"] for point in curve]
        look: dict[str, Any] = {"color": color, "marker": "o", "markersize": 3.5, "label": method}
        left.plot(strength, [point["accuracy"] for point in curve], **look)
        right.plot(strength, [point["entropy"] for point in curve], **look)
    dress(left, title=title, xlabel="attack strength", ylabel="accuracy")
    dress(right, title="Uncertainty", xlabel="attack strength", ylabel="entropy in nats")
    percent_ticks(left.yaxis)
    legend(left)
    return save_figure(figure, path)
