"""Samplers against posteriors known exactly, by quadrature or by Hamiltonian Monte Carlo.

Chains are independent, so the spread of their own averages gives the standard error. Tolerances are
4 of those plus a stated step-size bias. On a quadratic of curvature c the bias is known exactly:
the variance of SGLD is 1 / (c (1 - ε c / 2)), that of SGHMC solves a 2x2 Lyapunov equation.
"""

import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.priors import Normal
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.engines.sampling import Averaging, Chain
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from problems import assert_agrees, conjugate, known_support, logistic, normal, run, seeded
from zoo import chain

pytestmark = pytest.mark.slow
K = 512


def chain_moments(engine, problem, centre, *, n_steps=300, burn_in=100, batches=None):
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


@pytest.mark.parametrize(
    "engine", [SGLD(Normal(1.0), 4e-3), SGHMC(Normal(1.0), 1e-3)], ids=["sgld", "sghmc"]
)
def test_logistic_regression_agrees_with_quadrature(engine):
    known = logistic()
    mean, std, _ = known.moments()
    first, second = chain_moments(engine, known.problem, mean, n_steps=600, burn_in=300)
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
                                 n_steps=600, batches=batches)  # fmt: skip
    assert_agrees(mean, known.mean, known.std, allowance=0.05)
    assert_agrees(second, known.std.square(), known.std.square(), allowance=0.1)


class SmallNetwork:
    """y = f(x) + N(0, 1), f a network of 3 tanh units with N(0, 1) weights, written by hand.

    Weights are compared through f: the posterior has 48 images of itself under permutations and
    signs of the units, which leave f as it is.
    """

    x = torch.linspace(-2, 2, 16, dtype=torch.float64)
    y = 2 * torch.sin(1.5 * x) + normal(16, seed=8)
    grid = torch.linspace(-3, 3, 5, dtype=torch.float64)

    @property
    def problem(self):
        model = chain(1, 3, 1, dtype=torch.float64)
        return Problem(model, Gaussian(1.0), (self.x[:, None], self.y[:, None]))

    def values(self, w, x):
        """f(x) of weights (k, 10) in the problem's order: both matrices, then both biases."""
        into, out, bias, last = w.split([3, 3, 3, 1], 1)
        hidden = torch.tanh(x[:, None] * into[:, None] + bias[:, None])  # (k, n, 3)
        return (hidden * out[:, None]).sum(-1) + last

    def energy(self, w):
        residual = self.values(w, self.x) - self.y
        return 0.5 * residual.square().sum(1) + 0.5 * w.square().sum(1)

    def gradient(self, w):
        w = w.detach().requires_grad_()
        return torch.autograd.grad(self.energy(w).sum(), w)[0]

    def hamiltonian(self, n_chains, n_draws, burn_in, length=0.12, n_leaps=15):
        """Plain Hamiltonian Monte Carlo with all data and a Metropolis test, (n_draws, k, 10)."""
        source = seeded(3)
        w = torch.empty(n_chains, 10, dtype=torch.float64).normal_(generator=source)
        draws, accepted = [], 0.0
        for i in range(burn_in + n_draws):
            momentum = torch.empty_like(w).normal_(generator=source)
            start = self.energy(w) + 0.5 * momentum.square().sum(1)
            new, momentum = w, momentum - 0.5 * length * self.gradient(w)
            for leap in range(n_leaps):
                new = new + length * momentum
                share = 1.0 if leap < n_leaps - 1 else 0.5
                momentum = momentum - share * length * self.gradient(new)
            change = self.energy(new) + 0.5 * momentum.square().sum(1) - start
            chance = torch.rand(n_chains, generator=source, dtype=torch.float64)
            take = chance.log() < -change
            w = torch.where(take[:, None], new, w)
            if i >= burn_in:
                draws.append(w)
                accepted += take.double().mean().item() / n_draws
        assert 0.6 < accepted < 0.99
        return torch.stack(draws)


@pytest.fixture(scope="module")
def exact():
    """Of f on the grid: posterior mean, (5,); mean and spread about it of each chain, (K, 5)."""
    known = SmallNetwork()
    draws = known.hamiltonian(K, n_draws=60, burn_in=40)
    f = torch.stack([known.values(w, known.grid) for w in draws])
    centre = f.mean((0, 1))
    return centre, f.mean(0), (f - centre).square().mean(0)


@pytest.mark.parametrize(
    ("engine", "n_steps", "bias"),
    [(SGLD(Normal(1.0), 4e-3), 1200, 0.05), (SGHMC(Normal(1.0), 1e-3), 1000, 0.02)],
    ids=["sgld", "sghmc"],
)
def test_a_small_network_agrees_with_hamiltonian_monte_carlo(engine, n_steps, bias, exact):
    known, (centre, mean, spread) = SmallNetwork(), exact
    problem = known.problem
    state = engine.init(problem, seeded(0), K)
    state.w.normal_(generator=seeded(1))  # from the prior, as the reference
    moments = [torch.zeros(K, 5, dtype=torch.float64) for _ in range(2)]
    kept = range(n_steps // 2, n_steps, 10)
    for step in range(n_steps):
        engine.step(problem, state, Batch(problem.x, problem.y))
        if step in kept:
            f = known.values(state.w, known.grid) - centre
            moments[0] += (f + centre) / len(kept)
            moments[1] += f.square() / len(kept)
    # Curvature is at most 1 + Σ h² ≤ 49: along that one direction the variance is too large by
    # ε c / 2 < 10 % for SGLD and 1.3 % for SGHMC; f mixes it with flatter ones.
    variance = spread.mean(0)
    pairs = ((moments[0], mean, variance.sqrt()), (moments[1], spread, variance))
    for ours, theirs, size in pairs:
        error = ((ours.var(0) + theirs.var(0)) / K).sqrt()
        assert (4 * error < 0.25 * size).all(), "the run is too short to judge"
        distance = (ours.mean(0) - theirs.mean(0)).abs()
        assert (distance <= 4 * error + bias * size).all(), (distance / size, error / size)


@pytest.mark.parametrize("adapt", ["sa", "em"])
@pytest.mark.parametrize(("kind", "step_size"), [(SGLD, 1e-4), (SGHMC, 1e-5)])
def test_inclusion_finds_the_inputs_that_matter(kind, step_size, adapt):
    known = known_support()
    chain = Chain(burn_in=300, thin=15, n_kept=20)
    prior, averaging = GaussianLaplace(0.1, scale=0.5), Averaging(10.0)
    engine = kind(prior, step_size, adapt=adapt, averaging=averaging, chain=chain)
    state = run(engine, known.problem, 600)
    posterior = engine.posterior(known.problem, state)
    assert (posterior.inclusion[known.active] > 0.9).all()
    assert (posterior.inclusion[~known.active] < 0.5).all()
    assert posterior.mean[~known.active].abs().max() < 0.15
