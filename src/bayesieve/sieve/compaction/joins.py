"""Several tensors become one: sums, products, concatenation.

A channel of a sum exists in all its terms or in none. It goes if no layer reads it, or if it is
constant in every term. A term whose needed channels are all constant goes as a whole: it adds one
number per channel.
"""

from typing import Any

import torch
from torch import Tensor, fx

from bayesieve.graph.operations import operation_of
from bayesieve.sieve.compaction.flow import (
    Channels,
    Coupling,
    Flow,
    Rewriter,
    Rewritten,
    Rule,
    indices,
    varying,
)


class Arithmetic(Rule):
    """Sum, difference or product of two tensors; `where` and `masked_fill`."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """The operation on the constants; a product with 0 is 0."""
        masked = _does(node, "masked_fill") or _does(node, "where")
        if node.kwargs or len(node.args) != 2 + masked:
            return "has options that are not known"
        axis = _axis(node, flow)
        if axis is None:
            return "joins tensors whose channels are on different axes"
        if masked:
            return varying(axis, flow.shape(node)[axis])
        a, b = (_aligned(x, axis, node, flow) for x in terms(node))
        if _does(node, "mul"):
            value = torch.where((a == 0) | (b == 0), 0.0, a * b)
        else:
            value = a - b if _does(node, "sub") else a + b
        return Channels(axis, value.expand(flow.shape(node)[axis]).clone())

    def fixed(self, node: fx.Node, flow: Flow) -> Tensor:
        """Sums and products of what is fixed."""
        axis, fixed = flow.channels[node].axis, torch.ones_like(flow.need[node])
        for x in terms(node):
            known = flow.fixed[x]
            fixed &= known if _is_matched(x, axis, node, flow) else known.all()
        return fixed | flow.channels[node].constant

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """The same channels of every term that does not vanish."""
        need, axis, gone = flow.need[node], flow.channels[node].axis, _vanishing(node, flow)
        for x in terms(node):
            if x is gone:
                continue
            if _is_matched(x, axis, node, flow):
                flow.request(x, _axis_of(x, axis, node, flow), need)
            else:
                flow.request_all(x)
        if gone is None and _is_sum(node) and not _has_table(node):
            dead = [~_aligned(x, axis, node, flow).isnan() for x in terms(node)]
            why = "constant in one term, not in the other"
            stuck = need & (dead[0] | dead[1])
            flow.note_useless(node, stuck, "channel", why, keeps="residual sum keeps")

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Bring all terms to the same channels."""
        flow = to.flow
        axis, gone = flow.channels[node].axis, _vanishing(node, flow)
        matched = [x for x in terms(node) if x is not gone and _is_matched(x, axis, node, flow)]
        axes = [(x, _axis_of(x, axis, node, flow)) for x in matched]
        held = [to.held(x, x_axis) for x, x_axis in axes]
        agreed = all(torch.equal(held[0], other) for other in held[1:]) and gone is None
        kept = held[0] if agreed else indices(flow.need[node])
        new = {x: to.gather(x, x_axis, kept, node) for x, x_axis in axes}
        if gone is None:
            return to.copy(node, new), kept
        (rest,) = new.values()
        value = _aligned(gone, axis, node, flow)
        value = value[kept] if _is_matched(gone, axis, node, flow) else value
        if not bool(value.any()):
            return rest, kept
        value = -value if _does(node, "sub") else value
        value = value.view(-1, *[1] * (len(flow.shape(node)) - axis - 1))
        shift = to.parameter(f"{node.name}_shift", value.to(node.meta["dtype"]))
        return to.call(torch.add, rest, shift), kept

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """A channel goes from all terms at once."""
        axis, flow = to.flow.channels[node].axis, to.flow
        matched = [x for x in terms(node) if _is_matched(x, axis, node, flow)]
        to.labels[node] = to.join(*(to.labels[x] for x in matched))
        for x in matched:
            untrained = x.op == "get_attr" and str(x.target) not in to.entries
            if untrained and not _does(node, "mul"):
                adds = flow.channels[x].value != 0  # NaN too
                to.fix(to.labels[x][adds], node, "joins a tensor that is not trained")


class Concatenation(Rule):
    """`torch.cat`, along the channels or across them."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Channels one after the other; across, those that are constant with one value."""
        pieces, dim = _pieces(node), _cat_dim(node, flow)
        if not pieces or dim is None:
            return "is called in a way that is not known"
        axes = {flow.channels[x].axis for x in pieces}
        if len(axes) > 1:
            return "joins tensors whose channels are on different axes"
        values = [flow.channels[x].value for x in pieces]
        (axis,) = axes
        if axis == dim:
            return Channels(axis, torch.cat(values))
        same = torch.stack([v == values[0] for v in values]).all(0)
        return Channels(axis, torch.where(same, values[0], torch.nan))

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """Each piece the channels it brings, or all of them the same."""
        for x, need in _needs(node, flow):
            flow.request(x, flow.channels[node].axis, need)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Leave out empty pieces; note what the others bring."""
        flow, axis = to.flow, to.flow.channels[node].axis
        dim = _cat_dim(node, flow)
        if axis != dim:
            kept = indices(flow.need[node])
            pieces = [to.gather(x, axis, kept, node) for x in _pieces(node)]
            return to.call(torch.cat, pieces, dim), kept
        pieces, held, start = [], [], 0
        for x, need in _needs(node, flow):
            if bool(need.any()):
                pieces.append(to.gather(x, axis, to.held(x, axis), node))
                held.append(to.held(x, axis) + start)
            start += len(need)
        new = pieces[0] if len(pieces) == 1 else to.call(torch.cat, pieces, dim)
        return new, torch.cat(held)

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """Along the channels each piece keeps its own; across, a channel is in all pieces."""
        labels = [to.labels[x] for x in _pieces(node)]
        along = to.flow.channels[node].axis == _cat_dim(node, to.flow)
        to.labels[node] = torch.cat(labels) if along else to.join(*labels)


class Paired(Rule):
    """Matrix products and attention with one matrix for each channel, such as a head.

    Channels are on an axis before the last two of every tensor that has them.
    """

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """A product is 0 where its last factor is, whatever the others are."""
        axis = _axis(node, flow)
        if axis is None or axis >= len(flow.shape(node)) - 2:
            return "mixes the channels"
        if not all(_follows(x, axis, node, flow) for x in flow.graph.tensor_inputs(node)):
            return "has a mask for each channel"
        value = _aligned(_factors(node)[-1], axis, node, flow)
        zero = torch.where(value == 0, value, torch.nan)
        return Channels(axis, zero.expand(flow.shape(node)[axis]).clone())

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """The same channels of every factor."""
        axis = flow.channels[node].axis
        for x in flow.graph.tensor_inputs(node):
            if _is_matched(x, axis, node, flow):
                flow.request(x, _axis_of(x, axis, node, flow), flow.need[node])
            else:
                flow.request_all(x)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Bring all factors to the same channels."""
        axis, kept = to.flow.channels[node].axis, indices(to.flow.need[node])
        inputs = to.flow.graph.tensor_inputs(node)
        matched = [x for x in inputs if _is_matched(x, axis, node, to.flow)]
        new = {x: to.gather(x, _axis_of(x, axis, node, to.flow), kept, node) for x in matched}
        return to.copy(node, new), kept

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """A channel goes from all factors at once."""
        axis = to.flow.channels[node].axis
        inputs = to.flow.graph.tensor_inputs(node)
        matched = [x for x in inputs if _is_matched(x, axis, node, to.flow)]
        to.labels[node] = to.join(*(to.labels[x] for x in matched))


def _factors(node: fx.Node) -> list[fx.Node]:
    """The factors of a product; query, key and value of attention."""
    return terms(node)[:3]


def terms(node: fx.Node) -> list[fx.Node]:
    """The nodes that an operation joins."""
    return [x for x in node.args if isinstance(x, fx.Node)]


def _does(node: fx.Node, name: str) -> bool:
    """Return whether an operation is "add", "sub" or "mul"."""
    return operation_of(node).name == name


def _is_sum(node: fx.Node) -> bool:
    return _does(node, "add") or _does(node, "sub")


def _has_table(node: fx.Node) -> bool:
    """Return whether a term is a tensor of the network itself, or has become one."""
    return any(x.op == "get_attr" for x in terms(node))


def _axis_of(x: fx.Node, axis: int, node: fx.Node, flow: Flow) -> int:
    """The axis of a term that lines up with an axis of the output; below 0 if it has none."""
    return axis - len(flow.shape(node)) + len(flow.shape(x))


def _is_matched(x: fx.Node, axis: int, node: fx.Node, flow: Flow) -> bool:
    """Return whether a term has its channels along the output's, one for one."""
    same_axis = flow.channels[x].axis == _axis_of(x, axis, node, flow)
    return same_axis and len(flow.channels[x]) == flow.shape(node)[axis]


def _axis(node: fx.Node, flow: Flow) -> int | None:
    """The output axis on which some term has its channels and the others agree or broadcast."""
    n_axes = len(flow.shape(node))
    for main in terms(node):
        axis = n_axes - len(flow.shape(main)) + flow.channels[main].axis
        follow = all(_follows(x, axis, node, flow) for x in terms(node))
        if follow and _is_matched(main, axis, node, flow):
            return axis
    return None


def _follows(x: fx.Node, axis: int, node: fx.Node, flow: Flow) -> bool:
    """Return whether a term has its channels along an axis of the output, or is constant there."""
    x_axis = _axis_of(x, axis, node, flow)
    return _is_matched(x, axis, node, flow) or x_axis < 0 or flow.shape(x)[x_axis] == 1


def _aligned(x: fx.Node, axis: int, node: fx.Node, flow: Flow) -> Tensor:
    """Constants of a term along the output's channels, (n,) or (1,)."""
    value = flow.channels[x].value
    if _is_matched(x, axis, node, flow):
        return value
    return torch.where((value == value[0]).all(), value[:1], torch.nan)


def _vanishing(node: fx.Node, flow: Flow) -> fx.Node | None:
    """A term of a sum that is constant wherever it is needed, and whose partner stays whole."""
    if not _is_sum(node) or len({*terms(node)}) < 2 or _has_table(node):
        return None
    axis, need = flow.channels[node].axis, flow.need[node]
    a, b = terms(node)
    for gone, rest in ((b, a), (a, b)):
        if gone is a and _does(node, "sub"):
            return None
        value = _aligned(gone, axis, node, flow).expand(len(need))
        is_whole = flow.shape(rest) == flow.shape(node) and _is_matched(rest, axis, node, flow)
        if is_whole and not bool(value[need].isnan().any()):
            return gone
    return None


def _pieces(node: fx.Node) -> list[fx.Node]:
    """The tensors that are joined; empty if the argument is no plain list."""
    pieces: Any = node.args[0] if node.args else None
    is_known = isinstance(pieces, list | tuple) and all(isinstance(x, fx.Node) for x in pieces)
    return list(pieces) if is_known else []


def _cat_dim(node: fx.Node, flow: Flow) -> int | None:
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
    return dim % len(flow.shape(node)) if isinstance(dim, int) else None


def _needs(node: fx.Node, flow: Flow) -> list[tuple[fx.Node, Tensor]]:
    """Each piece and what the output needs of it."""
    pieces, need = _pieces(node), flow.need[node]
    if flow.channels[node].axis != _cat_dim(node, flow):
        return [(x, need) for x in pieces]
    return list(zip(pieces, need.split([len(flow.channels[x]) for x in pieces]), strict=True))
