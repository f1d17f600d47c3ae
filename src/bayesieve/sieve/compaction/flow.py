"""What is known about every activation of a traced network, and the form of a rule."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, fx

from bayesieve.sieve.compaction.channels import Channels, varying
from bayesieve.sieve.compaction.graph import Traced


class Flow:
    """The channels of each node, who reads them, and what had to stay.

    Args:
        traced: the network.
    """

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.channels: dict[fx.Node, Channels] = {}
        self.rules: dict[fx.Node, Rule] = {}
        self.need: dict[fx.Node, Tensor] = {}  # (n,) bool: must exist in the compacted network
        self.notes: list[str] = []
        self._present: set[fx.Node] = set()

    def shape(self, node: fx.Node) -> torch.Size:
        """Shape of a node that is known to be a tensor."""
        shape = self.traced.shape(node)
        assert shape is not None
        return shape

    def values(self, node: fx.Node, axis: int) -> Tensor:
        """Constants along any axis of a tensor, (n,); all NaN if its channels lie elsewhere."""
        if self.channels[node].axis == axis:
            return self.channels[node].value
        return varying(axis, self.shape(node)[axis]).value

    def request(self, node: fx.Node, axis: int, wanted: Tensor) -> None:
        """Ask for entries, (n,) bool, along an axis; for all channels if they lie elsewhere."""
        if self.channels[node].axis == axis:
            self.need[node] |= wanted
        else:
            self.request_all(node)

    def request_all(self, node: fx.Node) -> None:
        """Ask for every channel of a tensor."""
        self.need[node].fill_(True)

    def request_any(self, node: fx.Node) -> None:
        """Ask that a tensor exists, with whatever channels others need, and at least one."""
        self._present.add(node)

    def settle(self, node: fx.Node) -> bool:
        """After all readers have asked: make sure of one channel; whether the node is needed."""
        if node in self._present and not bool(self.need[node].any()):
            self.need[node][0] = True
        return bool(self.need[node].any())

    def note(self, node: fx.Node, what: str) -> None:
        """Say why something stays."""
        self.notes.append(f"{self.traced.place(node)} {what}")


class Rewritten(NamedTuple):
    """A node of the new graph, and which original channels it has, ascending."""

    node: fx.Node
    held: Tensor


class Rewriting(Protocol):
    """How a rule writes to the new graph; see `rewrite.Rewriter`."""

    @property
    def flow(self) -> Flow:
        """What the analysis found."""
        ...

    def held(self, node: fx.Node, axis: int) -> Tensor:
        """Which original entries a rewritten tensor still has along an axis, ascending."""
        ...

    def gather(self, node: fx.Node, axis: int, wanted: Tensor, reader: fx.Node) -> fx.Node:
        """The rewritten tensor with the wanted original entries only, for one reader."""
        ...

    def copy(self, node: fx.Node, inputs: dict[fx.Node, fx.Node] | None = None) -> fx.Node:
        """The same operation on rewritten inputs, or on those given for some of them."""
        ...

    def call(self, function: Callable[..., Any], *args: Any) -> fx.Node:
        """A new operation on rewritten tensors."""
        ...

    def parameter(self, name: str, value: Tensor) -> fx.Node:
        """A new trainable tensor."""
        ...

    def rewritten(self, node: fx.Node) -> fx.Node:
        """What an original node has become."""
        ...


class Rule(Protocol):
    """What one kind of operation does to channels."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """The channels of the output, or in words why this rule does not apply."""
        ...

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """Ask the inputs for what the needed channels of the output are made of."""
        ...

    def rewrite(self, node: fx.Node, to: Rewriting) -> Rewritten:
        """Write the shrunk operation, which may change modules; say what its output has."""
        ...


def indices(mask: Tensor) -> Tensor:
    """Where a mask is True, ascending, int64."""
    return mask.nonzero().flatten()


def mask_of(index: Tensor, n: int) -> Tensor:
    """The mask of length n that is True at some indices."""
    mask = torch.zeros(n, dtype=torch.bool)
    mask[index] = True
    return mask


def plural(n: int, noun: str) -> str:
    """A count with its noun: "1 channel", "2 channels"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
