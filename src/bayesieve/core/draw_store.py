"""Draws of chains in one safetensors file that fills up while a run goes on.

The file has room for a fixed number of draws of every chain from the beginning: its header never
changes, so any safetensors reader opens it at any time. Tensors, k chains, c draws at most:

    steps   (c,)       int64, the step each draw was taken after; 0 where there is none yet
    draws   (c, k, m)  weights; m = d, or the number of weights that are not pruned
    index   (k, m)     int32, their places in w; d where a chain has fewer; only if m < d
    norms   (c, k, b)  running statistics of normalisation layers, where there are any

A draw is written in this order: steps = 0, data, steps = its step, each flushed to the disk before
the next. A process killed in between leaves one draw less, never a wrong one. When the room is
full the oldest draw is overwritten.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayesieve.checks import check_positive
from bayesieve.core.layout import Layout
from bayesieve.core.network import Network
from bayesieve.core.norm_statistics import named_statistics, statistics_names
from bayesieve.core.posterior import Samples
from bayesieve.errors import damaged
from bayesieve.files import write_atomically

_KEY, _FORMAT = "bayesieve_draws", 1
_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32"}


@dataclass(frozen=True)
class DrawStore:
    """An open place for draws; made by `create` or `open`.

    Args:
        path: the file.
        capacity: c, draws of each chain it has room for.
        n_chains: k.
        size: d, length of a weight vector.
        index: (k, m) places that are stored; None stores all.
        places: where each tensor begins in the file, by name.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Linear(2, 1), Gaussian())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = DrawStore.create(Path(folder) / "a", network, 1, 5, torch.float32)
        ...     store.write(7, torch.ones(1, 3), None)
        ...     store.samples(network)[0].draws
        tensor([[1., 1., 1.]])
    """

    path: Path
    capacity: int
    n_chains: int
    size: int
    dtype: torch.dtype
    index: Tensor | None
    places: Mapping[str, int]

    @classmethod
    def create(
        cls, path: Path, network: Network, n_chains: int, capacity: int, dtype: torch.dtype,
        keep: Tensor | None = None,
    ) -> "DrawStore":  # fmt: skip
        """A new file without draws.

        Args:
            path: file to make; it must not exist.
            network: whose weights are drawn.
            n_chains: k.
            capacity: most draws of each chain.
            dtype: of the weights.
            keep: (k, d) bool, final masks: the rest is 0 in every draw and not stored.
        """
        check_positive("DrawStore", n_chains=n_chains, capacity=capacity)
        if path.exists():
            raise ValueError(f"DrawStore: {path} exists; give another path or remove it.")
        if dtype not in _DTYPES:
            raise ValueError(f"DrawStore: weights must be float32 or float64, got {dtype}.")
        layout, index = network.layout, None if keep is None else _places_of(keep)
        shapes = _shapes(network, n_chains, capacity, dtype, index)
        places, data = _header(layout, shapes)
        n_bytes = places["steps"] + sum(_n_bytes(*shape) for shape in shapes.values())
        path.parent.mkdir(parents=True, exist_ok=True)

        def fill(stream: IO[bytes]) -> None:
            stream.write(data)
            stream.truncate(n_bytes)  # zeros, which take no room on most disks
            if index is not None:
                stream.seek(places["index"])
                stream.write(_bytes(index))

        write_atomically(path, fill)
        return cls(path, capacity, n_chains, layout.size, dtype, index, places)

    @classmethod
    def open(cls, path: Path, network: Network) -> "DrawStore":
        """An existing file of the same network."""
        layout = network.layout
        if not path.is_file():
            raise FileNotFoundError(f"DrawStore: there is no file {path}.")
        try:
            with safe_open(path, framework="pt") as stream:
                text = (stream.metadata() or {}).get(_KEY)
                if text is None:
                    raise ValueError(f"DrawStore: {path} holds no draws of chains.")
                if json.loads(text) != {"format": _FORMAT, "layout": layout.to_json()}:
                    raise ValueError(f"DrawStore: {path} is of another network or format.")
                names = set(stream.keys())
                index = stream.get_tensor("index") if "index" in names else None
                capacity, k, _ = stream.get_slice("draws").get_shape()
                dtype = stream.get_slice("draws")[:0].dtype
        except SafetensorError as error:
            raise damaged(path, str(error), "DrawStore") from error
        shapes = _shapes(network, k, capacity, dtype, index)
        if names != shapes.keys():
            raise ValueError(f"DrawStore: {path} lacks {', '.join(sorted(shapes.keys() - names))}.")
        return cls(path, capacity, k, layout.size, dtype, index, _header(layout, shapes)[0])

    def write(self, step: int, w: Tensor, norms: Tensor | None) -> None:
        """Add one draw of every chain, over the oldest if there is no room left.

        Args:
            step: number of the step it was taken after, > 0; a step written before is replaced.
            w: (k, d).
            norms: (k, b) where the network has running statistics.
        """
        steps = self.steps()
        found = (steps == step).nonzero()
        row = int(found[0]) if len(found) else int(steps.argmin())
        values = w.detach().cpu()
        if self.index is not None:
            padded = torch.cat([values, values.new_zeros(len(values), 1)], 1)
            values = padded.gather(1, self.index.long())
        parts = {"draws": values} | ({} if norms is None else {"norms": norms.detach().cpu()})
        with self.path.open("r+b") as stream:
            self._put(stream, "steps", row, torch.zeros(1, dtype=torch.int64))
            for name, value in parts.items():
                self._put(stream, name, row, value)
            self._put(stream, "steps", row, torch.tensor([step]))

    def _put(self, stream: Any, name: str, row: int, value: Tensor) -> None:
        data = _bytes(value)
        stream.seek(self.places[name] + row * len(data))
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())

    def steps(self) -> Tensor:
        """The step of each place, (c,) int64; 0 where there is no draw."""
        with safe_open(self.path, framework="pt") as stream:
            found: Tensor = stream.get_tensor("steps")
        return found

    def samples(self, network: Network) -> list[Samples]:
        """The draws of every chain, oldest first, on the network's device."""
        steps = self.steps()
        rows = [int(i) for i in steps.argsort() if steps[i] > 0]
        if not rows:
            raise ValueError(f"DrawStore: {self.path} holds no draw yet.")
        with safe_open(self.path, framework="pt") as stream:
            draws = torch.stack([stream.get_slice("draws")[i] for i in rows])  # (n, k, m)
            norms = None
            if "norms" in self.places:
                norms = torch.stack([stream.get_slice("norms")[i] for i in rows])
        if self.index is not None:
            full = draws.new_zeros(len(rows), self.n_chains, self.size + 1)
            draws = full.scatter_(2, self.index.long().expand_as(draws), draws)[..., :-1]
        found, shared = [], network.buffers()
        for i in range(self.n_chains):
            own: dict[str, Tensor] = {}
            if norms is not None:
                own = named_statistics(statistics_names(network), norms[:, i], shared)
                own = {name: value.to(network.device) for name, value in own.items()}
            buffers = shared | {name: value.mean(0) for name, value in own.items()}
            rows_of_chain = draws[:, i].to(network.device).contiguous()
            found.append(Samples(network, rows_of_chain, None, buffers, own))
        return found


_Shape = tuple[torch.dtype, tuple[int, ...]]


def _shapes(
    network: Network, n_chains: int, capacity: int, dtype: torch.dtype, index: Tensor | None
) -> dict[str, _Shape]:
    """Type and shape of every tensor, in the order in which they lie in the file."""
    d = network.layout.size
    shapes: dict[str, _Shape] = {"steps": (torch.int64, (capacity,))}
    if index is not None:
        d = index.shape[1]
        shapes["index"] = (torch.int32, (n_chains, d))
    named = dict(network.skeleton.named_buffers())
    names = statistics_names(network)
    if names:
        b = sum(named[name].numel() for name in names)
        shapes["norms"] = (named[names[0]].dtype, (capacity, n_chains, b))
    return shapes | {"draws": (dtype, (capacity, n_chains, d))}


def _header(layout: Layout, shapes: Mapping[str, _Shape]) -> tuple[dict[str, int], bytes]:
    """Where each tensor begins in the file, and the bytes before the first of them."""
    about = json.dumps({"format": _FORMAT, "layout": layout.to_json()})
    table: dict[str, Any] = {"__metadata__": {_KEY: about}}
    begin = 0
    for name, (dtype, shape) in shapes.items():
        end = begin + _n_bytes(dtype, shape)
        table[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)  # numbers then begin at multiples of 8
    data = len(text).to_bytes(8, "little") + text
    places = {name: len(data) + table[name]["data_offsets"][0] for name in shapes}
    return places, data


def _n_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _bytes(value: Tensor) -> bytes:
    return value.contiguous().numpy().tobytes()


def _places_of(keep: Tensor) -> Tensor:
    """The places of True in each row, (k, m) int32, filled up with d."""
    d = keep.shape[1]
    rows = [row.nonzero()[:, 0] for row in keep.cpu()]
    m = max(1, *(len(row) for row in rows))
    index = torch.full((len(rows), m), d, dtype=torch.int32)
    for own, row in zip(index, rows, strict=True):
        own[: len(row)] = row
    return index
