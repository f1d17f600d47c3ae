"""Predictive distributions of N inputs under S weight vectors, of class labels or real numbers.

With p_s the class probabilities under draw s and p̄ their mean,

    H[p̄]  =  mean_s H[p_s]  +  mean_s KL(p_s || p̄)
    total     aleatoric         epistemic (mutual information of label and weights)

The variance of real numbers splits likewise into mean_s noise_s² and var_s mean_s. The formulas
are plain tensor code, so that an exported graph can contain them. Prediction objects compute in
float64.

H[p̄] of few draws is too small on average, and the mutual information with it: p̄ is still moved by
its draws. Both are corrected by the jackknife, unless the draws are the whole posterior.

A temperature T makes the prediction p̄^(1/T), renormalised; of real numbers it multiplies the
variance. The epistemic part follows: of all joint distributions of draw and label with the
new p̄, the one nearest to that of the draws keeps p(draw | label), and its mutual information is
stated. Of real numbers both parts of the variance are multiplied by T.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_positive

if TYPE_CHECKING:
    from bayesieve.core.likelihoods.real import RealLikelihood

# Weight vectors of a prediction: all that the posterior has, independent draws of it, or pairs
# (mean + e, mean - e) one after the other, whose means are independent.
Drawn = Literal["all", "independent", "pairs"]
IGNORED = -(2**63)  # label of a position that does not count; no other negative number is let pass


def wrong_share(found: Tensor, labels: Tensor) -> Tensor:
    """Share of positions, (n, ...), with another label; those that are `IGNORED` do not count.

    Example:
        >>> wrong_share(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, IGNORED]]))
        tensor([0.5000], dtype=torch.float64)
    """
    counted = (labels != IGNORED).reshape(len(labels), -1)
    wrong = (found != labels).reshape(len(labels), -1) & counted
    return wrong.double().sum(1) / counted.sum(1).clamp_min(1)


def log_mean_prob(sample_log_probs: Tensor) -> Tensor:
    """Log of the mean probabilities over draws: (S, N, C) to (N, C)."""
    return torch.logsumexp(sample_log_probs, 0) - math.log(sample_log_probs.shape[0])


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy over the last axis in nats; zero probability (-inf) contributes zero."""
    return -(log_probs.exp() * _finite(log_probs)).sum(-1).clamp_max(0)


def at_temperature(log_probs: Tensor, temperature: float) -> Tensor:
    """Log of p^(1/T), renormalised over the last axis."""
    return log_probs if temperature == 1.0 else torch.log_softmax(log_probs / temperature, -1)


def information(sample_log_probs: Tensor, temperature: float = 1.0) -> Tensor:
    """Mutual information of label and weights in nats, at least 0: (S, N, C) to (N,).

    Example:
        >>> sure = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]).log()
        >>> [round(information(sure, t).item(), 4) for t in (1.0, 2.0)]  # p̄ is even at both
        [0.3681, 0.3681]
    """
    log_mean = log_mean_prob(sample_log_probs)
    gap = _finite(sample_log_probs) - _finite(log_mean)  # log p(draw | label) S
    if temperature == 1.0:
        return (sample_log_probs.exp() * gap).sum(-1).mean(0).clamp_min(0)  # rounding only
    joint = gap + at_temperature(log_mean, temperature)  # log p(draw, label) S
    gain = gap - joint.logsumexp(-1, keepdim=True)
    return (joint.exp() * gain).sum(-1).mean(0).clamp_min(0)


def independent_means(values: Tensor, drawn: Drawn) -> Tensor:
    """Values of draws, or means of their pairs: (S, ...) to (U, ...); an odd last draw is left out.

    Example:
        >>> independent_means(torch.tensor([1.0, 3.0, 5.0, 6.0, 7.0]), "pairs")
        tensor([2.0000, 5.5000])
    """
    return (
        values[: len(values) // 2 * 2].unflatten(0, (-1, 2)).mean(1) if drawn == "pairs" else values
    )


def missing_entropy(sample_log_probs: Tensor, drawn: Drawn) -> Tensor:
    """Estimate the bias of the entropy H[p̄] of few draws, (S, N, C) to (N,), by the jackknife.

    Right on average: with a handful of draws the sum may exceed the largest possible entropy.

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]).log()
        >>> [round(missing_entropy(draws, kind).item(), 4) for kind in ("all", "independent")]
        [0.0, 0.0324]
    """
    units = independent_means(sample_log_probs.exp(), drawn)
    n, mean = len(units), units.mean(0)
    if drawn == "all" or n < 2:
        return torch.zeros_like(mean[..., 0])
    without = ((n * mean - units) / (n - 1)).clamp_min(0)
    gap = (n - 1) * (entropy(mean.log()) - entropy(without.log()).mean(0))
    return gap.clamp_min(0)  # rounding only


def mixture_moments(sample_means: Tensor, noise_std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, aleatoric and epistemic std over the first axis; the epistemic part divides by S."""
    mean = sample_means.mean(0)
    aleatoric = noise_std.expand_as(sample_means).square().mean(0).sqrt()
    return mean, aleatoric, (sample_means - mean).square().mean(0).sqrt()


def _finite(log_probs: Tensor) -> Tensor:
    # exp(-inf) * lowest float is exactly 0, the limit of p log p; exp(-inf) * -inf would be NaN
    return log_probs.clamp_min(torch.finfo(log_probs.dtype).min)


@dataclass(frozen=True, eq=False)
class ClassPrediction:
    """Class probabilities of N inputs under S weight vectors.

    With several labels for each input (positions of a sequence, pixels, the outputs of a
    multi-label network) every N below is N, ...: the inputs, then the axes of the positions.

    Args:
        sample_log_probs: (S, N, C), nats.
        drawn: how the weight vectors were chosen.
        temperature: T of the averaged probabilities; `tempered` sets it.
        familiarity: (N,), OOD score: the fraction of held-out examples at least as unfamiliar.
        abstained: (N,) bool, inputs too unfamiliar to answer; None if not asked.
    """

    sample_log_probs: Tensor
    drawn: Drawn = "all"
    temperature: float = 1.0
    familiarity: Tensor | None = None
    abstained: Tensor | None = None

    @property
    def n_draws(self) -> int:
        """S."""
        return len(self.sample_log_probs)

    @property
    def positions(self) -> torch.Size:
        """Shape of the positions of one input; empty where it has one label."""
        return self.sample_log_probs.shape[2:-1]

    def scored(self, labels: Tensor) -> "tuple[ClassPrediction, Tensor]":
        """One row for each label that counts: the prediction (S, M, C), and the labels, (M,).

        Args:
            labels: class numbers (N,), `IGNORED` where none counts; or probabilities, (N, C).

        Example:
            >>> even = ClassPrediction(torch.tensor(0.5).log().expand(1, 2, 3, 2))
            >>> rows, labels = even.scored(torch.tensor([[0, 1, IGNORED], [1, IGNORED, IGNORED]]))
            >>> tuple(rows.sample_log_probs.shape), labels.tolist()
            ((1, 3, 2), [0, 1, 1])
        """
        log_probs = self.sample_log_probs
        if labels.is_floating_point() and labels.shape == log_probs.shape[1:]:
            labels = labels.argmax(-1)
        shape = log_probs.shape[1:-1]
        if labels.numel() != shape.numel():
            raise ValueError(
                f"predictions have shape {tuple(shape)}, labels {tuple(labels.shape)}."
            )
        labels = labels.reshape(shape).to(log_probs.device).long()
        counted = labels != IGNORED
        if not self.positions and bool(counted.all()):
            return self, labels
        whole = replace(self, sample_log_probs=log_probs[:, counted])
        return replace(whole, familiarity=None, abstained=None), labels[counted]

    def log_densities(self, targets: Tensor) -> Tensor:
        """Log probability of labels, (N,), under each draw, (S, N)."""
        index = targets.long().expand(self.n_draws, *targets.shape)[..., None]
        return self._draws.gather(-1, index)[..., 0]

    @cached_property
    def _draws(self) -> Tensor:
        return self.sample_log_probs.detach().double()

    @cached_property
    def log_probs(self) -> Tensor:
        """Log of the averaged probabilities, (N, C)."""
        return at_temperature(log_mean_prob(self._draws), self.temperature)

    def tempered(self, temperature: float) -> "ClassPrediction":
        """Return the prediction p̄^(1/T), with its uncertainty."""
        check_positive("tempered", temperature=temperature)
        return replace(self, temperature=self.temperature * temperature)

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
        """Total uncertainty in nats, (N,): the sum of the next two."""
        return entropy(self.log_probs) + self._missing

    @cached_property
    def aleatoric(self) -> Tensor:
        """Part of the entropy that each weight vector agrees on: noise in the data, (N,)."""
        return (self.entropy - self.epistemic).clamp_min(0)  # rounding only

    @cached_property
    def epistemic(self) -> Tensor:
        """Mutual information of label and weights: what more data could resolve, (N,)."""
        return self._information + self._missing

    @cached_property
    def _information(self) -> Tensor:
        return information(self._draws, self.temperature)

    @cached_property
    def _missing(self) -> Tensor:
        """Estimate the bias of few draws, in proportion to the information at this temperature."""
        missing = missing_entropy(self._draws, self.drawn)
        if self.temperature == 1.0:
            return missing
        plain = information(self._draws)
        return missing * self._information / plain.clamp_min(torch.finfo(plain.dtype).tiny)

    def sample(self, n: int, generator: Generator) -> Tensor:
        """Labels drawn from the averaged probabilities, (n, N)."""
        rows = self.probs.flatten(0, -2)
        drawn = torch.multinomial(rows, n, replacement=True, generator=generator).T
        return drawn.reshape(n, *self.probs.shape[:-1])


@dataclass(frozen=True, eq=False)
class RealPrediction:
    """Real-valued predictions of N inputs under S weight vectors, in the units of training.

    Args:
        sample_means: (S, N, m).
        noise_std: (S, 1, 1) or (S, N, m), standard deviation of the observation noise.
        likelihood: the family of the noise.
        drawn, familiarity, abstained: as of a `ClassPrediction`.
    """

    sample_means: Tensor
    noise_std: Tensor
    likelihood: "RealLikelihood"
    drawn: Drawn = "all"
    familiarity: Tensor | None = None
    abstained: Tensor | None = None

    @property
    def n_draws(self) -> int:
        """S."""
        return len(self.sample_means)

    def log_densities(self, targets: Tensor) -> Tensor:
        """Log density of targets, (N, m), all outputs of one together, under each draw, (S, N)."""
        means, noise = self.sample_means.detach().double(), self.noise_std.detach().double()
        shaped = targets.reshape(means.shape[1:]).double()
        return self.likelihood.log_density(shaped, means, noise).sum(-1)

    def tempered(self, temperature: float) -> "RealPrediction":
        """The prediction with T times the variance: of the noise and of the draws."""
        check_positive("tempered", temperature=temperature)
        factor, means = temperature**0.5, self.sample_means
        centre = means.mean(0)
        return replace(
            self,
            sample_means=centre + factor * (means - centre),
            noise_std=factor * self.noise_std,
        )

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        means, noise = self.sample_means.detach().double(), self.noise_std.detach().double()
        return mixture_moments(means, noise)

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
        return self.likelihood.interval(self.mean, self.std, level)

    def sample(self, n: int, generator: Generator) -> Tensor:
        """Targets drawn from the mixture over weight vectors, (n, N, m)."""
        means = self.sample_means.detach().double()
        device = means.device
        rows = torch.randint(len(means), (n,), generator=generator, device=device)
        std = self.noise_std.detach().double().expand_as(means)[rows]
        return self.likelihood.draw(means[rows], std, generator)


Prediction = ClassPrediction | RealPrediction
