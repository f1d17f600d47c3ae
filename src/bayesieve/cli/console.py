"""Output of commands: one JSON object for machines on stdout, or a table for people."""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from bayesieve.files import rank_of_process
from bayesieve.runs.text import quality_header, quality_row

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Row = Sequence[str]


def note(text: str) -> None:
    """A remark on standard error."""
    print(text, file=sys.stderr)


@contextmanager
def remarks_shown() -> Iterator[None]:
    """Print what `bayesieve.runs` logs as remarks while a command runs."""
    logger = logging.getLogger("bayesieve.runs")
    level, handler = logger.level, logging.StreamHandler(sys.stderr)
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
