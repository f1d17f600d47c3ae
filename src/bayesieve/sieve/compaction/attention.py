"""Attention over heads: whole heads go, and single dimensions of all heads together.

With weights a(t, s) that sum to 1 over s, head h returns Σ_s a(t, s) v(s). A value dimension that
is the same at every position passes through unchanged. The logits Σ_i q_i(t) k_i(s) lose nothing
if q_i is 0, or if k_i is the same at every position s: that adds a number to a whole row, and the
softmax does not see it.
"""

from torch import Tensor, fx

from bayesieve.sieve.compaction.channels import Channels, evened
from bayesieve.sieve.compaction.flow import Flow, Rewriting, Rewritten, indices, plural
from bayesieve.sieve.compaction.modules import HeadAttention


class Attending:
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
        n_extra = int((dims & ~flow.need[node]).sum())
        if n_extra:
            flow.note(
                node,
                f"keeps {plural(n_extra, 'unread value dimension')} alive: heads have one width",
            )

    def rewrite(self, node: fx.Node, to: Rewriting) -> Rewritten:
        """Fewer heads, of the width that is left."""
        query, key, value = _inputs(node)
        dims, logits = _kept(node, to.flow)
        inputs = ((query, logits), (key, logits), (value, dims))
        new = to.copy(node)
        new.args = tuple(to.gather(x, 2, indices(kept), node) for x, kept in inputs)
        module = _module(node, to.flow)
        module.n_heads = int(dims.unflatten(0, (module.n_heads, -1)).any(1).sum())
        return Rewritten(new, indices(dims))


def _inputs(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node]:
    query, key, value = node.args
    assert isinstance(query, fx.Node)
    assert isinstance(key, fx.Node)
    assert isinstance(value, fx.Node)
    return query, key, value


def _module(node: fx.Node, flow: Flow) -> HeadAttention:
    module = flow.traced.layer(node)
    assert isinstance(module, HeadAttention)
    return module


def _kept(node: fx.Node, flow: Flow) -> tuple[Tensor, Tensor]:
    """Value and logit dimensions that stay, bool, the same number in every head that stays."""
    query, key, _ = _inputs(node)
    n_heads = _module(node, flow).n_heads
    need = flow.need[node].unflatten(0, (n_heads, -1))
    heads = need.any(1)
    silent = (flow.channels[query].value == 0) | flow.channels[key].constant
    useful = (~silent).unflatten(0, (n_heads, -1))
    return evened(need, heads).flatten(), evened(useful, heads).flatten()
