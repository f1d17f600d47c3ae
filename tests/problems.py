"""Small inference problems whose answers are known by another route than the library's."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bayesieve.core.batch import Batch
from bayesieve.core.execution import Backend
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.core.problem import Problem
from bayesieve.core.random import fresh_keys
from bayesieve.data.examples import DataSet, Examples
from bayesieve.engines import Renewing
from bayesieve.fast.backend import Machine


def run_by(problem: Problem, backend: Backend | None = None, **changes: Any) -> Problem:
    """The problem itself, computed in another way from now on: another backend, other bounds."""
    backend = problem.execution.backend if backend is None else backend
    bounds = replace(problem.execution.bounds, **changes)
    problem.execution = replace(problem.execution, backend=backend, bounds=bounds)
    return problem


IN_C, BY_COUNTER = Machine(native=True), type("_ByCounter", (Backend,), {
    "noise": lambda self, like, generator: fresh_keys(generator)})()  # fmt: skip

# parameters of an estimator that is trained in no time, for all that needs no quality
QUICK = {"hidden": (6,), "epochs": 3, "folds": 0, "n_samples": 4, "random_state": 0}


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(shape, dtype=dtype).normal_(generator=seeded(seed))


def simulated(
    n: int, p: int, mean: Callable[[np.ndarray], np.ndarray], noise: float = 0.3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A table of p normal columns, and real targets around a mean that is known."""
    source = np.random.default_rng(seed)
    X = source.normal(size=(n, p))
    return X, mean(X) + noise * source.normal(size=n)


def normal32(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in single precision, as networks are fed by default."""
    return normal(*shape, seed=seed, dtype=torch.float32)


def posterior_around(
    module: nn.Module, likelihood: Likelihood | None = None, std: float = 0.3
) -> Factorised:
    """Normal posterior around the weights of a module; labels are classes unless told otherwise."""
    network = Network.of(module, likelihood or Categorical())
    mean = network.weights_of(module)
    spread = torch.full_like(mean, std)
    spread[network.layout.n_bayesian :] = 0
    return Factorised(network, mean, spread, buffers=network.buffers())


def random_posterior(
    module: nn.Module, likelihood: Likelihood | None = None, std: float = 0.3, seed: int = 2
) -> Factorised:
    """Normal posterior with random means, in the dtype of a module whose own weights do not count.

    Labels are classes unless told otherwise.
    """
    network = Network.of(module, likelihood or Categorical())
    mean = normal(network.layout.size, seed=seed, dtype=network.dtype)
    spread = torch.full_like(mean, std)
    spread[network.layout.n_bayesian :] = 0
    return Factorised(network, mean, spread)


def few_images(
    n_train: int = 300,
    n_test: int = 100,
    shape: tuple[int, ...] = (1, 28, 28),
    *,
    noise: float = 0.3,
    offset: float = 0.0,
    name: str = "toy",
) -> DataSet:
    """Images of ten classes, each a prototype of pixels with noise; easy to tell apart."""

    def some(n: int, seed: int) -> Examples:
        y = torch.randint(10, (n,), generator=seeded(seed))
        return Examples(prototypes[y] + noise * normal32(n, *shape, seed=seed) + offset, y)

    prototypes = normal32(10, *shape, seed=0)
    recipe = {"kind": "image", "shape": list(shape), "scale": 255.0,
              "mean": [0.5] * shape[0], "std": [0.25] * shape[0]}  # fmt: skip
    train, test = some(n_train, 1), some(n_test, 2)
    return DataSet(name, train, test, "classification", tuple("0123456789"), preprocessing=recipe)


def linear_model(n_inputs: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    """One output, no bias, weights 0; wrapped, so that the layer is not the root module."""
    layer = nn.Linear(n_inputs, 1, bias=False, dtype=dtype)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(layer)


def flat(state: Any) -> Tensor:
    """The tensor of shape (k, d) that a step moves, whatever the engine calls it."""
    names = ("mean", "w", "data_linear")
    return next(getattr(state, name) for name in names if hasattr(state, name))


def renew(engine, problem, state, step, n_steps):
    """What `fit` does before step number `step` for engines that renew something between steps."""
    if isinstance(engine, Renewing):
        every = engine.renew_every(n_steps)
        if step and every and step % every == 0:
            engine.renew_(problem, state, step, n_steps)


def run(engine, problem, n_steps, *, seed=0, n_models=1, batches=None, decay=False, renewing=True):
    """A fresh state after some steps on the given batches in turn, or on all data every time.

    With `decay` the learning rate falls to 0 along half a cosine. Without `renewing` an engine that
    prunes by itself does not.
    """
    state = engine.init(problem, seeded(seed), n_models)
    batches = batches or [Batch(problem.x, problem.y)]
    for step in range(n_steps):
        if decay:
            state.controls.lr_scale.fill_(0.5 + 0.5 * math.cos(math.pi * step / n_steps))
        if renewing:
            renew(engine, problem, state, step, n_steps)
        engine.step(problem, state, batches[step % len(batches)])
    return state


def assert_agrees(samples: Tensor, exact: Tensor, scale: Tensor, allowance: float = 0.0) -> None:
    """Mean over axis 0 within 4 standard errors, plus an allowance in units of `scale`."""
    error = samples.std(0) / math.sqrt(len(samples))
    assert (4 * error < 0.2 * scale).all(), "the run is too short to judge"
    distance = (samples.mean(0) - exact).abs()
    assert (distance <= 4 * error + allowance * scale).all(), (distance / scale, error / scale)


@dataclass(frozen=True)
class ConjugateRegression:
    """y = x w + noise with w ~ N(0, prior_std²): the posterior is Gaussian and known."""

    x: Tensor
    y: Tensor
    noise_std: float
    prior_std: float

    @property
    def problem(self) -> Problem:
        model = linear_model(self.x.shape[1], self.x.dtype)
        return Problem(model, Gaussian(self.noise_std), (self.x, self.y))

    @property
    def precision(self) -> Tensor:
        eye = torch.eye(self.x.shape[1], dtype=self.x.dtype)
        return self.x.T @ self.x / self.noise_std**2 + eye / self.prior_std**2

    @property
    def mean(self) -> Tensor:
        return torch.linalg.solve(self.precision, self.x.T @ self.y[:, 0] / self.noise_std**2)

    @property
    def std(self) -> Tensor:
        return torch.linalg.inv(self.precision).diagonal().sqrt()

    @property
    def log_evidence(self) -> float:
        eye = torch.eye(len(self.x), dtype=self.x.dtype)
        covariance = self.prior_std**2 * self.x @ self.x.T + self.noise_std**2 * eye
        zero = torch.zeros(len(self.x), dtype=self.x.dtype)
        marginal = torch.distributions.MultivariateNormal(zero, covariance)
        return marginal.log_prob(self.y[:, 0]).item()

    def expected_log_lik(self, mean: Tensor, std: Tensor) -> Tensor:
        """E log p(y | w) under N(mean, std²), each (..., d), in closed form."""
        residual = self.y[:, 0] - mean @ self.x.T
        spread = std.square() @ self.x.square().T
        per_case = -0.5 * (residual.square() + spread) / self.noise_std**2
        return (per_case - math.log(self.noise_std) - 0.5 * math.log(2 * math.pi)).sum(-1)


def conjugate(n: int = 32, d: int = 4, *, orthogonal: bool = True) -> ConjugateRegression:
    """With `orthogonal` columns the exact posterior is itself a product of Gaussians."""
    x = normal(n, d, seed=1)
    if orthogonal:
        x = torch.linalg.qr(x)[0] * n**0.5
    weights = torch.linspace(-1.0, 1.5, d, dtype=torch.float64)
    noise_std = 0.8
    y = x @ weights[:, None] + noise_std * normal(n, 1, seed=2)
    return ConjugateRegression(x, y, noise_std, prior_std=0.5)


@dataclass(frozen=True)
class QuadratureLogistic:
    """Two weights, labels 0 or 1, w ~ N(0, prior_std²): moments by summing over a grid."""

    x: Tensor
    y: Tensor
    prior_std: float

    @property
    def problem(self) -> Problem:
        return Problem(linear_model(2, self.x.dtype), Bernoulli(), (self.x, self.y))

    def log_joint(self, w: Tensor) -> Tensor:
        """log p(y, w) at weights of shape (..., 2), without the library."""
        signs = 2 * self.y - 1
        log_lik = torch.nn.functional.logsigmoid(signs * (w @ self.x.T)).sum(-1)
        prior = torch.distributions.Normal(0.0, self.prior_std)
        return log_lik + prior.log_prob(w).sum(-1)

    def moments(self) -> tuple[Tensor, Tensor, float]:
        """Posterior mean, marginal std and log evidence."""
        axis = torch.linspace(-8, 8, 201, dtype=torch.float64)  # a sum over a bell converges fast
        grid = torch.cartesian_prod(axis, axis)
        log_joint = self.log_joint(grid)
        weight = log_joint.softmax(0)[:, None]
        mean = (weight * grid).sum(0)
        std = (weight * (grid - mean).square()).sum(0).sqrt()
        cell = 2 * math.log((axis[1] - axis[0]).item())
        return mean, std, (log_joint.logsumexp(0) + cell).item()


def logistic(n: int = 40) -> QuadratureLogistic:
    x = normal(n, 2, seed=3)
    chance = torch.sigmoid(x @ torch.tensor([1.5, -0.5], dtype=torch.float64))
    y = (torch.rand(n, generator=seeded(4), dtype=torch.float64) < chance).double()
    return QuadratureLogistic(x, y, prior_std=1.0)


@dataclass(frozen=True)
class KnownSupport:
    """A linear model in which only some inputs matter."""

    problem: Problem
    active: Tensor  # (d,) bool


def known_support(n: int = 200, d: int = 20, n_active: int = 5) -> KnownSupport:
    x = normal(n, d, seed=5, dtype=torch.float32)
    weights = torch.zeros(d)
    weights[:n_active] = torch.tensor([1.0, -1.0, 0.8, -0.8, 1.2])[:n_active]
    y = x @ weights[:, None] + 0.5 * normal(n, 1, seed=6, dtype=torch.float32)
    problem = Problem(linear_model(d, torch.float32), Gaussian(0.5), (x, y))
    return KnownSupport(problem, weights != 0)


def line(n: int = 8, slope: float = 1.0) -> Problem:
    """One weight and one bias, to be fitted to points of a line."""
    x = torch.linspace(-1, 1, n)[:, None]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Problem(nn.Linear(1, 1), Gaussian(), (x, slope * x[:, 0]))


def no_data(d: int = 3, dtype: torch.dtype = torch.float64) -> Problem:
    """Inputs of 0: the likelihood says nothing about the weights, which start at 0."""
    x = torch.zeros(1, d, dtype=dtype)
    return Problem(linear_model(d, dtype), Gaussian(), (x, torch.zeros(1, 1, dtype=dtype)))
