"""Steps in C against their twins in Python: the same numbers up to rounding."""

import gc
import os
import weakref
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Generator, nn

from bayesieve.core import local, native, noise
from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.local import EAGER, IN_C, local_linear, perturbed
from bayesieve.core.native import KernelUnavailableError
from bayesieve.core.noise import (
    counter_normals,
    draw_weights,
    draw_weights_,
    fresh_keys,
    gaussian_draws,
    spread_,
)
from bayesieve.core.priors import (
    GaussianLaplace,
    Horseshoe,
    LayerScaled,
    Normal,
    SpikeSlab,
    constant_precision,
    mixture_precision,
)
from bayesieve.core.problem import Problem
from bayesieve.core.state import named_tensors
from bayesieve.core.workspace import Piece
from bayesieve.engines import bmr, horseshoe, scaled, variational
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.optimisers import pace_of
from bayesieve.engines.sampling import Averaging, Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.nets import mlp
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from bayesieve.training.stepper import should_run_natively
from problems import no_data, normal, normal32, run, seeded

PRIOR = SpikeSlab(slab_std=(0.5, 1.0, 0.2), spike_std=(0.05, 0.1, 0.02), slab_prob=0.3)
ENGINES = {
    "sbnn": (SBNN(PRIOR, lr=(1e-2, 1e-3, 1e-1), init_std=0.05, local=False), mixture_precision),
    "flat-vi": (FlatVI(Normal((0.3, 1.0, 2.0)), lr=1e-2, init_std=0.1), constant_precision),
}


@pytest.fixture(autouse=True)
def library():
    if native.steps() is None:
        pytest.skip("no C compiler")


def problem_of(n=40, dtype=torch.float32, widths=(700, 3)):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = mlp((5,), 3, widths=widths).to(dtype)  # an odd number, and over one chunk
    x = normal(n, 5, seed=1, dtype=dtype)
    return Problem(model, Categorical(), (x, torch.arange(n) % 3))


def state_of(engine, problem, *, masks, native_steps):
    problem.execution.native = native_steps
    state = engine.init(problem, Generator().manual_seed(0), 3)
    source = Generator().manual_seed(1)
    state.log_std.add_(torch.randn(state.log_std.shape, generator=source))
    for moments in (state.mean_moments, state.log_std_moments):
        moments.first.normal_(generator=source)
        if moments.second is not None:
            moments.second.uniform_(generator=source)
        else:  # the first one in units of the s that steps are divided by
            moments.first.mul_(state.log_std.exp())
    if masks:
        state.controls.allow_masks_(state.mean)
        state.controls.keep.copy_(torch.rand(state.mean.shape, generator=source) < 0.5)
        state.controls.trained.copy_(torch.rand(state.mean.shape, generator=source) < 0.7)
    return state


@pytest.mark.parametrize("n", [1, 2, 3, 1001])
def test_normals_are_those_of_the_keys(n):
    keys = fresh_keys(Generator().manual_seed(n))
    zero, out = torch.zeros(2, n), torch.empty(2, n)
    tensors = (zero, zero, None, keys, out)
    native.steps().bayesieve_draw(2, n, n, *map(native.address, tensors))
    wanted = counter_normals((2, n), keys, torch.float64)
    assert float((out - wanted).abs().max()) < 2e-6


def test_the_moments_of_many_normals():
    n = 1 << 20
    keys, zero, out = fresh_keys(Generator().manual_seed(0)), torch.zeros(1, n), torch.empty(1, n)
    native.steps().bayesieve_draw(1, n, n, *map(native.address, (zero, zero, None, keys, out)))
    values = out.double()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        spread = float((values ** (2 * power)).mean().sqrt()) / n**0.5
        assert abs(float((values**power).mean()) - moment) < 4 * spread


@pytest.mark.parametrize("n", [40_000, 40_001])
def test_draws_of_many_weights_are_those_of_the_keys_with_or_without_a_compiler(n, monkeypatch):
    source = Generator().manual_seed(2)
    mean, std = torch.randn(n + 3, generator=source), torch.rand(n + 3, generator=source)
    both = []
    for library in (native.steps(), None):
        monkeypatch.setattr(native, "steps", lambda library=library: library)
        both.append(gaussian_draws(mean, std, 3, n, Generator().manual_seed(1)))
    torch.testing.assert_close(*both, rtol=1e-5, atol=1e-5)
    assert torch.equal(both[0][:, n:], mean[n:].expand(3, -1))
    noise = (both[0] - mean)[:, :n] / std[:n]
    assert float(noise.mean().abs()) < 4 / (3 * n) ** 0.5
    assert abs(float(noise.var()) - 1) < 4 * (2 / (3 * n)) ** 0.5
    assert float(noise[0].dot(noise[1]).abs()) < 4 * n**0.5


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_a_draw_in_c_is_the_draw_in_python(name, masks):
    engine, problem = ENGINES[name][0], problem_of()
    state = state_of(engine, problem, masks=masks, native_steps=True)
    keys = fresh_keys(deepcopy(state.generator))
    drawn = draw_weights(problem, state, local=False).weights
    n = state.log_std.shape[1]
    wanted = state.mean.double().clone()
    noise = counter_normals((3, n), keys, torch.float64)
    wanted[:, :n] += state.log_std.double().exp() * noise
    if masks:
        wanted *= state.controls.keep
    assert float((drawn - wanted).abs().max()) < 1e-5


def filled(draw):
    """A draw with gradients, and, unless there are variances, with other weights."""
    source = Generator().manual_seed(5)
    draw.grads = torch.randn(draw.weights.shape, generator=source)
    if draw.variances is None:
        draw.weights.normal_(generator=source)
    else:
        draw.variance_grads = torch.randn(draw.weights.shape, generator=source)
    return draw


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_an_adam_step_in_c_is_the_step_in_python(name, masks, local):
    engine, precision = ENGINES[name]
    states = []
    for native_steps in (False, True):
        problem = problem_of()
        state = state_of(engine, problem, masks=masks, native_steps=native_steps)
        state.controls.kl_scale.fill_(0.3)
        for _ in range(2):
            draw = filled(draw_weights(problem, state, local=local))
            variational.adam_step_(problem, state, draw, precision)
        states.append(dict(named_tensors(state)))
    for key, wanted in states[0].items():
        torch.testing.assert_close(states[1][key], wanted, rtol=2e-5, atol=2e-6)


SCALED = {"bmr": BMR(lr=(1e-2, 1e-3, 1e-1)), "horseshoe": HorseshoeVI(lr=1e-2)}


def scales_of(state, low):
    """Numbers of the groups of a state, (k, G), of which no two are the same."""
    shape = (3, state.groups.n_groups)
    return low + torch.rand(shape, generator=Generator().manual_seed(7))


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", SCALED)
def test_a_draw_of_scaled_weights_in_c_is_the_draw_in_python(name, masks):
    problem = problem_of()
    state = state_of(SCALED[name], problem, masks=masks, native_steps=True)
    ratio, keys = scales_of(state, 0.5), fresh_keys(deepcopy(state.generator))
    drawn = draw_weights(problem, state, local=False, ratio=ratio).weights.clone()
    wanted = problem.workspace(3).draw
    noise = counter_normals(tuple(state.log_std.shape), keys, torch.float32)
    everything = slice(0, state.mean.shape[1])
    draw_weights_(state, wanted, noise, ratio, state.controls.factors[0], everything)
    assert float((drawn - wanted.weights).abs().max()) < 1e-5


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", [*ENGINES, *SCALED])
def test_means_and_variances_of_local_noise_in_c_are_those_in_python(name, masks):
    engine = ENGINES[name][0] if name in ENGINES else SCALED[name]
    problem = problem_of()
    state = state_of(engine, problem, masks=masks, native_steps=True)
    ratio = scales_of(state, 0.5) if name in SCALED else None
    drawn = draw_weights(problem, state, local=True, ratio=ratio)
    made = drawn.weights.clone(), drawn.variances.clone()
    drawn.weights.fill_(torch.nan), drawn.variances.zero_()
    spread_(state, drawn, ratio, state.controls.factors[0])
    torch.testing.assert_close(made, (drawn.weights, drawn.variances), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 7, 512, 1035])
def test_noise_on_activations_in_c_is_that_of_the_keys(n):
    source = Generator().manual_seed(n)
    mean, var = torch.randn(n, generator=source), torch.rand(n, generator=source)
    var[0] = 0.0
    mean.requires_grad_(), var.requires_grad_()
    noise = counter_normals((1, n), fresh_keys(deepcopy(source)), torch.float32)[0]
    made = perturbed(mean, var, source, IN_C)
    grads = torch.autograd.grad(made.square().sum(), (mean, var))
    torch.testing.assert_close(made, mean + var.sqrt() * noise, rtol=1e-5, atol=1e-5)
    slope = torch.where(var > 0, noise / (2 * var.sqrt()), 0.0)
    wanted = (2 * made, 2 * made * slope)
    torch.testing.assert_close(grads, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("passes", "dtype", "off"),
    [
        pytest.param(IN_C, torch.float32, 1e-5, id="c"),
        pytest.param(IN_C, torch.bfloat16, 1e-2, id="c-bf16"),
        pytest.param(EAGER, torch.float32, 1e-5, id="eager"),
        pytest.param(EAGER, torch.bfloat16, 1e-2, id="eager-bf16"),
    ],
)
@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5)])
def test_a_local_linear_layer_and_its_gradients(shape, passes, dtype, off, biased):
    source = Generator().manual_seed(1)
    sizes = (shape, (4, 5), (4,), (4, 5), (4,))
    tensors = [torch.rand(size, generator=source) + 0.1 for size in sizes]

    def plain(x, weight, bias, weight_var, bias_var, source):
        mean = torch.nn.functional.linear(x, weight, bias)
        var = torch.nn.functional.linear(x * x, weight_var, bias_var)
        return perturbed(mean, var, source, passes)

    found = []
    for function in (partial(local_linear, passes=passes), plain):
        leaves = [tensor.clone() for tensor in tensors]
        if function is not plain:
            leaves[3] = leaves[3].to(dtype)
        leaves = [leaf.requires_grad_() for leaf in leaves]
        if not biased:
            leaves[2] = leaves[4] = None
        values = function(*leaves, Generator().manual_seed(2))
        used = [leaf for leaf in leaves if leaf is not None]
        found.append([values.detach(), *torch.autograd.grad(values.square().sum(), used)])
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        assert float((one - other).norm() / other.norm()) < off


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (partial(nn.Conv1d, 2, 3, 3, padding=1), (4, 2, 5)),
        (partial(nn.Conv2d, 3, 16, 3, stride=2, padding=1), (4, 3, 9, 8)),
        (partial(nn.Conv2d, 4, 6, 3, groups=2, dilation=2), (4, 4, 7, 7)),
        (partial(nn.Conv2d, 3, 5, 4), (4, 3, 4, 4)),  # the kernel covers its input
        (partial(nn.Conv2d, 3, 5, 3, padding="same"), (4, 3, 4, 4)),
        (partial(nn.Conv3d, 1, 2, 2), (4, 1, 3, 3, 2)),
    ],
)
def test_a_local_convolution_and_its_gradients(layer, shape, bias, dtype, monkeypatch):
    monkeypatch.setattr(local, "product_dtype", lambda _: dtype)
    conv, source = layer(bias=bias), Generator().manual_seed(1)
    x = torch.rand(shape, generator=source) + 0.1
    values = {"weight": torch.randn(conv.weight.shape, generator=source)}
    values["weight_var"] = torch.rand(conv.weight.shape, generator=source) + 0.1
    if bias:
        values |= {"bias": torch.rand(len(conv.weight)), "bias_var": torch.rand(len(conv.weight))}
    found = []
    for one_node in (True, False):
        noise = Generator().manual_seed(2)
        made = local.LocalLayer(conv, lambda n=noise: n, IN_C, one_node=one_node)
        for name, value in values.items():
            dtype_of = made._parameters[name].dtype
            made._parameters[name] = nn.Parameter(value.to(dtype_of, copy=True))
        leaves = [x.clone().requires_grad_(), *made.parameters()]
        output = made(leaves[0])
        grads = torch.autograd.grad(output.square().sum(), leaves)
        found.append([output.detach(), *(grad.float() for grad in grads)])
    off = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        assert float((one - other).norm() / other.norm()) < off


@pytest.mark.parametrize("shape", [(4, 3), (5, 7, 3, 3), (1, 1100, 2)])
def test_passes_over_activations_in_bfloat16_are_those_in_python(shape):
    source = Generator().manual_seed(3)
    x, slope = torch.randn(2, *shape, generator=source)
    short = torch.rand(shape, generator=source).bfloat16()
    bias = torch.rand(shape[1], generator=source)
    assert torch.equal(IN_C.square(x, torch.bfloat16), EAGER.square(x, torch.bfloat16))
    joined = [passes.join(x.clone(), slope, short) for passes in (IN_C, EAGER)]
    torch.testing.assert_close(*joined)
    backs = [passes.back(x, slope, torch.bfloat16) for passes in (IN_C, EAGER)]
    torch.testing.assert_close(*backs, rtol=1e-4, atol=1e-4)
    wide = short.float() + bias.view(-1, *[1] * (len(shape) - 2))
    one = IN_C.forth(x, short, bias, Generator().manual_seed(4), False)
    other = IN_C.forth(x, wide, None, Generator().manual_seed(4), False)
    torch.testing.assert_close(one, other)


def test_variances_in_bfloat16_are_written_and_their_gradients_read():
    found = []
    for brief in (False, True):
        problem = problem_of()
        state = state_of(ENGINES["sbnn"][0], problem, masks=True, native_steps=True)
        draw = problem.workspace(3, local=True).draw
        if brief:
            draw.brief_variances = torch.empty_like(draw.variances, dtype=torch.bfloat16)
        noise._spread_natively_(state, draw, None, state.controls.factors[0])
        if brief:
            assert torch.equal(draw.brief_variances, draw.variances.bfloat16())
        source, sizes = Generator().manual_seed(5), draw.weights.shape
        grad = torch.randn(sizes, generator=source)
        variance_grad = torch.randn(sizes, generator=source).bfloat16()
        draw.pieces = [
            Piece(grad, variance_grad if brief else variance_grad.float(), 0, sizes[1], brief)
        ]
        variational.adam_step_(problem, state, draw, mixture_precision)
        found.append((state.mean, state.log_std))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["weights", "local"])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", SCALED)
def test_an_adabelief_step_in_c_is_the_step_in_python(name, masks, kind):
    found = []
    for native_steps in (False, True):
        problem = problem_of()
        state = state_of(SCALED[name], problem, masks=masks, native_steps=native_steps)
        state.controls.kl_scale.fill_(0.3)
        ratio = scales_of(state, 0.5)
        for _ in range(2):
            draw = filled(draw_weights(problem, state, local=kind == "local", ratio=ratio))
            if masks:  # what a draw, and its product with gradients, cannot have
                draw.weights.mul_(state.controls.keep)
            pulls, _ = scaled.weights_step_(problem, state, draw, ratio, scales_of(state, 0.2))
        found.append(dict(named_tensors(state)) | {"pulls": pulls})
    for key, wanted in found[0].items():
        scale = max(float(wanted.float().abs().max()), 1.0) if wanted.numel() else 1.0
        torch.testing.assert_close(found[1][key], wanted, rtol=5e-5, atol=5e-6 * scale)


@pytest.mark.parametrize("held", [False, True])
def test_a_step_of_layer_scales_in_c_is_the_step_in_python(held):
    found = []
    for move in (bmr._move_scales_, bmr._move_scales_natively_):
        problem = problem_of()
        prior = LayerScaled(shape=(2.0, 3.0, 1.5), rate=2.5)
        state = state_of(BMR(prior, lr=(1e-2, 1e-3, 1e-1)), problem, masks=False, native_steps=True)
        source = Generator().manual_seed(8)
        shape = state.scale_mean.shape
        for tensor in (state.scale_mean, state.scale_log_std):
            tensor.normal_(generator=source)
        noise, pulls = (
            torch.randn(shape, generator=source),
            torch.randn(2, *shape, generator=source),
        )
        rates = scaled.Rates(pace_of(state.lr, torch.tensor(3.0)), torch.tensor(0.3), 7)
        for _ in range(2):
            move(state, noise, pulls, rates, held=held)
        found.append(dict(named_tensors(state)))
    for key, wanted in found[0].items():
        torch.testing.assert_close(found[1][key], wanted, rtol=1e-5, atol=1e-6)


def scales_of_units(far):
    """A state of the horseshoe whose layers have many units, one and a last one."""
    problem, source = problem_of(widths=(130, 1)), Generator().manual_seed(8)
    prior = Horseshoe(std=(0.01, 0.1, 1.0), shape=(2.0, 3.0, 1.5), rate=2.5)
    state = HorseshoeVI(prior, lr=(1e-2, 1e-3, 1e-1)).init(problem, source, 3)
    state.scale_mean.add_(torch.randn(state.scale_mean.shape, generator=source), alpha=far)
    state.scale_log_std.uniform_(-2, 0.5, generator=source)
    moments = state.scale_mean_moments, state.scale_log_std_moments
    for tensor in (x for pair in moments for x in (pair.first, pair.second)):
        tensor.uniform_(generator=source)
    return state, torch.randn(state.scale_mean.shape, generator=source)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("far", [1.0, 40.0])
def test_a_draw_of_unit_scales_in_c_is_the_draw_in_python(far, held):
    state, noise = scales_of_units(far)
    state.prior.held = held
    made = horseshoe._factors_natively(state, noise)
    # the sum of a hundred terms has more digits than each of the two
    torch.testing.assert_close(made, horseshoe._factors(state, noise), rtol=5e-5, atol=0)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("far", [1.0, 12.0])
def test_a_step_of_unit_scales_in_c_is_the_step_in_python(far, held):
    found = []
    for move in (horseshoe._move_scales_, horseshoe._move_scales_natively_):
        state, noise = scales_of_units(far)
        state.prior.held, source = held, Generator().manual_seed(9)
        pulls = torch.randn(2, 3, state.groups.n_groups, generator=source)
        rates = scaled.Rates(pace_of(state.lr, torch.tensor(3.0)), torch.tensor(0.3), 7)
        for _ in range(2):
            move(state, noise, pulls, rates)
        found.append(dict(named_tensors(state)))
    for key, wanted in found[0].items():
        torch.testing.assert_close(found[1][key], wanted, rtol=5e-5, atol=5e-6)


MIXED = GaussianLaplace(
    spike_scale=(0.3, 0.1, 0.5), slab_std=1.5, slab_prob=0.4, slab_share=0.1, scale=0.8, decay=2.5
)
CHAINS = {
    "sgld": SGLD(Normal(0.5), (1e-3, 1e-4, 1e-2), 0.5),
    "sgld-rms": SGLD(Normal((0.5, 1.0, 2.0)), 1e-3, preconditioned=True),
    "sgld-sa": SGLD(MIXED, 1e-3, adapt="sa", averaging=Averaging(5.0)),
    "sghmc": SGHMC(Normal(0.5), 1e-3, friction=0.3, chain=Chain(cycle=3, cooling=0.9)),
    "sghmc-rms": SGHMC(MIXED, 1e-4, preconditioned=True),
    "sghmc-em": SGHMC(MIXED, 1e-4, adapt="em", chain=Chain(burn_in=1, thin=2, n_kept=2)),
}


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_a_move_of_chains_in_c_is_the_move_in_python(name, masks, real, monkeypatch):
    engine, states = CHAINS[name], []
    for in_c in (False, True):
        torch.manual_seed(0)  # of a network with point parameters, more than a chunk of weights
        layers = nn.Linear(5, 301), nn.LayerNorm(301), nn.Tanh(), nn.Linear(301, 3)
        x, y = normal32(40, 5, seed=1), torch.arange(40) % 3
        likelihood = Gaussian(0.7, learned=True) if real else Categorical()
        if real:
            y = normal32(40, 3, seed=2)
        problem = Problem(nn.Sequential(*layers), likelihood, (x, y))
        problem.execution.native, problem.execution.compiled = in_c, True  # noise by counter
        monkeypatch.setattr(problem, "kernel", lambda function: function)
        state = engine.init(problem, Generator().manual_seed(0), 3)
        state.controls.kl_scale.fill_(0.3)
        if masks:
            source = Generator().manual_seed(1)
            state.controls.allow_masks_(state.w)
            state.controls.keep.copy_(torch.rand(state.w.shape, generator=source) < 0.5)
            state.controls.trained.copy_(torch.rand(state.w.shape, generator=source) < 0.7)
        for _ in range(4):
            log_lik = engine.step(problem, state, Batch(problem.x, problem.y))["log_lik"]
        states.append(dict(named_tensors(state)) | {"log_lik": log_lik})
    for key, wanted in states[0].items():
        scale = max(float(wanted.float().abs().max()), 1.0)
        torch.testing.assert_close(states[1][key], wanted, rtol=2e-4, atol=1e-5 * scale, msg=key)


def test_the_noise_of_chains_in_c_has_the_stated_variance():
    d = 20_001
    for engine, variance in (
        (SGLD(step_size=0.01, temperature=0.5), 2 * 0.01 * 0.5),
        (SGHMC(step_size=0.2, temperature=0.5, friction=0.3), 2 * 0.2 * (0.3 - 0.1) * 0.5),
    ):
        problem = no_data(d, torch.float32)
        problem.execution.native = True
        w = run(engine, problem, 1, n_models=2).w
        assert abs(float(w[0].square().mean()) / variance - 1) < 4 * (2 / d) ** 0.5
        assert float((w[0] * w[1]).mean().abs()) < 4 * variance / d**0.5
        assert float((w[0, 1:] * w[0, :-1]).mean().abs()) < 4 * variance / d**0.5


class WithUnusedLayer(nn.Module):
    """A network with point parameters, and a layer that its output does not need."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 40), nn.LayerNorm(40), nn.Linear(40, 3)
        self.unused = nn.Linear(40, 2)

    def forward(self, x):
        return self.last(self.norm(self.first(x).relu()))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(
    "engine",
    [SBNN(local=False), SBNN(local=True), FlatVI(local=False), FlatVI(SpikeSlab()), BMR(),
     BMR(local=True), HorseshoeVI(), HorseshoeVI(local=True)],
)  # fmt: skip
def test_gradients_where_autograd_left_them_give_the_step_of_a_copy(engine, k):
    states = []
    for clip in (None, 1e9):  # a bound on the norm, which is never reached, needs a copy
        torch.manual_seed(0)
        x = normal32(40, 5, seed=1)
        problem = Problem(WithUnusedLayer(), Categorical(), (x, torch.arange(40) % 3))
        problem.execution.native, problem.execution.clip_norm = True, clip
        state = engine.init(problem, Generator().manual_seed(0), k)
        state.controls.allow_masks_(state.mean)
        state.controls.keep[:, ::3] = False
        for _ in range(3):
            engine.step(problem, state, problem.batch(torch.arange(40)))
        buffers = vars(problem.workspace(k, local=bool(engine.local)))
        prior_at_draw = isinstance(engine, FlatVI) and isinstance(engine.prior, SpikeSlab)
        assert ("grads" in buffers) == (clip is not None or prior_at_draw)
        states.append(dict(named_tensors(state)))
    for name, wanted in states[1].items():
        assert torch.equal(states[0][name], wanted), name


def local_case(masks=False, brief=True, monkeypatch=None):
    """One network with noise on activations, of which one layer is large, and its state."""
    if monkeypatch is not None:
        dtype = torch.bfloat16 if brief else torch.float32
        monkeypatch.setattr(native, "product_dtype", lambda: dtype)
    problem = problem_of(widths=(140, 130))
    problem.execution.native = True
    engine = SBNN(SpikeSlab(), lr=1e-2, init_std=0.05, local=True)
    state = engine.init(problem, Generator().manual_seed(0))
    if masks:
        state.controls.allow_masks_(state.mean)
        state.controls.keep.copy_(torch.rand(state.mean.shape) < 0.5)
    return problem, engine, state


def taken(problem, n):
    return [Batch(problem.x[i::n], problem.y[i::n]) for i in range(n)]


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("brief", [False, True])
def test_a_step_writes_what_the_next_one_reads(brief, masks, monkeypatch):
    problem, engine, state = local_case(masks, brief, monkeypatch)
    for batch in taken(problem, 2):
        engine.step(problem, state, batch)
    space = problem.workspace(1, local=True)
    assert space.are_unchanged(*noise.spread_tensors(state, space.draw))
    assert (space.brief_variances is not None) == brief
    made = [space.weights.clone(), space.variances.clone()]
    part = problem.layout.slices["fc2.weight"]
    if brief:
        made[1][:, part] = space.brief_variances[:, part].clone()
    noise._spread_natively_(state, space.draw, None, state.controls.factors[0])
    wanted = space.variances.clone()
    if brief:
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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            problem, engine, state = local_case(masks=True)
        for i, batch in enumerate(taken(problem, 4)):
            if always:
                problem.workspace(1, local=True).remember()
            engine.step(problem, state, batch)
            if i == 1:
                change(state)
        found.append((state.mean, state.log_std))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_a_workspace_does_not_keep_a_state_alive():
    problem, engine, state = local_case(masks=True)
    engine.step(problem, state, taken(problem, 1)[0])
    kept = weakref.ref(state.mean)
    del state
    gc.collect()
    assert kept() is None


def test_two_states_may_share_a_problem():
    problem, engine, first = local_case()
    second = engine.init(problem, Generator().manual_seed(7))
    batches = taken(problem, 4)
    for batch in batches:
        engine.step(problem, first, batch)
        engine.step(problem, second, batch)
    alone, engine, wanted = local_case()
    for batch in batches:
        engine.step(alone, wanted, batch)
    assert torch.equal(first.mean, wanted.mean)


def test_a_gradient_that_is_not_a_number_shows():
    problem = problem_of()
    state = state_of(ENGINES["sbnn"][0], problem, masks=False, native_steps=True)
    draw = filled(draw_weights(problem, state, local=False))
    draw.grads[1, 7] = torch.nan
    variational.adam_step_(problem, state, draw, mixture_precision)
    assert state.mean[1].isnan().nonzero().tolist() == [[7]]
    assert state.log_std[1].isnan().nonzero().tolist() == [[7]]


@pytest.mark.parametrize("low", [-200.0, -80.0, -1.0])
def test_exponentials_are_those_of_torch_and_end_at_the_smallest_and_largest(low):
    log_std = torch.linspace(low, -low / 2, 1001)[None] / 2
    mean, variances = torch.zeros_like(log_std), torch.empty_like(log_std)
    tensors = (mean, log_std, None, mean.clone(), variances, None)
    native.steps().bayesieve_spread(1, 1001, 1001, *map(native.address, tensors))
    wanted = (2 * log_std).clamp(-87.3, 88).double().exp().float()
    torch.testing.assert_close(variances, wanted, rtol=4e-7, atol=0)


def test_a_run_learns_as_well_and_comes_back_exactly():
    engine = SBNN(SpikeSlab(), lr=1e-2, init_std=0.02, local=False)
    schedules = [Schedule(compile=mode) for mode in ("auto", "on", "on")]
    runs = [fit(problem_of(), engine, steps=30, batch_size=20, seed=3, schedule=schedule)
            for schedule in schedules]  # fmt: skip
    losses = [run.history[-1]["log_lik"] for run in runs]
    assert not runs[0].problem.execution.native
    assert runs[1].problem.execution.native
    assert torch.equal(runs[1].posterior.mean, runs[2].posterior.mean)
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("engine", [MAP(lr=(1e-2, 1e-3, 1e-1)), MAP(weight_decay=0.1)])
def test_point_estimates_move_as_in_python(engine, masks):
    states = []
    for native_steps in (False, True):
        problem = problem_of()
        problem.execution.native = native_steps
        state, source = engine.init(problem, Generator().manual_seed(0), 3), seeded(1)
        if masks:
            state.controls.allow_masks_(state.w)
            state.controls.keep.copy_(torch.rand(state.w.shape, generator=source) < 0.5)
            state.controls.trained.copy_(torch.rand(state.w.shape, generator=source) < 0.7)
        for start in (0, 20):
            batch = Batch(problem.x[start : start + 20], problem.y[start : start + 20])
            log_lik = engine.step(problem, state, batch)["log_lik"]
        states.append((state.w, state.moments.first, state.moments.second, log_lik))
    for python, c in zip(*states, strict=True):
        torch.testing.assert_close(c, python, rtol=1e-4, atol=1e-6)


NATIVE = [
    MAP(), MAP(optimizer="sgd"), SBNN(), SBNN(local=True), FlatVI(), BMR(),
    BMR(local=True), HorseshoeVI(), HorseshoeVI(local=True),
    SGLD(step_size=1e-5), SGHMC(step_size=1e-5), SGHMC(GaussianLaplace(), 1e-6, adapt="sa"),
]  # fmt: skip


@pytest.mark.parametrize("engine", NATIVE)
@pytest.mark.parametrize("k", [1, 2])
def test_steps_in_c_compile_nothing(engine, k, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    run = fit(problem_of(), [engine] * k, steps=2, batch_size=20, schedule=Schedule(compile="on"))
    assert run.problem.execution.native


def test_only_float32_on_a_cpu_runs_natively():
    assert should_run_natively("auto", torch.zeros(1), 1e9)
    assert should_run_natively("on", torch.zeros(1), 1)
    assert not should_run_natively("auto", torch.zeros(1), 1e6)
    assert not should_run_natively("off", torch.zeros(1), 1e9)
    assert not should_run_natively("on", torch.zeros(1, dtype=torch.float64), 1e9)
    assert not should_run_natively("on", torch.zeros(1, device="meta"), 1e9)


# ------------------------------------------------------------------------------------ building


def built():
    return native.load.__wrapped__("bayesieve.core", "steps.c")


def test_a_cache_folder_others_can_write_to_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESIEVE_CACHE", str(tmp_path))
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(KernelUnavailableError, match="others may write"):
        built()
    folder.chmod(0o700)
    assert built().bayesieve_draw is not None


def test_a_compiler_that_fails_is_a_reason_and_leaves_nothing(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\n')
    broken.chmod(0o700)
    monkeypatch.setenv("BAYESIEVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native.shutil, "which", lambda name: str(broken))
    with pytest.raises(KernelUnavailableError, match="cc failed"):
        built()
    assert os.listdir(tmp_path / "cache" / "kernels") == []


def test_no_compiler_is_a_reason(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    with pytest.raises(KernelUnavailableError, match="no C compiler"):
        built()
