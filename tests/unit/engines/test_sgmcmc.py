"""Special cases of the samplers' moves, their schedules and what they keep."""

import math

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.priors import Normal
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.core.random import counter_normals, fresh_keys
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from problems import BY_COUNTER, conjugate, no_data, run, run_by, seeded

F64 = torch.float64


def log_posterior_gradient(known, w):
    return -(w - known.mean) @ known.precision


def test_temperature_zero_is_gradient_ascent():
    known = conjugate(orthogonal=False)
    state = run(SGLD(Normal(0.5), 1e-3, 0.0), known.problem, 3)
    w = torch.zeros(1, 4, dtype=F64)
    for _ in range(3):
        w = w + 1e-3 * log_posterior_gradient(known, w)
    torch.testing.assert_close(state.w, w)


def test_temperature_zero_with_momentum_is_heavy_ball():
    known = conjugate(orthogonal=False)
    state = run(SGHMC(Normal(0.5), 1e-3, 0.0, friction=0.2), known.problem, 5)
    w, v = torch.zeros(1, 4, dtype=F64), torch.zeros(1, 4, dtype=F64)
    for _ in range(5):
        v = 0.8 * v + 1e-3 * log_posterior_gradient(known, w)
        w = w + v
    torch.testing.assert_close(state.w, w)


def test_full_friction_is_langevin():
    known = conjugate()
    prior = GaussianLaplace(0.3, 1.0)
    slow = SGLD(prior, 1e-3, adapt="sa")
    fast = SGHMC(prior, 1e-3, adapt="sa", friction=1.0, gradient_variance=0.0)
    ours, theirs = (run(engine, known.problem, 20, n_models=2) for engine in (slow, fast))
    torch.testing.assert_close(ours.w, theirs.w)
    torch.testing.assert_close(ours.latents.rho, theirs.latents.rho)


def test_point_parameters_climb_without_noise_or_prior():
    data = torch.ones(8, 1, dtype=F64), 3 * torch.ones(8, 1, dtype=F64)
    model = nn.Linear(1, 1, bias=False).double()
    problem = Problem(model, Gaussian(learned=True), data)
    state = run(SGLD(step_size=1e-3), problem, 1, n_models=2)
    start = SGLD().init(problem, seeded(0), 2).w
    square = (3 - start[:, 0]).square()
    torch.testing.assert_close(state.w[:, 1], 1e-3 * 8 * (square - 1))


@pytest.mark.parametrize(("kind", "share"), [(SGLD, 1.0), (SGHMC, 0.1 - 0.5 * 1e-3)])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_metric_scales_step_and_noise_alike(kind, share, scaled):
    known = conjugate()
    engine = kind(Normal(0.5), 1e-3, 0.5, preconditioned=scaled)
    state = engine.init(known.problem, seeded(0))
    noise = torch.empty(1, 4, dtype=F64).normal_(generator=seeded(0))
    grad = log_posterior_gradient(known, torch.zeros(1, 4, dtype=F64))
    engine.step(known.problem, state, Batch(known.x, known.y))
    square = 0.99 + 0.01 * (grad / 32).square()
    metric = 1 / (square.sqrt() + 1e-5) if scaled else torch.ones(())
    expected = 1e-3 * metric * grad + (2 * 1e-3 * share * 0.5 * metric).sqrt() * noise
    torch.testing.assert_close(state.w, expected)


def test_step_sizes_fall_and_cycle():
    steps = torch.tensor([1.0, 8.0, 27.0], dtype=F64)
    assert Chain(power=1 / 3).factor(steps).tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert Chain(power=1.0, delay=7.0).factor(steps[:2]).tolist() == pytest.approx([1, 1 / 2])
    cycle = Chain(cycle=4).factor(torch.arange(1, 9, dtype=F64))
    half = [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]
    assert cycle.tolist() == pytest.approx(half * 2)


def test_cooling_multiplies_the_temperature():
    engine = SGLD(step_size=0.5, chain=Chain(cooling=0.25))
    problem = no_data()
    state = engine.init(problem, seeded(0))
    state.precision.zero_()
    noise = [torch.empty(1, 3, dtype=F64).normal_(generator=g) for g in [seeded(0)] for _ in "ab"]
    for _ in range(2):
        engine.step(problem, state, Batch(problem.x, problem.y))
    torch.testing.assert_close(state.w, noise[0] + 0.5 * noise[1])


def test_warming_starts_without_noise_and_ends_at_the_temperature():
    steps = torch.arange(1, 7, dtype=F64)
    assert Chain(warming=4).heat(steps).tolist() == [0, 0.25, 0.5, 0.75, 1, 1]
    both = Chain(warming=2, cooling=0.5).heat(steps)
    assert both.tolist() == [0, 0.25, 0.25, 0.125, 0.0625, 0.03125]
    engine = SGLD(step_size=0.5, temperature=4.0, chain=Chain(warming=4))
    problem = no_data()
    state = engine.init(problem, seeded(0))
    state.precision.zero_()
    start, noise = state.w.clone(), seeded(0)
    for heat in (0.0, 1.0, 2.0):  # of 4 in all
        expected = start + heat**0.5 * torch.empty(1, 3, dtype=F64).normal_(generator=noise)
        engine.step(problem, state, Batch(problem.x, problem.y))
        torch.testing.assert_close(state.w, expected)
        start = expected


@pytest.mark.parametrize(("n_steps", "expected"), [
    (0, [0]), (2, [2]), (4, [4]), (5, [5]), (6, [6]), (7, [6, 7]), (9, [6, 8, 9]),
    (12, [8, 10, 12]), (13, [10, 12, 13]),
])  # fmt: skip
def test_the_ring_keeps_the_newest_thinned_positions_oldest_first(n_steps, expected):
    engine = SGLD(step_size=1e-2, chain=Chain(burn_in=4, thin=2, n_kept=3))
    known = conjugate()
    problem = known.problem
    state = engine.init(problem, seeded(0), 2)
    path = [state.w.clone()]
    for _ in range(n_steps):
        engine.step(problem, state, Batch(problem.x, problem.y))
        path.append(state.w.clone())
    for i in range(2):
        draws = engine.posterior(problem, state, i).draws
        assert torch.equal(draws, torch.stack([path[step][i] for step in expected]))
        since = path[5:] or path[-1:]
        average = engine.average(problem, state, i).draws
        torch.testing.assert_close(average, torch.stack([w[i] for w in since]).mean(0)[None])


class InverseTimes(TorchFunctionMode):
    """Divides by a number as compiled code may: by multiplying with its rounded inverse."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.__truediv__, torch.Tensor.div, torch.div):
            return args[0] * torch.tensor(1 / args[1], dtype=args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("thin", [1, 7, 500])
def test_no_rounding_of_a_quotient_moves_a_draw(thin):
    steps = torch.arange(1, 5000, dtype=torch.float32)
    expected = [max(1, -((10 - step) // thin)) for step in range(1, 5000)]
    with InverseTimes():
        assert (torch.tensor([21.0]) / 7).item() != 3  # what this test is about
        seen = Chain(burn_in=10, thin=thin).n_seen(steps)
    assert seen.tolist() == expected


def test_a_warm_start_replaces_the_first_draw_and_the_average():
    known = conjugate()
    problem, engine = known.problem, SGHMC(step_size=1e-3)
    posterior = engine.posterior(problem, run(engine, problem, 5))
    state = engine.init(problem, seeded(1), 2)
    engine.warm_start_(state, posterior)
    for samples in (engine.posterior(problem, state, 1), engine.average(problem, state, 1)):
        torch.testing.assert_close(samples.mean, posterior.mean)


@pytest.mark.parametrize("engine", [SGLD(step_size=1e-3), SGHMC(step_size=1e-3)], ids=["l", "h"])
def test_a_compiled_cpu_step_draws_by_counter(engine):
    problem = run_by(no_data(), BY_COUNTER)  # as compiled, up to rounding
    state = engine.init(problem, seeded(1))
    noise = counter_normals((1, 3), fresh_keys(state.generator.clone_state()), F64)
    engine.step(problem, state, Batch(problem.x, problem.y))
    torch.testing.assert_close(state.w / state.w[0, 0], noise / noise[0, 0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thin": 0}, "thin must be > 0"),
        ({"n_kept": 0}, "n_kept must be > 0"),
        ({"burn_in": -1}, "burn_in must be >= 0"),
        ({"cooling": 0.0}, "cooling must be > 0"),
        ({"power": -1.0}, "power must be >= 0"),
        ({"warming": -1}, "warming must be >= 0"),
    ],
)
def test_impossible_chains_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"^Chain: {message}"):
        Chain(**settings)


@pytest.mark.parametrize("step_size", [0.21, (1e-3, 0.21)])
def test_more_noise_from_the_gradient_than_friction_takes_out_is_refused(step_size):
    # β̂ = ½ V ε must not exceed α, of any chain
    with pytest.raises(ValueError, match=r"SGHMC: gradient_variance.* must be <= friction"):
        SGHMC(step_size=step_size, friction=0.1)
    assert SGHMC(step_size=0.2, friction=0.1).step_size == 0.2


def refuse(self, *args):
    raise AssertionError("a step must not read a tensor's value: it could not be captured")


@pytest.mark.parametrize(
    "engine",
    [
        SGLD(GaussianLaplace(), 1e-5, adapt="sa", chain=Chain(burn_in=1, thin=2, power=0.3)),
        SGHMC(GaussianLaplace(), 1e-5, adapt="em", chain=Chain(cycle=3, cooling=0.9)),
        SGHMC(step_size=1e-5, preconditioned=True, chain=Chain(warming=3)),
    ],
    ids=["sgld-sa", "sghmc-em", "sghmc-rms"],
)
@pytest.mark.parametrize("k", [1, 2])
def test_no_step_waits_for_a_tensors_value(engine, k, monkeypatch):
    problem = conjugate().problem
    state = run(engine, problem, 1, n_models=k)  # whether vmap works is found out once
    batch = Batch(problem.x, problem.y)
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu"):
            patch.setattr(torch.Tensor, name, refuse)
        for _ in range(3):
            engine.step(problem, state, batch)
    assert state.step == 4
