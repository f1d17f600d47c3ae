"""Numbers of the records that can be had again without repeating the training behind them.

Means are taken again over the seeds and splits that a record lists, sizes are counted again on
freshly built networks, the linear regressions of the UCI study are solved again, and the NumPy
network is trained again for the first epochs of its history.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bayesieve.assess.costs import count_macs
from bayesieve.data import load_data
from bayesieve.nets import lenet5_caffe
from studies.reproduce.findings import Record
from studies.sbnn_mnist import build
from studies.sbnn_tables import findings
from studies.sbnn_vgg import vgg_like
from studies.scratch_mnist import prepare
from studies.scratch_mnist import run_setting as run_numpy
from studies.scratch_settings import SETTINGS as NUMPY
from studies.uci_rows import run_row

_EXACT = 1e-9
_EPOCHS = 2
_LINEAR_SETS = ("yacht", "boston", "energy")


@dataclass(frozen=True)
class Checked:
    """A number computed again beside the one in the record.

    Args:
        study: name of the record's study.
        key: what was measured.
        field: which number of it.
        recorded: as committed.
        again: as computed now.
        tolerance: how far apart two computations of it may be.
        how: "run", "solved", "counted" or "averaged".
    """

    study: str
    key: str
    field: str
    recorded: float
    again: float
    tolerance: float
    how: str = "run"

    @property
    def agrees(self) -> bool:
        """Whether they are as close as two computations of this number should be."""
        return abs(self.recorded - self.again) <= self.tolerance


def recounted(record: Record) -> Iterator[Checked]:
    """Everything in one record that can be counted, averaged or solved again."""
    if record.get("study") in _RECOUNTS:
        yield from _RECOUNTS[record["study"]](record)


def n_parameters(model: nn.Module) -> int:
    """Number of entries of all parameters.

    Example:
        >>> n_parameters(nn.Linear(3, 2))
        8
    """
    return sum(parameter.numel() for parameter in model.parameters())


def _sbnn_mnist(record: Record) -> Iterator[Checked]:
    for own in record["records"]:
        total = n_parameters(build(own["setting"]["net"]))
        errors = [seed["error"] for seed in own["seeds"]]
        yield Checked("sbnn-mnist", own["name"], "error", 100 * own["error_mean"],
                      100 * statistics.fmean(errors), _EXACT, "averaged")  # fmt: skip
        left = own["seeds"][0]
        yield Checked("sbnn-mnist", own["name"], "zeros", left["zeros"],
                      1 - left["weights"] / total, 1e-6, "counted")  # fmt: skip


def _sbnn_droprate(record: Record) -> Iterator[Checked]:
    for own in record["records"]:
        errors = [seed["error"] for seed in own["seeds"]]
        yield Checked("sbnn-droprate", own["name"], "error", 100 * own["error_mean"],
                      100 * statistics.fmean(errors), _EXACT, "averaged")  # fmt: skip


def _sbnn_vgg(record: Record) -> Iterator[Checked]:
    for own in record["rows"]:
        stages = own["setting"]["stages"]
        total = n_parameters(vgg_like((3, 32, 32), 10, stages))
        key = f"{own['setting']['zeros']:g}"
        yield Checked("sbnn-vgg", key, "parameters", own["parameters"], total, 0, "counted")
        yield Checked("sbnn-vgg", key, "zeros", own["zeros"], 1 - own["weights"] / total, 1e-6,
                      "counted")  # fmt: skip


def _bmr_mnist(record: Record) -> Iterator[Checked]:
    for own in record["records"]:
        if own.get("test"):
            errors = [seed["error"] for seed in own["test"]["seeds"]]
            yield Checked("bmr-mnist", own["name"], "error", 100 * own["test"]["error_mean"],
                          100 * statistics.fmean(errors), _EXACT, "averaged")  # fmt: skip


def _bmr_images(record: Record) -> Iterator[Checked]:
    for own in record["records"]:
        for field in ("accuracy", "ece", "nll", "pruned"):
            if field in own["seeds"][0]:
                again = statistics.fmean(seed[field] for seed in own["seeds"])
                yield Checked("bmr-images", own["name"], field, own[field], again, _EXACT,
                              "averaged")  # fmt: skip


def _structured(record: Record) -> Iterator[Checked]:
    """Size and work of LeNet-5-Caffe before and after, on networks built by hand."""
    delivered = record["delivery"]
    units = delivered["units"]
    nets = (lenet5_caffe((1, 28, 28), 10),
            narrow_lenet5(units["conv1"], units["conv2"], units["fc1"]))  # fmt: skip
    key = "-".join(str(n) for n in list(units.values())[:3])
    for i, (label, net) in enumerate(zip(("dense", "small"), nets, strict=True)):
        macs, _ = count_macs(net.eval(), torch.zeros(1, 1, 28, 28))
        yield Checked("structured-lenet5", key, f"{label} parameters", delivered["parameters"][i],
                      n_parameters(net), 0, "counted")  # fmt: skip
        yield Checked("structured-lenet5", key, f"{label} multiply-adds", delivered["macs"][i],
                      macs, 0, "counted")  # fmt: skip


def narrow_lenet5(first: int, second: int, third: int) -> nn.Module:
    """LeNet-5-Caffe with fewer maps and units.

    Example:
        >>> n_parameters(narrow_lenet5(20, 50, 500))
        431080
    """
    return nn.Sequential(
        nn.Conv2d(1, first, 5), nn.MaxPool2d(2), nn.Conv2d(first, second, 5), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * second, third), nn.ReLU(), nn.Linear(third, 10),
    )  # fmt: skip


def _laplace_bmr(record: Record) -> Iterator[Checked]:
    for way, numbers in record["ways"].items():
        for share, recorded, errors in zip(
            record["zeros"], record["means"][way]["error"],
            zip(*numbers["error"], strict=True), strict=True,
        ):  # fmt: skip
            yield Checked("laplace-bmr", f"{way}/{share:g}", "error", 100 * recorded,
                          100 * statistics.fmean(errors), _EXACT, "averaged")  # fmt: skip


def _uci(record: Record) -> Iterator[Checked]:
    for name, rows in record["sets"].items():
        for row, own in rows.items():
            full = own["full"]
            yield Checked("uci", name, f"{row} rmse", full["rmse"],
                          statistics.fmean(full["rmse_splits"]), 1e-4 * full["rmse"],
                          "averaged")  # fmt: skip
        if name in _LINEAR_SETS and "linear" in rows:
            recorded = rows["linear"]["full"]
            again: Any = run_row(name, "linear", len(recorded["rmse_splits"]), "cpu", quick=False,
                                 effort=1.0)  # fmt: skip
            yield Checked("uci", name, "linear rmse", recorded["rmse"], again["full"]["rmse"],
                          1e-4 * recorded["rmse"], "solved")  # fmt: skip


def _tdamp_uci(record: Record) -> Iterator[Checked]:
    for own in record["records"]:
        again = statistics.fmean(split["rmse"] for split in own["splits"])
        yield Checked("tdamp-uci", own["name"], "rmse", own["mean"]["rmse"], again, _EXACT,
                      "averaged")  # fmt: skip


def _tdamp_images(record: Record) -> Iterator[Checked]:
    study = record["study"].replace("_", "-")
    for own in record["records"]:
        again = statistics.fmean(seed["accuracy"] for seed in own["seeds"])
        yield Checked(study, own["name"], "accuracy", own["mean"]["accuracy"], again,
                      _EXACT, "averaged")  # fmt: skip


def _aeb_linear(record: Record) -> Iterator[Checked]:
    for own in record["summary"]:
        same = [
            row["mse"] for row in record["rows"]
            if all(row[name] == own[name] for name in ("method", "spike_scale", "init_scale"))
        ]  # fmt: skip
        key = f"{own['method']}/{own['spike_scale']:g}/{own['init_scale']:g}"
        yield Checked("aeb-linear", key, "mse", own["mse"], statistics.fmean(same), 6e-4,
                      "averaged")  # fmt: skip


def _aeb_uci(record: Record) -> Iterator[Checked]:
    for own in record["rows"]:
        yield Checked("aeb-uci", f"{own['data']}/{own['method']}", "rmse", own["rmse"],
                      statistics.fmean(own["splits"]), _EXACT, "averaged")  # fmt: skip


def _sbnn_tables(record: Record) -> Iterator[Checked]:
    """The numbers that answer the paper's figures, from the rows of every experiment."""
    again = findings(record["experiments"])
    for key, numbers in record["findings"].items():
        for field, value in numbers.items():
            yield Checked("sbnn-tables", key, field, value, again[key][field], 1e-6,
                          "averaged")  # fmt: skip


def _scratch_mnist(record: Record) -> Iterator[Checked]:
    (recorded,) = (own for own in record["records"] if own["name"] == "tanh")
    parts = prepare(load_data("mnist"))
    again, _ = run_numpy("tanh", NUMPY["tanh"], parts, _EPOCHS, recorded["seed"])
    yield Checked("scratch-mnist", "tanh", f"val_loss after {_EPOCHS} epochs",
                  recorded["history"][_EPOCHS - 1]["val_loss"],
                  again["history"][_EPOCHS - 1]["val_loss"], 1e-3)  # fmt: skip


_RECOUNTS: dict[str, Callable[[Record], Iterator[Checked]]] = {
    "sbnn_mnist": _sbnn_mnist,
    "sbnn_droprate": _sbnn_droprate,
    "sbnn_vgg": _sbnn_vgg,
    "sbnn_tables": _sbnn_tables,
    "bmr_images": _bmr_images,
    "bmr_mnist": _bmr_mnist,
    "structured_lenet5": _structured,
    "laplace_bmr": _laplace_bmr,
    "uci": _uci,
    "tdamp_uci": _tdamp_uci,
    "tdamp_mnist": _tdamp_images,
    "tdamp_digits": _tdamp_images,
    "aeb_linear": _aeb_linear,
    "aeb_uci": _aeb_uci,
    "scratch_mnist": _scratch_mnist,
}
