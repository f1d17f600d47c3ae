"""Every published number once, and how ours compares: at the paper's settings and at ours.

The rule was fixed before anything was counted. A number counts once, where it is first printed, if
it is of the paper's own method and its data are at hand. Its verdict is

- better: the 95 % interval over seeds is on the good side, or reaches the number (one seed: the
  value itself does);
- level: two standard errors reach it (one seed: the reading error of a figure does);
- worse: anything else.

Both ends of an interval are rounded to the digits that the paper prints. The columns are

- paper's settings: its prior, ranking, KL in full and way of averaging, our defaults where the
  paper is silent;
- single: our settings, one for a whole table, at the posterior mean or the last draw;
- averaged: our settings, draws of one posterior or chain (five networks on UCI);
- pooled: several chains.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

from bayesieve.text import markdown_table
from studies import aeb_linear, aeb_resnet, sbnn_vgg, scratch_mnist, tdamp_mnist, uci
from studies.aeb_images import TASKS
from studies.bmr_images import DATA, NETS, READING, published
from studies.reproduce.catalogue import PAPER
from studies.reproduce.table import Finding, Findings
from studies.sbnn_droprate import WIDTHS
from studies.sbnn_droprate import published as published_errors

Column = Literal["paper", "single", "averaged", "pooled"]
Verdict = Literal["better", "level", "worse"]
COLUMNS: dict[Column, str] = {
    "paper": "paper's settings", "single": "ours, single", "averaged": "ours, averaged",
    "pooled": "ours, pooled",
}  # fmt: skip
VERDICTS: tuple[Verdict, ...] = ("better", "level", "worse")
_WORDS: dict[Column, str] = {
    "paper": "At their settings", "single": "at ours, of single networks",
    "averaged": "averaged over posterior samples", "pooled": "over pooled chains",
}  # fmt: skip
_FORGIVEN = 2.0  # standard errors by which a number that is level may miss the paper's
_UNAVAILABLE = "cifar100"


@dataclass(frozen=True)
class Place:
    """A number of our records.

    Args:
        study: its name in the records.
        key: of the row.
        metric: of that row.
        factor: that brings it to the unit of the paper's.
        records: PAPER where it is in the records of the paper's settings.
    """

    study: str
    key: str
    metric: str
    factor: float = 1.0
    records: str = ""


@dataclass(frozen=True)
class Published:
    """A number of a paper's own method.

    Args:
        source: the paper.
        item: table or figure where it is first printed.
        what: measured on what.
        value: as printed.
        ours: where our numbers are, by column.
        lower: whether a lower number is better.
        decimals: that are printed; None compares as it is.
        reading: how far the value may be off because it was read off a figure.
    """

    source: str
    item: str
    what: str
    value: float
    ours: Mapping[Column, Place]
    lower: bool = True
    decimals: int | None = None
    reading: float = 0.0


def verdict(number: Published, finding: Finding, factor: float) -> Verdict:
    """Compare one number of ours with the published one.

    Example:
        >>> ours = Finding(1.0, 4, "cpu", None, None, "", error=0.05)
        >>> [verdict(Published("", "", "", value, {}), ours, 1.0) for value in (1.2, 0.95, 0.8)]
        ['better', 'level', 'worse']
    """
    sign = 1 if number.lower else -1
    value, error = factor * finding.value, factor * (finding.error or 0.0)
    width = error * stdtrit(max(1, (finding.seeds or 0) - 1), 0.975)
    ends = [value + sign * width, value - sign * _FORGIVEN * error]  # the worse one, the better one
    if number.decimals is not None:
        ends = [round(end, number.decimals) for end in ends]
    room = 1e-9 * max(1.0, abs(number.value))  # a mean of equal numbers is not quite equal
    worst, best = (sign * (end - number.value) for end in ends)
    if worst <= room:
        return "better"
    return "level" if best <= room + number.reading else "worse"


def find(number: Published, column: Column, findings: Findings) -> Verdict | None:
    """Judge a column of a number; None where there is no record of it."""
    place = number.ours.get(column)
    if place is None:
        return None
    finding = findings.get((place.study + place.records, place.key, place.metric))
    return None if finding is None else verdict(number, finding, place.factor)


Counts = dict[Column, dict[Verdict, int]]


def count(numbers: Sequence[Published], findings: Findings) -> Counts:
    """Count the numbers that are better, level and worse in each column."""
    counts: Counts = {column: dict.fromkeys(VERDICTS, 0) for column in COLUMNS}
    for number in numbers:
        for column in COLUMNS:
            found = find(number, column, findings)
            if found is not None:
                counts[column][found] += 1
    return counts


def table(findings: Findings) -> str:
    """Write the counts of every table of the papers as Markdown: better / level / worse."""
    items = dict.fromkeys((number.source, number.item) for number in NUMBERS)
    parts = [[number for number in NUMBERS if (number.source, number.item) == item]
             for item in items]  # fmt: skip
    lines = [[f"{source}, {item}", *_cells(part, findings)]
             for (source, item), part in zip(items, parts, strict=True)]  # fmt: skip
    lines.append(["**sum**", *_cells(NUMBERS, findings)])
    return markdown_table(["better / level / worse", "numbers", *COLUMNS.values()], lines, left=1)


def _cells(numbers: Sequence[Published], findings: Findings) -> list[str]:
    counts = count(numbers, findings)
    cells = [" / ".join(map(str, counts[column].values())) for column in COLUMNS]
    return [str(len(numbers)), *("" if cell == "0 / 0 / 0" else cell for cell in cells)]


def sentence(findings: Findings) -> str:
    """State the sums in words, for the README."""
    counts = count(NUMBERS, findings)
    said = []
    for column, words in _WORDS.items():
        found = counts[column]
        said.append(f"{words} {found['better']} of {sum(found.values())} are better, "
                    f"{found['level']} level, {found['worse']} worse")  # fmt: skip
    return (
        f"The papers print {len(NUMBERS)} numbers of their own methods on data we have. "
        f"{'; '.join(said)}. [Every number, and why it falls short](docs/results.md)."
    )


def table_2() -> Iterator[Published]:
    """sBNN, RMSE of UCI sets cut in one shot; table 3 prints the columns of 0 and 50 % again."""
    for rate, errors in uci.ONE_SHOT.items():
        for name, error in zip(uci.SETS, errors, strict=False):  # Year has no data here
            ours: dict[Column, Place] = {
                "paper": Place("uci", f"{name}/sbnn-paper", f"cut-{rate}/rmse"),
                "single": Place("uci", f"{name}/sbnn-one-shot", f"cut-{rate}/rmse"),
            }
            whole = {0: "rmse", 50: "half/rmse"}.get(rate)
            if whole is not None:
                ours["averaged"] = Place("uci", f"{name}/sbnn", whole)
            yield Published("sBNN", "table 2", f"{name}, {rate} % cut", error, ours, decimals=2)


def _droprate(key: str, metric: str) -> Place:
    return Place("sbnn-droprate", key, metric, 100)


def sbnn_images() -> Iterator[Published]:
    """sBNN, errors in % on MNIST and CIFAR-10: tables 4 to 9."""
    for width, error in WIDTHS.items():
        yield Published("sBNN", "table 4", f"2 x {width} units", error,
                        {"single": _droprate(f"m{width}", "error"),
                         "averaged": _droprate(f"m{width}", "mc_error")})  # fmt: skip
    for item, key in (("table 5", "m1200"), ("table 6", "cifar10")):
        for rate, error in published_errors(key).items():
            if rate or item == "table 6":  # table 4 has the whole network of table 5
                yield Published("sBNN", item, f"{rate:g} % cut", error,
                                {"paper": _droprate(key, _cut("inclusion", rate)),
                                 "single": _droprate(key, _cut("snr", rate))})  # fmt: skip
    yield Published("sBNN", "tables 7, 9", "LeNet-300-100, 95 % cut", 1.94,
                    {"paper": _droprate("l300-set2", "inclusion-95"),
                     "single": Place("sbnn-mnist", "l300-95", "error", 100),
                     "averaged": Place("sbnn-mnist", "l300-95", "mc_error", 100)})  # fmt: skip
    yield Published("sBNN", "tables 7, 9", "VGG-like, 98.5 % zeros", sbnn_vgg.PUBLISHED[98.5],
                    {"single": Place("sbnn-vgg", "98.5", "error")})  # fmt: skip
    for prior, mine, score in (("set1", "l5-set1-spike", "snr"), ("set2", "l5-set2", "snr")):
        for rate, error in published_errors(f"l5-{prior}").items():
            yield Published("sBNN", "table 8", f"prior {prior}, {rate:g} % cut", error,
                            {"paper": _droprate(f"l5-{prior}", _cut("inclusion", rate)),
                             "single": _droprate(mine, _cut(score, rate))})  # fmt: skip


def _cut(score: str, rate: float) -> str:
    return f"{score}-{rate:g}" if rate else "error"


def sbnn_figures() -> Iterator[Published]:
    """sBNN, numbers that the text states of its figures."""
    for what, value, key, metric in (
        ("correlation, linear (at least .90)", 0.90, "figure-2", "correlation"),
        ("correlation, non-linear (at least .90)", 0.90, "figure-3", "correlation"),
        ("selection accuracy, D = 100, π = 0.2", 0.90, "selection", "accuracy"),
        ("selection with a validated threshold", 0.80, "validated", "accuracy"),
    ):
        yield Published("sBNN", "figures 2, 4, 7, 11", what, value,
                        {"single": Place("sbnn-tables", key, metric)}, lower=False)  # fmt: skip
    yield Published("sBNN", "figures 2, 4, 7, 11", "weights with inclusion below 1/4", 0.95,
                    {"single": _share("m1200", "below_a_quarter")}, lower=False)  # fmt: skip


def _share(key: str, metric: str) -> Place:
    return Place("sbnn-droprate", key, metric)


def bmr() -> Iterator[Published]:
    """BMR, numbers read off figures 1 and 2; a share beyond the axis is a lower bound."""
    for data in DATA:
        for net in NETS if data != _UNAVAILABLE else ():
            for metric, text in published(data, net, "bmr").items():
                places: dict[Column, Place] = {
                    "paper": Place("bmr-images", f"{data}/{net}/bmr/paper", metric),
                    "averaged": Place("bmr-images", f"{data}/{net}/bmr/default", metric),
                }
                yield Published(
                    "BMR", "figures 1, 2", f"{data}, {net}, {metric}", float(text.lstrip(">")),
                    places, lower=metric in ("ece", "nll"),
                    reading=0.0 if text.startswith(">") else READING[metric],
                )  # fmt: skip


def sgmcmc() -> Iterator[Published]:
    """SG-MCMC-SA, tables 1 to 3."""
    for (spike, scale), cells in zip(aeb_linear.SETTINGS, aeb_linear.PAPER["sa"], strict=True):
        for metric, value in zip(("mae", "mse"), cells, strict=True):
            key = f"{spike:g}/{scale:g}"
            yield Published("SG-MCMC-SA", "table 1", f"v0 {spike:g}, σ {scale:g}, {metric}", value,
                            {"paper": Place("aeb-linear", f"paper/{key}", metric),
                             "averaged": Place("aeb-linear", f"sa/{key}", metric)})  # fmt: skip
    for data, task in TASKS.items():
        value, key = dict(task.paper)["sghmc-sa"], f"{data}/sghmc-sa"
        one_chain = data == "mnist-da"  # whose record averages one chain, and pools none
        columns: dict[Column, Place] = {
            "paper": Place("aeb-images", key, "accuracy", records=PAPER),
            "single": Place("aeb-images", key, "single"),
            "averaged": Place("aeb-images", key, "accuracy" if one_chain else "average"),
        }
        if not one_chain:
            columns["pooled"] = Place("aeb-images", key, "accuracy")
        yield Published("SG-MCMC-SA", "table 2", data, value, columns, lower=False)
    dense = aeb_resnet.PAPER["dense"]
    for zeros, value in (dense | aeb_resnet.PAPER["a-sghmc-sa"]).items():
        key = f"a-sghmc-sa/{zeros}" if zeros else "dense/0"
        yield Published("SG-MCMC-SA", "table 3", f"ResNet-20, {zeros} % zeros", value,
                        {"single": Place("aeb-resnet", key, "single"),
                         "averaged": Place("aeb-resnet", key, "accuracy"),
                         "pooled": Place("aeb-resnet", key, "pooled_accuracy")},
                        lower=False)  # fmt: skip


def tdamp() -> Iterator[Published]:
    """EM-TDAMP, table 4.1: the report's network has all 128 units, ours 64.

    Its settings are its own program, ported.
    """
    for metric in ("accuracy", "precision", "recall", "f1"):
        places: dict[Column, Place] = {
            "paper": Place("tdamp-report", "report-128", metric),
            "single": Place("tdamp-mnist", "tdamp-64-of-128", metric),
        }
        if metric == "accuracy":
            places["averaged"] = Place("tdamp-mnist", "tdamp-64-of-128", "draws_accuracy")
        yield Published("EM-TDAMP", "table 4.1", metric, tdamp_mnist.PAPER[metric], places,
                        lower=False)  # fmt: skip


def scratch() -> Iterator[Published]:
    """NumPy MLP: test and training accuracies, its twin, and L2; one seed each."""
    numbers = [(name, part) for part in ("test", "train") for name in ("relu", "sigmoid", "tanh")]
    for name, part in numbers:
        yield Published("NumPy MLP", "accuracies", f"{name}, {part}",
                        scratch_mnist.SOURCE[name][part],
                        {"paper": Place("scratch-mnist", name, f"{part}/accuracy")},
                        lower=False)  # fmt: skip
    for what, key, metric, value in (
        ("the same network in a framework, test", "relu", "twin/test_accuracy", "torch"),
        ("relu with L2, training", "relu-l2", "train/accuracy", "relu-l2"),
    ):
        part = "train" if value == "relu-l2" else "test"
        yield Published("NumPy MLP", "accuracies", what, scratch_mnist.SOURCE[value][part],
                        {"paper": Place("scratch-mnist", key, metric)}, lower=False)  # fmt: skip


NUMBERS: tuple[Published, ...] = (
    *table_2(), *sbnn_images(), *sbnn_figures(), *bmr(), *sgmcmc(), *tdamp(), *scratch(),
)  # fmt: skip
