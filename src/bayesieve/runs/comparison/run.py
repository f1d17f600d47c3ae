"""The work of `bayesieve compare`: build the methods and measure each."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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
    default_net,
)
from bayesieve.runs.comparison import Budget, Scoring, measure, reachable
from bayesieve.runs.comparison.methods import (
    METHODS,
    Section,
    build_method,
    check_name,
    read_changes,
)
from bayesieve.runs.comparison.page import finish, write_partial
from bayesieve.runs.config import NetConfig, TrainingConfig
from bayesieve.runs.text import note
from bayesieve.training.compiling import CompileMode


@dataclass(frozen=True)
class Wanted:
    """What is compared, on what.

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


def run_comparison(
    wanted: Wanted, numbers: Mapping[str, Any], out: Path, *, command: str, figures: bool
) -> dict[str, Any]:
    """Measure every method, then write compare.json, .csv, .md and a picture."""
    budget = Budget(**numbers)
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
    wanted = replace(wanted, net=wanted.net or default_net(data))
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
        "commands": [command],
        "methods": [],
        "left_out": [
            {"name": f"{100 * own:g} % zeros", "reason": why} for own, why in unreachable.items()
        ],
    }
    for i, name in enumerate(names):
        note(f"{i + 1}/{len(names)} {name}")
        try:
            found = bench.measure(name, changes.get(name, {}))
            result["methods"].append({**found, "device": result["machine"]["device"]})
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
        outside: pixels of foreign images, of the shape of the data's own; None for none.
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
    """Pixels of the foreign images, brought to the size and the channels of the data's own."""
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
