"""Settings of the samplers: what a chain keeps, how it cools, and how its prior is learned."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesieve.checks import check_fraction, check_not_negative, check_positive

Adapt = Literal["none", "sa", "em"]


@dataclass(frozen=True)
class Averaging:
    """How fast the prior's latent numbers follow the chain: ω = min(1, weight (k + delay)^-power).

    Args:
        weight: factor of ω.
        delay: steps before ω begins to fall.
        power: in (0, 1].
        scale: whether σ is learned.
        slab_prob: whether δ of each layer is learned.
        noise_first: real targets: first steps in which σ² follows the residuals alone, so that the
            search for what matters does not depend on the σ it begins with.

    Example:
        >>> round(Averaging(weight=10.0).omega(torch.tensor(0.0)).item(), 4)  # 10 · 1000^-0.7
        0.0794
    """

    weight: float = 1.0
    delay: float = 1000.0
    power: float = 0.7
    scale: bool = True
    slab_prob: bool = True
    noise_first: int = 0

    def __post_init__(self) -> None:
        check_positive("Averaging", weight=self.weight, power=self.power)
        check_not_negative("Averaging", delay=self.delay, noise_first=self.noise_first)
        check_fraction("Averaging", power=self.power)

    def omega(self, step: Tensor) -> Tensor:
        """Weight of the newest estimate after `step` steps."""
        return (self.weight * (step + self.delay) ** -self.power).clamp(max=1)


@dataclass(frozen=True)
class Chain:
    """What a chain keeps of its path, and how its step size and temperature change.

    Args:
        burn_in: steps before the first kept draw.
        thin: steps between kept draws.
        n_kept: most draws held of one chain; then the oldest go.
        power: the step size falls as (1 + (k - 1) / delay)^-power.
        delay: steps before it begins to fall.
        cycle: steps of a cosine cycle from the full step size to 0; 0 for none.
        cooling: factor on the temperature after each step; below 1 is simulated annealing.
        warming: first steps in which the temperature rises linearly from 0: the chain climbs to a
            mode, as [Rockova]'s search does, before it samples around it.

    Example:
        >>> round(Chain(cycle=10).factor(torch.tensor(6.0)).item(), 4)  # half-way down a cosine
        0.5
    """

    burn_in: int = 0
    thin: int = 100
    n_kept: int = 20
    power: float = 0.0
    delay: float = 1.0
    cycle: int = 0
    cooling: float = 1.0
    warming: int = 0

    @classmethod
    def over(
        cls, n_steps: int, *, n_kept: int = 20, burn_in: float = 0.5, last_temperature: float = 1.0
    ) -> "Chain":
        """Draws spread evenly over the end of a run of known length.

        Args:
            n_steps: length of the run.
            n_kept: draws kept.
            burn_in: fraction of the run before the first.
            last_temperature: factor on the temperature that cooling has reached at the end.

        Example:
            >>> chain = Chain.over(1000, last_temperature=0.001)
            >>> chain.burn_in, chain.thin, round(chain.cooling, 4)
            (500, 25, 0.9931)
        """
        check_positive("Chain", n_steps=n_steps, n_kept=n_kept, last_temperature=last_temperature)
        check_fraction("Chain", burn_in=burn_in)
        first = min(round(burn_in * n_steps), n_steps - 1)
        thin = max(1, (n_steps - first) // n_kept)
        return cls(first, thin, n_kept, cooling=last_temperature ** (1 / n_steps))

    def __post_init__(self) -> None:
        check_positive("Chain", thin=self.thin, n_kept=self.n_kept, delay=self.delay)
        check_positive("Chain", cooling=self.cooling)
        check_not_negative("Chain", burn_in=self.burn_in, power=self.power, cycle=self.cycle)
        check_not_negative("Chain", warming=self.warming)

    def factor(self, step: Tensor) -> Tensor:
        """Factor on the step size at step k ≥ 1."""
        value = torch.ones_like(step)
        if self.power:
            value = (1 + (step - 1) / self.delay) ** -self.power
        if self.cycle:
            value = value * 0.5 * (1 + torch.cos(math.pi / self.cycle * ((step - 1) % self.cycle)))
        return value

    def heat(self, step: Tensor) -> Tensor | float:
        """Factor on the temperature at step k ≥ 1.

        Example:
            >>> Chain(warming=4).heat(torch.tensor(2.0)).item()
            0.25
        """
        value: Tensor | float = self.cooling ** (step - 1) if self.cooling != 1 else 1.0
        if self.warming:
            value = value * ((step - 1) / self.warming).clamp(max=1)
        return value

    def n_seen(self, step: Tensor) -> Tensor:
        """Draws kept so far, the current position included, after `step` steps; at least 1.

        In whole numbers: compiled code may divide by multiplying with 1 / thin, whose rounding
        would take a draw one step early.

        Example:
            >>> Chain(burn_in=10, thin=7).n_seen(torch.tensor([10.0, 17.0, 18.0])).tolist()
            [1, 1, 2]
        """
        since = step.long() - self.burn_in
        return ((since + self.thin - 1) // self.thin).clamp(min=1)
