"""The forms a layer can take in a runtime, and networks put together from them."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from bayesieve.deliver._chain import Affine2d, Flatten, Select, Step, activate
from bayesieve.deliver._kernels import BLOCK, Affine, Chain

Floats = NDArray[np.float32]
Stage = Callable[[Tensor], Tensor]


class Network:
    """Stages that run one after another."""

    def __init__(self, stages: Sequence[tuple[str, Any]], nbytes: int) -> None:
        self._stages, self.nbytes = stages, nbytes
        only = stages[0][1] if len(stages) == 1 else None
        self._chain = only if isinstance(only, Fused) else None

    def on_array(self, x: Floats) -> Floats:
        """Outputs, (n, ...), of inputs, (n, ...)."""
        if self._chain is not None:
            return self._chain.on_array(x)
        return self.on_tensor(torch.from_numpy(x if x.flags.writeable else x.copy())).numpy()

    def on_tensor(self, x: Tensor) -> Tensor:
        """Outputs, (n, ...), of inputs, (n, ...), without gradients."""
        with torch.no_grad():
            for _, stage in self._stages:
                x = stage(x)
        return x


class Fused:
    """A compiled chain; batches of several blocks are split over threads."""

    def __init__(self, chain: Chain, threads: int, pool: ThreadPoolExecutor | None) -> None:
        self.chain, self._threads, self._pool = chain, threads, pool

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        if self._pool is None or len(x) < 2 * BLOCK:
            return torch.from_numpy(self.chain.at(x.data_ptr(), len(x)))
        return torch.from_numpy(self._split(x.numpy()))

    def on_array(self, x: Floats) -> Floats:
        """Outputs, (n, n_outputs), of inputs, (n, ...)."""
        if not x.flags.c_contiguous:
            x = np.ascontiguousarray(x)
        if self._pool is None or len(x) < 2 * BLOCK:
            return self.chain(x)
        return self._split(x)

    def _split(self, x: Floats) -> Floats:
        """Whole blocks to each thread, so that results do not depend on their number."""
        assert self._pool is not None
        size = BLOCK * -(-len(x) // (BLOCK * self._threads))
        parts = [x[first : first + size] for first in range(0, len(x), size)]
        return np.concatenate(list(self._pool.map(self.chain, parts)))


def assembled(
    steps: Sequence[Step], choices: dict[int, str], threads: int, pool: ThreadPoolExecutor | None
) -> Network:
    """Stages for a choice of each layer; neighbours in the kernel become one stage."""
    stages: list[tuple[str, Any]] = []
    nbytes, index = 0, 0
    while index < len(steps):
        run = _kernel_run(steps, choices, index)
        if run > index:
            chain = _chain_of(steps[index:run])
            stages.append(("kernel", Fused(chain, threads, pool)))
            nbytes, index = nbytes + chain.nbytes, run
            continue
        step = steps[index]
        choice = choices.get(index, "dense")
        if isinstance(step, Affine2d) and choice != "dense":
            product = PRODUCTS[choice](step)
            stages.append((choice, _then(product, step)))
        else:
            stages.append(("dense", step.dense))
        if isinstance(step, Affine2d):
            stored = int(step.weight.count_nonzero()) * 8
            nbytes += step.weight.nbytes if choice == "dense" else stored
        index += 1
    return Network(stages, nbytes)


def _kernel_run(steps: Sequence[Step], choices: dict[int, str], first: int) -> int:
    """The end of the steps from `first` on that can be one call of the kernel; `first` if none."""
    index = first
    while index < len(steps) and isinstance(steps[index], Flatten):
        index += 1
    if index < len(steps) and isinstance(steps[index], Select):
        index += 1
    start = index
    while index < len(steps) and choices.get(index) == "kernel":
        index += 1
    return index if index > start else first


def _chain_of(steps: Sequence[Step]) -> Chain:
    layers = [step for step in steps if isinstance(step, Affine2d)]
    stored = [_stored(own) for own in layers]
    for step in steps:
        if isinstance(step, Select):
            return Chain(stored, step.n_features, step.columns)
    return Chain(stored, layers[0].weight.shape[1])


def _stored(step: Affine2d) -> Affine:
    bias = np.zeros(len(step.weight), np.float32) if step.bias is None else step.bias.numpy()
    return Affine(csr_array(step.weight.numpy()), bias, step.activation, step.slope)


def _dense_product(step: Affine2d) -> Stage:
    return replace(step, activation="none").dense


def _scipy_product(step: Affine2d) -> Stage:
    weight = csr_array(step.weight.numpy())
    bias = None if step.bias is None else step.bias.numpy()

    def product(x: Tensor) -> Tensor:
        y = (weight @ x.numpy().T).T
        return torch.from_numpy(np.ascontiguousarray(y if bias is None else y + bias))

    return product


def _torch_product(step: Affine2d) -> Stage:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        weight = step.weight.to_sparse_csr()
    bias = step.bias

    def product(x: Tensor) -> Tensor:
        y = (weight @ x.T).T
        return (y if bias is None else y + bias).contiguous()

    return product


def _kernel_product(step: Affine2d) -> Stage:
    layer = replace(step, activation="none")
    return Fused(_chain_of([layer]), 1, None)


PRODUCTS: dict[str, Callable[[Affine2d], Stage]] = {
    "dense": _dense_product,
    "kernel": _kernel_product,
    "scipy": _scipy_product,
    "torch-csr": _torch_product,
}


def _then(product: Stage, step: Affine2d) -> Stage:
    return lambda x: activate(product(x), step.activation, step.slope)
