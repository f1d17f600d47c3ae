"""A likelihood as the plain JSON of a bundle or an ONNX file, and back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayesieve.core.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    StudentT,
)
from bayesieve.core.posterior import Posterior
from bayesieve.errors import UnsupportedModelError

KNOWN = Categorical | Bernoulli | Gaussian | StudentT | Heteroscedastic  # others have no JSON


def likelihood_to_json(
    likelihood: Likelihood | None, posterior: Posterior | None
) -> dict[str, Any] | None:
    """Name and numbers of a likelihood; a learned noise level is that of the posterior mean.

    Example:
        >>> likelihood_to_json(StudentT(scale=0.5), None)
        {'name': 'StudentT', 'scale': 0.5, 'df': 4.0, 'learned': False}
    """
    if likelihood is None and posterior is not None:
        likelihood = posterior.network.likelihood
    if likelihood is None:
        return None
    row: dict[str, Any] = {"name": type(likelihood).__name__}
    learned = posterior is not None and getattr(likelihood, "learned", False)
    extra = posterior.network.split(posterior.mean)[1] if learned and posterior else {}
    if isinstance(likelihood, Gaussian):
        noise = math.exp(extra["log_noise_std"]) if extra else likelihood.noise_std
        return row | {"noise_std": noise, "learned": likelihood.learned}
    if isinstance(likelihood, StudentT):
        scale = math.exp(extra["log_scale"]) if extra else likelihood.scale
        return row | {"scale": scale, "df": likelihood.df, "learned": likelihood.learned}
    if isinstance(likelihood, Heteroscedastic):
        low = likelihood.min_noise_std
        return row | {"noise_std": likelihood.noise_std, "min_noise_std": low}
    if isinstance(likelihood, Categorical):
        weight = likelihood.class_weight
        return row | ({} if weight is None else {"class_weight": list(weight)})
    if isinstance(likelihood, Bernoulli):
        return row | ({} if likelihood.pos_weight == 1 else {"pos_weight": likelihood.pos_weight})
    raise UnsupportedModelError(
        f"save: a bundle cannot hold the likelihood {type(likelihood).__name__}."
    )


def likelihood_from_json(
    row: Mapping[str, Any] | None, classes: Sequence[str] | None, *, learned: bool = False
) -> Likelihood | None:
    """The likelihood of a bundle; with classes and nothing said it is a softmax.

    Args:
        row: what `likelihood_to_json` made.
        classes: names of the classes, if there are any.
        learned: whether a noise level that was learned stands in a posterior; otherwise it is the
            number in `row`.

    Example:
        >>> likelihood_from_json({"name": "Gaussian", "noise_std": 0.5}, None)
        Gaussian(noise_std=0.5, learned=False)
    """
    if row is None:
        return None if classes is None else Categorical()
    is_learned = learned and row.get("learned") is True
    try:
        match row.get("name"):
            case "Gaussian":
                return Gaussian(_number(row, "noise_std", 1.0), is_learned)
            case "StudentT":
                return StudentT(_number(row, "scale"), _number(row, "df"), is_learned)
            case "Heteroscedastic":
                return Heteroscedastic(_number(row, "noise_std"), _number(row, "min_noise_std"))
            case "Categorical":
                return Categorical(_weights(row.get("class_weight")))
            case "Bernoulli":
                return Bernoulli(_number(row, "pos_weight", 1.0))
    except ValueError as error:
        raise ValueError(f"load: config.json is damaged: its likelihood: {error}") from error
    raise ValueError(f"load: config.json is damaged: unknown likelihood {str(row)[:80]}.")


def _number(row: Mapping[str, Any], name: str, otherwise: float | None = None) -> float:
    value = row.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {str(value)[:40]!r}.")
    return float(value)


def _weights(values: object) -> tuple[float, ...] | None:
    if values is None:
        return None
    if not isinstance(values, list) or not values:
        raise ValueError(f"class_weight must be a list of numbers, got {str(values)[:40]!r}.")
    return tuple(_number({"class_weight": value}, "class_weight") for value in values)
