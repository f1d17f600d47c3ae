"""The k models that a run trains as one, and the one engine that several engines become.

Several engines of one class become one whose numbers are tuples, one entry per model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Real
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor

from bayesieve.checks import AUTO
from bayesieve.core.batch import Rows
from bayesieve.core.noise import space_of
from bayesieve.core.posterior import Posterior, SparseModel, posterior_of
from bayesieve.core.priors import stack_priors
from bayesieve.core.problem import Problem
from bayesieve.core.state import named_tensors, restore_, snapshot
from bayesieve.core.workspace import Workspace
from bayesieve.engines import Engine
from bayesieve.training.schedule import Pruning

_STATE, _BUFFERS = "state.", "buffers."
Start: TypeAlias = Posterior | SparseModel | Sequence[Posterior | SparseModel]


@dataclass(eq=False)
class Population:
    """The k models that a run trains as one: problem, engine and state.

    Args:
        problem: a copy that belongs to the run, so that its module buffers do too.
        engine: how the state moves.
        state: of all k models.
        n: k.
    """

    problem: Problem
    engine: Engine[Any]
    state: Any
    n: int

    def posterior(self, member: int = 0) -> Posterior:
        """The posterior of one member."""
        return self.engine.posterior(self.problem, self.state, member)

    def space(self) -> Workspace:
        """The workspace of the run."""
        return space_of(self.problem, self.engine, self.n)

    def buffers(self) -> dict[str, Tensor]:
        """The module buffers themselves, each with a leading axis of k."""
        return self.space().all_buffers()

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

    def start_from_(self, start: Start) -> None:
        """Move members to where posteriors ended, all to one, or each to another one.

        Of a sparse model the zeros are fixed.
        """
        if isinstance(start, Sequence):
            if len(start) != self.n:
                raise ValueError(
                    f"fit: start_from must hold one posterior for each of {self.n} models, got "
                    f"{len(start)}."
                )
            started: dict[str, Tensor] = {}
            for i, one in enumerate(start):
                self.start_from_(one)  # all of them, of which member i stays
                self.copy_into_(started, [j == i for j in range(self.n)])
            self.restore_(started)
            return
        if start.layout != self.problem.layout:
            raise ValueError("fit: start_from belongs to a network with other tensors.")
        start = start.to(self.problem.device)
        posterior = posterior_of(start)
        self.engine.warm_start_(self.state, posterior)
        for name, value in self.buffers().items():
            if name in posterior.buffers:
                value.copy_(posterior.buffers[name])
        if isinstance(start, SparseModel):
            self.allow_masks_()
            self.state.controls.keep.copy_(start.keep)
            self.state.controls.trained.copy_(start.keep)

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

    def replace_(self, members: list[int], by: int) -> None:
        """Put the state of one member in the place of others."""
        tensors = [value for _, value in named_tensors(self.state)]
        for value in [*tensors, *self.buffers().values()]:
            if value.dim() and len(value) == self.n:
                value[members] = value[by].clone()

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


def one_engine(
    engine: Engine[Any] | Sequence[Engine[Any]], rows: Rows | None = None
) -> tuple[Engine[Any], int]:
    """One engine for all models, and their number k.

    Several engines become one whose numbers are tuples. With `rows` there are as many models as
    rows, also with a single engine.
    """
    several = isinstance(engine, Sequence) and not isinstance(engine, str)
    for one in engine if several else [engine]:  # type: ignore[union-attr]
        if isinstance(one, type) or not (hasattr(one, "init") or is_dataclass(one)):
            shown = f"the class {one.__name__}" if isinstance(one, type) else repr(one)
            raise TypeError(f"fit: engine must be one such as SBNN(lr=1e-3), got {shown}.")
    if not isinstance(engine, Sequence):
        return engine, 1 if rows is None else rows.n_models
    if not engine:
        raise ValueError("fit: give at least one engine.")
    if rows is not None and rows.n_models != len(engine):
        raise ValueError(
            f"fit: got {len(engine)} engines, but the problem has rows for {rows.n_models} models."
        )
    if all(one is engine[0] for one in engine):
        return engine[0], len(engine)
    if len({type(one) for one in engine}) != 1:
        raise ValueError("fit: the engines of a population must be of one class.")
    first: Any = engine[0]
    merged: dict[str, Any] = {}
    for spec in fields(first):
        values = [getattr(one, spec.name) for one in engine]
        if all(value == values[0] for value in values):
            continue
        is_number = tuple[float, ...] in get_args(spec.type)  # one for all models or for each
        if spec.name == "prior":
            merged["prior"] = stack_priors(values)
        elif is_number and all(value is AUTO or isinstance(value, Real) for value in values):
            merged[spec.name] = tuple(values)
        else:
            raise ValueError(
                f"fit: the engines of a population may differ only in numbers, not in "
                f"{spec.name} ({values})."
            )
    return replace(first, **merged), len(engine)
