"""`compare`: build the methods, measure each, rank them; or join comparisons made in parts."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.network import Network
from bayesieve.core.problem import Problem
from bayesieve.core.workspace import has_statistics
from bayesieve.data import DataSet, Examples, load_data
from bayesieve.data.augment import Augment
from bayesieve.data.images import PixelScale, centred
from bayesieve.engines.recipes import ENGINES
from bayesieve.errors import DivergedError, UnsupportedModelError, UsageError
from bayesieve.files import read_json, write_atomically
from bayesieve.runs.build import (
    build_augment,
    build_likelihood,
    build_module,
    choose_device,
    full_name,
)
from bayesieve.runs.config import NetConfig, TrainingConfig
from bayesieve.runs.owned import OwnedFolder
from bayesieve.runs.text import note
from studies.comparison.budget import Compare
from studies.comparison.measure import N_ATTACKED, fractions_of_zeros, measure, reachable
from studies.comparison.methods import (
    METHODS,
    Section,
    build_method,
    check_name,
    read_changes,
)
from studies.comparison.page import FILES, PARTIAL, RECORD, Record, finish

# What parts are made by, and where.
_MAY_DIFFER = ("methods", "changes", "seed", "seeds", "device", "compile")
# Of one method in two parts.
_ALIKE = ("name", "engine", "kind", "score", "members", "epochs", "device")
# What the record says was asked for.
_WANTED = (
    "data", "net", "methods", "changes", "outside", "target", "n_train", "n_test", "held_out",
    "shift", "flip", "seed", "device", "compile", "precision",
)  # fmt: skip


class ComparisonFolder(OwnedFolder):
    """Where a comparison is kept."""

    kind = "comparison"
    layout = (RECORD, PARTIAL, *FILES)

    def holds(self) -> str | None:
        """A finished comparison; what a comparison that died left is replaced."""
        return "a comparison already" if (self.path / RECORD).exists() else None


def compare(asked: Compare) -> dict[str, Any]:
    """Measure every method, or join parts; writes compare.json, .csv, .md and a picture."""
    out = ComparisonFolder(Path(asked.out))
    out.check_free(force=asked.force)
    if (asked.data is None) == (not asked.parts):
        raise UsageError("give --data to train, or the folders of comparisons to join.")
    if asked.data is None:
        joined = _join([Path(part) for part in asked.parts or []])
        with out.locked():
            out.begin(force=asked.force)
            return finish(joined, out, figures=asked.figures)
    zeros = fractions_of_zeros(asked)
    if zeros:
        check_fraction("compare", open_ends=True, zeros=zeros)
        check_positive("compare", finetune=asked.finetune)
    chosen = asked.methods
    if isinstance(chosen, str):
        chosen = [name.strip() for name in chosen.split(",")]
    names = tuple(chosen or METHODS)
    for i, name in enumerate(names):
        check_name("--methods", name)
        if name in names[:i]:
            raise UsageError(f"--methods names {name} twice; for repetitions give --seeds.")
    changes = read_changes(asked.changes or ())
    for name in changes:
        if name not in names:
            raise UsageError(f"--set changes {name}, which --methods leaves out.")
    device, machine = choose_device(asked.device), platform.machine()
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    data = _data(asked)
    asked = replace(asked, net=full_name(asked.net, data))
    net = NetConfig(name=asked.net)
    model = build_module(net, data, asked.seed)  # complains before any training
    zeros, unreachable = reachable(Network.of(model, build_likelihood(net, data)), zeros)
    asked = replace(asked, zeros=zeros)
    outside = _outside(asked, data)
    _augment(asked, data)
    result: dict[str, Any] = {
        "study": "compare",
        "format": 1,
        "wanted": {name: getattr(asked, name) for name in _WANTED}
        | {"methods": None if chosen is None else names, "changes": tuple(asked.changes or ())},
        "budget": {
            "epochs": asked.epochs,
            "batch_size": asked.batch_size,
            "seeds": asked.seeds,
            "zeros": zeros,
            "finetune": asked.finetune,
            "draws": asked.samples,
            "attack": asked.attack or None,
            "n_attacked": N_ATTACKED,
        },
        "data": {"name": data.name, "n_train": len(data.train), "n_scored": len(data.test)},
        "machine": {
            "device": machine,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "commands": [f"bayesieve {asked.arguments or 'compare'}"],
        "methods": [],
        "left_out": [
            {"name": f"{100 * zeros:g} % zeros", "reason": reason}
            for zeros, reason in unreachable.items()
        ],
    }
    with out.locked():
        out.begin(force=asked.force)
        for i, name in enumerate(names):
            note(f"{i + 1}/{len(names)} {name}")
            try:
                measured = _measure(name, changes.get(name, {}), asked, data, outside)
                result["methods"].append({**measured, "device": result["machine"]["device"]})
            except (UnsupportedModelError, DivergedError) as error:
                result["left_out"].append({"name": name, "reason": " ".join(str(error).split())})
            write_atomically(out.place(PARTIAL), result)  # in case the next method is the last
        if not result["methods"]:
            raise UsageError(f"no method could be measured: {result['left_out'][-1]['reason']}")
        return finish(result, out, figures=asked.figures)


def _measure(
    name: str,
    changes: Mapping[str, Section],
    asked: Compare,
    data: DataSet,
    outside: Tensor | None,
) -> dict[str, Any]:
    """Train and score one method; `outside` are pixels of foreign images."""
    if ENGINES[METHODS[name]["engine"]["name"]].passes:
        data = centred(data)
    scale = PixelScale.of(data.preprocessing) if _has_classes_of_images(data) else None
    foreign = None if outside is None or scale is None else scale.inputs(outside)
    net = NetConfig(name=asked.net)
    model = build_module(net, data, asked.seed)
    problem = Problem(
        model,
        build_likelihood(net, data),
        data.train,
        precision=asked.precision,
        augment=_augment(asked, data),
    ).to(choose_device(asked.device))
    table = len(data.input_shape) == 1
    method = build_method(name, data.task, problem.n_data, asked, changes, table=table,
                          normalised=has_statistics(model))  # fmt: skip
    return measure(method, model, problem, data.test, asked, outside=foreign, scale=scale)


def _augment(asked: Compare, data: DataSet) -> Augment | None:
    return build_augment(TrainingConfig(shift=asked.shift, flip=asked.flip), data)


def _has_classes_of_images(data: DataSet) -> bool:
    return data.preprocessing.get("kind") == "image" and data.task == "classification"


def _outside(asked: Compare, data: DataSet) -> Tensor | None:
    """Pixels of the foreign images, brought to the size and the channels of the data."""
    if asked.outside is None:
        return None
    other = load_data(asked.outside)
    if not _has_classes_of_images(data) or other.preprocessing.get("kind") != "image":
        raise UsageError("--outside is for images.")
    (channels, height, width), (n_other, *size) = data.input_shape, other.input_shape
    if n_other not in (1, channels) or size[0] > height or size[1] > width:
        raise UsageError(
            f"--outside {asked.outside} has images of shape {other.input_shape}, which cannot be "
            f"padded to the {data.input_shape} of {asked.data}."
        )
    pixels = PixelScale.of(other.preprocessing).pixels(other.test.x[: asked.n_test])
    down, right = height - size[0], width - size[1]
    border = (right // 2, right - right // 2, down // 2, down - down // 2)
    return nn.functional.pad(pixels, border).expand(-1, channels, -1, -1)


def _data(asked: Compare) -> DataSet:
    """The data set, cut down to what was asked for; held-out examples stand in for the test."""
    data = load_data(asked.data or "", target=asked.target)
    train, test = data.train, data.test
    if asked.held_out is not None:
        train, test = train.split(asked.held_out, seed=0)  # the same for every part of a join
    return replace(
        data,
        train=_some("--n-train", asked.n_train, train),
        test=_some("--n-test", asked.n_test, test),
    )


def _some(flag: str, n: int | None, examples: Examples) -> Examples:
    """N examples taken at random: the first ones of some sets are all of one class."""
    if n is None:
        return examples
    if not 0 < n <= len(examples):
        raise UsageError(f"{flag} must be 1 to {len(examples)}, got {n}.")
    order = torch.randperm(len(examples), generator=Generator().manual_seed(0))
    return examples.subset(order[:n].sort().values)


def _join(parts: Sequence[Path]) -> Record:
    """Join comparisons of the same network and data, finished or not, under the same budget.

    A method that several parts measured with different seeds gets all of them.
    """
    records = [_read(part) for part in parts]
    first = records[0]
    methods: dict[str, dict[str, Any]] = {}
    for part, record in zip(parts, records, strict=True):
        for section in ("wanted", "budget", "data"):
            for name, value in first[section].items():
                theirs = record[section].get(name)
                if value != theirs and name not in _MAY_DIFFER:
                    raise UsageError(
                        f"{parts[0]} and {part} differ in {name}: {value!r} and {theirs!r}."
                    )
        for method in record["methods"]:
            name = method["name"]
            methods[name] = _together(methods[name], method, part) if name in methods else method
    if not methods:
        raise UsageError("no part has measured a method.")
    left = {row["name"]: row for record in records for row in record["left_out"]}
    return {
        key: first[key] for key in ("study", "format", "wanted", "budget", "data", "machine")
    } | {
        "commands": list(dict.fromkeys(line for record in records for line in record["commands"])),
        "methods": [methods[name] for name in METHODS if name in methods],
        "left_out": [row for name, row in left.items() if name not in methods],
    }


def _read(part: Path) -> Record:
    places = (part / RECORD, part / PARTIAL) if part.is_dir() else (part,)
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise UsageError(
            f"{part} holds no comparison: there is no {' or '.join(p.name for p in places)}."
        )
    record: Record = read_json(file, constants=True)
    if record.get("study") != "compare" or record.get("format") != 1:
        raise UsageError(f"{file} was not written by `bayesieve compare`.")
    return record


def _together(a: Mapping[str, Any], b: Mapping[str, Any], part: Path) -> dict[str, Any]:
    """One method with the seeds of two parts."""
    for name in _ALIKE:
        if a.get(name) != b.get(name):
            raise UsageError(f"{part}: {a['name']} has another {name} than in an earlier part.")
    twice = [one for one in b["repetitions"] if one in a["repetitions"]]
    if twice:
        raise UsageError(
            f"{part}: {a['name']} with seed {twice[0][0]} is in an earlier part already."
        )
    lists = ("repetitions", "zeros_reached", "seeds")
    peaks = [method["peak_bytes"] for method in (a, b) if method["peak_bytes"] is not None]
    return {
        **a,
        **{name: [*a[name], *b[name]] for name in lists},
        "seconds": a["seconds"] + b["seconds"],
        "peak_bytes": max(peaks, default=None),
    }
