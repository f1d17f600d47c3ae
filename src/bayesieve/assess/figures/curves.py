"""Curves over epochs or strengths: training, attacks and shifts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bayesieve.assess.figures import style

Line = tuple[Sequence[float], Sequence[float]]


class _Panel(NamedTuple):
    """Quantities that share an axis."""

    title: str
    label: str
    names: tuple[str, ...]
    fraction: bool


_TRAINING = (
    _Panel("Loss", "loss (nats per example)", ("loss", "nll"), False),
    _Panel("Evidence bound", "nats over the data set", ("elbo", "log_lik"), False),
    _Panel("Distance from the prior", "nats over the data set", ("kl",), False),
    _Panel("Error", "share of examples", ("error",), True),
    _Panel("RMSE", "root mean squared error", ("rmse",), False),
    _Panel("Zero weights", "share of all weights", ("zeros", "sparsity"), True),
)
_ROBUSTNESS = (
    _Panel("Accuracy", "right predictions", ("accuracy",), True),
    _Panel("Predictive entropy", "nats", ("entropy",), False),
    _Panel("Calibration error", "share", ("ece",), True),
)
_PREFIXES = {"": "", "train_": "training ", "val_": "validation ", "test_": "test "}
_WORDS = {
    "elbo": "ELBO",
    "kl": "KL from the prior",
    "log_lik": "log-likelihood",
    "nll": "NLL",
    "rmse": "RMSE",
    "zeros": "zero weights",
}


def training_curves(history: Sequence[Mapping[str, float]], path: str | Path) -> Path:
    """Draw what the history holds, one panel per kind of quantity.

    Known names are loss, nll, elbo, kl, log_lik, error, rmse, zeros and sparsity, each also with
    the prefix train_, val_ or test_; others are left out.

    Args:
        history: one dict per epoch; `epoch` gives the position, else 1, 2, ...
        path: PNG file to write.

    Example:
        >>> history = [{"loss": 2.3, "val_error": 0.4}, {"loss": 0.9, "val_error": 0.2}]
        >>> training_curves(history, "training.png").name
        'training.png'
    """
    seen = {key for row in history for key in row}
    panels = []
    for panel in _TRAINING:
        names = [p + stem for stem in panel.names for p in _PREFIXES if p + stem in seen]
        if names:
            panels.append((panel, names))
    if not panels:
        raise ValueError("training_curves: history holds none of loss, elbo, kl, error, zeros.")
    epochs = np.array([float(row.get("epoch", i)) for i, row in enumerate(history, start=1)])
    n_columns = 2 if len(panels) in (2, 4) else min(len(panels), 3)
    figure, grid = style.panel_grid(len(panels), n_columns, 4.0, 3.2)
    for axes, (panel, names) in zip(grid, panels, strict=True):
        lines = {}
        for name in names:
            values = np.array([row.get(name, np.nan) for row in history], dtype=float)
            known = np.isfinite(values)
            lines[_words(name)] = (epochs[known].tolist(), values[known].tolist())
        alone = len(names) == 1
        title = _words(names[0]) if alone else panel.title
        panel = panel._replace(title=title[0].upper() + title[1:])
        style.plain_ticks(axes.yaxis)
        _draw(axes, panel, lines, "epoch")
        if panel.fraction:
            axes.set_ylim(bottom=0)
        if not alone:
            style.legend(axes)
    return style.save(figure, path)


def robustness_curves(
    curves: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]], path: str | Path
) -> Path:
    """Draw accuracy, entropy and calibration error against strength; one row per unit of strength.

    Args:
        curves: for each unit of strength (such as "pixels") and each label points with `strength`,
            `accuracy`, `entropy` and `ece`.
        path: PNG file to write.

    Example:
        >>> numbers = {"accuracy": 0.9, "entropy": 0.2, "ece": 0.01}
        >>> points = [{"strength": 0.0, **numbers}, {"strength": 0.1, **numbers}]
        >>> robustness_curves({"pixels": {"FGSM": points}}, "attack.png").name
        'attack.png'
    """
    if not any(curves.values()):
        raise ValueError("robustness_curves: at least one curve is needed, got none.")
    figure = style.new_figure(3.4 * len(_ROBUSTNESS) + 0.4, 3.0 * len(curves))
    grid = figure.subplots(len(curves), len(_ROBUSTNESS), squeeze=False)
    for row, (unit, attacks) in zip(grid, curves.items(), strict=True):
        for axes, panel in zip(row, _ROBUSTNESS, strict=True):
            key = panel.names[0]
            lines = {
                name: ([p["strength"] for p in points], [p[key] for p in points])
                for name, points in attacks.items()
            }
            _draw(axes, panel, lines, unit)
            highest = max(value for _, values in lines.values() for value in values)
            axes.set_ylim(0, 1.05 * max(highest, 1.0 if key == "accuracy" else 1e-3))
        style.legend(row[0])
    return style.save(figure, path)


def _draw(axes: Axes, panel: _Panel, lines: Mapping[str, Line], xlabel: str) -> None:
    """Draw labelled lines over an axis; an empty line is left out."""
    for i, (label, (x, y)) in enumerate(lines.items()):
        if x:
            style.draw_series(axes, x, y, i, len(lines), label=label)
    style.dress(axes, title=panel.title, xlabel=xlabel, ylabel=panel.label, grid="y")
    if xlabel == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    if panel.fraction:
        style.percent_ticks(axes.yaxis)


def _words(name: str) -> str:
    for prefix, word in _PREFIXES.items():
        if prefix and name.startswith(prefix):
            return word + _words(name.removeprefix(prefix))
    return _WORDS.get(name, name)
