"""Predictions of one or several networks as one mixture, in double precision.

Doubles, because a prediction must not depend on which other rows are asked for at the same time;
single-precision matrix products do, in the last digits.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from bayesieve.assess.predict import ClassPrediction, Prediction, RealPrediction, predict
from bayesieve.core.posterior import Factorised, Posterior, Samples, SparseModel, posterior_of
from bayesieve.select import Source

P = TypeVar("P", bound=Posterior)


def predict_members(
    models: Sequence[Posterior | SparseModel], x: Tensor, n_samples: int
) -> Prediction:
    """The mixture of all networks' draws on standardised inputs, (n, p).

    Args:
        models: networks of one architecture.
        x: standardised inputs.
        n_samples: posterior draws of each; a set of samples is used whole, a point once.
    """
    posteriors = [posterior_of(model) for model in models]
    found = [
        predict(in_double(own), x.double(), n_samples=_n_draws(own, n_samples), seed=i)
        for i, own in enumerate(posteriors)
    ]
    classes = [own for own in found if isinstance(own, ClassPrediction)]
    if classes:
        return ClassPrediction(torch.cat([own.sample_log_probs for own in classes]))
    real = [own for own in found if isinstance(own, RealPrediction)]
    return RealPrediction(
        torch.cat([own.sample_means for own in real]), torch.cat([own.noise_std for own in real])
    )


def in_double(posterior: P) -> P:
    """The same posterior in double precision."""
    changed: dict[str, object] = {}
    for spec in dataclasses.fields(posterior):  # type: ignore[arg-type]
        value = getattr(posterior, spec.name)
        if isinstance(value, Tensor) and value.is_floating_point():
            changed[spec.name] = value.double()
    buffers = {
        name: value.double() if value.is_floating_point() else value
        for name, value in posterior.buffers.items()
    }
    return dataclasses.replace(posterior, buffers=buffers, **changed)  # type: ignore[type-var]


def importance_source(posterior: Posterior) -> Source:
    """What tells which weights matter: inclusion, else evidence, else size."""
    if posterior.inclusion is not None:
        return "inclusion"
    if isinstance(posterior, Factorised) and posterior.prior is not None:
        return "evidence"
    return "magnitude"


def _n_draws(posterior: Posterior, n_samples: int) -> int:
    return len(posterior.draws) if isinstance(posterior, Samples) else n_samples


def log_density(
    models: Sequence[Posterior | SparseModel], x: Tensor, targets: Tensor, n_samples: int
) -> Tensor:
    """Log of the mixture's density of standardised targets, (n, m), or of labels, (n,); (n,)."""
    found = []
    for i, model in enumerate(models):
        posterior = in_double(posterior_of(model))
        network, n = posterior.network, _n_draws(posterior, n_samples)
        generator = torch.Generator().manual_seed(i)
        for w in torch.cat([posterior.draw(1, generator) for _ in range(n)]).split(1):
            output = network.outputs(w, x.double(), posterior.buffers)[0]
            found.append(network.likelihood.log_prob(output, targets, network.split(w[0])[1]))
    return torch.logsumexp(torch.stack(found), 0) - math.log(len(found))
