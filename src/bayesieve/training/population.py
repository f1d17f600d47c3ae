"""Several engines of one class as one engine whose numbers are tuples, one entry per model."""

from collections.abc import Sequence
from dataclasses import fields, replace
from numbers import Real
from typing import Any, get_args

from bayesieve.checks import check_positive
from bayesieve.core.priors import stack_priors
from bayesieve.engines import Engine


def one_engine(
    engine: Engine[Any] | Sequence[Engine[Any]], n_models: int
) -> tuple[Engine[Any], int]:
    """Merge one engine per model into one whose numbers are tuples."""
    check_positive("fit", n_models=n_models)
    if not isinstance(engine, Sequence):
        return engine, n_models
    if not engine:
        raise ValueError("fit: give at least one engine.")
    if n_models not in (1, len(engine)):
        raise ValueError(f"fit: got {len(engine)} engines but n_models={n_models}.")
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


def _may_be_tuple(annotation: Any) -> bool:
    """Whether a field is a `Number`: one for all models or one for each."""
    return tuple[float, ...] in get_args(annotation)
