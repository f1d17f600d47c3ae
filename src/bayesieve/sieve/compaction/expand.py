"""Large modules of torch as the small ones they are made of."""

import copy
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils import parametrize, prune

from bayesieve.sieve.compaction.modules import HeadAttention


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
    inputs = [node.args[i] if i < len(node.args) else node.kwargs[name] for i, name in _INPUTS]
    names = [f"{node.target}.{leaf}" for leaf in ("q_proj", "k_proj", "v_proj")]
    scale = module.head_dim**-0.5
    heads = HeadAttention(module.num_heads, scale, module.dropout, module.batch_first)
    parts: dict[str, nn.Module] = dict(zip(names, _projections(module), strict=True))
    parts[f"{node.target}.attend"] = heads
    parts[f"{node.target}.out_proj"] = linear(module.out_proj.weight, module.out_proj.bias)
    traced.set_submodule(str(node.target), nn.Module())
    for name, part in parts.items():
        traced.set_submodule(name, part.eval())
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


_INPUTS = ((0, "query"), (1, "key"), (2, "value"))


def _projections(module: nn.MultiheadAttention) -> list[nn.Linear]:
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return [linear(w, b) for w, b in zip(weights, biases, strict=True)]


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with given tensors, weight (outputs, inputs), on their device."""
    layer = nn.Linear(1, 1, bias=bias is not None, device="meta")
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return layer


class _EncoderLayer(nn.Module):
    """`nn.TransformerEncoderLayer` without its inference-only branch, which cannot be traced."""

    def __init__(self, layer: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.norm_first = layer.norm_first
        self.activation = layer.activation
        self.self_attn = layer.self_attn
        self.linear1, self.linear2 = layer.linear1, layer.linear2
        self.norm1, self.norm2 = layer.norm1, layer.norm2
        self.dropout, self.dropout1, self.dropout2 = layer.dropout, layer.dropout1, layer.dropout2

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
        if self.norm_first:
            x = src + self._attend(self.norm1(src), masks)
            return x + self._feed(self.norm2(x))
        x = self.norm1(src + self._attend(src, masks))
        return self.norm2(x + self._feed(x))

    def _attend(self, x: Tensor, masks: dict[str, Any]) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, need_weights=False, **masks)[0])

    def _feed(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class _Encoder(nn.Module):
    """`nn.TransformerEncoder` without its inference-only branch."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        super().__init__()
        self.layers = encoder.layers
        self.norm = encoder.norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


def plain_encoder(module: nn.Module) -> nn.Module:
    """Replace torch's transformer encoders, inside a module or itself, by traceable ones."""
    for name, child in list(module.named_children()):
        module._modules[name] = plain_encoder(child)
    training = module.training
    if type(module) is nn.TransformerEncoderLayer:
        module = _EncoderLayer(module)
    elif type(module) is nn.TransformerEncoder:
        module = _Encoder(module)
    module.training = training
    return module


def plain_copy(module: nn.Module) -> nn.Module:
    """A copy with parametrisations and the masks of `torch.nn.utils.prune` baked in."""
    memo: dict[int, object] = {}
    for owner in module.modules():  # such a mask leaves a computed tensor, which cannot be copied
        for value in vars(owner).values():
            if isinstance(value, Tensor):
                memo[id(value)] = value.detach().clone()
    module = copy.deepcopy(module, memo)
    for owner in list(module.modules()):
        if parametrize.is_parametrized(owner):
            _bake(owner)
        for hook in list(owner._forward_pre_hooks.values()):
            if isinstance(hook, prune.BasePruningMethod):
                prune.remove(owner, hook._tensor_name)
    return module


def _bake(owner: nn.Module) -> None:
    """Make the values of parametrised tensors parameters.

    Not `remove_parametrizations`: it changes the class, which a copy shares with the original.
    """
    values = {leaf: getattr(owner, leaf) for leaf in owner.parametrizations}  # type: ignore[union-attr]
    del owner.parametrizations
    owner.__class__ = type(owner).__bases__[0]
    for leaf, value in values.items():
        owner.register_parameter(leaf, nn.Parameter(value.detach().clone()))
