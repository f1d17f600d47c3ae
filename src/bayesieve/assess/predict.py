"""The predictive distribution of a posterior: at its mean, or averaged over draws.

p(y | x) = 1/S Σ_s p(y | x, w_s). Draws are shared by all inputs, so weights are sampled once per
call, however many inputs there are. A factorised posterior is drawn in pairs (mean + e, mean - e),
whose errors cancel to first order. Equal seeds give equal draws, more draws begin with the fewer.

The draws themselves say when they are enough: with n_samples=None there are 32, 64, 128, ... until
their Monte-Carlo error is below 2 %.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from bayesieve.assess.metrics import monte_carlo_error, negative_log_likelihood
from bayesieve.checks import check_fraction, check_not_negative, check_positive
from bayesieve.core.batch import StreamLike, first_not_finite, stream_of
from bayesieve.core.inputs import Input, as_inputs, one_input, shown, tensors_of
from bayesieve.core.likelihoods.base import Likelihood
from bayesieve.core.likelihoods.prediction import ClassPrediction as ClassPrediction
from bayesieve.core.likelihoods.prediction import Drawn
from bayesieve.core.likelihoods.prediction import Prediction as Prediction
from bayesieve.core.likelihoods.prediction import RealPrediction as RealPrediction
from bayesieve.core.network import Buffers, Network
from bayesieve.core.posterior import (
    Factorised,
    Model,
    Posterior,
    Samples,
    SparseModel,
    posterior_of,
)
from bayesieve.core.random import generator_on
from bayesieve.fast.evaluator import Evaluator, evaluator

TOLERANCE = 0.02
FEWEST_DRAWS, MOST_DRAWS = 32, 256
_DRAWS_AT_ONCE = 64_000_000  # weights held at a time: 256 MB in float32
_DRAWS_IN_CACHE = 1 << 18  # weights
_BYTES_IN_CACHE = 3 << 19  # of inputs; with more ResNet-20 takes twice as long
_INPUTS_AT_ONCE = 4096  # of a stream
_OUTPUTS_AT_ONCE = 32_000_000  # draws are not doubled beyond so many outputs
_LEAST_NLL = 0.01  # below it, errors are relative to it


class OODScore(Protocol):
    """Scores inputs by how familiar they are; `uncertainty.familiarity.Familiarity` is one."""

    def score(self, x: Tensor) -> Tensor:
        """Score inputs, (N, ...), by numbers in [0, 1], (N,): small for unfamiliar ones."""


@runtime_checkable
class Predictor(Protocol):
    """Predicts by a way of its own, such as `uncertainty.moments.MomentNetwork`."""

    @property
    def posterior(self) -> Posterior:
        """The weights behind the predictions."""

    def predict(self, x: Input, batch_size: int = 2048) -> Prediction:
        """Predict inputs, (N, ...)."""


def predict(
    model: Posterior | SparseModel | Predictor,
    x: Any,
    *,
    n_samples: int | None = 0,
    seed: int = 0,
    batch_size: int = 2048,
    familiarity: OODScore | None = None,
    abstain: float | None = None,
    targets: Tensor | None = None,
) -> Prediction:
    """Predict inputs with the posterior mean, or with draws from the posterior.

    Args:
        model: a posterior or sparse model; or an object that predicts by itself, without draws,
            such as `MomentNetwork(posterior)`.
        x: (N, ...), of the network's input shape, on any device; a tuple or dict of tensors for a
            network of several inputs; or a stream of (x, y), as for `Problem`, in its order.
        n_samples: S; 0 uses the mean of the weights. None draws until there are `enough_draws`, at
            most 256; of a sampler it takes all that were kept.
        seed: of the draws.
        batch_size: most inputs evaluated at a time; on a CPU fewer where each is large.
        familiarity: of the inputs, to state it with the prediction: `Familiarity.of(train.x)`.
        abstain: mark inputs that are less familiar than this fraction of held-out examples.
        targets: as in the training data; their likelihood then decides about `enough_draws`.

    Returns:
        Class probabilities or real predictions, on the model's device.

    Example:
        >>> from bayesieve.core.likelihoods import Categorical
        >>> from bayesieve.core.network import Network
        >>> from bayesieve.core.posterior import Samples
        >>> network = Network.of(torch.nn.Linear(1, 2, bias=False), Categorical())
        >>> predict(Samples(network, torch.tensor([[0.0, 2.0]])), torch.ones(1, 1)).label.item()
        1
    """
    check_not_negative("predict", n_samples=n_samples or 0)
    check_positive("predict", batch_size=batch_size)
    if abstain is not None:
        check_fraction("predict", open_ends=True, abstain=abstain)
        if familiarity is None:
            raise ValueError(
                "predict: abstain needs familiarity=, such as Familiarity.of(train.x)."
            )
    if (stream := stream_of(x)) is not None:
        if targets is not None:
            raise ValueError("predict: a stream has its targets; leave out targets=.")
        return predict_stream(
            model, stream, n_samples=n_samples, seed=seed, familiarity=familiarity, abstain=abstain
        )[0]
    posterior = model.posterior if isinstance(model, Predictor) else posterior_of(model)
    network = posterior.network
    x = _checked(x)
    if targets is not None:
        targets = network.likelihood.labels(targets.to(network.device))
    if isinstance(model, Predictor):
        prediction = model.predict(x, batch_size)
        return _with_familiarity(network, prediction, x, familiarity, abstain)
    adaptive = n_samples is None and posterior.n_kept is None
    if n_samples is None:
        n_samples = posterior.n_kept or MOST_DRAWS
    drawn, check_at = how_drawn(posterior, n_samples), FEWEST_DRAWS
    blocks: list[tuple[Tensor, Mapping[str, Tensor]]] = []
    centre = posterior.mean if drawn == "pairs" else None
    if network.device.type == "cpu":
        batch_size = min(batch_size, _n_in_cache(x))
    with evaluator(network, x.split(batch_size), posterior.buffers, centre) as evaluate:
        for w, draw_buffers in weight_vectors(posterior, n_samples, seed, reuse=True):
            blocks.append((_outputs(evaluate, w, draw_buffers, x), _kept(network.numbers(w))))
            n_done = sum(len(output) for output, _ in blocks)
            if adaptive and n_done == check_at < n_samples:
                full = 2 * sum(output.numel() for output, _ in blocks) > _OUTPUTS_AT_ONCE
                if full or _enough(_mixture(network, blocks, drawn), targets):
                    break
                check_at *= 2
    return _with_familiarity(network, _mixture(network, blocks, drawn), x, familiarity, abstain)


def _n_in_cache(x: Input) -> int:
    """Inputs that a CPU evaluates best at a time."""
    return max(1, _BYTES_IN_CACHE * len(x) // max(1, sum(t.nbytes for t in tensors_of(x))))


def _outputs(evaluate: Evaluator, w: Tensor, draw_buffers: Buffers, x: Input) -> Tensor:
    """Outputs of some draws, (s, N, ...); explains why there are none."""
    if wrong := [t.dtype for t in tensors_of(x) if t.is_floating_point() and t.dtype != w.dtype]:
        raise TypeError(
            f"predict: inputs are {wrong[0]} but the weights {w.dtype}. Convert them with "
            f".to({w.dtype})."
        )
    try:
        return evaluate(w, draw_buffers)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # what torch raises for shapes that do not fit
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"predict: the network fails on inputs of {shown(x)}: {reason}."
        ) from error


def _kept(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies: views would keep whole draws in memory."""
    return {name: value.clone() for name, value in numbers.items()}


def _with_familiarity(
    network: Network, prediction: Prediction, x: Input, familiarity: OODScore | None,
    abstain: float | None,
) -> Prediction:  # fmt: skip
    """The prediction with the familiarity of its inputs, if that is known."""
    if familiarity is None:
        return prediction
    score = familiarity.score(one_input("Familiarity", x)).to(network.device)
    marked = None if abstain is None else score < 1 - abstain
    return replace(prediction, familiarity=score, abstained=marked)


def predict_stream(
    model: Posterior | SparseModel | Predictor,
    stream: StreamLike,
    *,
    n_samples: int | None,
    **options: Any,
) -> tuple[Prediction, Tensor]:
    """Predict all inputs of a stream, which is read once; its targets, (N, ...), are returned too.

    Inputs are held some at a time. Outputs of all are held, (draws, N, outputs). Where the draws
    decide when they are enough, those for the first inputs do.
    """
    predictions, targets = [], []
    for x, y in stream.epoch(_INPUTS_AT_ONCE):
        part = predict(model, x, n_samples=n_samples, targets=y, **options)
        if n_samples is None:
            n_samples = part.n_draws
        predictions.append(part)
        targets.append(y)
    return joined_predictions(predictions), torch.cat(targets)


def joined_predictions(parts: Sequence[Prediction]) -> Prediction:
    """The prediction of all inputs, from those of parts of them under the same draws.

    Example:
        >>> part = ClassPrediction(torch.zeros(2, 3, 4))
        >>> joined_predictions([part, part]).sample_log_probs.shape
        torch.Size([2, 6, 4])
    """
    first, changes = parts[0], dict[str, Any]()
    for name in ("familiarity", "abstained"):
        if getattr(first, name) is not None:
            changes[name] = torch.cat([getattr(part, name) for part in parts])
    if isinstance(first, ClassPrediction):
        logs = [part.sample_log_probs for part in parts if isinstance(part, ClassPrediction)]
        return replace(first, sample_log_probs=torch.cat(logs, 1), **changes)
    reals = [part for part in parts if isinstance(part, RealPrediction)]
    means = torch.cat([part.sample_means for part in reals], 1)
    each_has_noise = all(part.noise_std.shape[1] == part.sample_means.shape[1] for part in reals)
    noise = torch.cat([part.noise_std for part in reals], 1) if each_has_noise else first.noise_std
    return replace(first, sample_means=means, noise_std=noise, **changes)


def _mixture(
    network: Network, blocks: Sequence[tuple[Tensor, Mapping[str, Tensor]]], drawn: Drawn
) -> Prediction:
    """The prediction of all draws, from blocks of outputs (s, N, ...) and learned numbers."""
    output = torch.cat([output for output, _ in blocks])
    if bool(output.isnan().any()):
        raise ValueError("predict: the network returns NaN; its weights or inputs are damaged.")
    numbers = {name: torch.cat([row[name] for _, row in blocks]) for name in blocks[0][1]}
    return replace(network.likelihood.predictive(output, numbers), drawn=drawn)


def _enough(prediction: Prediction, targets: Tensor | None) -> bool:
    """`enough_draws`, of the positions that count."""
    if targets is not None and isinstance(prediction, ClassPrediction):
        return enough_draws(*prediction.scored(targets))
    return enough_draws(prediction, targets)


def enough_draws(prediction: Prediction, targets: Tensor | None = None) -> bool:
    """Return whether more draws would change little: `monte_carlo_error` is at most 2 %.

    That is 2 % of the negative log-likelihood of labels, 0.02 nats of that of numbers, and without
    targets a probability of 0.02, or 0.02 predictive standard deviations.

    Example:
        >>> sure, torn = torch.tensor([[[0.9, 0.1]], [[0.88, 0.12]]]), torch.eye(2)[:, None]
        >>> [enough_draws(ClassPrediction(p.log(), "independent")) for p in (sure, torn)]
        [True, False]
    """
    return relative_error(prediction, targets) <= 1


def relative_error(prediction: Prediction, targets: Tensor | None = None) -> float:
    """`monte_carlo_error` over what `enough_draws` allows.

    Example:
        >>> relative_error(ClassPrediction(torch.tensor([[[0.9, 0.1]]]).log(), "all"))
        0.0
    """
    least = 1.0
    if targets is not None and isinstance(prediction, ClassPrediction):
        least = max(negative_log_likelihood(prediction.log_probs, targets), _LEAST_NLL)
    return monte_carlo_error(prediction, targets) / (TOLERANCE * least)


def _checked(x: object) -> Input:
    x = as_inputs("predict", x)
    if tensors_of(x)[0].dim() == 0 or len(x) == 0:
        raise ValueError("predict: got no inputs.")
    if (where := first_not_finite(x)) is not None:
        raise ValueError(f"predict: inputs must be finite; example {where} holds NaN or infinity.")
    return x


def weight_vectors(
    posterior: Posterior, n_samples: int, seed: int, *, reuse: bool = False
) -> Iterator[tuple[Tensor, Buffers]]:
    """Draws in blocks of bounded memory, (s, d), and the buffers that differ between draws.

    The mean, (1, d), for no draws. A block ends after each 32 draws. With `reuse` a block is valid
    until the next, which may take its memory: a draw that stays in the cache is made and read
    faster.
    """
    if n_samples == 0:
        yield posterior.mean[None], {}
        return
    generator = generator_on(posterior.mean.device).manual_seed(seed)
    block = max(1, _DRAWS_AT_ONCE // posterior.layout.size)
    if isinstance(posterior, Samples):  # they are in memory already
        for part in posterior.choose(n_samples, generator).split(block):
            yield part.draws, part.draw_buffers
        return
    if posterior.mean.device.type == "cpu":  # which evaluates them one by one anyway
        block = max(1, _DRAWS_IN_CACHE // posterior.layout.size)
    block = min(block, n_samples, FEWEST_DRAWS)
    write, done, w = _writer(posterior, generator), 0, posterior.mean.new_empty(block, 0)
    while done < n_samples:  # the same draws whatever the block
        n = min(block, n_samples - done, FEWEST_DRAWS - done % FEWEST_DRAWS)
        if not reuse or done == 0:
            w = posterior.mean.new_empty(block if reuse else n, posterior.layout.size)
        for row in w[:n]:
            write(row)
        yield w[:n], {}
        done += n


def _writer(posterior: Posterior, generator: Generator) -> Callable[[Tensor], object]:
    """A function that writes one draw after another into its argument, (d,).

    Of a factorised posterior each draw is followed by its mirror.
    """
    if not isinstance(posterior, Factorised):
        return lambda row: row.copy_(posterior.draw(1, generator)[0])
    twice, drawn = 2 * posterior.mean, list[Tensor]()

    def write(row: Tensor) -> None:
        if drawn:
            torch.sub(twice, drawn.pop(), out=row)
        else:
            posterior.draw(1, generator, row[None])
            drawn.append(row)

    return write


def how_drawn(posterior: Posterior, n_samples: int) -> Drawn:
    """Return how `weight_vectors` chooses so many draws.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> [how_drawn(small_posterior(), n) for n in (0, 8)]
        ['all', 'pairs']
    """
    if n_samples in (0, posterior.n_kept):
        return "all"
    return "pairs" if posterior.symmetric else "independent"


def single_draws(
    posterior: Posterior, n_samples: int, seed: int
) -> Iterator[tuple[Tensor, Buffers]]:
    """The draws of `weight_vectors` one by one, (d,), each with all its buffers."""
    for w, statistics in weight_vectors(posterior, n_samples, seed):
        for i, row in enumerate(w):
            yield row, {**posterior.buffers, **{name: v[i] for name, v in statistics.items()}}


def as_point(module: nn.Module, likelihood: Likelihood) -> Samples:
    """A module as a posterior of one draw, for everything that works on posteriors.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> as_point(nn.Linear(2, 1), Gaussian()).draws.shape
        torch.Size([1, 3])
    """
    network = Network.of(module, likelihood)
    return Samples(network, network.weights_of(module)[None], None, network.buffers())


def has_spread(model: Model) -> bool:
    """Return whether draws differ from the mean.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Linear(2, 1), Gaussian())
        >>> point, three = Samples(network, torch.zeros(1, 3)), Samples(network, torch.eye(3))
        >>> has_spread(point), has_spread(three)
        (False, True)
    """
    return posterior_of(model).n_kept != 1


def draws_of(model: Model, n: int) -> int:
    """Count the draws to average: all of a chain, n of a variational posterior, 0 of a point."""
    return (posterior_of(model).n_kept or n) if has_spread(model) else 0
