"""Posteriors, the narrow waist: every engine ends in one, everything downstream starts from one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Generator, Tensor, nn

from bayesieve.core.layout import Layout
from bayesieve.core.network import Network, materialise
from bayesieve.core.priors import Prior
from bayesieve.core.random import gaussian_draws


class Posterior(ABC):
    """A distribution over the flat weight vector of one network.

    Attributes:
        network: the function these weights belong to.
        buffers: module buffers (BatchNorm statistics) that go with these weights.
        logit_inclusion: log-odds that each weight matters, (d,), or None if the prior has none.
        prior: of the Bayesian weights, where one number describes it; None elsewhere.
        symmetric: whether mean + e and mean - e are equally likely, so that draws come in pairs.
    """

    prior: Prior | None = None
    symmetric: ClassVar[bool] = False
    network: Network
    buffers: Mapping[str, Tensor]
    logit_inclusion: Tensor | None = None
    _masked: ClassVar[tuple[str, ...]]  # tensors (..., d) that are 0 where a weight is pruned

    if TYPE_CHECKING:  # a field of some, a property of others

        @property
        def mean(self) -> Tensor:
            """Posterior mean, shape (d,)."""

    @property
    def n_kept(self) -> int | None:
        """Draws that the posterior consists of; None where it is a distribution."""
        return None

    @abstractmethod
    def draw(self, n: int, generator: Generator) -> Tensor:
        """Independent draws, shape (n, d)."""

    @property
    def layout(self) -> Layout:
        """The slice of w of each tensor."""
        return self.network.layout

    @property
    def inclusion(self) -> Tensor | None:
        """Probability that each weight matters, shape (d,), or None if the prior has none.

        Under mean-field inference it belongs to one explanation of the data. Where inputs are
        correlated, the start decides which; average it over a population of starts
        (`Fit.inclusion`, docs/feature-selection.md).
        """
        return None if self.logit_inclusion is None else torch.sigmoid(self.logit_inclusion)

    def masked(self, keep: Tensor) -> Self:
        """The same posterior with the entries where `keep`, (d,), is False fixed at 0."""
        masked = {
            name: value.masked_fill(~keep, -torch.inf if name == "logit_inclusion" else 0)
            for name in (*self._masked, "logit_inclusion")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **masked)  # type: ignore[type-var]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        """The same posterior on another device; `dtype` is that of its floating-point tensors."""

        def moved(value: Tensor) -> Tensor:
            return value.to(device, dtype if value.is_floating_point() else None)

        changed: dict[str, Any] = {}
        for field_ in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field_.name)
            if isinstance(value, Network):
                changed[field_.name] = value.to(device)
            elif isinstance(value, Tensor):
                changed[field_.name] = moved(value)
            elif isinstance(value, Mapping):
                changed[field_.name] = {name: moved(buffer) for name, buffer in value.items()}
        return replace(self, **changed)  # type: ignore[type-var]

    def to_module(self) -> nn.Module:
        """A plain module in eval mode with the mean as its weights."""
        return materialise(self.network, self.mean, self.buffers)

    def __repr__(self) -> str:
        network = self.network
        dtype = str(network.dtype).removeprefix("torch.")
        size = f"{network.layout.size:,} weights, {dtype}, {network.device}"
        return f"{type(self).__name__}({size})"


@dataclass(frozen=True, eq=False, repr=False)
class Factorised(Posterior):
    """Independent normals, N(mean, std²) for each weight; std is 0 for point parameters.

    Args:
        network: the function these weights belong to.
        mean: (d,).
        std: (d,).
        prior: the prior of the Bayesian entries, where one number describes it.
        logit_inclusion: (d,), log-odds that a weight belongs to the slab; +inf for points.
        buffers: module buffers.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Linear(2, 1), Gaussian())
        >>> q = Factorised(network, torch.zeros(3), torch.ones(3))
        >>> q.draw(5, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3])
    """

    _masked: ClassVar[tuple[str, ...]] = ("mean", "std")
    symmetric: ClassVar[bool] = True

    network: Network
    mean: Tensor
    std: Tensor
    prior: Prior | None = None
    logit_inclusion: Tensor | None = None
    buffers: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        d = self.network.layout.size
        for name in ("mean", "std", "logit_inclusion"):
            value = getattr(self, name)
            if value is not None and value.shape != (d,):
                raise ValueError(f"Factorised: {name} must have shape ({d},), got {value.shape}.")

    def draw(self, n: int, generator: Generator, out: Tensor | None = None) -> Tensor:
        """Independent draws, shape (n, d); point parameters take no noise. `out` may take them."""
        return gaussian_draws(self.mean, self.std, n, self.layout.n_bayesian, generator, out)


@dataclass(frozen=True, eq=False, repr=False)
class Samples(Posterior):
    """A finite set of weight vectors, each equally likely; a point estimate is one of them.

    Args:
        network: the function these weights belong to.
        draws: (n, d).
        logit_inclusion: (d,) or None.
        buffers: module buffers, of the mean.
        draw_buffers: those that differ between draws (BatchNorm statistics), (n, ...) each; the
            rest is shared.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Linear(2, 1), Gaussian())
        >>> chosen = Samples(network, torch.eye(3)).choose(2, torch.Generator().manual_seed(0))
        >>> chosen.draws.shape
        torch.Size([2, 3])
    """

    _masked: ClassVar[tuple[str, ...]] = ("draws",)

    network: Network
    draws: Tensor
    logit_inclusion: Tensor | None = None
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    draw_buffers: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        d = self.network.layout.size
        if self.draws.dim() != 2 or self.draws.shape[1] != d or len(self.draws) == 0:
            raise ValueError(
                f"Samples: draws must have shape (n, {d}), n > 0, got {tuple(self.draws.shape)}."
            )
        for name, value in self.draw_buffers.items():
            if value.dim() == 0 or len(value) != len(self.draws):
                raise ValueError(
                    f"Samples: buffer {name!r} must have one entry for each of "
                    f"{len(self.draws)} draws, got shape {tuple(value.shape)}."
                )

    @property
    def n_kept(self) -> int:
        """N."""
        return len(self.draws)

    @property
    def mean(self) -> Tensor:
        """Average of the draws, shape (d,)."""
        return self.draws.mean(0)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """N rows taken at random with replacement, shape (n, d); all rows once if n equals them."""
        return self.choose(n, generator).draws

    def choose(self, n: int, generator: Generator) -> "Samples":
        """The rows that `draw` takes, each with its buffers."""
        if n == len(self.draws):
            return replace(self, draws=self.draws.clone())
        draws = self.draws
        return self._some(torch.randint(len(draws), (n,), generator=generator, device=draws.device))

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"({len(self.draws)} x ", 1)

    def split(self, size: int) -> "list[Samples]":
        """The draws in their order, in blocks of at most `size`."""
        starts = range(0, len(self.draws), size)
        return [self._some(slice(start, start + size)) for start in starts]

    def _some(self, rows: Tensor | slice) -> "Samples":
        """Some of the draws, each with its buffers."""
        buffers = {name: value[rows] for name, value in self.draw_buffers.items()}
        return replace(self, draws=self.draws[rows], draw_buffers=buffers)


@dataclass(frozen=True, eq=False, repr=False)
class SparseModel:
    """A posterior and what is kept of it.

    Args:
        posterior: already masked: entries that are not kept are exactly 0.
        keep: (d,) bool, True = kept.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Linear(2, 1), Gaussian())
        >>> q = Factorised(network, torch.tensor([1.0, 2.0, 3.0]), torch.ones(3))
        >>> keep = torch.tensor([True, False, True])
        >>> sparse = SparseModel(q.masked(keep), keep)
        >>> round(sparse.zeros, 3), sparse.to_module().weight.tolist()
        (0.333, [[1.0, 0.0]])
    """

    posterior: Posterior
    keep: Tensor

    @property
    def network(self) -> Network:
        """The function these weights belong to."""
        return self.posterior.network

    @property
    def layout(self) -> Layout:
        """The slice of w of each tensor."""
        return self.posterior.layout

    @property
    def zeros(self) -> float:
        """Fraction of all trainable parameters, biases included, that are exactly 0."""
        return int((~self.keep).sum()) / self.layout.size

    @property
    def removed(self) -> float:
        """Fraction of the prunable weights that are removed."""
        sparse = self.keep[self.layout.sparse]
        return int((~sparse).sum()) / max(sparse.numel(), 1)

    def to_module(self) -> nn.Module:
        """A plain module with the masked posterior mean as its weights, in eval mode."""
        return self.posterior.to_module()

    def __repr__(self) -> str:
        kept, size = int(self.keep.sum()), self.layout.size
        return f"SparseModel({kept:,} of {size:,} weights, {self.zeros:.2%} zeros)"

    def to(self, device: torch.device | str) -> "SparseModel":
        """The same sparse model on another device."""
        return SparseModel(self.posterior.to(device), self.keep.to(device))


Model = Posterior | SparseModel


def posterior_of(model: Model) -> Posterior:
    """The posterior of a model, masked if the model is sparse.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> draws = Samples(Network.of(nn.Linear(2, 1), Gaussian()), torch.eye(3))
        >>> posterior_of(SparseModel(draws, torch.ones(3).bool())) is draws
        True
    """
    if isinstance(model, SparseModel):
        return model.posterior
    if not hasattr(model, "network"):  # what users reach for first: a run, or the module itself
        raise TypeError(
            f"model: must be a posterior or a sparse model, got {type(model).__name__}. Of a run "
            "take run.posterior or run.sparse()."
        )
    return model


def present_entries(posterior: Posterior) -> Tensor:
    """Entries that are not exactly 0 without any spread, (d,) bool.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Linear(2, 1), Gaussian())
        >>> present_entries(Factorised(network, torch.eye(3)[0], torch.eye(3)[1]))
        tensor([ True,  True, False])
    """
    if isinstance(posterior, Samples):
        return (posterior.draws != 0).any(0)
    return (posterior.mean != 0) | (getattr(posterior, "std", posterior.mean) != 0)
