"""Normalisation over channels: layer, group and RMS norm with constant inputs left out.

They divide by a statistic of all D inputs. Of those let D - k vary, and let the k constants have
sum s and sum of squares q. Then with the D - k inputs x alone

    mean = (Σ x + s) / D,     var = (Σ (x - mean)² + q - s² / k + k (mean - s / k)²) / D  (C4)
    mean of squares = (Σ x² + q) / D                                                      (C5)

C4 is `FoldedLayerNorm`; `FoldedGroupNorm` is C4 in each group, over positions too. C5 is an RMS
norm of D - k inputs again, whose scale is √(D / (D - k)) times as large and whose eps is
(eps D + q) / (D - k). A constant leaves only if no layer reads what becomes of it.

A layer norm also loses channels that are the same for every example but not at every position,
such as those of a table of positions that is not trained: s and q then depend on the position.
"""

import math
from collections.abc import Callable
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
    indices,
)


class FoldedLayerNorm(nn.Module):
    """Layer normalisation over features of which some are known and not given.

    Args:
        n_features: number of features that are given, on the last axis.
        n_constant: number of those that are not.
        eps: added to the variance.
        bias: whether it has a shift besides the scale.
        zero: whether those that are not given are all 0; otherwise `rest_` says what they are.
        positions: sizes of the axes before the last, if what is not given depends on them.
        dtype: of its numbers.

    Example:
        >>> x = torch.tensor([[4.0, 8.0, 0.0, 0.0]])
        >>> torch.allclose(FoldedLayerNorm(2, n_constant=2)(x[:, :2]), nn.LayerNorm(4)(x)[:, :2])
        True
    """

    average: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(
        self,
        n_features: int,
        n_constant: int = 0,
        eps: float = 1e-5,
        bias: bool = True,
        zero: bool = True,
        positions: tuple[int, ...] = (),
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.n_features, self.n_constant = n_features, n_constant
        self.eps, self.zero, self.positions = eps, zero, positions
        self.weight = nn.Parameter(torch.ones(n_features, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(n_features, dtype=dtype)) if bias else None
        n = n_features + n_constant
        self.share = n_constant / n
        self.register_buffer("average", torch.full((1, n_features), 1 / n, dtype=dtype))
        self.register_buffer("spread", torch.full((*positions, 1), eps, dtype=dtype))
        if not zero:
            self.register_buffer("centre", torch.zeros((*positions, 1), dtype=dtype))

    def rest_(self, mean: Tensor, var: Tensor) -> None:
        """Set mean and variance of the features that are not given, (*positions, 1) each."""
        self.centre.copy_(mean)
        self.spread.copy_(self.eps + self.share * var)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis, (..., n_features)."""
        # Products with a row of 1 / n: small inputs pay for calls, and `mean` and `var` cost more.
        mean = F.linear(x, self.average)
        if self.zero:
            centred, apart = x - mean, mean
            var = F.linear(centred * centred, self.average, self.spread)
        else:
            mean = torch.add(mean, self.centre, alpha=self.share)
            centred, apart = x - mean, mean - self.centre
            var = F.linear(centred * centred, self.average) + self.spread
        out = centred * torch.addcmul(var, apart, apart, value=self.share).rsqrt()
        if self.bias is None:
            return out * self.weight
        return torch.addcmul(self.bias, out, self.weight)

    def extra_repr(self) -> str:
        """Text that `print` shows between the brackets."""
        return f"{self.n_features}, n_constant={self.n_constant}, eps={self.eps:g}"


class FoldedGroupNorm(nn.Module):
    """Group normalisation over channels of which some are constants and not given.

    Args:
        sizes: channels of each group that are given, one group after the other on axis 1.
        n_constant: number of those of each group that are not.
        totals: their sums.
        squares: the sums of their squares.
        eps: added to the variance.

    Example:
        >>> x = torch.tensor([[4.0, 8.0, 0.0, 2.0, 5.0, 1.0]])  # 3 and 3; the third is left out
        >>> small = FoldedGroupNorm((2, 3), (1, 0), (0.0, 0.0), (0.0, 0.0))
        >>> torch.allclose(small(x[:, [0, 1, 3, 4, 5]]), nn.GroupNorm(2, 6)(x)[:, [0, 1, 3, 4, 5]])
        True
    """

    groups: Tensor
    constants: Tensor

    def __init__(
        self,
        sizes: tuple[int, ...],
        n_constant: tuple[int, ...],
        totals: tuple[float, ...],
        squares: tuple[float, ...],
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.sizes, self.n_constant, self.totals, self.squares = sizes, n_constant, totals, squares
        self.eps = eps
        self.num_channels = sum(sizes)
        self.weight = nn.Parameter(torch.ones(self.num_channels))
        self.bias = nn.Parameter(torch.zeros(self.num_channels))
        member = [
            [float(own == group) for group in range(len(sizes))]
            for own, size in enumerate(sizes)
            for _ in range(size)
        ]
        self.register_buffer("groups", torch.tensor(member))
        self.register_buffer("constants", torch.tensor([n_constant, totals, squares]).float())

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the channels of each group with their positions, (n, channels, ...)."""
        groups, (n_constant, totals, squares) = self.groups, self.constants
        flat = x.flatten(2) if x.dim() > 2 else x[..., None]
        n_positions = flat.shape[2]
        n = n_positions * (groups.sum(0) + n_constant)
        mean = (flat.sum(2) @ groups + n_positions * totals) / n
        centred = flat - (mean @ groups.T)[..., None]
        spread = squares - 2 * totals * mean + n_constant * mean.square()
        var = (centred.square().sum(2) @ groups + n_positions * spread) / n
        scale = torch.rsqrt(var + self.eps) @ groups.T * self.weight
        return (centred * scale[..., None] + self.bias[:, None]).reshape(x.shape)

    def extra_repr(self) -> str:
        """Text that `print` shows between the brackets."""
        return f"{self.num_channels}, groups={len(self.sizes)}, eps={self.eps:g}"


FOLDED = (FoldedLayerNorm, FoldedGroupNorm)


class Normed(Rule):
    """`nn.LayerNorm`, `nn.GroupNorm`, `nn.RMSNorm` or a folded one over the channels."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """A channel without scale is its shift; RMS norm leaves 0 at 0."""
        layer, (x,) = flow.graph.layer(node), flow.graph.tensor_inputs(node)
        known, shape = flow.channels[x], flow.shape(x)
        axis = 1 if isinstance(layer, nn.GroupNorm | FoldedGroupNorm) else len(shape) - 1
        if known.axis != axis or _n_features(layer) != shape[axis]:
            return "normalises other axes than the channels"
        scale, shift = _numbers(layer, len(known))
        silent = scale == 0
        if isinstance(layer, nn.RMSNorm):
            silent = silent | (known.value == 0)
        return Channels(known.axis, torch.where(silent, shift, torch.nan))

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """All that vary, and constants of which somebody reads what becomes of them."""
        (x,) = flow.graph.tensor_inputs(node)
        kept = self._kept(node, flow)
        flow.request(x, flow.channels[x].axis, kept)
        stuck = kept & flow.channels[x].constant
        keeps = f"({flow.graph.spelling(node)}) reads all channels together: it keeps"
        why = "a layer reads what becomes of them"
        flow.note_useless(node, stuck, "constant channel", why, keeps)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Leave out constants, in the statistics too."""
        (x,) = to.flow.graph.tensor_inputs(node)
        known, kept = to.flow.channels[x], self._kept(node, to.flow)
        new = to.copy(node, {x: to.gather(x, known.axis, indices(kept), node)})
        if not bool(kept.all()):
            layer = to.flow.graph.layer(node)
            gone = known.value[~kept]
            if bool(gone.isnan().any()):
                gone = to.flow.pattern(x)[..., ~kept]
            fold = _FOLDS.get(type(layer), _folded)
            to.flow.graph.module.set_submodule(str(node.target), fold(layer, kept, gone))
        return new, indices(kept)

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """A channel's scale and shift go with it."""
        (x,) = to.flow.graph.tensor_inputs(node)
        to.labels[node] = to.labels[x]
        for leaf in ("weight", "bias"):
            to.own(to.labels[node], f"{node.target}.{leaf}")

    def _kept(self, node: fx.Node, flow: Flow) -> Tensor:
        (x,) = flow.graph.tensor_inputs(node)
        known = flow.channels[x].constant
        if isinstance(flow.graph.layer(node), nn.LayerNorm | FoldedLayerNorm):
            known = flow.fixed[x]
        kept = ~known | flow.need[node]  # of the known those that a reader cannot fold
        if not bool(kept.any()):
            kept[0] = True  # a tensor needs some width
        return kept


def _n_features(layer: nn.Module) -> int:
    if isinstance(layer, FoldedLayerNorm):
        return layer.n_features
    if isinstance(layer, nn.GroupNorm | FoldedGroupNorm):
        return layer.num_channels
    shape = cast(tuple[int, ...], layer.normalized_shape)
    return shape[0] if len(shape) == 1 else -1


def _numbers(layer: nn.Module, n: int) -> tuple[Tensor, Tensor]:
    """Scale and shift, (n,) float64."""
    scale, shift = (getattr(layer, leaf, None) for leaf in ("weight", "bias"))
    one = torch.ones(n, dtype=torch.float64)
    return (
        one if scale is None else scale.detach().double(),
        torch.zeros_like(one) if shift is None else shift.detach().double(),
    )


def _folded(layer: nn.Module, kept: Tensor, gone: Tensor) -> FoldedLayerNorm:
    """C4; what is gone is (k,), or (*positions, k)."""
    assert isinstance(layer, nn.LayerNorm | FoldedLayerNorm)
    old = layer if isinstance(layer, FoldedLayerNorm) else FoldedLayerNorm(len(kept), 0, layer.eps)
    k, before = gone.shape[-1], old.n_constant
    mean, squares = gone.sum(-1, True), gone.square().sum(-1, True)
    if not old.zero:
        centre = old.centre.double()
        var = (old.spread.double() - old.eps) / old.share
        mean, squares = mean + before * centre, squares + before * (var + centre.square())
    mean, squares = mean / (k + before), squares / (k + before)
    new = FoldedLayerNorm(
        int(kept.sum()), k + before, layer.eps, layer.bias is not None, not bool(squares.any()),
        tuple(mean.shape[:-1]), None if layer.weight is None else layer.weight.dtype,
    )  # fmt: skip
    if not new.zero:
        new.rest_(mean, (squares - mean.square()).clamp(min=0))
    scale, shift = _numbers(layer, len(kept))
    _fill(new, layer, scale[kept], shift[kept])
    return new


def _folded_groups(layer: nn.Module, kept: Tensor, gone: Tensor) -> FoldedGroupNorm:
    """C4 in each group; a group of which nothing is left goes."""
    assert isinstance(layer, nn.GroupNorm | FoldedGroupNorm)
    if isinstance(layer, FoldedGroupNorm):
        sizes, known = torch.tensor(layer.sizes), (layer.n_constant, layer.totals, layer.squares)
    else:
        sizes = torch.full((layer.num_groups,), layer.num_channels // layer.num_groups)
        known = ((0,) * layer.num_groups,) * 3
    place = torch.arange(len(sizes)).repeat_interleave(sizes)
    added = torch.stack([torch.ones_like(gone), gone, gone.square()])
    constants = torch.tensor(known, dtype=torch.float64).index_add_(1, place[~kept], added)
    left = torch.zeros_like(sizes).index_add_(0, place[kept], torch.ones_like(place[kept]))
    used = left > 0
    n_constant, totals, squares = map(tuple, constants[:, used].tolist())
    new = FoldedGroupNorm(
        tuple(left[used].tolist()), tuple(map(int, n_constant)), totals, squares, layer.eps
    )
    scale, shift = _numbers(layer, len(kept))
    _fill(new, layer, scale[kept], shift[kept])
    return new


def _folded_rms(layer: nn.Module, kept: Tensor, gone: Tensor) -> nn.RMSNorm:
    """C5."""
    assert isinstance(layer, nn.RMSNorm)
    n, n_kept = len(kept), int(kept.sum())
    dtype = torch.get_default_dtype() if layer.weight is None else layer.weight.dtype
    eps = torch.finfo(dtype).eps if layer.eps is None else layer.eps
    new = nn.RMSNorm(n_kept, (eps * n + float(gone.square().sum())) / n_kept)
    scale, _ = _numbers(layer, n)
    _fill(new, layer, scale[kept] * math.sqrt(n / n_kept), None)
    return new


def _fill(new: nn.Module, old: nn.Module, scale: Tensor, shift: Tensor | None) -> None:
    """Give a layer its numbers, trainable if those of the old layer are."""
    for leaf, value in (("weight", scale), ("bias", shift)):
        before = getattr(old, leaf, None)
        if value is not None and getattr(new, leaf, None) is not None:
            dtype = torch.get_default_dtype() if before is None else before.dtype
            trained = before is None or before.requires_grad
            setattr(new, leaf, nn.Parameter(value.to(dtype), requires_grad=trained))
    new.train(old.training)


_FOLDS: dict[type, Callable[[nn.Module, Tensor, Tensor], nn.Module]] = {
    nn.RMSNorm: _folded_rms,
    nn.GroupNorm: _folded_groups,
    FoldedGroupNorm: _folded_groups,
}
