"""Twins in C against their definitions: the same numbers up to rounding.

Steps of every engine run by both from the same state and with the same normals. The network has
layers of odd sizes and of more than a chunk, point parameters and a layer it does not use.
"""

import gc
import weakref
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from torch import nn

from bayesieve.core import execution
from bayesieve.core.batch import Batch
from bayesieve.core.execution import TWINS, Backend
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.noise import LocalLayer, WeightNoise, spread_
from bayesieve.core.priors import Normal, SpikeSlab, mixture_precision
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.core.random import counter_normals, fresh_keys, gaussian_draws
from bayesieve.core.state import named_tensors
from bayesieve.engines import horseshoe
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.optimisers import pace_of
from bayesieve.engines.sampling import Averaging, Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.scaled import Horseshoe, LayerScaled, Rates
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.engines.variational import adam_step_
from bayesieve.fast import native, twins
from bayesieve.fast.backend import Machine, should_run_natively
from bayesieve.fast.layers import fused_layer
from bayesieve.nets import mlp
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from problems import IN_C, no_data, normal, run, run_by, seeded

LR = (1e-2, 1e-3, 3e-2)  # of three models
SLABS = SpikeSlab(slab_std=(0.5, 1.0, 0.2), spike_std=(0.05, 0.1, 0.02), slab_prob=0.3)
SCALES = LayerScaled(shape=(2.0, 3.0, 1.5), rate=2.5)
SHOES = Horseshoe(std=(0.01, 0.1, 1.0), shape=(2.0, 3.0, 1.5), rate=2.5)
MIXED = GaussianLaplace(
    spike_scale=(0.3, 0.1, 0.5), slab_std=1.5, slab_prob=0.4, slab_share=0.1, scale=0.8, decay=2.5
)
DRAWN, SPREAD = {"draw"}, {"spread"}  # twins, of one model with those of its layers
LAYERS = {"square", "perturb", "perturb_back"}
SCALED = {"scale", "adabelief"}
CASES = {
    "map": (MAP(lr=LR), {"adam_points"}),
    "map-decay": (MAP(lr=1e-2, weight_decay=0.1), {"adam_points"}),
    "sbnn": (SBNN(SLABS, lr=LR, init_std=0.05), DRAWN | {"adam"}),
    "flat_vi": (FlatVI(Normal((0.3, 1.0, 2.0)), lr=1e-2, init_std=0.1), DRAWN | {"adam"}),
    "sbnn-local": (SBNN(SLABS, lr=LR, init_std=0.05, local=True), SPREAD | {"adam"}),
    "flat_vi-local": (FlatVI(Normal(0.3), lr=1e-2, local=True), SPREAD | {"adam"}),
    "bmr": (BMR(SCALES, lr=LR), DRAWN | SCALED | {"layer_scales"}),
    "bmr-standard": (BMR.paper(), DRAWN | SCALED | {"layer_scales"}),
    "bmr-local": (BMR(SCALES, lr=LR, local=True), SPREAD | SCALED | {"layer_scales"}),
    "horseshoe": (HorseshoeVI(SHOES, lr=LR), DRAWN | SCALED | {"unit_factors", "unit_scales"}),
    "horseshoe-local": (
        HorseshoeVI(Horseshoe(0.1), lr=1e-2, local=True),
        SPREAD | SCALED | {"unit_factors", "unit_scales"},
    ),
    "sgld": (SGLD(Normal(0.5), (1e-3, 1e-4, 1e-2), 0.5), {"move_chains"}),
    "sgld-rms": (SGLD(Normal((0.5, 1.0, 2.0)), 1e-3, preconditioned=True), {"move_chains"}),
    "sgld-sa": (
        SGLD(MIXED, 1e-3, adapt="sa", averaging=Averaging(5.0)), {"move_chains", "follow"},
    ),
    "sghmc": (
        SGHMC(Normal(0.5), 1e-3, friction=0.3, chain=Chain(cycle=3, cooling=0.9)), {"move_chains"},
    ),
    "sghmc-rms": (SGHMC(MIXED, 1e-4, preconditioned=True), {"move_chains"}),
    "sghmc-em": (
        SGHMC(MIXED, 1e-4, adapt="em", chain=Chain(burn_in=1, thin=2, n_kept=2)),
        {"move_chains", "follow"},
    ),
}  # fmt: skip


class Reference(Backend):
    """Runs definitions with the normals of the keys that C would take."""

    dense = True

    def __init__(self, brief=False, layers=False):
        self.brief, self.layers = brief, layers

    def noise(self, like, generator):
        shape = (1, like.numel()) if self.layers else tuple(like.shape)
        return counter_normals(shape, fresh_keys(generator), like.dtype).view(like.shape)

    def in_layers(self, precision):
        return Reference(self.brief, layers=True)

    def fused(self, layer):
        return fused_layer(layer, self)

    def product_dtype(self, layer):
        large = self.brief and layer.weight.numel() > 500
        return torch.bfloat16 if large else layer.weight.dtype


class InC(Machine):
    """C, whose products of variances are in bfloat16 where those of the reference are."""

    brief = False

    def product_dtype(self, layer):
        return Reference(self.brief).product_dtype(layer)


class Net(nn.Module):
    """Odd sizes, a norm, a layer of one unit, and a layer that the output does not need."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.one = nn.Linear(5, 301), nn.LayerNorm(301), nn.Linear(301, 1)
        self.last, self.unused = nn.Linear(301, 3), nn.Linear(301, 2)

    def forward(self, x):
        hidden = self.norm(self.first(x)).tanh()
        return self.last(hidden) + self.one(hidden)


@pytest.fixture(autouse=True)
def library():
    if native.steps() is None:
        pytest.skip("no C compiler")


def problem_of(model=Net, *, real=False, n=40):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = model()
    x = normal(n, 5, seed=1, dtype=torch.float32)
    y = normal(n, 3, seed=2, dtype=torch.float32) if real else torch.arange(n) % 3
    return Problem(network, Gaussian(0.7, learned=True) if real else Categorical(), (x, y))


def in_c(brief=False):
    machine = InC(native=True)
    object.__setattr__(machine, "brief", brief)
    return machine


def started(engine, problem, k, *, masks):
    """A state with random stds, moments and masks."""
    state, source = engine.init(problem, seeded(0), k), seeded(1)
    for name, tensor in named_tensors(state):
        if name.endswith("log_std"):
            tensor.add_(torch.randn(tensor.shape, generator=source), alpha=0.3)
        elif name.endswith("moments.first"):
            tensor.normal_(generator=source).mul_(1e-2)
        elif name.endswith("moments.second"):
            tensor.uniform_(generator=source).mul_(1e-2)
    state.controls.kl_scale.fill_(0.3)
    if masks:
        controls, like = state.controls, getattr(state, "mean", getattr(state, "w", None))
        controls.allow_masks_(like)
        controls.keep.copy_(torch.rand(like.shape, generator=source) < 0.5)
        controls.trained.copy_(torch.rand(like.shape, generator=source) < 0.7)
    return state


def steps_by(backend, engine, k, *, masks, real=False, n_steps=3):
    """What a state holds after some steps."""
    problem = run_by(problem_of(real=real), backend)
    state = started(engine, problem, k, masks=masks)
    for batch in Batch(problem.x, problem.y).parts(20) * n_steps:
        log_lik = engine.step(problem, state, batch)["log_lik"]
    return dict(named_tensors(state)) | {"log_lik": log_lik}


@pytest.fixture
def used(monkeypatch):
    """Names of the twins that run."""
    names = set()
    for name, twin in TWINS.items():

        def spy(*args, name=name, twin=twin):
            result = twin(*args)
            if result is not NotImplemented:
                names.add(name.removeprefix("bayesieve_"))
            return result

        monkeypatch.setitem(TWINS, name, spy)
    return names


def assert_alike(found, wanted, rtol=2e-4):
    for name, value in wanted.items():
        scale = max(float(value.float().abs().max()), 1.0) if value.numel() else 1.0
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=rtol / 20 * scale, msg=name)


def for_one(engine):
    """The engine with the first number of each that models have of their own."""
    changes = {f.name: getattr(engine, f.name) for f in fields(engine)}
    changes = {name: v[0] if isinstance(v, tuple) else v for name, v in changes.items()}
    if engine.__class__ is not MAP:
        changes["prior"] = engine.prior.member(0)
    return replace(engine, **changes)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_twin_does_what_its_definition_does(name, k, masks, used):
    engine, expected = CASES[name]
    engine = for_one(engine) if k == 1 else engine
    wanted = steps_by(Reference(), engine, k, masks=masks)
    assert not used
    assert_alike(steps_by(in_c(), engine, k, masks=masks), wanted)
    layers = LAYERS if k == 1 and "spread" in expected else set()
    assert used == expected | layers


@pytest.mark.parametrize("name", ["sbnn-local", "bmr-local"])
def test_variances_in_bfloat16_are_written_and_their_gradients_read(name, used):
    engine = for_one(CASES[name][0])
    wanted = steps_by(Reference(brief=True), engine, 1, masks=True)
    assert_alike(steps_by(in_c(brief=True), engine, 1, masks=True), wanted, rtol=5e-3)
    assert "join" in used


@pytest.mark.parametrize("name", ["sgld-sa", "sghmc-rms", "sghmc-em"])
def test_chains_whose_prior_has_the_noise_of_the_data(name):
    wanted = steps_by(Reference(), CASES[name][0], 3, masks=True, real=True)
    assert_alike(steps_by(in_c(), CASES[name][0], 3, masks=True, real=True), wanted)


def test_every_twin_has_a_case():
    cases = set().union(*(expected for _, expected in CASES.values()), LAYERS, {"join", "draws"})
    assert {f"bayesieve_{name}" for name in cases} == TWINS.keys()
    named = {traits.twin for traits in execution._TRAITS.values()} - {"", "double"}
    assert named == TWINS.keys()


# ------------------------------------------------------------------------------ normals and draws


@pytest.mark.parametrize("n", [1, 2, 3, 1001])
def test_normals_are_those_of_the_keys(n):
    keys, zero, out = fresh_keys(seeded(n)), torch.zeros(2, n), torch.empty(2, n)
    native.steps().bayesieve_draw(2, n, n, *map(native.address, (zero, zero, None, keys, out)))
    wanted = counter_normals((2, n), keys, torch.float64)
    assert float((out - wanted).abs().max()) < 2e-6


def test_the_moments_of_many_normals():
    n = 1 << 20
    keys, zero, out = fresh_keys(seeded(0)), torch.zeros(1, n), torch.empty(1, n)
    native.steps().bayesieve_draw(1, n, n, *map(native.address, (zero, zero, None, keys, out)))
    values = out.double()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        spread = float((values ** (2 * power)).mean().sqrt()) / n**0.5
        assert abs(float((values**power).mean()) - moment) < 4 * spread


@pytest.mark.parametrize("n", [40_000, 40_001])
def test_draws_of_many_weights_are_those_of_the_keys_with_or_without_a_compiler(n, monkeypatch):
    source = seeded(2)
    mean, std = torch.randn(n + 3, generator=source), torch.rand(n + 3, generator=source)
    both = [gaussian_draws(mean, std, 3, n, seeded(1))]
    monkeypatch.setattr(native, "steps", lambda: None)
    both.append(gaussian_draws(mean, std, 3, n, seeded(1)))
    torch.testing.assert_close(*both, rtol=1e-5, atol=1e-5)
    assert torch.equal(both[0][:, n:], mean[n:].expand(3, -1))
    noise = (both[0] - mean)[:, :n] / std[:n]
    assert float(noise.mean().abs()) < 4 / (3 * n) ** 0.5
    assert abs(float(noise.var()) - 1) < 4 * (2 / (3 * n)) ** 0.5
    assert float(noise[0].dot(noise[1]).abs()) < 4 * n**0.5


def test_the_noise_of_chains_in_c_has_the_stated_variance():
    d = 20_001
    for engine, variance in (
        (SGLD(step_size=0.01, temperature=0.5), 2 * 0.01 * 0.5),
        (SGHMC(step_size=0.2, temperature=0.5, friction=0.3), 2 * 0.2 * (0.3 - 0.1) * 0.5),
    ):
        w = run(engine, run_by(no_data(d, torch.float32), IN_C), 1, n_models=2).w
        assert abs(float(w[0].square().mean()) / variance - 1) < 4 * (2 / d) ** 0.5
        assert float((w[0] * w[1]).mean().abs()) < 4 * variance / d**0.5
        assert float((w[0, 1:] * w[0, :-1]).mean().abs()) < 4 * variance / d**0.5


@pytest.mark.parametrize("low", [-200.0, -80.0, -1.0])
def test_exponentials_are_those_of_torch_and_end_at_the_smallest_and_largest(low):
    log_std = torch.linspace(low, -low / 2, 1001)[None] / 2
    mean, variances = torch.zeros_like(log_std), torch.empty_like(log_std)
    tensors = (mean, log_std, None, mean.clone(), variances, None)
    native.steps().bayesieve_spread(1, 1001, 1001, *map(native.address, tensors))
    wanted = (2 * log_std).clamp(-87.3, 88).double().exp().float()
    torch.testing.assert_close(variances, wanted, rtol=4e-7, atol=0)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("far", [1.0, 12.0])
def test_scales_of_units_far_from_each_other(far, held):
    found, layers = [], partial(mlp, (5,), 3, widths=(130, 1))
    for backend in (Reference(), in_c()):
        problem, source = run_by(problem_of(layers), backend), seeded(8)
        state = HorseshoeVI(SHOES, lr=LR).init(problem, source, 3)
        state.prior.held = held
        state.scale_mean.add_(torch.randn(state.scale_mean.shape, generator=source), alpha=far)
        state.scale_log_std.uniform_(-2, 0.5, generator=source)
        for moments in (state.scale_mean_moments, state.scale_log_std_moments):
            moments.first.uniform_(generator=source), moments.second.uniform_(generator=source)
        noise = torch.randn(state.scale_mean.shape, generator=source)
        pulls = torch.randn(2, 3, state.groups.n_groups, generator=source)
        rates = Rates(pace_of(state.lr, torch.tensor(3.0)), torch.tensor(0.3), 7)
        factors = problem.run(horseshoe._factors)(state, noise)
        problem.run(horseshoe._move_scales_)(state, noise, pulls, rates)
        found.append(dict(named_tensors(state)) | {"ratio": factors[0], "width": factors[1]})
    for name, wanted in found[0].items():
        torch.testing.assert_close(found[1][name], wanted, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- layers, images and sizes


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda bias: nn.Linear(5, 4, bias=bias), (6, 5)),
        (lambda bias: nn.Linear(5, 4, bias=bias), (2, 3, 5)),
        (lambda bias: nn.Linear(5, 1100, bias=bias), (1, 5)),
        (lambda bias: nn.Conv1d(2, 3, 3, padding=1, bias=bias), (4, 2, 5)),
        (lambda bias: nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=bias), (4, 3, 9, 8)),
        (lambda bias: nn.Conv2d(4, 6, 3, groups=2, dilation=2, bias=bias), (4, 4, 7, 7)),
        (lambda bias: nn.Conv2d(3, 5, 4, bias=bias), (4, 3, 4, 4)),  # covers its input
        (lambda bias: nn.Conv2d(3, 5, 3, padding="same", bias=bias), (4, 3, 4, 4)),
        (lambda bias: nn.Conv3d(1, 2, 2, bias=bias), (4, 1, 3, 3, 2)),
    ],
)
def test_a_layer_and_its_gradients_in_one_step_of_autograd(layer, shape, bias, brief):
    """Against the same layer in plain steps, all of them with the normals of the same keys."""
    plain, source = layer(bias), seeded(1)
    values = {"weight": torch.randn(plain.weight.shape, generator=source)}
    values["weight_var"] = torch.rand(plain.weight.shape, generator=source) + 0.1
    if bias:
        values |= {"bias": torch.rand(len(plain.weight)), "bias_var": torch.rand(len(plain.weight))}
    x, found = torch.rand(shape, generator=source) + 0.1, []
    for backend, whole in ((Reference(layers=True), False), (Always(brief), True), (in_c(), True)):
        noise = seeded(2)
        made = LocalLayer(plain, lambda n=noise: n, backend, one_node=whole)
        for name, value in values.items():
            dtype = made._parameters[name].dtype
            made._parameters[name] = nn.Parameter(value.to(dtype, copy=True))
        leaves = [x.clone().requires_grad_(), *made.parameters()]
        output = made(leaves[0])
        grads = torch.autograd.grad(output.square().sum(), leaves)
        found.append([output.detach(), *(grad.float() for grad in grads)])
    for others, off in ((found[1], 2e-2 if brief else 1e-5), (found[2], 1e-5)):
        for one, other in zip(found[0], others, strict=True):
            assert one.shape == other.shape
            assert float((one - other).norm() / one.norm()) < off


class Always(InC):
    """C that multiplies variances of every layer in bfloat16, or of none."""

    def __init__(self, brief):
        super().__init__(native=True)
        object.__setattr__(self, "brief", brief)

    def product_dtype(self, layer):
        return torch.bfloat16 if self.brief else torch.float32


# -------------------------------------------------------------- gradients, memory between steps


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(
    "engine",
    [SBNN(local=False), SBNN(local=True), FlatVI(local=False), FlatVI(SpikeSlab()), BMR(),
     BMR(local=True), HorseshoeVI(), HorseshoeVI(local=True)],
)  # fmt: skip
def test_gradients_where_autograd_left_them_give_the_step_of_a_copy(engine, k):
    states = []
    for clip in (None, 1e9):  # a bound on the norm, which is never reached, needs a copy
        problem = run_by(problem_of(), IN_C, clip_norm=clip)
        state = engine.init(problem, seeded(0), k)
        state.controls.allow_masks_(state.mean)
        state.controls.keep[:, ::3] = False
        for _ in range(3):
            engine.step(problem, state, Batch(problem.x, problem.y))
        buffers = vars(engine.noise.workspace(problem, k))
        prior_at_draw = isinstance(engine, FlatVI) and isinstance(engine.prior, SpikeSlab)
        assert ("grads" in buffers) == (clip is not None or prior_at_draw)
        states.append(dict(named_tensors(state)))
    for name, wanted in states[1].items():
        assert torch.equal(states[0][name], wanted), name


def local_case(*, masks=False, brief=False):
    """One network with noise on activations in C, and its state."""
    problem, engine = run_by(problem_of(), in_c(brief)), SBNN(lr=1e-2, init_std=0.05, local=True)
    state = engine.init(problem, seeded(0))
    if masks:
        state.controls.allow_masks_(state.mean)
        state.controls.keep.copy_(torch.rand(state.mean.shape, generator=seeded(3)) < 0.5)
    return problem, engine, state


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("brief", [False, True])
def test_a_step_writes_what_the_next_one_reads(brief, masks):
    problem, engine, state = local_case(masks=masks, brief=brief)
    for batch in Batch(problem.x, problem.y).parts(20):
        engine.step(problem, state, batch)
    space, keep = engine.noise.workspace(problem, 1), state.controls.keep
    involved = (state.mean, state.log_std, keep, space.weights, space.variances)
    assert twins._is_written(space.variances, *involved, space.brief_variances)
    assert (space.brief_variances is not None) == brief
    parts = [problem.layout.slices[name] for name in space._brief_names]
    assert bool(parts) == brief
    made = [space.weights.clone(), space.variances.clone()]
    for part in parts:
        made[1][:, part] = space.brief_variances[:, part].clone()
    twins._remember(space.variances)
    problem.run(spread_)(
        state, space.weights, space.variances, space.brief_variances, state.controls.factors[0]
    )
    wanted = space.variances.clone()
    for part in parts:
        wanted[:, part] = wanted[:, part].bfloat16().float()
    assert torch.equal(made[0], space.weights)
    assert torch.equal(made[1], wanted)


def change_mean(state):
    state.mean[:, 3:9] += 0.5


def change_log_std(state):
    state.log_std.mul_(0.9)


def change_keep(state):
    state.controls.keep[:, ::3] = False


def replace_keep(state):
    state.controls.keep = ~state.controls.keep


def restore(state):
    state.mean = state.mean.clone() + 1


@pytest.mark.parametrize(
    "change", [change_mean, change_log_std, change_keep, replace_keep, restore]
)
def test_what_changes_between_steps_reaches_the_next_one(change):
    found = []
    for always in (False, True):
        problem, engine, state = local_case(masks=True)
        for i, batch in enumerate(Batch(problem.x, problem.y).parts(10)):
            if always:
                twins._remember(engine.noise.workspace(problem, 1).variances)
            engine.step(problem, state, batch)
            if i == 1:
                change(state)
        found.append((state.mean, state.log_std))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_a_workspace_does_not_keep_a_state_alive():
    problem, engine, state = local_case(masks=True)
    engine.step(problem, state, Batch(problem.x, problem.y))
    kept = weakref.ref(state.mean)
    del state
    gc.collect()
    assert kept() is None


def test_two_states_may_share_a_problem():
    problem, engine, first = local_case()
    second, batches = engine.init(problem, seeded(7)), Batch(problem.x, problem.y).parts(10)
    for batch in batches:
        engine.step(problem, first, batch)
        engine.step(problem, second, batch)
    alone, engine, wanted = local_case()
    for batch in batches:
        engine.step(alone, wanted, batch)
    assert torch.equal(first.mean, wanted.mean)


def test_a_gradient_that_is_not_a_number_shows():
    problem = run_by(problem_of(), IN_C)
    state = SBNN(SLABS).init(problem, seeded(0), 3)
    found = WeightNoise().gradients(problem, state, Batch(problem.x, problem.y)).flatten()
    found.grad[1, 7] = torch.nan
    problem.run(adam_step_)(problem, state, found, mixture_precision)
    assert state.mean[1].isnan().nonzero().tolist() == [[7]]
    assert state.log_std[1].isnan().nonzero().tolist() == [[7]]


# --------------------------------------------------------------------------------------- choices


def test_a_run_learns_as_well_and_comes_back_exactly():
    engine = SBNN(SpikeSlab(), lr=1e-2, init_std=0.02, local=False)
    runs = [
        fit(problem_of(), engine, steps=30, batch_size=20, seed=3, schedule=Schedule(compile=mode))
        for mode in ("auto", "on", "on")
    ]
    losses = [run.history[-1]["log_lik"] for run in runs]
    assert [run.problem.execution.backend.native for run in runs] == [False, True, True]
    assert torch.equal(runs[1].posterior.mean, runs[2].posterior.mean)
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


@pytest.mark.parametrize(
    "engine",
    [MAP(), MAP(optimizer="sgd"), SBNN(), SBNN(local=True), FlatVI(), BMR(), BMR(local=True),
     HorseshoeVI(), HorseshoeVI(local=True), SGLD(step_size=1e-5), SGHMC(step_size=1e-5),
     SGHMC(GaussianLaplace(), 1e-6, adapt="sa")],
)  # fmt: skip
@pytest.mark.parametrize("k", [1, 2])
def test_steps_in_c_compile_nothing(engine, k, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    run = fit(problem_of(), [engine] * k, steps=2, batch_size=20, schedule=Schedule(compile="on"))
    assert run.problem.execution.backend.native


def test_only_float32_on_a_cpu_runs_natively():
    assert should_run_natively("auto", torch.zeros(1), 1e9)
    assert should_run_natively("on", torch.zeros(1), 1)
    assert not should_run_natively("auto", torch.zeros(1), 1e6)
    assert not should_run_natively("off", torch.zeros(1), 1e9)
    assert not should_run_natively("on", torch.zeros(1, dtype=torch.float64), 1e9)
    assert not should_run_natively("on", torch.zeros(1, device="meta"), 1e9)
