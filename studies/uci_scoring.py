"""Predictions of several networks as one mixture, and the numbers the UCI study reports of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesieve.assess.metrics import log_likelihood_mixture
from bayesieve.assess.predict import RealPrediction, predict
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior import Posterior
from bayesieve.sieve.scores import inclusion_score

_NOISE_FACTORS = tuple(0.5 * 1.08**i for i in range(22))  # 0.5 to 2.5


def summary(rmse: Sequence[float], log_lik: Sequence[float]) -> dict[str, Any]:
    """Means, standard errors and the values of every split."""
    record: dict[str, Any] = {}
    for name, values in (("rmse", rmse), ("log_lik", log_lik)):
        own = torch.tensor(values, dtype=torch.float64)
        error = float(own.std()) / len(own) ** 0.5 if len(own) > 1 else None
        record |= {name: float(own.mean()), f"{name}_standard_error": error,
                   f"{name}_splits": [float(f"{v:.6g}") for v in values]}  # fmt: skip
    return record


def predict_members(posteriors: Sequence[Posterior], x: Tensor, n_draws: int) -> RealPrediction:
    """The mixture of the members' predictive distributions."""
    spread = n_draws if hasattr(posteriors[0], "std") else 0
    found = [predict(q, x, n_samples=spread, seed=i) for i, q in enumerate(posteriors)]
    parts = [p for p in found if isinstance(p, RealPrediction)]
    means = torch.cat([p.sample_means for p in parts])
    noise = torch.cat([p.noise_std for p in parts])
    return RealPrediction(means, noise, Gaussian())


@dataclass(frozen=True)
class Tails:
    """How the noise of a prediction is corrected, as held-out rows found it most probable.

    Args:
        factor: on every noise std.
        df: degrees of freedom of a Student-t with the prediction's mean and variance; None keeps
            the mixture of normals.
    """

    factor: float = 1.0
    df: int | None = None


def mean_log_lik(found: RealPrediction, y: Tensor, tails: Tails) -> float:
    """Nats per row of targets, (N,), with the noise corrected."""
    if tails.df is None:
        noise = tails.factor * found.noise_std
        return log_likelihood_mixture(found.sample_means, noise, y[:, None])
    noise = tails.factor * found.aleatoric_std.double()
    variance = (noise.square() + found.epistemic_std.double().square())[:, 0]
    scale = (variance * (tails.df - 2) / tails.df).sqrt()
    own = torch.distributions.StudentT(float(tails.df), found.mean[:, 0].double(), scale)
    return float(own.log_prob(y.double()).mean())


def best_tails(pairs: Sequence[tuple[RealPrediction, Tensor]]) -> Tails:
    """The correction under which held-out rows, (prediction, targets), are most probable."""
    candidates = [Tails(factor, df) for df in (None, 3, 5, 8) for factor in _NOISE_FACTORS]
    totals = [sum(mean_log_lik(p, y, own) * len(y) for p, y in pairs) for own in candidates]
    return candidates[max(range(len(totals)), key=totals.__getitem__)]


def removed_share(posterior: Posterior) -> float:
    """Share of the prunable weights that are exactly 0."""
    sparse = posterior.mean[posterior.layout.sparse]
    return float((sparse == 0).double().mean())


def without_least(posterior: Posterior, removed: float) -> Posterior:
    """The posterior without the share `removed` of its weights of lowest inclusion; biases stay.

    The paper's droprate: it counts weights alone and lets a layer run empty.
    """
    logit = inclusion_score(posterior)[posterior.layout.sparse]
    keep = torch.ones_like(posterior.mean, dtype=torch.bool)
    keep[logit.argsort()[: round(removed * len(logit))]] = False
    return posterior.masked(keep)
