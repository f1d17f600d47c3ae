"""The k models a run trains as one: problem, engine and state, and what is done to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesieve.core.posterior import Posterior, SparseModel, posterior_of
from bayesieve.core.problem import Problem
from bayesieve.core.state import restore_, snapshot
from bayesieve.engines import Engine
from bayesieve.training.options import Pruning, Validation
from bayesieve.training.scoring import mean_scores, member_scores

_STATE, _BUFFERS = "state.", "buffers."
Start: TypeAlias = Posterior | SparseModel | Sequence[Posterior | SparseModel]


@dataclass(eq=False)
class Models:
    """A population in training.

    Args:
        problem: the run's own, so that its module buffers are too.
        engine: how the state moves.
        state: of all k models.
        n: k.
    """

    problem: Problem
    engine: Engine[Any]
    state: Any
    n: int

    def posterior(self, member: int = 0) -> Posterior:
        """What one member has learned."""
        return self.engine.posterior(self.problem, self.state, member)

    def buffers(self) -> dict[str, Tensor]:
        """The module buffers themselves, each with a leading axis of k."""
        local = bool(getattr(self.engine, "local", False))
        return self.problem.workspace(self.n, local=local).all_buffers()

    def copies(self) -> dict[str, Tensor]:
        """Copies of state, random numbers and module buffers, by name."""
        saved = {_STATE + name: value for name, value in snapshot(self.state).items()}
        buffers = self.buffers().items()
        return saved | {_BUFFERS + name: value.detach().clone() for name, value in buffers}

    def restore_(self, saved: dict[str, Tensor]) -> None:
        """Put back what `copies` returned."""
        state = {n.removeprefix(_STATE): v for n, v in saved.items() if n.startswith(_STATE)}
        restore_(self.state, state)
        for name, value in self.buffers().items():
            value.copy_(saved[_BUFFERS + name])

    def start_from_(self, given: Start) -> None:
        """Move members to where posteriors ended, all to one or each to its own.

        Of a sparse model the zeros are fixed.
        """
        if isinstance(given, Sequence):
            self._start_apart_(given)
            return
        if given.layout != self.problem.layout:
            raise ValueError("fit: start_from belongs to a network with other tensors.")
        given = given.to(self.problem.device)
        posterior = posterior_of(given)
        self.engine.warm_start_(self.state, posterior)
        for name, value in self.buffers().items():
            if name in posterior.buffers:
                value.copy_(posterior.buffers[name])
        if isinstance(given, SparseModel):
            self.allow_masks_()
            self.state.controls.keep.copy_(given.keep)
            self.state.controls.trained.copy_(given.keep)

    def _start_apart_(self, given: Sequence[Posterior | SparseModel]) -> None:
        if len(given) != self.n:
            raise ValueError(
                f"fit: start_from must hold one posterior for each of {self.n} models, got "
                f"{len(given)}."
            )
        started: dict[str, Tensor] = {}
        for i, own in enumerate(given):
            self.start_from_(own)  # all of them, of which member i stays
            self.copy_into_(started, [j == i for j in range(self.n)])
        self.restore_(started)

    def allow_masks_(self) -> None:
        """Make room for masks, all True unless they exist."""
        shape = (self.n, self.problem.layout.size)
        self.state.controls.allow_masks_(torch.empty(shape, device=self.problem.device))

    def prune_(self, pruning: Pruning, progress: float) -> None:
        """Renew the masks; weights that no longer train never come back."""
        controls = self.state.controls
        current = controls.keep
        if pruning.soft:
            controls.keep = None  # weights may come back: scores are taken before masking
        for i in range(self.n):
            keep = pruning.keep(self.posterior(i), progress, current[i])
            current[i].copy_(keep & controls.trained[i])
        controls.keep = current
        if progress >= pruning.end or not pruning.soft:
            controls.trained.copy_(current)

    def copy_into_(self, best: dict[str, Tensor], chosen: list[bool]) -> None:
        """Renew `copies` taken earlier for the chosen members; an empty dict takes all members."""
        current = self.copies()
        if not best or all(chosen):
            best.update(current)
            return
        mask = torch.tensor(chosen, device=self.problem.device)
        for name, value in current.items():
            if value.dim() and len(value) == self.n and not name.endswith(".rng"):
                best[name][mask] = value[mask]
            else:  # of the whole population: step count, generators
                best[name] = value

    def scores(self, watched: Validation) -> tuple[list[float], list[float]]:
        """Negative log-likelihood per example, and error or RMSE, at each member's mean.

        A member that holds out no row scores 0.
        """
        members = [self.posterior(i) for i in range(self.n)]
        if watched.rows is not None:
            return member_scores(self.problem, members, watched.data, watched.rows)
        data = watched.data
        rows = [mean_scores(self.problem, own, data.x, data.y) for own in members]
        return [nll for nll, _ in rows], [error for _, error in rows]
