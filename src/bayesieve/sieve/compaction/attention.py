"""Attention: a module of heads, `nn.MultiheadAttention` expressed by it, and its rule.

With weights a(t, s) that sum to 1 over s, head h returns Σ_s a(t, s) v(s). Whole heads go, and
single dimensions of all heads together. A value dimension that is the same at every position
passes through unchanged. The logits Σ_i q_i(t) k_i(s) lose nothing if q_i is 0, or if k_i is the
same at every position s: that adds a number to a whole row, and the softmax does not see it.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

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


class HeadAttention(nn.Module):
    """Scaled dot-product attention over heads side by side on the last axis.

    `nn.MultiheadAttention` ties the width of a head to the width of the model; once heads or
    single dimensions of a head are gone the two differ. It has no weights of its own: the
    projections around it are plain `nn.Linear` layers.

    Args:
        n_heads: number of heads; their widths follow from the inputs.
        scale: factor of the logits, 1 / √(width of a head before anything was removed).
        dropout: probability of dropping an attention weight in training.
        batch_first: whether inputs are (n, positions, width) or (positions, n, width).

    Example:
        >>> import torch
        >>> x = torch.tensor([[[0.0, 1.0], [0.0, 3.0]]])  # equal logits: the mean over positions
        >>> HeadAttention(1, 1.0)(torch.zeros(1, 2, 2), x, x)[0, 0]
        tensor([0., 2.])
    """

    def __init__(
        self, n_heads: int, scale: float, dropout: float = 0.0, batch_first: bool = True
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.scale = scale
        self.dropout = dropout
        self.batch_first = batch_first

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend: (n, q, h·a), (n, k, h·a), (n, k, h·b) -> (n, q, h·b)."""
        query, key, value = self._split(query), self._split(key), self._split(value)
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(query, key, value, dropout_p=p, scale=self.scale)
        out = out.transpose(1, 2).flatten(2)
        return out if self.batch_first else out.transpose(0, 1)

    def _split(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        """Text that `print` shows between the brackets."""
        return f"n_heads={self.n_heads}, scale={self.scale:.6g}"


class DropoutRate(nn.Module):
    """Probability of dropping an attention weight: in training only.

    Args:
        p: in training.

    Example:
        >>> DropoutRate(0.1).eval()()
        0.0
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self) -> float:
        """The probability."""
        return self.p if self.training else 0.0


def switch_attention_dropout_(traced: fx.GraphModule, rates: Sequence[float]) -> None:
    """Give the attention calls of a graph in eval mode what they drop in training, one rate each.

    The graph has `dropout_p=self.p if self.training else 0` as the value it had.
    """
    calls = [n for n in traced.graph.nodes if n.target is F.scaled_dot_product_attention]
    if len(calls) != len(rates):  # other calls in training
        return
    for node, rate in zip(calls, rates, strict=True):
        if rate and not any(node.args[4:5]):
            name = f"{node.name}_rate"
            traced.add_submodule(name, DropoutRate(rate).eval())
            with traced.graph.inserting_before(node):
                switch = traced.graph.call_module(name)
            switch.meta["nn_module_stack"] = node.meta.get("nn_module_stack")
            names = ("attn_mask", "dropout_p", "is_causal")
            named = dict(zip(names, node.args[3:], strict=False)) | node.kwargs
            node.args, node.kwargs = node.args[:3], {**named, "dropout_p": switch}
    traced.recompile()


def expand_attention(traced: fx.GraphModule) -> None:
    """Replace `nn.MultiheadAttention` by three projections, `HeadAttention` and an output layer.

    Only where it is called without masks and its attention weights are not used; elsewhere it
    stays as it is.
    """
    for node in list(traced.graph.nodes):
        if node.op != "call_module":
            continue
        module = traced.get_submodule(str(node.target))
        if type(module) is nn.MultiheadAttention and _is_plain_call(node, module):
            _expand(traced, node, module)
    traced.graph.lint()
    traced.recompile()


def _is_plain_call(node: fx.Node, module: nn.MultiheadAttention) -> bool:
    masks = [*node.args[3:4], *node.args[5:6]]
    masks += [node.kwargs.get(k) for k in ("key_padding_mask", "attn_mask", "is_causal")]
    only_output = all(u.args[1:] == (0,) and not u.kwargs for u in node.users)
    has_extras = module.bias_k is not None or module.add_zero_attn or module._forward_hooks
    called = sum(1 for n in node.graph.nodes if n.op == "call_module" and n.target == node.target)
    return only_output and not any(masks) and not has_extras and called == 1


def _expand(traced: fx.GraphModule, node: fx.Node, module: nn.MultiheadAttention) -> None:
    inputs = [*node.args[:3]]
    inputs += [node.kwargs[name] for name in ("query", "key", "value")[len(inputs) :]]
    names = [f"{node.target}.{leaf}" for leaf in ("q_proj", "k_proj", "v_proj")]
    scale = module.head_dim**-0.5
    heads = HeadAttention(module.num_heads, scale, module.dropout, module.batch_first)
    layers: dict[str, nn.Module] = dict(zip(names, _projections(module), strict=True))
    layers[f"{node.target}.attend"] = heads
    layers[f"{node.target}.out_proj"] = _linear(module.out_proj.weight, module.out_proj.bias)
    traced.set_submodule(str(node.target), nn.Module())
    for name, layer in layers.items():
        traced.set_submodule(name, layer.eval())
    stack = node.meta.get("nn_module_stack")
    with traced.graph.inserting_before(node):
        projected = [traced.graph.call_module(n, (x,)) for n, x in zip(names, inputs, strict=True)]
        mixed = traced.graph.call_module(f"{node.target}.attend", tuple(projected))
        out = traced.graph.call_module(f"{node.target}.out_proj", (mixed,))
    for new in (*projected, mixed, out):
        new.meta["nn_module_stack"] = stack
    for user in list(node.users):
        user.replace_all_uses_with(out)
        traced.graph.erase_node(user)
    traced.graph.erase_node(node)


def _projections(module: nn.MultiheadAttention) -> list[nn.Linear]:
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return [_linear(w, b) for w, b in zip(weights, biases, strict=True)]


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with these tensors, weight (outputs, inputs), on their device."""
    layer = nn.Linear(1, 1, bias=bias is not None, device="meta")
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return layer


class Attending(Rule):
    """`HeadAttention`: query, key, value -> one output per value dimension."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Constant values stay what they are."""
        axes = {flow.channels[x].axis for x in node.all_input_nodes}
        if axes != {2}:
            return "needs its features on the last of three axes"
        return Channels(2, flow.channels[_inputs(node)[2]].value)

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """Value dimensions as needed, and the logits of every head that is left."""
        query, key, value = _inputs(node)
        dims, logits = _kept(node, flow)
        flow.request(value, 2, dims)
        flow.request(query, 2, logits)
        flow.request(key, 2, logits)
        extra, why = dims & ~flow.need[node], "heads have one width"
        flow.note_useless(node, extra, "unread value dimension", why)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Fewer heads, of the width that is left."""
        query, key, value = _inputs(node)
        dims, logits = _kept(node, to.flow)
        inputs = ((query, logits), (key, logits), (value, dims))
        new = to.copy(node)
        new.args = tuple(to.gather(x, 2, indices(kept), node) for x, kept in inputs)
        module = cast(HeadAttention, to.flow.graph.layer(node))
        module.n_heads = int(dims.unflatten(0, (module.n_heads, -1)).any(1).sum())
        return new, indices(dims)

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """A head goes whole."""
        n_heads = cast(HeadAttention, to.flow.graph.layer(node)).n_heads
        inputs = [to.along(x, 2, node).unflatten(0, (n_heads, -1)) for x in _inputs(node)]
        to.join(*torch.cat(inputs, 1).unbind(1))
        to.labels[node] = to.labels[_inputs(node)[2]]


def _inputs(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node]:
    """Query, key and value."""
    return cast(tuple[fx.Node, fx.Node, fx.Node], node.args)


def _kept(node: fx.Node, flow: Flow) -> tuple[Tensor, Tensor]:
    """Value and logit dimensions that stay, bool, the same number in every head that stays."""
    query, key, _ = _inputs(node)
    n_heads = cast(HeadAttention, flow.graph.layer(node)).n_heads
    need = flow.need[node].unflatten(0, (n_heads, -1))
    heads = need.any(1)
    silent = (flow.channels[query].value == 0) | flow.channels[key].constant
    useful = (~silent).unflatten(0, (n_heads, -1))
    return evened(need, heads).flatten(), evened(useful, heads).flatten()
