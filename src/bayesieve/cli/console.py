"""Output of commands: one JSON object for machines on stdout, or a table for people."""

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer

from bayesieve.environment import rank_of_process
from bayesieve.runs.text import quality_header, quality_row

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Row = Sequence[str]
_QUIET = 2.0  # seconds before a command says that it is at work
_CLEAR = "\r\x1b[K"  # back to the beginning of an empty line


def note(text: str) -> None:
    """A remark on standard error."""
    print(text, file=sys.stderr)


# The flags of the arguments that messages name: those of the command under way.
FLAGS: dict[str, str] = {}


def with_flags(text: str, flags: Mapping[str, str] = FLAGS) -> str:
    """A message of the library, which names arguments of functions, in the words of a command line.

    Example:
        >>> flags = {"to": "--to", "lr": "--lr"}
        >>> with_flags("give `to=onnx`, or `prune(runs/a, zeros=0.9, force=True)`", flags)
        'give --to onnx, or `bayesieve prune runs/a --zeros 0.9 --force`'
        >>> with_flags("SBNN: lr must be > 0", flags)
        'SBNN: --lr must be > 0'
    """

    def call(found: re.Match[str]) -> str:
        words = []
        for argument in filter(None, found[2].split(", ")):
            name, equals, value = argument.partition("=")
            named = f"--{name.replace('_', '-')}" + ("" if value == "True" else f" {value}")
            words.append(named if equals else argument)
        return f"`bayesieve {' '.join([found[1].replace('_', '-'), *words])}`"

    def argument(found: re.Match[str]) -> str:
        if found[1] not in flags:
            return found[0]
        return flags[found[1]] + (f" {found[2]}" if found[2] else "")

    text = re.sub(r"`([a-z_]+)\(([^`]*)\)`", call, text)
    text = re.sub(r"`(\w+)(?:=([^`]*))?`", argument, text)
    return re.sub(r"^([\w-]+): (\w+)(?= must )", lambda m: f"{m[1]}: {flags.get(m[2], m[2])}", text)


@contextmanager
def heartbeat(command: str) -> Iterator[None]:
    """Show on a terminal, from the third second on, for how long a command has been at work.

    The line gives way to the bar of a training run and to remarks, and is gone at the end.
    """
    if not sys.stderr.isatty():
        yield
        return
    started, over = time.monotonic(), threading.Event()

    def beat() -> None:
        wait = _QUIET
        while not over.wait(wait):
            wait = 1.0
            bars = sys.modules.get("bayesieve.training.progress")  # loaded if anything trains
            if bars is None or not bars.Bar.shown:
                passed = time.monotonic() - started
                print(f"{_CLEAR}{command}: {passed:.0f} s", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(_CLEAR, end="", file=sys.stderr, flush=True)


class _Remarks(logging.StreamHandler[TextIO]):
    """Writes remarks on lines of their own, over the line of the heartbeat."""

    def format(self, record: logging.LogRecord) -> str:
        clear = _CLEAR if self.stream.isatty() else ""
        return clear + with_flags(super().format(record))


@contextmanager
def remarks_shown() -> Iterator[None]:
    """Print what `bayesieve.runs` logs as remarks while a command runs."""
    logger = logging.getLogger("bayesieve.runs")
    level, handler = logger.level, _Remarks(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if rank_of_process() else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def print_json(result: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """The result for machines."""
    print(json.dumps(result))


def rounded(value: Any, n: int) -> str:
    """A number with n figures; whole numbers and words as they are.

    Example:
        >>> rounded(0.123456, 3), rounded(1234567, 3), rounded("he", 3)
        ('0.123', '1234567', 'he')
    """
    return f"{value:.{n}g}" if isinstance(value, float) else str(value)


def print_table(title: str, header: Row, rows: Sequence[Row], *, numbers: bool = True) -> None:
    """A table on standard output; numbers are aligned to the right, text is wrapped."""
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    named = any(header)
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        show_header=named,
        box=box.HEAVY_HEAD if named else box.SQUARE,
    )
    for index, name in enumerate(header):
        right = numbers and index > 0
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=right or index == 0,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    console = Console()
    if numbers:
        # A number that is cut is another number: rather lines that are too long for the screen.
        wide = console.options.update(max_width=10_000)
        console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)


def print_quality(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """The comparison for people, one line for each named result."""
    task = "regression" if any("rmse" in row for row in rows.values()) else "classification"
    print_table(title, quality_header(task), [quality_row(*row) for row in rows.items()])
