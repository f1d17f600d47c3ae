"""The work of `bayesieve compare`: build the methods, measure each, rank, write."""

import csv
import io
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bayesieve.checks import did_you_mean
from bayesieve.cli.building import build_likelihood, build_module, choose_device
from bayesieve.cli.config import EngineConfig, NetConfig, ScheduleConfig
from bayesieve.cli.config_files import UsageError
from bayesieve.cli.console import given_arguments, markdown_table, note
from bayesieve.cli.engines import RunSize
from bayesieve.cli.networks import default_net
from bayesieve.cli.registry import ENGINES, build_engine, resolve_engine, resolve_schedule
from bayesieve.compare import Budget, Method, Standing, measure, reading, standings
from bayesieve.compare.measuring import Scoring
from bayesieve.core.problem import Problem
from bayesieve.core.storage import atomic_write
from bayesieve.data import DataSet, load_data
from bayesieve.data.pixels import PixelScale
from bayesieve.data.preprocessing import centred
from bayesieve.errors import UnsupportedModelError
from bayesieve.training.plan import Plan as Length
from bayesieve.training.schedule import Schedule

_SAMPLER = {"prior": "normal", "adapt": "none"}
_METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # engine settings, method settings
    "map": ({"name": "map"}, {"kind": "point"}),
    "dropout": ({"name": "map"}, {"kind": "dropout"}),
    "ensemble": ({"name": "map"}, {"kind": "ensemble", "members": 5}),
    "flat-vi": ({"name": "flat-vi"}, {}),
    "sbnn": ({"name": "sbnn"}, {}),
    "bmr": ({"name": "bmr"}, {}),
    "horseshoe": ({"name": "horseshoe"}, {}),
    "sgld": ({"name": "sgld", **_SAMPLER}, {}),
    "sghmc": ({"name": "sghmc", **_SAMPLER}, {}),
    "sghmc-sa": ({"name": "sghmc", "prior": "gaussian-laplace"}, {}),
    "tdamp": ({"name": "tdamp"}, {}),
}


@dataclass(frozen=True)
class Wanted:
    """What is compared, on what."""

    data: str
    net: str | None
    methods: tuple[str, ...] | None
    outside: str | None
    target: str | None
    n_train: int | None
    seed: int
    device: str


def run_comparison(
    wanted: Wanted, numbers: Mapping[str, Any], out: Path, *, figures: bool
) -> dict[str, Any]:
    """Measure every method, then write compare.json, .csv, .md and a picture."""
    budget = Budget(**numbers)
    names = wanted.methods or tuple(_METHODS)
    for name in names:
        if name not in _METHODS:
            hint = did_you_mean(name, _METHODS)
            raise UsageError(f"--methods are {', '.join(_METHODS)}; got {name!r}.{hint}")
    device = choose_device(wanted.device)
    data = _data(wanted)
    wanted = replace(wanted, net=wanted.net or default_net(data))
    build_module(NetConfig(name=wanted.net), data, wanted.seed)  # complains before any training
    outside = None if wanted.outside is None else load_data(wanted.outside)
    if outside is not None and outside.input_shape != data.input_shape:
        raise UsageError(
            f"--outside {wanted.outside} has inputs of shape {outside.input_shape}, "
            f"{wanted.data} of {data.input_shape}."
        )
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "format": 1,
        "wanted": asdict(wanted),
        "budget": asdict(budget),
        "machine": _machine(device),
        "command": "bayesieve " + given_arguments(),
        "methods": [],
        "left_out": [],
    }
    for i, name in enumerate(names):
        note(f"{i + 1}/{len(names)} {name}")
        try:
            found = _measure(name, wanted, data, outside, budget, device)
            result["methods"].append(found)
        except UnsupportedModelError as error:
            result["left_out"].append({"name": name, "reason": " ".join(str(error).split())})
        atomic_write(out / "compare.partial.json", _json(result))
    if not result["methods"]:
        raise UsageError(f"no method applies: {result['left_out'][0]['reason']}")
    _finish(result, data, out, figures=figures)
    return result


def _measure(
    name: str,
    wanted: Wanted,
    data: DataSet,
    outside: DataSet | None,
    budget: Budget,
    device: torch.device,
) -> dict[str, Any]:
    if name == "tdamp":  # centred inputs are part of the method
        data = centred(data)
    images = data.preprocessing.get("kind") == "image" and data.task == "classification"
    if outside is not None and not images:
        raise UsageError("--outside is for images.")
    foreign = None if outside is None else _like(data, outside)
    net = NetConfig(name=wanted.net)
    model = build_module(net, data, wanted.seed)
    problem = Problem(model, build_likelihood(net, data), data.train).to(device)
    scale = PixelScale.of(data.preprocessing) if images else None
    tests = Scoring(data.test, foreign, scale)
    method = _method(name, data, problem, budget)
    return measure(method, model, problem, tests, budget, wanted.seed)


def _method(name: str, data: DataSet, problem: Problem, budget: Budget) -> Method:
    settings, own = _METHODS[name]
    config = resolve_engine(
        EngineConfig(**settings), own_start=False, task=data.task, n_data=problem.n_data
    )
    course = resolve_schedule(
        ScheduleConfig(),
        config,
        task=data.task,
        n_epochs=budget.epochs,
        n_data=problem.n_data,
    )
    c: Any = course
    size = _size(problem, budget.epochs, budget, data.task)
    after = _size(problem, budget.finetune, budget, data.task)
    finetune: Any = "constant" if ENGINES[config.name].course == "steady" else "cosine"
    return Method(
        name=name,
        engine=build_engine(config, size),
        schedule=Schedule(c.lr, kl=c.kl, kl_warmup_epochs=c.kl_warmup_epochs),
        score="snr" if ENGINES[config.name].spread else "magnitude",
        finetune=Schedule(finetune, kl=c.kl),
        finetune_engine=build_engine(config, replace(after, may_prune=False)),
        **({"kind": "posterior"} | own),
    )


def _size(problem: Problem, epochs: int, budget: Budget, task: str) -> RunSize:
    length = Length.of(problem.n_data, epochs, None, budget.batch_size)
    return RunSize(problem.n_data, length.n_steps, length.per_epoch, task=task)


def _data(wanted: Wanted) -> DataSet:
    data = load_data(wanted.data, target=wanted.target)
    if wanted.n_train is None:
        return data
    if not 0 < wanted.n_train <= len(data.train):
        raise UsageError(f"--n-train must be 1 to {len(data.train)}, got {wanted.n_train}.")
    part = data.train.subset(torch.arange(wanted.n_train))
    return DataSet(
        data.name, part, data.test, data.task, data.classes, data.feature_names, data.preprocessing
    )


def _like(data: DataSet, outside: DataSet) -> torch.Tensor:
    """Foreign inputs, scaled as a data set scales its own."""
    before, after = (PixelScale.of(own.preprocessing) for own in (outside, data))
    return after.inputs(before.pixels(outside.test.x))


def _finish(result: dict[str, Any], data: DataSet, out: Path, *, figures: bool) -> None:
    scores = {own["name"]: own["seeds"] for own in result["methods"]}
    found = standings(scores)
    result["standings"] = [asdict(own) for own in found]
    result["reading"] = reading(found)
    result["table"] = _table(result["methods"], found)
    if figures:
        from bayesieve.assess.figures.style import save
        from bayesieve.compare.figures import comparison_figure

        save(comparison_figure(found, list(scores)), out / "compare.png")
    atomic_write(out / "compare.md", _page(result, data, found, figures=figures).encode())
    atomic_write(out / "compare.csv", _csv(result["methods"]).encode())
    atomic_write(out / "compare.json", _json(result))
    (out / "compare.partial.json").unlink(missing_ok=True)


def _table(methods: Sequence[Mapping[str, Any]], found: Sequence[Standing]) -> list[list[str]]:
    """A header and one row per method: mean and standard error of every metric."""
    header = ["method", *(own.metric for own in found), "seconds", "state MB"]
    rows = []
    for method in methods:
        cells = [method["name"]]
        for own in found:
            i = own.names.index(method["name"])
            error = own.errors[i]
            cells.append(f"{own.means[i]:.4f}" + ("" if error is None else f" ± {error:.4f}"))
        rows.append([*cells, f"{method['seconds']:.1f}", f"{method['bytes'] / 1e6:.1f}"])
    return [header, *rows]


def _page(
    result: Mapping[str, Any], data: DataSet, found: Sequence[Standing], *, figures: bool
) -> str:
    budget, wanted = result["budget"], result["wanted"]
    header, *rows = result["table"]
    left = [f"- {own['name']} left out: {own['reason']}" for own in result["left_out"]]
    ranks = [
        (own.metric, " < ".join(f"{n} {r:.1f}" for n, r in sorted(
            zip(own.names, own.ranks, strict=True), key=lambda pair: pair[1])),
         "" if own.critical_difference is None else f"{own.critical_difference:.2f}")
        for own in found
    ]  # fmt: skip
    parts = [
        f"# {wanted['net']} on {data.name}: {len(rows)} methods",
        f"{budget['epochs']} passes over {len(data.train):,} examples for each method (an ensemble "
        f"shares them), {budget['seeds']} seeds, {budget['draws']} draws per prediction; zeros by "
        f"one-shot pruning and {budget['finetune']} passes with the mask.",
        markdown_table(tuple(header), [tuple(row) for row in rows]),
        "Mean ± standard error over seeds. State: what must survive a step, for one repetition.",
        *(["![every method in every metric](compare.png)"] if figures else []),
        "## Reading",
        "\n".join([*(f"- {sentence}" for sentence in result["reading"]), *left]),
        "## Ranks",
        markdown_table(("metric", "mean ranks, best first", "critical difference"), ranks),
        "Mean ranks closer than the critical difference (Nemenyi, 5 %) are not told apart.",
        f"Made by `{result['command']}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _csv(methods: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("method", "seed", "metric", "value"))
    for method in methods:
        for i, numbers in enumerate(method["seeds"]):
            writer.writerows((method["name"], i, metric, v) for metric, v in numbers.items())
    return text.getvalue()


def _machine(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}


def _json(result: Mapping[str, Any]) -> bytes:
    return (json.dumps(result, indent=1) + "\n").encode()
