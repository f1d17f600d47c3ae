"""What a comparison leaves behind: compare.json, .csv, .md and a picture."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bayesieve.files import write_atomically
from bayesieve.runs.comparison import Standing, reading, removed_already, standings
from bayesieve.runs.text import markdown_table

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
    found = standings({own["name"]: own["seeds"] for own in result["methods"]})
    result["standings"] = [asdict(own) for own in found]
    result["reading"] = [*reading(found), *_notes(result)]
    result["table"] = _table(result["methods"], found)
    if figures:
        from bayesieve.assess.figures.style import save
        from bayesieve.runs.comparison.figures import comparison_figure

        names = [own["name"] for own in result["methods"]]
        save(comparison_figure(found, names), out / "compare.png")
    text = page(result, picture="compare.png" if figures else None)
    write_atomically(out / "compare.md", text)
    write_atomically(out / "compare.csv", _csv(result["methods"]))
    write_atomically(out / RECORD, _json(result))
    (out / PARTIAL).unlink(missing_ok=True)
    return result


def _notes(result: Mapping[str, Any]) -> list[str]:
    asked = result["budget"]["zeros"]
    one_seed = all(len(own["seeds"]) == 1 for own in result["methods"])
    each = (removed_already(own["name"], asked, own["zeros_reached"]) for own in result["methods"])
    notes = [
        *(_sharing(own) for own in result["methods"] if own.get("members", 1) > 1),
        *(note for note in each if note is not None),
    ]
    return ["One seed: how much of this is chance is not known.", *notes] if one_seed else notes


def _sharing(own: Mapping[str, Any]) -> str:
    return (
        f"{own['name']} shares its passes among {own['members']} networks: each had "
        f"{own['epochs']}, so it is compared at an equal cost, not at its best."
    )


def _table(methods: Sequence[Mapping[str, Any]], found: Sequence[Standing]) -> list[list[str]]:
    """A header and one row per method: mean and standard error of every metric."""
    uneven = len({len(own["seeds"]) for own in methods}) > 1
    mixed = len({own["device"] for own in methods}) > 1
    on_device = all(own["peak_bytes"] is not None for own in methods)
    header = ["method", *(["seeds"] if uneven else []), *(own.metric for own in found)]
    header += ["seconds", "state MB", *(["device MB"] if on_device else [])]
    header += ["device"] if mixed else []
    rows = []
    for method in methods:
        cells = [method["name"], *([str(len(method["seeds"]))] if uneven else [])]
        cells += [_cell(own, own.names.index(method["name"])) for own in found]
        cells += [f"{method['seconds']:.1f}", f"{method['bytes'] / 1e6:.3g}"]
        cells += [f"{method['peak_bytes'] / 1e6:.0f}"] if on_device else []
        rows.append([*cells, *([method["device"]] if mixed else [])])
    return [header, *rows]


def _cell(own: Standing, i: int) -> str:
    error = own.errors[i]
    return f"{own.means[i]:.4f}" + ("" if error is None else f" ± {error:.4f}")


def page(result: Mapping[str, Any], *, picture: str | None, level: int = 1) -> str:
    """A comparison in Markdown: conditions, table, reading, ranks and how it was made.

    Args:
        result: what `finish` returned, or compare.json.
        picture: place of the picture, or None.
        level: of the heading.
    """
    header, *rows = result["table"]
    left = [f"- {own['name']} left out: {own['reason']}" for own in result["left_out"]]
    below = "#" * (level + 1)
    sentences = [*(f"- {sentence}" for sentence in result["reading"]), *left]
    parts = [
        f"{'#' * level} {result['wanted']['net']} on {result['data']['name']}: {len(rows)} methods",
        _conditions(result),
        markdown_table(tuple(header), [tuple(row) for row in rows]),
        _legend(result),
        *([] if picture is None else [f"![every method in every metric]({picture})"]),
        *([f"{below} Reading", "\n".join(sentences)] if sentences else []),
        *_ranks(result["standings"], below),
        "Made by\n\n```sh\n" + "\n".join(result["commands"]) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _conditions(result: Mapping[str, Any]) -> str:
    budget, wanted, data = result["budget"], result["wanted"], result["data"]
    scored = "held-out training examples" if wanted["held_out"] else "test examples"
    n_seeds = {len(own["seeds"]) for own in result["methods"]}
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
    devices = list(dict.fromkeys(own["device"] for own in result["methods"]))
    return f"{text} Trained on {' and '.join(devices)}, torch {result['machine']['torch']}."


def _scores_used(methods: Sequence[Mapping[str, Any]]) -> str:
    """What methods are pruned by: signal to noise (sbnn), magnitude (map, sghmc)."""
    names: dict[str, list[str]] = {}
    for own in methods:
        names.setdefault(own["score"], []).append(own["name"])
    words = [f"{_SCORES.get(score, score)} ({', '.join(who)})" for score, who in names.items()]
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "es")


def _legend(result: Mapping[str, Any]) -> str:
    text = (
        "Mean ± standard error over seeds. Seconds: training of all seeds, without pruning. State: "
        "what must survive a step, for one seed."
    )
    if all(own["peak_bytes"] is not None for own in result["methods"]):
        text += " Device: the most that training allocated at any time, besides the data."
    return text


def _ranks(standings: Sequence[Mapping[str, Any]], heading: str) -> list[str]:
    """The section on ranks; none without two seeds, where they say no more than the means."""
    if not any(own["critical_difference"] is not None for own in standings):
        return []
    rows = []
    for own in standings:
        pairs = sorted(zip(own["ranks"], own["names"], strict=True))
        difference = own["critical_difference"]
        order = " < ".join(f"{name} {rank:.1f}" for rank, name in pairs)
        rows.append((own["metric"], order, "" if difference is None else f"{difference:.2f}"))
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
