"""Figures that compare methods: refusals, and what is drawn where."""

import numpy as np
import pytest
from matplotlib import image

from bayesieve.assess.figures.curves import method_curves
from bayesieve.assess.figures.examples import weight_maps
from bayesieve.assess.figures.sparsity import weight_cdfs

CURVES = {
    "BMR": [{"epoch": 1, "accuracy": 0.5, "pruned": 0.0}, {"epoch": 2, "accuracy": 0.6}],
    "MAP": [{"epoch": 1, "accuracy": 0.7}],
}


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
