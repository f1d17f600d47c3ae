"""Micro-batches: the parts of a batch go through the network one by one, the step is the same."""

import pytest
import torch
from torch import Generator, nn
from torch.utils.checkpoint import checkpoint

from bayesieve.core.batch import Batch, Rows
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.noise import ActivationNoise
from bayesieve.core.problem import Problem, starting_points
from bayesieve.core.state import snapshot
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.errors import UnsupportedModelError
from bayesieve.runs.memory import memory_need
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from engine_table import ENGINES
from problems import run_by

EXACT = {name: e for name, e in ENGINES.items() if "local" not in name}  # noise is per weight


def network(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), *layers, nn.Linear(4, 2)).double()


def data(n=11):
    x = torch.randn(n, 3, generator=Generator().manual_seed(1), dtype=torch.float64)
    return x, (x[:, :2] > 0).long().sum(1) % 2


def problem(model=None, **options):
    return Problem(model or network(), Categorical(), data(), **options)


CASES = [pytest.param(e, 1 + (name == "sbnn"), id=name) for name, e in EXACT.items()]


@pytest.mark.parametrize(("engine", "k"), CASES)
def test_a_step_is_that_of_the_whole_batch(engine, k):
    asked = {"steps": 2, "batch_size": 8, "schedule": Schedule()}
    whole = fit(problem(), [engine] * k, **asked)
    parts = fit(problem(), [engine] * k, **asked, micro_batch=3)
    states = snapshot(whole.state), snapshot(parts.state)
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_population_and_weights_are_split_with_their_examples(weighted):
    weight = torch.rand(2, 6, generator=Generator().manual_seed(2), dtype=torch.float64)
    index = torch.stack([torch.arange(6), torch.arange(5, 11)])
    rows = Rows(index, weight if weighted else None)
    one = problem(rows=rows)
    batch = one.data.batch(torch.arange(6).expand(2, 6))
    w = starting_points(one, 2, Generator().manual_seed(0), "he")
    value, grad = one.value_and_grad(w, batch)
    value, grad = value.clone(), grad.clone()
    other = problem(rows=rows)
    run_by(other, micro_batch=4)
    torch.testing.assert_close(other.value_and_grad(w, batch)[0], value, rtol=1e-12, atol=0)
    torch.testing.assert_close(other.workspace(2).grads, grad, rtol=1e-12, atol=1e-12)


def test_noise_on_activations_has_the_same_gradient_on_average():
    # 400 copies of a batch: the mean over their noise is what both orders of drawing agree on.
    x, y = torch.ones(2000, 1), torch.zeros(2000)
    torch.manual_seed(0)
    grads = []
    for micro in (None, 500):
        p = Problem(nn.Sequential(nn.Linear(1, 1, bias=False)), Gaussian(), (x, y))
        run_by(p, micro_batch=micro)
        space = ActivationNoise().workspace(p, 1)
        space.weights.fill_(2.0)
        space.variances.fill_(0.25)
        space.bind(Generator().manual_seed(0))
        space.differentiate(Batch(x, y), 1.0).flatten()
        grads.append(space.grads.item() / len(x))
    assert grads == pytest.approx([-2.0, -2.0], abs=0.05)


def test_batch_norm_is_told_of():
    with pytest.warns(UserWarning, match="BatchNorm normalises each micro-batch of 4"):
        fit(problem(network(nn.BatchNorm1d(4))), MAP(), steps=2, batch_size=8, micro_batch=4)
    with pytest.raises(ValueError, match="micro-batches of 1"):
        fit(problem(network(nn.BatchNorm1d(4))), MAP(), steps=2, batch_size=8, micro_batch=1)
    with pytest.raises(ValueError, match="micro_batch must be > 0"):
        fit(problem(), MAP(), steps=2, micro_batch=0)


def test_less_memory_is_needed():
    x, y = torch.zeros(512, 3), torch.zeros(512, dtype=torch.int64)
    big = Problem(network(nn.Linear(4, 4000), nn.Linear(4000, 4)).float(), Categorical(), (x, y))
    whole, parts = (memory_need(big, MAP(), batch_size=512, micro_batch=m) for m in (None, 64))
    assert parts.activations < whole.activations / 4


class Checkpointed(nn.Module):
    """Its hidden layers are computed again on the way back."""

    def __init__(self):
        super().__init__()
        self.net = network(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        hidden = checkpoint(self.net[:-1], x, use_reentrant=False)
        return self.net[-1](hidden)


@pytest.mark.parametrize("engine", [MAP(), FlatVI()], ids=["map", "flat_vi"])
def test_activation_checkpointing_of_a_module_works_untouched(engine):
    plain = fit(problem(network(nn.Linear(4, 4), nn.Tanh())), engine, steps=3, micro_batch=4)
    again = fit(problem(Checkpointed()), engine, steps=3, micro_batch=4)
    torch.testing.assert_close(again.posterior.mean, plain.posterior.mean)


def test_noise_on_activations_refuses_to_be_computed_again():
    with pytest.raises(UnsupportedModelError, match="cannot be drawn again"):
        fit(problem(Checkpointed()), FlatVI(local=True), steps=1)


def test_the_network_is_compiled_when_asked(monkeypatch):
    compiled, compile = [], torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **_: compiled.append(f) or compile(f, backend="eager")
    )
    asked = {"steps": 2, "batch_size": 8}
    plain = fit(problem(), MAP(), **asked, schedule=Schedule(compile="off"))
    assert not compiled
    run = fit(problem(), MAP(), **asked, schedule=Schedule(compile="network"))
    assert any(isinstance(thing, nn.Module) for thing in compiled)
    torch.testing.assert_close(run.posterior.mean, plain.posterior.mean)
