"""The predictive distribution of a posterior: at its mean, or averaged over draws.

p(y | x) = 1/S Σ_s p(y | x, w_s). Draws are shared by all inputs, so weights are sampled once per
call, however many inputs there are.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Generator, Tensor, nn

from bayesieve.assess.familiarity import Familiarity, check_abstain
from bayesieve.checks import check_not_negative, check_positive
from bayesieve.core.likelihoods import ClassPrediction as ClassPrediction
from bayesieve.core.likelihoods import Prediction as Prediction
from bayesieve.core.likelihoods import RealPrediction as RealPrediction
from bayesieve.core.network import Buffers, materialise
from bayesieve.core.posterior import Posterior, Samples, SparseModel, posterior_of

_DRAWS_AT_ONCE = 64_000_000  # weights held at a time: 256 MB in float32


def predict(
    model: Posterior | SparseModel,
    x: Tensor,
    *,
    n_samples: int = 0,
    seed: int = 0,
    batch_size: int = 2048,
    familiarity: Familiarity | None = None,
    abstain: float | None = None,
) -> Prediction:
    """Predict inputs with the posterior mean, or with draws from the posterior.

    Args:
        model: a posterior or sparse model.
        x: (N, ...), of the network's input shape, on any device.
        n_samples: S; 0 uses the mean of the weights.
        seed: of the draws.
        batch_size: inputs evaluated at a time.
        familiarity: of the inputs, to state it with the prediction: `Familiarity.of(train.x)`.
        abstain: mark inputs as abstained that are stranger than this share of held-out examples.

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
    check_not_negative("predict", n_samples=n_samples)
    check_positive("predict", batch_size=batch_size)
    check_abstain("predict", abstain, familiarity)
    posterior = posterior_of(model)
    network = posterior.network
    _check_inputs(x)
    outputs, numbers = [], []
    for w, draw_buffers in weight_vectors(posterior, n_samples, seed):
        if x.is_floating_point() and x.dtype != w.dtype:
            raise TypeError(
                f"predict: inputs are {x.dtype} but the weights {w.dtype}. Convert them with "
                f".to({w.dtype})."
            )
        batches = (part.to(network.device) for part in x.split(batch_size))
        try:
            rows = [network.outputs(w, part, posterior.buffers, draw_buffers) for part in batches]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # what torch raises for shapes that do not fit
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"predict: the network fails on inputs of shape {tuple(x.shape)}: {reason}."
            ) from error
        outputs.append(torch.cat(rows, 1))
        numbers.append(network.numbers(w))
    output = torch.cat(outputs)
    if bool(output.isnan().any()):
        raise ValueError("predict: the network returns NaN; its weights or inputs are damaged.")
    drawn = {name: torch.cat([row[name] for row in numbers]) for name in numbers[0]}
    prediction = network.likelihood.predictive(output, drawn)
    if familiarity is None:
        return prediction
    score = familiarity.score(x).to(network.device)
    marked = None if abstain is None else score < 1 - abstain
    return replace(prediction, familiarity=score, abstained=marked)


def _check_inputs(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(
            f"predict: inputs must be a tensor, got {type(x).__name__}. Use torch.as_tensor."
        )
    if x.dim() == 0 or len(x) == 0:
        raise ValueError("predict: got no inputs.")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        where = int((~torch.isfinite(x)).reshape(len(x), -1).any(1).nonzero()[0])
        raise ValueError(f"predict: inputs must be finite; example {where} holds NaN or infinity.")


def weight_vectors(
    posterior: Posterior, n_samples: int, seed: int
) -> Iterator[tuple[Tensor, Buffers]]:
    """Draws in blocks of bounded memory, (s, d), and the buffers that differ between draws.

    The mean, (1, d), for no draws.
    """
    if n_samples == 0:
        yield posterior.mean[None], {}
        return
    generator = Generator(posterior.mean.device).manual_seed(seed)
    block = max(1, _DRAWS_AT_ONCE // posterior.layout.size)
    if isinstance(posterior, Samples):  # they are in memory already
        for part in posterior.choose(n_samples, generator).split(block):
            yield part.draws, part.draw_buffers
        return
    for start in range(0, n_samples, block):  # one by one: the same draws whatever the block
        n = min(block, n_samples - start)
        yield torch.cat([posterior.draw(1, generator) for _ in range(n)]), {}


def single_draws(
    posterior: Posterior, n_samples: int, seed: int
) -> Iterator[tuple[Tensor, Buffers]]:
    """The draws of `weight_vectors` one by one, (d,), each with all its buffers."""
    for w, statistics in weight_vectors(posterior, n_samples, seed):
        for i, row in enumerate(w):
            yield row, {**posterior.buffers, **{name: v[i] for name, v in statistics.items()}}


def drawn_modules(posterior: Posterior, n: int, seed: int) -> tuple[Tensor, list[nn.Module]]:
    """The n > 0 draws that `predict` takes, (n, d), and the network with each of them."""
    draws = list(single_draws(posterior, n, seed))
    modules = [materialise(posterior.network, *draw) for draw in draws]
    return torch.stack([row for row, _ in draws]), modules
