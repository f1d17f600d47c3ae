"""Mean-field Gaussian variational inference: the plain Bayesian network.

With q(w) = Π N(w; m, s²) maximise E_q[log p(D | w)] - KL[q || p] by reparameterised gradients.
Under a Normal prior the KL is exact. Under a SpikeSlab prior it has no closed form and is replaced
by log q(w) - log p(w) at the sampled weight: Bayes by Backprop.

Reference: [Blundell], section 3.
Symbols: m mean, s = exp(log_std), r slab responsibility at the sampled weight.
Departures: s = exp(log_std) in place of softplus; Adam; the objective is divided by N.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesieve.checks import AUTO, check_choice, check_kind, check_positive, chosen
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.noise import Noise, WeightNoise, noise_of
from bayesieve.core.posterior import Factorised
from bayesieve.core.priors import (
    Normal,
    Number,
    SpikeSlab,
    inclusion_logit,
    mixture_numbers,
    mixture_precision,
    normal_kl,
    per_model,
)
from bayesieve.core.problem import Problem, starting_points
from bayesieve.core.random import generator_on
from bayesieve.engines.variational import (
    MeanField,
    PriorNumbers,
    adam_step_,
    factorised,
    mean_field,
    warm_start_,
)


@dataclass(frozen=True)
class FlatVI:
    """Mean-field Gaussian engine.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: Normal (exact KL), or SpikeSlab evaluated at the sampled weight (Bayes by Backprop).
        lr: Adam learning rate; the objective is in nats per example.
        init_std: starting s of every weight.
        start: starting means: "module" (the model's own) or "he" (uniform in ±√(6 / fan_in)).
        local: add the noise to activations of Linear and Conv layers instead of weights; needs a
            Normal prior.

    Example:
        >>> FlatVI(prior=Normal(0.3), lr=(1e-3, 1e-2)).lr  # two models of a population
        (0.001, 0.01)
    """

    prior: Normal | SpikeSlab = field(default_factory=lambda: Normal(AUTO))
    lr: Number = AUTO
    init_std: Number = AUTO
    start: Literal["module", "he"] = "module"
    local: bool = AUTO

    warm_start_ = staticmethod(warm_start_)

    def __post_init__(self) -> None:
        check_kind("FlatVI", "prior", self.prior, Normal, SpikeSlab)
        check_positive("FlatVI", lr=self.lr, init_std=self.init_std)
        check_choice("FlatVI", "start", self.start, ("module", "he"))
        if isinstance(self.prior, SpikeSlab) and self.local:
            raise ValueError(
                "FlatVI: a SpikeSlab prior is evaluated at sampled weights and local noise "
                "samples none; set local=False, or use SBNN."
            )

    @property
    def noise(self) -> Noise:
        """Noise of the draws; all processes see a SpikeSlab prior at one of them."""
        return WeightNoise(one=True) if isinstance(self.prior, SpikeSlab) else noise_of(self.local)

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> MeanField:
        """Start every mean at the initial weights and every std at `init_std`."""
        problem.layout.check_bayesian("FlatVI")
        mean = starting_points(problem, n_models, generator, self.start)
        numbers = self._numbers(mean)
        lr, init_std = chosen(self.lr, 1e-3), chosen(self.init_std, 0.018)
        return mean_field(problem, mean, init_std, lr, numbers, generator)

    def step(self, problem: Problem, state: MeanField, batch: Batch) -> Metrics:
        """Draw w, take the gradient of log p(D | w), move (m, log s); in place."""
        found, step_ = self.noise.gradients(problem, state, batch), problem.run(adam_step_)
        if isinstance(self.prior, Normal):
            step_(problem, state, found, constant_precision)
        else:  # the prior at the draw: [Saha], eq. 3.16
            step_(problem, state, found, mixture_precision, True)
        return {"log_lik": found.log_lik}

    def kl(self, state: MeanField) -> Tensor:
        """KL from prior to posterior in nats, (k,); one-draw estimate under a SpikeSlab prior."""
        mean = state.mean[:, : state.log_std.shape[1]]
        if isinstance(prior := self._prior, Normal):
            term = partial(normal_kl, prior_std=per_model(prior.std, mean))
            return state.controls.total_of(term, mean, state.log_std)
        # A fixed generator: reporting must not disturb the training draws.
        source = generator_on(mean.device).manual_seed(0)
        noise = torch.empty_like(mean).normal_(generator=source)
        w = torch.addcmul(mean, state.log_std.exp(), noise)
        log_q = Normal(1.0).log_prob(noise) - state.log_std
        return state.controls.total(log_q - prior.log_prob(w))

    def posterior(self, problem: Problem, state: MeanField, member: int = 0) -> Factorised:
        """q(w) of one member; a SpikeSlab prior gives the responsibility at its mean."""
        prior = self._prior.member(member)
        logit = None
        if isinstance(prior, SpikeSlab):
            mean = state.mean[member, problem.layout.bayesian]
            logit = inclusion_logit(mean, torch.zeros_like(mean), prior)
        return factorised(problem, state, member, prior, logit, self.noise)

    @property
    def _prior(self) -> Normal | SpikeSlab:
        """The prior with a number for the std of a normal one that nobody chose."""
        prior = self.prior
        return Normal(chosen(prior.std, 0.1)) if isinstance(prior, Normal) else prior

    def _numbers(self, like: Tensor) -> PriorNumbers:
        if isinstance(prior := self._prior, Normal):
            precision = per_model(prior.std, like) ** -2
            unused = like.new_zeros(())
            return PriorNumbers(unused, unused, precision)
        return PriorNumbers(*mixture_numbers(prior, like))


def constant_precision(second_moment: Tensor, *numbers: Tensor) -> Tensor:
    """κ = 1/τ² of a Normal, the last of the numbers, whatever the weight."""
    return numbers[-1]
