"""Linear layers that run as one call of layers.c, and what they share with images.c."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from bayesieve.core.native import KernelUnavailableError as KernelUnavailableError
from bayesieve.core.native import fields, load

Floats = NDArray[np.float32]
BLOCK = 64  # examples the kernel handles at once; scratch memory is for as many
ACTIVATIONS = ("none", "ReLU", "LeakyReLU", "Tanh", "Sigmoid", "SiLU", "GELU")  # as in layers.c
_TEXTS = ("layers.c", "images.c")  # one after another: the second uses types of the first
_DENSE = 0.2  # fraction of weights from which one example runs as plain dot products


class _Layer(ctypes.Structure):  # as in layers.c
    _fields_ = (
        *fields(ctypes.c_int64, "n_in n_out activation"),
        *fields(ctypes.c_double, "slope"),
        *fields(ctypes.c_void_p, "start column value bias from row weight dense"),
    )


class _Network(ctypes.Structure):  # as in layers.c
    _fields_ = (
        *fields(ctypes.c_int64, "n_layers n_features n_used n_outputs width"),
        *fields(ctypes.c_void_p, "used layers"),
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

    def __init__(
        self, run: Callable[..., None], described: ctypes.Structure, n_outputs: int,
        n_scratch: int, threads: int, *, block: int,
    ) -> None:  # fmt: skip
        self._run, self._described_by, self.n_outputs = run, described, n_outputs
        self._pointer = ctypes.addressof(described)
        self._n_scratch, self._threads, self._block = n_scratch, threads, block
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __call__(self, x: Floats) -> Floats:
        """Outputs, (n, n_outputs), of inputs, (n, ...)."""
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
        try:
            scratch = self._local.scratch
        except AttributeError:
            scratch = self._make_scratch()
        self._run(self._pointer, n, address, _address(out), scratch)
        return out

    def _split(self, x: Floats) -> Floats:
        """Whole blocks to each thread, so that results do not depend on their number."""
        assert self._pool is not None
        size = self._block * -(-len(x) // (self._block * self._threads))
        blocks = [x[first : first + size] for first in range(0, len(x), size)]
        run = self._pool.map(lambda block: self._at(block.ctypes.data, len(block)), blocks)
        return np.concatenate(list(run))

    def _make_scratch(self) -> int:
        """One aligned buffer per thread, so that threads may call at the same time."""
        memory = np.zeros(4 * self._n_scratch + 64, np.uint8)
        self._local.memory = memory
        self._local.scratch = -(-memory.ctypes.data // 64) * 64
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
        layers, used = _used_features(_by_length(layers), selected, n_features)
        n_used, n_outputs = layers[0].weight.shape[1], len(layers[-1].bias)
        self._kept: list[NDArray[np.generic]] = [] if used is None else [used]  # C points into them
        self._width = max(n_used, *(len(layer.bias) for layer in layers))
        self._layers = (_Layer * len(layers))(*(self._described(layer) for layer in layers))
        network = _Network(
            len(layers),
            n_features,
            n_used,
            n_outputs,
            self._width,
            None if used is None else used.ctypes.data,
            ctypes.addressof(self._layers),
        )
        super().__init__(library().bayesieve_run, network, n_outputs, 2 * self._width * BLOCK,
                         threads, block=BLOCK)  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the stored weights and of one thread's scratch memory."""
        return sum(array.nbytes for array in self._kept) + 8 * self._width * BLOCK

    def _described(self, layer: Affine) -> _Layer:
        by_output, by_input = layer.weight, layer.weight.tocsc()
        arrays = [by_output.indptr, by_output.indices, by_output.data, layer.bias]
        arrays += [by_input.indptr, by_input.indices, by_input.data]
        kind = ACTIVATIONS.index(layer.activation)
        n_out, n_in = by_output.shape
        if by_output.nnz >= _DENSE * n_out * n_in:
            arrays.append(by_output.toarray())
        types = {"i": np.int32, "f": np.float32}
        arrays = [np.ascontiguousarray(array, types[array.dtype.kind]) for array in arrays]
        self._kept += arrays
        return _Layer(n_in, n_out, kind, layer.slope, *(a.ctypes.data for a in arrays))


def _address(array: Floats) -> int:
    """Address of a writeable array; four times as fast as `array.ctypes.data`."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]


def _by_length(layers: Sequence[Affine]) -> list[Affine]:
    """The same function with hidden units in the order of their number of weights.

    Equal lengths in a row let the processor predict where each sum ends.
    """
    ordered, order = [], None
    for layer in layers:
        weight, bias = layer.weight, layer.bias
        if order is not None:
            weight = weight[:, order]
        if layer is not layers[-1]:
            order = np.argsort(np.diff(weight.indptr), kind="stable")
            weight, bias = weight[order], bias[order]
        ordered.append(layer._replace(weight=weight, bias=bias))
    return ordered


def _used_features(
    layers: Sequence[Affine], selected: NDArray[np.int64] | None, n_features: int
) -> tuple[list[Affine], NDArray[np.int32] | None]:
    """The layers with unread inputs dropped from the first, and the features it then reads."""
    first = layers[0]
    read = np.unique(first.weight.indices)
    if len(read) == 0:
        read = np.zeros(1, np.int64)  # a network that ignores its input still has one
    used = read if selected is None else selected[read]
    if len(used) == n_features and np.array_equal(used, np.arange(n_features)):
        return list(layers), None
    small = first._replace(weight=first.weight[:, read])
    return [small, *layers[1:]], np.ascontiguousarray(used, np.int32)


def library() -> ctypes.CDLL:
    """The compiled kernels, built on first use."""
    loaded = load("bayesieve.deliver.runtime", *_TEXTS)
    pointer = ctypes.c_void_p
    for function in (loaded.bayesieve_run, loaded.bayesieve_images):
        function.restype = None
        function.argtypes = (pointer, ctypes.c_int64, pointer, pointer, pointer)
    return loaded
