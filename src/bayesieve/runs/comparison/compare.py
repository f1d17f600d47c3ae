"""`compare`: build the methods, measure each, rank them; or join comparisons made in parts."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Generator, Tensor, nn

from bayesieve.checks import check_fraction
from bayesieve.core.network import Network
from bayesieve.core.precision import Precision
from bayesieve.core.problem import Problem
from bayesieve.data import DataSet, Examples, load_data
from bayesieve.data.preprocessing import PixelScale, centred
from bayesieve.errors import DivergedError, UnsupportedModelError, UsageError
from bayesieve.runs.build import (
    build_augment,
    build_likelihood,
    build_module,
    choose_device,
    full_name,
)
from bayesieve.runs.comparison.measure import measure, reachable
from bayesieve.runs.comparison.methods import (
    METHODS,
    Budget,
    Scoring,
    Section,
    build_method,
    check_name,
    read_changes,
)
from bayesieve.runs.comparison.page import PARTIAL, RECORD, Record, finish, write_partial
from bayesieve.runs.config import NetConfig, TrainingConfig
from bayesieve.runs.text import note
from bayesieve.training.compiling import CompileMode

# What parts are made by, and where.
_MAY_DIFFER = ("methods", "changes", "seed", "seeds", "device", "compile")
# Of one method in two parts.
_ALIKE = ("name", "engine", "kind", "score", "members", "epochs", "device")
Name = TypeVar("Name", bound=str)
_MODES: tuple[Literal["auto", "on", "off"], ...] = ("auto", "on", "off")
_PRECISIONS: tuple[Literal["float32", "bf16"], ...] = ("float32", "bf16")


@dataclass(frozen=True)
class Wanted:
    """The methods to compare and the data to compare them on.

    Args:
        data: name of the data set.
        net: name of the network; None for the default of the data.
        methods: names; None for all.
        changes: settings of methods, METHOD.section.name=VALUE each.
        outside: data set whose inputs should look foreign.
        target: column to predict of a table.
        n_train: training examples to use; None for all.
        n_test: test examples to use, of the foreign images too; None for all.
        held_out: fraction of the training examples to score on in place of the test split.
        shift: pixels that training images are moved by at random.
        flip: whether training images are mirrored at random.
        seed: of everything.
        device: where to train.
        compile: whether to compile steps.
        precision: of the network in a training step.
    """

    data: str
    net: str | None
    methods: tuple[str, ...] | None
    changes: tuple[str, ...]
    outside: str | None
    target: str | None
    n_train: int | None
    n_test: int | None
    held_out: float | None
    shift: int
    flip: bool
    seed: int
    device: str
    compile: CompileMode
    precision: Precision = "float32"


def compare(
    out: Path | str,
    parts: Sequence[Path | str] | None = None,
    *,
    data: str | None = None,
    net: str | None = None,
    methods: str | Sequence[str] | None = None,
    changes: Sequence[str] | None = None,
    epochs: int = 20,
    seeds: int = 3,
    batch_size: int = 128,
    zeros: str | Sequence[float] = "0.9,0.95,0.98,0.99",
    finetune: int = 5,
    samples: int = 32,
    outside: str | None = None,
    attack: float = 0.1,
    n_train: int | None = None,
    n_test: int | None = None,
    held_out: float | None = None,
    shift: int = 0,
    flip: bool = False,
    target: str | None = None,
    seed: int = 0,
    device: str = "auto",
    compile: str = "auto",
    precision: str = "float32",
    force: bool = False,
    figures: bool = True,
    arguments: str | None = None,
) -> dict[str, Any]:
    """Train and score every method with the same number of gradients; rank them honestly.

    Args:
        out: folder to write.
        parts: comparisons to join, made in parts by `methods` or `seed`; then nothing is trained.
        data: data set to train on.
        net: network; the default of `train` unless given.
        methods: names, as a list or with commas between; every method that applies unless given.
        changes: settings of single methods, METHOD.SECTION.NAME=VALUE each, such as
            sghmc.engine.lr=0.1 (the flag --set).
        epochs: passes over the data of each method.
        seeds: repetitions.
        batch_size: examples per gradient.
        zeros: fractions of zeros to prune to; empty for none.
        finetune: epochs of masked training after pruning.
        samples: weight vectors averaged in a prediction.
        outside: data set whose test inputs should look foreign.
        attack: strength of the FGSM attack on images; 0 for none.
        n_train: use only this many training examples.
        n_test: score on only this many examples.
        held_out: score on this fraction of the training examples instead of the test split: for
            choosing settings.
        shift: move training images by up to this many pixels at random.
        flip: mirror training images at random.
        target: the column to predict of a table.
        seed: of everything.
        device: auto, cpu, cuda or cuda:N.
        compile: auto, on or off: whether to compile steps.
        precision: float32 or bf16, of the network in a training step.
        force: replace what is in `out`.
        figures: whether to draw the picture.
        arguments: the command line, for the record.

    Returns:
        What compare.json holds: the numbers of every method, ranks, and what they mean.
    """
    out = Path(out)
    if (out / "compare.json").exists() and not force:
        raise UsageError(f"{out} holds a comparison already; give --force or another --out.")
    if (data is None) == (not parts):
        raise UsageError("give --data to train, or the folders of comparisons to join.")
    if data is None:
        return join([Path(part) for part in parts or []], out, figures=figures)
    if isinstance(methods, str):
        methods = [name.strip() for name in methods.split(",")]
    wanted = Wanted(
        data=data,
        net=net,
        methods=None if methods is None else tuple(methods),
        changes=tuple(changes or ()),
        outside=outside,
        target=target,
        n_train=n_train,
        n_test=n_test,
        held_out=held_out,
        shift=shift,
        flip=flip,
        seed=seed,
        device=device,
        compile=_choice("--compile", compile, _MODES),
        precision=_choice("--precision", precision, _PRECISIONS),
    )
    budget = Budget(
        epochs=epochs,
        batch_size=batch_size,
        seeds=seeds,
        zeros=_fractions(zeros),
        finetune=finetune,
        draws=samples,
        attack=attack or None,
    )
    return _compare(wanted, budget, out, arguments, figures=figures)


def _choice(flag: str, text: str, known: tuple[Name, ...]) -> Name:
    for name in known:
        if text == name:
            return name
    raise UsageError(f"{flag} must be {' or '.join(known)}; got {text!r}.")


def _fractions(zeros: str | Sequence[float]) -> tuple[float, ...]:
    texts = [text for text in zeros.split(",") if text.strip()] if isinstance(zeros, str) else zeros
    try:
        return tuple(float(fraction) for fraction in texts)
    except ValueError as error:
        raise UsageError(f"--zeros must be numbers such as 0.9,0.98; got {zeros!r}.") from error


def _compare(
    wanted: Wanted, budget: Budget, out: Path, arguments: str | None, *, figures: bool
) -> dict[str, Any]:
    """Measure every method, then write compare.json, .csv, .md and a picture."""
    names = wanted.methods or tuple(METHODS)
    for i, name in enumerate(names):
        check_name("--methods", name)
        if name in names[:i]:
            raise UsageError(f"--methods names {name} twice; for repetitions give --seeds.")
    changes = read_changes(wanted.changes)
    for name in changes:
        if name not in names:
            raise UsageError(f"--set changes {name}, which --methods leaves out.")
    device = choose_device(wanted.device)
    data = _data(wanted)
    wanted = replace(wanted, net=full_name(wanted.net, data))
    net = NetConfig(name=wanted.net)
    model = build_module(net, data, wanted.seed)  # complains before any training
    network = Network.of(model, build_likelihood(net, data))
    zeros, unreachable = reachable(network, budget.zeros)
    budget = replace(budget, zeros=zeros)
    bench = _Bench(wanted, data, _outside(wanted, data), budget, device)
    build_augment(bench.augmentation, data)
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "study": "compare",
        "format": 1,
        "wanted": asdict(wanted),
        "budget": asdict(budget),
        "data": {"name": data.name, "n_train": len(data.train), "n_scored": len(data.test)},
        "machine": _machine(device),
        "commands": [f"bayesieve {arguments or 'compare'}"],
        "methods": [],
        "left_out": [
            {"name": f"{100 * zeros:g} % zeros", "reason": reason}
            for zeros, reason in unreachable.items()
        ],
    }
    for i, name in enumerate(names):
        note(f"{i + 1}/{len(names)} {name}")
        try:
            measured = bench.measure(name, changes.get(name, {}))
            result["methods"].append({**measured, "device": result["machine"]["device"]})
        except (UnsupportedModelError, DivergedError) as error:
            result["left_out"].append({"name": name, "reason": " ".join(str(error).split())})
        write_partial(result, out)
    if not result["methods"]:
        raise UsageError(f"no method could be measured: {result['left_out'][-1]['reason']}")
    return finish(result, out, figures=figures)


@dataclass(frozen=True)
class _Bench:
    """Where every method is measured.

    Args:
        wanted: what was asked for.
        data: training and test split.
        outside: pixels of foreign images, of the shape of the data; None for none.
        budget: what each method may spend.
        device: where it trains.
    """

    wanted: Wanted
    data: DataSet
    outside: Tensor | None
    budget: Budget
    device: torch.device

    @property
    def augmentation(self) -> TrainingConfig:
        return TrainingConfig(shift=self.wanted.shift, flip=self.wanted.flip)

    def measure(self, name: str, changes: Mapping[str, Section]) -> dict[str, Any]:
        """Train and score one method."""
        wanted, budget = self.wanted, self.budget
        # Centred inputs are part of message passing.
        data = centred(self.data) if name == "tdamp" else self.data
        scale = PixelScale.of(data.preprocessing) if _has_classes_of_images(data) else None
        foreign = None if self.outside is None or scale is None else scale.inputs(self.outside)
        net = NetConfig(name=wanted.net)
        model = build_module(net, data, wanted.seed)
        likelihood, precision = build_likelihood(net, data), wanted.precision
        augment = build_augment(self.augmentation, data)
        problem = Problem(model, likelihood, data.train, precision=precision, augment=augment).to(
            self.device
        )
        method = build_method(name, data.task, problem.n_data, budget, changes)
        tests = Scoring(data.test, foreign, scale)
        return measure(method, model, problem, tests, budget, wanted.seed, wanted.compile)


def _has_classes_of_images(data: DataSet) -> bool:
    return data.preprocessing.get("kind") == "image" and data.task == "classification"


def _outside(wanted: Wanted, data: DataSet) -> Tensor | None:
    """Pixels of the foreign images, brought to the size and the channels of the data."""
    if wanted.outside is None:
        return None
    other = load_data(wanted.outside)
    if not _has_classes_of_images(data) or other.preprocessing.get("kind") != "image":
        raise UsageError("--outside is for images.")
    (channels, height, width), (n_other, *size) = data.input_shape, other.input_shape
    if n_other not in (1, channels) or size[0] > height or size[1] > width:
        raise UsageError(
            f"--outside {wanted.outside} has images of shape {other.input_shape}, which cannot be "
            f"padded to the {data.input_shape} of {wanted.data}."
        )
    pixels = PixelScale.of(other.preprocessing).pixels(other.test.x[: wanted.n_test])
    down, right = height - size[0], width - size[1]
    border = (right // 2, right - right // 2, down // 2, down - down // 2)
    return nn.functional.pad(pixels, border).expand(-1, channels, -1, -1)


def _data(wanted: Wanted) -> DataSet:
    """The data set, cut down to what was asked for; held-out examples stand in for the test."""
    data = load_data(wanted.data, target=wanted.target)
    train, test = data.train, data.test
    if wanted.held_out is not None:
        check_fraction("--held-out", open_ends=True, fraction=wanted.held_out)
        train, test = train.split(wanted.held_out, seed=0)  # the same for every part of a join
    return replace(
        data,
        train=_some("--n-train", wanted.n_train, train),
        test=_some("--n-test", wanted.n_test, test),
    )


def _some(flag: str, n: int | None, examples: Examples) -> Examples:
    """N examples taken at random: the first ones of some sets are all of one class."""
    if n is None:
        return examples
    if not 0 < n <= len(examples):
        raise UsageError(f"{flag} must be 1 to {len(examples)}, got {n}.")
    order = torch.randperm(len(examples), generator=Generator().manual_seed(0))
    return examples.subset(order[:n].sort().values)


def _machine(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}


def join(parts: Sequence[Path], out: Path, *, figures: bool) -> Record:
    """Join comparisons of the same network and data under the same budget.

    Methods of the parts stand side by side; a method that several parts measured with different
    seeds gets all of them.

    Args:
        parts: folders of comparisons, finished or not, or their JSON files.
        out: folder to write.
        figures: whether to draw the picture.
    """
    records = [_read(part) for part in parts]
    first = records[0]
    for part, record in zip(parts, records, strict=True):
        _check_same(first, record, parts[0], part)
    joined: Record = {
        key: first[key] for key in ("study", "format", "wanted", "budget", "data", "machine")
    } | {
        "commands": list(dict.fromkeys(line for record in records for line in record["commands"])),
        "methods": _methods(records, parts),
    }
    names = {method["name"] for method in joined["methods"]}
    left = {row["name"]: row for record in records for row in record["left_out"]}
    joined["left_out"] = [row for name, row in left.items() if name not in names]
    if not names:
        raise UsageError("no part has measured a method.")
    out.mkdir(parents=True, exist_ok=True)
    return finish(joined, out, figures=figures)


def _read(part: Path) -> Record:
    places = (part / RECORD, part / PARTIAL) if part.is_dir() else (part,)
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise UsageError(
            f"{part} holds no comparison: there is no {' or '.join(p.name for p in places)}."
        )
    try:
        record: Record = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}.") from error
    if (
        not isinstance(record, dict)
        or record.get("study") != "compare"
        or record.get("format") != 1
    ):
        raise UsageError(f"{file} was not written by `bayesieve compare`.")
    return record


def _check_same(first: Record, other: Record, a: Path, b: Path) -> None:
    """Raise unless two parts are about the same thing; names the first difference."""
    for section in ("wanted", "budget", "data"):
        for name, value in first[section].items():
            theirs = other[section].get(name)
            if value != theirs and name not in _MAY_DIFFER:
                raise UsageError(f"{a} and {b} differ in {name}: {value!r} and {theirs!r}.")


def _methods(records: Sequence[Record], parts: Sequence[Path]) -> list[dict[str, Any]]:
    joined: dict[str, dict[str, Any]] = {}
    for part, record in zip(parts, records, strict=True):
        for method in record["methods"]:
            name = method["name"]
            joined[name] = _together(joined[name], method, part) if name in joined else method
    return [joined[name] for name in METHODS if name in joined]


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
