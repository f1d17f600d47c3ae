"""Tests that need a CUDA device: captured steps equal plain ones and leave nothing behind."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.data.augment import Augment
from bayesieve.data.streams import Stream
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.fast.backend import Machine
from bayesieve.fast.stepper import fast_kernels, make_stepper
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from problems import run_by

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # what torch 2.11 says of itself while it compiles
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
ENGINES = [
    MAP(), FlatVI(), SBNN(), SBNN(local=True), SBNN(optimizer="sgd", lr=0.01),
    SGLD(step_size=1e-5, chain=Chain(burn_in=2, thin=2, n_kept=2, power=0.3)),
    SGHMC(GaussianLaplace(0.5, 1.0), 1e-5, adapt="sa", chain=Chain(cycle=4, cooling=0.9)),
    BMR(), BMR(local=True), HorseshoeVI(),
]  # fmt: skip


def make_problem(augment: Augment | None = None) -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )
    x, y = torch.randn(60, 1, 8, 8), torch.randint(3, (60,))
    return Problem(model, Categorical(), (x, y), augment=augment).to("cuda")


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("n_models", [1, 3])
def test_captured_steps_equal_plain_steps(engine, n_models):
    index = torch.arange(60, device="cuda").view(6, 10)
    results = []
    for captured in (False, True):
        problem = make_problem()
        state = engine.init(problem, torch.Generator("cuda").manual_seed(5), n_models)
        stepper = make_stepper(problem, engine, state, n_models)
        for i in [*range(6), 0, 1]:
            if captured:
                stepper(index[i])
            else:
                engine.step(problem, state, Batch(problem.x[index[i]], problem.y[index[i]]))
        results.append(engine.posterior(problem, state, n_models - 1))
    torch.testing.assert_close(results[0].mean, results[1].mean, rtol=1e-4, atol=1e-5)
    for name, value in results[0].buffers.items():
        torch.testing.assert_close(value, results[1].buffers[name], rtol=1e-4, atol=1e-5)


def test_captured_steps_with_augmented_images_equal_plain_ones():
    augment = Augment(shift=1, flip=True, rotation=15, erase=0.5, fill=(0.3,))
    engine, index = SGHMC(step_size=1e-5), torch.arange(60, device="cuda").view(6, 10)
    results = []
    for captured in (False, True):
        problem = make_problem(augment)
        state = engine.init(problem, torch.Generator("cuda").manual_seed(5))
        stepper = make_stepper(problem, engine, state)
        for i in range(6):
            if captured:
                stepper(index[i])
            else:
                x = augment(problem.x[index[i]], state.generator)
                engine.step(problem, state, Batch(x, problem.y[index[i]]))
        results.append(state.w.clone())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", [SBNN(local=True), BMR(local=True)], ids=repr)
def test_compiled_noise_on_activations_is_that_of_plain_steps(engine):
    """Noise of both comes from the generator, so that even single draws are equal."""
    results = []
    for compiled in (False, True):
        problem = make_problem()
        run_by(problem, Machine("cuda", compiled=compiled))
        state = engine.init(problem, torch.Generator("cuda").manual_seed(5))
        for i in (0, 20, 45):  # the last batch is a smaller one
            engine.step(problem, state, Batch(problem.x[i : i + 20], problem.y[i : i + 20]))
        results.append(engine.posterior(problem, state))
    torch.testing.assert_close(results[0].mean, results[1].mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(results[0].std, results[1].std, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("compile", ["off", "on"])
def test_fit_prunes_on_the_device_and_repeats_itself(compile):
    runs = [
        fit(
            make_problem(), [SBNN(local=True)] * 2, epochs=6, batch_size=16, seed=3,
            pruning=GradualPruning(0.5, start=0.1, end=0.6), schedule=Schedule(compile=compile),
        )
        for _ in range(2)
    ]  # fmt: skip
    for first, second in zip(runs[0].posteriors, runs[1].posteriors, strict=True):
        assert first.mean.is_cuda
        torch.testing.assert_close(first.mean, second.mean, rtol=1e-3, atol=1e-4)
        assert (first.mean == 0).double().mean() >= 0.45


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_copied_ahead_into_the_buffers_of_a_captured_step(workers):
    # SGD: Adam would turn the rounding of a small gradient into a whole step
    in_memory, engine = make_problem(), MAP(optimizer="sgd", lr=0.03)
    rows = TensorDataset(in_memory.x.cpu(), in_memory.y.cpu())
    stream = Stream(rows, workers=workers)
    problem = with_data(in_memory, stream)
    asked = {"steps": 12, "batch_size": 16, "seed": 3, "schedule": Schedule()}
    run = fit(problem, engine, **asked)
    state = engine.init(in_memory, torch.Generator("cuda").manual_seed(3))
    with fast_kernels(in_memory.device):  # `fit` rounds products as this does
        for x, y in stream.steps(16, seed=3, stop=12):
            engine.step(in_memory, state, Batch(x.cuda(), y.cuda()))
    torch.testing.assert_close(run.state.w, state.w, rtol=1e-3, atol=1e-4)


def test_the_network_is_compiled_on_the_device():
    results = []
    for compile in ("off", "network"):
        schedule = Schedule(compile=compile)
        run = fit(make_problem(), SBNN(), steps=4, batch_size=16, schedule=schedule)
        results.append(run.posterior.mean)
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)
