"""The likelihood in the JSON of a bundle or an ONNX file."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesieve.core.likelihoods import Categorical, Likelihood, from_dict
from bayesieve.core.posterior import Posterior


def likelihood_to_json(
    likelihood: Likelihood | None, posterior: Posterior | None
) -> dict[str, Any] | None:
    """Name and numbers of a likelihood; a learned noise level is that of the posterior mean.

    Example:
        >>> from bayesieve.core.likelihoods import StudentT
        >>> likelihood_to_json(StudentT(scale=0.5), None)
        {'name': 'StudentT', 'scale': 0.5, 'df': 4.0, 'learned': False}
    """
    if likelihood is None:
        if posterior is None:
            return None
        likelihood = posterior.network.likelihood
    if posterior is None or not likelihood.parameters():
        return likelihood.to_dict()
    return likelihood.to_dict(posterior.network.numbers(posterior.mean))


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
    try:
        return from_dict({**row, "learned": learned and row.get("learned") is True})
    except ValueError as error:
        raise ValueError(f"load: config.json is damaged: its likelihood: {error}") from error
