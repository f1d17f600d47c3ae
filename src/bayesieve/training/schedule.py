"""Learning rate, KL weight and masks as functions of the step number."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from bayesieve.checks import check_choice, check_fraction, check_not_negative, check_positive
from bayesieve.core.execution import KEPT_MOMENTS, KeptMoments
from bayesieve.core.posterior import Posterior
from bayesieve.fast.backend import COMPILE_MODES, CompileMode

_FEWEST_RENEWALS = 50  # of the mask in a run; always less than twice as many
LR_KINDS = ("constant", "cosine", "linear", "step")


def minibatch_weight(index: int, n_batches: int, kind: str) -> float:
    """M r_b, the share of the KL that batch `index` (from 0) of M carries, times M.

    Uniform weights are 1. Geometric ones are M 2^(M-b) / (2^M - 1) for b = index + 1 (Blundell et
    al.; [Saha] prints 2^(M-1) below the line, which does not sum to 1).

    Example:
        >>> [round(minibatch_weight(i, 3, "geometric") / 3, 4) for i in range(3)]
        [0.5714, 0.2857, 0.1429]
    """
    if kind == "uniform":
        return 1.0
    exponent = -float(index + 1)
    share = math.exp2(exponent) if exponent > -1070 else 0.0
    return n_batches * share / -math.expm1(-n_batches * math.log(2))


@dataclass(frozen=True)
class Schedule:
    """The course of a run: learning rate, KL term, bound of the gradient, checkpoints.

    Args:
        lr: "constant", "cosine" or "linear" to 0, or "step" (times 0.3 at 60 % and at 85 %).
        hold: fraction of the run before a cosine or linear decay begins, at the earliest after the
            warm-up; None means until pruning ends, or from the start without pruning.
        warmup: fraction of the run over which the learning rate rises from 0.
        kl: weight of the KL term (1 is Bayes; smaller trusts the data more).
        kl_after: weight once pruning has ended; None keeps `kl`.
        kl_warmup_epochs: epochs over which the KL weight rises linearly from 0.
        minibatch: how one epoch shares out the KL: "uniform" or "geometric".
        clip_norm: bound on the norm of the log-likelihood gradient per example; None has no bound.
        checkpoint_every: steps between checkpoints of a run with a folder; None writes one at the
            end of each epoch.
        compile: whether to compile the elementwise part of a step: "auto" (if it saves time), "on"
            or "off"; "network" compiles the network of a single model too.
        moments: running averages of Adam: "bf16" takes half the memory, rounded at random.

    Example:
        >>> Schedule(lr="cosine").lr_scale(0.5)
        0.5
    """

    lr: Literal["constant", "cosine", "linear", "step"] = "constant"
    hold: float | None = None
    warmup: float = 0.0
    kl: float = 1.0
    kl_after: float | None = None
    kl_warmup_epochs: float = 0.0
    minibatch: Literal["uniform", "geometric"] = "uniform"
    clip_norm: float | None = None
    checkpoint_every: int | None = None
    compile: CompileMode = "auto"
    moments: KeptMoments = "float32"

    def __post_init__(self) -> None:
        check_choice("Schedule", "lr", self.lr, LR_KINDS)
        check_choice("Schedule", "minibatch", self.minibatch, ("uniform", "geometric"))
        check_choice("Schedule", "compile", self.compile, COMPILE_MODES)
        check_choice("Schedule", "moments", self.moments, KEPT_MOMENTS)
        for name in ("clip_norm", "checkpoint_every"):
            if getattr(self, name) is not None:
                check_positive("Schedule", **{name: getattr(self, name)})
        check_fraction("Schedule", warmup=self.warmup, hold=self.hold or 0.0)
        check_not_negative(
            "Schedule",
            kl=self.kl,
            kl_after=self.kl_after or 0.0,
            kl_warmup_epochs=self.kl_warmup_epochs,
        )

    @property
    def last_kl(self) -> float:
        """Weight of the KL term at the end of a run."""
        return self.kl if self.kl_after is None else self.kl_after

    def text(self) -> str:
        """The settings that a resumed run must share with the first one, as text.

        Example:
            >>> Schedule(lr="cosine", checkpoint_every=5).text() == Schedule(lr="cosine").text()
            True
        """
        names = ("lr", "hold", "warmup", "kl", "kl_after", "kl_warmup_epochs", "minibatch")
        return f"Schedule({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def lr_scale(self, progress: float, prune_end: float = 0.0) -> float:
        """Factor on the learning rate at `progress` in [0, 1] of the run."""
        if progress < self.warmup:
            return progress / self.warmup
        hold = max(self.warmup, prune_end if self.hold is None else self.hold)
        decayed = 0.0 if hold >= 1 else min(max((progress - hold) / (1 - hold), 0.0), 1.0)
        if self.lr == "cosine":
            return 0.5 * (1 + math.cos(math.pi * decayed))
        if self.lr == "linear":
            return 1 - decayed
        if self.lr == "step":
            return 0.3 ** ((progress >= 0.6) + (progress >= 0.85))
        return 1.0

    def kl_scale(self, epoch: float, progress: float, prune_end: float | None = None) -> float:
        """Weight of the KL term, without the share of the minibatch."""
        ended = prune_end is not None and progress >= prune_end
        weight = self.kl_after if ended and self.kl_after is not None else self.kl
        if self.kl_warmup_epochs:
            weight *= min(epoch / self.kl_warmup_epochs, 1.0)
        return weight


class Pruning(Protocol):
    """A sparsity schedule; `sieve.GradualPruning` is one."""

    @property
    def end(self) -> float:
        """Fraction of the run after which no more is pruned."""

    @property
    def soft(self) -> bool:
        """Return whether pruned weights keep learning, and may return, until the end."""

    def is_active(self, progress: float) -> bool:
        """Return whether a mask is in force at this fraction of the run."""

    def check(self, posterior: Posterior) -> None:
        """Raise before training if the schedule cannot work on such a posterior."""

    def keep(self, posterior: Posterior, progress: float, within: Tensor | None) -> Tensor:
        """The mask of weights to keep, (d,) bool, inside `within` if that is given."""


def renewal_steps(pruning: Pruning, n_steps: int) -> range:
    """The steps after which the mask is renewed: 50 to 100 of them, whatever an epoch is.

    They are evenly spread over the part of the run in which the schedule prunes; if that has fewer
    than 50 steps, all of them. The last one is the first step at or after `pruning.end`.

    Example:
        >>> from bayesieve.sieve.schedule import GradualPruning
        >>> renewal_steps(GradualPruning(start=0.1, end=0.5), 1000)
        range(108, 501, 8)
        >>> len(renewal_steps(GradualPruning(start=0.1, end=0.5), 40))
        16
    """
    steps = range(n_steps + 1)
    first = bisect_left(steps, True, key=lambda step: pruning.is_active(step / n_steps))
    last = bisect_left(steps, True, key=lambda step: step / n_steps >= pruning.end)
    every = max(1, (last - first + 1) // _FEWEST_RENEWALS)
    return range(last - (last - first) // every * every, last + 1, every)
