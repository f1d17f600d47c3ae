"""The table of results in the README: one line for each task, beside its paper.

A line names a row of the catalogue, which knows the paper's number and our record, and the numbers
of that record to show: of a single network or draw, and averaged over draws, chains or members.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bayesieve.text import markdown_table
from studies.reproduce.catalogue import ROWS, Row
from studies.reproduce.table import OPEN, SHORT, UNKNOWN, Finding, Findings, listing

_HEADER = ("task", "engine", "zeros", "measured", "ours, single", "ours, averaged", "the paper", "")
_DECIMALS = 2


@dataclass(frozen=True)
class Headline:
    """One line of the table.

    Args:
        row: name in the catalogue.
        task: data and network.
        engine: in Python.
        zeros: ours, and the paper's where they differ.
        measured: the metric in words.
        page: of the study, below docs/.
        single: metric of one network, or of the last draw.
        averaged: metric of the average over draws, chains or members.
        unit: factor of both, and of the paper's number where it is printed as a fraction.
    """

    row: str
    task: str
    engine: str
    zeros: str
    measured: str
    page: str
    single: str | None
    averaged: str | None
    unit: float = 1.0


_SBNN, _BMR, _CHAINS = "`SBNN`", "`BMR`", '`SGHMC(adapt="sa")`'
_ERROR, _ACCURACY = "error, %", "accuracy, %"
_AEB = "studies/sgmcmc.md"
HEADLINES = (
    Headline("sbnn-table-7-l300-more", "MNIST, LeNet-300-100", _SBNN, "98.5 % (95.0 %)", _ERROR,
             "studies/sbnn.md", "error", "mc_error", 100),
    Headline("sbnn-table-7-l5", "MNIST, LeNet-5-Caffe", _SBNN, "99.5 % (99.2 %)", _ERROR,
             "studies/sbnn.md", "error", "mc_error", 100),
    Headline("sbnn-table-5-gradual", "MNIST, 784-1200-1200-10", _SBNN, "98 %", _ERROR,
             "studies/sbnn.md", "error", "mc_error", 100),
    Headline("sbnn-table-9-0", "CIFAR-10, VGG-like", _SBNN, "0", _ERROR, "studies/sbnn.md",
             "error", None),
    Headline("sbnn-table-9-98.5", "CIFAR-10, VGG-like", _SBNN, "98.5 %", _ERROR,
             "studies/sbnn.md", "error", None),
    Headline("bmr-figure-1-fashion-mnist-lenet-accuracy-default", "Fashion-MNIST, LeNet-5", _BMR,
             "90 % (81 %)", _ACCURACY, "studies/bmr_images.md", None, "accuracy", 100),
    Headline("bmr-figure-1-cifar10-lenet-accuracy-default", "CIFAR-10, wide LeNet-5", _BMR,
             "95 % (97 %)", _ACCURACY, "studies/bmr_images.md", None, "accuracy", 100),
    Headline("aeb-table-2-mnist-sghmc-sa", "MNIST, conv2-fc2", _CHAINS, "0", _ACCURACY, _AEB,
             "single", "accuracy"),
    Headline("aeb-table-2-fashion-sghmc-sa", "Fashion-MNIST, conv2-fc2", _CHAINS, "0",
             _ACCURACY, _AEB, "single", "accuracy"),
    Headline("aeb-table-2-fashion-da-sghmc-sa", "the same, augmented", _CHAINS, "0", _ACCURACY,
             _AEB, "single", "accuracy"),
    Headline("aeb-table-3-dense-0", "CIFAR-10, ResNet-20", "`SGHMC`", "0", _ACCURACY, _AEB,
             "single", "pooled_accuracy"),
    Headline("aeb-table-3-a-sghmc-sa-50", "CIFAR-10, ResNet-20", _CHAINS, "50 %", _ACCURACY,
             _AEB, "single", "pooled_accuracy"),
    Headline("aeb-table-3-a-sghmc-sa-90", "CIFAR-10, ResNet-20", _CHAINS, "90 %", _ACCURACY,
             _AEB, "single", "pooled_accuracy"),
    Headline("sbnn-table-3-concrete-half", "UCI Concrete, 50 units", _SBNN, "half", "RMSE",
             "studies/tables.md", None, "half/rmse"),
    Headline("sbnn-table-3-energy-half", "UCI Energy, 50 units", _SBNN, "half", "RMSE",
             "studies/tables.md", None, "half/rmse"),
    Headline("tdamp-table-4.1-accuracy", "10,000 of MNIST, 784-128-10", "`TDAMP`", "half",
             _ACCURACY, "theory/tdamp.md", "accuracy", "draws_accuracy", 100),
)  # fmt: skip


def headline_table(findings: Findings) -> str:
    """The table as Markdown, then how many rows of all papers are as good; ± a standard error.

    Example:
        >>> headline_table({}).splitlines()[0]
        '| task | engine | zeros | measured | ours, single | ours, averaged | the paper |  |'
    """
    rows = {row.name: row for row in ROWS}
    lines = []
    for line in HEADLINES:
        row = rows[line.row]
        ours = [_cell(findings, row, metric, line.unit) for metric in (line.single, line.averaged)]
        if not any(ours) or row.paper is None:
            continue
        paper = row.paper * (100 if line.unit == 100 and row.factor != 100 else 1)
        link = f"[how](docs/{line.page})"
        lines.append((line.task, line.engine, line.zeros, line.measured, *ours,
                      f"{paper:.{_DECIMALS}f}", link))  # fmt: skip
    return f"{markdown_table(_HEADER, lines, left=4)}\n\n{count_sentence(findings)}"


def count_sentence(findings: Findings) -> str:
    """How many rows with a number of the paper's are reached, and how the others stand."""
    counted = [row for row in listing(findings) if row["paper"] is not None]
    status = {name: sum(row["status"] == name for row in counted) for name in
              ("reached", "reached within error", UNKNOWN, SHORT[0], OPEN)}  # fmt: skip
    measured = sum(status.values()) - status[OPEN]
    good = status["reached"] + status["reached within error"]
    return (
        f"Of {measured} numbers of the papers that we have measured, {good} are as good or better "
        f"with their error ({status['reached within error']} of them within it), "
        f"{status[UNKNOWN]} are better by one seed or without a spread, {status[SHORT[0]]} are "
        f"worse; {status[OPEN]} are still to be measured. A number counts once for each setting it "
        "was measured with, the paper's and ours: [every row](docs/results.md)."
    )


def _cell(findings: Findings, row: Row, metric: str | None, unit: float) -> str:
    """A number of the row's record, with its standard error and how many seeds stand behind it."""
    found: Mapping[tuple[str, str, str], Finding] = findings
    number = None if metric is None else found.get((row.study, row.key or "", metric))
    if number is None:
        return ""
    text = f"{unit * number.value:.{_DECIMALS}f}"
    if number.error is not None:
        return f"{text} ± {unit * number.error:.{_DECIMALS}f}"
    return text if (number.seeds or 1) > 1 else f"{text} (one seed)"
