"""Tables that `bayesieve compare` and `sweep` print."""

from pathlib import Path

from bayesieve.cli.console import print_table, rounded
from bayesieve.runs.arguments import Json
from bayesieve.text import as_percent


def print_comparison(out: Path, result: Json) -> None:
    """Print two tables that fit a terminal: how good each method is, what it loses and costs."""
    header, *rows = result["table"]
    zeros = [i for i, name in enumerate(header) if name.endswith("zeros")]
    costs = range(header.index("seconds"), len(header))
    quality = [i for i in range(1, len(header)) if i not in zeros and i not in costs]
    metric = header[zeros[0]].partition(" at ")[0] if zeros else ""
    title = f"{metric} after pruning, and cost" if zeros else "Cost"
    for words, columns in (("Mean over seeds", quality), (title, [*zeros, *costs])):
        print_table(
            words,
            ("method", *(_short(header[i]) for i in columns)),
            [(row[0], *(row[i].partition(" ±")[0] for i in columns)) for row in rows],
        )
    for sentence in result["reading"]:
        print(f"- {sentence}")
    for left_out in result["left_out"]:
        print(f"- {left_out['name']} left out: {left_out['reason']}")
    print(f"table, picture and numbers: {out / 'compare.md'}")


def _short(metric: str) -> str:
    """A name that fits a terminal, such as 98 % for the error at 98 % zeros.

    Example:
        >>> _short("error at 98 % zeros"), _short("error under FGSM 0.1")
        ('98 %', 'FGSM 0.1')
    """
    for words in ("error at ", "RMSE at ", " zeros", "error under ", "out-of-distribution "):
        metric = metric.replace(words, "")
    return metric


def print_front(out: Path, result: Json) -> None:
    """Print the front, and how to train one of it."""
    rows = [
        (
            str(trial["number"]),
            as_percent(trial["score"])
            if result["metric"].endswith("error")
            else f"{trial['score']:.4g}",
            f"{trial['weights']:,}",
            " ".join(
                f"{name.partition('.')[2]}={rounded(value, 3)}"
                for name, value in trial["settings"].items()
            ),
        )
        for trial in result["front"]
    ]
    print_table("Pareto front", ("trial", result["metric"], "weights kept", "settings"), rows)
    front = out / "front"
    print(f"train one of them: bayesieve train --config {front}/NUMBER.json --out runs/a")
