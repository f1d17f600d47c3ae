"""The harness of every study: arguments, splits of the data, budget, records, resuming.

A study is a module with a `main`. It makes a parser with `study_parser`, opens a `Run`, and adds
one row for every setting that the run still wants:

    run = Run("sbnn_mnist", arguments, options, data=data.name)
    for name, setting in ...:
        if run.wants(name, asdict(setting)):
            run.add(make_row(name, asdict(setting), each, seeds=4, seconds=12.0))
    return run.finish(("error", "zeros"))

The record is on disk after every row (`studies.record`). A second call with the same `--out` does
what is missing; one with other settings is refused.
"""

import argparse
import platform
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Generator, nn

from bayesieve.checks import check_choice
from bayesieve.core.execution import PRECISIONS
from bayesieve.data.examples import DataSet, Examples
from bayesieve.fast.backend import COMPILE_MODES
from bayesieve.files import write_atomically
from bayesieve.text import markdown_table
from studies.record import SCHEMA, Record, Row, check_one_copy, field, join, make_row, read, write

__all__ = ["Row", "Run", "make_row", "splits", "study_parser"]

N = TypeVar("N", bound=nn.Module)
HELD_OUT = 5000


def study_parser(
    doc: str | None, *flags: str, quick: str, full: str = "all examples and the stated length",
    required: bool = False, seeds: int | None = None, device: bool = True,
    figures: str | None = None, precision: str | None = None,
) -> argparse.ArgumentParser:  # fmt: skip
    """A parser with --quick, --full and --out, and the common flags that a study asks for.

    Args:
        doc: docstring of the study; its first line is the description.
        flags: any of --held-out, --budget, --precision (with --compile), --join and --part.
        quick: what --quick does.
        full: what --full does.
        required: whether one of the two must be given.
        seeds: default of --seeds; None for studies without it.
        device: whether there is --device.
        figures: help of --figures, which comes with --draw; None for neither.
        precision: default of --precision on a GPU.
    """
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    size = parser.add_mutually_exclusive_group(required=required)
    size.add_argument("--quick", action="store_true", help=quick)
    size.add_argument("--full", action="store_true", help=full)
    if seeds is not None:
        parser.add_argument("--seeds", type=count, default=seeds, help="repetitions")
    if device:
        parser.add_argument("--device", default="cuda" if cuda else "cpu")
    options: dict[str, dict[str, Any]] = {
        "--held-out": {"action": "store_true",
                       "help": f"score {HELD_OUT:,} training examples instead"},
        "--budget": {"type": float, "help": "seconds after which no row begins"},
        "--precision": {"choices": PRECISIONS, "default": precision if cuda else "float32"},
        "--join": {"type": Path, "nargs": "+", "help": "make one record of these parts"},
        "--part": {"type": part, "default": (1, 1), "metavar": "I/N",
                   "help": "only part I of N of the simulated sets; --join makes them one"},
    }  # fmt: skip
    for flag in flags:
        parser.add_argument(flag, **options[flag])
    if "--precision" in flags:
        parser.add_argument("--compile", choices=COMPILE_MODES, default="off",
                            help="elementwise kernels, or the network too; worth it for many "
                                 "minutes")  # fmt: skip
    if figures is not None:
        parser.add_argument("--figures", type=Path, help=f"folder for {figures}")
        parser.add_argument("--draw", type=Path, nargs="+",
                            help="train nothing: draw these records into --figures")  # fmt: skip
    parser.add_argument("--out", type=Path, help="JSON file; rows that it has are not run again")
    return parser


def count(text: str) -> int:
    """A whole number above 0, for argparse.

    Example:
        >>> count("20000")
        20000
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number > 0, got {text!r}")
    return int(text)


def part(text: str) -> tuple[int, int]:
    """Which of how many parts, for argparse.

    Example:
        >>> part("2/16")
        (2, 16)
    """
    first, _, parts = text.partition("/")
    if not (first.isdecimal() and parts.isdecimal() and 1 <= int(first) <= int(parts)):
        raise argparse.ArgumentTypeError(f"must be I/N with I from 1 to N, got {text!r}")
    return int(first), int(parts)


def numbers(text: str) -> tuple[float, ...]:
    """A comma list of numbers, for argparse.

    Example:
        >>> numbers("0.03,0.1")
        (0.03, 0.1)
    """
    return tuple(float(part) for part in text.split(","))


def whole_numbers(text: str) -> tuple[int, ...]:
    """A comma list of whole numbers, for argparse.

    Example:
        >>> whole_numbers("50,90")
        (50, 90)
    """
    return tuple(int(part) for part in text.split(","))


def prior_pairs(text: str) -> tuple[tuple[float, float], ...]:
    """A comma list of v0:v1, the Laplace scale and the Gaussian variance, for argparse.

    Example:
        >>> prior_pairs("1:0.1,0.1:0.01")
        ((1.0, 0.1), (0.1, 0.01))
    """
    pairs = [tuple(float(number) for number in part.split(":")) for part in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"pairs v0:v1 separated by commas, got {text!r}")
    return tuple((pair[0], pair[1]) for pair in pairs)


def chosen(study: str, what: str, text: str, known: Collection[str]) -> list[str]:
    """The names of a comma list, each of which must be known.

    Example:
        >>> chosen("uci", "set", "yacht,wine", ("wine", "yacht"))
        ['yacht', 'wine']
    """
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        check_choice(study, what, name, list(known))
    return names


def asked(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were given, by name."""
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def splits(
    data: DataSet, *, held_out: bool = False, few: int | None = None, few_test: int | None = None
) -> DataSet:
    """The data with 5,000 training examples as its test split, or with few examples.

    Args:
        data: as loaded.
        held_out: whether the test examples stay unread; the held-out ones are always the same.
        few: size of a random part of the training examples; None for all of them.
        few_test: size of a random part of the test examples; None for all of them.
    """
    if held_out:
        train, rest = data.train.split(HELD_OUT / len(data.train), seed=0)
        data = replace(data, train=train, test=rest)
    source = Generator().manual_seed(0)

    def some(examples: Examples, n: int | None) -> Examples:
        if n is None:
            return examples
        return examples.subset(torch.randperm(len(examples), generator=source)[:n])

    return replace(data, train=some(data.train, few), test=some(data.test, few_test))


def seeded(seed: int, build: Callable[..., N], *arguments: Any, **options: Any) -> N:
    """A network whose weights depend on `seed` alone; the global generator is left as it was.

    Example:
        >>> first, second = (seeded(0, torch.nn.Linear, 2, 1).weight for _ in range(2))
        >>> bool((first == second).all())
        True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(*arguments, **options)


def machine(device: str = "cpu") -> dict[str, Any]:
    """Device and versions that the numbers were measured with."""
    result = torch.device(device)
    chip = torch.cuda.get_device_name(result) if result.type == "cuda" else platform.processor()
    return {"device": chip or platform.machine(), "torch": torch.__version__,
            "python": platform.python_version(), "threads": torch.get_num_threads()}  # fmt: skip


def command(study: str, arguments: Sequence[str] | None) -> str:
    """The command line of a study; None stands for that of this process.

    Example:
        >>> command("sbnn_mnist", ["--quick"])
        'python -m studies.sbnn_mnist --quick'
    """
    words = sys.argv[1:] if arguments is None else arguments
    return f"python -m studies.{study} {shlex.join(words)}".rstrip()


class Run:
    """A study in progress: its record, on disk after every row.

    Args:
        study: name of the module.
        arguments: of its `main`.
        options: parsed; device, held_out, budget, figures, quick and out are read where they exist.
        data: name of the data set; None where rows name theirs.
        settings: what holds for all rows; another run may only go on with the same.
        kind: "single" or "ensemble".
        test_reads: how often the test examples are read, in words.
        one_per_name: refuse a second row of one name with another setting.
    """

    def __init__(
        self, study: str, arguments: Sequence[str] | None, options: argparse.Namespace, *,
        data: str | None = None, settings: Mapping[str, Any] | None = None,
        kind: str | None = "single", test_reads: str | None = "once per row",
        one_per_name: bool = False,
    ) -> None:  # fmt: skip
        self._began = time.perf_counter()
        self._lengths: dict[str, float] = {}
        self._budget = getattr(options, "budget", None)
        self._figures: Path | None = getattr(options, "figures", None)
        self.study, self.out, self._one_per_name = study, options.out, one_per_name
        held_out = getattr(options, "held_out", False)
        self.record: Record = {
            "schema": SCHEMA, "study": study, "command": command(study, arguments),
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine(getattr(options, "device", "cpu")), "data": data,
            "scored_on": "held-out" if held_out else "test",
            "test_reads": "never" if held_out else test_reads, "kind": kind,
            "settings": {"quick": bool(options.quick), **(settings or {})},
            "seconds": 0.0, "skipped": [], "rows": [], "notes": {},
        }  # fmt: skip
        self._earlier = 0.0
        if self.out is not None and self.out.is_file():
            self._resume(read(self.out, study))

    def _resume(self, earlier: Record) -> None:
        """Take over the rows of an earlier call; each keeps its own command, machine and date."""
        for name in ("data", "scored_on", "kind", "settings"):
            if earlier[name] != plain(self.record[name]):
                raise SystemExit(
                    f"{self.study}: {self.out} has {name} {earlier[name]!r}, this call "
                    f"{self.record[name]!r}. Give another --out."
                )
        new = {name: self.record[name] for name in ("command", "machine", "date")}
        for row in earlier["rows"]:
            about = {name: field(earlier, row, name) for name in new}
            self.record["rows"].append({**row, **{k: v for k, v in about.items() if v != new[k]}})
        self.record["notes"] = earlier["notes"]
        self._earlier = earlier["seconds"] or 0.0

    @property
    def rows(self) -> list[Row]:
        """The rows that have been measured so far, computed ones left out."""
        return [row for row in self.record["rows"] if not row.get("derived")]

    @property
    def notes(self) -> dict[str, Any]:
        """Anything that is no row, by name."""
        notes: dict[str, Any] = self.record["notes"]
        return notes

    @property
    def seconds(self) -> float:
        """Since this call began."""
        return time.perf_counter() - self._began

    def fits(self, seconds: float) -> bool:
        """Whether something of so many seconds, begun now, would end within the budget."""
        return self._budget is None or self.seconds + seconds < self._budget

    def find(self, name: str, setting: Mapping[str, Any], data: str | None = None) -> Row | None:
        """The row of this name, setting and data, if the record has it."""
        wanted = (name, plain(setting), self.record["data"] if data is None else data)
        for row in self.rows:
            if (row["name"], row["setting"], field(self.record, row, "data")) == wanted:
                return row
        return None

    def wants(
        self, name: str, setting: Mapping[str, Any], kind: str = "", data: str | None = None
    ) -> bool:
        """Whether a row is missing and there is time for it.

        Args:
            name: of the row.
            setting: of the row.
            kind: rows of one kind take about the same time; the last one must fit the budget.
            data: of the row, where it has its own.
        """
        if data is not None:
            check_one_copy([self.record, {"data": data, "rows": []}], self.study)
        if self.find(name, setting, data) is not None:
            say(f"{name}: already in {self.out}")
            return False
        for row in self.rows if self._one_per_name else ():
            if row["name"] == name:
                decisive = plain(setting)
                other = [key for key in decisive if row["setting"].get(key) != decisive[key]]
                raise SystemExit(
                    f"{self.study}: {self.out} has {name} with another {', '.join(other) or 'data'}"
                    ". Give another --out, or remove that row."
                )
        if self.fits(self._lengths.get(kind, 0.0)):
            return True
        self.record["skipped"].append(name)
        say(f"{name}: left out, the budget of {self._budget:g} s is spent")
        self.write()
        return False

    def add(self, row: Row, show: Sequence[str] = (), kind: str = "") -> Row:
        """Keep a row, say what it shows, and put the record on disk."""
        self._lengths[kind] = row["seconds"] or 0.0
        row = {**row, **{name: plain(row[name]) for name in ("setting", "each", "detail")}}
        self.record["rows"].append(row)
        self.write()
        if show:
            told = "  ".join(f"{name} {number(row['metrics'].get(name))}" for name in show)
            took = "" if row["seconds"] is None else f"  {row['seconds']:.0f} s"
            say(f"{row['name']:<24} {told}{took}")
        return row

    def derive(self, rows: Sequence[Row]) -> None:
        """Replace the rows that are computed from others."""
        self.record["rows"] = [*self.rows, *({**row, "derived": True} for row in rows)]

    def write(self) -> None:
        """Put the record on disk."""
        self.record["seconds"] = round(self._earlier + self.seconds, 1)
        write(self.out, self.record)

    def finish(
        self, show: Sequence[str] = (), draw: Callable[[Sequence[Row], Path], Any] | None = None
    ) -> int:
        """Write the record, print its rows as a table, and draw them where --figures says so."""
        self.write()
        if show:
            print(table(self.rows, show))
        if draw is not None and self._figures is not None:
            draw(self.rows, self._figures)
        return 0


def joined(
    paths: Sequence[Path], study: str, out: Path | None, dropped_flags: Sequence[str],
    derive: Callable[[Record], Sequence[Row]] = lambda record: (),
    pool: Callable[[Sequence[Row]], Row] | None = None,
) -> Record:  # fmt: skip
    """Read parts of a study, join them, compute derived rows again, and write the whole.

    With `pool`, rows of one name and setting, each with a list of seeds of its own, become one.
    """
    record = join([read(path, study) for path in paths], dropped_flags)
    if pool is not None:
        same: dict[str, list[Row]] = {}
        for row in record["rows"]:
            same.setdefault(f"{row['name']} {row['setting']}", []).append(row)
        record["rows"] = [rows[0] if len(rows) == 1 else pool(rows) for rows in same.values()]
    record["rows"] += [{**row, "derived": True} for row in derive(record)]
    write(out, record)
    return record


def only_draws(
    options: argparse.Namespace, study: str, draw: Callable[[Sequence[Row], Path], Any]
) -> bool:
    """Draw the records of --draw where there are some; then nothing is to be trained."""
    if options.draw is None:
        return False
    if options.figures is None:
        raise ValueError(f"{study}: give a folder for the picture, --figures FOLDER.")
    draw([row for path in options.draw for row in read(path, study)["rows"]], options.figures)
    return True


def show_page(text: str, path: Path | None) -> None:
    """Print a page, and put it on disk unless there is no path."""
    print(text)
    if path is not None:
        write_atomically(path, text)


def plain(value: Any) -> Any:
    """A value as JSON would give it back: tuples are lists, keys are strings.

    Example:
        >>> plain({"a": (1, 2)})
        {'a': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def table(rows: Sequence[Row], show: Sequence[str]) -> str:
    """Names and some metrics of rows as a Markdown table.

    Example:
        >>> print(table([{"name": "sgd", "metrics": {"error": 0.01}}], ["error", "nll"]))
        | row | error | nll |
        | --- | ---: | ---: |
        | sgd | 0.01 |  |
    """
    lines = [[row["name"], *(number(row["metrics"].get(name)) for name in show)] for row in rows]
    return markdown_table(["row", *show], lines)


def number(value: float | None) -> str:
    """Four digits of a number; nothing where there is none."""
    return "" if value is None else f"{value:.4g}"


def say(text: str) -> None:
    """Print a line at once, also into a file."""
    print(text, flush=True)
