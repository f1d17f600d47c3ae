"""Tables of docs/theory/scratch.md from the record of `studies.scratch_mnist`."""

from collections.abc import Mapping, Sequence
from typing import Any

from studies.record import Record, Row
from studies.scratch_mnist import SOURCE, SOURCE_CORES, SOURCE_MINUTES, TITLES, group

_WORDS = {True: "yes", False: "no", None: "–"}
SAME_ACCURACY = 0.01  # the report prints two decimals
SAME_LOSS = 0.1  # relative


def source_table(record: Record) -> str:
    """The report's settings: its numbers, ours, the twin's."""
    lines = [(
        "row", "source: test", "ours: test", "source: train / val loss",
        "ours: train / val loss", "seconds", "CPU seconds",
    )]  # fmt: skip
    for row in group(record, "source"):
        numbers, source = row["metrics"], SOURCE[row["setting"]["like"]]
        test = _or(source["test"], f"({source['train']:.2f} on training images)", ".2f")
        lines.append((
            TITLES[row["name"]], test, f"{numbers['test/accuracy']:.4f}",
            _losses(source["train_loss"], source["val_loss"]),
            _losses(numbers["train/loss"], numbers["val/loss"]),
            f"{numbers['seconds']:.1f}", f"{numbers['cpu_seconds']:.1f}",
        ))  # fmt: skip
        if "twin/seconds" in numbers:
            lines.append((
                f"{TITLES[row['name']]}, PyTorch twin", f"{SOURCE['torch']['test']:.2f}",
                f"{numbers['twin/test_accuracy']:.4f}", "–",
                f"– / {row['each'][0]['twin/losses'][-1][1]:.3f}",
                f"{numbers['twin/seconds']:.1f}", f"{numbers['twin/cpu_seconds']:.1f}",
            ))  # fmt: skip
    return _table(lines)


def account_table(record: Record) -> str:
    """Each of the report's rows at several learning rates and penalties."""
    lines = [(
        "row", "learning rate", "L2 strength", "train", "test", "train / val loss",
        "source: train, test", "mean F1 gap", "same accuracy", "same loss",
    )]  # fmt: skip
    rows = [*group(record, "source"), *group(record, "account")]
    rows.sort(key=lambda row: (list(TITLES).index(row["setting"]["like"]),
                               row["setting"]["l2"], -row["setting"]["lr"]))  # fmt: skip
    for row in rows:
        numbers, setting = row["metrics"], row["setting"]
        source = SOURCE[setting["like"]]
        lines.append((
            TITLES[setting["like"]].split(",")[0], f"{setting['lr']:g}",
            f"{setting['l2']:g}" if setting["l2"] else "–",
            f"{numbers['train/accuracy']:.3f}", f"{numbers['test/accuracy']:.3f}",
            _losses(numbers["train/loss"], numbers["val/loss"]),
            f"{source['train']:.2f}, {_or(source['test'], '–', '.2f')}",
            f"{f1_gap(row, source):.3f}",
            _WORDS[same_accuracy(numbers, source)], _WORDS[same_loss(numbers, source)],
        ))  # fmt: skip
    return _table(lines)


def better_table(record: Record) -> str:
    """Candidates on validation images, and the chosen one on test images."""
    lines = [("setting", "optimiser", "learning rate", "seed", "val", "test", "seconds")]
    (chosen,) = (row for row in record["rows"] if row["name"] == "recommended")
    name = chosen["detail"]["chosen"]
    others = [row for row in group(record, "better") if row["name"] not in (name, "recommended")]
    runs = [(row["name"], row, 0, row["each"][0]) for row in others]
    runs += [(name, chosen, *one) for one in zip(chosen["seeds"], chosen["each"], strict=True)]
    for title, row, seed, one in runs:
        setting = row["setting"]
        rate = f"{setting['lr']:g}" + (", falling linearly to 0" if setting["decay"] else "")
        test = f"**{one['test/accuracy']:.4f}**" if "test/accuracy" in one else "not looked at"
        lines.append((
            f"`{title}`", {"gd": "gradient descent", "adam": "Adam"}[setting["optimiser"]],
            rate, str(seed), f"{one['val/accuracy']:.4f}", test, f"{one['seconds']:.1f}",
        ))  # fmt: skip
    return _table(lines)


def machine_note(record: Record) -> str:
    """Where and how the numbers were measured, and the slowest of them."""
    machine, epochs = record["machine"], record["settings"]["epochs"]
    # the first recommended run is one of the candidates too
    runs = [one for row in record["rows"] for one in row["each"][row["name"] == "recommended" :]]
    loads = [load for one in runs for load in (one["load_before"], one["load_after"])]
    slowest = max(one["seconds"] for one in runs)
    cpu = max(one["cpu_seconds"] for one in runs)
    twin = next(one for one in runs if "twin/seconds" in one)
    return (
        f"Measured by `{record['command']}` on {machine['cores']} CPU cores with "
        f"{machine['threads']} thread(s), numpy {machine['numpy']}, torch {machine['torch']}, "
        f"while the load average of the shared machine was {min(loads):.1f} to {max(loads):.1f}. "
        f"The slowest of {len(runs)} runs took {slowest:.1f} s for {epochs} epochs, and none more "
        f"than {cpu:.1f} s of CPU time; the source "
        f"needed {SOURCE_MINUTES} minutes on {SOURCE_CORES} cores. Time per "
        f"epoch as a multiple of the PyTorch twin's, trained in turn, median of the epochs: "
        f"{twin['twin/epoch_time_ratio']:.2f} by the clock, {twin['twin/epoch_cpu_ratio']:.2f} in "
        f"CPU time. After {epochs} epochs the greatest difference of any test probability between "
        f"the net and its twin is {twin['twin/greatest_difference']:.1g}."
    )


def same_accuracy(numbers: Mapping[str, float], source: Mapping[str, Any]) -> bool:
    """Whether every accuracy the source gives is met to 0.01.

    Example:
        >>> found = {"train/accuracy": 0.934, "test/accuracy": 0.932}
        >>> same_accuracy(found, {"train": 0.93, "test": 0.93})
        True
        >>> same_accuracy(found, {"train": 0.78, "test": None})
        False
    """
    pairs = [(numbers[f"{part}/accuracy"], source[part]) for part in ("train", "test")]
    return all(theirs is None or abs(ours - theirs) <= SAME_ACCURACY for ours, theirs in pairs)


def same_loss(numbers: Mapping[str, float], source: Mapping[str, Any]) -> bool | None:
    """Whether the validation loss is met to 10 %; None if the source gives none.

    Its final training loss may be that of one batch, so it is not asked for.

    Example:
        >>> same_loss({"val/loss": 0.21}, {"val_loss": 0.2})
        True
    """
    wanted = source["val_loss"]
    return None if wanted is None else abs(numbers["val/loss"] / wanted - 1) <= SAME_LOSS


def f1_gap(row: Row, source: Mapping[str, Any]) -> float:
    """Mean difference of the digits' F1 from the source's, on the images the source used."""
    ours = row["each"][0]["train/f1" if source["test"] is None else "test/f1"]
    gaps = [abs(a - b) for a, b in zip(ours, source["f1"], strict=True)]
    return sum(gaps) / len(gaps)


def _losses(train: float | None, val: float | None) -> str:
    return "–" if train is None or val is None else f"{train:.3f} / {val:.3f}"


def _or(value: float | None, other: str, form: str) -> str:
    return other if value is None else f"{value:{form}}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    marks = ("---", *("---:" for _ in lines[0][1:]))
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], marks, *lines[1:]))
