"""BMR and horseshoe engines against exact posteriors, and the paper's smoke test in small."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.scaled import Horseshoe, LayerScaled
from bayesieve.sieve.evidence import prune_by_evidence, weight_evidence
from problems import assert_agrees, conjugate, known_support, renew, run, seeded
from zoo import chain

pytestmark = pytest.mark.slow
K = 24


def test_with_a_known_scale_bmr_has_the_exact_posterior():
    # A Gamma prior this narrow fixes c = 1; what is left is conjugate regression.
    known = conjugate()
    prior = LayerScaled(last_std=known.prior_std, shape=1e6, rate=1e6)
    engine = BMR(prior, Reduction(kl=1.0), lr=0.1, init_std=1e-3)
    state = run(engine, known.problem, 700, n_models=K, decay=True)
    assert_agrees(state.mean, known.mean, known.std, 0.05)
    assert_agrees(state.log_std.exp(), known.std, known.std, 0.05)


def test_the_layer_scale_finds_the_size_of_the_weights():
    # Exact: with many weights c² is near their mean square; they are ten times the base width.
    known = conjugate(n=200, d=40)
    engine = BMR(LayerScaled(last_std=0.1), Reduction(kl=1.0), lr=0.05)
    state = run(engine, known.problem, 700, n_models=2, decay=True)
    second = known.mean.square() + known.std.square()
    # u = c⁻² ~ Gamma(2 + d/2, 2 + Σ e / 2γ₀²) at the fixed point of mean-field inference
    expected_u = (2 + 20) / (2 + second.sum() / (2 * 0.01))
    found_u = (state.scale_mean + 0.5 * (2 * state.scale_log_std).exp()).exp()
    torch.testing.assert_close(
        found_u, expected_u.expand_as(found_u), rtol=0.2, atol=0, check_dtype=False
    )


def test_masks_agree_with_the_exact_evidence_in_an_orthogonal_design():
    known = conjugate(n=64, d=8)
    prior = LayerScaled(last_std=known.prior_std, shape=1e6, rate=1e6)
    reduction = Reduction("savage-dickey", kl=1.0, spare_last=False)
    engine = BMR(prior, reduction, lr=0.05, init_std=1e-3)
    state = run(replace(engine, reduction=None), known.problem, 700, decay=True)
    state.controls.allow_masks_(state.mean)
    ratio = (known.prior_std / known.std).log() - 0.5 * (known.mean / known.std).square()
    clear = ratio.abs() > 0.3
    assert torch.equal(engine.reduced(state)[0, clear], ratio[clear] <= 0)


def test_the_horseshoe_shrinks_noise_and_spares_signals():
    known = known_support()
    problem = known.problem
    engine = HorseshoeVI(Horseshoe(0.1), lr=0.1)
    state = run(engine, problem, 400, decay=True, n_models=2)
    exact = torch.linalg.lstsq(problem.x, problem.y).solution[:, 0]
    active = known.active
    torch.testing.assert_close(state.mean[:, active], exact[active].expand(2, -1), rtol=0, atol=0.1)


def blobs(n):
    """Ten classes in 30 dimensions, of which 10 carry the class."""
    source = seeded(0)
    y = torch.randint(10, (n,), generator=source)
    x = torch.empty(n, 30).normal_(generator=source)
    x[:, :10] += 3 * nn.functional.one_hot(y, 10)
    return x, y


@pytest.mark.parametrize("rule", ["hierarchical", "savage-dickey"])
def test_pruning_grows_and_accuracy_stays(rule):
    x, y = blobs(3000)
    model = chain(30, 40, 10, act=nn.SiLU)
    problem = Problem(model, Categorical(), (x[:2000], y[:2000]))
    reduction = Reduction(rule, steps_per_epoch=100, end=1.0)
    engine = BMR(reduction=reduction, lr=1e-2, start="he")
    state = engine.init(problem, seeded(0))
    order, zeros = seeded(1), []
    for step in range(800):
        renew(engine, problem, state, step, 800)
        index = torch.randint(2000, (128,), generator=order)
        engine.step(problem, state, Batch(problem.x[index], problem.y[index]))
        if step % 100 == 99:
            zeros.append(int((~state.controls.keep).sum()))
    assert zeros == sorted(zeros)
    if rule == "savage-dickey":  # the other rule waits until a layer is sparse enough
        assert zeros[-1] > 0.3 * problem.layout.n_sparse
    posterior = engine.posterior(problem, state)
    draws = posterior.draw(20, seeded(2))
    outputs = problem.network.outputs(draws, x[2000:], {})
    right = (outputs.softmax(-1).mean(0).argmax(1) == y[2000:]).double().mean()
    assert right > 0.82  # the best possible is about 0.87
    again = prune_by_evidence(
        posterior, weight_evidence(rule, prior_std=engine.prior_stds(problem, state))
    )
    assert again.removed >= zeros[-1] / problem.layout.n_sparse
