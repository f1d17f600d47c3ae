"""The table of results in the README: a few tasks, our numbers beside the paper's.

A line names a row of the catalogue, which has the paper's number and our record, and the metrics of
that record to show: of a single network or sample, and averaged over samples, chains or members.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bayesieve.text import markdown_table
from studies.reproduce.catalogue import ROWS, Row
from studies.reproduce.table import OPEN, SHORT, UNKNOWN, Finding, Findings, listing

_HEADER = (
    "task",
    "engine",
    "sparsity",
    "measured",
    "ours, single",
    "ours, averaged",
    "the paper",
    "",
)
_DECIMALS = 2


@dataclass(frozen=True)
class Headline:
    """One line of the table.

    Args:
        row: name in the catalogue.
        task: data and network.
        engine: in Python.
        zeros: sparsity, ours, and the paper's where they differ.
        measured: the metric in words.
        page: of the study, below docs/.
        single: metric of one network, or of the last sample.
        averaged: metric of the average over samples, chains or members.
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


_ERROR, _ACCURACY = "error, %", "accuracy, %"
HEADLINES = (  # one for each engine of a paper; six lines, the others are in docs/results.md
    Headline("sbnn-table-7-l300-more", "MNIST, LeNet-300-100", "`SBNN`", "98.5 % (95.0 %)",
             _ERROR, "studies/sbnn.md", "error", "mc_error", 100),
    Headline("sbnn-table-9-98.5", "CIFAR-10, VGG-like", "`SBNN`", "98.5 %", _ERROR,
             "studies/sbnn.md", "error", None),
    Headline("bmr-figure-1-fashion-mnist-lenet-accuracy-default", "Fashion-MNIST, LeNet-5",
             "`BMR`", "90 % (81 %)", _ACCURACY, "studies/bmr_images.md", None, "accuracy", 100),
    Headline("aeb-table-3-a-sghmc-sa-90", "CIFAR-10, ResNet-20", '`SGHMC(adapt="sa")`', "90 %",
             _ACCURACY, "studies/sgmcmc.md", "single", "pooled_accuracy"),
    Headline("tdamp-table-4.1-accuracy", "10,000 of MNIST, 784-128-10", "`TDAMP`", "half",
             _ACCURACY, "theory/tdamp.md", "accuracy", "draws_accuracy", 100),
    Headline("sbnn-table-3-concrete-half", "UCI Concrete, 50 units", "`SBNN`", "half", "RMSE",
             "studies/tables.md", None, "half/rmse"),
)  # fmt: skip


def headline_table(findings: Findings) -> str:
    """Write the table as Markdown, ± a standard error, then the count of all published results.

    Example:
        >>> headline_table({}).splitlines()[0]
        '| task | engine | sparsity | measured | ours, single | ours, averaged | the paper |  |'
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
    """Count the published results that we match or beat, and those that we miss."""
    counted = [row for row in listing(findings) if row["paper"] is not None]
    status = {name: sum(row["status"] == name for row in counted) for name in
              ("reached", "reached within error", UNKNOWN, SHORT[0], OPEN)}  # fmt: skip
    measured = sum(status.values()) - status[OPEN]
    good = measured - status[SHORT[0]]
    waiting = f" {status[OPEN]} are still to be measured." if status[OPEN] else ""
    return (
        f"Of {measured} published results we match or beat {good} "
        f"({status['reached within error']} within error, {status[UNKNOWN]} on a single seed or "
        f"without a stated spread) and miss {status[SHORT[0]]}; "
        f"[every miss is listed with its cause](docs/results.md).{waiting}"
    )


def _cell(findings: Findings, row: Row, metric: str | None, unit: float) -> str:
    """Print a number of the row's record, with its standard error and a note for a single seed."""
    found: Mapping[tuple[str, str, str], Finding] = findings
    number = None if metric is None else found.get((row.study, row.key or "", metric))
    if number is None:
        return ""
    text = f"{unit * number.value:.{_DECIMALS}f}"
    if number.error is not None:
        return f"{text} ± {unit * number.error:.{_DECIMALS}f}"
    return text if (number.seeds or 1) > 1 else f"{text} (one seed)"
