"""Short runs of `fit`, a hand-written loop to hold against it, and ways to compare the two."""

import math
import signal
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.core.state import snapshot
from bayesieve.training import loop
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from problems import normal, renew, seeded
from zoo import built, chain

N_DATA, BATCH = 22, 8  # three steps an epoch, the last one smaller
PER_EPOCH = 3


def toy(build=None, n=N_DATA, *, dtype=torch.float32):
    """Three classes of four inputs, and a network for them."""
    model = built(build or mlp)
    x = normal(n, 4, seed=3, dtype=dtype)
    y = (x @ normal(4, 3, seed=4, dtype=dtype)).argmax(1)
    return Problem(model.to(dtype), Categorical(), (x, y))


mlp = partial(chain, 4, 8, 3, act=nn.ReLU, seed=None)  # 67 parameters
with_batch_norm = partial(mlp, norm=nn.BatchNorm1d)


def with_dropout():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def fit_toy(problem, engine, *, epochs=4, batch_size=BATCH, n_models=None, **options):
    """A short run; with `n_models` a population of one engine."""
    if "steps" in options:
        epochs = None
    engines = engine if n_models is None else [engine] * n_models
    options = {"schedule": Schedule()} | options  # constant dials unless the test turns them
    return fit(problem, engines, epochs=epochs, batch_size=batch_size, **options)


def by_hand(problem, engine, *, epochs=4, batch_size=BATCH, seed=0, n_models=1, dials=None):
    """The state after a loop that knows nothing of `fit` but its rule for the order of examples."""
    problem = with_data(problem, (problem.x, problem.y))  # fresh module buffers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state, order, step = engine.init(problem, seeded(seed), n_models), seeded(seed + 1), 0
        for _ in range(epochs):
            for index in torch.randperm(problem.n_data, generator=order).split(batch_size):
                if dials is not None:
                    lr_scale, kl_scale = dials(step)
                    state.controls.lr_scale.fill_(lr_scale)
                    state.controls.kl_scale.fill_(kl_scale)
                renew(engine, problem, state, step, epochs * math.ceil(problem.n_data / batch_size))
                engine.step(problem, state, Batch(problem.x[index], problem.y[index]))
                step += 1
    return state


def assert_equal_states(a, b):
    """Bit for bit, generators included; the dials are compared by those who turn them."""
    first, second = snapshot(a), snapshot(b)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def assert_equal_posteriors(a, b):
    assert torch.equal(a.mean, b.mean)
    assert a.buffers.keys() == b.buffers.keys()
    for name, value in a.buffers.items():
        assert torch.equal(value, b.buffers[name]), name


def assert_equal_runs(a, b):
    """States, posteriors and histories; only the clock may differ."""
    assert_equal_states(a.state, b.state)
    for first, second in zip(a.posteriors, b.posteriors, strict=True):
        assert_equal_posteriors(first, second)
    assert without_clock(a.history) == without_clock(b.history)


def without_clock(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


@dataclass(frozen=True)
class Spy:
    """An engine that writes down what each step was given."""

    inner: object
    seen: list = field(default_factory=list, repr=False)

    def init(self, problem, generator, n_models=1):
        return self.inner.init(problem, generator, n_models)

    def warm_start_(self, state, posterior):
        self.inner.warm_start_(state, posterior)

    def step(self, problem, state, batch):
        controls = state.controls
        self.seen.append((controls.lr_scale.item(), controls.kl_scale.item(), batch))
        return self.inner.step(problem, state, batch)

    def kl(self, state):
        return self.inner.kl(state)

    def posterior(self, problem, state, member=0):
        return self.inner.posterior(problem, state, member)


def interrupt_after(monkeypatch, step, number=signal.SIGTERM):
    """Send ourselves a signal once this many steps are taken in the next run."""
    make = loop.make_stepper

    def make_interrupted(*arguments):
        inner, taken = make(*arguments), 0

        def one_step(index):
            nonlocal taken
            metrics = inner(index)
            taken += 1
            if taken == step:
                signal.raise_signal(number)
            return metrics

        return one_step

    monkeypatch.setattr(loop, "make_stepper", make_interrupted)


class Contrary:
    """Held-out data that score worse the better the fit."""

    x, y = toy().x, (toy().y + 1) % 3
