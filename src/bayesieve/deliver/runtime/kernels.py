"""Linear layers that run as one call of layers.c, and what they share with images.c."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from bayesieve.errors import UnsupportedModelError
from bayesieve.fast.native import KernelUnavailableError as KernelUnavailableError
from bayesieve.fast.native import fields, load

Floats = NDArray[np.float32]
BLOCK = 64  # most examples the kernel handles at once; scratch memory is for as many
ACTIVATIONS = ("none", "ReLU", "LeakyReLU", "Tanh", "Sigmoid", "SiLU", "GELU")  # as in layers.c
_TEXTS = ("layers.c", "integers.c", "images.c")  # in one file: types of the first serve all
_DENSE = 0.2  # fraction of weights from which one example runs as plain dot products
_TILE = 36 << 10  # bytes of inputs that stay in the first cache
_TILED = {2: 8, 8: 32}  # weights of an output in a tile from which tiles pay, by outputs at once
CACHE = 1 << 20  # bytes of weights up to which zeros stored beside them do not cost time
_GROUPED = 0.65  # groups of outputs by weights, below which one example runs by groups
_AT_ONCE = 4  # weights by input that the kernel takes at once
_LINE = 64  # bytes of a cache line
_SLACK = 64  # floats beyond the last, for whole vectors
LIMIT = 1 << 16  # numbers that 16 bits tell apart


class _Layer(ctypes.Structure):  # as in layers.c
    _fields_ = (
        *fields(ctypes.c_int64, "n_in n_out activation"),
        *fields(ctypes.c_double, "slope"),
        *fields(ctypes.c_int64, "n_runs"),
        *fields(ctypes.c_void_p, "runs output column value bias"),
        *fields(ctypes.c_int64, "group"),
        *fields(ctypes.c_void_p, "first row weight dense"),
    )


class _Network(ctypes.Structure):  # as in layers.c
    _fields_ = (
        *fields(ctypes.c_int64, "n_layers n_features n_used n_outputs width"),
        *fields(ctypes.c_void_p, "quads layers"),
    )


class Affine(NamedTuple):
    """One layer of the kernel: activation(weight @ x + bias).

    Args:
        weight: (n_out, n_in), rows of stored entries.
        bias: (n_out,).
        activation: a name of `ACTIVATIONS`.
        slope: of the leaky ReLU.
    """

    weight: csr_array
    bias: Floats
    activation: str = "none"
    slope: float = 0.0


class Compiled:
    """A function on batches of rows that one call of the compiled library computes.

    Every step of a call counts: one example takes the C code only a few microseconds.

    Args:
        run: takes a description, the number of rows, their address, that of the output and scratch.
        described: what `run` reads; it must live as long as this object.
        n_outputs: floats of an output row.
        n_scratch: floats of scratch memory, which are 0 at first.
        threads: how many threads share a batch.
        block: examples that `run` handles at once.
    """

    _kept: list[NDArray[np.generic]]  # C points into them

    def __init__(
        self, run: Callable[..., None], described: ctypes.Structure, n_outputs: int,
        n_scratch: int, threads: int, *, block: int,
    ) -> None:  # fmt: skip
        self._run, self._described_by, self.n_outputs = run, described, n_outputs
        self._pointer = ctypes.c_void_p(ctypes.addressof(described))
        self._n_scratch, self._threads, self._block = n_scratch, threads, block
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __call__(self, x: Floats) -> Floats:
        """Outputs, (n, n_outputs), of inputs, (n, ...)."""
        if len(x) == 1:
            return self._one(x)
        if not x.flags.c_contiguous:
            x = np.ascontiguousarray(x)
        if self._pool is not None and len(x) >= 2 * self._block:
            return self._split(x)
        return self._at(_address(x) if len(x) and x.flags.writeable else x.ctypes.data, len(x))

    def on_tensor(self, x: Tensor) -> Tensor:
        """The same on a tensor."""
        x = x.contiguous()
        if self._pool is not None and len(x) >= 2 * self._block:
            return torch.from_numpy(self._split(x.numpy()))
        return torch.from_numpy(self._at(x.data_ptr(), len(x)))

    def _at(self, address: int, n: int) -> Floats:
        """Outputs of n contiguous input rows at an address in memory."""
        out = np.empty((n, self.n_outputs), np.float32)
        if n == 0:
            return out
        self._run(self._pointer, n, address, _address(out), self._scratch())
        return out

    def _one(self, x: Floats) -> Floats:
        """Output, (1, n_outputs), of one input: copies cost less than asking for addresses."""
        kept = getattr(self._local, "one", None)
        if kept is None or kept[0].shape != x.shape:
            inside = np.empty(x.shape, np.float32)
            outside = np.empty((1, self.n_outputs), np.float32)
            addresses = (_address(inside), _address(outside), self._scratch())
            pointers = map(ctypes.c_void_p, addresses)
            kept = inside, outside, (self._pointer, ctypes.c_int64(1), *pointers)
            self._local.one = kept
        inside, outside, arguments = kept
        inside[...] = x
        self._run(*arguments)
        return outside.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of the stored weights and of one thread's scratch memory."""
        return sum(array.nbytes for array in self._kept) + 4 * self._n_scratch

    def _at_address(self, array: NDArray[np.generic]) -> int:
        self._kept.append(aligned(array))
        return int(self._kept[-1].ctypes.data)

    def _split(self, x: Floats) -> Floats:
        """Whole blocks to each thread, so that results do not depend on their number."""
        assert self._pool is not None
        size = self._block * -(-len(x) // (self._block * self._threads))
        blocks = [x[first : first + size] for first in range(0, len(x), size)]
        run = self._pool.map(lambda block: self._at(block.ctypes.data, len(block)), blocks)
        return np.concatenate(list(run))

    def _scratch(self) -> int:
        """Address of one aligned buffer per thread, so that threads may call at the same time."""
        if not hasattr(self._local, "scratch"):
            self._local.memory = aligned(np.zeros(self._n_scratch, np.float32))
            self._local.scratch = int(self._local.memory.ctypes.data)
        return int(self._local.scratch)


class CompiledLayers(Compiled):
    """Sparse affine layers that run as one call of the compiled kernel.

    Args:
        layers: from the input to the output.
        n_features: length of an input row.
        selected: which features the first layer reads, in order; None reads all.
        threads: how many threads share a batch of several blocks.

    Raises:
        KernelUnavailableError: no compiler, or what it made does not load.
    """

    def __init__(
        self,
        layers: Sequence[Affine],
        n_features: int,
        selected: NDArray[np.int64] | None = None,
        threads: int = 1,
    ) -> None:
        layers, quads = arranged(layers, selected, n_features)
        self._kept = []
        described = (_Layer * len(layers))(*map(self._described, layers))
        self._start(library().bayesieve_run, described, layers, quads, n_features, threads)

    def _start(
        self, run: Callable[..., None], described: ctypes.Array[Any], layers: Sequence[Affine],
        quads: NDArray[np.int32], n_features: int, threads: int,
    ) -> None:  # fmt: skip
        """Put described layers together as one network that `run` reads."""
        self._layers = described
        n_used, n_outputs = layers[0].weight.shape[1], len(layers[-1].bias)
        width = 1 + max(n_used, *(len(layer.bias) for layer in layers))  # one more: see `by_output`
        network = _Network(
            len(layers), n_features, n_used, n_outputs, width, self._at_address(quads),
            ctypes.addressof(described),
        )  # fmt: skip
        super().__init__(run, network, n_outputs, 2 * width * BLOCK + _SLACK, threads, block=BLOCK)

    def _described(self, layer: Affine) -> _Layer:
        n_out, n_in = layer.weight.shape
        batch = by_output(layer.weight, _TILE // (4 * constant("wide")), constant("at_once"))
        described = _Layer(
            n_in, n_out, ACTIVATIONS.index(layer.activation), layer.slope,
            len(batch.runs), self._at_address(batch.runs), self._at_address(batch.output),
            self._at_address(batch.column), self._at_address(batch.value),
            self._at_address(np.append(layer.bias, np.float32(0))),
        )  # fmt: skip
        if layer.weight.nnz >= _DENSE * n_out * n_in:
            described.dense = self._at_address(layer.weight.toarray())
        else:
            columns = by_input(layer.weight, lanes())
            described.group = columns.group
            described.first = self._at_address(columns.start)
            described.row = self._at_address(columns.row)
            described.weight = self._at_address(columns.value)
        return described


class ByOutput(NamedTuple):
    """Weights in the order that batches read them: by tiles of features, by bundles of outputs.

    A bundle is 2 or 8 outputs that are summed at the same time. A run is bundles of as many
    outputs that have as many weights in a tile.

    Args:
        runs: (n_runs, 6) as in layers.c: the tile's first feature, whether sums begin here, whether
            they end here, outputs of a bundle, steps of four weights, bundles.
        output: of each bundle, one bundle after another; n_out means none.
        column: of each weight, counted from the first feature of its tile. The outputs of a bundle
            take turns.
        value: of each weight.
    """

    runs: NDArray[np.int32]
    output: NDArray[np.int32]
    column: NDArray[np.uint16]
    value: NDArray[np.generic]


def by_output(weight: csr_array, tile: int, at_once: int) -> ByOutput:
    """Weights by tiles of features, if outputs have enough in each (else in one), and by bundles.

    The outputs of a tile come in the order of their numbers of weights; outputs without any are
    left out, but for those that have none at all. Where the outputs of a bundle have different
    numbers, or steps need more, the last weight of an output is stored in equal parts, so that no
    input meets a 0 that it could turn into NaN. Integers are followed by zeros instead.

    Args:
        weight: (n_out, n_in).
        tile: features of a tile, at most 65,536.
        at_once: most outputs of a bundle: 2, or 8 while there are more than 2.

    Example:
        >>> weight = csr_array(np.array([[1, 2, 0], [0, 0, 0], [3, 4, 6]], np.float32))
        >>> made = by_output(weight, 128, 2)
        >>> made.runs.tolist(), made.output.tolist()
        ([[0, 1, 1, 2, 0, 1], [0, 1, 1, 2, 2, 1]], [1, 3, 2, 0])
        >>> made.column.tolist(), made.value.tolist()[::2], made.value.tolist()[1::2]
        ([2, 1, 2, 1, 1, 1, 0, 0], [3.0, 3.0, 4.0, 3.0], [0.666..., 0.666..., 0.666..., 1.0])
    """
    n_out, n_in = weight.shape
    tile = tile if weight.nnz >= _TILED[at_once] * n_out * -(-n_in // tile) else LIMIT
    n_tiles = max(1, -(-n_in // tile))
    row = np.repeat(np.arange(n_out), np.diff(weight.indptr))
    place = weight.indices.astype(np.int64) // tile * n_out + row
    order = np.lexsort((weight.indices, place))
    place, features, data = place[order], weight.indices[order], weight.data[order]
    counts = np.bincount(place, minlength=n_tiles * n_out)
    used = (counts > 0).reshape(n_tiles, n_out)
    bare = np.diff(weight.indptr) == 0
    used[0] |= bare

    # A sum is an output in a tile.
    sums = np.flatnonzero(used)
    at, output = np.divmod(sums, n_out)
    begins, ends = used.argmax(0)[output] == at, used[::-1].argmax(0)[output] == n_tiles - 1 - at
    kind = 8 * at + 4 * ~bare[output] + 2 * begins + ends
    order = np.lexsort((-counts[sums], kind))
    sums, at, output, begins, ends = (a[order] for a in (sums, at, output, begins, ends))
    bundle, side, sizes = _bundles(kind[order], at_once)
    head = np.flatnonzero(side == 0)
    steps = -(-counts[sums[head]] * sizes // 4)  # the first of a bundle has the most weights
    outputs = np.full(sizes.sum(), n_out, np.int32)
    outputs[_starts(sizes)[bundle] + side] = output
    listed = np.column_stack([at[head] * tile, begins[head], ends[head], sizes, steps])
    new = np.flatnonzero(np.append(True, (listed[1:] != listed[:-1]).any(1)))
    n_bundles = np.diff(np.append(new, len(listed)))

    # The weights of every sum, the last one in parts, and where each comes.
    padded, sum_of = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
    padded[sums], sum_of[sums] = (4 * steps // sizes)[bundle], np.arange(len(sums))
    parts = np.ones(weight.nnz, np.int64)
    parts[np.cumsum(counts)[counts > 0] - 1] += (padded - counts)[counts > 0]
    whole = np.issubdtype(data.dtype, np.integer)
    shares = np.repeat(data if whole else data / parts, parts)
    if whole:
        shares[np.repeat(np.cumsum(parts) - parts, parts) != np.arange(len(shares))] = 0
    place, features = np.repeat(place, parts), np.repeat(features, parts)
    k = np.arange(len(place)) - _starts(padded)[place]
    one = sum_of[place]
    # Every second bundle goes back: the inputs that were read last are still in the first cache.
    k = np.where(bundle[one] % 2, padded[place] - 1 - k, k)
    to = _starts(4 * steps)[bundle[one]] + sizes[bundle[one]] * k + side[one]
    column, value = np.zeros(4 * steps.sum(), np.uint16), np.zeros(4 * steps.sum(), weight.dtype)
    column[to], value[to] = features % tile, shares
    runs = np.column_stack([listed[new], n_bundles]).astype(np.int32)
    return ByOutput(runs, outputs, column, value)


def _bundles(
    kinds: NDArray[np.int64], at_once: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Neighbours of one kind in bundles of `at_once`, the last of a kind in 2 if they are enough.

    Returns:
        Which bundle each one is in, its place in it, and the size of each bundle.

    Example:
        >>> _bundles(np.array([3, 3, 3, 7]), 2)
        (array([0, 0, 1, 2]), array([0, 1, 0, 0]), array([2, 2, 2]))
        >>> _bundles(np.array([3, 3, 3, 3, 3, 7]), 4)
        (array([0, 0, 0, 0, 1, 2]), array([0, 1, 2, 3, 0, 0]), array([4, 2, 2]))
    """
    _, first, kind, sizes = np.unique(
        kinds, return_index=True, return_inverse=True, return_counts=True
    )
    in_kind, side = np.divmod(np.arange(len(kinds)) - first[kind], at_once)
    bundle = (_starts(-(-sizes // at_once))[kind] + in_kind).astype(np.int64)
    held = np.bincount(bundle)
    return bundle, side, np.where(held > 2, at_once, 2)


class ByInput(NamedTuple):
    """Weights in the order of inputs: as one example reads them.

    Args:
        group: outputs whose weights are side by side.
        start: (n_in + 1,), where the groups of each input begin.
        row: number of each group, or of each output in groups of 1.
        value: (len(row) * group,).
    """

    group: int
    start: NDArray[np.int32]
    row: NDArray[np.uint16]
    value: NDArray[np.generic]


def by_input(weight: csr_array, group: int) -> ByInput:
    """Weights by input, in groups of outputs where few enough groups hold all weights in a cache.

    Otherwise weights are single ones, and each input has a multiple of 4: zeros that belong to
    outputs beyond the last fill up.

    Example:
        >>> made = by_input(csr_array(np.ones((2, 1), np.float32)), 2)
        >>> made.group, made.start.tolist(), made.row.tolist(), made.value.tolist()
        (2, [0, 1], [0], [1.0, 1.0])
        >>> made = by_input(csr_array(np.eye(2, dtype=np.float32)), 2)
        >>> made.group, made.row.tolist(), made.value.tolist()[:4]
        (1, [0, 3, 4, 5, 1, 3, 4, 5], [1.0, 0.0, 0.0, 0.0])
    """
    n_out, n_in = weight.shape
    row = np.repeat(np.arange(n_out), np.diff(weight.indptr))
    column = weight.indices.astype(np.int64)
    n_groups = -(-n_out // group)
    held, place = np.unique(column * n_groups + row // group, return_inverse=True)
    size = len(held) * group * weight.dtype.itemsize
    if (len(held) <= _GROUPED * weight.nnz and size <= CACHE) or n_out + _AT_ONCE >= LIMIT:
        if n_groups >= LIMIT:
            raise UnsupportedModelError(f"as_runtime: a layer with {n_out:,} outputs is too wide.")
        value = np.zeros((len(held), group), weight.dtype)
        value[place, row % group] = weight.data
        counts = np.bincount(held // n_groups, minlength=n_in)
        return ByInput(group, _starts(counts), (held % n_groups).astype(np.uint16), value.ravel())
    counts = np.bincount(column, minlength=n_in)
    start = _starts(-(-counts // _AT_ONCE) * _AT_ONCE)
    rows = n_out + np.arange(start[-1]) % _AT_ONCE
    value = np.zeros(start[-1], weight.dtype)
    order = np.lexsort((row, column))
    place = np.repeat(start[:-1] - _starts(counts)[:-1], counts) + np.arange(weight.nnz)
    rows[place], value[place] = row[order], weight.data[order]
    return ByInput(1, start, rows.astype(np.uint16), value)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _address(array: Floats) -> int:
    """Address of a writeable array; four times as fast as `array.ctypes.data`."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]


def aligned(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A copy whose first byte begins a cache line, so that vectors do not cross lines."""
    memory = np.empty(array.nbytes + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    copied = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def _by_length(layers: Sequence[Affine]) -> list[Affine]:
    """The same function with hidden units in the order of the weights that read and make them.

    Equal lengths in a row let the processor predict where each sum ends.
    """
    layers = list(layers)
    for i in range(len(layers) - 1):
        layer, reader = layers[i : i + 2]
        read = np.bincount(reader.weight.indices, minlength=len(layer.bias))
        order = np.lexsort((np.diff(layer.weight.indptr), -(-read // _AT_ONCE)))
        layers[i] = layer._replace(weight=layer.weight[order], bias=layer.bias[order])
        layers[i + 1] = reader._replace(weight=reader.weight[:, order])
    return layers


def arranged(
    layers: Sequence[Affine], selected: NDArray[np.int64] | None, n_features: int
) -> tuple[list[Affine], NDArray[np.int32]]:
    """The same function in the order the kernels read it: features by fours, units by length.

    Returns:
        Layers, the first of which reads every four neighbouring features that hold a used one, and
        the first feature of every four. If they are as many as all features, they are all in order.
    """
    layers = _by_length(layers)
    first = layers[0].weight
    index = np.arange(n_features) if selected is None else selected
    read = np.unique(index[np.unique(first.indices)])
    quads = np.unique(np.minimum(read // 4 * 4, max(n_features - 4, 0)))
    if len(quads) == 0:
        quads = np.zeros(1, np.int64)  # a network that ignores its input still reads some
    features = (quads[:, None] + np.arange(min(4, n_features))).ravel()
    places = np.full(n_features, -1)
    places[features[::-1]] = np.arange(len(features))[::-1]  # fours overlap at the last: the first
    row = np.repeat(np.arange(first.shape[0]), np.diff(first.indptr))
    moved = (first.data, (row, places[index[first.indices]]))
    weight = csr_array(moved, shape=(first.shape[0], len(features)))
    weight.sum_duplicates()
    return [layers[0]._replace(weight=weight), *layers[1:]], quads.astype(np.int32)


def lanes() -> int:
    """Floats of a vector register, as the kernels were compiled."""
    return constant("lanes")


def constant(name: str) -> int:
    """A number that the compiled kernels know of themselves."""
    return ctypes.c_int64.in_dll(library(), f"bayesieve_{name}").value


def library() -> ctypes.CDLL:
    """The compiled kernels, built on first use."""
    loaded = load("bayesieve.deliver.runtime", *_TEXTS)
    pointer = ctypes.c_void_p
    for name in ("run", "run_integers", "images"):
        function = getattr(loaded, f"bayesieve_{name}")
        function.restype = None
        function.argtypes = (pointer, ctypes.c_int64, pointer, pointer, pointer)
    return loaded
