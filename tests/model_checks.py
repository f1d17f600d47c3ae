"""What must hold for an architecture: one check for each column of docs/models.md.

A check raises if it does not hold. `outcome` turns that into "yes" or the reason.
"""

import copy
import io
import tempfile
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.assess.predict import as_point
from bayesieve.core.batch import Batch
from bayesieve.core.inputs import as_inputs, call
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import SparseModel
from bayesieve.core.problem import Problem
from bayesieve.deliver.bundle import load, save
from bayesieve.deliver.onnx import export_onnx
from bayesieve.engines.laplace import laplace
from bayesieve.sieve.compact import compact, report_of
from bayesieve.sieve.groups import find_groups
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.unit_rules import keep_units
from bayesieve.training.launch import fit
from engine_table import ONE_EACH

FAMILIES = ("map", "flat_vi", "horseshoe", "bmr", "sbnn", "sghmc", "tdamp")


class Trial:
    """One architecture on its way through the library; what several checks need is made once."""

    def __init__(self, model: nn.Module, example: Any) -> None:
        self.model, self.example = model.eval(), example
        self.x = as_inputs("trial", example)

    def outputs(self, module: nn.Module) -> Tensor:
        """What a module returns for the example."""
        with torch.no_grad():
            return call(module, self.x)

    @cached_property
    def problem(self) -> Problem:
        """Two examples with labels."""
        shape = self.outputs(self.model).shape
        y = torch.arange(shape[:-1].numel()).view(shape[:-1]) % shape[-1]
        return Problem(self.model, Categorical(), (self.example, y))

    @cached_property
    def sparse(self) -> SparseModel:
        """Half of the units."""
        return prune(as_point(self.model, Categorical()), keep_units(0.5, example=self.example))

    @cached_property
    def small(self) -> fx.GraphModule:
        """Compacted."""
        return compact(self.sparse, self.example)


def problem(trial: Trial) -> None:
    """A batch has a finite log-likelihood and gradient."""
    batch = Batch(trial.x, trial.problem.y)
    values = trial.problem.value_and_grad(trial.problem.initial[None], batch)
    assert all(bool(value.isfinite().all()) for value in values), "not finite"


def fitted(name: str) -> Callable[[Trial], None]:
    """Three steps of an engine."""

    def check(trial: Trial) -> None:
        mean = fit(trial.problem, ONE_EACH[name], steps=3, batch_size=2).posterior.mean
        assert bool(mean.isfinite().all()), "weights are not finite"

    return check


def weights(trial: Trial) -> None:
    """Half of the weights go."""
    assert (
        prune(as_point(trial.model, Categorical()), keep_zeros(0.5, score="magnitude")).zeros > 0.35
    )


def units(trial: Trial) -> None:
    """Half of the units go."""
    fixed = find_groups(trial.sparse.network, trial.example).fixed
    stays = [why for why in fixed if not why.endswith(("is the input", "must keep its shape"))]
    said = f"{trial.sparse.zeros:.0%} of the weights go: {'; '.join(stays[:2])}"
    assert trial.sparse.zeros > 0.4, said


def compacted(trial: Trial) -> None:
    """The compacted network computes the same."""
    assert report_of(trial.small).max_difference < 1e-5


def trains(trial: Trial) -> None:
    """Further training moves every parameter and every running mean."""
    small = copy.deepcopy(trial.small).train()
    running = {name: b.clone() for name, b in small.named_buffers() if "running" in name}
    optimiser = torch.optim.SGD(small.parameters(), 1e-3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(2):
            optimiser.zero_grad()
            out = call(small, trial.x)
            F.mse_loss(out, torch.randn(out.shape)).backward()
            optimiser.step()
    trained = {name: p for name, p in small.named_parameters() if p.requires_grad}
    still = [name for name, p in trained.items() if p.grad is None or not bool(p.grad.any())]
    still += [name for name, b in running.items() if torch.equal(b, small.get_buffer(name))]
    assert not still, f"{', '.join(still[:3])} do not move"


def copies(trial: Trial) -> None:
    """`deepcopy` and `torch.load` of `torch.save` give the same numbers."""
    file, wanted = io.BytesIO(), trial.outputs(trial.small)
    torch.save(trial.small, file)
    file.seek(0)
    for again in (copy.deepcopy(trial.small), torch.load(file, weights_only=False)):
        assert torch.equal(trial.outputs(again), wanted), "other outputs"


def bundle(trial: Trial) -> None:
    """A bundle of the compacted network gives the same numbers."""
    with tempfile.TemporaryDirectory() as folder:
        again = load(save(trial.small, Path(folder) / "bundle", example=trial.example))
    assert torch.equal(trial.outputs(again), trial.outputs(trial.small)), "other outputs"


def onnx(trial: Trial) -> None:
    """The ONNX file computes the same in onnxruntime, which `export_onnx` checks."""
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(trial.small, Path(folder) / "small.onnx", trial.example)


def curvature(trial: Trial) -> None:
    """Laplace around the weights has a finite spread."""
    assert bool(laplace(trial.problem, labels="sampled").std.isfinite().all()), "not finite"


CHECKS: dict[str, Callable[[Trial], None]] = {
    "problem": problem,
    **{name: fitted(name) for name in FAMILIES},
    "prune": weights,
    "units": units,
    "compact": compacted,
    "train on": trains,
    "copy, pickle": copies,
    "bundle": bundle,
    "ONNX": onnx,
    "laplace": curvature,
}


def outcome(name: str, trial: Trial) -> str:
    """The word "yes", or why a check does not hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            CHECKS[name](trial)
        except Exception as error:  # the page names whatever an architecture meets
            said = " ".join(str(error).split())
            return f"{type(error).__name__}: {said}"[:300]
    return "yes"
