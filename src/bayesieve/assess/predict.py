"""The predictive distribution of a posterior: at its mean, or averaged over draws.

p(y | x) = 1/S Σ_s p(y | x, w_s). Draws are shared by all inputs, so weights are sampled once per
call, however many inputs there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bayesieve.assess.metrics import (
    expected_entropy,
    interval,
    mutual_information,
    predictive_entropy,
    predictive_log_probs,
    predictive_moments,
)
from bayesieve.checks import check_positive
from bayesieve.core.likelihoods import Bernoulli, RealLikelihood, StudentT
from bayesieve.core.network import Buffers, Network
from bayesieve.core.posterior import Posterior, Samples, SparseModel, posterior_of

_DRAWS_AT_ONCE = 64_000_000  # weights held at a time: 256 MB in float32


@dataclass(frozen=True, eq=False)
class ClassPrediction:
    """Class probabilities of N inputs under S weight vectors.

    Args:
        sample_log_probs: (S, N, C), nats.
    """

    sample_log_probs: Tensor

    @cached_property
    def log_probs(self) -> Tensor:
        """Log of the averaged probabilities, (N, C)."""
        return predictive_log_probs(self.sample_log_probs)

    @property
    def probs(self) -> Tensor:
        """Averaged probabilities, (N, C)."""
        return self.log_probs.exp()

    @property
    def label(self) -> Tensor:
        """Most probable class, (N,)."""
        return self.log_probs.argmax(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """Total uncertainty in nats, (N,)."""
        return predictive_entropy(self.sample_log_probs)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Part of the entropy that each weight vector agrees on: noise in the data, (N,)."""
        return expected_entropy(self.sample_log_probs)

    @cached_property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights: what more data could resolve, (N,)."""
        return mutual_information(self.sample_log_probs)


@dataclass(frozen=True, eq=False)
class RealPrediction:
    """Real-valued predictions of N inputs under S weight vectors, in the units of training.

    Args:
        sample_means: (S, N, m).
        noise_std: (S, 1, 1) or (S, N, m), standard deviation of the observation noise.
        df: degrees of freedom of Student-t noise; None is Gaussian noise.
    """

    sample_means: Tensor
    noise_std: Tensor
    df: float | None = None

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        return predictive_moments(self.sample_means, self.noise_std)

    @property
    def mean(self) -> Tensor:
        """Predictive mean, (N, m)."""
        return self._moments[0]

    @property
    def aleatoric_std(self) -> Tensor:
        """Noise of the data, (N, m)."""
        return self._moments[1]

    @property
    def epistemic_std(self) -> Tensor:
        """Spread of the weight vectors' means, (N, m)."""
        return self._moments[2]

    @property
    def std(self) -> Tensor:
        """Predictive standard deviation, (N, m)."""
        return (self.aleatoric_std.square() + self.epistemic_std.square()).sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central interval of the given probability, two tensors of shape (N, m)."""
        return interval(self.mean, self.std, level, self.df)


Prediction = ClassPrediction | RealPrediction


def predict(
    model: Posterior | SparseModel,
    x: Tensor,
    *,
    n_samples: int = 0,
    seed: int = 0,
    batch_size: int = 2048,
) -> Prediction:
    """Predict inputs with the posterior mean, or with draws from the posterior.

    Args:
        model: a posterior or sparse model.
        x: (N, ...), of the network's input shape, on any device.
        n_samples: S; 0 uses the mean of the weights.
        seed: of the draws.
        batch_size: inputs evaluated at a time.

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
    if n_samples < 0:
        raise ValueError(f"predict: n_samples must be >= 0, got {n_samples}.")
    check_positive("predict", batch_size=batch_size)
    posterior = posterior_of(model)
    network = posterior.network
    _check_inputs(x)
    outputs, extras = [], []
    for w, own in weight_vectors(posterior, n_samples, seed):
        if x.is_floating_point() and x.dtype != w.dtype:
            raise TypeError(
                f"predict: inputs are {x.dtype} but the weights {w.dtype}. Convert them with "
                f".to({w.dtype})."
            )
        parts = (part.to(network.device) for part in x.split(batch_size))
        try:
            rows = [network.outputs(w, part, posterior.buffers, own) for part in parts]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # what torch raises for shapes that do not fit
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"predict: the network fails on inputs of shape {tuple(x.shape)}: {reason}."
            ) from error
        outputs.append(torch.cat(rows, 1))
        extras.append(network.split(w)[1])
    output = torch.cat(outputs)
    if isinstance(network.likelihood, RealLikelihood):
        extra = {name: torch.cat([own[name] for own in extras]) for name in extras[0]}
        df = network.likelihood.df if isinstance(network.likelihood, StudentT) else None
        return RealPrediction(*network.likelihood.moments(output, extra), df)
    return ClassPrediction(_log_probs(network, output))


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
    """Draws in blocks of bounded memory, (s, d), and buffers of their own, (s, ...) each.

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


def _log_probs(network: Network, output: Tensor) -> Tensor:
    """Outputs (S, N, ...) as log class probabilities (S, N, C); a Bernoulli has two classes."""
    if isinstance(network.likelihood, Bernoulli):
        logit = output.reshape(*output.shape[:2], -1)
        if logit.shape[-1] != 1:
            raise ValueError(
                f"predict: class predictions of a Bernoulli need one output, got {logit.shape[-1]}."
            )
        return torch.cat([F.logsigmoid(-logit), F.logsigmoid(logit)], -1)
    if output.dim() != 3:
        raise ValueError(
            "predict: class predictions need one row of outputs per input, got shape "
            f"{tuple(output.shape[1:])} for {output.shape[1]} inputs."
        )
    return F.log_softmax(output, -1)
