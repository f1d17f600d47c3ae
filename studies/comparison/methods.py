"""The methods of a comparison by name: an engine each, and how it predicts.

Monte-Carlo dropout is a posterior like the others: dropping input j of a layer is setting column j
of its weight to 0 (and the others 1 / (1 - p) times as large), so a draw of masks is a draw of
weights: Gal and Ghahramani (2016), section 3. Departure: within one draw the mask is the same for
all inputs, as for every other posterior here.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Generator, nn

from bayesieve.checks import check_fraction, check_positive, did_you_mean
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.engines import Engine
from bayesieve.engines.recipes import ENGINES, RunSize, build
from bayesieve.errors import UsageError
from bayesieve.runs.build import resolve_engine, resolve_schedule
from bayesieve.runs.config import RunConfig, from_dict, plain_value
from bayesieve.sieve.ranking import ScoreName
from bayesieve.training.schedule import Schedule
from studies.comparison.budget import Compare

Section = Mapping[str, Any]  # setting -> value
Changes = Mapping[str, Mapping[str, Section]]  # method -> section -> settings
Kind = Literal["posterior", "point", "ensemble", "dropout"]
DROPOUT = 0.1  # probability of an input to be dropped
_MEMBERS = 5  # networks of an ensemble
_SECTIONS = ("engine", "schedule", "pruning")
_SAMPLER = {"prior": "normal", "adapt": "none"}


@dataclass(frozen=True)
class Method:
    """A way to learn.

    Args:
        name: what tables print.
        engine: what trains.
        schedule: course of learning rate and KL weight.
        score: which weights go first.
        kind: "posterior" predicts with draws of the engine's posterior, "point" with its mean,
            "ensemble" with several networks, "dropout" with masks.
        members: networks that share the passes; more than one of an ensemble only.
        finetune: schedule while what is left of a pruned network trains.
        finetune_engine: the engine then, where it depends on the length of the run.
    """

    name: str
    engine: Engine[Any]
    schedule: Schedule
    score: ScoreName = "snr"
    kind: Kind = "posterior"
    members: int = 1
    finetune: Schedule = field(default_factory=lambda: Schedule(lr="cosine"))
    finetune_engine: Engine[Any] | None = None


# Every engine is a method; these are several, or have settings of their own in a comparison.
_VARIANTS: dict[str, dict[str, Mapping[str, Section]]] = {
    "map": {name: {"engine": {"name": "map"}} for name in ("map", "dropout", "ensemble")},
    "sgld": {"sgld": {"engine": {"name": "sgld", **_SAMPLER}}},
    "sghmc": {
        "sghmc": {"engine": {"name": "sghmc", **_SAMPLER}},
        "sghmc-sa": {"engine": {"name": "sghmc", "prior": "gaussian-laplace"}},
    },
    # All units stay in training: by joint evidence few passes leave hardly any.
    "tdamp": {"tdamp": {"engine": {"name": "tdamp"}, "pruning": {"keep_units": 1.0}}},
}
# method -> section -> settings
METHODS: dict[str, Mapping[str, Section]] = {
    method: sections
    for name in ENGINES
    for method, sections in _VARIANTS.get(name, {name: {"engine": {"name": name}}}).items()
}
_KINDS: dict[str, Kind] = {"map": "point", "dropout": "dropout", "ensemble": "ensemble"}


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
        _config(method, sections)  # complains before any training
    return changes


def build_method(
    name: str,
    task: str,
    n_data: int,
    asked: Compare,
    changes: Mapping[str, Section],
    *,
    table: bool = False,
    normalised: bool = False,
) -> Method:
    """A method with its engine for a run of this length.

    Args:
        name: one of `METHODS`.
        task: "classification" or "regression".
        n_data: training examples.
        asked: options of the comparison: the passes it may spend.
        changes: section -> settings that differ from the recommended ones.
        table: whether the inputs are the columns of a table.
        normalised: whether the network has running statistics.
    """
    config = _config(name, changes)
    facts = {"task": task, "table": table, "normalised": normalised}
    size, after = (
        RunSize.of(config.engine.name, n_data, epochs, None, asked.batch_size, **facts)
        for epochs in (asked.epochs, asked.finetune)
    )
    engine = resolve_engine(config.engine, size, own_start=False)
    course: Any = resolve_schedule(config.schedule, engine, size)
    entry, kind = ENGINES[engine.name], _KINDS.get(name, "posterior")
    return Method(
        name=name,
        engine=build(
            engine.name, replace(size, keep_units=config.pruning.keep_units), engine.asked()
        ),
        schedule=Schedule(
            course.lr, warmup=course.warmup, kl=course.kl, kl_warmup_epochs=course.kl_warmup_epochs
        ),
        score=config.pruning.score or ("snr" if entry.spread else "magnitude"),
        kind=kind,
        members=_MEMBERS if kind == "ensemble" else 1,
        finetune=Schedule("constant" if entry.course == "steady" else "cosine", kl=course.kl),
        finetune_engine=build(engine.name, replace(after, may_prune=False), engine.asked()),
    )


def _config(name: str, changes: Mapping[str, Section]) -> RunConfig:
    return from_dict(changes, "--set", from_dict(METHODS[name], "compare"))


class DroppedLinear(nn.Linear):
    """A linear layer that drops its inputs in training, with the parameters of the layer it was.

    Example:
        >>> layer = DroppedLinear.of(nn.Linear(3, 2), p=0.5)
        >>> sorted(name for name, _ in layer.named_parameters())
        ['bias', 'weight']
    """

    p: float

    @classmethod
    def of(cls, layer: nn.Linear, p: float) -> "DroppedLinear":
        """The same weights with dropout in front."""
        dropped = cls(layer.in_features, layer.out_features, layer.bias is not None)
        dropped.load_state_dict(layer.state_dict())
        dropped.p = p
        return dropped.to(layer.weight)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Drop, then multiply."""
        return super().forward(nn.functional.dropout(input, self.p, self.training))


def with_dropout(model: nn.Module, p: float) -> nn.Module:
    """A copy whose linear layers drop their inputs, except a layer that reads the data itself.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [type(layer).__name__ for layer in with_dropout(net, 0.1)]
        ['Linear', 'ReLU', 'DroppedLinear']
    """
    check_fraction("with_dropout", open_ends=True, p=p)
    clone = copy.deepcopy(model)
    weighted = [m for m in clone.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)]
    first = weighted[0] if weighted else None
    for parent in list(clone.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not first:
                setattr(parent, name, DroppedLinear.of(child, p))
    return clone


def dropout_draws(posterior: Posterior, model: nn.Module, n: int, generator: Generator) -> Samples:
    """N draws of a network trained with dropout.

    Args:
        posterior: point estimate of the network's weights.
        model: the network that `with_dropout` returned.
        n: draws.
        generator: of the masks.
    """
    check_positive("dropout_draws", n=n)
    draws = posterior.mean.repeat(n, 1)
    layers = {
        f"{name}.weight" if name else "weight": layer
        for name, layer in model.named_modules()
        if isinstance(layer, DroppedLinear)
    }
    for tensor, part in posterior.layout.slices.items():
        if tensor in layers:
            layer = layers[tensor]
            keep = torch.rand(n, layer.in_features, generator=generator, device=draws.device)
            factor = (keep >= layer.p).to(draws) / (1 - layer.p)
            weights = draws[:, part].view(n, layer.out_features, layer.in_features)
            draws[:, part] = (weights * factor[:, None]).view(n, -1)
    return Samples(posterior.network, draws, None, dict(posterior.buffers))
