"""What a command says: one JSON object for machines on stdout, or a table for people."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
FiguresFlag = Annotated[
    bool, typer.Option("--figures/--no-figures", help="Whether to draw pictures.")
]
ForceFlag = Annotated[bool, typer.Option("--force", help="Replace the run in --out.")]
Row = Sequence[str]


def note(text: str) -> None:
    """A remark on standard error."""
    print(text, file=sys.stderr)


def given_arguments() -> str:
    """The command line after the program's name, quoted for a shell; for records."""
    return shlex.join(sys.argv[1:])


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


def markdown_table(header: Row, rows: Sequence[Row]) -> str:
    """The same as text for a report.

    Example:
        >>> print(markdown_table(("", "error"), [("dense", "2 %")]))
        |  | error |
        | --- | ---: |
        | dense | 2 % |
    """
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, marks, *rows))


def as_percent(fraction: float) -> str:
    """A fraction in percent with two decimals.

    Example:
        >>> as_percent(0.985)
        '98.50 %'
    """
    return f"{100 * fraction:.2f} %"


def as_bytes(n: float) -> str:
    """A number of bytes in a unit that people read.

    Example:
        >>> as_bytes(53_000)
        '53.0 kB'
    """
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} GB"
