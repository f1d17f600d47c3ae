import pytest
import torch
from torch import nn

from bayesieve.core.layout import Roles
from bayesieve.core.posterior import Factorised, Samples
from bayesieve.sieve.rules import keep_n_of_m, keep_probable, keep_scored, keep_zeros
from bayesieve.sieve.units import units_of


def masks(posterior, keep):
    return dict(posterior.layout.pieces(keep))


def test_layer_scope_leaves_equal_fractions(random_posterior):
    model = nn.Sequential(nn.Linear(50, 40), nn.LayerNorm(40), nn.Linear(40, 30))  # no links
    posterior = random_posterior(model)
    posterior.mean[:2000] *= 100  # a global rule would empty the second layer first
    parts = masks(posterior, keep_zeros(0.6, score="magnitude", scope="layer")(posterior))
    shares = [parts[name].double().mean().item() for name in ("0.weight", "2.weight")]
    assert shares[0] == pytest.approx(shares[1], abs=1e-3)
    parts = masks(posterior, keep_zeros(0.6, score="magnitude")(posterior))
    assert parts["2.weight"].sum() == 1  # the protected one


def test_small_fractions_name_what_can_be_reached(random_posterior, mlp):
    posterior = random_posterior(mlp)
    # one path of three weights, the biases of its two units and of the two outputs
    text = (
        r"5 of 116 parameters may stay, but 7 always do.*fraction .* is 0\.0603448 \(zeros 0\.93965"
    )
    with pytest.raises(ValueError, match=text):
        keep_zeros(0.96)(posterior)
    assert int(keep_zeros(109 / 116)(posterior).sum()) == 7
    assert int(keep_zeros(0.96, allow_empty_layers=True)(posterior).sum()) <= 5
    with pytest.raises(ValueError, match="1 of 116 parameters may stay, but 2 always do"):
        keep_zeros(0.99, allow_empty_layers=True)(posterior)


def test_nothing_to_spare_keeps_a_path_through_every_layer(random_posterior, mlp):
    posterior = random_posterior(mlp)
    parts = masks(posterior, keep_zeros(109 / 116)(posterior))
    unit = parts["4.weight"].any(0).nonzero().item()
    assert parts["2.weight"].any(1).nonzero().item() == unit
    first = parts["2.weight"].any(0).nonzero().item()
    assert parts["0.weight"].any(1).nonzero().item() == first
    score = (posterior.mean / posterior.std).abs()[88:100]
    assert parts["4.weight"].flatten().nonzero().item() == score.argmax()


def test_a_path_prefers_units_that_are_still_reached(random_posterior):
    posterior = random_posterior(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    posterior.mean[6:8] = torch.tensor([9.0, 1.0])  # the first unit has the louder reader ...
    within = torch.ones(11, dtype=torch.bool)
    within[:3] = False  # ... but nothing leads into it any more
    keep = keep_zeros(0.63, score="magnitude")(posterior, within)
    assert keep[3:6].any()
    assert keep[7]


@pytest.mark.parametrize(
    "rule",
    [
        keep_zeros(0.6),
        keep_zeros(0.6, scope="layer"),
        keep_scored(1.5),
        keep_probable(0.6),
        keep_n_of_m(1, 4),
    ],
    ids=str,
)
def test_pruned_weights_never_come_back(random_posterior, mlp, rule):
    posterior = random_posterior(mlp)
    first = keep_zeros(0.45, score="inclusion")(posterior)
    again = rule(posterior, first)
    assert not (again & ~first).any()
    assert torch.equal(rule(posterior.masked(first)), again)  # zeros speak for themselves
    assert torch.equal(again, units_of(posterior.network).clean(again))
    assert all(part.any() for name, part in masks(posterior, again).items() if "weight" in name)


def test_zeros_in_every_draw_count_as_pruned(network_of):
    network = network_of(nn.Linear(3, 1))
    draws = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, -1.0, 3.0, 0.0]])
    keep = keep_zeros(0.0, score="magnitude")(Samples(network, draws))
    assert keep.tolist() == [False, True, True, True]


def test_a_mean_of_zero_with_a_spread_is_not_pruned(network_of):
    mean, std = torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    keep = keep_zeros(0.0)(Factorised(network_of(nn.Linear(3, 1)), mean, std))
    assert keep.tolist() == [True, True, False, True]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "rule", [keep_zeros(0.7), keep_scored(1.5), keep_probable(0.6), keep_n_of_m(1, 4)], ids=str
)
def test_a_gpu_keeps_the_same_weights(random_posterior, mlp, rule):
    posterior = random_posterior(mlp)
    assert torch.equal(rule(posterior.to("cuda")).cpu(), rule(posterior))


def test_scored_is_a_threshold_with_equality_kept(random_posterior):
    posterior = random_posterior(nn.Linear(6, 3))
    score = posterior.mean.abs()
    threshold = score[4].item()
    keep = keep_scored(threshold, "magnitude")(posterior)
    assert torch.equal(keep[:18], score[:18] >= threshold)
    assert keep[18:].all()


def test_a_threshold_above_all_leaves_the_best_unless_asked(random_posterior):
    posterior = random_posterior(nn.Linear(6, 3))
    keep = keep_scored(1e9, "magnitude")(posterior)
    assert keep[:18].nonzero().tolist() == [[posterior.mean[:18].abs().argmax().item()]]
    assert not keep_scored(1e9, "magnitude", allow_empty_layers=True)(posterior)[:18].any()


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5, 0.8])
def test_probable_compares_probabilities(random_posterior, threshold):
    posterior = random_posterior(nn.Linear(6, 3))
    keep = keep_probable(threshold)(posterior)
    assert torch.equal(keep[:18], posterior.inclusion[:18] >= threshold)


def test_probable_at_one_keeps_only_certain_weights(random_posterior):
    posterior = random_posterior(nn.Linear(6, 3))
    posterior.logit_inclusion[5] = torch.inf
    assert keep_probable(1.0)(posterior)[:18].nonzero().tolist() == [[5]]


def test_n_of_m_on_a_convolution_with_a_remainder(random_posterior):
    posterior = random_posterior(nn.Conv2d(3, 4, 3, bias=False))  # rows of 27 = 6 * 4 + 3
    keep = keep_n_of_m(2, 4, score="magnitude")(posterior).view(4, 27)
    size = posterior.mean.abs().view(4, 27)
    for row, sizes in zip(keep, size, strict=True):
        for start in range(0, 27, 4):
            best = sizes[start : start + 4].topk(2).indices + start
            assert row[start : start + 4].nonzero().flatten().tolist() == sorted(
                (best - start).tolist()
            )


def test_n_of_m_keeps_a_remainder_that_fits_and_vectors(random_posterior, network_of):
    model = nn.Sequential(nn.Linear(5, 2), nn.LayerNorm(2))
    network = network_of(model, Roles(prune=("1.weight",)))
    posterior = Factorised(network, torch.arange(1.0, 17.0), torch.ones(16))
    parts = masks(posterior, keep_n_of_m(1, 4)(posterior))
    assert parts["0.weight"].tolist() == [[False, False, False, True, True]] * 2
    assert parts["1.weight"].all()


def test_a_network_without_prunable_weights(network_of):
    network = network_of(nn.Linear(3, 2), Roles(keep=("*",)))
    posterior = Factorised(network, torch.ones(8), torch.ones(8), logit_inclusion=torch.ones(8))
    for rule in (keep_zeros(0.0), keep_scored(9.0), keep_probable(0.9), keep_n_of_m()):
        assert rule(posterior).all()
    with pytest.raises(ValueError, match="4 of 8 parameters may stay, but 8 always do"):
        keep_zeros(0.5)(posterior)


def test_rules_print_as_they_are_written():
    assert repr(keep_scored(0.5, "evidence")).startswith(
        "keep_scored(threshold=0.5, score='evidence'"
    )
    assert repr(keep_zeros(0.985)).startswith("keep_zeros(zeros=0.985, score='snr'")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: keep_zeros(1.2), "zeros must be between 0 and 1, got 1.2"),
        (lambda: keep_zeros(0.5, score="srn"), "Did you mean 'snr'"),
        (lambda: keep_zeros(0.5, scope="unit"), "scope must be one of global, layer"),
        (lambda: keep_zeros(-0.1), "zeros must be between 0 and 1"),
        (lambda: keep_probable(2.0), "threshold must be between"),
        (lambda: keep_scored(float("nan")), "threshold must be a number"),
        (lambda: keep_n_of_m(5, 4), "1 <= n <= m must hold, got n=5, m=4"),
        (lambda: keep_n_of_m(0, 4), "got n=0"),
    ],
)
def test_wrong_arguments_raise_at_construction(make, text):
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        make()


@pytest.mark.parametrize("within", [torch.ones(3, dtype=torch.bool), torch.ones(116)])
def test_a_wrong_mask_raises(random_posterior, mlp, within):
    with pytest.raises(ValueError, match=r"within must be a bool tensor of shape \(116,\)"):
        keep_zeros(0.5)(random_posterior(mlp), within)
