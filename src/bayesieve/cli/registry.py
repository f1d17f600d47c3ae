"""The only place where engines and networks have names as text, and what each is given by default.

The recommended numbers of the variational engines are those measured on MNIST: noise on
activations, starting means by fan-in, log std -4, a KL weight of 0.3 for classification that rises
over the first epochs, the learning rate falling by a cosine once pruning has ended.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from bayesieve.checks import did_you_mean
from bayesieve.cli.config import EngineConfig, PruningConfig, ScheduleConfig
from bayesieve.cli.config_files import UsageError
from bayesieve.cli.flags import flag_of

if TYPE_CHECKING:
    from torch import nn

    from bayesieve.core.priors import Normal, Prior, SpikeSlab
    from bayesieve.data import DataSet
    from bayesieve.engines import Engine

_NETS = ("lenet-300-100", "lenet5", "lenet5-caffe", "mlp")
_PRIOR_NUMBERS: dict[str, dict[str, Any]] = {
    "none": {},
    "normal": {"prior_std": 0.1},
    "spike-slab": {"slab_std": math.exp(-1), "spike_std": math.exp(-3), "slab_prob": 0.5},
}


@dataclass(frozen=True)
class EngineEntry:
    """An engine by name.

    Args:
        build: makes the engine from settings without gaps.
        priors: what it takes, its own first.
        defaults: recommended values of the settings it takes.
        spread: whether its posterior has standard deviations.
    """

    build: Callable[[EngineConfig], "Engine[Any]"]
    priors: tuple[str, ...]
    defaults: dict[str, Any]
    spread: bool


def build_engine(config: EngineConfig) -> "Engine[Any]":
    """The engine of resolved settings."""
    return ENGINES[config.name].build(config)


def build_net(name: str, data: "DataSet", n_outputs: int) -> "nn.Module":
    """The network of a name, sized for a data set."""
    from bayesieve import nets

    shape = data.input_shape
    kind, _, rest = name.partition(":")
    if kind == "module":
        return nets.from_path(name, shape, n_outputs)
    if kind == "mlp":
        return _mlp(name, rest, shape, n_outputs)
    table: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
        "lenet-300-100": nets.lenet_300_100,
        "lenet5": nets.lenet5,
        "lenet5-caffe": nets.lenet5_caffe,
    }
    if name not in table:
        raise UsageError(
            f"--net must be one of {', '.join(_NETS)}:WIDTHS or module:package.file.factory; got "
            f"{name!r}.{did_you_mean(name, _NETS)}"
        )
    return table[name](shape, n_outputs)


def resolve_engine(config: EngineConfig, *, own_start: bool) -> EngineConfig:
    """Fill the gaps with recommended values; refuse settings this engine has no use for.

    Args:
        config: as given.
        own_start: whether the network's own initial weights are to be used unless told otherwise.
    """
    entry = ENGINES[config.name]
    prior = config.prior or entry.priors[0]
    if prior not in entry.priors:
        raise UsageError(
            f"engine {config.name} takes --prior {' or '.join(entry.priors)}, got {prior!r}."
        )
    defaults = {**entry.defaults, **_PRIOR_NUMBERS[prior], "prior": prior, "name": config.name}
    if own_start:
        defaults["start"] = "module"
    if "local" in defaults and (config.optimizer == "sgd" or entry.priors[0] != prior):
        defaults["local"] = False
    for spec in fields(config):
        if getattr(config, spec.name) is not None and spec.name not in defaults:
            flag = flag_of("engine", spec.name)
            raise UsageError(f"engine {config.name} with prior {prior} has no {flag}; remove it.")
    gaps = {key: value for key, value in defaults.items() if getattr(config, key) is None}
    return replace(config, **gaps)


def resolve_schedule(
    schedule: ScheduleConfig, engine: EngineConfig, *, task: str, n_epochs: float
) -> ScheduleConfig:
    """Fill the gaps of a schedule: see the module's docstring."""
    bayesian = ENGINES[engine.name].spread
    kl = 0.3 if bayesian and task == "classification" else 1.0
    warmup = min(10.0, round(n_epochs / 6, 2)) if bayesian else 0.0
    gaps: dict[str, Any] = {"lr": "cosine", "kl": kl, "kl_warmup_epochs": warmup}
    return replace(schedule, **{k: v for k, v in gaps.items() if getattr(schedule, k) is None})


def resolve_pruning(config: PruningConfig, engine: EngineConfig) -> PruningConfig:
    """Fill in the score: signal to noise where there is noise."""
    if config.zeros is None or config.score is not None:
        return config
    return replace(config, score="snr" if ENGINES[engine.name].spread else "magnitude")


def _mlp(name: str, rest: str, shape: tuple[int, ...], n_outputs: int) -> "nn.Module":
    from bayesieve.nets import Activation, mlp

    widths, _, activation = rest.partition(":")
    parts = [part.strip() for part in widths.split(",")] if widths else []
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--net mlp must read mlp:400,400 or mlp:50:tanh, got {name!r}.")
    chosen: Activation = activation or "relu"  # type: ignore[assignment]
    return mlp(shape, n_outputs, widths=[int(part) for part in parts], activation=chosen)


def _prior(config: EngineConfig) -> "Prior | None":
    if config.prior == "normal":
        return _normal(config)
    return _spike_slab(config) if config.prior == "spike-slab" else None


def _normal(config: EngineConfig) -> "Normal":
    from bayesieve.core.priors import Normal

    assert config.prior_std is not None
    return Normal(config.prior_std)


def _spike_slab(config: EngineConfig) -> "SpikeSlab":
    from bayesieve.core.priors import SpikeSlab

    numbers = (config.slab_std, config.spike_std, config.slab_prob)
    return SpikeSlab(*(number for number in numbers if number is not None))


def _map(config: EngineConfig) -> "Engine[Any]":
    from bayesieve.engines.map import MAP

    c: Any = config  # resolved: no field read here is None
    return MAP(_prior(config), c.optimizer, c.lr, c.weight_decay, c.momentum, c.start)


def _flat_vi(config: EngineConfig) -> "Engine[Any]":
    from bayesieve.engines.flat_vi import FlatVI

    c: Any = config
    prior = _normal(config) if config.prior == "normal" else _spike_slab(config)
    return FlatVI(prior, c.lr, c.init_std, c.start, c.local)


def _sbnn(config: EngineConfig) -> "Engine[Any]":
    from bayesieve.engines.sbnn import SBNN

    c: Any = config
    return SBNN(_spike_slab(config), c.lr, c.init_std, c.start, c.optimizer, c.local)


_VI = {"lr": 1e-3, "init_std": math.exp(-4), "start": "he", "local": True}
ENGINES = {
    "map": EngineEntry(
        _map,
        ("none", "normal", "spike-slab"),
        {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0, "momentum": 0.9, "start": "module"},
        spread=False,
    ),
    "flat-vi": EngineEntry(_flat_vi, ("normal", "spike-slab"), _VI, spread=True),
    "sbnn": EngineEntry(_sbnn, ("spike-slab",), {**_VI, "optimizer": "adam"}, spread=True),
}
