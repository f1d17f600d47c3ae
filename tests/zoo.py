"""One tiny network for each thing the core must cope with, and data to feed it."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayesieve.core.problem import Problem
from problems import normal, seeded


class Calling(nn.Module):
    """Layers by name and a function of them and x."""

    def __init__(self, function: Callable[..., Tensor], **layers: object) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Attention(nn.Module):
    """A pre-norm transformer block over 3 positions, pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.feed = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return self.head((x + self.feed(x)).mean(1))


class Words(nn.Module):
    """An embedding, pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x)).mean(1))


class Tied(nn.Module):
    """Embedding and output layer share one matrix; one output row per position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.mix = nn.Linear(4, 4)
        self.decode = nn.Linear(4, 5, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.mix(self.embed(x))))


class Branching(nn.Module):
    """Control flow that depends on the weights, which `vmap` cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if h.sum() > 0:
            h = 2 * h
        return self.second(h)


class Fork(nn.Module):
    """Each call uses one of two layers, so the other one gets no gradient at all."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(2, 1)
        self.right = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) if bool(x.sum() > 0) else self.right(x)


class Repeated(nn.Module):
    """One layer object under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.again = self.first
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.first(x)))))


def built(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Build a module with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def chain(
    *widths: int,
    act: Callable[[], nn.Module] | None = nn.Tanh,
    norm: Callable[[int], nn.Module] | None = None,
    seed: int | None = 0,
    dtype: torch.dtype = torch.float32,
    bias: bool = True,
) -> nn.Sequential:
    """Linear layers of these widths; between two of them a norm and an activation, if any.

    Without a seed the weights come from torch's own generator.

    Example:
        >>> [type(layer).__name__ for layer in chain(3, 4, 2, norm=nn.BatchNorm1d)]
        ['Linear', 'BatchNorm1d', 'Tanh', 'Linear']
    """

    def layers() -> nn.Sequential:
        made: list[nn.Module] = []
        for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
            if i and norm:
                made.append(norm(n_in))
            if i and act:
                made.append(act())
            made.append(nn.Linear(n_in, n_out, bias=bias))
        return nn.Sequential(*made)

    made = layers() if seed is None else cast(nn.Sequential, built(layers, seed))
    return made.to(dtype)


def _conv1d() -> nn.Module:
    conv = nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular")
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(15, 3))


def _conv2d() -> nn.Module:
    conv = nn.Conv2d(1, 2, 3, stride=2)
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


def _batch_norm_2d() -> nn.Module:
    conv = nn.Conv2d(1, 2, 3, stride=2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


_mlp = partial(chain, 3, 4, 3, seed=None)
_regression = partial(chain, 3, 4, 2, seed=None)
_binary = partial(chain, 3, 4, 1, seed=None)
_batch_norm = partial(_mlp, norm=nn.BatchNorm1d)
_layer_norm = partial(_mlp, norm=nn.LayerNorm)


def _frozen() -> nn.Module:
    model = _mlp()
    model[0].requires_grad_(False)
    return model


_CATEGORICAL = Categorical()


@dataclass(frozen=True)
class Case:
    """A network and what it takes: input shape, and the kind of its inputs and targets."""

    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    likelihood: Likelihood = _CATEGORICAL
    n_words: int = 0  # inputs are word numbers if > 0
    target_shape: tuple[int, ...] = ()

    def model(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
        return built(self.build, seed).to(dtype)

    def data(self, n: int = 6, seed: int = 7, dtype: torch.dtype = torch.float64) -> Batch:
        source = seeded(seed)
        if self.n_words:
            x = torch.randint(self.n_words, (n, *self.input_shape), generator=source)
        else:
            x = torch.empty(n, *self.input_shape, dtype=dtype).normal_(generator=source)
        shape = (n, *self.target_shape)
        if isinstance(self.likelihood, Gaussian):
            return Batch(x, torch.empty(shape, dtype=dtype).normal_(generator=source))
        n_labels = 2 if isinstance(self.likelihood, Bernoulli) else 3
        return Batch(x, torch.randint(n_labels, shape, generator=source))

    def problem(self, n: int = 6, dtype: torch.dtype = torch.float64) -> Problem:
        return Problem(self.model(dtype=dtype), self.likelihood, self.data(n, dtype=dtype)[:2])

    def weights(self, problem: Problem, k: int = 1) -> Tensor:
        """k weight vectors around the initial one, (k, d)."""
        noise = normal(k, problem.layout.size, seed=11, dtype=problem.initial.dtype)
        return problem.initial + 0.3 * noise


ZOO = (
    Case("linear", lambda: nn.Linear(3, 1), (3,), Gaussian(0.7), target_shape=(1,)),
    Case("mlp", _mlp, (3,)),
    Case("regression", _regression, (3,), Gaussian(0.5), target_shape=(2,)),
    Case("learned_noise", _regression, (3,), Gaussian(0.5, learned=True), target_shape=(2,)),
    Case("binary", _binary, (3,), Bernoulli()),
    Case("conv1d", _conv1d, (2, 5)),
    Case("conv2d", _conv2d, (1, 6, 6)),
    Case("batch_norm", _batch_norm, (3,)),
    Case("batch_norm_2d", _batch_norm_2d, (1, 6, 6)),
    Case("layer_norm", _layer_norm, (3,)),
    Case("attention", Attention, (3, 4)),
    Case("embedding", Words, (4,), n_words=7),
    Case("tied", Tied, (4,), n_words=5, target_shape=(4,)),
    Case("frozen", _frozen, (3,)),
    Case("branching", Branching, (3,), Gaussian(), target_shape=(1,)),
)
REPEATED = Case("repeated", Repeated, (3,))
BY_NAME = {case.name: case for case in ZOO}


def plain_log_lik(likelihood: Likelihood, output: Tensor, y: Tensor, log_noise: Tensor) -> Tensor:
    """Σ log p(y | output) from torch.distributions alone."""
    if isinstance(likelihood, Categorical):
        return torch.distributions.Categorical(logits=output).log_prob(y).sum()
    if isinstance(likelihood, Bernoulli):
        logits = output[:, 0]
        return torch.distributions.Bernoulli(logits=logits).log_prob(y.to(logits.dtype)).sum()
    return torch.distributions.Normal(output, log_noise.exp()).log_prob(y).sum()
