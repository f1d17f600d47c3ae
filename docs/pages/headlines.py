"""The table of results in the README: six networks, each beside the number its paper prints.

A line says what the paper's number is, then gives ours: at the paper's settings, of a single
network or last sample, averaged over the samples of one posterior or chain, and of pooled chains or
ensembles. The sentence below it counts every published number (`studies/reproduce/scorecard.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bayesieve.text import markdown_table
from studies.reproduce.catalogue import PAPER
from studies.reproduce.scorecard import COLUMNS, Column, Place, sentence
from studies.reproduce.table import Findings

_DECIMALS = 2


@dataclass(frozen=True)
class Headline:
    """One line of the table.

    Args:
        task: data, network and engine.
        paper: the paper's number, and what it is.
        page: of the study, below docs/.
        ours: where our numbers are, by column.
        notes: what to say behind a number, by column.
    """

    task: str
    paper: str
    page: str
    ours: Mapping[Column, Place]
    notes: Mapping[Column, str] = field(default_factory=dict)


def _mnist(metric: str) -> Place:
    return Place("sbnn-mnist", "l300-98.5", metric, 100)


HEADLINES = (
    Headline("LeNet-300-100, MNIST, `SBNN`, error %", "1.94: 95 % zeros, one-shot",
             "studies/sbnn.md",
             {"paper": Place("sbnn-droprate", "l300-set2", "inclusion-95", 100),
              "single": _mnist("error"), "averaged": _mnist("mc_error")},
             {"single": "98.5 % zeros"}),
    Headline("VGG-like, CIFAR-10, `SBNN`, error %", "8.70: 98.5 % zeros, one-shot",
             "studies/sbnn.md", {"single": Place("sbnn-vgg", "98.5", "error")}),
    Headline("LeNet-5, Fashion-MNIST, `BMR`, accuracy %", "90.1: 81 % zeros",
             "studies/bmr_images.md",
             {"paper": Place("bmr-images", "fashion-mnist/lenet/bmr/paper", "accuracy", 100),
              "averaged": Place("bmr-images", "fashion-mnist/lenet/bmr/default", "accuracy", 100)},
             {"averaged": "90 % zeros, augmented"}),
    Headline('ResNet-20, CIFAR-10, `SGHMC(adapt="sa")`, accuracy %',
             "91.68: 90 % zeros, best sample on test images", "studies/sgmcmc.md",
             {"single": Place("aeb-resnet", "a-sghmc-sa/90", "single"),
              "averaged": Place("aeb-resnet", "a-sghmc-sa/90", "accuracy"),
              "pooled": Place("aeb-resnet", "a-sghmc-sa/90", "pooled_accuracy")},
             {"pooled": "3 chains"}),
    Headline("conv2-fc2, Fashion-MNIST, the same, accuracy %", "93.01: dense, one chain averaged",
             "studies/sgmcmc.md",
             {"paper": Place("aeb-images", "fashion/sghmc-sa", "accuracy", records=PAPER),
              "single": Place("aeb-images", "fashion/sghmc-sa", "single"),
              "averaged": Place("aeb-images", "fashion/sghmc-sa", "average"),
              "pooled": Place("aeb-images", "fashion/sghmc-sa", "accuracy")},
             {"pooled": "3 chains"}),
    Headline("784-128-10, 10,000 of MNIST, `TDAMP`, accuracy %", "92.77: all 128 units",
             "theory/tdamp.md",
             {"paper": Place("tdamp-report", "report-128", "accuracy", 100),
              "single": Place("tdamp-mnist", "tdamp-64-of-128", "accuracy", 100),
              "averaged": Place("tdamp-mnist", "tdamp-64-of-128", "draws_accuracy", 100)},
             {"single": "64 units"}),
)  # fmt: skip


def headline_table(findings: Findings) -> str:
    """Write the table as Markdown, ± a standard error, then the count of all published numbers.

    Example:
        >>> headline_table({}).splitlines()[0]
        '| task | the paper | paper's settings | ours, single | ours, averaged | ours, pooled |  |'
    """
    lines = [(line.task, line.paper, *(_cell(findings, line, column) for column in COLUMNS),
              f"[how](docs/{line.page})") for line in HEADLINES]  # fmt: skip
    header = ["task", "the paper", *COLUMNS.values(), ""]
    return f"{markdown_table(header, lines, left=2)}\n\n{sentence(findings)}"


def _cell(findings: Findings, line: Headline, column: Column) -> str:
    """Print a number of a record with its standard error and what is particular to it."""
    place = line.ours.get(column)
    if place is None:
        return ""
    number = findings.get((place.study + place.records, place.key, place.metric))
    if number is None:
        return ""
    text = f"{place.factor * number.value:.{_DECIMALS}f}"
    if number.error is not None:
        text = f"{text} ± {place.factor * number.error:.{_DECIMALS}f}"
    said = [line.notes[column]] if column in line.notes else []
    said += ["one seed"] if number.error is None and (number.seeds or 1) == 1 else []
    return f"{text} ({', '.join(said)})" if said else text
