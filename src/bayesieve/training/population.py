"""A population as one problem: one engine for several, own rows for each model.

Several engines of one class become one whose numbers are tuples, one entry per model. Several
tables of one width become one whose rows each model picks its own from.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from numbers import Real
from typing import Any, get_args

import torch
from torch import Generator, Tensor

from bayesieve.core.priors import stack_priors
from bayesieve.core.problem import Problem
from bayesieve.core.rows import Rows
from bayesieve.engines import Engine


def one_engine(
    engine: Engine[Any] | Sequence[Engine[Any]], rows: Rows | None = None
) -> tuple[Engine[Any], int]:
    """One engine for all models, and their number k.

    Several engines become one whose numbers are tuples. With `rows` there are as many models as
    rows, also with a single engine.
    """
    several = isinstance(engine, Sequence) and not isinstance(engine, str)
    for own in engine if several else [engine]:  # type: ignore[union-attr]
        if isinstance(own, type) or not (hasattr(own, "init") or is_dataclass(own)):
            shown = f"the class {own.__name__}" if isinstance(own, type) else repr(own)
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
    if len({type(own) for own in engine}) != 1:
        raise ValueError("fit: the engines of a population must be of one class.")
    first: Any = engine[0]
    merged: dict[str, Any] = {}
    for spec in fields(first):
        values = [getattr(own, spec.name) for own in engine]
        if all(value == values[0] for value in values):
            continue
        if spec.name == "prior":
            merged["prior"] = stack_priors(values)
        elif _may_be_tuple(spec.type) and all(isinstance(value, Real) for value in values):
            merged[spec.name] = tuple(values)
        else:
            raise ValueError(
                f"fit: the engines of a population may differ only in numbers, not in "
                f"{spec.name} ({values})."
            )
    return replace(first, **merged), len(engine)


def epoch_order(problem: Problem, order: Generator) -> Tensor:
    """The order of an epoch on the problem's device: (N,), or (k, n) with own rows."""
    if problem.rows is None:
        permutation = torch.randperm(problem.n_data, generator=order)
    else:
        permutation = torch.rand(problem.rows.index.shape, generator=order).argsort(1)
    return permutation.to(problem.device)


def stacked(tables: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Rows]:
    """Several tables, one per model, as one table and the rows of each model.

    Args:
        tables: inputs (n, p) and targets (n,) or (n, m) of each model; n may differ.

    Returns:
        Inputs and targets one below the other, and `rows` for `Problem`.

    Example:
        >>> x, y, rows = stacked([(torch.zeros(2, 3), torch.zeros(2))] * 2)
        >>> x.shape, rows.index.tolist()
        (torch.Size([4, 3]), [[0, 1], [2, 3]])
    """
    if not tables:
        raise ValueError("stacked: give at least one table.")
    first = tuple(tuple(part.shape[1:]) for part in tables[0])
    for i, table in enumerate(tables):
        own = tuple(tuple(part.shape[1:]) for part in table)
        if own != first:
            raise ValueError(
                f"stacked: table {i} has inputs and targets of shape {own[0]} and {own[1]}, "
                f"table 0 {first[0]} and {first[1]}; all must agree."
            )
    ends = torch.tensor([0, *(len(x) for x, _ in tables)]).cumsum(0).tolist()
    parts = [torch.arange(start, end) for start, end in pairwise(ends)]
    return torch.cat([x for x, _ in tables]), torch.cat([y for _, y in tables]), Rows.of(parts)


def _may_be_tuple(annotation: Any) -> bool:
    """Whether a field is a `Number`: one for all models or one for each."""
    return tuple[float, ...] in get_args(annotation)
