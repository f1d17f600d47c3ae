"""Scores that rank weights, and the order in which weights go.

A score is a pure function of a posterior, larger = keep. It ranks weights; it has no unit that a
threshold could share across scores, except `evidence_score`, whose zero is the point where the data
are indifferent. Weights that are pruned already (mean and std exactly 0) score lowest, point
parameters highest or by size.

In the order each entry of w gets a priority: n_sparse + 1 for what always stays, n_sparse for the
best prunable weight down to 1 for the worst, and 0 for what is gone. Cleaning priorities instead of
masks (see `Units.clean`) makes every threshold of them a cleaned mask, so one sort yields the
whole curve from dense to empty.

References: [Dickey] for the evidence, [Friston] for its reading as Bayesian model reduction.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from bayesieve.checks import check_choice
from bayesieve.core.layout import Layout, Role
from bayesieve.core.posterior import Posterior, Samples, present_entries
from bayesieve.sieve.units import Units

Score = Callable[[Posterior], Tensor]
ScoreName = Literal["inclusion", "snr", "evidence", "magnitude", "second-moment"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def std_of(
    posterior: Posterior, who: str = "prune", otherwise: str = "score='magnitude'"
) -> Tensor:
    """Posterior standard deviation of each weight, shape (d,); over draws for `Samples`.

    Args:
        posterior: any.
        who: the caller, for errors.
        otherwise: the remedy that errors name.
    """
    if isinstance(posterior, Samples):
        if len(posterior.draws) == 1:
            raise ValueError(
                f"{who}: a single draw (MAP) has no standard deviation. Use {otherwise}, or an "
                "engine with a spread: SBNN, FlatVI."
            )
        return posterior.draws.std(0)
    std: Tensor | None = getattr(posterior, "std", None)
    if std is None:
        raise TypeError(f"{who}: {type(posterior).__name__} has no std. Use {otherwise}.")
    return std


def inclusion_score(posterior: Posterior) -> Tensor:
    """Log-odds of inclusion, shape (d,); the probability itself would round to ties at 1.

    Example:
        >>> from bayesieve.sieve.examples import three_weights
        >>> inclusion_score(three_weights(logit_inclusion=[0.0, 40.0, 50.0]))
        tensor([ 0., 40., 50.])
    """
    logit: Tensor | None = getattr(posterior, "logit_inclusion", None)
    if logit is None and posterior.inclusion is not None:
        logit = posterior.inclusion.logit()
    if logit is None:
        raise ValueError(
            f"prune: this posterior has no inclusion probabilities ({_describe(posterior)}). Rank "
            "by score='magnitude' (`zeros`), or take an engine with a sparse prior: SBNN, "
            "SGLD, SGHMC, TDAMP, or FlatVI or MAP with SpikeSlab."
        )
    return logit


def snr_score(posterior: Posterior) -> Tensor:
    """|mean| / std, shape (d,); infinite for point parameters that are not 0.

    Example:
        >>> from bayesieve.sieve.examples import three_weights
        >>> snr_score(three_weights(mean=[1.0, -2.0, 0.0], std=[0.5, 0.5, 0.0]))
        tensor([2., 4., 0.])
    """
    size, std = posterior.mean.abs(), std_of(posterior)
    at_zero_std = torch.where(size > 0, torch.inf, 0.0).to(size.dtype)
    return torch.where(std > 0, size / std, at_zero_std)


def evidence_score(posterior: Posterior) -> Tensor:
    """Log Bayes factor for keeping each weight against fixing it at 0, in nats, shape (d,).

    Savage-Dickey ratio: log p(D) - log p(D | w = 0) = log p(0) - log q(0), p the prior and q the
    posterior of that weight. Under N(0, τ²) it is log(s / τ) + m² / (2 s²), minus the change of
    free energy of Bayesian model reduction. For `SpikeSlab` p(0) is the density of the mixture.

    Example:
        >>> from bayesieve.core.priors import Normal
        >>> from bayesieve.sieve.examples import three_weights
        >>> q = three_weights(mean=[0.0, 1.0, 3.0], std=[1.0, 1.0, 1.0], prior=Normal(1.0))
        >>> evidence_score(q)  # m² / 2 when the data leave the prior's width
        tensor([0.0000, 0.5000, 4.5000])
    """
    prior = posterior.prior
    if prior is None:
        raise ValueError(
            "prune: the evidence needs a normal posterior and its prior, got "
            f"{_describe(posterior)}. Use score='magnitude', or an engine that has them: SBNN, "
            "FlatVI."
        )
    mean, std = posterior.mean, std_of(posterior)
    log_prior = prior.log_prob(mean.new_zeros(())).squeeze()
    log_posterior = -0.5 * (mean / std).square() - std.log() - _HALF_LOG_2PI
    at_zero_std = torch.where(mean == 0, -torch.inf, torch.inf).to(mean.dtype)
    score = torch.where(std > 0, log_prior - log_posterior, at_zero_std)
    score[posterior.layout.n_bayesian :] = torch.inf  # points have no prior to return to
    return score


def magnitude_score(posterior: Posterior) -> Tensor:
    """|mean|, shape (d,).

    Example:
        >>> from bayesieve.sieve.examples import three_weights
        >>> magnitude_score(three_weights(mean=[1.0, -2.0, 0.0]))
        tensor([1., 2., 0.])
    """
    return posterior.mean.abs()


def second_moment_score(posterior: Posterior) -> Tensor:
    """mean² + std², shape (d,): the order of inclusion under one spike-and-slab prior.

    Example:
        >>> from bayesieve.sieve.examples import three_weights
        >>> second_moment_score(three_weights(mean=[1.0, -2.0, 0.0], std=[1.0, 1.0, 0.0]))
        tensor([2., 5., 0.])
    """
    return posterior.mean.square() + std_of(posterior).square()


SCORES: Mapping[str, Score] = MappingProxyType(
    {
        "inclusion": inclusion_score,
        "snr": snr_score,
        "evidence": evidence_score,
        "magnitude": magnitude_score,
        "second-moment": second_moment_score,
    }
)


def check_score(who: str, score: ScoreName | Score) -> None:
    """Raise unless `score` is a callable or one of the names in `SCORES`."""
    if not callable(score):
        check_choice(who, "score", score, SCORES)


def score_of(posterior: Posterior, score: ScoreName | Score) -> Tensor:
    """Evaluate a score given by name or as a function, shape (d,); NaN raises."""
    values = SCORES[score](posterior) if isinstance(score, str) else score(posterior)
    if values.shape != posterior.mean.shape:
        raise ValueError(
            f"prune: a score must have shape {tuple(posterior.mean.shape)}, "
            f"got {tuple(values.shape)}."
        )
    wrong = values.isnan()
    if bool(wrong.any()):
        slices, index = posterior.layout.slices, int(wrong.nonzero()[0])
        name = next(name for name, part in slices.items() if part.start <= index < part.stop)
        raise ValueError(
            f"prune: the score of {int(wrong.sum())} weights is NaN, first in {name!r}. Training "
            "diverged: lower its learning rate."
        )
    return values


def _describe(posterior: Posterior) -> str:
    kind = type(posterior).__name__
    if posterior.n_kept is not None:
        return f"{kind} of {posterior.n_kept} draws"
    prior = posterior.prior
    return f"{kind} without a prior" if prior is None else f"{kind}, {type(prior).__name__} prior"


Scope = Literal["global", "layer"]
_PART = 1 << 22  # entries at a time, of passes that need more room than they leave
_LOW = 0xFFFFFFFF
_COARSE = 12  # bits


def rank(
    posterior: Posterior, score: ScoreName | Score, allowed: Tensor, scope: Scope = "global"
) -> Tensor:
    """Order in which entries go, before any cleaning.

    Args:
        posterior: what an engine has learned.
        score: larger = goes later; ties by |mean|, then by index.
        allowed: (d,) bool, what is not gone yet.
        scope: "layer" ranks by the place inside each tensor, as a fraction of its size.

    Returns:
        Priorities, (d,) whole numbers.
    """
    layout = posterior.layout
    values = score_of(posterior, score)[layout.sparse]
    values = torch.where(allowed[layout.sparse], values, -torch.inf)
    mean = posterior.mean[layout.sparse]
    if scope == "layer":
        values = values.double()
        for part, _ in prunable_tensors(layout):
            values[part] = _ranked(values[part], mean[part]).double() / (part.stop - part.start)
    ranks = _ranked(values, mean)
    fixed = ranks.new_full((layout.size - layout.n_sparse,), layout.n_sparse + 1)
    return torch.cat([ranks, fixed]) * allowed


def _ranked(values: Tensor, mean: Tensor) -> Tensor:
    """Ranks 1 to n of `values`, which are lost; ties by |mean|, then by lower index first."""
    n = len(values)
    if values.dtype == mean.dtype == torch.float32 and n < 2**31 - 2:
        return _ranked_by_keys(values, mean)
    order = mean.abs().argsort(descending=True, stable=True)
    order = order[values[order].argsort(descending=True, stable=True)]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(n, 0, -1, device=order.device)
    return ranks


def _ranked_by_keys(values: Tensor, mean: Tensor) -> Tensor:
    """The same from two sorts of whole numbers, 32 bits of a value above 32 of a place.

    On a CPU they are sorted where they lie, and the ranks are written where the values were.
    Stable sorts of indices take half as long again, and more memory than all else in pruning.
    """
    n, device = len(values), values.device
    parts = [slice(i, min(i + _PART, n)) for i in range(0, n, _PART)]
    keys = torch.empty(n, dtype=torch.int64, device=device)
    for part in parts:
        later_first = torch.arange(n - 1 - part.start, n - 1 - part.stop, -1, device=device)
        keys[part] = _key(mean[part].abs()) << 32 | later_first
    keys = _sorted(keys)
    order = torch.empty(n, dtype=torch.int32, device=device)  # from the least |mean|
    for part in parts:
        order[part] = n - 1 - (keys[part] & _LOW)
        place = torch.arange(part.start, part.stop, device=device)
        keys[part] = _key(values[order[part]]) << 32 | place
    keys, ranks = _sorted(keys), values.view(torch.int32)
    for part in parts:
        rank = torch.arange(part.start + 1, part.stop + 1, dtype=torch.int32, device=device)
        ranks[order[keys[part] & _LOW]] = rank
    return ranks


def _key(values: Tensor) -> Tensor:
    """Whole numbers in the order of float32 numbers, int64; -0 is 0."""
    bits = (values + 0.0).view(torch.int32)
    return (bits ^ (bits >> 31 & 0x7FFFFFFF)).long()


def _sorted(keys: Tensor) -> Tensor:
    """The numbers in order; on a CPU in their own memory."""
    if not keys.is_cpu:
        return keys.sort().values
    keys.numpy().sort()
    return keys


def keep_at_most(priorities: Tensor, target: int, units: Units) -> Tensor:
    """Keep as many of the highest priorities as fit into `target` after cleaning, (d,) bool.

    The weight that brings a unit back to life brings its bias and all incoming weights of higher
    priority. Where that group is too large, the weight and the bias come first and the others
    follow in their own order, layer by layer.

    Args:
        priorities: (d,) integers from 0 to n_sparse + 1, not cleaned.
        target: number of entries that may stay.
        units: of the network.
    """
    layout = units.layout
    top = layout.n_sparse + 1
    leaving = max(layout.size - target, 0)
    keep = None
    for _ in range(len(units.links) + 1):
        cleaned = units.clean(priorities)
        cut = _lowest_above(cleaned, leaving)
        if cut == top:
            if keep is None:
                least = int((cleaned == top).sum())
                share = least / layout.size
                raise ValueError(
                    f"keep_zeros: {target} of {layout.size} parameters may stay, but {least} "
                    "always do (biases of live units, point parameters and, unless "
                    "allow_empty_layers, a path of weights). The smallest fraction that can be "
                    f"reached is {share:.6g} (zeros {1 - share:.6g})."
                )
            return keep
        keep = cleaned > cut
        if cut == 0 or int(keep.sum()) == target:
            return keep
        group = torch.where(priorities == cut, top, priorities) * (cleaned == cut)
        priorities = torch.where(keep, top, group)
    assert keep is not None
    return keep


def _lowest_above(values: Tensor, count: int) -> int:
    """The least whole number with at least `count` of the values, (n,), at or below it.

    Coarse steps first: a histogram of all values would be twice as large as they are.

    Example:
        >>> _lowest_above(torch.tensor([0, 5, 5, 9]), 2)
        5
    """
    low = 0
    for shift in (_COARSE, 0):
        inside = values >> shift
        if shift == 0:
            inside = values[(values >> _COARSE) == low >> _COARSE] - low
        below = inside.bincount().cumsum(0)
        wanted = torch.full((1,), count, device=values.device)
        step = int(torch.searchsorted(below, wanted))
        count -= int(below[step - 1]) if step else 0
        low += step << shift
    return low


def protected_path(units: Units, priorities: Tensor) -> Tensor:
    """Entries that must stay so that no layer is empty, (d,) bool.

    From the output to the input, each layer keeps its best weight among those that lead into a
    unit of the path so far, preferring weights from units that are themselves reached.
    """
    layout = units.layout
    fed = units.fed(priorities > 0)
    worth = torch.where(fed, priorities + layout.n_sparse + 1, priorities)
    path = priorities > layout.n_sparse
    links = {link.producer: link for link in units.links}
    for name in [*(n for n in layout.prunable if n not in links), *links]:
        layer = worth[layout.slices[name]]
        if name in links:
            alive = units.outgoing(path, links[name]).amax((-3, -1))
            layer = (layer.unflatten(0, (len(alive), -1)) * alive[:, None]).flatten()
        best = layer.argmax(keepdim=True)
        path[layout.slices[name]].scatter_(0, best, layer[best] > 0)
    return path


def allowed_entries(posterior: Posterior, within: Tensor | None) -> Tensor:
    """Entries not pruned yet, (d,) bool: `within`, else prunable entries that are not exactly 0."""
    layout = posterior.layout
    if within is not None:
        if within.shape != (layout.size,) or within.dtype != torch.bool:
            raise ValueError(
                f"prune: within must be a bool tensor of shape ({layout.size},), "
                f"got {within.dtype} of shape {tuple(within.shape)}."
            )
        return within
    allowed = present_entries(posterior)
    allowed[layout.n_sparse :] = True
    return allowed


def prunable_tensors(layout: Layout) -> list[tuple[slice, torch.Size]]:
    """Slice of w and shape of every prunable tensor, in the order of w."""
    rows = zip(layout.names, layout.shapes, layout.roles, strict=True)
    return [(layout.slices[name], shape) for name, shape, role in rows if role == Role.PRUNE]
