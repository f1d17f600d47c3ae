"""Scores that rank weights: pure functions of a posterior, larger = keep.

A score ranks weights; it has no unit that a threshold could share across scores, except
`evidence_score`, whose zero is the point where the data are indifferent. Weights that are pruned
already (mean and std exactly 0) score lowest, point parameters highest or by size.

References: [Dickey] for the evidence, [Friston] for its reading as Bayesian model reduction.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from bayesieve.checks import check_choice
from bayesieve.core.likelihoods.real import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Posterior, Samples

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
        >>> inclusion_score(_example(logit_inclusion=[0.0, 40.0, 50.0]))
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
        >>> snr_score(_example(mean=[1.0, -2.0, 0.0], std=[0.5, 0.5, 0.0]))
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
        >>> q = _example(mean=[0.0, 1.0, 3.0], std=[1.0, 1.0, 1.0], prior=Normal(1.0))
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
        >>> magnitude_score(_example(mean=[1.0, -2.0, 0.0]))
        tensor([1., 2., 0.])
    """
    return posterior.mean.abs()


def second_moment_score(posterior: Posterior) -> Tensor:
    """mean² + std², shape (d,): the order of inclusion under one spike-and-slab prior.

    Example:
        >>> second_moment_score(_example(mean=[1.0, -2.0, 0.0], std=[1.0, 1.0, 0.0]))
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


def small_posterior() -> Factorised:
    """A posterior small enough to check by eye, for the examples of this room.

    A network 3-3-1 with weights 0.1, 0.2, ..., 1.2 and biases 0; inclusion grows with them.

    Example:
        >>> small_posterior().mean[:4]
        tensor([0.1000, 0.2000, 0.3000, 0.4000])
    """
    network = Network.of(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)), Gaussian())
    mean = torch.cat([torch.arange(1, 13) / 10, torch.zeros(4)])
    return Factorised(network, mean, torch.full_like(mean, 0.1), logit_inclusion=mean - 0.65)


def _example(**fields: object) -> Factorised:
    """Three weights without bias, for the examples above."""
    network = Network.of(nn.Linear(3, 1, bias=False), Gaussian())
    tensors = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in fields.items()}
    defaults: dict[str, object] = {"mean": torch.zeros(3), "std": torch.ones(3)}
    return Factorised(network, **{**defaults, **tensors})  # type: ignore[arg-type]
