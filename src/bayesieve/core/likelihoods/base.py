"""Base class of likelihoods: every question the library asks one, with answers for most.

A likelihood is a frozen dataclass without tensors. Numbers it learns (a noise level) are point
parameters appended to the flat vector under `likelihood.<name>`, so engines need not know of them.
Methods receive them as `numbers`. Outputs have the batch axis first; where S weight vectors are
evaluated at once, their axis comes before it.

A new likelihood derives from `ClassLikelihood` (then it needs `log_probs`) or `RealLikelihood`
(`moments` and `log_density`), and has `log_prob`, `check` and, for Laplace, `curvature`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Generator, Tensor

from bayesieve.errors import UnsupportedModelError

if TYPE_CHECKING:
    from bayesieve.core.likelihoods.prediction import Drawn, Prediction

Numbers = Mapping[str, Tensor]
Task = Literal["classification", "regression"]
Channel = Literal["probit-product", "probit", "normal"]


class Likelihood(ABC):
    """p(target | network output)."""

    task: ClassVar[Task]
    channel: ClassVar[Channel | None] = None  # the output channel of message passing, if any
    standardised: ClassVar[bool] = True  # whether real targets are; counts stay as they are
    soft_targets: ClassVar[bool] = False  # whether targets may be rows of class probabilities
    noise: ClassVar[tuple[str, ...]] = ()  # those arguments of `configured` that it takes
    delivered: ClassVar[tuple[str, ...]]  # names of what `summary` returns
    warm_up: ClassVar[float] = 0.0  # part of a run in which `warm_log_prob` differs from `log_prob`

    def parameters(self) -> dict[str, Tensor]:
        """Initial values of learned numbers; empty for most."""
        return {}

    @abstractmethod
    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of each example, shape (n,)."""

    def warm_log_prob(
        self, output: Tensor, target: Tensor, numbers: Numbers, warmth: Tensor
    ) -> Tensor:
        """`log_prob`, with gradients for a run of this warmth: 1 at its start, 0 once warmed up."""
        return self.log_prob(output, target, numbers)

    @abstractmethod
    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise unless the network's output and the targets fit this likelihood."""

    @abstractmethod
    def predictive(self, outputs: Tensor, numbers: Numbers) -> "Prediction":
        """The predictive distribution from outputs (S, n, ...) and numbers (S, ...) each."""

    @abstractmethod
    def summary(
        self, outputs: Tensor, numbers: Numbers, drawn: "Drawn" = "all"
    ) -> tuple[Tensor, ...]:
        """The tensors named in `delivered`, as `predictive` has them, in traceable operations."""

    @abstractmethod
    def mistakes(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Share of wrong labels, or the mean squared error, of each example, (n,)."""

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Roots of the Fisher information of outputs (n, ...), whatever positions they have.

        Yields:
            Vectors v of the outputs' shape, with Σ vvᵀ the information of each example; with a
            generator one random v of mean square vvᵀ.
        """
        raise UnsupportedModelError(
            f"laplace: {type(self).__name__} has no curvature; add the method `curvature` to it."
        )

    def labels(self, target: Tensor) -> Tensor:
        """Targets as metrics read them: numbers, or class numbers, `IGNORED` where none counts."""
        return target

    def counted(self, target: Tensor) -> Tensor | None:
        """Which outputs count in the likelihood of these targets, as bool that broadcasts to them.

        None if all do.
        """
        return None

    @property
    def normal_noise(self) -> float | None:
        """Standard deviation of normal noise that all targets share; None for any other noise."""
        return None

    def around(self, targets: Tensor) -> Self:
        """The likelihood for targets of this size where it is not standardised; else itself."""
        return self

    def n_outputs(self, n: int) -> int:
        """Return how many outputs the network needs for n classes or n target columns."""
        return n

    def frozen(self, numbers: Numbers) -> Self:
        """The same likelihood with learned numbers fixed at these scalars, for delivery."""
        return self

    def scaled(self, factor: float) -> "Likelihood | None":
        """The likelihood of targets times `factor`; None where no such likelihood exists."""
        return None

    def to_dict(self, numbers: Numbers | None = None) -> dict[str, Any]:
        """Name and settings, ready for JSON; a learned number is that of `numbers`, if given."""
        fixed = self.frozen(numbers) if numbers else self
        row = {"name": type(self).__name__, **asdict(fixed)}  # type: ignore[call-overload]
        row = {name: list(v) if isinstance(v, tuple) else v for name, v in row.items()}
        return row | {"learned": True} if numbers else row

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """The likelihood of `to_dict`; one with settings besides numbers and flags overrides it."""
        flags = {f.name for f in fields(cls) if isinstance(f.default, bool)}  # type: ignore[arg-type]
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        return cls(**{n: row.get(n) is True if n in flags else number(row, n) for n in names})

    @classmethod
    def configured(cls, noise_std: float | None = None, learned: bool | None = None) -> Self:
        """The likelihood with this noise, None for the usual one; raises if it has no noise."""
        if noise_std is not None or learned is not None:
            raise ValueError(f"{cls.__name__} has no noise to set or learn.")
        return cls()

    def settings(self) -> dict[str, Any]:
        """The arguments with which `configured` makes this likelihood, and its rate, by name."""
        return {}

    def page(self) -> dict[str, Any]:
        """Facts for the JavaScript of the report page: `output` names the function to use."""
        raise UnsupportedModelError(f"the page does not know the likelihood {type(self).__name__}")

    def describe(self) -> str:
        """The likelihood in words, for model cards."""
        return type(self).__name__


def diagonal_roots(sizes: Tensor, generator: Generator | None) -> Iterator[Tensor]:
    """Roots of a diagonal information, of entries sizes² (n, ...); see `Likelihood.curvature`."""
    if generator is not None:
        yield sizes * torch.empty_like(sizes).normal_(generator=generator)
        return
    columns = sizes.flatten(1)
    for column in range(columns.shape[1]):
        root = torch.zeros_like(columns)
        root[:, column] = columns[:, column]
        yield root.view_as(sizes)


def number(row: Mapping[str, Any], name: str, otherwise: float | None = None) -> float:
    """A number of a stored likelihood; raises if it is none.

    Example:
        >>> number({"df": "4"}, "df")
        Traceback (most recent call last):
        ValueError: df must be a number, got '4'.
    """
    value = row.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {str(value)[:40]!r}.")
    return float(value)
