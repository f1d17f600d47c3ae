"""`bayesieve profile`: size, work, memory and time of runs and bundles, side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve import runs
from bayesieve.cli.console import JsonFlag, note, print_json, print_table
from bayesieve.text import as_bytes

EXAMPLE = "Example: bayesieve profile runs/a runs/c --json"


def profile(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run folders or bundles; the first is compared with.", metavar="PATH"),
    ],
    rounds: Annotated[int, typer.Option(help="Timings of each candidate.")] = 15,
    threads: Annotated[int, typer.Option(help="CPU threads of every candidate.")] = 1,
    clock: Annotated[
        str, typer.Option(help="cpu counts this process alone.", metavar="wall|cpu")
    ] = "wall",
    json: JsonFlag = False,
) -> None:
    """Measure networks: as they are, compacted, in our runtime and in onnxruntime."""
    result = runs.profile(folders, rounds=rounds, threads=threads, clock=clock)
    for reason in result["left_out"]:
        note(reason)
    if json:
        print_json(result)
    else:
        _show(result["rows"], clock, threads)


def _show(rows: list[dict[str, Any]], clock: str, threads: int) -> None:
    """One table per folder, a column for each form of its network."""
    by_folder: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        folder, _, form = row["name"].rpartition(" ")
        by_folder.setdefault(folder, {})[form] = row
    for folder, forms in by_folder.items():
        columns = [_column(row) for row in forms.values()]
        table = [(name, *(column[name] for column in columns)) for name in columns[0]]
        print_table(folder, ("", *forms), table)
    plural = "thread" if threads == 1 else "threads"
    print(f"milliseconds: median, all forms of all folders in turns, {clock} time, "
          f"{threads} {plural}")  # fmt: skip


def _column(row: dict[str, Any]) -> dict[str, str]:
    counts = {
        "parameters": row["parameters"],
        "zeros": row["zeros"],
        "units": row["units"],
        "removed units": row["removed_units"],
        "MACs": row["macs"],
        "non-zero MACs": row["nonzero_macs"],
    }
    sizes = {"bytes": row["bytes"], "gzip": row["gzip_bytes"], "peak memory": row["peak_bytes"]}
    batch = "latency_ms_batch_"
    times = {
        f"ms, batch {name.removeprefix(batch)}": f"{ms:.4f}"
        for name, ms in row.items()
        if name.startswith(batch)
    }
    shown = {name: "" if n is None else f"{n:,}" for name, n in counts.items()}
    return shown | {name: "" if n is None else as_bytes(n) for name, n in sizes.items()} | times
