"""Numbers and tables as text, and remarks while a run is under way. Nothing here imports torch."""

import logging
from collections.abc import Sequence

_LOG = logging.getLogger("bayesieve.runs")


def note(text: str) -> None:
    """Log how far a run is; the command line prints these remarks on standard error."""
    _LOG.info(text)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
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
