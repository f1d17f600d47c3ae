"""How predictions hold up as attacks and shifts of the inputs grow."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bayesieve.assess.figures.style import (
    dress,
    legend,
    new_figure,
    percent_ticks,
    save,
    series_colors,
)

# (name of the quantity, title, label of its axis, whether it is a fraction)
_PANELS = (
    ("accuracy", "Accuracy", "right predictions", True),
    ("entropy", "Predictive entropy", "nats", False),
    ("ece", "Calibration error", "share", True),
)


def robustness_curves(
    curves: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]], path: str | Path
) -> Path:
    """Draw accuracy, entropy and calibration error against strength; one row per unit of strength.

    Args:
        curves: for each unit of strength (such as "pixels") and each label points with `strength`,
            `accuracy`, `entropy` and `ece`.
        path: PNG file to write.

    Example:
        >>> import tempfile
        >>> numbers = {"accuracy": 0.9, "entropy": 0.2, "ece": 0.01}
        >>> points = [{"strength": 0.0, **numbers}, {"strength": 0.1, **numbers}]
        >>> with tempfile.TemporaryDirectory() as at:
        ...     robustness_curves({"pixels": {"FGSM": points}}, Path(at, "attack.png")).name
        'attack.png'
    """
    if not any(curves.values()):
        raise ValueError("robustness_curves: at least one curve is needed, got none.")
    figure = new_figure(3.4 * len(_PANELS) + 0.4, 3.0 * len(curves))
    grid = figure.subplots(len(curves), len(_PANELS), squeeze=False)
    for row, (unit, own) in zip(grid, curves.items(), strict=True):
        colors = series_colors(len(own))
        for axes, (key, title, label, fraction) in zip(row, _PANELS, strict=True):
            highest = 1.0 if key == "accuracy" else 1e-3
            for (name, points), color in zip(own.items(), colors, strict=True):
                x, y = ([point[k] for point in points] for k in ("strength", key))
                axes.plot(x, y, color=color, lw=2, marker="o", ms=4, label=name)
                highest = max(highest, *y)
            dress(axes, title=title, xlabel=unit, ylabel=label, grid="y")
            axes.set_ylim(0, 1.05 * highest)
            if fraction:
                percent_ticks(axes.yaxis)
        legend(row[0])
    return save(figure, path)
