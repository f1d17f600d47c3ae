"""The picture of a study's rows."""

import pytest

from studies.reproduce.picture import draw_rows


def shown(what, metric, ours, paper=None, target=None):
    return {"item": "table 1", "what": what, "metric": metric, "ours": ours, "paper": paper,
            "target": target}  # fmt: skip


@pytest.fixture
def figures(monkeypatch):
    """Figures as they would be saved."""
    kept = []
    monkeypatch.setattr(
        "studies.reproduce.picture.save", lambda figure, path: kept.append(figure) or path
    )
    return kept


def test_a_column_for_each_metric_and_a_line_for_each_row(tmp_path, figures):
    rows = [shown("a", "error", 2.0, paper=1.0), shown("a", "nll", 0.1),
            shown("b", "error", 3.0, target=100.0), shown("c", "error", None)]  # fmt: skip
    draw_rows(rows, tmp_path / "rows.png")
    error, nll = figures[0].axes
    assert [axes.get_title(loc="left") or axes.get_title() for axes in (error, nll)] == [
        "error", "nll",
    ]  # fmt: skip
    assert [label.get_text() for label in error.get_yticklabels()] == ["table 1: a", "table 1: b"]
    points = {tuple(map(tuple, line.get_xydata().tolist())) for line in error.lines}
    assert points == {((1.0, 0.0), (100.0, 1.0)), ((2.0, 0.0), (3.0, 1.0))}
    assert (error.get_xscale(), nll.get_xscale()) == ("log", "linear")


def test_long_names_keep_their_ends(tmp_path, figures):
    draw_rows([shown("begin " + 30 * "very " + "long end", "error", 1.0)], tmp_path / "rows.png")
    (label,) = figures[0].axes[0].get_yticklabels()
    text = label.get_text()
    assert text.startswith("table 1: begin")
    assert text.endswith("long end")
    assert len(text) <= 64


def test_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="no row has a number"):
        draw_rows([shown("a", "error", None)], tmp_path / "rows.png")
