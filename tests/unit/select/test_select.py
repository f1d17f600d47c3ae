"""Importance, selection, error control and stability of inputs, against answers by other routes."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayesieve import select
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.engines.sbnn import SBNN
from bayesieve.errors import UnsupportedModelError
from bayesieve.nets import mlp
from bayesieve.select.importance import linear_layers
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from engine_table import ENGINES
from problems import seeded
from zoo import Calling, built


def random_matrices(sizes, seed):
    source = seeded(seed)
    pairs = itertools.pairwise(sizes)
    return [torch.rand(b, a, generator=source, dtype=torch.float64) for a, b in pairs]


def by_enumeration(matrices):
    """ψ as its definition reads: the mean over paths, and outputs, of the product along each."""
    sizes = [m.shape[1] for m in matrices] + [matrices[-1].shape[0]]
    psi = []
    for j in range(sizes[0]):
        products = [
            math.prod(m[b, a].item() for m, (a, b) in zip(matrices, itertools.pairwise((j, *path)),
                                                          strict=True))
            for path in itertools.product(*(range(n) for n in sizes[1:]))
        ]  # fmt: skip
        psi.append(sum(products) / len(products))
    return torch.tensor(psi, dtype=torch.float64)


def posterior_of(matrices, **fields):
    layers = [nn.Linear(m.shape[1], m.shape[0], bias=False) for m in matrices]
    network = Network.of(nn.Sequential(*layers).double(), Gaussian())
    flat = torch.cat([m.flatten() for m in matrices])
    given_fields = {"std": torch.ones_like(flat), "logit_inclusion": flat.logit()} | fields
    return Factorised(network, flat, **given_fields)


@pytest.mark.parametrize("sizes", [(3, 4, 2, 1), (3, 1), (2, 3, 3), (4, 2, 2, 2, 2)])
def test_psi_is_the_mean_over_paths(sizes):
    matrices = random_matrices(sizes, seed=1)
    torch.testing.assert_close(select.path_importance(matrices), by_enumeration(matrices))


def test_psi_of_a_posterior_uses_its_inclusion_and_ignores_biases():
    matrices = random_matrices((3, 4, 1), seed=2)
    network = Network.of(mlp((3,), 1, widths=(4,)).double(), Gaussian())
    logit = torch.full((network.layout.size,), -3.0, dtype=torch.float64)
    for name, matrix in zip(("fc1.weight", "out.weight"), matrices, strict=True):
        logit[network.layout.slices[name]] = matrix.flatten().logit()
    zero = torch.zeros_like(logit)
    actual = select.feature_importance(Factorised(network, zero, zero + 1, None, logit))
    torch.testing.assert_close(actual.psi, by_enumeration(matrices))
    assert actual.source == "inclusion"


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_psi_does_not_depend_on_the_order_of_hidden_units(seed):
    first, second, third = random_matrices((3, 5, 4, 2), seed)
    order = torch.randperm(5, generator=seeded(seed + 1))
    psi = select.path_importance([first, second, third])
    shuffled = select.path_importance([first[order], second[:, order], third])
    torch.testing.assert_close(psi, shuffled)
    ones = [torch.ones_like(m) for m in (first, second, third)]
    torch.testing.assert_close(select.path_importance(ones), torch.ones(3).double())


def test_psi_of_a_wide_deep_network_does_not_underflow():
    matrices = [torch.full((1000, 1000), 0.9) for _ in range(20)]
    assert select.path_importance(matrices)[0].item() == pytest.approx(0.9**20, rel=1e-4)


def test_phi_spans_zero_to_one_and_is_zero_for_equal_inputs():
    phi = select.normalised(torch.tensor([[2.0, 4.0, 3.0], [5.0, 5.0, 5.0]]))
    assert phi.tolist() == [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]


def test_a_constant_input_cannot_matter_and_a_binary_one_has_one_function():
    source = seeded(21)
    x = torch.randn(200, 3, generator=source)
    x[:, 1], x[:, 2] = 0.0, (x[:, 2] > 0).float() * 2 - 1
    model = select.additive_network(x, n_hinges=2)
    assert model[0].present.sum(1).tolist() == [3, 0, 1]
    network = Network.of(model, Gaussian())
    d = network.layout.size
    flat, logit = torch.full((d,), 0.2), torch.zeros(d)
    posterior = Factorised(network, flat, torch.full((d,), 0.1), Normal(1.0), logit)
    psi = select.feature_importance(posterior).psi
    assert psi.tolist() == pytest.approx([0.5, 0.0, 0.5 / 3])


def test_evidence_of_a_slab_by_quadrature():
    prior = SpikeSlab(slab_std=0.8, spike_std=0.1)
    mean = torch.tensor([[0.3, 0.02]], dtype=torch.float64)
    std = torch.tensor([0.07, 0.05], dtype=torch.float64)
    logit = torch.tensor([1.5, -2.0], dtype=torch.float64)
    posterior = posterior_of([mean], std=std, prior=prior, logit_inclusion=logit)
    p = logit.sigmoid()
    grid = torch.linspace(-4, 4, 400_001, dtype=torch.float64)
    for i in range(2):
        precision = p[i] / 0.8**2 + (1 - p[i]) / 0.1**2
        q = torch.distributions.Normal(mean[0, i], std[i]).log_prob(grid)
        log_lik = q + 0.5 * precision * grid.square()  # up to a constant that cancels
        slab = torch.distributions.Normal(0.0, 0.8).log_prob(grid)
        with_slab = torch.trapezoid((log_lik + slab).exp(), grid).log()
        at_zero = log_lik[200_000]
        actual = select.weight_log_bayes_factors(posterior)[i]
        assert actual.item() == pytest.approx((with_slab - at_zero).item(), rel=1e-5)


def test_evidence_takes_the_prior_of_the_posterior_or_named_stds():
    matrices = random_matrices((3, 2, 1), seed=6)
    with_prior = posterior_of(matrices, prior=Normal(0.7), logit_inclusion=None)
    bare = posterior_of(matrices, logit_inclusion=None)
    named = dict.fromkeys(linear_layers(bare.network), 0.7)
    torch.testing.assert_close(
        select.feature_importance(with_prior).psi,
        select.feature_importance(bare, prior_stds=named).psi,
    )
    with pytest.raises(ValueError, match="prior_stds, or use source='magnitude'"):
        select.feature_importance(bare)


@pytest.mark.parametrize("name", ["map", "flat_vi", "sbnn", "bmr", "sgld-sa", "sghmc-em", "tdamp"])
def test_every_engine_has_importances(name):
    x = torch.randn(64, 3, generator=seeded(0))
    problem = Problem(mlp((3,), 1, widths=(4,)), Gaussian(0.5), (x, x[:, 0]))
    run = fit(problem, ENGINES[name], steps=4, batch_size=32)
    prior_stds = run.engine.prior_stds(run.problem, run.state) if name == "bmr" else None
    source = "magnitude" if name == "map" else None
    actual = select.feature_importance(run.posterior, source=source, prior_stds=prior_stds)
    assert actual.psi.shape == (3,)
    assert bool(((actual.phi >= 0) & (actual.phi <= 1)).all())


@pytest.mark.slow
def test_an_additive_network_counts_by_input():
    x = torch.randn(500, 4, generator=seeded(21))
    y = x[:, 1].abs() + 0.1 * torch.randn(500, generator=seeded(22))
    model = select.additive_network(x, n_hinges=3)
    engine = SBNN(SpikeSlab(1.0, 0.03), lr=1e-2, init_std=0.01, local=True)
    run = fit(Problem(model, Gaussian(0.5, learned=True), (x, y)), engine, epochs=60, batch_size=50,
              schedule=Schedule(lr="cosine"))  # fmt: skip
    assert select.feature_importance(run.posterior).phi.argmax() == 1


def test_hinges_of_an_input_are_orthonormal_and_span_piecewise_lines():
    x = torch.randn(300, 2, generator=seeded(23))
    x[:, 1] = (x[:, 1] > 0).float()  # two values: one function says it all
    basis = select.HingeBasis(x, 3)
    values = basis(x).view(300, 2, 4)
    gram = torch.einsum("ndk,ndm->dkm", values, values) / 300
    torch.testing.assert_close(gram[0], torch.eye(4), atol=2e-4, rtol=0)
    torch.testing.assert_close(gram[1], torch.diag(torch.tensor([1.0, 0, 0, 0])), atol=1e-4, rtol=0)
    kink = basis.places[0, 1]
    truth = (x[:, :1] - kink).abs()
    design = torch.cat([values[:, 0], torch.ones(300, 1)], 1)
    fitted = design @ torch.linalg.lstsq(design, truth).solution
    torch.testing.assert_close(fitted, truth, atol=1e-3, rtol=0)


def test_one_draw_has_no_evidence():
    network = Network.of(nn.Sequential(nn.Linear(2, 1)), Gaussian())
    with pytest.raises(
        ValueError, match=r"^feature importance: a single draw .* Use source='magnitude'"
    ):
        select.weight_probabilities(Samples(network, torch.ones(1, 3)), "evidence",
                                      {"0.weight": 1.0})  # fmt: skip


def forked():
    return Calling(lambda s, x: s.b(x + s.a(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 1))


@pytest.mark.parametrize("module", [forked(), nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(3, 1))])
def test_networks_that_are_not_sequential_are_refused(module):
    with pytest.raises(UnsupportedModelError, match="sequence of Linear"):
        linear_layers(Network.of(module, Gaussian()))


def test_a_fraction_keeps_exactly_that_many_whatever_the_ties():
    keep = select.select_fraction(torch.zeros(3, 10), 0.25)
    assert keep.sum(1).tolist() == [2, 2, 2]
    assert select.select_fraction(torch.arange(5.0), 0.0).tolist() == [False] * 4 + [True]


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_fdr_rule_is_the_largest_set_within_the_level_of_probable_inputs(values, level):
    probability = torch.tensor(values, dtype=torch.float64)
    keep = select.select_fdr(probability, level)
    assert select.expected_fdr(probability, keep) <= level + 1e-9
    best = 0
    for mask in itertools.product((False, True), repeat=len(values)):
        chosen = torch.tensor(mask)
        if select.expected_fdr(probability, chosen) <= level and probability[chosen].ge(0.5).all():
            best = max(best, int(chosen.sum()))
    assert int(keep.sum()) >= best
    assert probability[keep].ge(0.5).all()


def test_certain_inputs_do_not_pay_for_one_that_is_almost_surely_null():
    probability = torch.tensor([1.0] * 10 + [0.001] * 5)
    assert select.select_fdr(probability, 0.1).tolist() == [True] * 10 + [False] * 5


def test_one_standard_error_rule_by_hand():
    # means 10, 4, 3.48, 3.4, 5; the best is the fourth, its standard error 0.1 · 2 / √4 = 0.1
    base = torch.tensor([10.0, 4.0, 3.48, 3.4, 5.0], dtype=torch.float64)
    spread = torch.tensor([-1.0, -1.0, 1.0, 1.0], dtype=torch.float64)[:, None]
    errors = base + spread * 0.2 * math.sqrt(3) / 2
    path = select.choose_proportion((0.1, 0.2, 0.3, 0.4, 0.5), errors)
    assert path.standard_error[3].item() == pytest.approx(0.1)
    assert path.proportion == 0.3
    assert select.choose_proportion(path.proportions, errors, rule="best").proportion == 0.4
    # every fold agrees that the third is worse by 0.08: paired folds say it cannot be chance
    assert select.choose_proportion(path.proportions, errors, rule="paired").proportion == 0.4
    errors[0, 2] -= (
        0.3  # now one fold prefers it: excess -0.2, 0.1, 0.1, 0.1; mean 0.025, s.e. 0.075
    )
    assert select.choose_proportion(path.proportions, errors, rule="paired").proportion == 0.3
    assert select.choose_proportion(path.proportions, errors, rule="generous").proportion == 0.4
    errors[0, 4] -= 6.5  # excess -4.9, 1.6, 1.6, 1.6; mean -0.025: the new best
    assert select.choose_proportion(path.proportions, errors, rule="generous").proportion == 0.5


class LinearFits:
    """Ranks by |correlation| and refits by least squares: the slow and obvious TableFits."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def importance(self, rows):
        return torch.stack([(self.x[r] * self.y[r, None]).mean(0).abs() for r in rows])

    def errors(self, rows, held_out, keep):
        actual = []
        for train, test, mask in zip(rows, held_out, keep, strict=True):
            assert not set(train.tolist()) & set(test.tolist())
            weights = torch.linalg.lstsq(self.x[train][:, mask], self.y[train, None]).solution
            actual.append((self.x[test][:, mask] @ weights - self.y[test, None]).square().mean())
        return torch.stack(actual)


def test_cross_validation_finds_the_number_of_inputs_that_matter():
    source = seeded(7)
    x = torch.randn(400, 20, generator=source)
    y = x[:, :5].sum(1) + 0.5 * torch.randn(400, generator=source)
    path = select.cross_validate_proportion(LinearFits(x, y), 400, seeded(8))
    assert path.errors.shape == (10, 20)
    assert path.proportion == 0.25
    with pytest.raises(ValueError, match="n_folds must be 2 to 4"):
        select.folds(4, 5, seeded(0))


def test_stability_is_one_for_agreement_and_about_zero_for_chance():
    same = torch.tensor([[True, True, False, False]] * 5)
    assert select.selection_stability(same)[1] == pytest.approx(1.0)
    chance = torch.rand(400, 50, generator=seeded(11)).argsort(1) < 10
    frequency, index = select.selection_stability(chance)
    assert abs(index) < 0.02
    assert frequency.sum().item() == pytest.approx(10, rel=1e-5)
    assert math.isnan(select.selection_stability(torch.ones(3, 2, dtype=torch.bool))[1])


def test_bootstrap_rows_repeat_rows():
    rows = select.bootstrap_rows(100, 3, seeded(12))
    assert [len(set(sample.tolist())) < 100 for sample in rows] == [True] * 3


def test_sbnn_ranks_the_inputs_that_matter_first():
    source = seeded(13)
    x = torch.randn(400, 8, generator=source)
    y = x[:, 0] - x[:, 3].abs() + 0.3 * torch.randn(400, generator=source)
    engine = SBNN(SpikeSlab(1.0, math.exp(-2)), lr=1e-2, init_std=0.02, local=True)
    model = built(lambda: mlp((8,), 1, widths=(10,)))
    problem = Problem(model, Gaussian(0.5), (x, (y - y.mean()) / y.std()))
    run = fit(problem, engine, epochs=60, batch_size=50, seed=0)
    phi = select.feature_importance(run.posterior).phi
    assert set(phi.topk(2).indices.tolist()) == {0, 3}


def test_figures_are_written_and_check_their_input(tmp_path):
    from bayesieve.assess.figures.features import error_path, importance_bars

    names = [f"x{j}" for j in range(50)]
    values = torch.linspace(0, 1, 50)
    kept = [bool(v > 0.5) for v in values]
    figure = importance_bars(
        names, values, tmp_path / "a.png", low=values - 0.1, high=values + 0.1, kept=kept
    )
    assert figure.read_bytes()[1:4] == b"PNG"
    path = tmp_path / "b.png"
    error_path([1, 2], [0.4, 0.3], path, standard_error=[0.1, 0.1], chosen=0)
    assert path.stat().st_size > 1000
    with pytest.raises(ValueError, match="one length"):
        importance_bars(["a"], [0.1, 0.2], tmp_path / "e.png")
    with pytest.raises(ValueError, match="given together"):
        importance_bars(["a"], [0.1], tmp_path / "e.png", low=[0.0])
