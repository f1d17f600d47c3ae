"""Draws that leave the device while a run goes on, into a file of bounded size."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesieve.checks import check_not_negative, check_positive
from bayesieve.core.draw_store import DrawStore
from bayesieve.core.norm_statistics import flat_statistics, statistics_names
from bayesieve.core.posterior import Samples
from bayesieve.core.problem import Problem


@dataclass(frozen=True)
class DrawsTo:
    """Positions of the chains of a sampler, kept in a file besides the engine's ring.

    The ring stays on the device with room for `Chain.n_kept` draws: 1 is enough with a file. Once
    the masks of a pruned run are final only the weights that are left are stored: begin after that
    (`burn_in`). A run that is resumed goes on with its file.

    Args:
        path: the file; see `core.draw_store`.
        burn_in: steps before the first draw is due.
        thin: steps between draws.
        n_kept: most draws held of one chain; then the oldest go.

    Example:
        >>> draws = DrawsTo(Path("draws.safetensors"), burn_in=100, thin=10)
        >>> [step for step in range(95, 131) if draws.is_due(step)]
        [110, 120, 130]
    """

    path: Path
    burn_in: int = 0
    thin: int = 100
    n_kept: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # text is as good
        check_positive("DrawsTo", thin=self.thin, n_kept=self.n_kept)
        check_not_negative("DrawsTo", burn_in=self.burn_in)

    @property
    def rhythm(self) -> list[int]:
        """What must not change when a run is resumed; the path may."""
        return [self.burn_in, self.thin, self.n_kept]

    def is_due(self, step: int) -> bool:
        """Whether the position after this many steps is kept."""
        return step > self.burn_in and (step - self.burn_in) % self.thin == 0


class DrawWriter:
    """Writes the draws of one run.

    Args:
        draws: where to and when.
        problem: of the run.
        state: of a sampler: positions `w`, (k, d).
        first_step: step the run goes on from; 0 for a new one.
    """

    def __init__(self, draws: DrawsTo, problem: Problem, state: Any, first_step: int) -> None:
        if not hasattr(state, "w") or not hasattr(state, "draws"):
            raise ValueError("fit: draws are kept of chains only; use SGLD or SGHMC.")
        self._draws, self._problem, self._state = draws, problem, state
        self._store: DrawStore | None = None
        if first_step and draws.path.exists():
            self._store = self._reopened()
        elif first_step >= draws.burn_in + draws.thin:
            raise ValueError(
                f"fit: the draws before step {first_step} should be in {draws.path}, which does "
                "not exist. Put it back, or start anew."
            )
        elif draws.path.exists():
            raise ValueError(f"fit: {draws.path} holds draws of an earlier run; remove it.")

    def after(self, step: int) -> None:
        """Write the positions if they are due."""
        if not self._draws.is_due(step):
            return
        state, network = self._state, self._problem.network
        w: Tensor = state.w if state.controls.keep is None else state.w * state.controls.keep
        if self._store is None:
            path, n_kept = self._draws.path, self._draws.n_kept
            self._store = DrawStore.create(path, network, len(w), n_kept, w.dtype, self._final())
        names = statistics_names(network)
        buffers = self._problem.workspace(len(w)).all_buffers()
        self._store.write(step, w, flat_statistics(names, buffers) if names else None)

    def _final(self) -> Tensor | None:
        """The masks where they no longer change, (k, d)."""
        controls = self._state.controls
        if controls.keep is None or not torch.equal(controls.keep, controls.trained):
            return None
        keep: Tensor = controls.keep
        return keep

    def _reopened(self) -> DrawStore:
        store = DrawStore.open(self._draws.path, self._problem.network)
        found, own = (store.n_chains, store.capacity), (len(self._state.w), self._draws.n_kept)
        if found != own:
            raise ValueError(
                f"fit: {self._draws.path} has room for {found[0]} chains of {found[1]} draws, this "
                f"run has {own[0]} of {own[1]}. Use the settings of the first run."
            )
        return store


def read_draws(path: Path, problem: Problem) -> list[Samples]:
    """The draws of every chain in a file, oldest first."""
    return DrawStore.open(path, problem.network).samples(problem.network)
