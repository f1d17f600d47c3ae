"""Examples that are read batch by batch: a Dataset or a DataLoader of any size.

**Order.** A source with random access (a map-style Dataset) is read in an order that is a function
of seed and epoch. The order needs no table: place i of an epoch is mapped to an example by a keyed
permutation (a Feistel network, walked until it lands inside 0..N-1), so that memory does not grow
with N and a run goes on at any step at once.

**Other sources** (IterableDataset, a DataLoader with a sampler of its own) set their order
themselves. A resumed run reads them again up to its place. They see global generators seeded by
seed and epoch, so that the place is exact where the source repeats itself under one seed.

**N** is the length of the source, or `n_data=`. It scales the prior against the data, so an epoch
with another number of examples raises.
"""

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from bayesieve.checks import check_counts, check_not_negative
from bayesieve.core.batch import READERS
from bayesieve.errors import DataError

Pair = tuple[Any, Tensor]  # inputs (one tensor, or a tuple or dict of them) and targets
Rows: TypeAlias = Dataset[Any]
Loader: TypeAlias = DataLoader[Any]
Collate: TypeAlias = Callable[[list[Any]], object]
_States: TypeAlias = tuple[Tensor, tuple[Any, ...], Any]  # of torch, Python and NumPy
_AT_ONCE = 256  # examples of a batch where nobody asked for a number
_ROUNDS = 6
_TABLE = 1 << 16  # orders of so many numbers are made whole
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Request(NamedTuple):
    """A batch to read: which examples, and the seed of whatever is random about them."""

    seed: int
    rows: np.ndarray


class Stream:
    """Examples read batch by batch from any source.

    Args:
        source: a `Dataset` of (x, y), an `IterableDataset`, or a `DataLoader` of such batches.
        n_data: N, the examples of an epoch; None takes the length of the source.
        workers: processes that read ahead; of a loader its own number.
        shuffle: whether training reads in random order; of a loader as its sampler does.
        collate: makes a batch of a list of examples; torch's default unless given.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> stream = Stream(TensorDataset(torch.arange(5.0)[:, None], torch.arange(5)))
        >>> [y.tolist() for _, y in stream.epoch(2)]
        [[0, 1], [2, 3], [4]]
        >>> [len(y) for _, y in stream.steps(2, seed=0, stop=4)]
        [2, 2, 1, 2]
    """

    def __init__(
        self,
        source: Rows | Loader,
        *,
        n_data: int | None = None,
        workers: int = 0,
        shuffle: bool = True,
        collate: Collate | None = None,
    ) -> None:
        if not isinstance(source, Dataset | DataLoader):
            raise TypeError(
                f"Stream: a Dataset or DataLoader is needed, got {type(source).__name__}. Tensors "
                "can be used as they are, as an (x, y) pair."
            )
        check_not_negative("Stream", workers=workers)
        self.source, self.n_data = source, _count(source, n_data)
        self.workers, self.shuffle, self.collate = workers, shuffle, collate
        if isinstance(source, DataLoader):
            self.workers, self.collate = source.num_workers, source.collate_fn
            self.shuffle = not isinstance(source.sampler, SequentialSampler)

    def __len__(self) -> int:
        return self.n_data

    def __repr__(self) -> str:
        place = "" if self.repositionable else ", read again from the start on resume"
        return f"Stream({type(self.source).__name__}, {self.n_data:,} examples{place})"

    @property
    def batch_size(self) -> int | None:
        """Examples per batch that a loader was made with."""
        return self.source.batch_size if isinstance(self.source, DataLoader) else None

    @property
    def repositionable(self) -> bool:
        """True where a run resumes at any step without reading the earlier ones."""
        return self._rows is not None

    def steps(
        self,
        batch_size: int,
        *,
        seed: int,
        start: int = 0,
        stop: int,
        pin: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> Iterator[Pair]:
        """Batches of the steps `start` to `stop`, epoch after epoch; the last of each is smaller.

        Args:
            batch_size: examples per step, whatever batches the source makes.
            seed: of the order and of random changes.
            start: steps already taken.
            stop: steps of the run.
            pin: whether batches lie in memory that a GPU reads directly.
            part: (i, n) takes every n-th example of each batch from the i-th on: the share of one
                of n processes.
        """
        check_counts("Stream", batch_size=batch_size)
        per_epoch = -(-self.n_data // batch_size)
        if self._rows is not None:
            asked = self._requests(batch_size, seed, start, stop, part)
            yield from self._read(self._rows, asked, pin=pin)
            return
        while start < stop:
            epoch, done = divmod(start, per_epoch)
            if done:
                warnings.warn(
                    f"{self!r}: cannot be repositioned; {done} batches are read again to find the "
                    "place. The run goes on exactly if the source repeats itself under one seed.",
                    stacklevel=2,
                )
            for place, pair in enumerate(self._pass(batch_size, (seed, epoch), pin=pin)):
                if done <= place < done + stop - start:
                    yield tree_map_only(Tensor, lambda v: v[part[0] :: part[1]], pair)
            start += per_epoch - done

    def epoch(self, batch_size: int = _AT_ONCE) -> Iterator[Pair]:
        """Every example once, in the order of the source."""
        if self._rows is None:
            return self._pass(batch_size, (0, 0))
        batches = epoch_rows(self.n_data, batch_size, None)
        return self._read(self._rows, (Request(int(rows[0]), rows) for rows in batches))

    def first(self, n: int) -> Pair:
        """The first examples, at most n."""
        return next(self.epoch(min(n, self.n_data)))

    @property
    def _rows(self) -> Rows | None:
        """The data set that is read by numbers; None for others."""
        source = self.source
        if isinstance(source, DataLoader):
            if not _has_plain_order(source):
                return None
            source = source.dataset
        return None if isinstance(source, IterableDataset) else source

    def _requests(
        self, size: int, seed: int, start: int, stop: int, part: tuple[int, int]
    ) -> Iterator[Request]:
        """The examples of each step, or a part of them."""
        per_epoch = -(-self.n_data // size)
        while start < stop:
            epoch, done = divmod(start, per_epoch)
            key = _mixed(seed, epoch)
            rows = epoch_rows(self.n_data, size, key if self.shuffle else None, done)
            for place in range(done, min(per_epoch, done + stop - start)):
                yield Request(_mixed(key, place) + part[0], next(rows)[part[0] :: part[1]])
            start += per_epoch - done

    def _read(self, rows: Rows, asked: Iterable[Request], *, pin: bool = False) -> Iterator[Pair]:
        reader = _Reader(rows, self.collate or default_collate)
        if not self.workers:
            for request in asked:
                with _set_aside([]):  # global generators stay as they are
                    pair = _pair(reader.__getitems__(request))
                yield _pinned(pair) if pin else pair
            return
        options: dict[str, Any] = {"num_workers": self.workers}
        if isinstance(self.source, DataLoader):
            names = ("prefetch_factor", "timeout", "worker_init_fn", "multiprocessing_context")
            options |= {name: getattr(self.source, name) for name in names}
        yield from DataLoader(
            reader,
            batch_sampler=cast(Iterable[list[Any]], asked),
            collate_fn=_pair,
            pin_memory=pin,
            generator=torch.Generator(),  # the global one stays as it is
            **options,
        )

    def _pass(self, size: int, seeds: tuple[int, int], *, pin: bool = False) -> Iterator[Pair]:
        """One pass over a source with an order of its own, counted."""
        source, n = self.source, self.n_data
        if not isinstance(source, DataLoader):
            source = DataLoader(
                source, batch_size=size, num_workers=self.workers, collate_fn=self.collate
            )
        seen = 0
        for x, y in _recut(_guarded(source, _mixed(*seeds)), size):
            seen += len(y)
            if seen > n:
                break
            yield _pinned((x, y)) if pin else (x, y)
        if seen != n:
            more = "more" if seen > n else f"{seen:,}"
            workers = source.num_workers
            hint = (
                f" Each of {workers} workers reads an IterableDataset whole, unless it takes its "
                "share by torch.utils.data.get_worker_info."
                if seen > n and workers > 1 and isinstance(source.dataset, IterableDataset)
                else ""
            )
            raise DataError(
                f"Stream: an epoch has {more} examples, but N is {n:,}, by which the prior is "
                f"weighed against the data. Give the right n_data.{hint}"
            )


Streamed = Stream | Rows | Loader


def stream_of(data: object, n_data: int | None = None) -> Stream | None:
    """A stream for data that is one, or that torch reads batch by batch; None for others."""
    if isinstance(data, Stream):
        if n_data not in (None, data.n_data):
            raise ValueError(f"Problem: n_data is {n_data}, the stream has {data.n_data} examples.")
        return data
    return Stream(data, n_data=n_data) if isinstance(data, Dataset | DataLoader) else None


READERS.append(stream_of)  # `Problem` accepts what this reads


def _count(source: Rows | Loader, n_data: int | None) -> int:
    """N, or a message that says why it is not known."""
    if n_data is not None:
        check_counts("Stream", n_data=n_data)
    loader = source if isinstance(source, DataLoader) else None
    if loader is not None and loader.drop_last:
        raise ValueError(
            "Stream: the loader has drop_last=True, so that an epoch leaves out examples. Use "
            "drop_last=False; the last step of an epoch may be smaller."
        )
    sized: Any = source if loader is None else loader.dataset
    if loader is not None and not isinstance(sized, IterableDataset):
        sized = loader.sampler if type(loader.batch_sampler) is BatchSampler else sized
    try:
        length: int | None = len(sized)
    except (TypeError, NotImplementedError):
        length = None
    if length is None and n_data is None:
        raise ValueError(
            "Stream: the source has no length. Give n_data=, the examples of an epoch: it weighs "
            "the prior against the data."
        )
    if length is not None and n_data is not None and n_data != length:
        raise ValueError(f"Stream: n_data is {n_data}, but the source has {length} examples.")
    if not (length or n_data):
        raise DataError("Stream: there is no example to read.")
    return length or n_data or 0


def _has_plain_order(loader: Loader) -> bool:
    """Tell whether a loader reads a map-style data set in order or shuffled: orders we can make."""
    sampler, plain = loader.sampler, type(loader.batch_sampler) is BatchSampler
    if not plain or isinstance(loader.dataset, IterableDataset):
        return False
    whole = type(sampler) is RandomSampler and not sampler.replacement
    return type(sampler) is SequentialSampler or (whole and len(sampler) == len(loader.dataset))  # type: ignore[arg-type]


# The order of an epoch.


def epoch_rows(n: int, size: int, key: int | None, start: int = 0) -> Iterator[np.ndarray]:
    """Numbers of the examples of each batch, from batch `start` on; `key` None is their own order.

    Example:
        >>> [rows.tolist() for rows in epoch_rows(5, 2, None)]
        [[0, 1], [2, 3], [4]]
        >>> sorted(np.concatenate(list(epoch_rows(100, 7, 3))).tolist()) == list(range(100))
        True
    """
    for first in range(start * size, n, size):
        places = np.arange(first, min(first + size, n))
        yield places if key is None else shuffled(places, n, key)


def shuffled(places: np.ndarray, n: int, key: int) -> np.ndarray:
    """The examples at some places of a random order of 0..n-1, without making the order.

    A Feistel network permutes the numbers of 2h bits, 4^h >= n; a result >= n is permuted again
    until it is not. Orders of few numbers are made whole.

    Example:
        >>> sorted(shuffled(np.arange(10), 10, key=7).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if n <= _TABLE:
        return _order(n, key)[places]
    half = ((n - 1).bit_length() + 1) // 2
    shift, low = np.uint64(half), np.uint64((1 << half) - 1)
    keys = [np.uint64(_mixed(key, i)) for i in range(_ROUNDS)]

    def permuted(values: np.ndarray) -> np.ndarray:
        left, right = values >> shift, values & low
        for one in keys:
            left, right = right, left ^ (_scrambled(right ^ one) & low)
        return (left << shift) | right

    rows = permuted(places.astype(np.uint64))
    while (outside := rows >= n).any():
        rows[outside] = permuted(rows[outside])
    return rows.astype(np.int64)


@lru_cache(maxsize=4)
def _order(n: int, key: int) -> np.ndarray:
    """A random order of few numbers, as a table."""
    return np.random.default_rng(key).permutation(n)


def _scrambled(values: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FACTORS[0])
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return values ^ (values >> np.uint64(31))


def _mixed(seed: int, number: int) -> int:
    """A seed, < 2⁶³, for part `number` of what a seed decides: two steps of SplitMix64."""
    value = np.zeros(1, np.uint64)
    for word in (seed, number):
        value = _scrambled(value + np.uint64((word + 0x9E3779B97F4A7C15) % 2**64))
    return int(value[0]) >> 1


# Reading.


class _Reader(Rows):
    """The data set that workers see: a request in, a whole batch out."""

    def __init__(self, rows: Rows, collate: Collate) -> None:
        self.rows, self.collate = rows, collate

    def __getitems__(self, request: Request) -> object:
        """A batch, in a process that may seed its global generators."""
        _seed_all(request.seed)
        numbers = request.rows.tolist()
        several = getattr(self.rows, "__getitems__", None)
        items = several(numbers) if several else [self.rows[i] for i in numbers]
        return self.collate(items)


def _pair(batch: object) -> Pair:
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        kinds = [type(v).__name__ for v in (batch if isinstance(batch, tuple | list) else [batch])]
        raise TypeError(f"Stream: each batch must be a pair (x, y), got {', '.join(kinds)}.")
    return batch[0], batch[1]


def _pinned(pair: Pair) -> Pair:
    return tree_map_only(Tensor, Tensor.pin_memory, pair)


def _guarded(loader: Loader, seed: int) -> Iterator[Pair]:
    """Batches of a loader that draws its random numbers from a seed, not from ours."""
    states: list[_States] = []
    with _set_aside(states):
        _seed_all(seed)
        batches = iter(loader)
    while True:
        with _set_aside(states):
            batch = next(batches, None)
        if batch is None:
            return
        yield _pair(batch)


@contextmanager
def _set_aside(states: list[_States]) -> Iterator[None]:
    """Use the generators in `states`, if any, inside the block; then put ours back."""
    ours = _global_states()
    if states:
        _restore(states.pop())
    try:
        yield
    finally:
        states.append(_global_states())
        _restore(ours)


def _global_states() -> _States:
    """States of the generators that a data set may draw from; many use NumPy's old generator."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002


def _restore(states: _States) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002


def _seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


def _recut(pairs: Iterable[Pair], size: int) -> Iterator[Pair]:
    """Batches of `size` examples from batches of any size; the last may be smaller."""
    held, n = list[Pair](), 0
    for pair in pairs:
        held.append(pair)
        n += len(pair[1])
        while n >= size:
            if len(held) == 1 and n == size:
                yield held[0]
                held, n = [], 0
                break
            whole = _joined(held)
            yield tree_map_only(Tensor, lambda values: values[:size], whole)
            held, n = [tree_map_only(Tensor, lambda values: values[size:], whole)], n - size
    if n:
        yield _joined(held)


def _joined(pairs: list[Pair]) -> Pair:
    """The examples of several batches in one."""
    if len(pairs) == 1:
        return pairs[0]
    columns = zip(*(tree_leaves(pair) for pair in pairs), strict=True)
    parts = iter([torch.cat(list(column)) for column in columns])
    return tree_map_only(Tensor, lambda _: next(parts), pairs[0])
