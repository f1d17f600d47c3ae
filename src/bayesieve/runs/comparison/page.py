"""The files of a comparison: compare.json, .csv, .md and a picture."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bayesieve.files import write_atomically
from bayesieve.runs.comparison.standings import (
    Standing,
    reading,
    removed_already,
    standings,
)
from bayesieve.text import markdown_table

RECORD = "compare.json"
PARTIAL = "compare.partial.json"  # what a comparison that is still running, or died, has so far
Record = dict[str, Any]
_SCORES = {"snr": "signal to noise"}


def write_partial(result: Mapping[str, Any], out: Path) -> None:
    """Keep what has been measured so far."""
    write_atomically(out / PARTIAL, _json(result))


def finish(result: Record, out: Path, *, figures: bool) -> Record:
    """Rank the methods, put the ranks into words and write every file.

    Args:
        result: methods as `measure` returns them, with what they were measured on.
        out: folder that exists.
        figures: whether to draw the picture.

    Returns:
        The result with `standings`, `reading` and `table`.
    """
    ranked = standings({method["name"]: method["seeds"] for method in result["methods"]})
    result["standings"] = [asdict(standing) for standing in ranked]
    result["reading"] = [*reading(ranked), *_notes(result)]
    result["table"] = _table(result["methods"], ranked)
    if figures:
        from bayesieve.assess.figures.style import save
        from bayesieve.runs.comparison.figures import comparison_figure

        names = [method["name"] for method in result["methods"]]
        save(comparison_figure(ranked, names), out / "compare.png")
    text = page(result, picture="compare.png" if figures else None)
    write_atomically(out / "compare.md", text)
    write_atomically(out / "compare.csv", _csv(result["methods"]))
    write_atomically(out / RECORD, _json(result))
    (out / PARTIAL).unlink(missing_ok=True)
    return result


def _notes(result: Mapping[str, Any]) -> list[str]:
    asked, methods = result["budget"]["zeros"], result["methods"]
    one_seed = all(len(method["seeds"]) == 1 for method in methods)
    removed = (removed_already(m["name"], asked, m["zeros_reached"]) for m in methods)
    notes = [
        *(_sharing(method) for method in methods if method.get("members", 1) > 1),
        *(note for note in removed if note is not None),
    ]
    return ["One seed: how much of this is chance is not known.", *notes] if one_seed else notes


def _sharing(method: Mapping[str, Any]) -> str:
    return (
        f"{method['name']} shares its passes among {method['members']} networks: each had "
        f"{method['epochs']}, so it is compared at an equal cost, not at its best."
    )


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
        cells += [_cell(one, one.names.index(method["name"])) for one in ranked]
        cells += [f"{method['seconds']:.1f}", f"{method['bytes'] / 1e6:.3g}"]
        cells += [f"{method['peak_bytes'] / 1e6:.0f}"] if on_device else []
        rows.append([*cells, *([method["device"]] if mixed else [])])
    return [header, *rows]


def _cell(standing: Standing, i: int) -> str:
    error = standing.errors[i]
    return f"{standing.means[i]:.4f}" + ("" if error is None else f" ± {error:.4f}")


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
    sentences = [*(f"- {sentence}" for sentence in result["reading"]), *left]
    paragraphs = [
        f"{'#' * level} {result['wanted']['net']} on {result['data']['name']}: {len(rows)} methods",
        _conditions(result),
        markdown_table(tuple(header), [tuple(row) for row in rows]),
        _legend(result),
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
        text += (
            f" Zeros by one-shot pruning and {_count(budget['finetune'], 'pass')} with the mask, "
            f"by {_scores_used(result['methods'])}."
        )
    if wanted.get("precision", "float32") != "float32":
        text += " The networks train in bfloat16 and are scored in float32."
    devices = list(dict.fromkeys(method["device"] for method in result["methods"]))
    return f"{text} Trained on {' and '.join(devices)}, torch {result['machine']['torch']}."


def _scores_used(methods: Sequence[Mapping[str, Any]]) -> str:
    """The score each method is pruned by: signal to noise (sbnn), magnitude (map, sghmc)."""
    names: dict[str, list[str]] = {}
    for method in methods:
        names.setdefault(method["score"], []).append(method["name"])
    words = [f"{_SCORES.get(score, score)} ({', '.join(who)})" for score, who in names.items()]
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "es")


def _legend(result: Mapping[str, Any]) -> str:
    text = (
        "Mean ± standard error over seeds. Seconds: training of all seeds, without pruning. State: "
        "what must survive a step, for one seed."
    )
    if all(method["peak_bytes"] is not None for method in result["methods"]):
        text += " Device: the most that training allocated at any time, besides the data."
    return text


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


def _json(result: Mapping[str, Any]) -> bytes:
    return (json.dumps(result, indent=1) + "\n").encode()
