"""Settings of a run: one frozen tree, each setting described once, and reading it from files.

A configuration file, the command line's flags, the keywords of `runs.train` and `config.json` in a
run folder all set these fields. A field left at None takes the recommended value of
`engines.recipes`; `config.json` records the values that were used. Reading is strict about names
and types, and errors say where the wrong value is. Nothing here imports torch.
"""

# ruff: noqa: RUF009 - `setting` makes a dataclass field, as `field` does

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bayesieve.checks import check_counts, check_fraction, check_positive, check_seed, did_you_mean
from bayesieve.engines.recipes import EngineName, PriorName
from bayesieve.errors import TooLargeError, UsageError
from bayesieve.files import check_limit, parse_json
from bayesieve.text import short

RECORD = "record"  # what config.json of a run folder holds besides settings
_ARGUMENTS = "arguments"  # where settings come from that messages name alone
Floats = tuple[float, ...]
Numbers = float | tuple[float, ...]  # one number, or one per model of a population
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Floats: "numbers with commas between",
}
Score = Literal["snr", "inclusion", "evidence", "magnitude", "second-moment"]


@dataclass(frozen=True)
class Arg:
    """Description of an argument of a command or of a setting of a run.

    Args:
        check: function of `bayesieve.checks` that a value must pass.
        positional: whether the command line takes it by position, not as a flag.
        metavar: name of the value in the help.
        alias: second name of the flag.
        word: name of the flag, if it is not the argument's.
    """

    check: Callable[..., None] | None = None
    positional: bool = False
    metavar: str | None = None
    alias: str | None = None
    word: str | None = None


def setting(help: str, default: Any = None, **about: Any) -> Any:
    """A dataclass field that is a flag, with a line of help; `about` are arguments of `Arg`."""
    return field(default=default, metadata={"help": help, "arg": Arg(**about)})


def word_of(spec: Field[Any]) -> str:
    """The name of a field as an argument of a command; its flag has dashes."""
    return spec.metadata["arg"].word or spec.name


def check_threads(who: str, **values: int) -> None:
    """Raise unless every value is a whole number from 1 to the number of processors.

    Example:
        >>> check_threads("train", threads=1)
    """
    check_counts(who, **values)
    most = os.cpu_count() or 1
    for name, value in values.items():
        if value > most:
            here = f"{most}, the processors of this machine"
            raise ValueError(f"{who}: {name} must be at most {here}, got {value}.")


@dataclass(frozen=True)
class DataConfig:
    """The data set to learn from."""

    name: str | None = setting(
        "Data set: a name of `bayesieve data list`, csv:PATH, images:FOLDER, ...", word="data"
    )
    target: str | None = setting("Tables: the column to predict.", metavar="COLUMN")
    task: Literal["classification", "regression"] | None = setting(
        "Tables: guessed from the target unless given."
    )
    split: int = setting("UCI sets: which of the published splits, from 0.", 0)
    missing: Literal["refuse", "impute"] = setting(
        "Tables: refuse missing values, or fill them in and tell the network.", "refuse"
    )
    drop: tuple[str, ...] = setting(
        "Tables: a column to leave out; may be repeated.", (), metavar="COLUMN"
    )
    date_parts: bool = setting("Tables: turn dates into time, season, weekday and hour.", False)
    test_fraction: float = setting("Own data: part set aside for testing.", 0.2)
    image_size: int | None = setting("Image folders: resize to this many pixels each way.")
    skip_bad: bool = setting("Image folders: leave out files that cannot be read.", False)
    max_memory: float | None = setting(
        "Image folders: gigabytes of inputs beyond which these stay on the disk, in the cache.",
        check=check_positive,
    )
    seed: int = setting(
        "Seed of the test and validation splits.", 0, word="data_seed", check=check_seed
    )
    center: bool | None = setting(
        "Images: bring each channel to mean 0 and variance 1 (default: tdamp)."
    )


@dataclass(frozen=True)
class NetConfig:
    """The network, what its outputs mean, and the part each parameter plays."""

    name: str | None = setting(
        "lenet-300-100, lenet5[-wide|-caffe], mixer, vit, conv2-fc2, conv2-bn-fc3, resnet20, "
        "resnet32, vgg, linear, mlp[:WIDTHS[:relu|tanh|swish[:BINS]]] (bins of each column of a "
        "table), or module:package.file.factory; mlp alone is the default: mlp:400,400 for images "
        "and mlp:50 for tables.",
        word="net",
    )
    likelihood: str | None = setting(
        "categorical or bernoulli, gaussian, student-t (wild targets), heteroscedastic (the "
        "network gives the noise too), poisson or negative-binomial (counts); from the task unless "
        "given."
    )
    noise_std: float | None = setting(
        "Noise in units of the standardised target; fixed when given."
    )
    learn_noise: bool | None = setting("Learn the noise, starting at `noise_std` or 1.")
    rate: float | None = setting(
        "Counts: mean of an untrained network; that of the training counts unless given.",
        check=check_positive,
    )
    prune_params: tuple[str, ...] = setting(
        "Parameters that may be pruned, for example 'fc*.weight'.", (), metavar="PATTERN"
    )
    keep_params: tuple[str, ...] = setting(
        "Parameters with a posterior that are never pruned.", (), metavar="PATTERN"
    )
    point_params: tuple[str, ...] = setting(
        "Parameters trained as plain numbers, without a prior.", (), metavar="PATTERN"
    )
    warm_start: str | None = setting(
        "Trained weights to start from: a state dict as .safetensors.", metavar="FILE"
    )
    dtype: Literal["float32", "float64"] = setting("Number format.", "float32")


@dataclass(frozen=True)
class EngineConfig:
    """The algorithm and its numbers; an engine refuses those it has no use for."""

    name: EngineName = setting("Algorithm.", "sbnn", word="engine")
    preset: Literal["default", "paper"] | None = setting(
        "Recommended numbers, or those of the engine's paper."
    )
    prior: PriorName | None = setting("Prior on the weights: the engine's own unless given.")
    prior_std: Numbers | None = setting("Standard deviation of a normal prior.", metavar="FLOAT")
    slab_std: Numbers | None = setting(
        "Spike and slab: standard deviation of weights that matter.", metavar="FLOAT"
    )
    spike_std: Numbers | None = setting(
        "Spike and slab: standard deviation of those that do not.", metavar="FLOAT"
    )
    slab_prob: Numbers | None = setting(
        "Spike and slab: prior probability that a weight matters.", metavar="FLOAT"
    )
    lr: Numbers | None = setting(
        "Learning rate; A,B,... gives each of `n_models` its own.", metavar="FLOAT"
    )
    init_std: Numbers | None = setting("Starting posterior standard deviation.", metavar="FLOAT")
    start: Literal["module", "he", "uniform"] | None = setting(
        "Starting means: the network's own, uniform by fan-in, or (bmr) by width."
    )
    optimizer: Literal["adam", "adamw", "sgd"] | None = setting("Optimiser of the engine.")
    local: bool | None = setting("Noise on activations instead of weights (flat-vi, sbnn, bmr).")
    weight_decay: float | None = setting("Weight decay (map).")
    momentum: float | None = setting("Momentum of sgd (map).")
    rule: Literal["hierarchical", "savage-dickey", "none"] | None = setting(
        "How evidence decides on a weight; none removes nothing (bmr)."
    )
    adapt: Literal["sa", "em", "none"] | None = setting(
        "How the prior is learned while sampling (sgld, sghmc)."
    )
    temperature: Numbers | None = setting(
        "1 samples the posterior, less is colder (sgld, sghmc).", metavar="FLOAT"
    )
    anneal: float | None = setting("Factor on 1 / temperature after each epoch (sgld, sghmc).")
    friction: float | None = setting("1 - momentum (sghmc).")
    preconditioned: bool | None = setting("Steps by the gradient's root mean square (sgld, sghmc).")
    spike_scale: Numbers | None = setting(
        "Laplace scale of weights that do not matter (sgld, sghmc).", metavar="FLOAT"
    )
    burn_in: float | None = setting(
        "Fraction of the run before the first draw is kept (sgld, sghmc)."
    )
    draws: int | None = setting("Draws kept of a chain (sgld, sghmc).")
    cycles: int | None = setting("Cosine cycles of the step size over the run (sgld, sghmc).")
    group: Literal["units", "inputs", "weights"] | None = setting("What goes as one (tdamp).")
    power: float | None = setting("Times a datum counts when it is read (tdamp).")
    memory: float | None = setting("Passes until what was read has faded to 1/e (tdamp).")

    def asked(self) -> dict[str, Any]:
        """Return what is chosen, by name; all settings where the gaps are filled."""
        return {key: value for key, value in vars(self).items() if key != "name"}


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate and KL weight over the run."""

    lr: Literal["constant", "cosine", "linear", "step"] | None = setting(
        "Course of the learning rate.", word="lr_schedule"
    )
    hold: float | None = setting(
        "Fraction of the run before it decays; until pruning ends unless given."
    )
    warmup: float | None = setting("Fraction of the run in which it rises from 0.")
    kl: float | None = setting("KL weight; 1 is Bayes' rule.")
    kl_after: float | None = setting("Its weight once pruning has ended.")
    kl_warmup_epochs: float | None = setting("Epochs over which the KL weight rises from 0.")
    minibatch: Literal["uniform", "geometric"] = setting(
        "How the batches of an epoch share the prior.", "uniform"
    )

    @property
    def last_kl(self) -> float:
        """KL weight at the end of a run."""
        weight = self.kl if self.kl_after is None else self.kl_after
        return 1.0 if weight is None else weight


@dataclass(frozen=True)
class PruningConfig:
    """Gradual pruning during training; off unless zeros is given."""

    zeros: float | None = setting(
        "Final fraction of zeros over all parameters; no pruning unless given."
    )
    start: float = setting(
        "Fraction of the run at which pruning begins.", 0.125, word="prune_start"
    )
    end: float = setting("Fraction of the run at which it has ended.", 0.5625, word="prune_end")
    keep_units: float | None = setting(
        "Final fraction of units, channels and heads (structured pruning).", check=check_fraction
    )
    score: Score | None = setting("Which weights go first.")
    soft: bool = setting("Let pruned weights come back until pruning ends.", False)


@dataclass(frozen=True)
class TrainingConfig:
    """The loop: how long, how many, on what device."""

    epochs: int | None = setting(
        "Passes over the data (60; tables 1,100 to 2,500 steps; tdamp 10), or `steps`.",
        alias="em_iters",
    )
    steps: int | None = setting("Gradient steps, in place of epochs.")
    batch_size: int | None = setting(
        "Examples per step (128; tables 32 to 256; tdamp 100, or 10 of few examples)."
    )
    micro_batch: int | None = setting(
        "Most examples in the network at once, to save memory; the batch unless given.",
        check=check_positive,
    )
    precision: Literal["float32", "bf16"] = setting(
        "Of the network in a training step; bf16 is faster on a GPU.", "float32"
    )
    seed: int = setting("Seed of initial weights, noise and batch order.", 0, check=check_seed)
    n_models: int | None = setting(
        "Models, or chains, side by side from different seeds (1; samplers 2).",
        alias="chains",
        check=check_positive,
    )
    clip_norm: float | None = setting(
        "Bound on the norm of the gradient per example.", check=check_positive
    )
    shift: int = setting("Images: move each by up to so many pixels at random, in every batch.", 0)
    flip: bool = setting("Images: mirror half of them left to right.", False)
    rotate: float = setting("Images: turn each by up to so many degrees.", 0.0)
    val_fraction: float | None = setting(
        "Part of the training data held out and watched.",
        check=partial(check_fraction, open_ends=True),
    )
    patience: int | None = setting(
        "Epochs without a better validation likelihood before stopping.", check=check_positive
    )
    min_delta: float = setting("How much lower (nats) counts as better.", 0.0)
    device: str = setting("auto, cpu, cuda or cuda:N.", "auto", metavar="DEVICE")
    threads: int | None = setting(
        "CPU threads; 1 is fastest for small networks. Torch chooses unless given.",
        check=check_threads,
    )
    compile: Literal["auto", "on", "off", "network"] = setting(
        "Compile the elementwise part of a step; network: the network too.", "auto"
    )
    moments: Literal["float32", "bf16"] = setting(
        "Adam's running averages; bf16 takes half the memory.", "float32"
    )
    checkpoint_every: int | None = setting(
        "Steps between checkpoints; at each epoch's end unless given.", check=check_positive
    )
    distill: int | None = setting(
        "Self-distillation: number of dense teachers trained first.", check=check_positive
    )
    distill_epochs: int | None = setting("Their epochs; as many as the run unless given.")
    distill_weight: float = setting("Share of the teachers in a label.", 0.5, check=check_fraction)


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run."""

    data: DataConfig = field(default_factory=DataConfig)
    net: NetConfig = field(default_factory=NetConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    pruning: PruningConfig = field(default_factory=PruningConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @property
    def tempering(self) -> float:
        """Tempering of the posterior: 1 is Bayes' rule, below 1 it behaves as with more data.

        KL weight for variational engines, temperature for samplers.
        """
        temperature = self.engine.temperature
        return self.schedule.last_kl * (temperature if isinstance(temperature, float) else 1.0)


@cache
def sections() -> dict[str, type]:
    """The sections of a configuration by name."""
    return dict(get_type_hints(RunConfig))


def all_settings() -> Iterator[tuple[str, Field[Any]]]:
    """Every setting: its section and its field."""
    for section, kind in sections().items():
        yield from ((section, spec) for spec in fields(kind))


def argument_of(section: str, name: str) -> str:
    """The argument that sets `section.name`, as messages quote it."""
    spec: Field[Any] = sections()[section].__dataclass_fields__[name]  # type: ignore[attr-defined]
    return f"`{word_of(spec)}`"


@cache
def hints_of(section: str) -> dict[str, Any]:
    """The types of a section's settings by name; none where there is no such section."""
    return get_type_hints(sections().get(section, object))


def kinds_of(hint: Any) -> list[Any]:
    """The types a value may have, None left out.

    Example:
        >>> kinds_of(float | tuple[float, ...] | None)
        [<class 'float'>, tuple[float, ...]]
    """
    kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return [kind for kind in kinds if kind is not NoneType]


def choices_of(hint: Any) -> tuple[str, ...]:
    """The words a value is one of, if its type is a list of words."""
    return next((get_args(kind) for kind in kinds_of(hint) if get_origin(kind) is Literal), ())


@cache
def keywords() -> dict[str, tuple[str, str]]:
    """Section and name of every setting by the keyword that sets it; aliases count."""
    return {
        word: (section, spec.name)
        for section, spec in all_settings()
        for word in (word_of(spec), spec.metadata["arg"].alias)
        if word is not None
    }


def from_keywords(values: Mapping[str, Any], base: RunConfig | None = None) -> RunConfig:
    """Settings by their names as arguments, over those of `base`.

    Example:
        >>> from_keywords({"data": "digits", "prune_start": 0.2}).pruning.start
        0.2
    """
    nested: dict[str, dict[str, Any]] = {}
    for keyword, value in values.items():
        if keyword not in keywords():
            hint = did_you_mean(keyword, keywords())
            raise TypeError(f"there is no setting {keyword!r}.{hint}")
        section, name = keywords()[keyword]
        nested.setdefault(section, {})[name] = value
    return from_dict(nested, _ARGUMENTS, base)


def from_dict(values: Mapping[str, Any], where: str, base: RunConfig | None = None) -> RunConfig:
    """Settings from nested plain data, over those of `base`.

    Args:
        values: section -> setting -> value.
        where: what error messages name, such as a file.
        base: settings that `values` overrides; the defaults unless given.

    Example:
        >>> from_dict({"engine": {"lr": "1e-3"}}, "run.yaml").engine.lr
        0.001
        >>> from_dict({"engine": {"learn_rate": 1}}, "run.yaml")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        bayesieve.errors.UsageError: run.yaml: unknown key 'engine.learn_rate'...
    """
    config = RunConfig() if base is None else base
    for name, section in values.items():
        if name not in sections():
            raise UsageError(
                f"{where}: unknown section {short(name)}; sections are {', '.join(sections())}."
                f"{did_you_mean(str(name), sections())}"
            )
        if not isinstance(section, Mapping):
            raise UsageError(f"{where}: {name} must hold keys and values, got {short(section)}.")
        hints, changes = hints_of(name), {}
        for key, value in section.items():
            full = f"{name}.{key}"
            if full == "engine.paired" and not value:  # of version 0.2, where this changed nothing
                continue
            if key not in hints:
                everywhere = {f"{section}.{spec.name}" for section, spec in all_settings()}
                hint = did_you_mean(full, {f"{name}.{hint}" for hint in hints})
                hint = hint or did_you_mean(full, everywhere)
                raise UsageError(f"{where}: unknown key {short(full)}.{hint}")
            who = argument_of(name, key) if where == _ARGUMENTS else f"{where}: {name}.{key}"
            changes[key] = convert(value, hints[key], who)
        config = replace(config, **{name: replace(getattr(config, name), **changes)})
    return config


def to_dict(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Nested plain data, ready for JSON; `from_dict` undoes it.

    Example:
        >>> from_dict(to_dict(RunConfig()), "config.json") == RunConfig()
        True
    """
    return {
        name: {key: list(v) if isinstance(v, tuple) else v for key, v in section.items()}
        for name, section in asdict(config).items()
    }


def read_config(path: Path) -> RunConfig:
    """Settings of a YAML, TOML or JSON file, by its ending."""
    if not path.is_file():
        raise UsageError(f"{path}: no such configuration file.")
    if path.suffix not in (".yaml", ".yml", ".toml", ".json"):
        raise UsageError(f"{path}: a configuration file must end in .yaml, .yml, .toml or .json.")
    check_limit(path, "settings", path.stat().st_size, "bytes of settings")
    read = {".toml": _toml, ".json": _json}.get(path.suffix, _yaml)
    try:
        values = read(path, path.read_text(encoding="utf-8")) or {}
    except (TooLargeError, UsageError):
        raise
    except Exception as error:  # each format has its errors, and any may nest too deeply
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"{path}: not a valid {path.suffix[1:]} file: {reason}.") from error
    if not isinstance(values, Mapping):
        raise UsageError(f"{path}: must hold sections such as data and engine.")
    return from_dict(without_record(values), str(path))


def _toml(path: Path, text: str) -> Any:
    # Python's parser takes time, and memory, that are quadratic in the dots of a key.
    dots = max(line.count(".") for line in text.split("\n"))
    check_limit(path, "depth", dots, "dots in a line")
    return tomllib.loads(text)


def _json(path: Path, text: str) -> Any:
    return parse_json(path, text.encode(), constants=True)


def _yaml(path: Path, text: str) -> Any:
    """The values of a YAML text, of bounded depth and without aliases, which multiply."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{path}: write out the alias *{event.anchor}; aliases are refused.")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        check_limit(path, "depth", depth, "levels of nesting")
    return yaml.safe_load(text)


def without_record(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file, which may be config.json of a run folder.

    Example:
        >>> without_record({"net": {"name": "mlp"}, "record": {"command": "train"}})
        {'net': {'name': 'linear'}}
    """
    settings = {name: value for name, value in values.items() if name != RECORD}
    net = settings.get("net")
    if RECORD in values and isinstance(net, Mapping):
        kind, _, rest = str(net.get("name")).partition(":")
        if kind == "mlp" and not rest.partition(":")[0]:
            # version 0.1 wrote down an mlp without widths for a linear model
            settings["net"] = {**net, "name": "linear"}
    return settings


def convert(value: Any, hint: Any, who: str) -> Any:
    """The value as the type of its field; raises a message that names the field.

    Example:
        >>> convert("1e-3,1e-2", float | tuple[float, ...], "engine.lr")
        (0.001, 0.01)
    """
    kinds, choices = kinds_of(hint), choices_of(hint)
    if value is None and NoneType in get_args(hint):
        return None
    if choices:
        if isinstance(value, bool) and "on" in choices:  # YAML reads on and off as true and false
            value = "on" if value else "off"
        if value in choices:
            return value
        hint = did_you_mean(str(value), choices)
        raise UsageError(f"{who} must be one of {', '.join(choices)}; got {short(value)}.{hint}")
    for kind in kinds:
        try:
            return _as(kind, value)
        except (TypeError, ValueError, OverflowError):
            continue
    raise UsageError(f"{who} must be {_WORDS.get(kinds[0], 'a list')}, got {short(value)}.")


def _as(kind: Any, value: Any) -> Any:
    """The value as one type; raises TypeError or ValueError where it is none."""
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if isinstance(value, str):
            value = value.split(",") if item is float else [value]
        if not isinstance(value, list | tuple):
            raise TypeError
        return tuple(_as(item, one) for one in value)
    if kind is float and isinstance(value, str):
        return float(value)  # YAML reads 1e-3 as text
    if isinstance(value, bool) != (kind is bool):
        raise TypeError
    if not isinstance(value, int | float if kind is float else kind):
        raise TypeError
    return float(value) if kind is float else value


def plain_value(text: str) -> bool | int | float | str:
    """Read a text as a value: true or false, a whole number, a number, or itself.

    Example:
        >>> [plain_value(text) for text in ("true", "8", "1e-3", "he")]
        [True, 8, 0.001, 'he']
    """
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
