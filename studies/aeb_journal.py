"""What the SG-MCMC studies share: a JSON record that grows run by run, and a limit on time."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bayesieve.files import write_atomically
from studies.records import machine

Row = dict[str, Any]


class Journal:
    """A study's record; every added row is on disk before the next run begins.

    Args:
        study: name of the module.
        path: where the JSON goes; None prints only.
        arguments: of the command line; None takes those of this process.
        device: what the runs are made on.
        budget: seconds after which no further run begins; None for no limit.
        settings: what holds for all runs.
    """

    def __init__(
        self,
        study: str,
        path: Path | None,
        arguments: Sequence[str] | None,
        device: str,
        budget: float | None,
        settings: Mapping[str, Any],
    ) -> None:
        self._path, self._budget, self._began = path, budget, time.perf_counter()
        self._lengths: dict[str, float] = {}
        given = sys.argv[1:] if arguments is None else list(arguments)
        self.content: dict[str, Any] = {
            "study": study,
            "command": " ".join([f"python -m studies.{study}", *given]),
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine(device),
            "settings": dict(settings),
            "seconds": 0.0,
            "skipped": [],
            "rows": [],
        }

    @property
    def rows(self) -> list[Row]:
        """What has been measured so far."""
        rows: list[Row] = self.content["rows"]
        return rows

    @property
    def seconds(self) -> float:
        """Since the study began."""
        return time.perf_counter() - self._began

    def fits(self, seconds: float) -> bool:
        """Whether a run of so many seconds, begun now, would end within the budget."""
        return self._budget is None or self.seconds + seconds < self._budget

    def has_time(self, name: str, kind: str) -> bool:
        """Whether a run may begin: one as long as the last of its kind must fit the budget."""
        if self.fits(self._lengths.get(kind, 0.0)):
            return True
        self.content["skipped"].append(name)
        print(f"{name}: left out, the budget of {self._budget:.0f} s is spent")
        self.write()
        return False

    def add(self, row: Row, kind: str, seconds: float) -> None:
        """Note a finished run and how long runs of its kind take."""
        self._lengths[kind] = seconds
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        """Put the record on disk."""
        self.content["seconds"] = round(self.seconds, 1)
        if self._path is not None:
            write_atomically(self._path, self.content)

    def finish(self, **results: Any) -> None:
        """Note results that come all at once, and put the record on disk."""
        self.content |= results
        self.write()


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """The rows of several records, one after the other."""
    return [row for path in paths for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Text columns as a Markdown table; the first row is its head.

    Example:
        >>> print(table([["method", "ours"], ["sgd", "99.3"]]))
        | method | ours |
        | ------ | ---- |
        | sgd    | 99.3 |
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
             for row in rows]  # fmt: skip
    rule = "| " + " | ".join("-" * w for w in widths) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])
