"""From a posterior to a sparse model."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.inputs import Input, call
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Posterior, Samples, SparseModel, posterior_of
from bayesieve.core.workspace import statistics_names
from bayesieve.sieve.ranking import Scope, Score, ScoreName, keep_at_most
from bayesieve.sieve.units import units_of
from bayesieve.sieve.weight_rules import Rule, keep_zeros


class LayerCount(NamedTuple):
    """The number of entries of one named tensor that are kept."""

    name: str
    kept: int
    total: int


def prune(posterior: Posterior | SparseModel, rule: Rule) -> SparseModel:
    """Set the weights a rule drops to exactly 0, mean and spread.

    Args:
        posterior: what an engine has learned; of a sparse model only kept weights are considered.
        rule: `keep_zeros`, `keep_probable`, `keep_scored`, `keep_n_of_m`, or any function of a
            posterior and the mask in force (or None) that returns a mask, (d,) bool.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> sparse = prune(small_posterior(), keep_zeros(0.5, score="magnitude"))
        >>> sparse.zeros, round(sparse.removed, 3)  # 8 of 16 parameters, 8 of 12 weights
        (0.5, 0.667)
    """
    if not callable(rule):
        raise TypeError(f"prune: rule must be one such as keep_zeros(0.9), got {rule!r}.")
    if isinstance(posterior, SparseModel):
        keep = rule(posterior.posterior, posterior.keep) & posterior.keep
        whole = posterior.posterior
    else:
        whole = posterior_of(posterior)
        keep = rule(whole, None)
    if keep.dtype != torch.bool or keep.shape != whole.mean.shape:
        raise ValueError(
            f"prune: a rule must return a bool tensor of shape {tuple(whole.mean.shape)}, "
            f"got {keep.dtype} of shape {tuple(keep.shape)}."
        )
    return SparseModel(whole.masked(keep), keep)


def sparsity_curve(
    posterior: Posterior,
    zeros: Sequence[float],
    *,
    score: ScoreName | Score = "snr",
    scope: Scope = "global",
    allow_empty_layers: bool = False,
) -> Tensor:
    """The masks of `keep_zeros` at many sparsities, from one sort.

    Args:
        posterior: what an engine has learned.
        zeros: fractions of all parameters to be 0, n of them in any order.
        score: see `keep_zeros`.
        scope: see `keep_zeros`.
        allow_empty_layers: see `keep_zeros`.

    Returns:
        (n, d) bool, True = kept. `posterior.mean * masks` are the n weight vectors of the curve,
        which `Network.outputs` evaluates together.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> sparsity_curve(small_posterior(), [0.0, 0.25, 0.5]).sum(1)
        tensor([16, 12,  8])
    """
    check_fraction("sparsity_curve", zeros=tuple(zeros))
    rule = keep_zeros(0.0, score, scope, allow_empty_layers)
    priorities, layout = rule.priorities(posterior), posterior.layout
    units = units_of(posterior.network)
    masks = priorities.new_zeros((len(zeros), layout.size), dtype=torch.bool)
    for mask, fraction in zip(masks, zeros, strict=True):
        mask.copy_(keep_at_most(priorities, round((1 - fraction) * layout.size), units))
    return masks


def kept_per_layer(sparse: SparseModel) -> list[LayerCount]:
    """Kept and all entries of every tensor, in the order of w.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> kept_per_layer(prune(small_posterior(), keep_zeros(0.5)))[0]
        LayerCount(name='0.weight', kept=1, total=9)
    """
    layout = sparse.layout
    counts = torch.stack([sparse.keep[layout.slices[name]].sum() for name in layout.names])
    rows = zip(layout.names, counts.tolist(), layout.sizes, strict=True)
    return [LayerCount(*row) for row in rows]


def reestimate_batchnorm(sparse: SparseModel, x: Input, batch_size: int = 256) -> SparseModel:
    """Replace BatchNorm running statistics by averages over one pass with the pruned weights.

    Pruning shifts activations, so statistics gathered before it no longer fit. Each batch is
    normalised by itself; its mean and variance enter the average with equal weight. Draws with
    statistics of their own get new ones too. Networks without statistics come back unchanged.

    Args:
        sparse: the pruned network.
        x: training inputs, (n, ...), in any order: they are shuffled, then cut into batches of
            nearly equal length.
        batch_size: largest number of inputs in a batch.
    """
    check_positive("reestimate_batchnorm", batch_size=batch_size)
    whole, network = sparse.posterior, sparse.network
    if not statistics_names(network):
        return sparse
    changes: dict[str, Any] = {"buffers": _statistics(sparse.to_module(), x, batch_size)}
    if isinstance(whole, Samples) and whole.draw_buffers:  # those of every draw as well
        modules = (materialise(network, row, whole.buffers) for row in whole.draws)
        rows = [_statistics(module, x, batch_size) for module in modules]
        names = whole.draw_buffers
        changes["draw_buffers"] = {n: torch.stack([row[n] for row in rows]) for n in names}
    # Every posterior class is a dataclass with these fields.
    return SparseModel(dataclasses.replace(cast(Any, whole), **changes), sparse.keep)


def _statistics(module: nn.Module, x: Input, batch_size: int) -> dict[str, Tensor]:
    """The buffers of a module in eval mode after one pass, statistics being plain averages."""
    for norm in module.modules():
        if isinstance(norm, _BatchNorm) and norm.track_running_stats:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over batches
            norm.train()
    device = next(module.parameters()).device
    # Image folders come class by class, and a batch of one class has statistics of its own.
    order = torch.randperm(len(x), generator=Generator().manual_seed(0)).to(x.device)
    with torch.no_grad():
        for batch in order.tensor_split(-(-len(x) // batch_size)):
            call(module, x[batch].to(device))
    return {name: value.detach().clone() for name, value in module.named_buffers()}
