"""Rank the methods of a comparison, put the ranks into words, and write its files.

Each seed ranks the methods by one metric. Two methods differ at 5 % when their mean ranks are
further apart than CD = q √(k (k + 1) / 6N), with k methods, N seeds and q the studentised range
over √2: Demšar (2006), section 3.2.2. With few seeds CD is large, and that is the truth. The files
are compare.json, .csv, .md and a picture of every method in every metric.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from scipy.stats import rankdata, studentized_range

from bayesieve.assess.figures import style
from bayesieve.assess.figures.style import BLUE, INK, MUTED, NOTE_SIZE, VERMILION
from bayesieve.files import write_atomically
from bayesieve.runs.owned import OwnedFolder
from bayesieve.text import markdown_table

RECORD = "compare.json"
FILES = TEXT, TABLE, PICTURE = "compare.md", "compare.csv", "compare.png"
PARTIAL = "compare.partial.json"  # what a comparison that is still running, or died, has so far
Record = dict[str, Any]
_SCORES = {"snr": "signal to noise"}
_LEVEL = 0.05
HIGHER_IS_BETTER = ("out-of-distribution AUROC",)
_PHRASES = {
    "NLL": "the most probable answers (lowest NLL)",
    "ECE": "the best calibration (lowest ECE)",
    "out-of-distribution AUROC": "the best eye for foreign inputs (highest AUROC)",
}
_CHANCE = {"out-of-distribution AUROC": 0.5}
_SLACK = 0.005  # a mask may overshoot by a unit's weights; more than this was not asked for
_COLUMNS = 3
_LOG_RANGE = 20  # a panel whose values span more than this factor gets a log scale
_KEY = ((VERMILION, "best"), (BLUE, "within two standard errors of it"), (MUTED, "others"))


@dataclass(frozen=True)
class Standing:
    """The order of the methods in one metric, best first.

    Args:
        metric: its name.
        names: methods, by mean.
        means: of each over the seeds.
        errors: standard errors of the means; None with one seed.
        ranks: mean rank of each, 1 the best.
        critical_difference: of mean ranks; None where it is undefined (one seed or method).
    """

    metric: str
    names: tuple[str, ...]
    means: tuple[float, ...]
    errors: tuple[float | None, ...]
    ranks: tuple[float, ...]
    critical_difference: float | None

    def tied(self) -> tuple[str, ...]:
        """Methods whose mean lies within two standard errors of the best one's."""
        best, error = self.means[0], self.errors[0] or 0.0
        return tuple(
            name
            for name, mean, spread in zip(self.names, self.means, self.errors, strict=True)
            if abs(mean - best) <= 2 * math.hypot(error, spread or 0.0)
        )


def critical_difference(n_methods: int, n_seeds: int) -> float:
    """Nemenyi's critical difference of mean ranks at 5 %.

    Example:
        >>> round(critical_difference(4, 14), 2)  # Demšar (2006), example: 2.569 √(4·5 / 6·14)
        1.25
    """
    q = float(studentized_range.ppf(1 - _LEVEL, n_methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(n_methods * (n_methods + 1) / (6 * n_seeds))


def standings(scores: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Standing]:
    """The methods' standing in every metric that all of them have.

    Means are over all seeds of a method; ranks over as many as every method has.

    Args:
        scores: method -> numbers of each seed, metric -> value.

    Example:
        >>> one = standings({"a": [{"error": 0.2}], "b": [{"error": 0.1}]})[0]
        >>> one.names, one.ranks
        (('b', 'a'), (1.0, 2.0))
    """
    each = [numbers for seeds in scores.values() for numbers in seeds]
    if not each:
        return []
    metrics = [metric for metric in each[0] if all(metric in numbers for numbers in each)]
    return [
        _standing(
            metric, list(scores), [[row[metric] for row in seeds] for seeds in scores.values()]
        )
        for metric in metrics
    ]


def _standing(metric: str, names: Sequence[str], columns: Sequence[Sequence[float]]) -> Standing:
    sign = -1.0 if metric in HIGHER_IS_BETTER else 1.0
    n_seeds = min(len(column) for column in columns)
    by_seed = [rankdata([sign * column[i] for column in columns]) for i in range(n_seeds)]
    ranks = [fmean(float(ranked[j]) for ranked in by_seed) for j in range(len(names))]
    means = [fmean(column) for column in columns]
    errors = [stdev(column) / math.sqrt(len(column)) if len(column) > 1 else None
              for column in columns]  # fmt: skip
    order = sorted(range(len(names)), key=lambda j: sign * means[j])
    return Standing(
        metric,
        tuple(names[j] for j in order),
        tuple(means[j] for j in order),
        tuple(errors[j] for j in order),
        tuple(ranks[j] for j in order),
        critical_difference(len(names), n_seeds) if n_seeds > 1 and len(names) > 1 else None,
    )


def reading(standings: Sequence[Standing]) -> list[str]:
    """One sentence per metric: who leads, who is tied with it, and how far the last is behind.

    Example:
        >>> one = Standing("ECE", ("bmr", "map"), (0.01, 0.05), (0.001, 0.002), (1.0, 2.0), None)
        >>> reading([one])
        ['bmr has the best calibration (lowest ECE), 0.0100; map is last: 0.0500.']
    """
    return [_sentence(one) for one in standings if len(one.names) > 1]


def removed_already(
    name: str, asked: Sequence[float], reached: Sequence[Sequence[float]]
) -> str | None:
    """The remark on a method that had removed more weights than a column asks for.

    Args:
        name: the method.
        asked: fractions of zeros.
        reached: of each repetition, the fraction in place of each that was asked for.

    Example:
        >>> removed_already("bmr", [0.5, 0.9], [[0.62, 0.9], [0.64, 0.9]])
        'bmr had itself removed 63.0 % of its weights: its error at 50 % zeros is taken there.'
    """
    means = [fmean(column) for column in zip(*reached, strict=True)]
    over = [(a, m) for a, m in zip(asked, means, strict=True) if m > a + _SLACK]
    if not over:
        return None
    levels = _listed([f"{100 * a:g}" for a, _ in over])
    was = "errors" if len(over) > 1 else "error"
    verb = "are" if len(over) > 1 else "is"
    return (
        f"{name} had itself removed {100 * over[0][1]:.1f} % of its weights: its {was} at {levels} "
        f"% zeros {verb} taken there."
    )


def _sentence(standing: Standing) -> str:
    metric, means = standing.metric, standing.means
    leader, best = standing.names[0], f"{means[0]:.4f}"
    if metric in _CHANCE and means[0] <= _CHANCE[metric]:
        return f"{metric}: no method does better than chance ({leader} {best})."
    if means[0] == means[-1]:
        return f"{metric}: all methods have {best}."
    tied, first, last = standing.tied(), _equal(standing, means[0]), _equal(standing, means[-1])
    if len(tied) == len(standing.names):
        return (
            f"{metric}: no method differs from the best by two standard errors ({leader} {best})."
        )
    what = _PHRASES.get(metric, f"the lowest {metric}")
    sentence = f"{_listed(first)} {'have' if len(first) > 1 else 'has'} {what}, {best}"
    if len(tied) > len(first):
        others = _listed([name for name in tied if name not in first])
        sentence += f", tied within two standard errors with {others}"
    return f"{sentence}; {_listed(last)} {'are' if len(last) > 1 else 'is'} last: {means[-1]:.4f}."


def _equal(standing: Standing, mean: float) -> list[str]:
    pairs = zip(standing.names, standing.means, strict=True)
    return [name for name, other in pairs if other == mean]


def _listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: a, b and c."""
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def comparison_figure(standings: Sequence[Standing], names: Sequence[str]) -> Figure:
    """Means and two standard errors; the best and those tied with it are coloured.

    Args:
        standings: one panel each.
        names: methods from top to bottom, the same in every panel.
    """
    columns = min(_COLUMNS, len(standings))
    height = 1.4 + 0.32 * len(names)
    figure, panels = style.panel_grid(len(standings), columns, 4.3, height)
    for index, (panel, standing) in enumerate(zip(panels, standings, strict=True)):
        _draw(panel, standing, names)
        labels = names if index % columns == 0 else [""] * len(names)
        panel.set_yticks(range(len(names)), labels)
    marks = [Line2D([], [], color=color, marker="o", linestyle="") for color, _ in _KEY]
    figure.legend(
        marks,
        [words for _, words in _KEY],
        loc="outside lower center",
        ncols=len(_KEY),
        frameon=False,
        fontsize=NOTE_SIZE,
    )
    return figure


def _draw(panel: Axes, standing: Standing, names: Sequence[str]) -> None:
    """One metric: points with whiskers, and the means in figures at the right edge."""
    better = "higher" if standing.metric in HIGHER_IS_BETTER else "lower"
    percent = standing.metric.startswith(("error", "ECE"))
    unit = 100.0 if percent else 1.0
    xlabel = f"{'%, ' if percent else ''}{better} is better"
    style.dress(panel, title=standing.metric, xlabel=xlabel, ylabel="", grid="x")
    low, high = unit * min(standing.means), unit * max(standing.means)
    wide = low > 0 and high > _LOG_RANGE * low
    if wide:
        panel.set_xscale("log")
    tied = standing.tied()
    for name, mean, error in zip(standing.names, standing.means, standing.errors, strict=True):
        color = VERMILION if name == standing.names[0] else BLUE if name in tied else MUTED
        row, at, reach = names.index(name), unit * mean, 2 * unit * (error or 0.0)
        down = min(reach, at * 0.999) if wide else reach  # a log scale has no room below 0
        panel.errorbar(at, row, xerr=[[down], [reach]], fmt="o", color=color, capsize=2)
        panel.annotate(
            f"{at:.2f}" if percent else f"{at:.3f}",
            (1.02, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=NOTE_SIZE,
            color=color if color != MUTED else INK,
        )
    panel.xaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5), numticks=6) if wide else MaxNLocator(4)
    )
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_ylim(len(names) - 0.5, -0.5)


def finish(result: Record, out: OwnedFolder, *, figures: bool) -> Record:
    """Rank the methods, put the ranks into words and write every file.

    Args:
        result: methods as `measure` returns them, with what they were measured on.
        out: folder, locked and begun.
        figures: whether to draw the picture.

    Returns:
        The result with `standings`, `reading` and `table`.
    """
    ranked = standings({method["name"]: method["seeds"] for method in result["methods"]})
    result["standings"] = [asdict(standing) for standing in ranked]
    result["reading"] = [*reading(ranked), *_notes(result)]
    result["table"] = _table(result["methods"], ranked)
    if figures:
        names = [method["name"] for method in result["methods"]]
        style.save(comparison_figure(ranked, names), out.place(PICTURE))
    text = page(result, picture=PICTURE if figures else None)
    write_atomically(out.place(TEXT), text)
    write_atomically(out.place(TABLE), _csv(result["methods"]))
    write_atomically(out.place(RECORD), result)
    out.place(PARTIAL).unlink(missing_ok=True)
    out.seal()
    return result


def _notes(result: Mapping[str, Any]) -> list[str]:
    asked, methods = result["budget"]["zeros"], result["methods"]
    one_seed = all(len(method["seeds"]) == 1 for method in methods)
    removed = (removed_already(m["name"], asked, m["zeros_reached"]) for m in methods)
    notes = [
        *(
            f"{method['name']} shares its passes among {method['members']} networks: each had "
            f"{method['epochs']}, so it is compared at an equal cost, not at its best."
            for method in methods
            if method.get("members", 1) > 1
        ),
        *(note for note in removed if note is not None),
    ]
    return ["One seed: how much of this is chance is not known.", *notes] if one_seed else notes


def _table(methods: Sequence[Mapping[str, Any]], ranked: Sequence[Standing]) -> list[list[str]]:
    """A header and one row per method: mean and standard error of every metric."""
    uneven = len({len(method["seeds"]) for method in methods}) > 1
    mixed = len({method["device"] for method in methods}) > 1
    on_device = all(method["peak_bytes"] is not None for method in methods)
    header = ["method", *(["seeds"] if uneven else []), *(one.metric for one in ranked)]
    header += ["seconds", "state MB", *(["device MB"] if on_device else [])]
    header += ["device"] if mixed else []
    rows = []
    for method in methods:
        cells = [method["name"], *([str(len(method["seeds"]))] if uneven else [])]
        for standing in ranked:
            place = standing.names.index(method["name"])
            error = standing.errors[place]
            spread = "" if error is None else f" ± {error:.4f}"
            cells.append(f"{standing.means[place]:.4f}{spread}")
        cells += [f"{method['seconds']:.1f}", f"{method['bytes'] / 1e6:.3g}"]
        cells += [f"{method['peak_bytes'] / 1e6:.0f}"] if on_device else []
        rows.append([*cells, *([method["device"]] if mixed else [])])
    return [header, *rows]


def page(result: Mapping[str, Any], *, picture: str | None, level: int = 1) -> str:
    """A comparison in Markdown: conditions, table, reading, ranks and how it was made.

    Args:
        result: what `finish` returned, or compare.json.
        picture: place of the picture, or None.
        level: of the heading.
    """
    header, *rows = result["table"]
    left = [f"- {row['name']} left out: {row['reason']}" for row in result["left_out"]]
    below = "#" * (level + 1)
    legend = (
        "Mean ± standard error over seeds. Seconds: training of all seeds, without pruning. State: "
        "what must survive a step, for one seed."
    )
    if all(method["peak_bytes"] is not None for method in result["methods"]):
        legend += " Device: the most that training allocated at any time, besides the data."
    sentences = [*(f"- {sentence}" for sentence in result["reading"]), *left]
    paragraphs = [
        f"{'#' * level} {result['wanted']['net']} on {result['data']['name']}: {len(rows)} methods",
        _conditions(result),
        markdown_table(tuple(header), [tuple(row) for row in rows]),
        legend,
        *([] if picture is None else [f"![every method in every metric]({picture})"]),
        *([f"{below} Reading", "\n".join(sentences)] if sentences else []),
        *_ranks(result["standings"], below),
        "Made by\n\n```sh\n" + "\n".join(result["commands"]) + "\n```",
    ]
    return "\n\n".join(paragraphs) + "\n"


def _conditions(result: Mapping[str, Any]) -> str:
    budget, wanted, data = result["budget"], result["wanted"], result["data"]
    scored = "held-out training examples" if wanted["held_out"] else "test examples"
    n_seeds = {len(method["seeds"]) for method in result["methods"]}
    seeds = str(n_seeds.pop()) if len(n_seeds) == 1 else f"{min(n_seeds)} to {max(n_seeds)}"
    text = (
        f"{_count(budget['epochs'], 'pass')} over {data['n_train']:,} examples in batches of "
        f"{budget['batch_size']} for each method (an ensemble shares them), {seeds} "
        f"seed{'' if seeds == '1' else 's'}, "
        f"{budget['draws']} draws per prediction (a sampler: the draws it kept), scored on "
        f"{data['n_scored']:,} {scored}."
    )
    if wanted["shift"] or wanted["flip"]:
        flipped = ", mirrored at random" if wanted["flip"] else ""
        text += f" Training images moved by up to {wanted['shift']} pixels{flipped}."
    if budget["zeros"]:
        pruned: dict[str, list[str]] = {}  # the methods that each score prunes
        for method in result["methods"]:
            pruned.setdefault(method["score"], []).append(method["name"])
        scores = [f"{_SCORES.get(name, name)} ({', '.join(who)})" for name, who in pruned.items()]
        text += (
            f" Zeros by one-shot pruning and {_count(budget['finetune'], 'pass')} with the mask, "
            f"by {_listed(scores)}."
        )
    if wanted.get("precision", "float32") != "float32":
        text += " The networks train in bfloat16 and are scored in float32."
    devices = list(dict.fromkeys(method["device"] for method in result["methods"]))
    return f"{text} Trained on {' and '.join(devices)}, torch {result['machine']['torch']}."


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "es")


def _ranks(standings: Sequence[Mapping[str, Any]], heading: str) -> list[str]:
    """The section on ranks; none without two seeds, where they say no more than the means."""
    if not any(row["critical_difference"] is not None for row in standings):
        return []
    rows = []
    for row in standings:
        pairs = sorted(zip(row["ranks"], row["names"], strict=True))
        difference = row["critical_difference"]
        order = " < ".join(f"{name} {rank:.1f}" for rank, name in pairs)
        rows.append((row["metric"], order, "" if difference is None else f"{difference:.2f}"))
    return [
        f"{heading} Ranks",
        markdown_table(("metric", "mean ranks, best first", "critical difference"), rows),
        "Mean ranks closer than the critical difference (Nemenyi, 5 %) are not told apart.",
    ]


def _csv(methods: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("method", "seed", "place", "metric", "value"))
    for method in methods:
        for name, numbers in zip(method["repetitions"], method["seeds"], strict=True):
            writer.writerows((method["name"], *name, metric, v) for metric, v in numbers.items())
    return text.getvalue()
