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

Source: "EE5179 Programming Assignment 1: MNIST"; its numbers are in `SOURCE`.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import nn

from bayesieve import scratch
from bayesieve.assess.figures.style import (
    INK,
    PALETTE,
    dress,
    legend,
    log_ticks,
    new_figure,
    plain_ticks,
    save,
)
from bayesieve.data import load_data
from bayesieve.data.examples import DataSet, Examples
from bayesieve.scratch import FeedForwardNet, Plan, classification_report
from studies.harness import Row, Run, make_row, study_parser, table
from studies.record import Record, flat, read

ActivationName = Literal["sigmoid", "tanh", "relu"]
Group = Literal["source", "account", "better"]
ACTIVATIONS: dict[ActivationName, scratch.Activation] = {
    "sigmoid": scratch.Sigmoid(),
    "tanh": scratch.Tanh(),
    "relu": scratch.ReLU(),
}

# Accuracies on training and test images, losses at the end, F1 of the digits on test images (of
# `relu-l2` on training images); None where the report gives none.
SOURCE: dict[str, dict[str, Any]] = {
    "sigmoid": {"train": 0.85, "test": 0.86, "train_loss": 0.4487, "val_loss": 0.4499,
                "f1": [0.93, 0.94, 0.86, 0.86, 0.84, 0.81, 0.90, 0.83, 0.84, 0.76]},
    "tanh": {"train": 0.93, "test": 0.93, "train_loss": 0.2275, "val_loss": 0.2076,
             "f1": [0.96, 0.98, 0.93, 0.92, 0.93, 0.91, 0.94, 0.92, 0.90, 0.89]},
    "relu": {"train": 0.94, "test": 0.94, "train_loss": 0.2233, "val_loss": 0.2131,
             "f1": [0.97, 0.98, 0.93, 0.93, 0.94, 0.93, 0.95, 0.94, 0.92, 0.92]},
    "torch": {"train": None, "test": 0.94, "train_loss": None, "val_loss": None,
              "f1": [0.97, 0.98, 0.96, 0.92, 0.95, 0.94, 0.93, 0.94, 0.92, 0.89]},
    "relu-l2": {"train": 0.78, "test": None, "train_loss": None, "val_loss": None,
                "f1": [0.92, 0.79, 0.79, 0.73, 0.81, 0.76, 0.87, 0.80, 0.66, 0.60]},
}  # fmt: skip
SOURCE_MINUTES, SOURCE_CORES = 44, 8


@dataclass(frozen=True)
class Setting:
    """One training run."""

    group: Group  # which table it belongs to
    activation: ActivationName  # of the hidden layers
    lr: float = 0.01  # learning rate
    l2: float = 0.0  # strength of the penalty; 0 for none
    optimiser: Literal["gd", "adam"] = "gd"  # gradient descent or Adam
    decay: bool = False  # whether the learning rate falls linearly to 0
    like: str | None = None  # row of `SOURCE` it is compared with
    twin: bool = False  # whether PyTorch trains beside it


_L2 = Setting("account", "relu", l2=1e-4, like="relu-l2")
SETTINGS = {
    "relu": Setting("source", "relu", like="relu", twin=True),
    "sigmoid": Setting("source", "sigmoid", like="sigmoid"),
    "tanh": Setting("source", "tanh", like="tanh"),
    "relu-l2": replace(_L2, group="source"),
    "gd-decay-l2": Setting("better", "relu", lr=0.2, l2=1e-4, decay=True),
    "adam-decay-l2": Setting("better", "relu", lr=1e-3, l2=1e-4, optimiser="adam", decay=True),
    "tanh-0.001": Setting("account", "tanh", lr=1e-3, like="tanh"),
    "relu-0.001": Setting("account", "relu", lr=1e-3, like="relu"),
    "sigmoid-0.006": Setting("account", "sigmoid", lr=6e-3, like="sigmoid"),
    "sigmoid-0.0075": Setting("account", "sigmoid", lr=7.5e-3, like="sigmoid"),
    "relu-l2-0.001": replace(_L2, lr=1e-3),
    "relu-l2-0.0001": replace(_L2, lr=1e-4),
    "relu-l2-0.000045": replace(_L2, lr=4.5e-5),
    "relu-l2-times-64": replace(_L2, l2=64e-4),  # not divided by the batch size
    "relu-l2-times-1564": replace(_L2, l2=1564e-4),  # 2 c W, summed over the batches of an epoch
}

HIDDEN_UNITS = (500, 250, 100)
SEEDS = (0, 1, 2)  # of the chosen setting
_QUICK_IMAGES = 6000
_SHOWN = ("train/accuracy", "val/accuracy", "test/accuracy", "seconds")
Images = NDArray[np.float32]
Labels = NDArray[np.int64]
_LAYERS = {
    scratch.Sigmoid: nn.Sigmoid,
    scratch.Tanh: nn.Tanh,
    scratch.ReLU: nn.ReLU,
    scratch.Linear: nn.Identity,
}


class Split(NamedTuple):
    """Standardised images as rows, and their labels."""

    x: Images
    y: Labels


class Splits(NamedTuple):
    """Images to train on, to watch and to test on."""

    train: Split
    val: Split
    test: Split


def prepare(data: DataSet, n_train: int | None = None) -> Splits:
    """Hold a sixth out, standardise with the training part's mean and std, and flatten."""
    rest, held_out = data.train.split(1 / 6, seed=0)
    if n_train is not None:
        rest = rest.subset(torch.arange(min(n_train, len(rest))))
    mean, std = rest.x.mean(), rest.x.std()

    def part(examples: Examples) -> Split:
        x = ((examples.x - mean) / std).flatten(1).numpy()
        return Split(x, examples.y.numpy())

    return Splits(part(rest), part(held_out), part(data.test))


def build(setting: Setting, seed: int, n_inputs: int = 784) -> FeedForwardNet:
    """The untrained NumPy network of a setting."""
    loss = scratch.CrossEntropy(scratch.L2(setting.l2) if setting.l2 else None)
    hidden = ACTIVATIONS[setting.activation]
    return FeedForwardNet(n_inputs, HIDDEN_UNITS, 10, hidden=hidden, loss=loss, seed=seed)


def make_plan(setting: Setting, epochs: int, seed: int) -> Plan:
    """The training of a setting."""
    rule = scratch.GradientDescent if setting.optimiser == "gd" else scratch.Adam
    schedule = scratch.linear_decay if setting.decay else scratch.constant
    return Plan(rule(lr=setting.lr), epochs=epochs, seed=seed, schedule=schedule)


def timed(epochs: Iterator[Any], spent: list[tuple[float, float]]) -> Any:
    """Do one epoch and add its seconds by the clock and of the processor to those spent."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = next(epochs)
    spent.append((time.perf_counter() - wall, time.process_time() - cpu))
    return result


def times(spent: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Sums over the run, and the median epoch."""
    wall, cpu = zip(*spent, strict=True)
    return {"seconds": sum(wall), "cpu_seconds": sum(cpu),
            "median_epoch_seconds": statistics.median(wall)}  # fmt: skip


class Twin:
    """A copy of a network with softmax and cross-entropy, trained by `torch.optim.SGD`.

    Args:
        net: the network to copy, before it is trained.
        lr: learning rate.
        l2: strength of an L2 penalty on the weights, not on the biases.
    """

    def __init__(self, net: FeedForwardNet, lr: float, l2: float = 0.0) -> None:
        layers: list[nn.Module] = []
        for weight, bias in zip(net.weights, net.biases, strict=True):
            linear = nn.Linear(len(weight), len(bias), dtype=torch.from_numpy(weight).dtype)
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(weight.T))
                linear.bias.copy_(torch.from_numpy(bias))
            layers += [linear, _LAYERS[type(net.hidden)]()]
        self.model = nn.Sequential(*layers[:-1])  # it ends in logits
        weights = [p for p in self.model.parameters() if p.ndim == 2]
        biases = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimiser = torch.optim.SGD(
            [{"params": weights, "weight_decay": l2}, {"params": biases, "weight_decay": 0.0}],
            lr=lr,
        )

    def epochs(
        self, train: Split, plan: Plan, validation: Split
    ) -> Iterator[list[tuple[float, float]]]:
        """Train on the batches of `plan`; hand out (train, validation) losses after each epoch."""
        inputs, labels = map(torch.from_numpy, train)
        held_out = [torch.from_numpy(array) for array in validation]
        rng, losses = np.random.default_rng(plan.seed), list[tuple[float, float]]()
        for _ in range(plan.epochs):
            order = torch.from_numpy(rng.permutation(len(inputs)))
            total, batches = torch.zeros((), dtype=inputs.dtype), order.split(plan.batch_size)
            for rows in batches:
                self.optimiser.zero_grad()
                loss = nn.functional.cross_entropy(self.model(inputs[rows]), labels[rows])
                loss.backward()
                self.optimiser.step()
                total += loss.detach()
            with torch.no_grad():
                val_loss = nn.functional.cross_entropy(self.model(held_out[0]), held_out[1])
            losses.append((total.item() / len(batches), val_loss.item()))
            yield losses

    def outputs(self, x: Images) -> Images:
        """Class probabilities, shape (N, K)."""
        with torch.no_grad():
            return self.model(torch.from_numpy(x)).softmax(1).numpy()


def run_setting(
    setting: Setting, splits: Splits, epochs: int, seed: int
) -> tuple[dict[str, Any], FeedForwardNet]:
    """Train one setting, its twin beside it where the source had a row, and describe both."""
    net = build(setting, seed, splits.train.x.shape[1])
    plan = make_plan(setting, epochs, seed)
    twin = Twin(net, setting.lr, setting.l2) if setting.twin else None
    ours, theirs = list[tuple[float, float]](), list[tuple[float, float]]()
    steps = net.epochs(*splits.train, plan, splits.val)
    twin_steps = None if twin is None else twin.epochs(splits.train, plan, splits.val)
    load = os.getloadavg()[0]
    for _ in range(epochs):
        history = timed(steps, ours)
        if twin_steps is not None:
            twin_losses = timed(twin_steps, theirs)
    numbers = {"net": repr(net), "load_before": load, "load_after": os.getloadavg()[0],
             **times(ours), "history": [asdict(line) for line in history.records],
             "train": measure(net, splits.train), "val": measure(net, splits.val)}  # fmt: skip
    if twin is not None:
        pairs = list(zip(ours, theirs, strict=True))
        ratio, cpu_ratio = (statistics.median(a[i] / b[i] for a, b in pairs) for i in (0, 1))
        probs = twin.outputs(splits.test.x)
        accuracy = float((probs.argmax(axis=1) == splits.test.y).mean())
        gap = float(np.abs(net.outputs(splits.test.x) - probs).max())
        numbers["twin"] = {**times(theirs), "test_accuracy": accuracy,
                         "epoch_time_ratio": ratio, "epoch_cpu_ratio": cpu_ratio,
                         "greatest_difference": gap, "losses": twin_losses}  # fmt: skip
    if setting.group != "better":
        numbers["test"] = measure(net, splits.test)
    return flat(numbers), net


def measure(net: FeedForwardNet, part: Split) -> dict[str, Any]:
    """Accuracy, loss without the penalty, and F1 of each class."""
    evaluation = net.evaluate(*part)
    report = classification_report(part.y, net.predict(part.x), 10)
    return {"accuracy": evaluation.accuracy, "loss": evaluation.loss,
            "f1": [round(one.f1, 4) for one in report.classes]}  # fmt: skip


def run_study(data: DataSet, *, quick: bool, out: Path | None = None,
              arguments: Sequence[str] | None = None) -> Record:  # fmt: skip
    """Run all settings; with `quick` few images, two epochs and no account."""
    splits = prepare(data, _QUICK_IMAGES if quick else None)
    images = {name: len(getattr(splits, name).x) for name in ("train", "val", "test")}
    epochs = 2 if quick else 15
    settings = {"epochs": epochs, "batch_size": 64, "images": images}
    words = [f"--{'quick' if quick else 'full'}"] if arguments is None else arguments
    options = argparse.Namespace(quick=quick, out=out)
    run = Run("scratch_mnist", words, options, data=data.name, settings=settings)
    run.record["machine"] |= {"cores": os.cpu_count(), "numpy": np.__version__,
                              "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}  # fmt: skip
    nets: dict[str, FeedForwardNet] = {}
    groups: tuple[Group, ...] = ("source", "better") if quick else ("source", "better", "account")
    for group in groups:
        for name, setting in SETTINGS.items():
            if setting.group == group and run.wants(name, asdict(setting)):
                each, nets[name] = run_setting(setting, splits, epochs, seed=0)
                run.add(_row(name, setting, [each], [0]))
                print(table(run.rows[-1:], _SHOWN), file=sys.stderr, flush=True)
        if group == "better":
            _recommend(run, nets, splits, epochs)
    run.finish()
    return run.record


def _row(name: str, setting: Setting, each: Sequence[dict[str, Any]], seeds: Sequence[int],
         **detail: Any) -> Row:  # fmt: skip
    seconds = statistics.fmean(one["seconds"] for one in each)
    return make_row(name, asdict(setting), each, seeds=seeds, seconds=seconds, **detail)


def _recommend(run: Run, nets: dict[str, FeedForwardNet], splits: Splits, epochs: int) -> None:
    """Choose by validation accuracy; only the chosen one sees the test images, with more seeds."""
    if any(row["name"] == "recommended" for row in run.rows):
        return
    candidates = [row for row in run.rows if row["setting"]["group"] == "better"]
    best = max(candidates, key=lambda row: float(row["metrics"]["val/accuracy"]))
    name, setting = best["name"], SETTINGS[best["name"]]
    if name not in nets:  # its row was kept from an earlier run
        _, nets[name] = run_setting(setting, splits, epochs, 0)
    each = [{**best["each"][0], **flat({"test": measure(nets[name], splits.test)})}]
    for seed in SEEDS[1:]:
        one, net = run_setting(setting, splits, epochs, seed)
        each.append({**one, **flat({"test": measure(net, splits.test)})})
    run.add(_row("recommended", setting, each, SEEDS, chosen=name, target=0.98))


def main(arguments: list[str] | None = None) -> int:
    """Run the study, or only draw the figure of a record."""
    parser = study_parser(__doc__, quick=f"{_QUICK_IMAGES} images, 2 epochs",
                          full="every row as published", device=False)  # fmt: skip
    parser.add_argument("--from-result", type=Path, help="train nothing: read this record")
    parser.add_argument("--figure", type=Path, help="PNG of the loss curves to write")
    options = parser.parse_args(arguments)
    if options.from_result is not None:
        record = read(options.from_result, "scratch_mnist")
    elif options.quick or options.full:
        record = run_study(load_data("mnist"), quick=options.quick, out=options.out,
                           arguments=arguments)  # fmt: skip
    else:
        parser.error("one of --quick, --full and --from-result is needed")
    if options.figure is not None:
        draw_losses(record, options.figure)
    return 0


TITLES = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "ReLU", "relu-l2": "ReLU, L2 1e-4"}


def draw_losses(record: Record, path: Path) -> Path:
    """Training and validation loss of each row; the source's final losses as marks."""
    rows = group(record, "source")
    n_rows = -(-len(rows) // 2)
    figure = new_figure(11.5, 3.2 * n_rows)
    for axes, row in zip(figure.subplots(n_rows, 2, squeeze=False).flat, rows, strict=False):
        history, twin = row["each"][0]["history"], row["each"][0].get("twin/losses")
        epochs = [line["epoch"] for line in history]
        for column, (kind, word) in enumerate((("train", "training"), ("val", "validation"))):
            color = PALETTE[column]
            axes.plot(epochs, [line[f"{kind}_loss"] for line in history], color=color, lw=2,
                      label=word)  # fmt: skip
            if twin is not None:
                label = "PyTorch" if column else None
                axes.plot(epochs, [losses[column] for losses in twin], color=INK, lw=0.9,
                          ls=(0, (2, 4)), zorder=3, label=label)  # fmt: skip
            final = SOURCE[row["setting"]["like"]][f"{kind}_loss"]
            if final is not None:
                axes.plot(epochs[-1], final, marker="D", ms=6, mfc="none", mec=color, ls="",
                          label=f"source, {word}")  # fmt: skip
        dress(axes, title=TITLES[row["name"]], xlabel="epoch", ylabel="loss (nats)", grid="y")
        _other_rates(axes, record, row["setting"]["like"])
        axes.set_yscale("log")
        log_ticks(axes.yaxis, *axes.get_ylim())
        plain_ticks(axes.yaxis)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        legend(axes, "upper left", outside=True)
    return save(figure, path)


def _other_rates(axes: Axes, record: Record, like: str) -> None:
    colors = iter(PALETTE[2:])
    for row in group(record, "account"):
        setting, history = row["setting"], row["each"][0]["history"]
        if setting["like"] != like or (like == "relu-l2" and setting["l2"] != 1e-4):
            continue
        epochs, losses = zip(*((line["epoch"], line["val_loss"]) for line in history), strict=True)
        label = f"validation, rate {setting['lr']:g}"
        axes.plot(epochs, losses, color=next(colors), lw=1.2, label=label)


def group(record: Record, name: str) -> list[Row]:
    """Rows of one group, those of the source in the order of TITLES."""
    rows = [row for row in record["rows"] if row["setting"]["group"] == name]
    order = [*TITLES, *(row["name"] for row in rows)]
    return sorted(rows, key=lambda row: order.index(row["name"]))


if __name__ == "__main__":
    raise SystemExit(main())
