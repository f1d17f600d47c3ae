"""Predictions of several networks as one mixture, its draws, density and noise."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.assess.predict import (
    FEWEST_DRAWS,
    MOST_DRAWS,
    ClassPrediction,
    Prediction,
    draws_of,
    how_drawn,
    predict,
    relative_error,
    weight_vectors,
)
from bayesieve.core.likelihoods import RealLikelihood, RealPrediction
from bayesieve.core.likelihoods.prediction import Drawn
from bayesieve.core.network import NUMBERS_PREFIX
from bayesieve.core.posterior import Factorised, Posterior, Samples, SparseModel, posterior_of
from bayesieve.data.encoding import Entry, with_known_levels, without_level
from bayesieve.training.validation import member_outputs

if TYPE_CHECKING:
    from bayesieve.estimators.population import Table

_VERSIONS = 32  # of a row with an unknown level, over which its prediction is the mixture
_ROWS_AT_ONCE = 300  # up to so many, one batched product of all draws beats one product a draw
_NETWORKS_FOR_DRAWS = 3  # that decide how many draws a prediction takes, by so many rows each


def predict_members(
    models: Sequence[Posterior | SparseModel], x: Tensor, n_samples: int
) -> Prediction:
    """The mixture of all networks' draws on standardised inputs, (n, p).

    Args:
        models: networks of one architecture.
        x: standardised inputs.
        n_samples: posterior draws of each; a set of samples is used whole, a point once.
    """
    predictions = []
    for i, model in enumerate(models):
        posterior = posterior_of(model).to("cpu", torch.float64)
        n = draws_of(posterior, n_samples)
        predictions.append(predict(posterior, x.double(), n_samples=n, seed=i))
    return pooled_predictions(predictions)


def pooled_predictions(predictions: Sequence[Prediction]) -> Prediction:
    """One mixture of several predictions of the same inputs, of one kind.

    Example:
        >>> import torch
        >>> one = ClassPrediction(torch.tensor([[[1.0, 0.0]]]).log())
        >>> other = ClassPrediction(torch.tensor([[[0.0, 1.0]]]).log())
        >>> pooled_predictions([one, other]).probs.tolist()
        [[0.5, 0.5]]
    """
    kinds = {row.drawn for row in predictions}
    broken = any(row.n_draws % 2 for row in predictions)  # pairs
    drawn: Drawn = kinds.pop() if kinds in ({"all"}, {"pairs"}) else "independent"
    drawn = "independent" if drawn == "pairs" and broken else drawn
    classes = [row for row in predictions if isinstance(row, ClassPrediction)]
    real = [row for row in predictions if isinstance(row, RealPrediction)]
    if classes:
        return ClassPrediction(torch.cat([row.sample_log_probs for row in classes]), drawn)
    means, noise = ([getattr(row, name) for row in real] for name in ("sample_means", "noise_std"))
    if len({row.shape[1:] for row in noise}) > 1:
        noise = [std.expand_as(mean) for std, mean in zip(noise, means, strict=True)]
    return RealPrediction(torch.cat(means), torch.cat(noise), real[0].likelihood, drawn)


def with_versions(
    prediction: Prediction, rows: Tensor, versions: Sequence[Prediction]
) -> Prediction:
    """A prediction in which some rows are mixtures over versions of their inputs.

    Every pair of draws takes one version, so that the spread of the draws has that of the versions.
    Few draws are repeated until there are two for each version.

    Args:
        prediction: of N inputs.
        rows: (N,) bool, the rows that have versions.
        versions: predictions of these rows alone, by the same networks and draws.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian, RealPrediction
        >>> one, none = torch.ones(1, 1, 1), torch.zeros(1, 1, 1)
        >>> low, high = (RealPrediction(mean, one, Gaussian()) for mean in (none, 4 * one))
        >>> mixed = with_versions(low, torch.tensor([True]), [low, high])
        >>> mixed.mean.item(), mixed.epistemic_std.item()
        (2.0, 2.0)
    """
    repeats = -(-2 * len(versions) // prediction.n_draws)
    places = torch.arange(prediction.n_draws * repeats)
    version = places.div(2, rounding_mode="floor") % len(versions)
    draw = places % prediction.n_draws
    classes = isinstance(prediction, ClassPrediction)
    changed = {}
    for name in ("sample_log_probs",) if classes else ("sample_means", "noise_std"):
        values = getattr(prediction, name)[draw]
        if values.shape[1] == len(rows):
            values[:, rows] = torch.stack([getattr(v, name) for v in versions])[version, draw]
        changed[name] = values
    return dataclasses.replace(prediction, **changed)


def with_unknown_levels(
    prediction: Prediction,
    inputs: NDArray[np.float64],
    entries: Sequence[Entry],
    predicted: Callable[[NDArray[np.float64]], Prediction],
) -> Prediction:
    """A prediction in which rows with an unknown level are mixtures over the known ones.

    Args:
        prediction: of N inputs.
        inputs: (N, q), as `data.encoding.encode` made them.
        entries: of its recipe.
        predicted: the prediction of other inputs, (n, q), by the same networks and draws.
    """
    new = without_level(inputs, entries)
    if not new.any():
        return prediction
    rng = np.random.default_rng(0)
    some = [with_known_levels(inputs[new], entries, rng) for _ in range(_VERSIONS)]
    return with_versions(prediction, torch.as_tensor(new), [predicted(rows) for rows in some])


def needed_draws(
    models: Sequence[Posterior | SparseModel], table: "Table", rows: Sequence[Tensor]
) -> int:
    """The draws after which the likelihood of rows is known to 2 %: 32, 64, 128 or 256.

    32 draws tell their own error, which falls as 1 / √draws; so few are enough to know how many a
    prediction needs. Of the first networks the median decides, since single ones are noisy.

    Args:
        models: networks, each with its rows.
        table: standardised inputs and targets.
        rows: row numbers, best such as the network has not seen.
    """
    counts = []
    for model, index in list(zip(models, rows, strict=True))[:_NETWORKS_FOR_DRAWS]:
        posterior = posterior_of(model)
        if posterior.n_kept is not None:  # all that were kept are used
            return posterior.n_kept
        some = index[:_ROWS_AT_ONCE]
        prediction = _drawn(posterior.to("cpu", torch.float64), table.x[some], FEWEST_DRAWS)
        targets = table.y[some]
        if isinstance(prediction, ClassPrediction):
            prediction, targets = prediction.scored(targets)
        counts.append(FEWEST_DRAWS * relative_error(prediction, targets) ** 2)
    doublings = math.ceil(math.log2(max(statistics.median(counts) / FEWEST_DRAWS, 1.0)))
    return int(min(FEWEST_DRAWS * 2**doublings, MOST_DRAWS))


def _drawn(posterior: Posterior, x: Tensor, n_samples: int, seed: int = 0) -> Prediction:
    """The prediction of n draws for few rows, all draws in one batched product."""
    network, x = posterior.network, x.double()
    w = torch.cat([block for block, _ in weight_vectors(posterior, n_samples, seed)])
    buffers = {name: v.expand(len(w), *v.shape) for name, v in posterior.buffers.items()}
    output = member_outputs(network, w, x.expand(len(w), *x.shape), buffers)
    prediction = network.likelihood.predictive(output, network.numbers(w))
    return dataclasses.replace(prediction, drawn=how_drawn(posterior, n_samples))


def log_density(
    models: Sequence[Posterior | SparseModel], x: Tensor, targets: Tensor, n_samples: int
) -> Tensor:
    """Log of the mixture's density of standardised targets, (n, m), or of labels; (n,)."""
    densities = []
    for i, model in enumerate(models):
        posterior = posterior_of(model).to("cpu", torch.float64)
        n = draws_of(posterior, n_samples)
        parts = zip(x.split(_ROWS_AT_ONCE), targets.split(_ROWS_AT_ONCE), strict=True)
        drawn = [_drawn(posterior, part, n, i).log_densities(target) for part, target in parts]
        densities.append(torch.cat(drawn, 1))
    together = torch.cat(densities)
    if together.dim() > 2:  # several labels of a row
        together = together.flatten(2).sum(2)
    return torch.logsumexp(together, 0) - math.log(len(together))


def noise_level(model: SparseModel) -> float:
    """The learned size of one level of noise; 1 where there is no such number."""
    likelihood, numbers = model.network.likelihood, model.network.numbers(model.posterior.mean)
    names = cast(RealLikelihood, likelihood).numbers_for(1.0)
    return math.prod(math.exp(float(numbers[name])) for name in names)


def with_noise_factor(model: SparseModel, factor: float) -> SparseModel:
    """A model with its learned noise times a factor; itself where the noise is fixed.

    Noise that is predicted grows by the bias of the outputs behind it; its least level stays.
    """
    posterior, network = model.posterior, model.network
    layout = network.layout
    shift = torch.zeros(layout.size, dtype=posterior.mean.dtype)
    likelihood = cast(RealLikelihood, network.likelihood)
    for name in likelihood.numbers_for(1.0):
        shift[layout.slices[NUMBERS_PREFIX + name]] = math.log(factor)
    last = [name for name in layout.names if name.endswith("bias")][-1]
    bias = shift[layout.slices[last]]
    bias[likelihood.log_noise_outputs(len(bias))] = math.log(factor)
    if isinstance(posterior, Samples):
        return dataclasses.replace(
            model, posterior=dataclasses.replace(posterior, draws=posterior.draws + shift)
        )
    normals = cast(Factorised, posterior)
    moved = dataclasses.replace(normals, mean=normals.mean + shift)
    return dataclasses.replace(model, posterior=moved)
