"""Layers whose outputs are weighted sums of their inputs: linear, convolution, transposed.

Weights are seen as W, (groups, outputs, inputs, taps), the last three per group; all but
convolutions have one group. With bias b, output j of a group is the constant

    b_j + Σ_c (Σ_t W_jct) v_c                                                             (C1)

if every input c that it reads (some W_jct ≠ 0) is a constant v_c. The same sum over the constant
inputs alone is what their removal adds to the bias. At the border of a zero-padded convolution,
and everywhere in a transposed one, some taps are missing, so there C1 holds for v_c = 0 only. But
whatever taps a position misses, it misses for all inputs alike: one constant input k can carry the
others of its group, by

    W_jkt <- Σ_c W_jct v_c / v_k                                                          (C2)

Groups stay equally large: each keeps as many outputs, and inputs, as the one that needs most.
"""

import torch
from torch import Tensor, fx, nn

from bayesieve.sieve.compaction.flow import (
    Channels,
    Coupling,
    Flow,
    Rewriter,
    Rewritten,
    Rule,
    evened,
    indices,
)

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Mixing(Rule):
    """Every output may read every input of its group."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """C1 for each output."""
        layer, axis, x = _layer_and_input(node, flow)
        taps, folded = _taps(layer), _foldable(layer, flow.values(x, axis))
        varies = ((taps != 0).any(-1) & folded.isnan()[:, None]).any(-1).flatten()
        value = _sums(taps, folded)
        if layer.bias is not None:
            value = value + layer.get_parameter("bias").detach().double()
        return Channels(axis, value.masked_fill(varies | ~value.isfinite(), torch.nan))

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """Inputs that vary and that a needed output reads."""
        layer, axis, x = _layer_and_input(node, flow)
        rows, columns = _kept(layer, flow.values(x, axis), flow.need[node])
        flow.request(x, axis, columns.flatten())
        flow.request_any(x)
        unread, constant = rows.flatten() & ~flow.need[node], ~flow.values(x, axis).isnan()
        flow.note_useless(node, unread, "unread channel", "groups have one size")
        if _loses_taps(layer):
            why = "zero padding makes constants vary at the border"
            if isinstance(layer, _TRANSPOSED):
                why = "not every position of a transposed convolution sees all taps"
            stuck = columns.flatten() & constant
            flow.note_useless(node, stuck, "constant input channel", why)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Drop rows and columns; constants that go enter the bias."""
        layer, axis, x = _layer_and_input(node, to.flow)
        values, need = to.flow.values(x, axis), to.flow.need[node]
        rows, columns = _kept(layer, values, need)
        if not bool(columns.any()):  # a tensor needs some width: one input stays, as it is
            columns[0, to.held(x, axis)[0]] = True
        taps = _taps(layer)
        shift = _sums(taps, _foldable(layer, values).masked_fill(columns, 0.0))
        if _loses_taps(layer):
            taps = _carried(taps, values.view_as(columns), columns)
        _shrink(layer, taps, rows, columns, shift)
        new = to.gather(x, axis, indices(columns.flatten()), node)
        return to.copy(node, {x: new}), indices(rows.flatten())

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """An output owns its row and bias, an input its columns.

        Groups stay equally large. So if there are many, a whole group goes, with its inputs and
        outputs; if there are few, one input, or one output, of each.
        """
        layer, axis, x = _layer_and_input(node, to.flow)
        inputs, outputs = to.along(x, axis, node), to.fresh(len(to.flow.channels[node]))
        to.labels[node] = outputs
        entries = to.entries.get(f"{node.target}.weight")
        if entries is None:
            for labels in (inputs, outputs):
                to.fix(labels, node, "has weights that are not trained")
            return
        taps = _split_groups(layer, entries)
        if not bool(to.movable[taps.flatten()].all()):
            to.fix(outputs, node, "has weights that are not to be pruned")
        to.own_entries(outputs, taps.flatten(0, 1))
        to.own(outputs, f"{node.target}.bias")
        groups, n_outputs, n_inputs = taps.shape[:3]
        if groups == 1 or groups < n_inputs:
            to.own_entries(inputs, taps.transpose(1, 2).flatten(0, 1))
        if groups == 1:
            return
        inputs, outputs = inputs.view(groups, n_inputs), outputs.view(groups, n_outputs)
        if groups >= n_inputs:
            together = torch.cat([inputs, outputs], 1)
            to.join(*together.unbind(1))
        else:
            to.join(*inputs)
            to.join(*outputs)


def _layer_and_input(node: fx.Node, flow: Flow) -> tuple[nn.Module, int, fx.Node]:
    """The layer, its channel axis, and what it reads."""
    (x,) = node.all_input_nodes
    layer = flow.graph.layer(node)
    return layer, len(flow.shape(x)) - 1 if isinstance(layer, nn.Linear) else 1, x


def _groups(layer: nn.Module) -> int:
    return 1 if isinstance(layer, nn.Linear) else int(layer.groups)  # type: ignore[arg-type]


def _taps(layer: nn.Module) -> Tensor:
    """Weights, (groups, outputs, inputs, taps)."""
    return _split_groups(layer, layer.get_parameter("weight").detach())


def _split_groups(layer: nn.Module, weight: Tensor) -> Tensor:
    """A tensor in the shape of the layer's weight, as (groups, outputs, inputs, taps)."""
    weight = weight.unflatten(0, (_groups(layer), -1))
    if isinstance(layer, _TRANSPOSED):
        weight = weight.transpose(1, 2)
    return weight.flatten(3) if weight.dim() > 3 else weight[..., None]


def _sums(taps: Tensor, values: Tensor) -> Tensor:
    """The sum of C1 without the bias, (all outputs,) float64; NaN counts as 0."""
    known = values.nan_to_num(0.0)
    return (taps.sum(-1, dtype=torch.float64) @ known[..., None]).flatten()


def _foldable(layer: nn.Module, values: Tensor) -> Tensor:
    """Constants that C1 may use, (groups, inputs), NaN elsewhere."""
    if _loses_taps(layer):
        values = values.masked_fill(values != 0, torch.nan)
    return values.unflatten(0, (_groups(layer), -1))


def _loses_taps(layer: nn.Module) -> bool:
    """Return whether some output positions see fewer taps than others."""
    if isinstance(layer, nn.Linear):
        return False
    if isinstance(layer, _TRANSPOSED):
        return True
    is_padded = any(layer._reversed_padding_repeated_twice)  # type: ignore[arg-type]
    return is_padded and layer.padding_mode == "zeros"


def _kept(layer: nn.Module, values: Tensor, need: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and inputs that stay, (groups, outputs) and (groups, inputs) bool."""
    groups = _groups(layer)
    need = need.unflatten(0, (groups, -1))
    reads = ((_taps(layer) != 0).any(-1) & need[..., None]).any(1)
    wanted = reads & _foldable(layer, values).isnan()
    constant = wanted & ~values.isnan().unflatten(0, (groups, -1))
    wanted = (wanted & ~constant) | _carriers(constant, values.view_as(constant))
    if groups == 1:
        return need, wanted
    used = need.any(1)
    return evened(need, used), evened(wanted, used)


def _carriers(constant: Tensor, values: Tensor) -> Tensor:
    """The largest constant of each group, the same shape as `constant`, (groups, inputs) bool."""
    size = values.abs().masked_fill(~constant, -1.0)
    first = torch.zeros_like(constant).scatter_(1, size.argmax(1, keepdim=True), True)
    return first & constant


def _carried(taps: Tensor, values: Tensor, columns: Tensor) -> Tensor:
    """C2: constants other than 0, of values (groups, inputs), move to one of those that stay."""
    constant = (values != 0) & ~values.isnan()
    chosen = _carriers(constant & columns, values)
    total = (taps.double() * values.where(constant, 0.0)[:, None, :, None]).sum(2, keepdim=True)
    share = values.where(chosen, torch.inf).reciprocal()  # 0 but for the chosen
    moved = (total * share[:, None, :, None]).to(taps.dtype)
    return torch.where((constant & chosen.any(1, keepdim=True))[:, None, :, None], moved, taps)


def _shrink(layer: nn.Module, taps: Tensor, rows: Tensor, columns: Tensor, shift: Tensor) -> None:
    """Keep some outputs and inputs of the taps and add to the bias, (all outputs,)."""
    weight = layer.get_parameter("weight")
    used = rows.any(1)
    n_groups, n_out, n_in = int(used.sum()), int(rows.sum()), int(columns.sum())
    taps = taps[used]
    taps = taps[rows[used]].unflatten(0, (n_groups, -1)).transpose(1, 2)
    taps = taps[columns[used]].unflatten(0, (n_groups, -1))  # (groups, inputs, outputs, taps)
    if not isinstance(layer, _TRANSPOSED):
        taps = taps.transpose(1, 2)
    small = taps.flatten(0, 1).reshape(-1, taps.shape[2], *weight.shape[2:])
    layer.weight = nn.Parameter(small.clone(), weight.requires_grad)
    kept, old = rows.flatten(), layer.bias
    if isinstance(old, Tensor):
        bias = (old.detach().double() + shift)[kept].to(old.dtype)
        layer.bias = nn.Parameter(bias, old.requires_grad)
    elif bool(shift[kept].any()):
        layer.bias = nn.Parameter(shift[kept].to(weight.dtype), weight.requires_grad)
    what = "features" if isinstance(layer, nn.Linear) else "channels"
    setattr(layer, f"in_{what}", n_in)
    setattr(layer, f"out_{what}", n_out)
    if not isinstance(layer, nn.Linear):
        layer.groups = n_groups  # type: ignore[assignment]
