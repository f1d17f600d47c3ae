"""The picture of a comparison."""

from bayesieve.assess.figures.style import BLUE, MUTED, VERMILION
from studies.comparison.page import Standing, comparison_figure

NAMES = ("b", "a", "c")


def panel_of(metric, means, errors=(0.002, 0.002, 0.002)):
    standing = Standing(metric, NAMES, means, errors, (1.0, 2.0, 3.0), None)
    return comparison_figure([standing], ["a", "b", "c"]).axes[0]


def points(panel):
    """Method -> place and colour of its point."""
    rows = [line for line in panel.lines if line.get_marker() == "o"]
    return {
        "abc"[round(line.get_ydata()[0])]: (line.get_xdata()[0], line.get_color()) for line in rows
    }


def test_errors_are_percent_and_the_best_and_its_equals_are_coloured():
    panel = panel_of("error", (0.010, 0.012, 0.030))
    assert points(panel) == {"b": (1.0, VERMILION), "a": (1.2, BLUE), "c": (3.0, MUTED)}
    assert [text.get_text() for text in panel.texts] == ["1.00", "1.20", "3.00"]
    assert panel.get_xlabel() == "%, lower is better"
    assert panel.get_xscale() == "linear"


def test_one_that_is_far_off_does_not_hide_the_others():
    panel = panel_of("NLL", (0.05, 0.06, 3.0), (0.04, 0.001, 0.1))
    assert panel.get_xscale() == "log"
    assert [text.get_text() for text in panel.texts] == ["0.050", "0.060", "3.000"]
    assert panel.get_xlabel() == "lower is better"


def test_more_can_be_better_and_nothing_is_log_at_zero():
    panel = panel_of("out-of-distribution AUROC", (0.9, 0.8, 0.0), (None, None, None))
    assert panel.get_xlabel() == "higher is better"
    assert panel.get_xscale() == "linear"


def test_panels_without_a_metric_stay_empty():
    standings = [
        Standing(str(i), NAMES, (1.0, 2.0, 3.0), (0.1,) * 3, (1, 2, 3), None) for i in range(4)
    ]
    figure = comparison_figure(standings, ["a", "b", "c"])
    assert [panel.axison for panel in figure.axes] == [True] * 4 + [False] * 2
