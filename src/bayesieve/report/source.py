"""A finished run as objects, and how much of it may go into a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bayesieve.assess.predict import has_spread
from bayesieve.core.posterior import Model, Posterior, posterior_of
from bayesieve.data import DataSet
from bayesieve.sieve.ranking import ScoreName
from bayesieve.uncertainty.familiarity import Familiarity, unavailable

MAX_BYTES = 3_000_000  # of a page
WEIGHT_BYTES = 5  # of a kept weight in the page: its place, value and level
DRAWN_BYTES = 2  # of a kept weight in each draw
MOST_DRAWS = 16
_FRAME = 150_000  # of a page for style and scripts
_REST = 350_000  # of a run for curves, examples, pictures of the first layer, scales of draws


@dataclass(frozen=True, eq=False)
class Source:
    """One run.

    Args:
        name: short, as it is shown in tables of several runs.
        title: how it was made: engine, data, network.
        model: what was learned, pruned or not.
        data: what it was trained and tested on.
        before: the network before pruning, or a dense one to compare with, if it is known.
        before_name: what to call it.
        members: all models of a population, if there are several.
        drawn: what predictions are averaged over, such as all chains of a sampler together; None
            is the model itself.
        score: what weights are ranked by when the threshold moves.
        history: one row of numbers per epoch.
        certificate: what `certify` found, if it was asked.
        familiarity: of the inputs, if it is known; None learns it from the training examples.
        kl: KL weight; 1 is Bayes' rule.
        provenance: where it comes from, as far as that is known: `config` (resolved settings by
            section), `meanings` of settings by section and name, `versions` of packages, `hashes`
            (SHA-256 by file name), `command` to make it again, `seconds` of training, `folder` as a
            command line names it.
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
    certificate: Mapping[str, Any] | None = None
    familiarity: Familiarity | None = None
    kl: float = 1.0
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def posterior(self) -> Posterior:
        """The (masked) posterior of the model."""
        return posterior_of(self.model)

    @property
    def known(self) -> Familiarity | None:
        """The familiarity of the inputs; None where they can have none."""
        if self.familiarity is not None or unavailable(self.data.train.x):
            return self.familiarity
        return Familiarity.of(self.data.train.x)

    @property
    def sampler(self) -> bool:
        """Return whether it is a chain of draws, whose mean is no network that was ever visited."""
        return self.posterior.n_kept is not None and has_spread(self.averaged)

    @property
    def averaged(self) -> Model:
        """The model whose draws are averaged in predictions."""
        return self.model if self.drawn is None else self.drawn


@dataclass(frozen=True)
class Limits:
    """Limits of what goes into a page; sizes are of all runs together.

    Args:
        points: positions of the slider.
        draws: posterior draws behind uncertainties; None is as many as their error asks for.
        shown_weights: weights in the pictures of zeros, one byte each.
        model_bytes: of the network inside the page.
        draw_bytes: of its posterior draws.
        compacted: largest network that is compacted and timed at every position of the slider.
        examples: pictures in each row of examples.
    """

    points: int = 21
    draws: int | None = None
    shown_weights: int = 500_000
    model_bytes: int = 700_000
    draw_bytes: int = 900_000
    compacted: int = 1_000_000
    examples: int = 8

    def shared(self, weights: Sequence[int], kept: Sequence[int]) -> list["Limits"]:
        """The part of each of several runs, so that the page stays below its size.

        What a small network does not need goes to the larger ones. Draws get what the rest leaves
        of the page, up to `draw_bytes`, and a third of that in any case.

        Args:
            weights: of each run, how many can be shown in pictures of zeros.
            kept: of each run, how many are not zero.

        Example:
            >>> small, large = Limits().shared([9_000, 270_000], [1_000, 100_000])
            >>> small.model_bytes, large.model_bytes, large.draw_bytes
            (350000, 500000, 796500)
        """
        shown, seen = _divided(self.shown_weights, weights)
        models, stored = _divided(self.model_bytes, [WEIGHT_BYTES * n for n in kept])
        taken = _FRAME + _REST * len(kept) + 4 * (seen + stored) // 3  # base64
        room = max(self.draw_bytes // 3, min(self.draw_bytes, 3 * (MAX_BYTES - taken) // 4))
        draws, _ = _divided(room, [MOST_DRAWS * DRAWN_BYTES * n for n in kept])
        rooms = zip(shown, models, draws, strict=True)
        return [replace(self, shown_weights=a, model_bytes=b, draw_bytes=c) for a, b, c in rooms]


def _divided(room: int, needs: Sequence[int]) -> tuple[list[int], int]:
    """Bounds for each, no less than an equal part, and what all take together.

    A run that needs less than an equal share leaves the rest to the others.

    Example:
        >>> _divided(90, [10, 100, 35])
        ([30, 45, 35], 90)
    """
    taken = [0] * len(needs)
    for rank, i in enumerate(sorted(range(len(needs)), key=lambda i: needs[i])):
        taken[i] = min(needs[i], (room - sum(taken)) // (len(needs) - rank))
    # Needs are estimates: a layer that is used twice is stored twice.
    return [max(n, room // len(needs)) for n in taken], sum(taken)
