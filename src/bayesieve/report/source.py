"""What a report is made from: a finished run as objects, whatever folder it came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayesieve.core.posterior import Model, Posterior, posterior_of
from bayesieve.data import DataSet
from bayesieve.sieve.scores import ScoreName


@dataclass(frozen=True, eq=False)
class Source:
    """One run.

    Args:
        name: short, as it is shown in tables of several runs.
        title: what the run is, in a few words.
        model: what was learned, pruned or not.
        data: what it was trained and tested on.
        before: the network before pruning, or a dense one to compare with, if it is known.
        before_name: what to call that one.
        members: all models of a population, if there are several.
        drawn: what predictions are averaged over, such as all chains of a sampler together; None
            is the model itself.
        score: what weights are ranked by when the threshold moves.
        history: one row of numbers per epoch.
        config: resolved settings by section.
        versions: of the packages it was made with.
        hashes: SHA-256 by file name.
        command: how to make the run again.
        seconds: training time, if it was written down.
        folder: how to name the run on a command line; None if it is not in a folder.
    """

    name: str
    title: str
    model: Model
    data: DataSet
    before: Model | None = None
    before_name: str = "dense"
    members: Sequence[Model] = ()
    drawn: Model | None = None
    score: ScoreName = "snr"
    history: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    seconds: float | None = None
    folder: str | None = None

    @property
    def posterior(self) -> Posterior:
        """The (masked) posterior of the model."""
        return posterior_of(self.model)

    @property
    def averaged(self) -> Model:
        """What predictions are averaged over."""
        return self.model if self.drawn is None else self.drawn


@dataclass(frozen=True)
class Limits:
    """How much a run may put into the page.

    Args:
        points: positions of the slider.
        draws: posterior draws behind uncertainties.
        shown_weights: weights in the pictures of zeros, one byte each.
        model_bytes: of the network inside the page.
        draw_bytes: of its posterior draws.
        compacted: largest network that is compacted and timed at every position of the slider.
        examples: pictures in each row of examples.
    """

    points: int = 21
    draws: int = 32
    shown_weights: int = 500_000
    model_bytes: int = 700_000
    draw_bytes: int = 300_000
    compacted: int = 1_000_000
    examples: int = 8

    def shared(self, n_runs: int) -> "Limits":
        """The part of one run among several, so that the page stays below its size.

        Example:
            >>> Limits().shared(4).model_bytes
            175000
        """
        return Limits(
            self.points,
            self.draws,
            self.shown_weights // n_runs,
            self.model_bytes // n_runs,
            self.draw_bytes // n_runs,
            self.compacted,
            self.examples,
        )
