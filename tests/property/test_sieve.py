"""Promises of the sieve on random networks, masks and posteriors."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.sieve.rules import keep_n_of_m, keep_probable, keep_scored, keep_zeros
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.sieve.units import units_of

MANY = settings(max_examples=50, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)
fractions = st.floats(0.0, 1.0)


@st.composite
def mlps(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A chain of linear layers and an input, in float64."""
    widths = draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers.append(nn.Linear(n_in, n_out, bias=draw(st.booleans())))
        layers.append(draw(st.sampled_from([nn.ReLU(), nn.Tanh(), nn.Identity(), nn.Dropout()])))
        if draw(st.booleans()):
            layers.append(nn.BatchNorm1d(n_out))
    return nn.Sequential(*layers, nn.Linear(widths[-1], 2)).double(), torch.randn(3, widths[0])


@st.composite
def conv_nets(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Convolutions, pooling, flattening and a head, in float64."""
    channels = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    layers: list[nn.Module] = []
    n_in = 2
    for n_out in channels:
        layers += [
            nn.Conv2d(n_in, n_out, 3, padding=1),
            draw(st.sampled_from([nn.ReLU(), nn.GELU()])),
        ]
        if draw(st.booleans()):
            layers.append(nn.BatchNorm2d(n_out))
        n_in = n_out
    pooled, size = draw(st.sampled_from([(nn.MaxPool2d(2), 4), (nn.AdaptiveAvgPool2d(1), 1)]))
    head = nn.Linear(n_in * size, 2)
    return nn.Sequential(*layers, pooled, nn.Flatten(), head).double(), torch.randn(2, 2, 4, 4)


nets = st.one_of(mlps(), conv_nets())


def posterior_on(model: nn.Module, seed: int) -> Factorised:
    network = Network.of(model, Gaussian())
    generator = torch.Generator().manual_seed(seed)
    layout = network.layout

    def draws() -> Tensor:
        return torch.randn(layout.size, generator=generator, dtype=torch.float64)

    mean, std, logit = draws(), draws().exp(), (3 * draws()).round()  # logits with many ties
    std[layout.n_bayesian :] = 0
    return Factorised(network, mean, std, logit_inclusion=logit, buffers=network.buffers())


def random_keep(network: Network, seed: int, share: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(network.layout.size, generator=generator) < share
    keep[network.layout.n_sparse :] = True
    return keep


def naive_closure(model: nn.Sequential, network: Network, keep: Tensor) -> Tensor:
    """The rule unit by unit, repeated until nothing changes."""
    keep = keep.clone()
    parts = dict(network.layout.pieces(keep))
    layers = [i for i, m in enumerate(model) if isinstance(m, nn.Linear | nn.Conv2d)]
    changed = True
    while changed:
        before = keep.clone()
        for producer, reader in pairwise(layers):
            n_units = len(parts[f"{producer}.weight"])
            columns = parts[f"{reader}.weight"].flatten(1)
            block = columns.shape[1] // n_units
            for unit in range(n_units):
                if not columns[:, unit * block : (unit + 1) * block].any():
                    parts[f"{producer}.weight"][unit] = False
                    if f"{producer}.bias" in parts:
                        parts[f"{producer}.bias"][unit] = False
        changed = not torch.equal(before, keep)
    return keep


@pytest.mark.slow
@MANY
@given(net=nets, seed=seeds, share=fractions)
def test_closure_is_the_naive_rule_and_never_changes_the_function(net, seed, share):
    model, x = net
    posterior = posterior_on(model, seed)
    network = posterior.network
    keep = random_keep(network, seed, share)
    cleaned = units_of(network).clean(keep)
    assert torch.equal(cleaned, naive_closure(model, network, keep))
    assert torch.equal(units_of(network).clean(cleaned), cleaned)
    w = torch.stack([posterior.mean * keep, posterior.mean * cleaned])
    before, after = network.outputs(w, x.double(), posterior.buffers)
    assert torch.equal(before, after)


@MANY
@given(net=nets, seed=seeds, shares=st.tuples(fractions, fractions))
def test_closure_is_monotone_and_batched(net, seed, shares):
    network = Network.of(net[0], Gaussian())
    keep = torch.stack([random_keep(network, seed, share) for share in sorted(shares)])
    few, many = units_of(network).clean(keep)
    assert not (few & ~many).any()
    assert torch.equal(few, units_of(network).clean(keep[0]))


@pytest.mark.slow
@MANY
@given(net=nets, seed=seeds, fraction=fractions, score=st.sampled_from(["snr", "inclusion"]))
def test_fraction_is_at_least_as_full_as_any_number_of_best_weights(net, seed, fraction, score):
    model, _ = net
    posterior = posterior_on(model, seed)
    network, layout = posterior.network, posterior.layout
    rule = keep_zeros(1 - fraction, score, allow_empty_layers=True)
    snr = posterior.mean.abs() / posterior.std
    values = posterior.logit_inclusion if score == "inclusion" else snr
    size = posterior.mean.abs()
    order = sorted(range(layout.n_sparse), key=lambda i: (-values[i], -size[i], i))
    target = round(fraction * layout.size)
    below, above = None, None  # the best n whose closure fits, and n + 1
    for n in range(layout.n_sparse + 1):
        keep = torch.zeros(layout.size, dtype=torch.bool)
        keep[order[:n]] = True
        keep[layout.n_sparse :] = True
        keep = naive_closure(model, network, keep)
        if keep.sum() > target:
            above = keep
            break
        below = keep
    if below is None:
        with pytest.raises(ValueError, match=f"but {int(above.sum())} always do"):
            rule(posterior)
        return
    kept = rule(posterior)
    assert int(kept.sum()) <= target
    assert not (below & ~kept).any()
    assert above is None or not (kept & ~above).any()
    assert torch.equal(kept, naive_closure(model, network, kept))


def kept_or_none(rule, posterior, within=None):
    try:
        return rule(posterior, within)
    except ValueError:
        return None


@pytest.mark.slow
@MANY
@given(
    net=nets,
    seed=seeds,
    pair=st.tuples(fractions, fractions),
    scope=st.sampled_from(["global", "layer"]),
)
def test_keep_is_monotone_in_the_fraction_and_no_layer_is_emptied(net, seed, pair, scope):
    posterior = posterior_on(net[0], seed)
    few, many = (kept_or_none(keep_zeros(1 - f, scope=scope), posterior) for f in sorted(pair))
    if few is not None:
        assert many is not None
        assert not (few & ~many).any()
        for name, part in posterior.layout.pieces(few):
            assert part.any() or not name.endswith("weight"), name


@pytest.mark.slow
@MANY
@given(net=nets, seed=seeds, pair=st.tuples(fractions, fractions))
def test_keep_is_monotone_in_the_threshold(net, seed, pair):
    posterior = posterior_on(net[0], seed)
    low, high = sorted(pair)
    for make in (keep_probable, lambda t: keep_scored(5 * t - 1, "snr")):
        few, many = make(high)(posterior), make(low)(posterior)
        assert not (few & ~many).any()
        assert torch.equal(few, naive_closure(net[0], posterior.network, few))
        for name, part in posterior.layout.pieces(few):
            assert part.any() or not name.endswith("weight"), name


@pytest.mark.slow
@MANY
@given(net=nets, seed=seeds, n=st.integers(1, 4), more=st.integers(0, 4))
def test_n_of_m_has_the_pattern(net, seed, n, more):
    posterior, m = posterior_on(net[0], seed), n + more
    keep = keep_n_of_m(n, m)(posterior)
    last = [name for name in posterior.layout.names if name.endswith("weight")]
    for name, part in posterior.layout.pieces(keep):
        if part.dim() < 2:
            continue
        rows = part.flatten(1)
        for start in range(0, rows.shape[1], m):
            group = rows[:, start : start + m]
            counts = group.sum(1)
            assert int(counts.max()) <= n
            if name == last[-1]:  # nothing reads the outputs, so none of them dies
                assert (counts == min(n, group.shape[1])).all()
    assert torch.equal(keep, naive_closure(net[0], posterior.network, keep))


@pytest.mark.slow
@MANY
@given(net=nets, seeds=st.lists(seeds, min_size=3, max_size=6), zeros=st.floats(0.05, 0.9))
def test_hard_schedules_shrink_and_soft_ones_obey_the_same_count(net, seeds, zeros):
    posteriors = [posterior_on(net[0], seed) for seed in seeds]
    d = posteriors[0].layout.size
    for soft in (False, True):
        pruning = GradualPruning(zeros=zeros, start=0.1, end=0.9, score="magnitude", soft=soft)
        keep = None
        for i, posterior in enumerate(posteriors, start=1):
            progress = i / len(posteriors)
            try:
                new = pruning.keep(posterior, progress, keep)
            except ValueError:
                break
            assert int(new.sum()) <= round((1 - pruning.zeros_at(progress)) * d)
            assert soft or keep is None or not (new & ~keep).any()
            keep = new
