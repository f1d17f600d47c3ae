"""A likelihood as the plain JSON of a bundle, and back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayesieve.core.posterior import Posterior
from bayesieve.errors import UnsupportedModelError


def likelihood_to_json(
    likelihood: Likelihood | None, posterior: Posterior | None
) -> dict[str, Any] | None:
    """Name and numbers of a likelihood; a learned noise level is that of the posterior mean."""
    if likelihood is None and posterior is not None:
        likelihood = posterior.network.likelihood
    if likelihood is None:
        return None
    if isinstance(likelihood, Gaussian):
        noise = likelihood.noise_std
        if likelihood.learned and posterior is not None:
            extra = posterior.network.split(posterior.mean)[1]
            noise = math.exp(float(likelihood.log_noise(extra)))
        return {"name": "Gaussian", "noise_std": noise, "learned": likelihood.learned}
    if isinstance(likelihood, Categorical | Bernoulli):
        return {"name": type(likelihood).__name__}
    raise UnsupportedModelError(
        f"save: a bundle cannot hold the likelihood {type(likelihood).__name__}."
    )


def likelihood_from_json(
    row: Mapping[str, Any] | None, classes: Sequence[str] | None, *, learned: bool = False
) -> Likelihood | None:
    """The likelihood of a bundle; with classes and nothing said it is a softmax.

    Example:
        >>> likelihood_from_json({"name": "Gaussian", "noise_std": 0.5}, None)
        Gaussian(noise_std=0.5, learned=False)
    """
    if row is None:
        return None if classes is None else Categorical()
    name, noise = row.get("name"), row.get("noise_std", 1.0)
    if name == "Gaussian" and isinstance(noise, int | float) and 0 < noise < math.inf:
        return Gaussian(float(noise), learned and row.get("learned") is True)
    if name in ("Categorical", "Bernoulli"):
        return Categorical() if name == "Categorical" else Bernoulli()
    raise ValueError(f"load: config.json is damaged: unknown likelihood {str(row)[:80]}.")
