"""Stochastic gradient Langevin dynamics (SGLD) and Hamiltonian Monte Carlo (SGHMC).

With Q(w) the log posterior, its data part estimated from a batch and scaled by N/n, SGLD repeats

    w ← w + ε ∇Q(w) + √(2 ε T) ξ,   ξ ~ N(0, I),                                      (eq. L1)

and SGHMC, with friction α and β̂ = ½ V ε the share of the noise that the gradient itself brings,

    v ← (1 - α) v + ε ∇Q(w) + √(2 ε (α - β̂) T) ξ,   w ← w + v.                        (eq. H1)

α = 1 and V = 0 give SGLD; T = 0 is gradient ascent, with momentum 1 - α. With a `GaussianLaplace`
prior and adapt="sa" the latent numbers of the prior are averaged along the chain by stochastic
approximation (SGLD-SA, SGHMC-SA); adapt="em" replaces them at every step (SGLD-EM, SGHMC-EM).

Reference: [Deng], algorithm 1; [Welling] for SGLD, whose ε is twice ours; [Saatci], algorithm 1,
for this form of the sampler of [Chen].
Symbols: ε step_size, T = 1/τ temperature, ξ noise, v velocity, α friction, V gradient_variance; the
prior's are in core/priors.py.
Departures: those of engines/sampling.py; point parameters follow plain gradient ascent: no prior,
no noise.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bayesieve.checks import check_fraction, check_not_negative, check_positive
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.problem import Problem
from bayesieve.engines.sampling import ChainState, Sampler, advance_, lengths, slope


def noise_std(
    step_size: Tensor, friction: float, gradient_variance: float, temperature: Tensor
) -> Tensor:
    """Standard deviation of the noise added to the velocity, eq. H1.

    Example:
        >>> noise_std(Tensor([0.5]), 1.0, 0.0, Tensor([1.0])).item()
        1.0
    """
    remaining = friction - 0.5 * gradient_variance * step_size
    return (2 * step_size * remaining * temperature).sqrt()


@dataclass(frozen=True)
class SGLD(Sampler):
    """Langevin engine. Settings are those of `Sampler`, with ε that of eq. L1.

    Example:
        >>> SGLD(step_size=1e-4).adapt
        'none'
    """

    def step(self, problem: Problem, state: ChainState, batch: Batch) -> Metrics:
        """Eq. L1, then one update of the prior's latent numbers; in place."""
        at = slope(problem, state, batch)
        state.step += 1
        size, temperature = lengths(self, state)
        advance_(problem, self, state, at, size, noise_std(size, 1.0, 0.0, temperature), 0.0)
        return {"log_lik": at.log_lik}


@dataclass(frozen=True)
class SGHMC(Sampler):
    """Hamiltonian engine. Settings are those of `Sampler`, with ε that of eq. H1, and two more.

    Args:
        friction: α in (0, 1], 1 - momentum.
        gradient_variance: V, guess of the gradient's own noise in units of 1 / step_size.

    Example:
        >>> SGHMC(step_size=1e-4).friction
        0.1
    """

    friction: float = 0.1
    gradient_variance: float = 1.0
    _momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("SGHMC", friction=self.friction)
        check_fraction("SGHMC", friction=self.friction)
        check_not_negative("SGHMC", gradient_variance=self.gradient_variance)
        sizes = self.epsilon if isinstance(self.epsilon, tuple) else (self.epsilon,)
        if 0.5 * self.gradient_variance * max(sizes) > self.friction:
            raise ValueError(
                f"SGHMC: gradient_variance * step_size / 2 must be <= friction, got "
                f"{0.5 * self.gradient_variance * max(sizes)} > {self.friction}. "
                "Lower step_size (`lr`) or raise `friction`."
            )

    def step(self, problem: Problem, state: ChainState, batch: Batch) -> Metrics:
        """Eq. H1, then one update of the prior's latent numbers; in place."""
        at = slope(problem, state, batch)
        state.step += 1
        size, temperature = lengths(self, state)
        std = noise_std(size, self.friction, self.gradient_variance, temperature)
        advance_(problem, self, state, at, size, std, 1 - self.friction)
        return {"log_lik": at.log_lik}
