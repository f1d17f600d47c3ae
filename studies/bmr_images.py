"""Four ways to train four networks: MAP, Flat-FF, Tiered-FF and BMR-S&S beside their paper.

    python -m studies.bmr_images --full --out results/bmr_images.json
    python -m studies.bmr_images --quick            # the whole grid, small, on a CPU
    python -m studies.bmr_images --nets lenet --methods bmr --preset default --held-out

Data: FashionMNIST and CIFAR-10 (also CIFAR-100 where it is found), standardised per channel, no
augmentation. Networks: MLP 5x400, LeNet-5, MLP-Mixer, ViT. `paper` has the settings of Marković,
Friston and Kiebel (2024), `default` our schedule. Reported are accuracy, calibration error (20 bins
of equal mass) and negative log-likelihood of the prediction averaged over 100 posterior draws, the
pruned fraction as the paper counts it and the plain share of zeros.

Curves are drawn over test images with few draws; nothing is chosen by them. Settings are chosen
with `--held-out`, which trains on all but 5,000 training images and scores those. The file of
`--out` is rewritten after each row; rows that it holds already are not trained again.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch

from bayesieve.checks import check_choice
from bayesieve.core.precision import PRECISIONS
from bayesieve.data import DataSet, data_info, load_data
from bayesieve.data.examples import Examples
from studies.bmr_figures import draw, line
from studies.bmr_published import DATA, published
from studies.bmr_settings import PRESETS, Method, Net, Row, Sizes, resolved
from studies.bmr_training import standardised, train_row
from studies.records import (
    add_common_flags,
    command,
    machine,
    scored_on,
    splits,
    write_record,
)

_CHEAP = ("lenet", "mlp", "mixer", "vit")  # from the fastest to the slowest step
_FIRST = ("bmr", "flat", "map", "tiered")
_QUICK = Sizes(epochs=3, steps=12, batch_size=32, every=1, curve_draws=2, draws=4, small=True)
_WATCHING = ("every", "curve_draws")  # settings that do not change what is trained
_QUICK_TRAIN, _QUICK_SCORE = 384, 200  # one pass is one epoch


@dataclass
class Study:
    """What is asked for, and the records so far."""

    rows: Sequence[Row]
    sizes: Sizes
    held_out: bool
    quick: bool
    device: str
    command: str
    out: Path | None
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    _loaded: dict[str, DataSet] = field(default_factory=dict)

    def splits(self, row: Row) -> tuple[Examples, Examples, DataSet]:
        """Training images, images to score, and their set; one set is in memory at a time."""
        if row.data not in self._loaded:
            self._loaded = {row.data: load_data(row.data)}
        data = self._loaded[row.data]
        train, score_on = splits(data, held_out=self.held_out)
        if self.quick:
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
            train = train.subset(order[:_QUICK_TRAIN])
            order = torch.randperm(len(score_on), generator=torch.Generator().manual_seed(0))
            score_on = score_on.subset(order[:_QUICK_SCORE])
        return *standardised(train, score_on, row.net), data

    def take_up(self) -> None:
        """Read the rows of an earlier run; refuse a file of other settings."""
        if self.out is None or not self.out.is_file():
            return
        earlier = json.loads(self.out.read_text(encoding="utf-8"))
        for key, value in (("study", "bmr_images"), ("scored_on", self.scored_on)):
            if earlier.get(key) != value:
                raise SystemExit(
                    f"bmr_images: {self.out} has {key} {earlier.get(key)!r}, not {value!r}. "
                    "Give another --out."
                )
        self.records = {record["name"]: record for record in earlier["records"]}

    def is_done(self, row: Row, settings: dict[str, Any]) -> bool:
        """Whether the file has this row; a row of the same name and other settings is an error."""
        found = self.records.get(row.name)
        if found is None:
            return False
        decisive = {key: value for key, value in settings.items() if key not in _WATCHING}
        different = [key for key, value in decisive.items() if found["settings"].get(key) != value]
        if different:
            raise SystemExit(
                f"bmr_images: {self.out} holds {row.name} with another {', '.join(different)}. "
                "Give another --out, or remove that record."
            )
        return True

    def train(self, row: Row) -> None:
        """Train one row and keep its record; a failure is noted and ends only this row."""
        settings = resolved(row, self.sizes)
        if self.is_done(row, settings):
            print(f"{row.name}: already in {self.out}", flush=True)
            return
        train, score_on, data = self.splits(row)
        try:
            own = train_row(row, self.sizes, train, score_on, data.n_outputs, self.device, _say)
        except (RuntimeError, ValueError) as error:  # diverged, out of memory, ...
            self.failures[row.name] = f"{type(error).__name__}: {error}"
            print(f"{row.name}: failed: {self.failures[row.name]}", file=sys.stderr, flush=True)
            return
        finally:
            if self.device.startswith("cuda"):
                gc.collect()  # captured graphs hold memory of their own
                torch.cuda.empty_cache()
        record = {
            "name": row.name, **asdict(row), "data_name": data.name, "n_train": len(train),
            "settings": settings, "published": published(row.data, row.net, row.method), **own,
            "machine": machine(self.device), "command": self.command,
        }  # fmt: skip
        self.records[row.name] = record
        print(line(record), flush=True)

    @property
    def scored_on(self) -> str:
        """Which images the scores are of."""
        which = scored_on(held_out=self.held_out)
        return f"{_QUICK_SCORE} {which}, a look only" if self.quick else which

    def seconds_of(self, row: Row) -> float:
        """How long this row may take: as long as the slowest like it so far, by steps."""
        n_steps = self.sizes.epochs * self.sizes.steps
        like = [r for r in self.records.values() if (r["data"], r["net"]) == (row.data, row.net)]
        return max(
            (n_steps / r["steps_per_second"] + r["seconds"]["score"] for r in like), default=0.0
        )

    def write(self) -> None:
        """Replace the file with all records so far."""
        result = {
            "study": "bmr_images", "scored_on": self.scored_on, "machine": machine(self.device),
            "command": self.command, "failures": self.failures,
            "records": [self.records[name] for name in sorted(self.records)],
        }  # fmt: skip
        write_record(self.out, result)


def order(data: Sequence[str], nets: Sequence[str], methods: Sequence[str],
          presets: Sequence[str]) -> list[Row]:  # fmt: skip
    """All rows, set by set; in each BMR before its comparators and fast networks before slow ones.

    Example:
        >>> rows = order(["cifar10"], ["mlp", "lenet"], ["map", "bmr"], ["paper"])
        >>> [row.name for row in rows][:2]
        ['cifar10/lenet/bmr/paper', 'cifar10/mlp/bmr/paper']
    """
    rows = [Row(*own) for own in product(data, nets, methods, presets)]  # type: ignore[arg-type]
    return sorted(rows, key=lambda row: (
        data.index(row.data), row.method != "bmr", _CHEAP.index(row.net) > 1,
        _CHEAP.index(row.net), _FIRST.index(row.method), row.preset,
    ))  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Train the chosen rows, write them after each, and draw them."""
    options = _parser().parse_args(arguments)
    usual = _GRID if options.full or options.quick else _USUAL
    if options.quick:
        usual = {**usual, "preset": ("default",)}
    given = {key: _names(key, getattr(options, key)) or list(usual[key]) for key in _CHOICES}
    if options.data is None:  # what is not here is left out unless it was asked for
        given["data"] = [name for name in given["data"] if data_info(name).found]
    sizes = _QUICK if options.quick else Sizes(seeds=options.seeds)
    if options.epochs:
        sizes = replace(sizes, epochs=options.epochs)
    sizes = replace(sizes, precision=options.precision)
    study = Study(
        order(*(given[key] for key in _CHOICES)), sizes, options.held_out, options.quick,
        options.device, command("bmr_images", arguments), options.out,
    )  # fmt: skip
    study.take_up()
    started, left = time.perf_counter(), []
    for row in study.rows:
        passed = time.perf_counter() - started
        if options.budget and passed + study.seconds_of(row) > options.budget:
            left.append(row.name)
            continue
        study.train(row)
        study.write()
    if left:
        print(f"left out for lack of time: {', '.join(left)}", flush=True)
    if options.figures:
        draw(list(study.records.values()), options.figures)
    return 1 if study.failures else 0


_CHOICES: dict[str, tuple[str, ...]] = {
    "data": DATA, "nets": get_args(Net), "methods": get_args(Method), "preset": PRESETS,
}  # fmt: skip
_GRID = {**_CHOICES, "preset": ("paper", "default")}
_USUAL = {**_GRID, "data": ("fashion-mnist",), "nets": ("mlp", "lenet"), "preset": ("default",)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for key, choices in _CHOICES.items():
        parser.add_argument(f"--{key}", help=f"comma list of {', '.join(choices)}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="all rows, small, on few images")
    size.add_argument("--full", action="store_true", help="all rows that are not narrowed down")
    parser.add_argument("--seeds", type=int, default=1, help="models trained together")
    parser.add_argument("--epochs", type=int, help="of 500 steps; the paper has 51")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32",
                        help="of the network while it trains")  # fmt: skip
    parser.add_argument("--budget", type=float, help="seconds after which no row is begun")
    add_common_flags(parser, out="JSON file, taken up where it ends")
    parser.add_argument("--figures", type=Path, help="folder for pictures of all rows of the file")
    return parser


def _names(key: str, given: str | None) -> list[str]:
    """The chosen names in the order given, none without a choice."""
    names = [name for name in (given or "").split(",") if name]
    for name in names:
        check_choice("bmr_images", key, name, _CHOICES[key])
    return list(dict.fromkeys(names))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
