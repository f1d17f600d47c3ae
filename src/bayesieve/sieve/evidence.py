"""Bayesian model reduction of a finished posterior: prune what the evidence does not support.

Works on any factorised posterior, whichever engine made it: SBNN, FlatVI, BMR, TDAMP, or a Laplace
approximation around trained weights. For each weight ΔF is the log evidence gained by fixing it
at 0 (B4); each layer's share of needed weights is learned from the layer (B6, B7). Equations:
docs/theory/bmr.md.
References: [Friston]; Marković, Friston and Kiebel (2024).
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from bayesieve.checks import check_choice, check_fraction, check_kind, check_positive
from bayesieve.core.layout import EntryGroups
from bayesieve.core.posterior import (
    Factorised,
    Posterior,
    SparseModel,
    posterior_of,
    present_entries,
)
from bayesieve.core.priors import Normal
from bayesieve.engines.bmr import evidence_at_zero, shared_log_odds, sharing
from bayesieve.sieve.prune import prune
from bayesieve.sieve.ranking import Score, ScoreName, evidence_score, second_moment_score
from bayesieve.sieve.weight_rules import keep_probable, keep_zeros

_MUCH = 0.2  # zeros of a posterior whose prior favours none
PriorStd = float | Literal["empirical"] | Mapping[str, float] | None


class LayerEvidence(NamedTuple):
    """Result of Bayesian model reduction in one prunable tensor."""

    name: str
    kept: int
    total: int
    log_odds: float  # ζ: a weight is pruned when its ΔF exceeds this
    gained: float  # ΔF summed over what is pruned, nats


class Reducible(Protocol):
    """A posterior whose other weights follow what is fixed at 0, such as `laplace_units` makes."""

    @property
    def posterior(self) -> Factorised:
        """Means and stds of all weights."""

    def reduced(self, keep: Tensor) -> SparseModel:
        """Fix what is not kept, (d,) bool, at 0 and let the rest follow."""


@dataclass(frozen=True)
class weight_evidence:
    """Log-odds ζ - ΔF that each weight is needed: a score for any rule, with 0 as its threshold.

    Args:
        rule: "hierarchical" learns ζ in each layer; "savage-dickey" takes ζ = 0.
        spare_last: whether the last layer is kept whole.
        prior_std: width of the prior: a number, one number per tensor name, or "empirical" (each
            tensor's root mean second moment). None takes the posterior's own prior, and
            "empirical" where the engine learned its prior (BMR, TDAMP).
        scope: "layer" learns one ζ per layer (weight and bias of a module share it), "global" one
            for all that may be pruned.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior  # means 0.1, 0.2, ..., stds 0.1
        >>> weight_evidence("savage-dickey", prior_std=1.0)(small_posterior())[:3] > 0
        tensor([False, False,  True])
    """

    rule: Literal["hierarchical", "savage-dickey"] = "hierarchical"
    spare_last: bool = False
    prior_std: PriorStd = None
    scope: Literal["layer", "global"] = "layer"

    def __post_init__(self) -> None:
        check_choice("prune_by_evidence", "scope", self.scope, ("layer", "global"))
        check_choice("prune_by_evidence", "rule", self.rule, ("hierarchical", "savage-dickey"))
        if isinstance(self.prior_std, str):
            check_choice("prune_by_evidence", "prior_std", self.prior_std, ("empirical",))
        elif isinstance(self.prior_std, float | int):
            check_positive("prune_by_evidence", prior_std=self.prior_std)

    def __call__(self, posterior: Posterior) -> Tensor:
        """The log-odds, (d,): +inf for what is never pruned, -inf for what was pruned before."""
        layout, delta = posterior.layout, self.evidence(posterior)
        logit = torch.full_like(delta, torch.inf)
        for name, zeta in self.log_odds(posterior).items():
            logit[layout.slices[name]] = zeta - delta[layout.slices[name]]
        return logit.masked_fill(_pruned(posterior), -torch.inf)

    def evidence(self, posterior: Posterior) -> Tensor:
        """ΔF of fixing each weight at 0, (d,); 0 for what was pruned before."""
        posterior, pruned = _factorised(posterior), _pruned(posterior)
        if self.prior_std is None and posterior.prior is not None:
            return -evidence_score(posterior).masked_fill(pruned, 0)
        delta = evidence_at_zero(posterior.mean, posterior.std, self._widths(posterior))
        delta[posterior.layout.n_bayesian :] = -torch.inf
        return delta.masked_fill(pruned, 0)

    def log_odds(self, posterior: Posterior) -> dict[str, float]:
        """ζ of every prunable tensor, found as the engine `BMR` does; +inf for what is spared."""
        layout, delta = posterior.layout, self.evidence(posterior)
        names = {layout.slices[name].start: name for name in layout.names}
        zetas = {name: math.inf for start, name in names.items() if start < layout.n_sparse}
        if not zetas:
            return {}
        layers = EntryGroups(layout, torch.device("cpu"))
        for parts in sharing(layers, self.scope, spare_last=self.spare_last):
            together = torch.cat([delta[part] for part in parts])[None].double()
            zeta = shared_log_odds(self.rule, together).item()
            zetas |= {names[part.start]: zeta for part in parts}
        return zetas

    def _widths(self, posterior: Factorised) -> Tensor:
        """Prior std of every entry, (d,)."""
        layout, prior_std = posterior.layout, self.prior_std
        if isinstance(prior_std, float | int):
            return torch.full_like(posterior.mean, prior_std)
        square, alive = second_moment_score(posterior), ~_pruned(posterior)
        widths = torch.ones_like(posterior.mean)
        for name in layout.names:
            part = layout.slices[name]
            if part.start >= layout.n_bayesian:
                break
            if not isinstance(prior_std, Mapping):
                present = square[part][alive[part]]
                widths[part] = present.mean().sqrt() if len(present) else 1.0
            elif name in prior_std:
                widths[part] = prior_std[name]
            else:
                raise ValueError(f"prune_by_evidence: prior_std has no number for {name!r}.")
        return widths


def prune_by_evidence(
    posterior: Posterior | SparseModel,
    scoring: weight_evidence | None = None,
    *,
    threshold: float = 0.5,
    allow_empty_layers: bool = False,
) -> SparseModel:
    """Prune every weight whose removal raises the evidence enough; nothing is retrained.

    Around weights trained as points (`laplace`) this can ruin the network, because each weight is
    judged with all others in place: use `sieve_trained` there. Under a `Normal` prior a large cut
    comes with a warning.

    Args:
        posterior: a factorised posterior; of a sparse model, what was pruned stays pruned.
        scoring: settings of the rule; None takes the hierarchical rule.
        threshold: least probability of being needed that keeps a weight, between 0 and 1.
        allow_empty_layers: whether a layer may lose its last weight.

    Returns:
        The pruned posterior, with the mask probabilities as its inclusion.

    Example:
        >>> from bayesieve.core.priors import Normal
        >>> from bayesieve.sieve.examples import small_posterior
        >>> posterior = replace(small_posterior(), prior=Normal(1.0))  # std 0.1
        >>> sparse = prune_by_evidence(posterior, weight_evidence("savage-dickey"))
        >>> sparse.keep[:4].int()  # gone: |mean| < 0.21
        tensor([0, 0, 1, 1], dtype=torch.int32)
    """
    scoring = weight_evidence() if scoring is None else scoring
    check_kind("prune_by_evidence", "scoring", scoring, weight_evidence)
    check_fraction("prune_by_evidence", threshold=threshold)
    whole = _factorised(posterior_of(posterior))
    whole = replace(whole, logit_inclusion=scoring(whole))
    start = SparseModel(whole, posterior.keep) if isinstance(posterior, SparseModel) else whole
    sparse = prune(start, keep_probable(threshold, allow_empty_layers))
    if isinstance(whole.prior, Normal) and sparse.zeros > _MUCH:
        warnings.warn(
            f"prune_by_evidence: {sparse.zeros:.0%} of the weights go by the evidence of each "
            "alone, and what that costs was not measured: correlated weights each look redundant "
            "given the others. Compare `evaluate` before and after, or use sieve_trained, "
            "which stops at a stated loss.",
            stacklevel=2,
        )
    return sparse


def prune_units_by_evidence(
    units: Reducible, zeros: float, *, score: ScoreName | Score = "snr", rounds: int = 4
) -> SparseModel:
    """Prune to a fraction of zeros, letting the rest of each unit make up for what goes.

    With the stds of `laplace_units` the score "snr" ranks weights by what removing one costs when
    the others of its unit follow. After each of some rounds the ranking is renewed.

    Args:
        units: trained weights and their precision, unit by unit.
        zeros: fraction of all parameters to set to 0, biases counted.
        score: a name of `SCORES` or a function of the posterior; larger stays.
        rounds: in which the kept fraction falls by equal factors.

    Example:
        >>> import torch.nn as nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.core.problem import Problem
        >>> from bayesieve.engines.laplace import laplace_units
        >>> x = torch.eye(4)
        >>> problem = Problem(nn.Linear(4, 1), Gaussian(), (x, x[:, :1]))
        >>> prune_units_by_evidence(laplace_units(problem), zeros=0.4).zeros
        0.4
    """
    check_fraction("prune_units_by_evidence", zeros=zeros)
    check_positive("prune_units_by_evidence", rounds=rounds)
    posterior: Posterior = units.posterior
    sparse = SparseModel(posterior, torch.ones_like(posterior.mean, dtype=torch.bool))
    for i in range(rounds):
        kept = (1 - zeros) ** ((i + 1) / rounds)
        sparse = units.reduced(keep_zeros(1 - kept, score)(sparse.posterior, sparse.keep))
    return sparse


def evidence_report(
    posterior: Posterior | SparseModel,
    scoring: weight_evidence | None = None,
    *,
    threshold: float = 0.5,
) -> list[LayerEvidence]:
    """Weights that `prune_by_evidence` would keep in each prunable tensor, and the evidence gained.

    Example:
        >>> from bayesieve.core.priors import Normal
        >>> from bayesieve.sieve.examples import small_posterior
        >>> posterior = replace(small_posterior(), prior=Normal(1.0))
        >>> for row in evidence_report(posterior, weight_evidence("savage-dickey")):
        ...     print(row.name, row.kept, row.total, round(row.gained, 2))
        0.weight 7 9 2.11
        2.weight 3 3 0.0
    """
    scoring = scoring or weight_evidence()
    sparse = prune_by_evidence(posterior, scoring, threshold=threshold)
    whole = posterior_of(posterior)
    delta, layout = scoring.evidence(whole), whole.layout
    rows = []
    for name, zeta in scoring.log_odds(whole).items():
        part = layout.slices[name]
        keep = sparse.keep[part]
        gained = delta[part][~keep].double().sum().item()
        rows.append(LayerEvidence(name, int(keep.sum()), keep.numel(), zeta, gained))
    return rows


def _factorised(posterior: Posterior) -> Factorised:
    """The posterior, if it is a product of normals."""
    if isinstance(posterior, Factorised):
        return posterior
    remedy = "laplace(problem, posterior) around a point estimate"
    if hasattr(posterior, "factorised"):
        remedy = "its .factorised()"
    raise TypeError(
        "prune_by_evidence: the posterior must be Factorised, got "
        f"{type(posterior).__name__}. Use {remedy}."
    )


def _pruned(posterior: Posterior) -> Tensor:
    """Bayesian entries at exactly 0 without spread, (d,) bool."""
    pruned = ~present_entries(_factorised(posterior))
    pruned[posterior.layout.n_bayesian :] = False
    return pruned
