"""From settings to objects: data, network, problem, engine, schedule and pruning of a run."""

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from bayesieve import nets
from bayesieve.assess.memory import free_bytes
from bayesieve.checks import did_you_mean
from bayesieve.core.layout import Roles
from bayesieve.core.likelihoods import Likelihood, likelihood_class, name_of
from bayesieve.core.network import Network
from bayesieve.core.problem import Problem
from bayesieve.core.random import own_stream
from bayesieve.core.workspace import has_statistics
from bayesieve.data import DataSet, Examples, load_data
from bayesieve.data.augment import Augment
from bayesieve.data.cache import is_mapped
from bayesieve.data.images import PixelScale, centred
from bayesieve.engines import Engine
from bayesieve.engines.recipes import (
    ENGINES,
    RunSize,
    build,
    recommended_schedule,
    settings_of,
)
from bayesieve.errors import DataError, UnsupportedModelError, UsageError
from bayesieve.runs.config import (
    DataConfig,
    EngineConfig,
    NetConfig,
    PruningConfig,
    RunConfig,
    ScheduleConfig,
    TrainingConfig,
    all_settings,
    argument_of,
    word_of,
)
from bayesieve.runs.memory import MemoryNeed, memory_need
from bayesieve.sieve.schedule import GradualPruning, GradualUnits
from bayesieve.training.fit import check_moments, check_run
from bayesieve.training.schedule import Pruning, Schedule
from bayesieve.training.validation import Validation
from bayesieve.uncertainty.familiarity import bytes_to_learn

FILES = ("csv", "parquet", "npz", "images")  # what comes before the colon of a path
_MANY_WEIGHTS = 20_000_000
_LARGE = 500_000_000  # bytes by a rough count: so many vectors of weights, so many layers
_VECTORS, _LAYERS = 40, 40
NETS = (
    "lenet-300-100", "lenet5", "lenet5-wide", "lenet5-caffe", "mixer", "vit", "conv2-fc2",
    "conv2-bn-fc3", "resnet20", "resnet32", "vgg", "linear",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Everything a run needs, checked; `config` has no gaps left."""

    config: RunConfig
    data: DataSet
    problem: Problem
    engine: Engine[Any]
    schedule: Schedule
    pruning: Pruning | None
    validation: Validation | None
    device: torch.device
    size: RunSize


def make_plan(config: RunConfig) -> Plan:
    """Check every setting, build every object and fill every gap."""
    check_settings(config)
    if config.data.center is None:  # message passing expects centred inputs
        center = ENGINES[config.engine.name].passes
        config = replace(config, data=replace(config.data, center=center))
    config = absolute_paths(config)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    device = choose_device(config.training.device)
    data = build_data(config.data, config.net)
    train, held_out = split_off(config, data.train)
    check_varied(data, train)
    if may_be_huge(config.net, data):
        _check_huge(config, data, train, device)
    model = build_module(config.net, data, config.training.seed)
    if config.net.warm_start is not None:
        load_weights(model, Path(config.net.warm_start))
    config, size = _resolve(config, data, len(train), device, model)
    problem = Problem(
        model,
        build_likelihood(config.net, data),
        train,
        roles=build_roles(config.net),
        precision=config.training.precision,
        augment=build_augment(config.training, data),
    )
    engine = _sized_engine(config, size)
    pruning = build_pruning(config)
    validation = None
    if held_out is not None:
        validation = Validation(held_out, config.training.patience, config.training.min_delta)
    course, training = vars(config.schedule), config.training
    schedule = Schedule(
        **course,
        clip_norm=training.clip_norm,
        checkpoint_every=training.checkpoint_every,
        compile=training.compile,
        moments=training.moments,
    )
    plan = Plan(config, data, problem, engine, schedule, pruning, validation, device, size)
    check_plan(plan)
    return plan


def build_data(config: DataConfig, net: NetConfig) -> DataSet:
    """The data set in the number format of the network."""
    if config.name is None:
        raise UsageError("give a data set, for example `data=digits`; see `bayesieve data list`.")
    check_path(config.name)
    counts = net.likelihood is not None and not likelihood_class(net.likelihood).standardised
    data = load_data(
        config.name,
        target=config.target,
        task=config.task or ("regression" if counts else None),
        counts=counts,
        split=config.split,
        missing=config.missing,
        drop=config.drop,
        date_parts=config.date_parts,
        test_fraction=config.test_fraction,
        seed=config.seed,
        image_size=config.image_size,
        skip_bad=config.skip_bad,
        max_memory=None if config.max_memory is None else round(config.max_memory * 1e9),
    )
    if config.center:
        data = centred(data)
    dtype = getattr(torch, net.dtype)
    return replace(data, train=data.train.to(dtype=dtype), test=data.test.to(dtype=dtype))


def split_off(config: RunConfig, train: Examples) -> tuple[Examples, Examples | None]:
    """The examples to train on, and those held out for validation if any."""
    if config.training.val_fraction is None:
        if config.training.patience is not None:
            raise UsageError(
                "`patience` needs `val_fraction`: early stopping watches held-out data."
            )
        return train, None
    return train.split(config.training.val_fraction, config.data.seed)


def build_module(config: NetConfig, data: DataSet, seed: int) -> nn.Module:
    """The network with initial weights that depend on the seed alone."""
    kind = likelihood_class(config.likelihood or _usual_likelihood(data))
    n_outputs = kind.configured().n_outputs(data.n_outputs)
    with own_stream("train", seed):
        return build_net(config.name, data, n_outputs).to(getattr(torch, config.dtype))


def build_likelihood(config: NetConfig, data: DataSet) -> Likelihood:
    """The likelihood asked for, else the one of the task."""
    name = config.likelihood or _usual_likelihood(data)
    kind = likelihood_class(name)
    if kind.task != data.task:
        raise UsageError(
            f"`likelihood={name}` is for {kind.task}, but {data.name} is a {data.task}. Leave it "
            f"out; a table can be read as the other with `task={kind.task}`."
        )
    if not kind.noise and (config.noise_std is not None or config.learn_noise is not None):
        raise UsageError(f"`noise_std` and `learn_noise` are for real targets, not {name}.")
    if "learned" not in kind.noise and config.learn_noise is not None:
        raise UsageError(f"`learn_noise`: {name} noise comes from the network; remove it.")
    likelihood = kind.configured(config.noise_std, config.learn_noise)
    if kind.standardised:
        if config.rate is not None:
            raise UsageError(f"`rate` is for counts, not {name}.")
        return likelihood
    rate = data.train.y if config.rate is None else torch.tensor([config.rate]).double()
    return likelihood.around(rate)


def _usual_likelihood(data: DataSet) -> str:
    return "gaussian" if data.task == "regression" else "categorical"


def build_roles(config: NetConfig) -> Roles:
    """Which parameters are pruned, kept, or plain numbers."""
    return Roles(config.prune_params, config.keep_params, config.point_params)


def build_network(config: RunConfig, data: DataSet) -> Network:
    """The network of a finished run, for its saved posterior; needs no trained weights."""
    model = build_module(config.net, data, config.training.seed)
    likelihood, roles = build_likelihood(config.net, data), build_roles(config.net)
    return Network.of(model, likelihood, roles).seeing(data.train.x)


def build_pruning(config: RunConfig) -> Pruning | None:
    """The pruning schedule, if one is asked for and the engine does not prune by itself."""
    p = config.pruning
    if p.zeros is not None:
        assert p.score is not None
        return GradualPruning(p.zeros, p.start, p.end, p.score, p.soft)
    if p.keep_units is None or ENGINES[config.engine.name].prunes == "units":
        return None
    return GradualUnits(p.keep_units, p.start, p.end)


def build_augment(config: TrainingConfig, data: DataSet) -> Augment | None:
    """Random changes of images, if any are asked for; what comes in from outside is black."""
    if not (config.shift or config.flip or config.rotate):
        return None
    if data.preprocessing.get("kind") != "image":
        raise UsageError("`shift`, `flip` and `rotate` are for images.")
    fill = PixelScale.of(data.preprocessing).black
    return Augment(shift=config.shift, flip=config.flip, rotation=config.rotate, fill=fill)


def _resolve(
    config: RunConfig, data: DataSet, n_data: int, device: torch.device, model: nn.Module
) -> tuple[RunConfig, RunSize]:
    """The settings without gaps, and the length of the run."""
    training = config.training
    if training.epochs is not None and training.steps is not None:
        raise UsageError("give either `epochs` or `steps`, not both.")
    asked = (training.epochs, training.steps, training.batch_size)
    table = len(data.input_shape) == 1
    size = RunSize.of(config.engine.name, n_data, *asked, task=data.task, table=table,
                      normalised=has_statistics(model))  # fmt: skip
    training = replace(
        training,
        batch_size=training.batch_size or size.batch_size,
        epochs=size.n_epochs if training.steps is None else None,
        n_models=training.n_models or ENGINES[config.engine.name].n_chains or 1,
        device=str(device),
    )
    if training.distill is not None and training.distill_epochs is None and training.epochs:
        training = replace(training, distill_epochs=training.epochs)
    own_start = config.net.warm_start is not None or (config.net.name or "").startswith("module:")
    engine = resolve_engine(config.engine, size, own_start=own_start)
    pruning = resolve_pruning(config.pruning, engine)
    schedule = resolve_schedule(config.schedule, engine, size)
    net = replace(config.net, name=full_name(config.net.name, data))
    net = described_net(net, build_likelihood(net, data))
    return RunConfig(config.data, net, engine, schedule, pruning, training), size


def described_net(config: NetConfig, likelihood: Likelihood) -> NetConfig:
    """The settings of a network with those of its likelihood filled in."""
    settings = likelihood.settings()
    noise, learned = settings.get("noise_std"), settings.get("learned")
    return replace(
        config, likelihood=name_of(likelihood), noise_std=noise, learn_noise=learned,
        rate=settings.get("rate"),
    )  # fmt: skip


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" takes a CUDA device where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"`device` must be auto, cpu, cuda or cuda:N, got {name!r}.") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"`device` must be auto, cpu, cuda or cuda:N, got {name!r}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"`device={name}`: torch finds no CUDA device; see `bayesieve doctor`.")
    return device


def load_weights(model: nn.Module, file: Path) -> None:
    """Load trained weights; raises where the file does not hold exactly those of the network."""
    if not file.is_file():
        raise UsageError(f"trained weights cannot be read: there is no file {file}.")
    try:
        weights = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"{file} cannot be read as safetensors ({error}). Write it with "
            "safetensors.torch.save_file(model.state_dict(), path)."
        ) from error
    expected = model.state_dict()
    for name in (*expected, *weights):
        if name not in weights:
            reason = f"it lacks {name!r} of `net`; it has {', '.join(sorted(weights)[:4])}, ..."
        elif name not in expected:
            reason = f"it has {name!r}, which `net` has not."
        elif weights[name].shape != expected[name].shape:
            reason = (
                f"{name!r} has shape {list(weights[name].shape)}, but {list(expected[name].shape)} "
                "in `net`. Give the network it was trained as."
            )
        elif expected[name].is_floating_point() != weights[name].is_floating_point():
            reason = f"{name!r} is {weights[name].dtype}, but {expected[name].dtype} in `net`."
        elif not bool(weights[name].isfinite().all()):
            reason = f"{name!r} holds NaN or infinity. Train it again."
        else:
            continue
        raise UsageError(f"{file} does not fit the network: {reason}")
    model.load_state_dict(weights)


def absolute_paths(config: RunConfig) -> RunConfig:
    """Files are written down as absolute paths, so that a run folder can be read from anywhere."""
    kind, colon, rest = (config.data.name or "").partition(":")
    if colon and rest and kind in FILES:
        name = f"{kind}:{Path(rest).expanduser().absolute()}"
        config = replace(config, data=replace(config.data, name=name))
    if config.net.warm_start is not None:
        file = str(Path(config.net.warm_start).expanduser().absolute())
        config = replace(config, net=replace(config.net, warm_start=file))
    return config


def full_name(name: str | None, data: DataSet) -> str:
    """The name of a network with its widths: tables have few rows and need few units."""
    kind, _, rest = (name or "mlp").partition(":")
    widths, colon, activation = rest.partition(":")
    if kind != "mlp" or widths:
        return name or ""
    return f"mlp:{'400,400' if len(data.input_shape) > 1 else '50'}{colon}{activation}"


def build_net(name: str | None, data: DataSet, n_outputs: int) -> nn.Module:
    """The network of a name, sized for a data set."""
    name, shape = full_name(name, data), data.input_shape
    kind, _, rest = name.partition(":")
    if kind == "module":
        return nets.from_path(name, shape, n_outputs)
    if kind == "mlp":
        widths, activation, bins = (*rest.split(":"), "", "")[:3]
        numbers = [number.strip() for number in (*widths.split(","), bins or "1")]
        if not all(number.isdecimal() for number in numbers) or rest.count(":") > 2:
            raise UsageError(
                "`net` mlp must read mlp:400,400, mlp:50:tanh or, with 8 bins of each column of a "
                f"table, mlp:50:relu:8; got {name!r}."
            )
        chosen: Any = activation or "relu"
        layers = [int(number) for number in numbers[:-1]]
        if not bins:
            return nets.mlp(shape, n_outputs, layers, chosen)
        if len(shape) != 1:
            raise UsageError(f"`net={name}`: bins are of the columns of a table.")
        embedding = nets.PiecewiseLinear.of(data.train.x, int(bins))
        rest_of = nets.mlp((embedding.width,), n_outputs, layers, chosen)
        named = [("embedding", embedding.layers()), *rest_of.named_children()]
        return nn.Sequential(OrderedDict(named))
    if name == "linear":
        return nets.mlp(shape, n_outputs, widths=())
    if name not in NETS:
        raise UsageError(
            f"`net` must be one of {', '.join(NETS)}, mlp:WIDTHS or module:package.file.factory; "
            f"got {name!r}.{did_you_mean(name, NETS)}"
        )
    factory: Callable[[tuple[int, ...], int], nn.Module]
    factory = getattr(nets, name.replace("-", "_"))
    return factory(shape, n_outputs)


def resolve_engine(config: EngineConfig, size: RunSize, *, own_start: bool) -> EngineConfig:
    """Fill the gaps with recommended values; refuse settings this engine has no use for.

    Args:
        config: as given.
        size: of the run.
        own_start: whether the network's own initial weights are to be used by default.
    """
    if own_start and config.start is None and "start" in ENGINES[config.name].defaults:
        config = replace(config, start="module")
    return replace(config, **settings_of(config.name, size, config.asked()))


def resolve_schedule(
    schedule: ScheduleConfig, engine: EngineConfig, size: RunSize
) -> ScheduleConfig:
    """Fill the gaps of a schedule with recommended values."""
    gaps = recommended_schedule(engine.name, size, engine.preset)
    return replace(schedule, **{k: v for k, v in gaps.items() if getattr(schedule, k) is None})


def resolve_pruning(config: PruningConfig, engine: EngineConfig) -> PruningConfig:
    """Fill in the score: signal to noise where there is noise; refuse what cannot be done."""
    entry = ENGINES[engine.name]
    if config.zeros is not None and config.keep_units is not None:
        raise UsageError("give either `zeros` or `keep_units`, not both.")
    if entry.prunes == "units" and config.zeros is not None:
        raise UsageError(f"engine {engine.name} removes whole units: give `keep_units`.")
    if config.zeros is None and (config.score is not None or config.soft):
        if config.keep_units is None:
            raise UsageError("`score` and `soft` need `zeros`, the fraction to prune.")
        raise UsageError("`score` and `soft` are for `zeros`; units go by their evidence.")
    if config.zeros is None or config.score is not None:
        return config
    return replace(config, score="snr" if entry.spread else "magnitude")


def check_settings(config: RunConfig) -> None:
    """Raise for numbers that no data or network could make right."""
    for section, spec in all_settings():
        value, check = getattr(getattr(config, section), spec.name), spec.metadata["arg"].check
        if check is not None and value is not None:
            check("train", **{word_of(spec): value})
    if config.training.distill is None and config.training.distill_epochs is not None:
        raise UsageError("`distill_epochs` needs `distill`, the number of teachers.")


def check_path(name: str) -> None:
    """Raise if a data set is named by a path that leads nowhere."""
    kind, colon, rest = name.partition(":")
    path = Path(rest).expanduser()
    if not (colon and rest and kind in FILES):
        return
    if not path.exists():
        raise UsageError(f"`data`: there is no file or folder {path}.")
    if kind != "images" and path.is_dir():
        raise UsageError(f"`data`: {path} is a folder; {kind}: needs a file.")


def check_varied(data: DataSet, train: Examples) -> None:
    """Raise unless the targets to learn from differ."""
    if bool((train.y == train.y[:1]).all()):
        what = "value" if train.y.is_floating_point() else "class"
        fix = "Choose another target." if len(data.input_shape) == 1 else "Add another class."
        raise DataError(
            f"`data`: the target has one {what} only in the rows to learn from; there is nothing "
            f"to predict. {fix}"
        )


def check_plan(plan: Plan) -> None:
    """Find now what would otherwise fail once the folder is written, or after minutes."""
    training = plan.config.training
    check_run(plan.problem, plan.size, plan.schedule, plan.pruning)
    for name, value in asdict(plan.config.engine).items():
        if isinstance(value, tuple) and len(value) != training.n_models:
            word = argument_of("engine", name)
            raise UsageError(f"{word} has {len(value)} numbers; `n_models` is {training.n_models}.")
    if training.distill is not None and not plan.problem.likelihood.soft_targets:
        raise UsageError("`distill` needs a categorical likelihood.")
    execution, moments = plan.problem.execution, plan.schedule.moments
    plan.problem.execution = replace(execution, formats=replace(execution.formats, moments=moments))
    state: Any = plan.engine.init(  # an engine that cannot take the network says so here
        plan.problem, torch.Generator().manual_seed(0), training.n_models or 1
    )
    check_moments(plan.engine, state, plan.schedule.moments)
    if plan.pruning is not None:
        plan.pruning.check(plan.engine.posterior(plan.problem, state, 0))


def may_be_huge(config: NetConfig, data: DataSet) -> bool:
    """Return whether a network has as many weights as were asked for, and these are many.

    Example:
        >>> from bayesieve.data import load_data
        >>> digits = load_data("digits")
        >>> [may_be_huge(NetConfig(name), digits) for name in ("mlp:400", "mlp:40000,40000")]
        [False, True]
    """
    kind, _, rest = full_name(config.name, data).partition(":")
    widths = [int(n) for n in rest.partition(":")[0].split(",") if n.strip().isdecimal()]
    sizes = [math.prod(data.input_shape), *widths, data.n_outputs]
    return kind == "mlp" and sum(a * b for a, b in pairwise(sizes)) > _MANY_WEIGHTS


def _check_huge(config: RunConfig, data: DataSet, train: Examples, device: torch.device) -> None:
    """Raise where a network and its run do not fit, before anything is allocated."""
    with torch.device("meta"):
        model = build_module(config.net, data, config.training.seed)
    config, size = _resolve(config, data, len(train), device, model)
    pair, likelihood = (train.x.to("meta"), train.y.to("meta")), build_likelihood(config.net, data)
    problem = Problem(model, likelihood, pair, roles=build_roles(config.net))
    with suppress(UnsupportedModelError):  # what cannot be rehearsed is built and tried
        need = needed_memory(config, data, problem, _sized_engine(config, size), size, device)
        need.check("train", device)


def _sized_engine(config: RunConfig, size: RunSize) -> Engine[Any]:
    units = config.pruning.keep_units if ENGINES[config.engine.name].prunes == "units" else None
    return build(config.engine.name, replace(size, keep_units=units), config.engine.asked())


def is_large(plan: Plan) -> bool:
    """Return whether a run is large enough to rehearse it, which takes a second."""
    problem, training = plan.problem, plan.config.training
    weights = _VECTORS * (training.n_models or 1) * problem.initial.nbytes
    activations = _LAYERS * plan.size.batch_size * problem.x[0].nbytes
    return 2 * problem.x.nbytes + weights + activations > _LARGE


def needed_memory(
    config: RunConfig,
    data: DataSet,
    problem: Problem,
    engine: Engine[Any],
    size: RunSize,
    device: torch.device,
) -> MemoryNeed:
    """Memory of a run with these settings; the split for validation is a copy."""
    copied, x = config.training.val_fraction is not None, data.train.x
    images = data.preprocessing.get("kind") == "image"
    return memory_need(
        problem,
        engine,
        batch_size=size.batch_size,
        micro_batch=config.training.micro_batch,
        n_models=config.training.n_models or 1,
        masks=build_pruning(config) is not None,
        test=(data.test.x, data.test.y),
        more_data=x.nbytes + data.train.y.nbytes if copied else 0,
        reading=x.numel() + data.test.x.numel() if images and not is_mapped(x) else 0,
        afterwards=bytes_to_learn(x),
        device=device,
    )


def memory_by_engine(plan: Plan) -> dict[str, dict[str, float]]:
    """Memory of this run with each engine at its defaults, and the largest network that fits.

    Engines that cannot learn the network, or whose run cannot be rehearsed, are left out.
    """
    found: dict[str, dict[str, float]] = {}
    n_weights, free = plan.problem.layout.size, free_bytes(plan.device)
    for name in ENGINES:
        config = replace(plan.config, engine=EngineConfig(name), pruning=PruningConfig())
        config = replace(config, schedule=ScheduleConfig())
        with suppress(UnsupportedModelError, ValueError, TypeError):
            config, size = _resolve(config, plan.data, plan.problem.n_data, plan.device,
                                    plan.problem.network.skeleton)  # fmt: skip
            engine = _sized_engine(config, size)
            need = needed_memory(config, plan.data, plan.problem, engine, size, plan.device)
            found[name] = {
                "peak": need.peak,
                "per_weight": round(need.per_weight(n_weights), 1),
                "largest": need.largest(n_weights, free),
            }
    return found


def what_it_takes(plan: Plan, need: MemoryNeed | None) -> dict[str, Any]:
    """Parameters, steps and memory (if it is known) of a planned run, and what is free."""
    problem, layout = plan.problem, plan.problem.layout
    return {
        "parameters": layout.size,
        "prunable": layout.n_sparse,
        "examples": problem.n_data,
        "steps": plan.size.n_steps,
        "steps_per_epoch": plan.size.per_epoch,
        "device": str(plan.device),
        "memory": {} if need is None else asdict(need),
        "engines": {} if need is None else memory_by_engine(plan),
        "free_bytes": free_bytes(plan.device),
        "checkpoint_bytes": None if need is None else need.state,
    }
