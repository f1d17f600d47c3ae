"""The terms of a comparison: what each method may spend, what it is, and what it is scored on."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.batch import ExamplesLike
from bayesieve.data.preprocessing import PixelScale
from bayesieve.engines import Engine
from bayesieve.sieve.scores import ScoreName
from bayesieve.training.schedule import Schedule


@dataclass(frozen=True)
class Budget:
    """What every method may spend, and what is asked of it.

    Args:
        epochs: passes over the data of one model.
        batch_size: examples per gradient.
        seeds: independent repetitions.
        zeros: fractions of zeros to prune to.
        finetune: passes of masked training after pruning.
        draws: weight vectors averaged in a prediction.
        attack: strength of the fast gradient sign attack in pixels from 0 to 1; None for none.
        n_attacked: test inputs attacked, evenly spaced.
    """

    epochs: int = 20
    batch_size: int = 128
    seeds: int = 3
    zeros: tuple[float, ...] = (0.9, 0.95, 0.98, 0.99)
    finetune: int = 5
    draws: int = 32
    attack: float | None = 0.1
    n_attacked: int = 1000

    def __post_init__(self) -> None:
        check_positive(
            "Budget",
            epochs=self.epochs,
            batch_size=self.batch_size,
            seeds=self.seeds,
            draws=self.draws,
            n_attacked=self.n_attacked,
        )
        if self.zeros:
            check_fraction("Budget", open_ends=True, zeros=self.zeros)
            check_positive("Budget", finetune=self.finetune)


@dataclass(frozen=True)
class Method:
    """A way to learn.

    Args:
        name: what tables print.
        engine: what trains.
        schedule: course of learning rate and KL weight.
        score: which weights go first.
        kind: "posterior" predicts with draws of the engine's posterior, "point" with its mean,
            "ensemble" with several networks, "dropout" with masks.
        members: networks of an ensemble.
        dropout: probability of an input to be dropped.
        finetune: schedule while what is left of a pruned network trains.
        finetune_engine: the engine then, where it depends on the length of the run.
    """

    name: str
    engine: Engine[Any]
    schedule: Schedule
    score: ScoreName = "snr"
    kind: Literal["posterior", "point", "ensemble", "dropout"] = "posterior"
    members: int = 1
    dropout: float = 0.1
    finetune: Schedule = field(default_factory=lambda: Schedule(lr="cosine"))
    finetune_engine: Engine[Any] | None = None


@dataclass(frozen=True)
class Scoring:
    """What a trained method is scored on.

    Args:
        inside: the test split.
        outside: inputs of another kind, which should look uncertain; None for none.
        scale: how inputs come from pixels; None if they are not images.
    """

    inside: ExamplesLike
    outside: Tensor | None = None
    scale: PixelScale | None = None
