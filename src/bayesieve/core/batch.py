"""Batches, examples in memory, and the rows of a population: types that several rooms share."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from bayesieve.core.inputs import Input, as_inputs, mapped, tensors_of
from bayesieve.errors import UnsupportedModelError

Metrics = dict[str, Tensor]
_SAMPLE = 64  # examples of the data that checks and recipes look at
_LOOKED_AT = 1 << 18  # numbers at a time


class Batch(NamedTuple):
    """Inputs and targets of one step.

    x has shape (n, ...) (or each of its tensors has), y (n,) or (n, m), weight (n,) or None (all
    1). With `per_member` all carry a leading axis of k and each model of a population sees its own
    rows. `n_shared` counts the examples of a step that several processes share; None where these
    are all.

    Example:
        >>> Batch(torch.zeros(5, 3), torch.zeros(5)).n
        5
    """

    x: Input
    y: Tensor
    per_member: bool = False
    weight: Tensor | None = None
    n_shared: int | None = None

    @property
    def n(self) -> int:
        """Examples per model."""
        return self.y.shape[1] if self.per_member else self.y.shape[0]

    @property
    def n_step(self) -> int:
        """Examples per model of the whole step, those of other processes included."""
        return self.n if self.n_shared is None else self.n_shared

    def parts(self, most: int | None) -> list["Batch"]:
        """The batch as micro-batches of nearly one size, `most` examples at most; None: whole.

        Example:
            >>> [part.n for part in Batch(torch.zeros(5, 3), torch.zeros(5)).parts(3)]
            [3, 2]
        """
        if most is None or self.n <= most:
            return [self]
        n_parts, axis = -(-self.n // most), int(self.per_member)

        def part(i: int) -> Batch:
            def cut(values: Tensor) -> Tensor:
                return values.tensor_split(n_parts, axis)[i]

            weight = None if self.weight is None else cut(self.weight)
            return Batch(mapped(cut, self.x), cut(self.y), self.per_member, weight)

        return [part(i) for i in range(n_parts)]

    def member(self, index: int) -> tuple[Input, Tensor, Tensor | None]:
        """Inputs, targets and weights that one model of a population sees."""
        if not self.per_member:
            return self.x, self.y, self.weight
        weight = None if self.weight is None else self.weight[index]
        return self.x[index], self.y[index], weight


def weighted_sum(values: Tensor, weight: Tensor | None) -> Tensor:
    """Σ weight · value over examples, both (n,); None weighs all the same."""
    return values.sum() if weight is None else torch.dot(values, weight)


@runtime_checkable
class ExamplesLike(Protocol):
    """A split of a data set in memory: x of shape (N, ...) and y of shape (N,) or (N, m).

    x may be a tuple or dict of tensors, (N, ...) each: see `core.inputs`.
    """

    @property
    def x(self) -> Any:
        """Inputs."""

    @property
    def y(self) -> Tensor:
        """Targets."""


Data = ExamplesLike | tuple[Any, Tensor]  # what `pair_of` reads


class StreamLike(Protocol):
    """Examples that are read batch by batch; `data.streams.Stream` is one."""

    n_data: int
    workers: int  # processes that read ahead
    steps: Callable[..., Iterator[tuple[Any, Tensor]]]  # the batches of a run

    @property
    def batch_size(self) -> int | None:
        """Examples per batch of the source."""

    @property
    def repositionable(self) -> bool:
        """Return whether a run goes on at any step without reading what comes before it."""

    def epoch(self, batch_size: int) -> Iterator[tuple[Any, Tensor]]:
        """Return every example once, in order."""

    def first(self, n: int) -> tuple[Any, Tensor]:
        """Return the first examples, at most n."""


Streamed = StreamLike | Dataset[Any] | DataLoader[Any]


class Augment(Protocol):
    """Random changes of images; `data.augment.Augment` has some."""

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Return changed images."""

    def check(self, x: Tensor) -> None:
        """Raise on inputs that are no images."""


# Functions of data and N that return a stream, or None; importing `data.streams` adds one.
READERS: list[Callable[[object, int | None], Any]] = []


def stream_of(data: object, n_data: int | None = None) -> StreamLike | None:
    """Return a stream of data that are read batch by batch; None for data in memory."""
    found = (reader(data, n_data) for reader in READERS)
    return next((stream for stream in found if stream is not None), None)


def pair_of(who: str, data: Data) -> tuple[Input, Tensor]:
    """Inputs, (N, ...), and targets, (N, ...), of an (x, y) pair or of anything with `.x` and `.y`.

    Example:
        >>> x, y = pair_of("evaluate", (torch.zeros(3, 2), torch.zeros(3)))
        >>> x.shape, y.shape
        (torch.Size([3, 2]), torch.Size([3]))
    """
    if isinstance(data, ExamplesLike):
        x, y = data.x, data.y
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    else:
        kind = type(data).__name__
        raise TypeError(
            f"{who}: data must be an (x, y) pair of tensors or have .x and .y, got {kind}. "
            "Read a Dataset or DataLoader into memory with bayesieve.data.gather, or import "
            "bayesieve.data.streams, which reads it batch by batch."
        )
    if not isinstance(y, Tensor):
        raise TypeError(f"{who}: y must be a tensor, got {type(y).__name__}. Use torch.as_tensor.")
    x = as_inputs(who, x)
    if any(tensor.layout != torch.strided for tensor in (*tensors_of(x), y)):
        raise TypeError(f"{who}: x and y must be dense tensors. Use .to_dense().")
    n_x, n_y = (tensor.shape[0] if tensor.dim() else 0 for tensor in (tensors_of(x)[0], y))
    if n_x != n_y or n_x == 0:
        raise ValueError(f"{who}: x and y must have the same length > 0, got {n_x} and {n_y}.")
    return x, y


def first_not_finite(x: Input) -> int | None:
    """The number of the first example, (N, ...), with NaN or infinity; None if all are finite.

    Looks at some examples at a time: masks of all of them would take more memory than they do.

    Example:
        >>> first_not_finite(torch.tensor([[0.0], [1.0], [torch.nan]]))
        2
    """
    if not isinstance(x, Tensor):
        places = [place for part in x.tensors if (place := first_not_finite(part)) is not None]
        return min(places, default=None)
    if not x.is_floating_point():
        return None
    size = max(1, _LOOKED_AT // max(1, x[0].numel()))
    for number, part in enumerate(x.split(size)):
        if math.isfinite(part.sum()):  # then all are, in a tenth of the time; a sum may overflow
            continue
        finite = part.isfinite()
        if not bool(finite.all()):
            return number * size + int((~finite).reshape(len(part), -1).any(1).nonzero()[0])
    return None


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of the data that each of k models learns from, all of one length n.

    Folds, bootstrap samples, published splits and seeds of one architecture train as one problem:
    the data are in memory once, and every model draws its batches from its rows.

    Args:
        index: (k, n) int64, places in the data; a row may occur more than once.
        weight: (k, n), what each of them counts; None counts all once.

    Example:
        >>> rows = Rows.of([torch.tensor([0, 1, 2]), torch.tensor([3, 4])])
        >>> rows.index.tolist(), rows.weight.tolist()  # the shorter one is filled up with weight 0
        ([[0, 1, 2], [3, 4, 3]], [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    """

    index: Tensor
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        if self.index.dim() != 2 or self.index.dtype != torch.int64 or not self.index.numel():
            raise ValueError(
                f"Rows: index must be int64 of shape (models, rows), both > 0, got "
                f"{self.index.dtype} of shape {tuple(self.index.shape)}. Use Rows.of."
            )
        if self.weight is not None and self.weight.shape != self.index.shape:
            raise ValueError(
                f"Rows: weight must have the shape of index, {tuple(self.index.shape)}, got "
                f"{tuple(self.weight.shape)}."
            )

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> "Rows":
        """One index vector per model; shorter ones are filled up with rows of weight 0."""
        if not rows or any(len(row) == 0 for row in rows):
            raise ValueError("Rows: every model needs at least one row.")
        n = max(len(row) for row in rows)
        index = torch.stack([row.long().repeat(-(-n // len(row)))[:n] for row in rows])
        if all(len(row) == n for row in rows):
            return cls(index)
        lengths = torch.tensor([len(row) for row in rows])
        return cls(index, (torch.arange(n)[None] < lengths[:, None]).to(torch.float32))

    @property
    def n_models(self) -> int:
        """Number of models."""
        return self.index.shape[0]

    @property
    def n(self) -> int:
        """Rows per model, those of weight 0 included."""
        return self.index.shape[1]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Rows":
        """The same rows on another device; `dtype` is of the weights."""
        weight = None if self.weight is None else self.weight.to(device, dtype)
        return Rows(self.index.to(device), weight)

    def check(self, n_data: int) -> None:
        """Raise unless every row lies in 0..n_data - 1."""
        low, high = int(self.index.min()), int(self.index.max())
        if low < 0 or high >= n_data:
            raise ValueError(f"Rows: rows must lie in 0..{n_data - 1}, got {low}..{high}.")


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The examples that a problem learns from, in memory or read batch by batch.

    Args:
        sample: the first of them, for checks and recipes.
        whole: inputs (N, ...) and targets (N, ...); None for a stream.
        stream: reads batches; None in memory.
        weight: (N,), what each example counts; None counts all once.
        rows: the rows of each model of a population; None gives all to all.
        augment: random changes of the images of each training batch.
    """

    sample: Batch
    whole: tuple[Input, Tensor] | None
    stream: StreamLike | None = None
    weight: Tensor | None = None
    rows: Rows | None = None
    augment: Augment | None = None

    @classmethod
    def of(cls, data: Data | Streamed, n_data: int | None, **others: Any) -> "TrainingData":
        """Read what `Problem` accepts as data."""
        stream = None if isinstance(data, ExamplesLike) else stream_of(data, n_data)
        if stream is not None:
            return cls(Batch(*pair_of("Problem", stream.first(_SAMPLE))), None, stream, **others)
        if n_data is not None:
            raise ValueError("Problem: n_data is for streams; tensors have their length.")
        x, y = pair_of("Problem", data)  # type: ignore[arg-type]
        return cls(Batch(x[:_SAMPLE], y[:_SAMPLE]), (x, y), **others)

    @property
    def x(self) -> Any:
        """All inputs; raises for a stream."""
        return self._tensor("x", 0)

    @property
    def y(self) -> Tensor:
        """All targets; raises for a stream."""
        return self._tensor("y", 1)

    def _tensor(self, name: str, place: int) -> Any:
        if self.whole is None:
            raise UnsupportedModelError(
                f"Problem: the data are a stream, so there is no tensor {name} of all of them, "
                "which is needed here. Read them into memory with bayesieve.data.gather."
            )
        return self.whole[place]

    @property
    def n(self) -> int:
        """N, the number of training examples (of one model, if each has its rows)."""
        if self.stream is not None:
            return self.stream.n_data
        return len(self.x) if self.rows is None else self.rows.n

    @property
    def weighted(self) -> bool:
        """Return whether examples count differently."""
        return self.weight is not None or (self.rows is not None and self.rows.weight is not None)

    def batch(self, position: Tensor) -> Batch:
        """Return the examples at places (n,), or among the rows of each model, (k, n)."""
        rows, weight = self.rows, None
        index = position if rows is None else rows.index.gather(1, position)
        if self.weight is not None:
            weight = self.weight[index]
        if rows is not None and rows.weight is not None:
            of_row = rows.weight.gather(1, position)
            weight = of_row if weight is None else of_row * weight
        return Batch(self.x[index], self.y[index], rows is not None, weight)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> "TrainingData":
        """Return the same on another device; `dtype` is of the weights of rows."""
        sample, whole = Batch(self.sample.x.to(device), self.sample.y.to(device)), self.whole
        weight = None if self.weight is None else self.weight.to(device)
        rows = None if self.rows is None else self.rows.to(device, dtype)
        whole = None if whole is None else (whole[0].to(device), whole[1].to(device))
        return replace(self, sample=sample, whole=whole, weight=weight, rows=rows)
