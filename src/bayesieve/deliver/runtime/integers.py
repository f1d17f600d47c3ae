"""Linear layers with 8-bit weights: rounding by calibration, a plain twin, and integers.c.

Weights are 8-bit integers q with one scale s_r per output (`quantise_rows`). Inputs are 16-bit
integers A, counted in steps d of one size per layer. A sum adds products in units of 128,

    S_r = sum_i round(A_i q_ri / 128),    y_r = 128 s_r d S_r + b_r,                             (1)

and the next layer's inputs are A'_r = y_r / d', rounded and cut at the layer's limit. The limit is
the largest |A| for which no sum can leave 16 bits:

    limit = min_r 128 (32767 - n_r / 2) / sum_i |q_ri|,                                          (2)

n_r being the weights of output r. So results do not depend on the order of the sums, and the twin
in NumPy gives the same integers as the kernel. Steps come from the largest input of each layer on
calibration examples.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from bayesieve.deliver.c import quantise_rows
from bayesieve.deliver.layers import Activation
from bayesieve.deliver.runtime.kernels import (
    ACTIVATIONS,
    CACHE,
    LIMIT,
    Affine,
    CompiledLayers,
    Floats,
    arranged,
    by_input,
    by_output,
    constant,
    library,
)
from bayesieve.errors import UnsupportedModelError
from bayesieve.fast.native import fields

_UNIT = 128  # of a product, as in integers.c
_MOST = 32767  # of 16 bits
_HALF = 1 << 14  # what rounds a product of 15 fractional bits
_LEAST = 1e-30  # smallest step
_ROOM = 1.25  # how much larger than on the calibration examples an input may be
_DENSE = 0.08  # fraction of weights from which one example runs by whole columns
_ROWS = 64  # examples the twin takes at once


class _Layer(ctypes.Structure):  # int_layer of integers.c
    _fields_ = (
        *fields(ctypes.c_int64, "n_in n_out activation"),
        *fields(ctypes.c_double, "slope"),
        *fields(ctypes.c_int64, "limit"),
        *fields(ctypes.c_double, "inverse"),
        *fields(ctypes.c_int64, "n_runs"),
        *fields(ctypes.c_void_p, "runs output column value columns first row weight"),
        *fields(ctypes.c_void_p, "factor offset scale bias"),
    )


class Rounded(NamedTuple):
    """One layer in integers.

    Args:
        affine: the layer, its weight in 8-bit integers.
        limit: largest input, in steps.
        inverse: of a step of the inputs.
        scale: (n_out,), from a sum to an output.
        factor: (n_out,), from a sum to steps of the next layer's inputs, times 2^15.
        offset: (n_out,), the bias in those steps.
    """

    affine: Affine
    limit: int
    inverse: np.float32
    scale: Floats
    factor: NDArray[np.int16]
    offset: NDArray[np.int16]


def rounded(layers: Sequence[Affine], x: Floats) -> list[Rounded]:
    """Layers in integers, with steps for inputs like x.

    Args:
        layers: their activations are ReLU or none, but for the last.
        x: calibration examples, (n, n_in).

    Raises:
        UnsupportedModelError: another activation stands between layers.

    Example:
        >>> layer = Affine(csr_array(np.eye(2, dtype=np.float32)), np.zeros(2, np.float32))
        >>> made = rounded([layer], np.ones((4, 2), np.float32))
        >>> run_rounded(made, np.array([[0.5, 1.0]], np.float32)).round(4).tolist()
        [[0.5, 1.0]]
    """
    for layer in layers[:-1]:
        if layer.activation not in ("none", "ReLU"):
            raise UnsupportedModelError(
                f"as_runtime: int8 takes ReLU between Linear layers, got {layer.activation}."
            )
    whole, scales, limits, largest = [], [], [], []
    for layer in layers:
        q, by_row = quantise_rows(torch.from_numpy(layer.weight.toarray()))
        weight = csr_array(q.numpy())
        whole.append(layer._replace(weight=weight))
        scales.append(_UNIT * by_row.double().numpy() * (np.diff(weight.indptr) > 0))
        limits.append(_limit(weight))
        largest.append(float(np.abs(x).max(initial=0)))
        x = _function(layer)(x @ layer.weight.T + layer.bias)
    made = list[Rounded]()
    step = max(_ROOM * largest[0] / limits[0], _LEAST)
    for i, layer in enumerate(whole):
        scale, inverse, factor = step * scales[i], np.float32(1 / step), np.zeros(len(layer.bias))
        offset = factor
        if i + 1 < len(whole):
            # The factor stays below 1/2 and the bias below half of 16 bits, so that their sum fits.
            halved = 2.01 * max(float(scale.max()), float(np.abs(layer.bias).max()) / _MOST)
            step = max(_ROOM * largest[i + 1] / limits[i + 1], halved, _LEAST)
            factor, offset = np.rint(scale / step * 2 * _HALF), np.rint(layer.bias / step)
        made.append(Rounded(layer, limits[i], inverse, scale.astype(np.float32),
                            factor.astype(np.int16), offset.astype(np.int16)))  # fmt: skip
    return made


def _limit(weight: csr_array) -> int:
    """Equation (2)."""
    absolute = np.asarray(abs(weight.astype(np.int64)).sum(axis=1)).ravel()
    counts = np.diff(weight.indptr)
    allowed = _UNIT * (_MOST - counts / 2) / np.maximum(absolute, 1)
    limit = int(min(allowed.min(), _MOST))
    if limit < 1:
        raise UnsupportedModelError(
            f"as_runtime: int8 sums at 16 bits; a layer with {counts.max():,} weights of one "
            "output is too wide."
        )
    return limit


def run_rounded(layers: Sequence[Rounded], x: Floats) -> Floats:
    """Outputs, (n, n_outputs), of inputs, (n, n_in): the kernel in NumPy, integer by integer."""
    blocks = [_run_block(layers, x[i : i + _ROWS]) for i in range(0, max(len(x), 1), _ROWS)]
    return np.concatenate(blocks)


def _run_block(layers: Sequence[Rounded], x: Floats) -> Floats:
    first = layers[0]
    steps = np.rint(x * first.inverse).clip(-first.limit, first.limit).astype(np.int64)
    for layer, reader in zip(layers, (*layers[1:], None), strict=True):
        weight = layer.affine.weight
        products = (steps[:, weight.indices] * (2 * weight.data.astype(np.int64)) + _UNIT) >> 8
        ends = np.concatenate([np.zeros((len(x), 1), np.int64), products.cumsum(1)], 1)
        sums = ends[:, weight.indptr[1:]] - ends[:, weight.indptr[:-1]]
        if reader is not None:
            steps = (sums * layer.factor.astype(np.int64) + _HALF) >> 15
            low = 0 if layer.affine.activation == "ReLU" else -reader.limit
            steps = (steps + layer.offset).clip(low, reader.limit)
    outputs = sums.astype(np.float32) * layer.scale + layer.affine.bias
    return _function(layer.affine)(outputs)


def _function(layer: Affine) -> Callable[[Floats], Floats]:
    """The activation of a layer, on arrays."""
    if layer.activation == "none":
        return lambda y: y
    run = Activation((len(layer.bias),), layer.activation, layer.slope).run
    return lambda y: run(torch.from_numpy(y)).numpy()


class IntegerLayers(CompiledLayers):
    """Sparse affine layers with 8-bit weights that run as one call of the compiled kernel.

    Args:
        layers: from the input to the output.
        n_features: length of an input row.
        x: calibration examples, (n, n_features).
        selected: which features the first layer reads, in order; None reads all.
        threads: how many threads share a batch of several blocks.

    Raises:
        KernelUnavailableError: no compiler, or what it made does not load.
        UnsupportedModelError: `rounded` refuses the layers, or one has more than 65,536 inputs.
    """

    def __init__(
        self,
        layers: Sequence[Affine],
        n_features: int,
        x: Floats,
        selected: NDArray[np.int64] | None = None,
        threads: int = 1,
    ) -> None:
        layers, quads = arranged(layers, selected, n_features)
        self._features = (quads[:, None] + np.arange(min(4, n_features))).ravel()
        self.rounded = rounded(layers, x.reshape(len(x), -1)[:, self._features])
        self.n_weights = sum(layer.weight.nnz for layer in layers)
        self._kept = []
        described = (_Layer * len(layers))(*map(self._rounded, self.rounded))
        self._start(library().bayesieve_run_integers, described, layers, quads, n_features, threads)

    def plain(self, x: Tensor) -> Tensor:
        """The same function in NumPy: what the kernel is checked against."""
        rows = x.reshape(len(x), -1).numpy()[:, self._features]
        return torch.from_numpy(run_rounded(self.rounded, rows))

    def _rounded(self, layer: Rounded) -> _Layer:
        weight = layer.affine.weight
        n_out, n_in = weight.shape
        if n_in > LIMIT:
            raise UnsupportedModelError(f"as_runtime: int8 takes at most {LIMIT:,} inputs.")
        group = constant("shorts")
        padding = np.zeros(group - n_out % group, np.int16)  # at least one: see `by_output`
        batch = by_output(weight, LIMIT, constant("int_at_once"))
        described = _Layer(
            n_in, n_out, ACTIVATIONS.index(layer.affine.activation), layer.affine.slope,
            layer.limit, float(layer.inverse),
            n_runs=len(batch.runs),
            runs=self._at_address(batch.runs),
            output=self._at_address(batch.output),
            column=self._at_address(batch.column),
            value=self._at_address(batch.value),
            factor=self._at_address(np.concatenate([layer.factor, padding])),
            offset=self._at_address(np.concatenate([layer.offset, padding])),
            scale=self._at_address(np.append(layer.scale, np.float32(0))),
            bias=self._at_address(np.append(layer.affine.bias, np.float32(0))),
        )  # fmt: skip
        if weight.nnz >= _DENSE * n_out * n_in and n_out * n_in <= CACHE:
            described.columns = self._at_address(by_columns(weight, group))
        else:
            columns = by_input(weight, 1)
            described.first = self._at_address(columns.start)
            described.row = self._at_address(columns.row)
            described.weight = self._at_address(columns.value)
        return described


def by_columns(weight: csr_array, group: int) -> NDArray[np.int8]:
    """All weights, zeros too, by input: 8 groups of outputs at a time, then single groups.

    Example:
        >>> weight = csr_array(np.array([[1, 2], [3, 4], [5, 6]], np.int8))
        >>> by_columns(weight, 2).tolist()
        [1, 3, 2, 4, 5, 0, 6, 0]
    """
    n_out, n_in = weight.shape
    n_groups = -(-n_out // group)
    full = np.zeros((n_groups * group, n_in), np.int8)
    full[:n_out] = weight.toarray()
    ends = [*range(8, n_groups + 1, 8), *range(n_groups // 8 * 8 + 1, n_groups + 1)]
    pieces = np.split(full, [group * end for end in ends[:-1]])
    return np.concatenate([piece.T.ravel() for piece in pieces])
