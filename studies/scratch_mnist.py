"""The NumPy perceptron on MNIST beside the course report it comes from, and beside PyTorch.

    python -m studies.scratch_mnist --quick        # under a minute, no claims
    python -m studies.scratch_mnist --full --out results/scratch_mnist.json

Protocol: network 784-500-250-100-10, cross-entropy, Glorot start, batches of 64, 15 epochs; 50,000
training and 10,000 validation images, pixels standardised with one mean and std of the training
part. Three groups of rows:

- `source`: the report's settings at its default learning rate 0.01. The ReLU row has a PyTorch twin
  with the same start and the same batches, trained epoch by epoch in turn with ours, so that both
  meet the same machine.
- `account`: other learning rates and penalties, to see which of the report's numbers they give.
- `better`: candidates for a recommendation, chosen by validation accuracy. Only the chosen one
  sees the test images, and is repeated with more seeds.

A run that was stopped goes on where it was: rows that `--out` already holds are kept.

Source: "EE5179 Programming Assignment 1: MNIST"; its numbers are in `scratch_settings.SOURCE`.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesieve.data import load_data
from bayesieve.data.examples import DataSet, Examples
from bayesieve.scratch import (
    L2,
    Adam,
    CrossEntropy,
    FeedForwardNet,
    GradientDescent,
    History,
    Plan,
    classification_report,
    constant,
    linear_decay,
)
from studies.records import write_record
from studies.scratch_page import draw_losses, summary, write_page
from studies.scratch_settings import (
    ACTIVATIONS,
    SETTINGS,
    SOURCE,
    SOURCE_CORES,
    SOURCE_MINUTES,
    Group,
    Setting,
)
from studies.scratch_twin import Twin

HIDDEN_UNITS = (500, 250, 100)
SEEDS = (0, 1, 2)  # of the chosen setting
_SPLIT_SEED = 0
_QUICK_IMAGES = 6000


@dataclass(frozen=True, eq=False)
class Part:
    """Standardised images as rows, and their labels."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Parts:
    """What a run trains on, is watched on and is tested on."""

    train: Part
    val: Part
    test: Part


def prepare(data: DataSet, n_train: int | None = None) -> Parts:
    """Hold a sixth out, standardise with the training part's mean and std, and flatten."""
    rest, held_out = data.train.split(1 / 6, seed=_SPLIT_SEED)
    if n_train is not None:
        rest = rest.subset(torch.arange(min(n_train, len(rest))))
    mean, std = rest.x.mean(), rest.x.std()

    def part(own: Examples) -> Part:
        return Part(((own.x - mean) / std).flatten(1).numpy(), own.y.numpy())

    return Parts(part(rest), part(held_out), part(data.test))


def build(setting: Setting, seed: int, n_inputs: int = 784) -> FeedForwardNet:
    """The untrained NumPy network of a setting."""
    loss = CrossEntropy(L2(setting.l2) if setting.l2 else None)
    hidden = ACTIVATIONS[setting.activation]
    return FeedForwardNet(n_inputs, HIDDEN_UNITS, 10, hidden=hidden, loss=loss, seed=seed)


def make_plan(setting: Setting, epochs: int, seed: int) -> Plan:
    """How a setting is trained."""
    rule = GradientDescent if setting.optimiser == "gd" else Adam
    schedule = linear_decay if setting.decay else constant
    return Plan(rule(lr=setting.lr), epochs=epochs, seed=seed, schedule=schedule)


@dataclass
class Clock:
    """Wall and CPU seconds of each epoch."""

    wall: list[float]
    cpu: list[float]

    def run(self, epochs: Iterator[Any]) -> Any:
        """Do one epoch and note how long it took."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = next(epochs)
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        return result

    def to_dict(self) -> dict[str, float]:
        """Sums over the run, and the median epoch."""
        return {"seconds": sum(self.wall), "cpu_seconds": sum(self.cpu),
                "median_epoch_seconds": statistics.median(self.wall)}  # fmt: skip


def run_setting(
    name: str, setting: Setting, parts: Parts, epochs: int, seed: int
) -> tuple[dict[str, Any], FeedForwardNet]:
    """Train one setting, its twin beside it where the source had a row, and describe both."""
    net = build(setting, seed, parts.train.x.shape[1])
    plan = make_plan(setting, epochs, seed)
    twin = Twin(net, setting.lr, setting.l2) if setting.twin else None
    ours, theirs = Clock([], []), Clock([], [])
    validation = (parts.val.x, parts.val.y)
    steps = net.epochs(parts.train.x, parts.train.y, plan, validation)
    twin_steps = (
        iter(()) if twin is None else twin.epochs(parts.train.x, parts.train.y, plan, validation)
    )
    history, twin_losses = History(), list[tuple[float, float]]()
    load = os.getloadavg()[0]
    for _ in range(epochs):
        history = ours.run(steps)
        if twin is not None:
            twin_losses = theirs.run(twin_steps)
    record = {"name": name, "seed": seed, "setting": asdict(setting), "net": repr(net),
              "load_before": load, "load_after": os.getloadavg()[0], **ours.to_dict(),
              "history": [asdict(own) for own in history.records],
              "train": measure(net, parts.train), "val": measure(net, parts.val)}  # fmt: skip
    if twin is not None:
        ratios = [a / b for a, b in zip(ours.wall, theirs.wall, strict=True)]
        cpu_ratios = [a / b for a, b in zip(ours.cpu, theirs.cpu, strict=True)]
        probs = twin.outputs(parts.test.x)
        accuracy = float((probs.argmax(axis=1) == parts.test.y).mean())
        gap = float(np.abs(net.outputs(parts.test.x) - probs).max())
        record["twin"] = {**theirs.to_dict(), "test_accuracy": accuracy,
                          "epoch_time_ratio": statistics.median(ratios),
                          "epoch_cpu_ratio": statistics.median(cpu_ratios),
                          "greatest_difference": gap,
                          "losses": twin_losses}  # fmt: skip
    if setting.group != "better":
        record["test"] = measure(net, parts.test)
    return record, net


def measure(net: FeedForwardNet, part: Part) -> dict[str, Any]:
    """Accuracy, loss without the penalty, and F1 of each class."""
    evaluation = net.evaluate(part.x, part.y)
    report = classification_report(part.y, net.predict(part.x), 10)
    return {"accuracy": evaluation.accuracy, "loss": evaluation.loss,
            "f1": [round(own.f1, 4) for own in report.classes]}  # fmt: skip


def recommend(result: dict[str, Any], nets: dict[str, FeedForwardNet], parts: Parts) -> None:
    """Choose by validation accuracy; look at the test images with that net only."""
    candidates = [own for own in result["records"] if own["setting"]["group"] == "better"]
    best = max(candidates, key=lambda own: own["val"]["accuracy"])
    name = best["name"]
    if name not in nets:  # its record was kept from an earlier run
        _, nets[name] = run_setting(name, SETTINGS[name], parts, result["epochs"], best["seed"])
    first = {**best, "test": measure(nets[name], parts.test)}
    result["recommended"] = {"name": name, "target": 0.98, "runs": [first]}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {"cores": os.cpu_count(), "torch_threads": torch.get_num_threads(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            "processor": platform.machine(), "python": platform.python_version(),
            "numpy": np.__version__, "torch": torch.__version__}  # fmt: skip


def run_study(data: DataSet, *, quick: bool, out: Path | None = None) -> dict[str, Any]:
    """Run all settings; with `quick` few images, two epochs and no account."""
    parts = prepare(data, _QUICK_IMAGES if quick else None)
    epochs = 2 if quick else 15
    result: dict[str, Any] = {
        "study": "scratch_mnist",
        "command": f"python -m studies.scratch_mnist --{'quick' if quick else 'full'}",
        "machine": machine(), "epochs": epochs, "batch_size": 64,
        "images": {name: len(getattr(parts, name).x) for name in ("train", "val", "test")},
        "source": SOURCE, "source_minutes": SOURCE_MINUTES, "source_cores": SOURCE_CORES,
        "records": [],
    }  # fmt: skip
    _keep_rows(result, out)
    done, nets = {own["name"] for own in result["records"]}, dict[str, FeedForwardNet]()
    groups: tuple[Group, ...] = ("source", "better") if quick else ("source", "better", "account")
    for group in groups:
        for name, setting in SETTINGS.items():
            if setting.group == group and name not in done:
                record, nets[name] = run_setting(name, setting, parts, epochs, seed=0)
                result["records"].append(record)
                _write(result, out)
        if group == "better" and "recommended" not in result:
            recommend(result, nets, parts)
            _write(result, out)
    _more_seeds(result, parts, out)
    return result


def _more_seeds(result: dict[str, Any], parts: Parts, out: Path | None) -> None:
    chosen = result["recommended"]
    setting = SETTINGS[chosen["name"]]
    for seed in SEEDS[len(chosen["runs"]) :]:
        record, net = run_setting(chosen["name"], setting, parts, result["epochs"], seed)
        chosen["runs"].append({**record, "test": measure(net, parts.test)})
        _write(result, out)


def _keep_rows(result: dict[str, Any], out: Path | None) -> None:
    """Take over the rows of an earlier run with the same settings."""
    if out is None or not out.is_file():
        return
    earlier = json.loads(out.read_text(encoding="utf-8"))
    if any(earlier.get(key) != result[key] for key in ("study", "epochs", "images")):
        return
    for record in earlier["records"]:
        setting = SETTINGS.get(record["name"])
        if setting is not None and asdict(setting) == record["setting"]:
            result["records"].append(record)
    chosen = earlier.get("recommended")
    if chosen and any(own["name"] == chosen["name"] for own in result["records"]):
        result["recommended"] = chosen


def _write(result: dict[str, Any], out: Path | None) -> None:
    newest = (result.get("recommended") or {}).get("runs", [])[1:] or result["records"]
    print(summary(newest[-1]), file=sys.stderr, flush=True)
    write_record(out, result)


def main(arguments: list[str] | None = None) -> int:
    """Run the study, or only rewrite the page and figure from a result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--quick", action="store_true", help=f"{_QUICK_IMAGES} images, 2 epochs")
    size.add_argument("--full", action="store_true", help="every row as published")
    size.add_argument("--from-result", type=Path, help="train nothing: read this JSON file")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--figure", type=Path, help="PNG of the loss curves to write")
    parser.add_argument("--page", type=Path, help="Markdown page whose tables to rewrite")
    options = parser.parse_args(arguments)
    if options.from_result is not None:
        result = json.loads(options.from_result.read_text(encoding="utf-8"))
    else:
        result = run_study(load_data("mnist"), quick=options.quick, out=options.out)
    if options.figure is not None:
        draw_losses(result, options.figure)
    if options.page is not None:
        write_page(result, options.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
