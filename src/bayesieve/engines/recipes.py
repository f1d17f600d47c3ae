"""The only place where engines have names as text, and what each is given by default.

The recommended numbers of flat-vi and sbnn are those measured on MNIST: noise on activations,
starting means by fan-in, log std -4, a KL weight of 0.3 for classification that rises over the
first epochs, the learning rate falling by a cosine once pruning has ended. Fewer than 10,000
examples take a higher learning rate and a KL weight of 0.1, tables 2,000 steps or more: chosen on
held-out parts of digits and of the first splits of Boston, Energy and Yacht. Samplers keep their
step size and the full weight of the prior; message passing has neither. The presets "paper" are
those of the comparison in the model-reduction paper (but for its dropout, which is a layer).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from bayesieve.cli import engines
from bayesieve.cli.config import EngineConfig, PruningConfig, ScheduleConfig, TrainingConfig
from bayesieve.cli.config_files import UsageError
from bayesieve.cli.engines import RunSize
from bayesieve.cli.flags import flag_of

if TYPE_CHECKING:
    from bayesieve.engines import Engine

_SMALL_TABLE = 2000  # rows
_FEW_DATA = 10_000  # examples: below, an epoch has few steps
_LEAST_STEPS = 2000  # of a table
_PRIOR_NUMBERS: dict[str, dict[str, Any]] = {
    "none": {},
    "normal": {"prior_std": 0.1},
    "spike-slab": {"slab_std": math.exp(-1), "spike_std": math.exp(-3), "slab_prob": 0.5},
    "layer-scaled": {"prior_std": 0.1},
    "horseshoe": {"prior_std": 0.01},
    "gaussian-laplace": {"spike_scale": 0.05, "slab_std": 0.5, "slab_prob": 0.5},
    "group-sparse": {},
}


@dataclass(frozen=True)
class EngineEntry:
    """An engine by name.

    Args:
        build: makes the engine from settings without gaps.
        priors: what it takes, its own first.
        defaults: recommended values of the settings it takes.
        course: how a run of it goes: the learning rate falls and a lighter KL rises
            ("variational"), the whole KL ("reduction"), no KL ("point"), or nothing changes
            ("steady").
        spread: whether its posterior has standard deviations to rank weights by.
        paper: values that the paper's preset changes, its prior among them where it is not the
            engine's own; None if there is no such preset.
        of_prior: numbers of a prior that are the engine's own.
        regression: values for real targets, a prior among them.
        few: values for less than 10,000 examples and the engine's own prior; others take the lr.
        prunes: what removes weights in training: "schedule", "itself" (evidence, or --zeros) or
            "units" (whole units only, by the engine).
    """

    build: Callable[[EngineConfig, RunSize], "Engine[Any]"]
    priors: tuple[str, ...]
    defaults: Mapping[str, Any]
    course: Literal["variational", "reduction", "point", "steady"]
    spread: bool = True
    paper: Mapping[str, Any] | None = None
    of_prior: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    regression: Mapping[str, Any] = field(default_factory=dict)
    few: Mapping[str, Any] = field(default_factory=dict)
    prunes: Literal["schedule", "itself", "units"] = "schedule"


def build_engine(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """The engine of resolved settings."""
    return ENGINES[config.name].build(config, size)


def resolve_engine(
    config: EngineConfig,
    *,
    own_start: bool,
    task: str = "classification",
    n_data: int | None = None,
) -> EngineConfig:
    """Fill the gaps with recommended values; refuse settings this engine has no use for.

    Args:
        config: as given.
        own_start: whether the network's own initial weights are to be used unless told otherwise.
        task: "classification" or "regression".
        n_data: training examples; many unless given.
    """
    entry = ENGINES[config.name]
    special = entry.regression if task == "regression" else {}
    learned = entry.priors[0] if config.adapt in ("sa", "em") else None  # asking for it is choosing
    paper = _paper(config, entry)
    prior = config.prior or paper.get("prior") or learned or special.get("prior", entry.priors[0])
    if prior not in entry.priors:
        raise UsageError(
            f"engine {config.name} takes --prior {' or '.join(entry.priors)}, got {prior!r}."
        )
    defaults = _defaults(config, entry, prior) | paper
    if config.preset != "paper":
        few = entry.few if _is_few(n_data) else {}
        for values, own in ((few, entry.priors[0]), (special, special.get("prior"))):
            defaults |= values if prior == own else {k: v for k, v in values.items() if k == "lr"}
    if own_start and "start" in defaults:
        defaults["start"] = "module"
    if defaults.get("local") and (config.optimizer == "sgd" or entry.priors[0] != prior):
        defaults["local"] = False
    for spec in fields(config):
        if getattr(config, spec.name) is not None and spec.name not in defaults:
            flag = flag_of("engine", spec.name)
            raise UsageError(f"engine {config.name} with prior {prior} has no {flag}; remove it.")
    gaps = {key: value for key, value in defaults.items() if getattr(config, key) is None}
    return replace(config, **gaps)


def resolve_schedule(
    schedule: ScheduleConfig,
    engine: EngineConfig,
    *,
    task: str,
    n_epochs: float,
    n_data: int | None = None,
) -> ScheduleConfig:
    """Fill the gaps of a schedule: see the module's docstring; many examples unless n_data says."""
    course = ENGINES[engine.name].course
    kl, warmup = 1.0, 0.0
    if course in ("variational", "reduction"):
        lighter = 0.1 if _is_few(n_data) else 0.3
        kl = lighter if (course, task) == ("variational", "classification") else 1.0
        warmup = min(10.0, round(n_epochs / 6, 2))
    lr = "constant" if course == "steady" else "cosine"
    if engine.preset == "paper":  # the same from the first step to the last
        lr, kl, warmup = "constant", 1.0, 0.0
    gaps: dict[str, Any] = {"lr": lr, "kl": kl, "kl_warmup_epochs": warmup}
    return replace(schedule, **{k: v for k, v in gaps.items() if getattr(schedule, k) is None})


def resolve_pruning(config: PruningConfig, engine: EngineConfig) -> PruningConfig:
    """Fill in the score: signal to noise where there is noise; refuse what cannot be done."""
    entry = ENGINES[engine.name]
    if config.zeros is not None and config.keep_units is not None:
        raise UsageError("give either --zeros or --keep-units, not both.")
    if entry.prunes == "units" and config.zeros is not None:
        raise UsageError(f"engine {engine.name} removes whole units: give --keep-units.")
    if config.zeros is None or config.score is not None:
        return config
    return replace(config, score="snr" if entry.spread else "magnitude")


def resolve_length(
    config: TrainingConfig, engine: EngineConfig, n_data: int, *, table: bool = False
) -> TrainingConfig:
    """Fill in the length of the run and the size of a batch; tables take 2,000 steps or more."""
    if config.epochs is not None and config.steps is not None:
        raise UsageError("give either --epochs or --steps, not both.")
    passes, small = engine.name == "tdamp", n_data < _SMALL_TABLE
    if config.batch_size is None:
        size = (10 if small else 100) if passes else (32 if table and small else 128)
        config = replace(config, batch_size=size)
    if config.steps is None and config.epochs is None:
        epochs = 10 if passes else 60
        if table and not passes:
            epochs = max(epochs, math.ceil(_LEAST_STEPS * max(config.batch_size or 1, 1) / n_data))
        config = replace(config, epochs=epochs)
    return config


def _is_few(n_data: int | None) -> bool:
    return n_data is not None and n_data < _FEW_DATA


def _defaults(config: EngineConfig, entry: EngineEntry, prior: str) -> dict[str, Any]:
    defaults = {**entry.defaults, **_PRIOR_NUMBERS[prior], **entry.of_prior.get(prior, {})}
    if config.anneal is not None and not 1 <= config.anneal < math.inf:
        raise UsageError(
            f"--anneal multiplies 1 / temperature: give 1 or more, got {config.anneal}."
        )
    own = {"prior": prior, "name": config.name, "preset": config.preset or "default"}
    return defaults | own


def _paper(config: EngineConfig, entry: EngineEntry) -> dict[str, Any]:
    """What the paper's preset changes, if it is asked for."""
    if config.preset != "paper":
        return {}
    if entry.paper is None:
        with_paper = ", ".join(name for name, own in ENGINES.items() if own.paper is not None)
        raise UsageError(
            f"engine {config.name} has no --preset paper ({with_paper} have); remove it."
        )
    prior = entry.paper.get("prior", entry.priors[0])
    if config.prior not in (None, prior):
        raise UsageError(f"--preset paper of {config.name} means --prior {prior}; remove yours.")
    return dict(entry.paper)


_VI = {"lr": 1e-3, "init_std": math.exp(-4), "start": "he", "local": True}
_FASTER = {"lr": 1e-2}
_CHAIN = {
    "lr": 0.03,
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
_CHAIN_REGRESSION = {"prior": "normal", "prior_std": 0.5, "lr": 3e-3}
_FLAT_FF = {
    "prior": "layer-scaled",
    "lr": 5e-3,
    "init_std": 0.1,
    "start": "uniform",
    "local": False,
}
ENGINES = {
    "map": EngineEntry(
        engines.build_map,
        ("none", "normal", "spike-slab"),
        {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0, "momentum": 0.9, "start": "module"},
        course="point",
        spread=False,
        paper={"optimizer": "adam"},
        few=_FASTER,
    ),
    "flat-vi": EngineEntry(
        engines.build_flat_vi,
        ("normal", "spike-slab", "layer-scaled"),
        _VI,
        course="variational",
        paper=_FLAT_FF,
        of_prior={"layer-scaled": {"lr": 5e-3, "init_std": 0.18}},  # in units of a layer's width
        regression={"prior": "normal", "prior_std": 1.0},
        few={**_FASTER, "prior_std": 0.3},
    ),
    "sbnn": EngineEntry(
        engines.build_sbnn,
        ("spike-slab",),
        {**_VI, "optimizer": "adam"},
        course="variational",
        regression={"prior": "spike-slab", "slab_std": 1.0, "spike_std": math.exp(-2)},
        few=_FASTER,
    ),
    "bmr": EngineEntry(
        engines.build_bmr,
        ("layer-scaled",),
        {"lr": 1e-2, "init_std": 0.18, "start": "he", "local": True, "rule": "savage-dickey"},
        course="reduction",
        paper={"init_std": 0.1, "start": "uniform", "local": False, "rule": "hierarchical"},
        prunes="itself",
    ),
    "horseshoe": EngineEntry(
        engines.build_horseshoe,
        ("horseshoe",),
        {"lr": 5e-3, "init_std": 0.02, "start": "he"},
        course="variational",
        paper={"init_std": 0.1, "start": "he"},
        regression={"prior": "horseshoe", "lr": 2e-2},
        few=_FASTER,
    ),
    "sgld": EngineEntry(  # without momentum a step moves a tenth as far
        engines.build_sgld,
        _CHAIN_PRIORS,
        {**_CHAIN, "lr": 0.3},
        course="steady",
        spread=False,
        of_prior=_OF_CHAIN,
        regression={**_CHAIN_REGRESSION, "lr": 0.03},
    ),
    "sghmc": EngineEntry(
        engines.build_sghmc,
        _CHAIN_PRIORS,
        {**_CHAIN, "friction": 0.1},
        course="steady",
        spread=False,
        of_prior=_OF_CHAIN,
        regression=_CHAIN_REGRESSION,
    ),
    "tdamp": EngineEntry(
        engines.build_tdamp,
        ("group-sparse",),
        {"group": "units", "power": 5.0, "memory": 10.0},
        course="steady",
        prunes="units",
    ),
}
