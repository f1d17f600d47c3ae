"""Figures that only studies draw: what is drawn where, and refusals."""

import numpy as np
import pytest
from matplotlib import image

from studies.figures import draw_rows, lines, method_curves, weight_cdfs, weight_maps

CURVES = {
    "BMR": [{"epoch": 1, "accuracy": 0.5, "pruned": 0.0}, {"epoch": 2, "accuracy": 0.6}],
    "MAP": [{"epoch": 1, "accuracy": 0.7}],
}


def shown(what, metric, ours, paper=None, target=None):
    return {"item": "table 1", "what": what, "metric": metric, "ours": ours, "paper": paper,
            "target": target}  # fmt: skip


@pytest.fixture
def figures(monkeypatch):
    """Figures as they would be saved."""
    kept = []
    monkeypatch.setattr("studies.figures.save", lambda figure, path: kept.append(figure) or path)
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


def size(path):
    height, width = image.imread(path).shape[:2]
    return width, height


def test_one_panel_per_quantity_that_occurs(tmp_path):
    both = size(method_curves(CURVES, tmp_path / "both.png"))
    one = {"MAP": CURVES["MAP"]}
    assert both[0] > 1.5 * size(method_curves(one, tmp_path / "one.png"))[0]


def test_curves_without_a_known_quantity_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^method_curves: no run holds accuracy"):
        method_curves({"MAP": [{"epoch": 1, "loss": 3.0}]}, tmp_path / "x.png")


def test_layers_stand_four_in_a_row(tmp_path):
    layers = {f"fc{i}": {"BMR": [0.0, 0.1, 0.3]} for i in range(5)}
    four = dict(list(layers.items())[:4])
    wide = size(weight_cdfs(four, tmp_path / "four.png"))
    assert size(weight_cdfs(layers, tmp_path / "five.png")) == (wide[0], 2 * wide[1])


def test_no_layers_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^weight_cdfs: at least one layer"):
        weight_cdfs({}, tmp_path / "x.png")


def test_pruned_weights_are_white_and_signs_have_colours(tmp_path):
    path = weight_maps({"BMR": [[[1.0, 0.0, -1.0]]]}, tmp_path / "maps.png")
    pixels = image.imread(path)[..., :3]
    red = (pixels[..., 0] > 2 * pixels[..., 2]) & (pixels[..., 0] > 0.3)
    blue = (pixels[..., 2] > 2 * pixels[..., 0]) & (pixels[..., 2] > 0.3)
    assert red.any()
    assert blue.any()
    assert red.sum() == pytest.approx(blue.sum(), rel=0.2)


@pytest.mark.parametrize("maps", [{}, {"BMR": np.zeros((2, 3))}, {"BMR": np.zeros((0, 2, 2))}])
def test_maps_need_three_axes(tmp_path, maps):
    with pytest.raises(ValueError, match=r"^weight_maps: every map must have shape \(units"):
        weight_maps(maps, tmp_path / "x.png")


def test_lines_are_written_and_need_a_series(tmp_path):
    texts = {"title": "t", "xlabel": "x", "ylabel": "y"}
    path = lines({"a": ([0, 1], [1, 2])}, tmp_path / "a.png", level=1.5, percent_x=True, **texts)
    assert path.read_bytes()[1:4] == b"PNG"
    with pytest.raises(ValueError, match="must not be empty"):
        lines({}, tmp_path / "b.png", **texts)
