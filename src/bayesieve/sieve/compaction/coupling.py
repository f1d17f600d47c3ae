"""Channels that must go together, and the entries of w that belong to them.

Each channel of each activation has a label. A layer with weights gives its outputs new labels. An
operation that keeps channels apart hands its input's labels on, and one that matches channels of
several tensors (a sum, a product, a depthwise convolution, the heads of attention) makes their
labels equal. So the channels of a residual stream, whoever writes to it, end with one label each.
What an operation does to labels is the method `couple` of its rule. A label that meets a barrier
(the output, an unknown operation) is fixed: its channels stay, and the barrier is named.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from bayesieve.sieve.compaction.flow import Flow


class Coupling:
    """Labels of the channels of every activation, and what belongs to each label.

    Args:
        flow: with the channels of each node.
        entries: of each parameter of the graph that is in w, by name: the place of each number,
            in the parameter's shape.
        movable: (d,) bool, the entries of w that may be 0 because their layer loses an output.
    """

    def __init__(self, flow: Flow, entries: Mapping[str, Tensor], movable: Tensor) -> None:
        self.flow = flow
        self.entries = entries
        self.movable = movable
        self.labels: dict[fx.Node, Tensor] = {}
        self.owned: list[tuple[Tensor, Tensor]] = []  # labels (n,), entries (n, m)
        self.fixed: list[tuple[Tensor, str]] = []
        self._equal: list[Tensor] = []  # (2, n) pairs
        self._n = 0

    def fresh(self, n: int) -> Tensor:
        """N new labels."""
        self._n += n
        return torch.arange(self._n - n, self._n)

    def along(self, x: fx.Node, axis: int, reader: fx.Node) -> Tensor:
        """Labels of a tensor along an axis; all are fixed if its channels are on another."""
        if self.flow.channels[x].axis == axis:
            return self.labels[x]
        self.fix(self.labels[x], reader, f"reads axis {axis}, not the channels")
        labels = self.fresh(self.flow.shape(x)[axis])
        self.fix(labels, reader, f"reads axis {axis}, not the channels")
        return labels

    def join(self, *labels: Tensor) -> Tensor:
        """Make labels equal, each (n,), and return the first."""
        self._equal += [torch.stack([labels[0], other]) for other in labels[1:]]
        return labels[0]

    def fix(self, labels: Tensor, node: fx.Node, why: str) -> None:
        """Keep channels, and say which operation needs them."""
        graph = self.flow.graph
        what = graph.place(node) if node.op == "output" else graph.described(node)
        self.fixed.append((labels, f"{what} {why}"))

    def own(self, labels: Tensor, name: str, axis: int = 0) -> None:
        """Give labels, (n,), what a parameter has along an axis; nothing if it is not in w."""
        if name in self.entries:
            self.own_entries(labels, self.entries[name].movedim(axis, 0))

    def own_entries(self, labels: Tensor, entries: Tensor) -> None:
        """Give labels, (n,), entries of w, (n, ...)."""
        self.owned.append((labels, entries.reshape(len(labels), -1)))

    def components(self) -> Tensor:
        """The smallest label that each label equals, (labels,)."""
        root = torch.arange(self._n)
        if not self._equal:
            return root
        a, b = torch.cat(self._equal, 1)
        while True:
            ends = root[a], root[b]
            low = torch.minimum(*ends)
            new = root.clone()
            for end in ends:
                new.scatter_reduce_(0, end, low, "amin")
            while not torch.equal(new, new[new]):
                new = new[new]
            if torch.equal(new, root):
                return root
            root = new
