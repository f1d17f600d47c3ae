"""Steps of a network of images in memory, as images.c reads them.

All images of one size have the same margins of zeros, as wide as any step needs them, so that every
value of that size can be read by one set of offsets. A row's right margin is the left margin of the
next. Memory is shared by values of one size and number of planes that are not needed at the same
time.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesieve.deliver.runtime.images import INPUT, Convolution, Images, Pair, Plane, Step, Value
from bayesieve.deliver.runtime.kernels import ACTIVATIONS, Compiled, lanes, library
from bayesieve.fast.native import fields

_CONVOLUTION, _MAX, _MEAN, _UNZIP = range(4)  # as in images.c
_SLACK = 64  # floats that a vector may read beyond the last image
_LINE = 16  # floats of a cache line
_ALIGNED = 16  # columns from which rows of an image begin with a whole vector


class _Image(ctypes.Structure):  # as in images.c
    _fields_ = (*fields(ctypes.c_int64, "height width row plane at"),)


class _Step(ctypes.Structure):  # as in images.c
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("out", _Image),
        *fields(ctypes.c_int64, "n_out in_row down across high wide activation lanes"),
        *fields(ctypes.c_double, "slope divisor"),
        *fields(ctypes.c_void_p, "start offset weight bias added"),
    )


class _Program(ctypes.Structure):  # as in images.c
    _fields_ = (
        *fields(ctypes.c_int64, "n_steps n_planes n_features"),
        ("input", _Image),
        *fields(ctypes.c_void_p, "steps gathered"),
    )


def lanes_for(width: int) -> int:
    """Floats of the vectors that rows of this width are cut into: they fill most of a row."""
    most = lanes()
    return 8 if most == 16 and width % 16 and width <= 24 else most


@dataclass(frozen=True)
class Grid:
    """Places of an image with margins: rows `row` floats apart, the image `first` floats in."""

    size: Pair
    row: int
    plane: int
    first: int

    @classmethod
    def of(cls, size: Pair, before: Pair, after: Pair, lanes: int) -> "Grid":
        """Margins in rows and columns: `before` the image and `after` it.

        Rows of all but small images are whole vectors, so that a vector that is written, or read
        by the middle of a window, is in one cache line.

        Example:
            >>> Grid.of((8, 8), (1, 1), (1, 1), lanes=8)
            Grid(size=(8, 8), row=9, plane=90, first=10)
            >>> Grid.of((16, 16), (1, 1), (1, 1), lanes=8)
            Grid(size=(16, 16), row=24, plane=432, first=32)
        """
        height, width = size
        row, left = _up_to(width, lanes) + max(before[1], after[1]), before[1]
        if width >= _ALIGNED:
            row, left = _up_to(row, lanes), _up_to(left, lanes)
        return cls(size, row, (before[0] + height + after[0]) * row, before[0] * row + left)


def _up_to(n: int, unit: int) -> int:
    """The first multiple of a unit that is not below n."""
    return -(-n // unit) * unit


def _grids(images: Images) -> dict[Pair, Grid]:
    """The grid of every size that occurs; margins are as wide as the neediest reader wants them."""
    before: dict[Pair, Pair] = {images.size: (0, 0)}
    after: dict[Pair, Pair] = {images.size: (0, 0)}
    for step in images.steps:
        for size in (step.source.size, step.size):
            before.setdefault(size, (0, 0)), after.setdefault(size, (0, 0))
        size = step.source.size
        last = [stride * (n - 1) + window - padding for stride, n, window, padding in
                zip(step.stride, step.size, step.window, step.padding, strict=True)]  # fmt: skip
        before[size] = _largest(before[size], step.padding)
        after[size] = _largest(after[size], (last[0] - size[0], last[1] - size[1]))
    return {size: Grid.of(size, before[size], after[size], lanes_for(size[1])) for size in before}


def _largest(a: Pair, b: Pair) -> Pair:
    return max(a[0], b[0]), max(a[1], b[1])


class _Memory:
    """Where every plane begins, in floats; places are used again once nothing reads them."""

    def __init__(self, images: Images) -> None:
        self.grids = _grids(images)
        self.size = 0
        self._starts: dict[int, int] = {}
        self._free: dict[tuple[Pair, int], list[int]] = {}
        self._sizes = {INPUT: (images.size, images.channels)}
        self._sizes |= {i: (step.size, step.n_planes) for i, step in enumerate(images.steps)}
        last: dict[int, int] = {}
        for i, step in enumerate(images.steps):
            for value in (step.source, getattr(step, "added", None)):
                planes = () if value is None else value.planes
                last |= {plane[0]: i for plane in planes if plane is not None}
        last |= {plane[0]: len(images.steps) for plane in images.value.planes if plane is not None}
        self._take(INPUT)
        for i in range(len(images.steps)):
            self._take(i)
            for number in [number for number, end in last.items() if end == i]:
                self._free.setdefault(self._sizes[number], []).append(self._starts[number])
        self.extra = self.size  # unzipped columns: only the next step needs them
        self.size += max((_unzipped(step) for step in images.steps), default=0) + _SLACK

    def _take(self, step: int) -> None:
        kind = self._sizes[step]
        if self._free.get(kind):
            self._starts[step] = self._free[kind].pop()
            return
        grid = self.grids[kind[0]]
        self.size = _up_to(self.size, _LINE)
        self._starts[step] = self.size
        self.size += kind[1] * grid.plane + grid.row  # the last right margin is in a row of its own

    def grid(self, value: Value) -> Grid:
        """The grid of a value."""
        return self.grids[value.size]

    def place(self, plane: Plane, size: Pair) -> int:
        """Where the image of a plane begins; -1 if it is all zeros."""
        if plane is None:
            return -1
        grid = self.grids[size]
        return self._starts[plane[0]] + plane[1] * grid.plane + grid.first

    def image(self, step: int) -> _Image:
        """The planes that a step makes."""
        size, _ = self._sizes[step]
        grid = self.grids[size]
        return _Image(*size, grid.row, grid.plane, self.place((step, 0), size))


def _columns(step: Convolution) -> Pair:
    """Rows and columns of an unzipped plane."""
    rows = (step.size[0] - 1) * step.stride[0] + step.window[0]
    return rows, step.size[1] + (step.window[1] - 1) // step.stride[1]


def _unzipped(step: Step) -> int:
    """Floats of the unzipped planes of a step."""
    if not isinstance(step, Convolution) or step.stride[1] == 1:
        return 0
    rows, columns = _columns(step)
    return len(step.source.planes) * step.stride[1] * rows * columns


class CompiledImages(Compiled):
    """Steps of a network of images that run as one call of the compiled kernel.

    Args:
        images: as `read_images` returns them.
        threads: how many threads share a batch.

    Raises:
        KernelUnavailableError: no compiler, or what it made does not load.
    """

    def __init__(self, images: Images, threads: int = 1) -> None:
        self._kept = []
        self._memory = _Memory(images)
        self.n_weights = 0
        steps = [made for i, step in enumerate(images.steps) for made in self._described(i, step)]
        self._steps = (_Step * len(steps))(*steps)
        gathered = self._gathered(images.value)
        program = _Program(
            len(steps), images.channels, len(gathered), self._memory.image(INPUT),
            ctypes.addressof(self._steps), self._at_address(gathered),
        )  # fmt: skip
        self._program = program
        super().__init__(library().bayesieve_images, program, len(gathered), self._memory.size,
                         threads, block=1)  # fmt: skip

    def _integers(self, numbers: Sequence[int] | NDArray[np.int64]) -> int:
        return self._at_address(np.asarray(numbers, np.int32))

    def _gathered(self, value: Value) -> NDArray[np.int32]:
        """Where each feature of the flattened images is; zeros are read from beyond the images."""
        row, zero = self._memory.grid(value).row, self._memory.size - 1
        inside = row * np.arange(value.size[0])[:, None] + np.arange(value.size[1])
        places = [self._memory.place(plane, value.size) for plane in value.planes]
        planes = [np.full_like(inside, zero) if at < 0 else at + inside for at in places]
        return np.stack(planes).astype(np.int32).ravel()

    def _described(self, number: int, step: Step) -> Iterator[_Step]:
        memory, source, row = self._memory, step.source, self._memory.grid(step.source).row
        shift = step.padding[0] * row + step.padding[1]
        starts = np.array([memory.place(plane, source.size) for plane in source.planes])
        starts = np.where(starts < 0, -1, starts - shift)
        made = {"out": memory.image(number), "n_out": step.n_planes, "in_row": row,
                "down": step.stride[0], "across": step.stride[1]}  # fmt: skip
        if isinstance(step, Convolution):
            yield from self._convolution(step, starts, made)
            return
        starts = np.where(starts < 0, memory.size - 1, starts)
        kind = _MAX if step.kind == "max" else _MEAN
        yield _Step(kind=kind, high=step.window[0], wide=step.window[1], divisor=step.divisor,
                    start=self._integers(starts), **made)  # fmt: skip

    def _convolution(
        self, step: Convolution, starts: NDArray[np.int64], made: dict[str, object]
    ) -> Iterator[_Step]:
        weight, row, apart = step.weight, int(made["in_row"]), 1  # type: ignore[call-overload]
        weight = np.where((starts >= 0)[None, :, None, None], weight, 0)
        out, plane, down, right = np.nonzero(weight)
        down, right = step.dilation[0] * down, step.dilation[1] * right
        n_phases = step.stride[1]
        if n_phases > 1:
            rows, row = _columns(step)
            apart = rows * row
            read = np.unique(plane)
            image = _Image(rows, row, row, apart, self._memory.extra)
            yield _Step(kind=_UNZIP, out=image, n_out=len(read), in_row=made["in_row"],
                        across=n_phases, start=self._integers(starts[read]))  # fmt: skip
            starts = np.zeros_like(starts)
            starts[read] = self._memory.extra + n_phases * apart * np.arange(len(read))
        offset = starts[plane] + down * row + right % n_phases * apart + right // n_phases
        order = np.lexsort((offset, out))
        counts = np.bincount(out, minlength=step.n_planes)
        self.n_weights += len(order)
        added = None
        if step.added is not None:
            added = self._integers(
                [self._memory.place(plane, step.size) for plane in step.added.planes]
            )
        made |= {"in_row": row}
        yield _Step(
            kind=_CONVOLUTION, activation=ACTIVATIONS.index(step.activation), slope=step.slope,
            lanes=lanes_for(step.size[1]), added=added,
            start=self._integers(np.concatenate([[0], np.cumsum(counts)])),
            offset=self._integers(offset[order]),
            weight=self._at_address(weight[np.nonzero(weight)][order].astype(np.float32)),
            bias=self._at_address(step.bias.astype(np.float32)), **made,
        )  # fmt: skip
