"""The positions of the slider: nested masks, and numbers that belong to them."""

from dataclasses import replace

import pytest
import torch

from bayesieve.assess.costs import count_macs
from bayesieve.assess.evaluate import evaluate
from bayesieve.core.posterior import SparseModel
from bayesieve.report.curve import further_masks, layer_pictures, sieve_before, sieve_further
from bayesieve.report.packing import unpack
from bayesieve.report.source import Limits
from bayesieve.sieve.compact import compact, report_of
from reports import QUICK, digits_source


@pytest.fixture(scope="module")
def source():
    return digits_source()


@pytest.fixture(scope="module")
def sieved(source):
    return sieve_further(source, QUICK)


@pytest.fixture(scope="module")
def levels(sieved):
    return sieved[1]


def test_masks_are_nested_and_start_at_the_model(source):
    masks = further_masks(source.model, "snr", 9)
    assert torch.equal(masks[0], source.model.keep)
    kept = masks.sum(1)
    assert bool((kept[1:] < kept[:-1]).all())
    assert not bool((masks[1:] & ~masks[:-1]).any())


def test_an_unpruned_posterior_starts_with_all_its_weights(source):
    masks = further_masks(source.before, "snr", 4)
    assert bool(masks[0].all())
    assert len(masks) == 4


def test_levels_say_where_each_weight_goes(source, levels):
    masks = further_masks(source.model, source.score, QUICK.points)
    for position, mask in enumerate(masks):
        assert torch.equal(levels > position, mask)


def test_points_hold_what_evaluating_and_compacting_give(source, sieved, levels):
    position = 2
    keep = levels > position
    model = SparseModel(source.posterior.masked(keep), keep)
    point = sieved[0]["points"][position]
    actual = evaluate(model, source.data.test)
    small = compact(model, source.data.test.x[:8])
    assert point["weights"] == int(keep.sum()) == actual["weights"]
    assert point["error"] == pytest.approx(actual["error"], rel=1e-5)
    assert point["nll"] == pytest.approx(actual["nll"], rel=1e-5)
    assert point["ece"] == pytest.approx(actual["ece"], rel=1e-5)
    layout = source.posterior.layout
    assert point["kept"] == [int(keep[layout.slices[name]].sum()) for name in layout.prunable]
    assert (point["macs"], point["nonzero_macs"]) == count_macs(small, source.data.test.x[:1])
    assert point["units"] == {layer.name: layer.units[1] for layer in report_of(small).layers}


def test_positions_are_safe_until_the_error_rises_beyond_chance(source, sieved):
    points = sieved[0]["points"]
    assert points[0]["safe"]  # the first is its own reference
    assert not points[-1]["safe"]
    dense = evaluate(source.before, source.data.test)
    against, _ = sieve_further(source, QUICK, dense)
    assert not any(point["safe"] for point in against["points"])


def test_the_threshold_separates_kept_from_removed(source, sieved, levels):
    """Apart from the protected path, nothing above the threshold is gone."""
    scores = source.posterior.mean.abs() / source.posterior.std
    thresholds = [point["threshold"] for point in sieved[0]["points"][:-1]]
    for position, threshold in enumerate(thresholds):
        kept = scores[source.posterior.layout.sparse][
            (levels > position)[source.posterior.layout.sparse]
        ]
        assert threshold == pytest.approx(float(kept.min()), rel=1e-3)


def test_large_networks_are_compacted_once(source):
    actual, _ = sieve_further(source, Limits(points=4, compacted=10))
    assert "macs" in actual["points"][0]
    assert not any("macs" in point for point in actual["points"][1:])
    assert actual["compaction"] is not None


def test_pictures_are_thinned_to_their_budget(source, levels):
    whole = layer_pictures(source.posterior, levels, QUICK)
    thin = layer_pictures(source.posterior, levels, Limits(shown_weights=200))
    assert [row["levels"]["shape"] for row in whole] == [[20, 64], [10, 20]]
    assert {row["stride"] for row in whole} == {1}
    assert sum(unpack(row["levels"]).numel() for row in thin) <= 250
    assert torch.equal(
        unpack(thin[0]["levels"]),
        unpack(whole[0]["levels"])[:: thin[0]["stride"], :: thin[0]["stride"]],
    )


def test_inclusion_is_a_distribution(source, levels):
    inclusion = source.posterior.inclusion
    layout = source.posterior.layout
    for row, name in zip(
        layer_pictures(source.posterior, levels, QUICK), layout.prunable, strict=True
    ):
        part = layout.slices[name]
        cdf = row["inclusion_cdf"]
        assert cdf == sorted(cdf)
        assert cdf[-1] == 1
        assert cdf[25] == pytest.approx(float((inclusion[part] <= 0.5).double().mean()), abs=1e-3)


def test_the_slider_goes_from_dense_to_empty(source):
    run = sieve_further(source, QUICK)[0]["points"]
    before, levels = sieve_before(source, QUICK, run[0]["zeros"])
    n, layout = before["on_the_way"], source.posterior.layout
    way = before["points"][:n]
    assert way[0]["zeros"] == 0
    assert all(point["zeros"] < run[0]["zeros"] for point in way)
    assert [sum(point["kept"]) for point in way] == [
        int((levels > i)[layout.sparse].sum()) for i in range(n)
    ]
    assert way[0]["bytes"] == 4 * layout.size
    assert [row["shape"] for row in before["layers"]] == [[20, 64], [10, 20]]
    assert sum(run[-1]["kept"]) == 0  # biases alone are left
    most = torch.bincount(source.data.test.y).max() / len(source.data.test)
    assert run[-1]["error"] >= 1 - float(most) - 1e-9


def test_a_dense_run_has_no_positions_before_it(source):
    dense = replace(source, model=source.before)
    curve, levels = sieve_before(dense, QUICK, 0.0)
    assert curve["on_the_way"] == 0
    assert curve["layers"] == []
    assert levels is None
