"""Recommended settings: one table by engine, task and kind of data, and the names of engines.

`fit`, the command line, the estimators and `compare` all read this table, so that the same engine
on the same task has the same settings everywhere. `recommended` looks up the fields of an engine,
`complete` replaces those that are AUTO, and `build` makes an engine by its name.

The numbers of flat-vi and sbnn for images are those measured on MNIST: noise on activations,
starting means by fan-in, log std -4, a KL weight of 0.3 for classification that rises over the
first epochs, the learning rate falling by a cosine once pruning has ended. Fewer than 10,000
examples take a higher learning rate and a KL weight of 0.1, chosen on a held-out part of digits
(`studies.recipes`): their epochs have few steps, and a network stopped half-way is less sure than
it is right.
Networks with running statistics (BatchNorm) divide the size of weights out again. There the pull of
a prior widens the noise instead of removing weights, so its weight is 0.01 and steps are longer;
chosen on held-out images of CIFAR-10 with ResNet-20 (`studies.recipes_batchnorm`).
The numbers for tables were chosen on tables of 300 to 10,000 rows (docs/tables.md): noise on
weights, about 1,100 steps, a KL weight of 0.3. Samplers keep their step size and the full weight of
the prior; message passing has neither. Their step is per example, and for real targets divided by
the root mean square of the gradient: the curvature grows as 1 / noise², which no fixed step meets.
Fewer than 10,000 examples and tables have a wider prior and a longer step: under a narrow one a
chain on digits is not sure enough of what it knows. The presets "paper" are those of the comparison
in the model-reduction paper (but for its dropout, which is a layer).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from bayesieve.checks import AUTO, check_counts
from bayesieve.errors import UsageError

if TYPE_CHECKING:
    from bayesieve.engines import Engine

EngineName = Literal["map", "flat-vi", "sbnn", "bmr", "horseshoe", "sgld", "sghmc", "tdamp"]
PriorName = Literal[
    "none", "normal", "spike-slab", "layer-scaled", "horseshoe", "gaussian-laplace", "group-sparse"
]
_SMALL_TABLE = 2000  # rows
_FEW_DATA = 10_000  # examples: below, an epoch has few steps
_TABLE_STEPS = {"variational": 1100}  # by course; others take more
_MORE_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 2500, 20, 400
_TABLE_KL = 0.3
MANY_ROWS = 3000  # above, one inner fold holds out a tenth and noise is on activations
_STEP = ("lr", "preconditioned")  # settings that do not depend on the prior
_PRIOR_NUMBERS: dict[str, dict[str, Any]] = {
    "none": {},
    "normal": {"prior_std": 0.1},
    "spike-slab": {"slab_std": math.exp(-1), "spike_std": math.exp(-3), "slab_prob": 0.5},
    "layer-scaled": {"prior_std": 0.1},
    "horseshoe": {"prior_std": 0.01},
    "gaussian-laplace": {"spike_scale": 0.05, "slab_std": 0.5, "slab_prob": 0.5},
    "group-sparse": {"group": "units"},
}


@dataclass(frozen=True)
class RunSize:
    """The length of a run, and the facts about it that decide its settings.

    Args:
        n_data: training examples.
        n_steps: gradient steps of the run; its last epoch may be cut short.
        batch_size: examples per step; the last step of an epoch may have fewer.
        keep_units: fraction of units to end with, where the engine itself removes them.
        task: "classification" or "regression".
        may_prune: False while what is left of a pruned network trains on: then no engine removes
            weights by itself, and a chain's learned prior gives way to its slab.
        table: whether the inputs are the columns of a table.
        ensemble: whether several networks are averaged.
        normalised: whether the network has running statistics, as BatchNorm has.

    Example:
        >>> size = RunSize.of(None, 10, epochs=2, steps=None, batch_size=4)
        >>> size.n_steps, size.per_epoch
        (6, 3)
    """

    n_data: int
    n_steps: int
    batch_size: int
    keep_units: float | None = None
    task: str = "classification"
    may_prune: bool = True
    table: bool = False
    ensemble: bool = False
    normalised: bool = False

    @classmethod
    def of(
        cls,
        name: EngineName | None,
        n_data: int,
        epochs: int | None,
        steps: int | None,
        batch_size: int | None,
        **facts: Any,
    ) -> "RunSize":
        """The length asked for; what is left out is recommended for the engine of this name.

        An engine of your own (None) has no recommended length.
        """
        table = facts.get("table", False)
        if batch_size is None:
            batch_size = recommended_batch_size(name, n_data, table=table)
        if epochs is None and steps is None and name is not None:
            times = 1
            if facts.get("ensemble"):  # it is asked for where accuracy is worth the time
                times = 3 if facts["task"] == "regression" else 2
            epochs = recommended_epochs(name, n_data, batch_size, table=table, times=times)
        both = {"epochs": epochs, "steps": steps}
        lengths = {key: value for key, value in both.items() if value is not None}
        if len(lengths) != 1:
            raise ValueError(f"fit: give either epochs or steps, got {epochs=} and {steps=}.")
        check_counts("fit", **lengths, batch_size=batch_size)
        batch_size = min(batch_size, n_data)
        return cls(
            n_data, steps or (epochs or 0) * math.ceil(n_data / batch_size), batch_size, **facts
        )

    @property
    def per_epoch(self) -> int:
        """Steps that see every example once."""
        return math.ceil(self.n_data / self.batch_size)

    @property
    def n_epochs(self) -> int:
        """Epochs begun."""
        return math.ceil(self.n_steps / self.per_epoch)

    @property
    def takes_normalised(self) -> bool:
        """Return whether the numbers for running statistics apply; those for few data win."""
        return self.normalised and not self.table and self.n_data >= _FEW_DATA


@dataclass(frozen=True)
class EngineEntry:
    """An engine by name.

    Args:
        kind: name of the engine's class.
        priors: the priors it takes, the usual one first.
        defaults: recommended values of the settings it takes.
        course: how a run of it goes: the learning rate falls and a lighter KL rises
            ("variational"), the whole KL ("reduction"), no KL ("point"), or nothing changes
            ("steady").
        spread: whether its posterior has standard deviations to rank weights by.
        paper: values that the paper's preset changes, its prior among them where it is not the
            engine's own; None if there is no such preset.
        of_prior: numbers of a prior that are the engine's own.
        regression: values for real targets, a prior among them.
        few: values for less than 10,000 examples and the engine's own prior; others take the lr
            and the values under their name.
        table: values for tables with the engine's usual prior, as `few` has them; they come last.
        normalised: values for networks with running statistics and 10,000 examples or more, as
            `few` has them, and the KL weight.
        prunes: what removes weights in training: "schedule", "itself" (evidence, or zeros) or
            "units" (whole units only, by the engine).
        n_chains: chains of a run by default, so that they can be compared; 0 for engines
            that are no samplers.
        passes: whether it learns in passes over the data (EM), few and on centred inputs, in place
            of gradient steps.
    """

    kind: str
    priors: tuple[str, ...]
    defaults: Mapping[str, Any]
    course: Literal["variational", "reduction", "point", "steady"]
    spread: bool = True
    paper: Mapping[str, Any] | None = None
    of_prior: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    regression: Mapping[str, Any] = field(default_factory=dict)
    few: Mapping[str, Any] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)
    normalised: Mapping[str, Any] = field(default_factory=dict)
    prunes: Literal["schedule", "itself", "units"] = "schedule"
    n_chains: int = 0
    passes: bool = False


def name_of(engine: object) -> EngineName | None:
    """The short name of an engine object; None for an engine of your own.

    Example:
        >>> from bayesieve.engines.sbnn import SBNN
        >>> name_of(SBNN())
        'sbnn'
    """
    return _name_of_class(type(engine))


def _name_of_class(kind: type) -> EngineName | None:
    if not kind.__module__.startswith("bayesieve.engines."):
        return None
    names = {entry.kind: name for name, entry in ENGINES.items()}
    return names.get(kind.__name__)


def complete(engine: "Engine[Any]", size: RunSize) -> "Engine[Any]":
    """The engine with recommended values in place of AUTO; an engine of your own stays as it is.

    Example:
        >>> from bayesieve.engines.sbnn import SBNN
        >>> size = RunSize(1000, 500, 128)
        >>> complete(SBNN(), size).lr, complete(SBNN(lr=0.5), size).lr
        (0.01, 0.5)
    """
    name = name_of(engine)
    if name is None:
        return engine
    its: Any = engine
    priors = {_prior_class(prior): prior for prior in ENGINES[name].priors}
    asked = {key: getattr(its, key) for key in ("optimizer", "adapt") if hasattr(its, key)}
    asked["prior"] = "none" if its.prior is None else priors.get(type(its.prior).__name__, AUTO)
    best = recommended(type(engine), size, asked)
    if name == "map" and _is_chosen(its.lr):
        best["weight_decay"] = 0.0  # the recommended one is for the recommended lr
    if ENGINES[name].n_chains and _is_chosen(its.step_size):
        best["preconditioned"] = False  # the step that was chosen is ε of the paper
    gaps = {key: _filled(getattr(engine, key), value) for key, value in best.items()}
    return replace(its, **gaps)


def recommended(
    engine: "type[Engine[Any]]", size: RunSize, asked: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Recommended values of the fields of an engine of this class.

    Args:
        engine: one of the library's classes.
        size: length of the run, and the facts about it.
        asked: settings that are chosen, by the names of `settings_of`; others depend on them.

    Example:
        >>> from bayesieve.engines.map import MAP
        >>> recommended(MAP, RunSize(1000, 500, 128, table=True))["lr"]
        0.005
    """
    name = _name_of_class(engine)
    if name is None:
        raise ValueError(f"recommended: there are no recipes for {engine.__name__}.")
    settings = settings_of(name, size, asked or {})
    return _fields_of(engine, settings, size)


def build(name: EngineName, size: RunSize, settings: Mapping[str, Any]) -> "Engine[Any]":
    """The engine of a name; what `settings` does not hold is recommended.

    Example:
        >>> build("map", RunSize(1000, 500, 128), {"lr": 0.5, "start": "he"}).lr
        0.5
    """
    settings = settings_of(name, size, settings)
    if settings["prior"] == "layer-scaled":
        name = "bmr"  # flat-vi with learned layer widths is BMR that never prunes
    kind = getattr(import_module("bayesieve"), ENGINES[name].kind)
    engine: Engine[Any] = kind(**_fields_of(kind, settings, size))
    return engine


def settings_of(name: EngineName, size: RunSize, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of an engine by its name on the command line; refuse what it has no use for.

    Args:
        name: of the engine.
        size: of the run.
        asked: settings that are chosen; None and AUTO are not. The others are recommended.

    Example:
        >>> settings_of("sbnn", RunSize(60_000, 500, 128), {"lr": 0.5})["start"]
        'he'
    """
    asked = {key: value for key, value in asked.items() if value is not None and value is not AUTO}
    entry = ENGINES[name]
    special = entry.regression if size.task == "regression" else {}
    learned = entry.priors[0] if asked.get("adapt") in ("sa", "em") else None  # that chooses it
    preset = asked.get("preset", "default")
    paper = _paper(name, entry, asked.get("prior")) if preset == "paper" else {}
    usual = special.get("prior", entry.priors[0])
    prior = asked.get("prior") or paper.get("prior") or learned or usual
    if prior not in entry.priors:
        raise UsageError(f"engine {name} takes `prior` {' or '.join(entry.priors)}, got {prior!r}.")
    if not 1 <= asked.get("anneal", 1) < math.inf:
        raise UsageError(
            f"`anneal` multiplies 1 / temperature: give 1 or more, got {asked['anneal']}."
        )
    found = {**entry.defaults, **_PRIOR_NUMBERS[prior], **entry.of_prior.get(prior, {})}
    found |= {"prior": prior, "preset": preset} | paper
    if preset != "paper":
        few = entry.few if size.n_data < _FEW_DATA else {}
        if size.takes_normalised:
            few = {key: value for key, value in entry.normalised.items() if key != "kl"}
        columns: dict[str, Any] = {}
        if size.table:
            columns = {**entry.table, **entry.table.get(size.task, {})}
            if size.task == "regression" and size.n_data > MANY_ROWS:
                columns |= entry.table.get("many", {})
            elif size.ensemble and size.task == "regression":
                columns |= entry.table.get("ensemble", {})
        for values, its_prior in ((few, entry.priors[0]), (special, usual), (columns, usual)):
            kept = values if prior == its_prior else {k: values[k] for k in _STEP if k in values}
            kept = {**kept, **values.get(prior, {})}
            found |= {k: value for k, value in kept.items() if not isinstance(value, Mapping)}
    if asked.get("optimizer") == "sgd" or entry.priors[0] != prior:
        found |= {"local": False} if "local" in found else {}
    for key in asked:
        if key not in found:
            raise UsageError(f"engine {name} with prior {prior} has no `{key}`; remove it.")
    return {**found, **asked}


def _fields_of(kind: Any, settings: Mapping[str, Any], size: RunSize) -> dict[str, Any]:
    """The fields of an engine class that follow from its settings and from the size of the run.

    A class whose fields depend on the run has a method `fields_from` for them.
    """
    if not size.may_prune and settings["prior"] == "gaussian-laplace":  # what is left was included
        settings = {**settings, "prior": "normal", "prior_std": settings["slab_std"],
                    "adapt": "none"}  # fmt: skip
    found = {spec.name: settings[spec.name] for spec in fields(kind) if spec.name in settings}
    found["prior"] = _prior(settings)
    return found | (kind.fields_from(settings, size) if hasattr(kind, "fields_from") else {})


def _filled(value: Any, best: Any) -> Any:
    """The value with `best` in place of AUTO, also in its fields and model by model."""
    if isinstance(value, tuple) and any(one is AUTO for one in value):
        return tuple(best if one is AUTO else one for one in value)
    if is_dataclass(value) and type(value) is type(best):
        now: Any = value
        names = [spec.name for spec in fields(now) if _is_open(getattr(now, spec.name))]
        return replace(now, **{n: _filled(getattr(now, n), getattr(best, n)) for n in names})
    return best if value is AUTO else value


def _is_open(value: object) -> bool:
    return value is AUTO or (isinstance(value, tuple) and AUTO in value)


def _is_chosen(value: object) -> bool:
    """Say whether a number, or that of the first model of a population, was chosen."""
    return (value[0] if isinstance(value, tuple) else value) is not AUTO


def recommended_schedule(
    name: EngineName, size: RunSize, preset: str | None = None
) -> dict[str, Any]:
    """Fields of a `Schedule`: course of the learning rate, KL weight and its warm-up.

    Example:
        >>> recommended_schedule("sbnn", RunSize(60_000, n_steps=28_140, batch_size=128))["kl"]
        0.3
    """
    course = ENGINES[name].course
    if preset == "paper":  # the same from the first step to the last
        return {"lr": "constant", "warmup": 0.0, "kl": 1.0, "kl_warmup_epochs": 0.0}
    kl, kl_warmup, n_epochs = 1.0, 0.0, size.n_steps / size.per_epoch
    if course in ("variational", "reduction"):
        few = size.n_data < _FEW_DATA
        lighter = course == "variational" or (few and not size.table)
        kl = (0.1 if few else 0.3) if lighter and size.task == "classification" else 1.0
        kl_warmup = min(10.0, round(n_epochs / 6, 2))
    if size.table and course == "variational":
        kl, kl_warmup = _TABLE_KL, 0.1 * n_epochs
    if size.takes_normalised and size.task == "classification":
        kl = ENGINES[name].normalised.get("kl", kl)
    return {
        "lr": "constant" if course == "steady" else "cosine",
        "warmup": 0.02 if size.table and course != "steady" else 0.0,
        "kl": kl,
        "kl_warmup_epochs": kl_warmup,
    }


def recommended_batch_size(name: EngineName | None, n_data: int, *, table: bool = False) -> int:
    """Examples per step: 32 to 256 of a table, by its rows.

    Example:
        >>> [recommended_batch_size("sbnn", n, table=True) for n in (20, 1000, 60_000)]
        [20, 64, 256]
    """
    if name is not None and ENGINES[name].passes:
        return 10 if n_data < _SMALL_TABLE else 100
    if not table:
        return 128
    return min(n_data, max(32, min(256, 2 ** round(math.log2(max(n_data, 1) / 16)))))


def recommended_epochs(
    name: EngineName, n_data: int, batch_size: int, *, table: bool = False, times: int = 1
) -> int:
    """Epochs over the data: about 2,500 steps over a table, 1,100 of a variational engine.

    An ensemble has so many `times` the steps, and at least 40 epochs instead of 20.

    Example:
        >>> recommended_epochs("sbnn", 1000, 64, table=True)
        69
    """
    if ENGINES[name].passes:
        return 10
    if not table:
        return 60
    per_epoch = math.ceil(n_data / max(batch_size, 1))
    steps = times * _TABLE_STEPS.get(ENGINES[name].course, _MORE_STEPS)
    least, most = _LEAST_EPOCHS * min(times, 2), _MOST_EPOCHS * times
    return max(least, min(most, round(steps / per_epoch)))


def _paper(name: str, entry: EngineEntry, prior: str | None) -> dict[str, Any]:
    """Values that the paper's preset changes."""
    if entry.paper is None:
        with_paper = ", ".join(name for name, entry in ENGINES.items() if entry.paper is not None)
        raise UsageError(f"engine {name} has no `preset` paper ({with_paper} have); remove it.")
    its = entry.paper.get("prior", entry.priors[0])
    if prior not in (None, its):
        raise UsageError(f"`preset` paper of {name} means `prior` {its}; remove yours.")
    return dict(entry.paper)


def _prior(settings: Mapping[str, Any]) -> Any:
    """The prior of resolved settings; None where there is none."""
    name = settings["prior"]
    if name == "none":
        return None
    numbers = {key: settings[key] for key in _PRIOR_NUMBERS[name]}
    if "prior_std" in numbers:
        numbers["std"] = numbers.pop("prior_std")
    return getattr(import_module("bayesieve.priors"), _prior_class(name))(**numbers)


def _prior_class(name: str) -> str:
    """The class behind the name of a prior: "spike-slab" is SpikeSlab."""
    return "".join(map(str.capitalize, name.split("-")))


_VI = {"lr": 1e-3, "init_std": math.exp(-4), "start": "he", "local": True}
_FASTER = {"lr": 1e-2}
_VI_NORMALISED = {"lr": 3e-3, "kl": 0.01}
# For tables. The two stds are close together, so that weights start on the spike's side of the
# threshold and inclusion speaks of the data, not of the start.
_CLOSE = {"slab_std": 1.0, "spike_std": math.exp(-2)}
_VI_TABLE = {
    "init_std": 0.02,
    "start": "module",  # see `estimators.defaults`
    "local": False,
    "classification": {"lr": 1e-2},
    "regression": {"lr": 3e-2},
    # Noise on weights hides what many rows with little noise of their own could teach.
    "many": {"local": True, "lr": 2e-2},
    "ensemble": {"lr": 1e-2},  # it has the steps for it
}
_CHAIN = {
    "lr": 0.03,
    "preconditioned": False,
    "temperature": 1.0,
    "anneal": 1.0,
    "burn_in": 0.6,
    "draws": 20,
    "cycles": 0,
    "start": "module",
    "adapt": "sa",
}
_CHAIN_PRIORS = ("gaussian-laplace", "normal")
_OF_CHAIN = {"normal": {"prior_std": 0.2, "adapt": "none"}}
_CHAIN_REGRESSION = {"prior": "normal", "prior_std": 0.5, "lr": 5e-4, "preconditioned": True}
_WIDER = {"slab_std": 2.0, "spike_scale": 0.5, "normal": {"prior_std": 0.5}}
_FLAT_FF = {
    "prior": "layer-scaled",
    "lr": 5e-3,
    "init_std": 0.1,
    "start": "uniform",
    "local": False,
}
ENGINES: dict[EngineName, EngineEntry] = {
    "map": EngineEntry(
        "MAP",
        ("none", "normal", "spike-slab"),
        {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0, "momentum": 0.9, "start": "module"},
        course="point",
        spread=False,
        paper={"optimizer": "adam"},
        few=_FASTER,
        table={"lr": 5e-3, "weight_decay": 0.3},
    ),
    "flat-vi": EngineEntry(
        "FlatVI",
        ("normal", "spike-slab", "layer-scaled"),
        _VI,
        course="variational",
        paper=_FLAT_FF,
        of_prior={"layer-scaled": {"lr": 5e-3, "init_std": 0.18}},  # in units of a layer's width
        regression={"prior": "normal", "prior_std": 1.0},
        few={**_FASTER, "prior_std": 0.3},
        table={**_VI_TABLE, "prior_std": 1.0},
        normalised=_VI_NORMALISED,
    ),
    "sbnn": EngineEntry(
        "SBNN",
        ("spike-slab",),
        {**_VI, "optimizer": "adam"},
        course="variational",
        regression={"prior": "spike-slab", **_CLOSE},
        few=_FASTER,
        table={**_VI_TABLE, **_CLOSE},
        normalised=_VI_NORMALISED,
    ),
    "bmr": EngineEntry(
        "BMR",
        ("layer-scaled",),
        {
            "lr": 1e-2,
            "init_std": 0.18,
            "start": "he",
            "local": True,
            "rule": "savage-dickey",
        },
        course="reduction",
        paper={
            "init_std": 0.1,
            "start": "uniform",
            "local": False,
            "rule": "hierarchical",
        },
        few={"lr": 3e-2},
        table={"lr": 2e-2, "init_std": 0.1, "local": False},
        normalised={"lr": 3e-2, "init_std": 0.05, "kl": 0.01},
        prunes="itself",
    ),
    "horseshoe": EngineEntry(
        "HorseshoeVI",
        ("horseshoe",),
        {"lr": 5e-3, "init_std": 0.02, "start": "he"},
        course="variational",
        paper={"init_std": 0.1, "start": "he"},
        regression={"prior": "horseshoe", "lr": 2e-2},
        few={"lr": 3e-2},
        table={"lr": 2e-2, "init_std": 0.1},
        normalised={"lr": 3e-2, "kl": 0.01},
    ),
    "sgld": EngineEntry(  # without momentum a step moves a tenth as far
        "SGLD",
        _CHAIN_PRIORS,
        {**_CHAIN, "lr": 0.3},
        course="steady",
        spread=False,
        of_prior=_OF_CHAIN,
        regression={**_CHAIN_REGRESSION, "lr": 5e-3},
        few={**_WIDER, "lr": 0.6},
        table={"classification": {**_WIDER, "lr": 0.6}},
        n_chains=2,
    ),
    "sghmc": EngineEntry(
        "SGHMC",
        _CHAIN_PRIORS,
        {**_CHAIN, "friction": 0.1},
        course="steady",
        spread=False,
        of_prior=_OF_CHAIN,
        regression=_CHAIN_REGRESSION,
        few={**_WIDER, "lr": 0.1},
        table={"classification": {**_WIDER, "lr": 0.1}},
        n_chains=2,
    ),
    "tdamp": EngineEntry(
        "TDAMP",
        ("group-sparse",),
        {"power": 5.0, "memory": 10.0},
        course="steady",
        prunes="units",
        passes=True,
    ),
}
