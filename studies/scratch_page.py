"""Tables and loss curves of `scratch_mnist`, made from its result; no number is typed by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bayesieve.assess.figures.style import (
    INK,
    PALETTE,
    dress,
    legend,
    log_ticks,
    new_figure,
    plain_ticks,
    save,
)

Result = dict[str, Any]
_WORDS = {True: "yes", False: "no", None: "–"}
SAME_ACCURACY = 0.01  # the report prints two decimals
SAME_LOSS = 0.1  # relative
TITLES = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "ReLU", "relu-l2": "ReLU, L2 1e-4"}


def summary(record: Result) -> str:
    """One line about one run."""
    test = f"  test {record['test']['accuracy']:.4f}" if "test" in record else ""
    twin = record.get("twin")
    beside = f"  PyTorch {twin['test_accuracy']:.4f}" if twin else ""
    ratio = f"  time ratio {twin['epoch_time_ratio']:.2f}" if twin else ""
    return (
        f"{record['name']:<18} train {record['train']['accuracy']:.4f}  "
        f"val {record['val']['accuracy']:.4f}{test}{beside}  {record['seconds']:.1f} s{ratio}"
    )


def source_table(result: Result) -> str:
    """The report's settings: its numbers, ours, the twin's."""
    head = (
        "row", "source: test", "ours: test", "source: train / val loss",
        "ours: train / val loss", "seconds", "CPU seconds",
    )  # fmt: skip
    rows = []
    for own in _group(result, "source"):
        source = result["source"][own["setting"]["like"]]
        test = _or(source["test"], f"({source['train']:.2f} on training images)", ".2f")
        rows.append((
            TITLES[own["name"]], test, f"{own['test']['accuracy']:.4f}",
            _losses(source["train_loss"], source["val_loss"]),
            _losses(own["train"]["loss"], own["val"]["loss"]),
            f"{own['seconds']:.1f}", f"{own['cpu_seconds']:.1f}",
        ))  # fmt: skip
        if "twin" in own:
            twin, theirs = own["twin"], result["source"]["torch"]
            rows.append((
                f"{TITLES[own['name']]}, PyTorch twin", f"{theirs['test']:.2f}",
                f"{twin['test_accuracy']:.4f}", "–", f"– / {twin['losses'][-1][1]:.3f}",
                f"{twin['seconds']:.1f}", f"{twin['cpu_seconds']:.1f}",
            ))  # fmt: skip
    return _table(head, rows)


def account_table(result: Result) -> str:
    """Each of the report's rows at several learning rates and penalties."""
    head = (
        "row", "learning rate", "L2 strength", "train", "test", "train / val loss",
        "source: train, test", "mean F1 gap", "same accuracy", "same loss",
    )  # fmt: skip
    records = [*_group(result, "source"), *_group(result, "account")]
    records.sort(key=lambda own: (list(TITLES).index(own["setting"]["like"]),
                                  own["setting"]["l2"], -own["setting"]["lr"]))  # fmt: skip
    rows = []
    for own in records:
        setting, source = own["setting"], result["source"][own["setting"]["like"]]
        rows.append((
            TITLES[setting["like"]].split(",")[0], f"{setting['lr']:g}",
            f"{setting['l2']:g}" if setting["l2"] else "–",
            f"{own['train']['accuracy']:.3f}", f"{own['test']['accuracy']:.3f}",
            _losses(own["train"]["loss"], own["val"]["loss"]),
            f"{source['train']:.2f}, {_or(source['test'], '–', '.2f')}",
            f"{f1_gap(own, source):.3f}",
            _WORDS[same_accuracy(own, source)], _WORDS[same_loss(own, source)],
        ))  # fmt: skip
    return _table(head, rows)


def better_table(result: Result) -> str:
    """Candidates on validation images, and the chosen one on test images."""
    head = ("setting", "optimiser", "learning rate", "seed", "val", "test", "seconds")
    runs = result["recommended"]["runs"]
    seen = {(own["name"], own["seed"]) for own in runs}
    others = [own for own in _group(result, "better") if (own["name"], own["seed"]) not in seen]
    rows = []
    for own in (*others, *runs):
        setting = own["setting"]
        rate = f"{setting['lr']:g}" + (", falling linearly to 0" if setting["decay"] else "")
        test = f"**{own['test']['accuracy']:.4f}**" if "test" in own else "not looked at"
        rows.append((
            f"`{own['name']}`", {"gd": "gradient descent", "adam": "Adam"}[setting["optimiser"]],
            rate, str(own["seed"]), f"{own['val']['accuracy']:.4f}", test,
            f"{own['seconds']:.1f}",
        ))  # fmt: skip
    return _table(head, rows)


def machine_note(result: Result) -> str:
    """Where and how the numbers were measured, and the slowest of them."""
    own = result["machine"]
    records = [*result["records"], *result["recommended"]["runs"][1:]]  # the first is in both
    loads = [load for record in records for load in (record["load_before"], record["load_after"])]
    slowest = max(record["seconds"] for record in records)
    cpu = max(record["cpu_seconds"] for record in records)
    twin = next(own["twin"] for own in records if "twin" in own)
    return (
        f"Measured by `{result['command']}` on {own['cores']} CPU cores with "
        f"{own['torch_threads']} thread(s), numpy {own['numpy']}, torch {own['torch']}, while the "
        f"load average of the shared machine was {min(loads):.1f} to {max(loads):.1f}. The slowest "
        f"of {len(records)} runs took {slowest:.1f} s for {result['epochs']} epochs, and none more "
        f"than {cpu:.1f} s of CPU time; the source "
        f"needed {result['source_minutes']} minutes on {result['source_cores']} cores. Time per "
        f"epoch as a multiple of the PyTorch twin's, trained in turn, median of the epochs: "
        f"{twin['epoch_time_ratio']:.2f} by the clock, {twin['epoch_cpu_ratio']:.2f} in CPU time. "
        f"After {result['epochs']} epochs the greatest difference of any test probability between "
        f"the net and its twin is {twin['greatest_difference']:.1g}."
    )


def same_accuracy(record: Result, source: dict[str, Any]) -> bool:
    """Whether every accuracy the source gives is met to 0.01.

    Example:
        >>> record = {"train": {"accuracy": 0.934}, "test": {"accuracy": 0.932}}
        >>> same_accuracy(record, {"train": 0.93, "test": 0.93})
        True
        >>> same_accuracy(record, {"train": 0.78, "test": None})
        False
    """
    pairs = [(record[part]["accuracy"], source[part]) for part in ("train", "test")]
    return all(own is None or abs(ours - own) <= SAME_ACCURACY for ours, own in pairs)


def same_loss(record: Result, source: dict[str, Any]) -> bool | None:
    """Whether the validation loss is met to 10 %; None if the source gives none.

    Its final training loss may be that of one batch, so it is not asked for.

    Example:
        >>> same_loss({"val": {"loss": 0.21}}, {"val_loss": 0.2})
        True
    """
    wanted = source["val_loss"]
    return None if wanted is None else abs(record["val"]["loss"] / wanted - 1) <= SAME_LOSS


def f1_gap(record: Result, source: dict[str, Any]) -> float:
    """Mean difference of the digits' F1 from the source's, on the images the source used."""
    ours = record["train" if source["test"] is None else "test"]["f1"]
    gaps = [abs(a - b) for a, b in zip(ours, source["f1"], strict=True)]
    return sum(gaps) / len(gaps)


def draw_losses(result: Result, path: Path) -> Path:
    """Training and validation loss of each row; the source's final losses as marks."""
    records = _group(result, "source")
    n_rows = -(-len(records) // 2)
    figure = new_figure(11.5, 3.2 * n_rows)
    for axes, own in zip(figure.subplots(n_rows, 2, squeeze=False).flat, records, strict=False):
        epochs = [row["epoch"] for row in own["history"]]
        for kind, color, word in (("train", PALETTE[0], "training"),
                                  ("val", PALETTE[1], "validation")):  # fmt: skip
            axes.plot(epochs, [row[f"{kind}_loss"] for row in own["history"]],
                      color=color, lw=2, label=word)  # fmt: skip
            column = 0 if kind == "train" else 1
            if "twin" in own:
                axes.plot(epochs, [row[column] for row in own["twin"]["losses"]], color=INK, lw=0.9,
                      ls=(0, (2, 4)), zorder=3, label="PyTorch" if column else None)  # fmt: skip
            final = result["source"][own["setting"]["like"]][f"{kind}_loss"]
            if final is not None:
                axes.plot(epochs[-1], final, marker="D", ms=6, mfc="none", mec=color, ls="",
                          label=f"source, {word}")  # fmt: skip
        dress(axes, title=TITLES[own["name"]], xlabel="epoch", ylabel="loss (nats)", grid="y")
        _other_rates(axes, result, own["setting"]["like"])
        axes.set_yscale("log")
        log_ticks(axes.yaxis, *axes.get_ylim())
        plain_ticks(axes.yaxis)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        legend(axes, "upper left", outside=True)
    return save(figure, path)


def _other_rates(axes: Axes, result: Result, like: str) -> None:
    colors = iter(PALETTE[2:])
    for own in _group(result, "account"):
        setting = own["setting"]
        if setting["like"] != like or (like == "relu-l2" and setting["l2"] != 1e-4):
            continue
        epochs = [row["epoch"] for row in own["history"]]
        losses = [row["val_loss"] for row in own["history"]]
        label = f"validation, rate {setting['lr']:g}"
        axes.plot(epochs, losses, color=next(colors), lw=1.2, label=label)


BLOCKS = {
    "source": source_table,
    "account": account_table,
    "better": better_table,
    "machine": machine_note,
}


def page_text(result: Result, text: str) -> str:
    """The page with the lines between each pair of markers made anew."""
    for name, make in BLOCKS.items():
        begin, end = f"<!-- scratch-{name}:begin -->", f"<!-- scratch-{name}:end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"scratch page: the markers {begin} and {end} must stand in it.")
        text = f"{before}{begin}\n{make(result)}\n{end}{after}"
    return text


def write_page(result: Result, path: Path) -> None:
    """Rewrite the blocks of a page."""
    path.write_text(page_text(result, path.read_text(encoding="utf-8")), encoding="utf-8")


def _group(result: Result, name: str) -> list[Result]:
    found = [own for own in result["records"] if own["setting"]["group"] == name]
    order = [*TITLES, *(own["name"] for own in found)]
    return sorted(found, key=lambda own: order.index(own["name"]))


def _losses(train: float | None, val: float | None) -> str:
    return "–" if train is None or val is None else f"{train:.3f} / {val:.3f}"


def _or(value: float | None, other: str, form: str) -> str:
    return other if value is None else f"{value:{form}}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ("---", *("---:" for _ in head[1:]))
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rows))
