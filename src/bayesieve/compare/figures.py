"""One picture of a comparison: every method in every metric, with standard errors."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from bayesieve.assess.figures.style import BLUE, MUTED, VERMILION, dress, new_figure
from bayesieve.compare.ranking import Standing

_COLUMNS = 3


def comparison_figure(found: Sequence[Standing], names: Sequence[str]) -> Figure:
    """Means and two standard errors; the best and those tied with it are coloured.

    Args:
        found: one panel each.
        names: methods from top to bottom, the same in every panel.
    """
    n_rows = -(-len(found) // _COLUMNS)
    columns = min(_COLUMNS, len(found))
    figure = new_figure(4.1 * columns, (0.9 + 0.32 * len(names)) * n_rows)
    panels = figure.subplots(n_rows, columns, squeeze=False)
    for index, panel in enumerate(panels.flat):
        if index >= len(found):
            panel.set_visible(False)
            continue
        own = found[index]
        dress(panel, title=own.metric, xlabel="", ylabel="", grid="x")
        tied = own.tied()
        for name, mean, error in zip(own.names, own.means, own.errors, strict=True):
            color = VERMILION if name == own.names[0] else BLUE if name in tied else MUTED
            panel.errorbar(
                mean, names.index(name), xerr=2 * (error or 0.0), fmt="o", color=color, capsize=2
            )
        panel.set_yticks(range(len(names)), names if index % columns == 0 else [""] * len(names))
        panel.set_ylim(len(names) - 0.5, -0.5)
    return figure
