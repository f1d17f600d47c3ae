"""Samplers against posteriors known exactly or by quadrature.

Chains are independent, so the spread of their own averages gives the standard error. Tolerances are
4 of those plus a stated step-size bias. On a quadratic of curvature c the bias is known exactly:
the variance of SGLD is 1 / (c (1 - ε c / 2)), that of SGHMC solves a 2x2 Lyapunov equation.
"""

import math

import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

from bayesieve.core.batch import Batch
from bayesieve.core.gaussian_laplace import GaussianLaplace
from bayesieve.core.priors import Normal
from bayesieve.engines._adaptive_prior import Averaging
from bayesieve.engines._chain import Chain
from bayesieve.engines.sghmc import SGHMC
from bayesieve.engines.sgld import SGLD
from problems import conjugate, known_support, logistic, run, seeded

pytestmark = pytest.mark.slow
K = 64


def chain_moments(engine, problem, centre, *, n_steps=1500, burn_in=300, batches=None):
    """Mean position and mean square distance from `centre` of every chain, both (K, d)."""
    state = engine.init(problem, seeded(0), K)
    batches = batches or [Batch(problem.x, problem.y)]
    first, second = torch.zeros_like(state.w), torch.zeros_like(state.w)
    for step in range(n_steps):
        engine.step(problem, state, batches[step % len(batches)])
        if step >= burn_in:
            first += state.w / (n_steps - burn_in)
            second += (state.w - centre).square() / (n_steps - burn_in)
    return first, second


def assert_agrees(samples, exact, scale, allowance=0.0):
    error = samples.std(0) / math.sqrt(len(samples))
    assert (4 * error < 0.2 * scale).all(), "the run is too short to judge"
    distance = (samples.mean(0) - exact).abs()
    assert (distance <= 4 * error + allowance * scale).all(), (distance / scale, error / scale)


def langevin_variance(curvature, engine):
    return engine.temperature / (curvature * (1 - engine.step_size * curvature / 2))


def hamiltonian_variance(curvature, engine):
    """Stationary variance of w under w' = w + v', v' = (1 - α) v - ε c w + noise."""
    keep, push = 1 - engine.friction, -engine.step_size * curvature
    matrix = [[1 + push, keep], [push, keep]]
    share = engine.friction - 0.5 * engine.gradient_variance * engine.step_size
    noise = 2 * engine.step_size * share * engine.temperature
    return float(solve_discrete_lyapunov(matrix, [[noise, noise], [noise, noise]])[0, 0])


SAMPLERS = {
    "sgld": SGLD(Normal(0.5), 2e-3),
    "sgld-cold": SGLD(Normal(0.5), 2e-3, 0.25),
    "sghmc": SGHMC(Normal(0.5), 5e-4),
    "sghmc-hot": SGHMC(Normal(0.5), 2e-4, 2.0, friction=0.3),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_conjugate_regression_has_the_exact_moments(name):
    known, engine = conjugate(), SAMPLERS[name]
    mean, second = chain_moments(engine, known.problem, known.mean)
    variance = hamiltonian_variance if isinstance(engine, SGHMC) else langevin_variance
    curvature = known.precision.diagonal()
    exact = torch.tensor([variance(c, engine) for c in curvature.tolist()])
    assert_agrees(mean, known.mean, exact.sqrt())
    assert_agrees(second, exact, exact)
    ideal = engine.temperature / curvature
    assert ((exact / ideal - 1).abs() < 0.06).all()  # the step-size bias itself


def test_halving_the_step_halves_the_bias():
    curvature = 54.0
    for engine, variance in ((SGLD, langevin_variance), (SGHMC, hamiltonian_variance)):
        biases = [variance(curvature, engine(step_size=s)) * curvature - 1 for s in (2e-4, 1e-4)]
        assert biases[0] / biases[1] == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("friction", [0.1, 0.3, 1.0])
def test_the_bias_of_momentum_has_a_closed_form(friction):
    engine = SGHMC(step_size=1e-3, friction=friction, gradient_variance=0.0)
    exact = 1 / (54 * (1 - 1e-3 * 54 / (2 * (2 - friction))))  # eq. H3
    assert hamiltonian_variance(54.0, engine) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    "engine",
    [SGLD(Normal(1.0), 4e-3), SGHMC(Normal(1.0), 1e-3)],
    ids=["sgld", "sghmc"],
)
def test_logistic_regression_agrees_with_quadrature(engine):
    known = logistic()
    mean, std, _ = known.moments()
    first, second = chain_moments(engine, known.problem, mean, n_steps=4000, burn_in=500)
    # Curvature is at most 1 + Σ x² / 4, about 12: a bias of up to ε c / 2 = 2.5 % in variance.
    assert_agrees(first, mean, std, allowance=0.02)
    assert_agrees(second, std.square(), std.square(), allowance=0.03)


def test_correlated_inputs_are_no_obstacle():
    known = conjugate(orthogonal=False)
    mean, second = chain_moments(SGHMC(Normal(0.5), 5e-4), known.problem, known.mean)
    assert_agrees(mean, known.mean, known.std)
    assert_agrees(second, known.std.square(), known.std.square(), allowance=0.05)


def test_minibatches_give_the_same_mean_and_a_variance_not_below():
    # Drops of N/n would quarter the data's precision. Gradient noise adds variance of order ε.
    known = conjugate()
    batches = [Batch(known.x[i : i + 8], known.y[i : i + 8]) for i in range(0, 32, 8)]
    mean, second = chain_moments(SGLD(Normal(0.5), 5e-4), known.problem, known.mean,
                                 n_steps=4000, batches=batches)  # fmt: skip
    assert_agrees(mean, known.mean, known.std, allowance=0.05)
    assert_agrees(second, known.std.square(), known.std.square(), allowance=0.1)


@pytest.mark.parametrize("adapt", ["sa", "em"])
@pytest.mark.parametrize(("kind", "step_size"), [(SGLD, 1e-4), (SGHMC, 1e-5)])
def test_inclusion_finds_the_inputs_that_matter(kind, step_size, adapt):
    known = known_support()
    chain = Chain(burn_in=1000, thin=50, n_kept=20)
    prior, averaging = GaussianLaplace(0.1, scale=0.5), Averaging(10.0)
    engine = kind(prior, step_size, adapt=adapt, averaging=averaging, chain=chain)
    state = run(engine, known.problem, 2000)
    posterior = engine.posterior(known.problem, state)
    assert (posterior.inclusion[known.active] > 0.9).all()
    assert (posterior.inclusion[~known.active] < 0.5).all()
    assert posterior.mean[~known.active].abs().max() < 0.15
