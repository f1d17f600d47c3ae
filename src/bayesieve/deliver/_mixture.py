"""Posterior draws of a network as one module that returns the mean and the uncertainty.

Formulas as in `assess.metrics`, without the checks of arguments that a traced graph cannot hold.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.likelihoods import Bernoulli, RealLikelihood
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Posterior, Samples

CLASS_OUTPUTS = ("probability", "entropy", "mutual_information")
REAL_OUTPUTS = ("mean", "aleatoric_std", "epistemic_std")


class ClassMixture(nn.Module):
    """Class probabilities of K networks: mean, entropy of the mean, mutual information.

    Args:
        draws: networks that return logits, (n, classes), or one logit each where `binary`.
        binary: whether the two classes are the complement and the sigmoid of that logit.
    """

    def __init__(self, draws: Sequence[nn.Module], *, binary: bool) -> None:
        super().__init__()
        self.draws = nn.ModuleList(draws)
        self.binary = binary

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (n, ...) to (n, classes), (n,), (n,)."""
        output = torch.stack([draw(x) for draw in self.draws])
        if self.binary:
            logit = output.flatten(2)
            log_p = torch.cat([F.logsigmoid(-logit), F.logsigmoid(logit)], -1)
        else:
            log_p = F.log_softmax(output, -1)
        log_mean = torch.logsumexp(log_p, 0) - math.log(len(self.draws))
        mean = log_mean.exp()
        information = (log_p.exp() * (log_p - log_mean)).sum(-1).mean(0)
        return mean, -(mean * log_mean).sum(-1), information.clamp_min(0)


class RealMixture(nn.Module):
    """Real predictions of K networks: their mean, the observation noise, their spread.

    Args:
        draws: networks that return (n, ...).
        likelihood: says which part of their outputs is a mean, and what the noise is.
        extra: its learned numbers under each draw, (K,) each.
    """

    def __init__(
        self, draws: Sequence[nn.Module], likelihood: RealLikelihood, extra: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.draws = nn.ModuleList(draws)
        self.likelihood = likelihood
        self.names = tuple(extra)
        for name, values in extra.items():
            self.register_buffer(f"extra_{name}", values.detach().clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (n, ...) to three tensors of shape (n, m)."""
        output = torch.stack([draw(x).flatten(1) for draw in self.draws])
        extra = {name: getattr(self, f"extra_{name}") for name in self.names}
        means, noise = self.likelihood.moments(output, extra)
        mean = means.mean(0)
        spread = (means - mean).square().mean(0).sqrt()
        return mean, noise.square().mean(0).sqrt().expand_as(mean), spread


def bake(posterior: Posterior, n_samples: int, seed: int) -> ClassMixture | RealMixture:
    """The posterior's network with `n_samples` draws, those that `predict` makes of this seed."""
    generator = Generator(posterior.mean.device).manual_seed(seed)
    own: Mapping[str, Tensor] = {}
    if isinstance(posterior, Samples):
        chosen = posterior.choose(n_samples, generator)
        w, own = chosen.draws, chosen.draw_buffers
    else:  # one by one
        w = torch.cat([posterior.draw(1, generator) for _ in range(n_samples)])
    network, likelihood = posterior.network, posterior.network.likelihood
    draws = []
    for i, row in enumerate(w):
        buffers = {**posterior.buffers, **{name: value[i] for name, value in own.items()}}
        draws.append(materialise(network, row, buffers))
    if isinstance(likelihood, RealLikelihood):
        return RealMixture(draws, likelihood, network.split(w)[1]).eval()
    return ClassMixture(draws, binary=isinstance(likelihood, Bernoulli)).eval()


def reference(posterior: Posterior, x: Tensor, n_samples: int, seed: int) -> dict[str, Tensor]:
    """What the mixture must return, by `predict`."""
    found = predict(posterior, x, n_samples=n_samples, seed=seed)
    if isinstance(found, ClassPrediction):
        return dict(zip(CLASS_OUTPUTS, (found.probs, found.entropy, found.epistemic), strict=True))
    values = (found.mean, found.aleatoric_std, found.epistemic_std)
    return dict(zip(REAL_OUTPUTS, values, strict=True))
