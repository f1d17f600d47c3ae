"""Bayes' rule batch by batch: mean-field inference whose prior is the posterior of earlier rows.

With the old posterior q₀ = Π N(m₀, s₀²) and the new one q = Π N(m₀ + s₀ z, (s₀ eʳ)²), maximise over
the new rows alone

    E_q[log p(D_new | w)] - Σ [ ½ (e²ʳ + z² - 1) - r ].

For a linear model with orthogonal inputs this is exact: two batches in turn give the posterior of
both together.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Factorised, Posterior, SparseModel
from bayesieve.core.priors import SpikeSlab, inclusion_logit
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.engines.optimisers import Moments, adam_, pace_of
from bayesieve.estimators.population import Table, Training, train_networks


@dataclass
class OnlineState:
    """Everything that changes or is needed from step to step."""

    offset: Tensor  # z, and the change of point parameters, (1, d)
    log_ratio: Tensor  # r, (1, n_bayesian)
    old_mean: Tensor  # m₀, (1, d)
    unit: Tensor  # s₀, 0 where pruned and 1 for point parameters, (1, d)
    offset_moments: Moments
    ratio_moments: Moments
    step: Tensor  # scalar
    controls: Controls
    generator: Generator

    @property
    def mean(self) -> Tensor:
        """New means, (1, d)."""
        return self.old_mean + self.unit * self.offset


@dataclass(frozen=True, eq=False)
class Online:
    """Engine that starts from a posterior and takes it as the prior.

    Args:
        prior: the posterior of all earlier rows.
        lr: Adam learning rate, in units of the prior's standard deviation for Bayesian weights.
    """

    prior: Factorised = field(repr=False)
    lr: float = 5e-3

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> OnlineState:
        """Start at the posterior of the earlier rows."""
        n, prior = problem.layout.n_bayesian, self.prior.to(problem.device)
        unit = prior.std[None].clone()
        unit[:, n:] = 1
        offset = torch.zeros_like(unit)
        return OnlineState(
            offset=offset,
            log_ratio=torch.zeros_like(unit[:, :n]),
            old_mean=prior.mean[None].clone(),
            unit=unit,
            offset_moments=Moments.zeros_like(offset),
            ratio_moments=Moments.zeros_like(offset[:, :n]),
            step=offset.new_zeros(()),
            controls=Controls.neutral(offset),
            generator=generator,
        )

    def warm_start_(self, state: OnlineState, posterior: Posterior) -> None:
        """Do nothing: `init` has started there."""

    def step(self, problem: Problem, state: OnlineState, batch: Batch) -> Metrics:
        """One reparameterised gradient step in place; pruned weights stay 0."""
        n, n_data = state.log_ratio.shape[1], problem.n_data
        ratio = state.log_ratio.exp()
        shift = ratio * torch.empty_like(ratio).normal_(generator=state.generator)
        w = state.mean
        w[:, :n] += state.unit[:, :n] * shift
        log_lik, grad = problem.value_and_grad(w, batch)
        pull = grad * state.unit / -n_data  # of (KL - log_lik) / N, data part, for z
        kl = state.controls.kl_scale / n_data
        to_ratio = kl * (ratio.square() - 1) + pull[:, :n] * shift
        pull[:, :n] += kl * state.offset[:, :n]
        state.step += 1
        rate = state.offset.new_full((), self.lr) * state.controls.lr_scale
        pace = pace_of(rate, state.step)
        adam_(state.offset, pull, state.offset_moments, pace)
        adam_(state.log_ratio, to_ratio, state.ratio_moments, pace)
        return {"log_lik": log_lik}

    def kl(self, state: OnlineState) -> Tensor:
        """KL from the old posterior in nats, (1,)."""
        n, r = state.log_ratio.shape[1], state.log_ratio
        kl = 0.5 * ((2 * r).exp() + state.offset[:, :n].square() - 1) - r
        return kl.sum(1, dtype=torch.float64)

    def posterior(self, problem: Problem, state: OnlineState, member: int = 0) -> Factorised:
        """Means and standard deviations; pruned weights stay 0."""
        n = state.log_ratio.shape[1]
        std = torch.zeros_like(state.unit[0])
        std[:n] = state.unit[0, :n] * state.log_ratio[0].exp()
        mean, buffers = state.mean[0].detach().clone(), self.prior.buffers
        return Factorised(problem.network, mean, std, buffers=buffers)

    def named(self, posterior: Posterior) -> Factorised:
        """The new posterior with the first prior's inclusion probabilities."""
        assert isinstance(posterior, Factorised)
        first, logit = self.prior.prior, None
        if isinstance(first, SpikeSlab) and self.prior.logit_inclusion is not None:
            n = posterior.layout.n_bayesian
            logit = torch.full_like(posterior.mean, torch.inf)
            logit[:n] = inclusion_logit(posterior.mean[:n], posterior.std[:n], first)
            logit = logit.masked_fill(self.prior.logit_inclusion == -torch.inf, -torch.inf)
        return replace(posterior, prior=first, logit_inclusion=logit)


def continued(
    who: str,
    model: SparseModel,
    table: Table,
    likelihood: Likelihood,
    training: Training,
    *,
    lr: float,
) -> SparseModel:
    """The model after more rows, for which its posterior is the prior; raises without spread."""
    posterior = model.posterior
    if not isinstance(posterior, Factorised):
        raise TypeError(
            f"{who}: partial_fit needs a posterior of means and standard deviations to be the "
            f"next prior, got {type(posterior).__name__}. Use engine='sbnn' or 'flat-vi'."
        )
    engine = Online(posterior, lr)
    run = train_networks(
        model.to_module(), likelihood, table, None, engine, training, start_from=model
    )
    return SparseModel(engine.named(run.posterior), model.keep)
