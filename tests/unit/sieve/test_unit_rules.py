"""Whole units, channels and heads: what belongs to them, their scores, what stays."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from bayesieve.assess.costs import count_macs
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples, SparseModel
from bayesieve.core.priors import Normal
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.graph.costs import live_macs
from bayesieve.nets import lenet5_caffe
from bayesieve.sieve import unit_rules
from bayesieve.sieve.compact import compact
from bayesieve.sieve.groups import groups_of
from bayesieve.sieve.prune import prune
from bayesieve.sieve.ranking import evidence_score
from bayesieve.sieve.schedule import GradualUnits
from bayesieve.sieve.unit_rules import (
    group_scores,
    keep_latency,
    keep_macs,
    keep_units,
    layer_positions,
)
from problems import normal32, posterior_around, seeded
from runs import fit_toy, toy
from zoo import Calling


def point(model):
    network = Network.of(model, Gaussian())
    return Samples(network, normal32(1, network.layout.size))


def gaussian(model, seed=0):
    """A random posterior with a prior and logits of inclusion."""
    made = posterior_around(model, Gaussian())
    mean, logit = normal32(2, len(made.mean), seed=seed)
    std = torch.where(made.std > 0, 0.2 + torch.rand(len(mean), generator=seeded(seed)), 0.0)
    return replace(made, mean=mean, std=std, prior=Normal(1.0), logit_inclusion=logit)


def transformer():
    return Calling(
        lambda s, x: s.out(s.attention(x, x, x, need_weights=False)[0].mean(1)),
        attention=nn.MultiheadAttention(6, 3, batch_first=True), out=nn.Linear(6, 2),
    )  # fmt: skip


def alive(sparse, name):
    """Rows of a weight with a kept entry."""
    mask = dict(sparse.layout.pieces(sparse.keep))[name]
    return mask.flatten(1).any(1)


# ------------------------------------------------------------------------------ what they hold


def test_a_unit_is_its_row_its_bias_and_its_column(mlp, random_posterior):
    layout = random_posterior(mlp).layout
    groups = groups_of(random_posterior(mlp).network)
    assert {layer: len(entries) for layer, entries in groups.items()} == {"0": 8, "2": 6}
    marked = torch.zeros(layout.size)
    marked[groups["0"][3]] = 1
    named = layout.unflatten(marked)
    assert named["0.weight"][3].all()
    assert named["0.bias"][3] == 1
    assert named["2.weight"][:, 3].all()
    assert marked.sum() == 5 + 1 + 6


def test_channels_leave_through_blocks_of_columns_of_a_flattened_layer():
    posterior = point(lenet5_caffe((1, 28, 28), 10))
    groups = groups_of(posterior.network)
    assert [len(entries) for entries in groups.values()] == [20, 50, 500]
    marked = torch.zeros(posterior.layout.size)
    marked[groups["conv2"][7]] = 1
    columns = posterior.layout.unflatten(marked)["fc1.weight"].any(0).nonzero().flatten()
    assert columns.tolist() == list(range(7 * 16, 8 * 16))


def test_a_head_gone_is_as_if_it_were_not_there():
    posterior = gaussian(transformer())
    sparse = prune(posterior, keep_units({"attention": 2}, score="magnitude"))
    x = normal32(4, 5, 6, seed=1)
    small = compact(sparse, x)
    assert torch.allclose(small(x), sparse.to_module()(x), atol=1e-5)
    heads = dict(sparse.layout.pieces(sparse.keep))["attention.in_proj_weight"].view(3, 3, 2, 6)
    by_head = heads.all(-1).all(-1).all(0)
    assert int(by_head.sum()) == 2
    assert torch.equal(heads.any(-1).any(-1).any(0), by_head)
    values = dict(sparse.layout.pieces(sparse.keep))["attention.out_proj.weight"].view(6, 3, 2)
    assert torch.equal(values.any(0).any(-1), by_head)


def test_networks_without_groups_say_so():
    with pytest.raises(ValueError, match="keep_units: this network has no unit, channel, head"):
        keep_units(0.5)(gaussian(nn.Linear(3, 2)))


# --------------------------------------------------------------------------------------- scores


def test_evidence_is_the_sum_over_weights_and_bias(mlp):
    posterior = gaussian(mlp)
    groups = groups_of(posterior.network)["0"]
    each = posterior.layout.unflatten(evidence_score(posterior))
    wanted = each["0.weight"].sum(1) + each["0.bias"] + each["2.weight"].sum(0)
    assert torch.allclose(group_scores(posterior, groups, "evidence"), wanted, rtol=1e-5)
    assert torch.equal(group_scores(posterior, groups), group_scores(posterior, groups, "evidence"))


def test_inclusion_orders_by_the_probability_that_any_weight_matters(mlp):
    posterior = gaussian(mlp)
    groups = groups_of(posterior.network)["0"]
    each = posterior.layout.unflatten(1 - posterior.inclusion.double())
    none = each["0.weight"].prod(1) * each["0.bias"] * each["2.weight"].prod(0)
    found = group_scores(posterior, groups, "inclusion")
    assert torch.allclose(found.double(), -none.log(), rtol=1e-5)


def test_points_are_judged_by_their_squares(mlp):
    posterior = point(mlp)
    groups = [*groups_of(posterior.network).values()][1]
    each = posterior.layout.unflatten(posterior.mean.square())
    wanted = each["2.weight"].sum(1) + each["2.bias"] + each["4.weight"].sum(0)
    assert torch.allclose(group_scores(posterior, groups), wanted)


def test_what_is_pruned_counts_nothing_in_any_score(mlp):
    posterior = gaussian(mlp)
    groups = groups_of(posterior.network)["0"]
    keep = torch.ones(posterior.layout.size, dtype=torch.bool)
    keep[posterior.layout.slices["0.bias"]] = False
    for score in ("evidence", "inclusion", "magnitude"):
        found = group_scores(posterior.masked(keep), groups, score)
        assert found.isfinite().all()
        assert not torch.equal(found, group_scores(posterior, groups, score))


def test_a_function_is_summed(mlp):
    posterior = gaussian(mlp)
    groups = groups_of(posterior.network)["0"]
    found = group_scores(posterior, groups, lambda q: torch.ones_like(q.mean))
    assert found.tolist() == [5 + 1 + 6] * 8


# ---------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("make", [gaussian, point])
def test_half_the_units_of_every_layer_go_whole(mlp, make):
    posterior = make(mlp)
    sparse = prune(posterior, keep_units(0.5))
    named = dict(sparse.layout.pieces(sparse.keep))
    first, second = named["0.bias"], named["2.bias"]
    assert (int(first.sum()), int(second.sum())) == (4, 3)
    assert torch.equal(named["0.weight"], first[:, None].expand(8, 5))
    assert torch.equal(named["2.weight"], second[:, None] & first[None])
    assert torch.equal(named["4.weight"], second[None].expand(2, 6))
    assert named["4.bias"].all()
    best = group_scores(posterior, groups_of(posterior.network)["0"]).topk(4).indices
    assert sorted(best.tolist()) == first.nonzero().flatten().tolist()


def test_the_compacted_network_has_as_many_units_as_asked():
    posterior = point(lenet5_caffe((1, 28, 28), 10))
    units = {"conv1": 3, "conv2": 5, "fc1": 7}
    small = compact(prune(posterior, keep_units(units)), torch.rand(2, 1, 28, 28))
    layers = {change.name: change.units[1] for change in small.compaction.layers}
    assert layers == {**units, "out": 10}


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_no_layer_is_emptied(mlp, scope):
    sparse = prune(gaussian(mlp), keep_units(0.0, scope=scope))
    assert [int(alive(sparse, name).sum()) for name in ("0.weight", "2.weight")] == [1, 1]


def test_globally_the_best_of_all_layers_stay(mlp):
    posterior = gaussian(mlp)
    sparse = prune(posterior, keep_units(5 / 14, scope="global"))
    scores = [group_scores(posterior, groups) for groups in groups_of(posterior.network).values()]
    kept = torch.cat([alive(sparse, "0.weight"), alive(sparse, "2.weight")])
    assert int(kept.sum()) == 5
    assert torch.cat(scores)[kept].min() > torch.cat(scores)[~kept].max()


def test_a_unit_that_is_gone_stays_gone_and_counts_as_gone(mlp):
    posterior = gaussian(mlp)
    half = prune(posterior, keep_units(0.5))
    again = prune(half, keep_units(0.5))
    assert torch.equal(again.keep, half.keep)
    quarter = prune(half, keep_units(0.25))
    assert not (quarter.keep & ~half.keep).any()
    assert int(alive(quarter, "0.weight").sum()) == 2


def test_fewer_units_are_among_more(mlp):
    masks = [keep_units(n / 8)(gaussian(mlp)) for n in range(1, 9)]
    for fewer, more in itertools.pairwise(masks):
        assert not (fewer & ~more).any()
    assert masks[-1].all()


def test_rules_print_as_they_were_called_and_refuse_nonsense():
    assert repr(keep_units(0.5)).startswith("keep_units(units=0.5")
    with pytest.raises(ValueError, match="units must be between 0 and 1"):
        keep_units(2.0)
    with pytest.raises(ValueError, match="fc1 must be > 0"):
        keep_units({"fc1": 0})
    with pytest.raises(ValueError, match="score must be one of evidence, inclusion, magnitude"):
        keep_units(0.5, score="snr")
    with pytest.raises(ValueError, match="scope must be one of global, layer"):
        keep_units(0.5, scope="net")
    with pytest.raises(ValueError, match="target_ms must be > 0"):
        keep_latency(0.0, torch.zeros(1, 3))


def test_a_layer_that_is_not_there_is_named(mlp):
    with pytest.raises(ValueError, match="layer must be one of 0, 2; got 'fc1'"):
        keep_units({"fc1": 2})(gaussian(mlp))


# ------------------------------------------------------------------------------- work and time


def test_work_of_a_mask_is_that_of_the_compacted_network():
    posterior = point(lenet5_caffe((1, 28, 28), 10))
    x = torch.rand(1, 1, 28, 28)
    positions = layer_positions(posterior, x)
    assert positions == {"conv1.weight": 576, "conv2.weight": 64, "fc1.weight": 1, "out.weight": 1}
    for units in ({"conv1": 20}, {"conv1": 3, "conv2": 5, "fc1": 7}):
        sparse = prune(posterior, keep_units(units))
        small = compact(sparse, x)
        assert live_macs(posterior.layout, sparse.keep, positions) == count_macs(small, x)[0]


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.8, 1.0])
def test_macs_end_just_below_the_target(fraction):
    posterior = point(lenet5_caffe((1, 28, 28), 10))
    x = torch.rand(1, 1, 28, 28)
    keep = keep_macs(fraction, x)(posterior)
    positions = layer_positions(posterior, x)
    whole = live_macs(posterior.layout, torch.ones_like(keep), positions)
    share = live_macs(posterior.layout, keep, positions) / whole
    assert share <= fraction
    assert share > 0.75 * fraction  # one more group would be too many


def test_a_target_out_of_reach_names_the_nearest(mlp):
    with pytest.raises(ValueError, match=r"at most 0.01 cannot be reached: .* they are 0\.\d+"):
        keep_macs(0.01, torch.zeros(1, 5))(gaussian(mlp))


def test_latency_stops_where_the_clock_is_satisfied(mlp, monkeypatch):
    sizes = []

    def clock(module, example, rounds):
        sizes.append(sum(p.numel() for p in module.parameters()))
        return sizes[-1] / 100

    monkeypatch.setattr(unit_rules, "median_ms", clock)
    posterior = gaussian(mlp)
    sparse = prune(posterior, keep_latency(0.6, torch.zeros(2, 5)))
    small = compact(sparse, torch.zeros(2, 5))
    assert 40 <= sum(p.numel() for p in small.parameters()) <= 60
    assert sizes[0] == posterior.layout.size


def test_a_real_clock_runs(mlp):
    assert unit_rules.median_ms(mlp, torch.zeros(1, 5), 2) > 0
    assert keep_latency(1000.0, torch.zeros(1, 5))(gaussian(mlp)).all()


# ------------------------------------------------------------------------------------- schedule


def test_the_schedule_is_cubic_and_ends_at_its_target():
    schedule = GradualUnits(keep_units=0.25, start=0.0, end=0.5)
    assert [schedule.kept_at(p, "0", 100) for p in (0.0, 0.25, 0.5, 1.0)] == [100, 34, 25, 25]
    assert not schedule.soft
    with pytest.raises(ValueError, match="start must be < end"):
        GradualUnits(keep_units=0.5, start=0.5, end=0.5)


@pytest.mark.parametrize("engine", [SBNN(), MAP()])
def test_training_narrows_the_network(engine):
    schedule = GradualUnits(keep_units={"0": 3}, start=0.1, end=0.6)
    run = fit_toy(toy(), engine, epochs=6, pruning=schedule, n_models=2)
    for posterior in run.posteriors:
        sparse = SparseModel(posterior, posterior.mean != 0)
        named = posterior.layout.unflatten(posterior.mean)
        assert int((named["0.weight"] != 0).any(1).sum()) == 3
        assert torch.equal((named["0.bias"] != 0), (named["0.weight"] != 0).any(1))
        small = compact(sparse, torch.zeros(1, 4))
        assert {c.name: c.units[1] for c in small.compaction.layers}["0"] == 3


def test_the_schedule_is_checked_before_training():
    with pytest.raises(ValueError, match="layer must be one of 0; got 'fc9'"):
        fit_toy(toy(), MAP(), pruning=GradualUnits(keep_units={"fc9": 3}))
