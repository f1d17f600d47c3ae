"""The methods that `bayesieve compare` knows: an engine each, and how it predicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bayesieve.checks import did_you_mean
from bayesieve.engines.recipes import (
    ENGINES,
    RunSize,
    build_engine,
    resolve_engine,
)
from bayesieve.errors import UsageError
from bayesieve.runs.build import resolve_schedule
from bayesieve.runs.comparison import Budget, Method
from bayesieve.runs.config import RunConfig, from_dict, plain_value
from bayesieve.training.plan import Plan as Length
from bayesieve.training.schedule import Schedule

Section = Mapping[str, Any]  # setting -> value
Changes = Mapping[str, Mapping[str, Section]]  # method -> section -> settings
_SECTIONS = ("engine", "schedule", "pruning")
_SAMPLER = {"prior": "normal", "adapt": "none"}


@dataclass(frozen=True)
class Entry:
    """A method by name.

    Args:
        engine: settings of the engine that trains.
        own: how it predicts, if not with draws of the engine's posterior (see `Method`).
        pruning: what its engine itself removes, where that would leave less than is asked for.
    """

    engine: Section
    own: Section
    pruning: Section = field(default_factory=dict)


METHODS = {
    "map": Entry({"name": "map"}, {"kind": "point"}),
    "dropout": Entry({"name": "map"}, {"kind": "dropout"}),
    "ensemble": Entry({"name": "map"}, {"kind": "ensemble", "members": 5}),
    "flat-vi": Entry({"name": "flat-vi"}, {}),
    "sbnn": Entry({"name": "sbnn"}, {}),
    "bmr": Entry({"name": "bmr"}, {}),
    "horseshoe": Entry({"name": "horseshoe"}, {}),
    "sgld": Entry({"name": "sgld", **_SAMPLER}, {}),
    "sghmc": Entry({"name": "sghmc", **_SAMPLER}, {}),
    "sghmc-sa": Entry({"name": "sghmc", "prior": "gaussian-laplace"}, {}),
    # All units stay in training: by joint evidence few passes leave hardly any.
    "tdamp": Entry({"name": "tdamp"}, {}, {"keep_units": 1.0}),
}


def check_name(flag: str, name: str) -> None:
    """Raise unless there is a method of that name."""
    if name not in METHODS:
        hint = did_you_mean(name, METHODS)
        raise UsageError(f"{flag}: methods are {', '.join(METHODS)}; got {name!r}.{hint}")


def read_changes(texts: Sequence[str]) -> Changes:
    """Settings of single methods, METHOD.section.name=VALUE each.

    Example:
        >>> read_changes(["sghmc.engine.lr=0.1"])
        {'sghmc': {'engine': {'lr': 0.1}}}
    """
    changes: dict[str, dict[str, dict[str, Any]]] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        method, _, setting = path.partition(".")
        section, _, name = setting.partition(".")
        if not (equals and name) or section not in _SECTIONS:
            raise UsageError(
                f"--set must read METHOD.SECTION.NAME=VALUE such as sghmc.engine.lr=0.1, with a "
                f"section of {', '.join(_SECTIONS)}; got {text!r}."
            )
        check_name("--set", method)
        changes.setdefault(method, {}).setdefault(section, {})[name] = plain_value(value)
    for method, sections in changes.items():
        _config(METHODS[method], sections)  # complains before any training
    return changes


def build_method(
    name: str, task: str, n_data: int, budget: Budget, changes: Mapping[str, Section]
) -> Method:
    """A method with its engine for a run of this length.

    Args:
        name: one of `METHODS`.
        task: "classification" or "regression".
        n_data: training examples.
        budget: what it may spend.
        changes: section -> settings that differ from the recommended ones.
    """
    entry = METHODS[name]
    config = _config(entry, changes)
    engine = resolve_engine(config.engine, own_start=False, task=task, n_data=n_data)
    course: Any = resolve_schedule(
        config.schedule, engine, task=task, n_epochs=budget.epochs, n_data=n_data
    )
    size = _size(n_data, budget.epochs, budget, task)
    after = _size(n_data, budget.finetune, budget, task)
    steady = ENGINES[engine.name].course == "steady"
    score = "snr" if ENGINES[engine.name].spread else "magnitude"
    return Method(
        name=name,
        engine=build_engine(engine, replace(size, keep_units=config.pruning.keep_units)),
        schedule=Schedule(course.lr, kl=course.kl, kl_warmup_epochs=course.kl_warmup_epochs),
        score=config.pruning.score or score,  # type: ignore[arg-type]
        finetune=Schedule("constant" if steady else "cosine", kl=course.kl),
        finetune_engine=build_engine(engine, replace(after, may_prune=False)),
        **({"kind": "posterior"} | dict(entry.own)),
    )


def _config(entry: Entry, changes: Mapping[str, Section]) -> RunConfig:
    base = from_dict({"engine": entry.engine, "pruning": entry.pruning}, "compare")
    return from_dict(changes, "--set", base)


def _size(n_data: int, epochs: int, budget: Budget, task: str) -> RunSize:
    length = Length.of(n_data, epochs, None, budget.batch_size)
    return RunSize(n_data, length.n_steps, length.per_epoch, task=task)
