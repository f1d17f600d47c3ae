"""The table of docs/reliability.md: faults that were injected, and what was found."""

from collections.abc import Mapping
from typing import Any

from bayesieve.text import markdown_table

_FOUND = ("lost files", "executed code", "silent wrong answers", "tracebacks", "wrong exit codes",
          "other failures")  # fmt: skip


def faults_table(record: Mapping[str, Any]) -> str:
    """One line per row of the fault table, and their sum."""
    lines = [(row["words"], *_numbers(row)) for row in record["rows"]]
    total = {key: sum(row[key] for row in record["rows"]) for key in ("faults", *_FOUND)}
    lines.append(("all", *_numbers(total)))
    machine = record["machine"]
    device = "with" if machine["cuda"] else "without"
    about = (
        f"`{record['command']}`, {record['form']} form, {record['date']}: {machine['system']}, "
        f"Python {machine['python']}, torch {machine['torch']}, {device} CUDA."
    )
    return "\n".join([markdown_table(("fault", "injected", *_FOUND), lines), "", about])


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return [f"{row[key]:,}" for key in ("faults", *_FOUND)]
