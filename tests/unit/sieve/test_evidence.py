"""Post-hoc Bayesian model reduction: which weights go, how they are counted, what is reported."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples, SparseModel
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.engines.bmr import BMR, PAPER_ROLES, evidence_at_zero, mask_log_odds
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.laplace import laplace
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.tdamp import TDAMP
from bayesieve.sieve.evidence import evidence_report, prune_by_evidence, weight_evidence
from bayesieve.sieve.rules import keep_zeros
from problems import known_support, run

pytestmark = pytest.mark.filterwarnings("ignore:prune_by_evidence")
N_WEIGHTS = 20  # of the network below; then 4 + 2 biases


HALF = Normal(0.5)


def posterior_of(prior=HALF, n_supported=10):
    """A network 3-4-2 in which the first weights are sure and the rest are the prior's."""
    network = Network.of(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), Gaussian())
    mean, std = torch.zeros(26), torch.full((26,), 0.1)
    mean[:n_supported] = 1.0
    mean[N_WEIGHTS:] = 0.2
    return Factorised(network, mean, std, prior)


def test_the_score_is_the_threshold_of_the_layer_less_the_change():
    posterior = posterior_of()
    part = posterior.layout.slices["0.weight"]
    delta = evidence_at_zero(posterior.mean, posterior.std, torch.tensor(0.5))
    zeta = mask_log_odds(delta[part].double())
    score = weight_evidence()(posterior)
    torch.testing.assert_close(score[part], (zeta - delta[part]).float())
    plain = weight_evidence("savage-dickey")(posterior)
    torch.testing.assert_close(plain[:N_WEIGHTS], -delta[:N_WEIGHTS])
    assert (score[N_WEIGHTS:] == torch.inf).all()  # biases are never pruned


def test_the_spike_and_slab_prior_gives_its_own_change():
    prior = SpikeSlab(1.0, 0.1)
    posterior = posterior_of(prior)
    density = torch.distributions.Normal(posterior.mean, posterior.std)
    zero = torch.zeros(())
    expected = density.log_prob(torch.zeros(26)) - prior.log_prob(zero)
    found = weight_evidence().evidence(posterior)
    torch.testing.assert_close(found, expected)


def test_a_large_cut_under_a_normal_prior_says_that_nothing_was_measured():
    with pytest.warns(UserWarning, match="sieve_trained"):
        prune_by_evidence(posterior_of())
    with warnings.catch_warnings(action="error"):
        prune_by_evidence(posterior_of(SpikeSlab(1.0, 0.1)))
        prune_by_evidence(posterior_of(n_supported=N_WEIGHTS))


@pytest.mark.parametrize("rule", ["hierarchical", "savage-dickey"])
def test_what_is_not_supported_goes(rule):
    posterior = posterior_of(n_supported=3)
    sparse = prune_by_evidence(posterior, weight_evidence(rule, spare_last=True))
    assert sparse.keep[:3].all()
    assert not sparse.keep[3:12].any()
    assert sparse.keep[12:].all()
    assert (sparse.posterior.mean[~sparse.keep] == 0).all()
    inclusion = sparse.posterior.inclusion
    assert (inclusion[:3] > 0.9).all()
    assert (inclusion[~sparse.keep] == 0).all()


def test_a_layer_of_junk_goes_and_a_strong_one_stays():
    everything = prune_by_evidence(posterior_of(n_supported=N_WEIGHTS))
    assert everything.keep.all()
    nothing = prune_by_evidence(posterior_of(n_supported=0), allow_empty_layers=True)
    assert not nothing.keep[:N_WEIGHTS].any()


def test_masks_are_sticky():
    posterior = posterior_of(n_supported=18)
    before = torch.ones(26, dtype=torch.bool)
    before[3] = False
    again = prune_by_evidence(SparseModel(posterior.masked(before), before))
    assert not again.keep[3]
    assert again.keep[:3].all()
    twice = prune_by_evidence(again)
    assert not (twice.keep & ~again.keep).any()


def test_pruned_weights_count_as_relaxed():
    posterior = posterior_of(n_supported=12)
    before = torch.ones(26, dtype=torch.bool)
    before[:6] = False
    masked = posterior.masked(before)
    reference = weight_evidence().log_odds(masked)["0.weight"]
    part = masked.layout.slices["0.weight"]
    relaxed = weight_evidence().evidence(masked)[part].double()
    assert (relaxed[:6] == 0).all()
    assert reference == pytest.approx(mask_log_odds(relaxed).item())


def test_the_width_of_the_prior_can_be_given():
    posterior = posterior_of()
    change = weight_evidence().evidence(posterior)
    without = replace(posterior, prior=None)
    torch.testing.assert_close(weight_evidence(prior_std=0.5).evidence(without), change)
    by_name = dict.fromkeys(posterior.layout.names, 0.5)
    torch.testing.assert_close(weight_evidence(prior_std=by_name).evidence(without), change)
    with pytest.raises(
        ValueError, match=r"^prune_by_evidence: prior_std has no number for '0.weight'"
    ):
        prune_by_evidence(without, weight_evidence(prior_std={"2.weight": 1.0}))
    empirical = weight_evidence(prior_std="empirical").evidence(without)
    part = posterior.layout.slices["0.weight"]
    width = (posterior.mean[part].square() + 0.01).mean().sqrt()
    expected = evidence_at_zero(posterior.mean[part], posterior.std[part], width)
    torch.testing.assert_close(empirical[part], expected)
    assert torch.equal(
        weight_evidence().evidence(without), empirical
    )  # of engines that learn their prior
    keep = torch.ones(26, dtype=torch.bool)
    keep[10:] = False  # the two of the tensor that are 0
    fewer = weight_evidence(prior_std="empirical").evidence(without.masked(keep))
    expected = evidence_at_zero(posterior.mean[:10], posterior.std[:10], torch.tensor(1.01).sqrt())
    torch.testing.assert_close(fewer[:10], expected)  # what is gone does not narrow the prior


def test_posteriors_without_a_spread_are_refused():
    posterior = posterior_of()
    with pytest.raises(
        TypeError, match=r"^prune_by_evidence: the posterior must be Factorised, got Samples"
    ):
        prune_by_evidence(Samples(posterior.network, posterior.mean[None]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weight_evidence("savage"), r"Did you mean 'savage-dickey'"),
        (
            lambda: weight_evidence(prior_std="fitted"),
            r"^prune_by_evidence: prior_std must be one of empirical",
        ),
        (lambda: weight_evidence(prior_std=0.0), r"^prune_by_evidence: prior_std must be > 0"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rule_by_name_is_told_how_to_be_given():
    for call in (prune_by_evidence, evidence_report):
        with pytest.raises(
            TypeError,
            match=r"^prune_by_evidence: scoring must be weight_evidence, got 'savage-dickey'",
        ):
            call(posterior_of(), "savage-dickey")


def test_the_support_ranks_for_other_rules():
    posterior = posterior_of(n_supported=10)
    keep = keep_zeros(0.5, score=weight_evidence("savage-dickey"))(posterior)
    assert int(keep[:10].sum()) >= 6
    assert not keep[10:12].any()


def test_the_report_adds_up():
    posterior = posterior_of(n_supported=10)
    rows = evidence_report(posterior)
    sparse = prune_by_evidence(posterior)
    assert [row.name for row in rows] == ["0.weight", "2.weight"]
    assert sum(row.total - row.kept for row in rows) == int((~sparse.keep[:N_WEIGHTS]).sum())
    delta = weight_evidence().evidence(posterior)
    gone = ~sparse.keep
    gone[N_WEIGHTS:] = False
    assert sum(row.gained for row in rows) == pytest.approx(delta[gone].sum().item(), rel=1e-6)


ENGINES = {
    "flat_vi": FlatVI(prior=Normal(0.5), lr=0.02, init_std=0.1),
    "sbnn": SBNN(prior=SpikeSlab(0.5, 0.05), lr=0.02),
}


@pytest.mark.parametrize("name", [*ENGINES, "laplace"])
def test_the_known_support_is_found_after_any_engine(name):
    known = known_support()
    if name == "laplace":
        engine = MAP(lr=0.02)
        point = engine.posterior(known.problem, run(engine, known.problem, 300))
        posterior = laplace(known.problem, point)
    else:
        engine = ENGINES[name]
        posterior = engine.posterior(known.problem, run(engine, known.problem, 400, decay=True))
    for rule in ("hierarchical", "savage-dickey"):
        sparse = prune_by_evidence(posterior, weight_evidence(rule))
        assert sparse.keep[known.active].all()
        assert int(sparse.keep[~known.active].sum()) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tdamp", "horseshoe", "bmr"])
def test_posteriors_without_a_normal_prior_take_the_width_of_their_weights(name):
    known = known_support()
    engine = {
        "tdamp": TDAMP(power=1.0),
        "horseshoe": HorseshoeVI(lr=0.1),
        "bmr": BMR(reduction=None),
    }[name]
    steps = {"tdamp": 3, "horseshoe": 300, "bmr": 800}[name]
    state = run(engine, known.problem, steps, decay=name == "horseshoe")
    posterior = engine.posterior(known.problem, state)
    factorised = posterior
    if name == "horseshoe":
        with pytest.raises(TypeError, match=r"got UnitScaled. Use its .factorised\(\)"):
            prune_by_evidence(posterior)
        factorised = posterior.factorised()
    sparse = prune_by_evidence(factorised, weight_evidence("savage-dickey", prior_std="empirical"))
    assert sparse.keep[known.active].all()
    # Message passing counts data again at every pass: its stds are too small, and more is kept.
    assert int(sparse.keep[~known.active].sum()) <= (10 if name == "tdamp" else 4)


def test_one_share_for_all_layers():
    """Layer 2 keeps itself dense by its own share of needed weights, not by the network's."""
    network = Network.of(nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 1)), Gaussian())
    mean, std = torch.zeros(221), torch.full((221,), 0.4)
    mean[200:207] = 10.0  # seven of the ten weights of the last layer are needed
    posterior = Factorised(network, mean, std, Normal(1.0))
    by_layer = prune_by_evidence(posterior, weight_evidence(), allow_empty_layers=True)
    shared = prune_by_evidence(posterior, weight_evidence(scope="global"), allow_empty_layers=True)
    assert by_layer.keep[200:210].all()
    assert shared.keep[200:207].all()
    assert not shared.keep[207:210].any()
    zeta = weight_evidence(scope="global").log_odds(posterior)
    delta = weight_evidence().evidence(posterior)[:210].double()
    assert zeta["2.weight"] == zeta["0.weight"] == pytest.approx(mask_log_odds(delta).item())
    spared = weight_evidence(scope="global", spare_last=True).log_odds(posterior)
    assert spared["0.weight"] == pytest.approx(mask_log_odds(delta[:200]).item())


def test_weight_and_bias_of_a_layer_share_their_odds_and_are_spared_together():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    network = Network.of(model, Gaussian(), PAPER_ROLES)
    mean = torch.zeros(26)
    mean[:12] = 2.0  # all weights of the first layer are needed, none of its biases
    posterior = Factorised(network, mean, torch.full((26,), 0.3), Normal(1.0))
    zeta, delta = (
        weight_evidence().log_odds(posterior),
        weight_evidence().evidence(posterior).double(),
    )
    layout = network.layout
    both = torch.cat([delta[layout.slices[name]] for name in ("0.weight", "0.bias")])
    assert zeta["0.weight"] == zeta["0.bias"] == pytest.approx(mask_log_odds(both).item())
    spared = prune_by_evidence(
        posterior, weight_evidence("savage-dickey", spare_last=True), allow_empty_layers=True
    )
    kept = {name: int(spared.keep[part].sum()) for name, part in layout.slices.items()}
    assert kept == {"0.weight": 12, "0.bias": 0, "2.weight": 8, "2.bias": 2}


def test_a_threshold_of_probability():
    posterior = posterior_of()
    posterior.mean[:N_WEIGHTS] = torch.linspace(0, 0.6, N_WEIGHTS)
    rule = weight_evidence("savage-dickey")
    kept = [
        int(prune_by_evidence(posterior, rule, threshold=t).keep.sum()) for t in (0.01, 0.5, 0.999)
    ]
    assert kept[0] > kept[1] > kept[2]
    with pytest.raises(ValueError, match=r"^prune_by_evidence: threshold must be between 0 and 1"):
        prune_by_evidence(posterior, rule, threshold=2.0)
