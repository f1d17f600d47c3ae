"""Run a study again, or compute numbers of the committed records again and compare them.

`verify` takes means again over the seeds and splits that a record lists, computes derived rows
again, counts sizes on freshly built networks, solves the linear regressions of the UCI study,
trains the NumPy network for the first epochs of its history, and makes short runs of two studies.
"""

import contextlib
import csv
import importlib
import inspect
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from bayesieve.assess.costs import count_macs
from bayesieve.data import load_data
from bayesieve.files import write_atomically
from bayesieve.nets import lenet5_caffe
from studies import sbnn_tables, uci
from studies.record import Record, means, read_folder
from studies.reproduce.catalogue import ROWS, STUDIES, Study
from studies.reproduce.table import listing, markdown_rows, read_findings
from studies.sbnn_mnist import build
from studies.sbnn_vgg import vgg_like
from studies.scratch_mnist import SETTINGS as NUMPY
from studies.scratch_mnist import prepare
from studies.scratch_mnist import run_setting as run_numpy

RECORD = "record.json"
_EXACT = 1e-9
_EPOCHS = 2
_LINEAR_SETS = ("yacht", "boston", "energy")


@dataclass(frozen=True)
class Checked:
    """A number computed again beside the one in the record."""

    study: str  # name of the record's study
    key: str  # what was measured
    field: str  # which number of it
    recorded: float  # as committed
    again: float  # as computed now
    tolerance: float  # how far apart two computations of it may be
    how: str = "run"  # "run", "solved", "counted" or "averaged"

    @property
    def agrees(self) -> bool:
        """Whether they are as close as two computations of this number should be."""
        return abs(self.recorded - self.again) <= self.tolerance


def study_of(name: str) -> str | None:
    """The study of that name, or that covers the row of that name.

    Example:
        >>> study_of("uci"), study_of("sbnn-table-7-l5"), study_of("nothing")
        ('uci', 'sbnn-mnist', None)
    """
    if name in STUDIES:
        return name
    return next((row.study for row in ROWS if row.name == name), None)


def arguments_of(
    study: Study,
    mode: Literal["quick", "full"],
    out: Path,
    seeds: int | None = None,
    device: str | None = None,
) -> list[str]:
    """The arguments of the study's command.

    Example:
        >>> arguments_of(STUDIES["sbnn-vgg"], "quick", Path("a.json"))
        ['--quick', '--out', 'a.json']
    """
    arguments = [*(study.quick if mode == "quick" else study.full), "--out", str(out)]
    if seeds is not None:
        if not study.seeds:
            raise ValueError(f"reproduce: {study.module} takes no number of seeds.")
        arguments += ["--seeds", str(seeds)]
    if device is not None:
        if not study.device:
            raise ValueError(f"reproduce: {study.module} runs on the CPU only.")
        arguments += ["--device", device]
    return arguments


def run_study(name: str, arguments: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """Run a study and write its record, findings.csv, rows.md and a picture; return its rows."""
    _call(STUDIES[name], arguments)
    findings = read_findings(out, quick=True)
    rows = [row for row in listing(findings) if row["study"] == name]
    measured = [row for row in rows if row["ours"] is not None]
    text = io.StringIO()
    writer = csv.writer(text)
    columns = ("value", "seeds", "device", "seconds", "command")
    writer.writerow(("study", "key", "field", *columns))
    writer.writerows([*place, *(getattr(one, name) for name in columns)]
                     for place, one in findings.items())  # fmt: skip
    write_atomically(out / "findings.csv", text.getvalue())
    write_atomically(out / "rows.md", markdown_rows(measured))
    if measured:
        # Drawing needs matplotlib; the other commands do not.
        from studies.figures import draw_rows

        draw_rows(measured, out / "rows.png")
    return rows


def verify(results: Path, scratch: Path, tell: Callable[[str], None]) -> list[Checked]:
    """Compute again what is cheap: counts and means of every record, then short runs.

    Args:
        results: folder of the committed records.
        scratch: folder for the new records.
        tell: called with a line for each record and each run.
    """
    checked: list[Checked] = []
    for path, record in read_folder(results):
        again = list(recounted(record))
        checked += again
        if again:
            tell(f"{path.name}: {len(again)} numbers counted, averaged or solved again")
    recorded = read_findings(results)
    for name, study in STUDIES.items():
        if study.check is None:
            continue
        tell(f"{name}: running {' '.join(study.check.arguments)}")
        folder = scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        _call(study, [*study.check.arguments, "--out", str(folder / RECORD)])
        measured = read_findings(folder)
        for key, field in study.check.numbers:
            place = (name, key, field)
            if place not in recorded:
                raise ValueError(f"verify: the records have no {'/'.join(place)}.")
            pair = (recorded[place].value, measured[place].value)
            checked.append(Checked(*place, *pair, study.check.tolerance))
    return checked


def _call(study: Study, arguments: Sequence[str]) -> None:
    """Run a study's command in this process; what it says goes to standard error."""
    module = importlib.import_module(f"studies.{study.module}")
    assert inspect.isfunction(module.main)
    with contextlib.redirect_stdout(sys.stderr):
        module.main(list(arguments))


def recounted(record: Record) -> Iterator[Checked]:
    """Everything in one record that can be averaged, counted or solved again."""
    study = record["study"].replace("_", "-")
    for row in record["rows"]:
        again = means(row["each"])
        for name in again.keys() & row["metrics"].keys():
            recorded = row["metrics"][name]
            near = _TOLERANCE.get(study, _EXACT)
            yield Checked(study, row["name"], name, recorded, again[name],
                          near * max(1.0, abs(recorded)), "averaged")  # fmt: skip
    if study == "sbnn-tables":
        fresh = {row["name"]: row["metrics"] for row in sbnn_tables.derived(record)}
        for row in record["rows"]:
            for name, value in row["metrics"].items() if row.get("derived") else ():
                yield Checked(study, row["name"], name, value, fresh[row["name"]][name], 1e-6,
                              "averaged")  # fmt: skip
    if study in _RECOUNTS:
        yield from _RECOUNTS[study](record)


def n_parameters(model: nn.Module) -> int:
    """Number of entries of all parameters.

    Example:
        >>> n_parameters(nn.Linear(3, 2))
        8
    """
    return sum(parameter.numel() for parameter in model.parameters())


def _sbnn_mnist(record: Record) -> Iterator[Checked]:
    for row in record["rows"]:
        total, first = n_parameters(build(row["setting"]["net"])), row["each"][0]
        yield Checked("sbnn-mnist", row["name"], "zeros", first["zeros"],
                      1 - first["weights"] / total, 1e-6, "counted")  # fmt: skip


def _sbnn_vgg(record: Record) -> Iterator[Checked]:
    for row in record["rows"]:
        metrics = row["metrics"]
        total = n_parameters(vgg_like((3, 32, 32), 10, row["setting"]["stages"]))
        yield Checked("sbnn-vgg", row["name"], "parameters", metrics["parameters"], total, 0,
                      "counted")  # fmt: skip
        yield Checked("sbnn-vgg", row["name"], "zeros", metrics["zeros"],
                      1 - metrics["weights"] / total, 1e-6, "counted")  # fmt: skip


def _structured(record: Record) -> Iterator[Checked]:
    """Size and work of LeNet-5-Caffe before and after, on networks built by hand."""
    for row in record["rows"]:
        units = row["detail"]["units"]
        small = narrow_lenet5(units["conv1"], units["conv2"], units["fc1"])
        for label, net in (("dense_", lenet5_caffe((1, 28, 28), 10)), ("", small)):
            macs, _ = count_macs(net.eval(), torch.zeros(1, 1, 28, 28))
            for name, again in (("parameters", n_parameters(net)), ("macs", macs)):
                yield Checked("structured-lenet5", row["name"], f"{label}{name}",
                              row["metrics"][f"{label}{name}"], again, 0, "counted")  # fmt: skip


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


def _uci(record: Record) -> Iterator[Checked]:
    for name, rows in uci.by_set(record).items():
        if name in _LINEAR_SETS and "linear" in rows:
            recorded = rows["linear"]["metrics"]["rmse"]
            again = uci.run_row(name, "linear", len(rows["linear"]["seeds"]), "cpu")
            yield Checked("uci", f"{name}/linear", "rmse", recorded, again["metrics"]["rmse"],
                          1e-4 * recorded, "solved")  # fmt: skip


def _scratch_mnist(record: Record) -> Iterator[Checked]:
    (recorded,) = (row for row in record["rows"] if row["name"] == "tanh")
    splits = prepare(load_data("mnist"))
    again, _ = run_numpy(NUMPY["tanh"], splits, _EPOCHS, recorded["seeds"][0])
    yield Checked("scratch-mnist", "tanh", f"val_loss after {_EPOCHS} epochs",
                  recorded["each"][0]["history"][_EPOCHS - 1]["val_loss"],
                  again["history"][_EPOCHS - 1]["val_loss"], 1e-3)  # fmt: skip


# Means of these studies were rounded before they were stored, or their splits were.
_TOLERANCE = {"aeb-linear": 6e-4, "uci": 1e-4, "aeb-images": 6e-4}
_RECOUNTS: dict[str, Callable[[Record], Iterator[Checked]]] = {
    "sbnn-mnist": _sbnn_mnist,
    "sbnn-vgg": _sbnn_vgg,
    "structured-lenet5": _structured,
    "uci": _uci,
    "scratch-mnist": _scratch_mnist,
}
