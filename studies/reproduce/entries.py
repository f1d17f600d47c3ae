"""What the catalogue is made of: studies, the papers' numbers, and cheap runs that repeat ours."""

from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher", "neither"]

SBNN = "sBNN"  # spike-and-slab variational inference
BMR = "BMR"  # stochastic Bayesian model reduction
AEB = "SG-MCMC-SA"  # adaptive empirical Bayes
TDAMP = "EM-TDAMP"
SCRATCH = "NumPy MLP"
BEYOND = "beyond the papers"


@dataclass(frozen=True)
class Check:
    """A cheap run that should repeat numbers of the record.

    Args:
        arguments: of the study's command, besides --out.
        numbers: key and field of what should repeat.
        tolerance: how close.
    """

    arguments: tuple[str, ...]
    numbers: tuple[tuple[str, str], ...]
    tolerance: float


@dataclass(frozen=True)
class Study:
    """A command that makes records.

    Args:
        module: what `python -m` runs.
        quick: arguments of a run of minutes on two CPU cores.
        full: arguments of the run that the committed record comes from.
        check: a cheap run that should repeat the record, if there is one.
        device: whether it takes --device.
        seeds: whether it takes --seeds.
    """

    module: str
    quick: tuple[str, ...] = ("--quick",)
    full: tuple[str, ...] = ("--full",)
    check: Check | None = None
    device: bool = False
    seeds: bool = False


@dataclass(frozen=True)
class Row:
    """One number of a paper, or a figure of it, or a number that no paper has.

    Args:
        name: unique, for the command line.
        source: the paper.
        item: its table or figure.
        what: what was measured on what.
        metric: name and unit.
        paper: the paper's number; None where it prints none.
        study: name in STUDIES.
        key: the record of the study.
        field: the number in that record.
        better: which way is better; "neither" where the number is only to be shown.
        unavailable: why there can be no number of ours here.
        decimals: that the paper prints; ours is rounded likewise before the two are compared. None
            compares ours as it is.
        target: what we set out to reach where there is no paper to compare with.
    """

    name: str
    source: str
    item: str
    what: str
    metric: str
    paper: float | None
    study: str
    key: str
    field: str
    better: Better = "lower"
    unavailable: str | None = None
    target: float | None = None
    decimals: int | None = None
