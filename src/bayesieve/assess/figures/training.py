"""Curves over epochs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bayesieve.assess.figures.style import (
    dress,
    legend,
    new_figure,
    percent_ticks,
    plain_ticks,
    save,
    series_colors,
    series_dashes,
)

# (title, axis label, names of the quantities, whether they are fractions)
_PANELS = (
    ("Loss", "loss (nats per example)", ("loss", "nll"), False),
    ("Evidence bound", "nats over the data set", ("elbo", "kl", "log_lik"), False),
    ("Error", "share of examples", ("error",), True),
    ("RMSE", "root mean squared error", ("rmse",), False),
    ("Zero weights", "share of all weights", ("zeros", "sparsity"), True),
)
_PREFIXES = ("", "train_", "val_", "test_")
_WORDS = {
    "elbo": "ELBO",
    "kl": "KL",
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
        >>> import tempfile
        >>> history = [{"loss": 2.3, "val_error": 0.4}, {"loss": 0.9, "val_error": 0.2}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     training_curves(history, Path(folder) / "training.png").name
        'training.png'
    """
    panels = [(panel, names) for panel in _PANELS if (names := _present(history, panel[2]))]
    if not panels:
        raise ValueError("training_curves: history holds none of loss, elbo, kl, error, zeros.")
    epochs = [float(row.get("epoch", i)) for i, row in enumerate(history, start=1)]
    n_columns = 2 if len(panels) in (2, 4) else min(len(panels), 3)
    n_rows = -(-len(panels) // n_columns)
    figure = new_figure(4.0 * n_columns + 0.4, 3.2 * n_rows)
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, ((title, label, _, fraction), names) in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, epochs, history, names)
        alone = len(names) == 1
        title = _words(names[0]) if alone else title
        dress(axes, title=title[0].upper() + title[1:], xlabel="epoch", ylabel=label, grid="y")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
        plain_ticks(axes.yaxis)
        if fraction:
            axes.set_ylim(bottom=0)
            percent_ticks(axes.yaxis)
        if not alone:
            legend(axes)
    return save(figure, path)


def _present(history: Sequence[Mapping[str, float]], stems: Sequence[str]) -> list[str]:
    seen = {key for row in history for key in row}
    return [prefix + stem for stem in stems for prefix in _PREFIXES if prefix + stem in seen]


def _draw_panel(
    axes: Axes,
    epochs: Sequence[float],
    history: Sequence[Mapping[str, float]],
    names: Sequence[str],
) -> None:
    marker = "o" if len(epochs) <= 15 else ""
    looks = zip(series_colors(len(names)), series_dashes(len(names)), strict=True)
    for name, (color, dash) in zip(names, looks, strict=True):
        values = np.array([row.get(name, np.nan) for row in history], dtype=float)
        known = np.isfinite(values)
        x = np.asarray(epochs)[known]
        (line,) = axes.plot(x, values[known], color=color, lw=2, marker=marker, ms=4)
        line.set(linestyle=dash, label=_words(name))


def _words(name: str) -> str:
    for prefix, word in (("train_", "training "), ("val_", "validation "), ("test_", "test ")):
        if name.startswith(prefix):
            return word + _words(name.removeprefix(prefix))
    return _WORDS.get(name, name)
