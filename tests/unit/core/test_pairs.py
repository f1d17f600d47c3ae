"""Noise in pairs: + for one half of a batch, - for the other, against plain autograd."""

import pytest
import torch
from torch import Generator, nn

from bayesieve.core import native
from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.noise import draw_weights
from bayesieve.core.priors import Normal, SpikeSlab, mixture_precision
from bayesieve.core.problem import Problem
from bayesieve.core.state import named_tensors
from bayesieve.engines import variational
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.sbnn import SBNN
from bayesieve.nets import mlp
from problems import normal


def problem_of(n=11, dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = mlp((4,), 3, widths=(5,)).to(dtype)
    x = normal(n, 4, seed=1, dtype=dtype)
    return Problem(model, Categorical(), (x, torch.arange(n) % 3))


def started(engine, problem, *, masks, k=2):
    state = engine.init(problem, Generator().manual_seed(0), k)
    state.log_std.add_(2.0)
    if masks:
        state.controls.allow_masks_(state.mean)
        source = Generator().manual_seed(1)
        state.controls.keep.copy_(torch.rand(state.mean.shape, generator=source) < 0.6)
    return state


def log_lik(problem, w, batch):
    """The log-likelihood of examples at weights (k, d), with gradients."""
    model, values = mlp((4,), 3, widths=(5,)).to(w.dtype), []
    for row in w:
        output = torch.func.functional_call(model, problem.layout.unflatten(row), (batch.x,))
        values.append(problem.likelihood.log_prob(output, batch.y, {}).sum())
    return torch.stack(values) * problem.n_data


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("masks", [False, True])
def test_gradients_are_those_of_two_halves_with_opposite_noise(masks, micro_batch):
    problem = problem_of()
    problem.execution.micro_batch = micro_batch
    state = started(SBNN(local=False), problem, masks=masks)
    batch, n = problem.batch(torch.arange(11)), state.log_std.shape[1]
    draw = draw_weights(problem, state, local=False, paired=True)
    keep = torch.ones_like(state.mean) if not masks else state.controls.keep.double()
    noise = (draw.weights - state.mean * keep)[:, :n] / state.log_std.exp()
    value = problem.gradient_(draw, batch, state.generator)

    mean, log_std = (t.clone().requires_grad_() for t in (state.mean, state.log_std))
    spread = torch.nn.functional.pad(log_std.exp() * noise, (0, mean.shape[1] - n))
    halves = (Batch(batch.x[:6], batch.y[:6]), Batch(batch.x[6:], batch.y[6:]))
    wanted = sum(
        log_lik(problem, (mean + sign * spread) * keep, half) / 11
        for sign, half in zip((1, -1), halves, strict=True)
    )
    for_mean, for_log_std = torch.autograd.grad(wanted.sum(), (mean, log_std))
    torch.testing.assert_close(value, wanted.detach())
    torch.testing.assert_close(draw.grads * keep, for_mean)
    shift = draw.weights[:, :n] - (state.mean * keep)[:, :n]
    torch.testing.assert_close(2 * draw.turned + draw.grads[:, :n] * shift, for_log_std)


def test_the_noise_leaves_the_gradient_of_a_quadratic_loss_for_the_mean():
    x = normal(6, 3, seed=1).double().repeat(2, 1)  # both halves have the same examples
    problem = Problem(nn.Linear(3, 1).double(), Gaussian(0.5), (x, x[:, 0]))
    state = FlatVI(init_std=0.7).init(problem, Generator().manual_seed(0))
    exact = problem.value_and_grad(state.mean, problem.batch(torch.arange(12)))[1].clone()
    draw = draw_weights(problem, state, local=False, paired=True)
    problem.gradient_(draw, problem.batch(torch.arange(12)), state.generator)
    torch.testing.assert_close(draw.grads, exact)


@pytest.mark.parametrize("engine", [SBNN(paired=True), BMR(paired=True)], ids=["sbnn", "bmr"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_step_is_that_of_the_summed_gradients(engine, clip):
    """The same step where `turned` and the gradients are already one tensor, `spread_grads`."""
    states = []
    for folded in (False, True):
        problem = problem_of()
        problem.execution.clip_norm = clip
        state = started(engine, problem, masks=True)
        if folded:
            gradient_ = problem.gradient_

            def fold(draw, batch, source, gradient_=gradient_, state=state):
                value, n = gradient_(draw, batch, source), state.log_std.shape[1]
                assert draw.turned is not None
                first = draw.turn.args[3]  # of each group, for BMR
                centre = state.mean[:, :n] * state.controls.keep[:, :n]
                if first is not None:
                    centre = centre * state.groups.to_entries(first)
                shift = draw.weights[:, :n] - centre
                draw.spread_grads = 2 * draw.turned + draw.grads[:, :n] * shift
                draw.turned = None
                return value

            problem.gradient_ = fold
        engine.step(problem, state, problem.batch(torch.arange(11)))
        states.append(dict(named_tensors(state)))
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value)


@pytest.mark.skipif(native.steps() is None, reason="no C compiler")
@pytest.mark.parametrize("masks", [False, True])
def test_a_paired_step_in_c_is_the_step_in_python(masks):
    states = []
    for native_steps in (False, True):
        problem = problem_of(dtype=torch.float32)
        problem.execution.native = True  # the same draw
        engine = SBNN(paired=True)
        state = started(engine, problem, masks=masks)
        state.log_std_moments.second.fill_(1.0)  # else a first step is the sign of its gradient
        draw = draw_weights(problem, state, local=False, paired=True)
        problem.execution.native = native_steps
        problem.gradient_(draw, problem.batch(torch.arange(11)), state.generator)
        states.append({"weights": draw.weights.clone(), "turned": draw.turned.clone()})
        variational.adam_step_(problem, state, draw, mixture_precision)
        states[-1] |= dict(named_tensors(state))
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(native.steps() is None, reason="no C compiler")
@pytest.mark.parametrize("masks", [False, True])
def test_a_paired_draw_of_scaled_weights_turns_in_c_as_in_python(masks):
    found = []
    for native_steps in (False, True):
        problem = problem_of(dtype=torch.float32)
        problem.execution.native = True  # the same draw
        state = started(BMR(paired=True, local=False), problem, masks=masks)
        groups = (2, state.groups.n_groups)
        ratio = 0.5 + torch.rand(groups, generator=Generator().manual_seed(7))
        draw = draw_weights(problem, state, local=False, paired=True, ratio=ratio)
        before = draw.weights.clone()
        problem.execution.native = native_steps
        problem.gradient_(draw, problem.batch(torch.arange(11)), state.generator)
        assert not torch.equal(draw.weights, before)
        found.append((draw.weights.clone(), draw.turned.clone()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_few_examples_are_not_halved():
    problem = problem_of()
    engine = SBNN(paired=True)
    one, other = (started(SBNN(paired=paired), problem, masks=False) for paired in (True, False))
    engine.step(problem, one, problem.batch(torch.arange(7)))
    SBNN(paired=False).step(problem, other, problem.batch(torch.arange(7)))
    torch.testing.assert_close(one.mean, other.mean)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SBNN(local=True, paired=True), "not both"),
        (lambda: BMR(local=True, paired=True), "not both"),
        (lambda: SBNN(paired=True, optimizer="sgd"), "set paired=False"),
        (lambda: FlatVI(SpikeSlab(), paired=True), "set paired=False"),
        (lambda: FlatVI(Normal(), local=True, paired=True), "not both"),
    ],
)
def test_noise_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
