"""`bayesieve profile`: size, work, memory and time of runs and bundles, side by side."""

from typing import Any

from bayesieve.cli.console import print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import Profile
from bayesieve.text import as_bytes

EXAMPLE = "Example: bayesieve profile runs/a runs/c --json"


@command(Profile)
def profile(asked: Profile, result: dict[str, Any]) -> None:
    """Print one table per folder, a column for each form of its network."""
    by_folder: dict[str, dict[str, dict[str, Any]]] = {}
    for row in result["rows"]:
        folder, _, form = row["name"].rpartition(" ")
        by_folder.setdefault(folder, {})[form] = row
    for folder, forms in by_folder.items():
        columns = [_column(row) for row in forms.values()]
        table = [(name, *(column[name] for column in columns)) for name in columns[0]]
        print_table(folder, ("", *forms), table)
    plural = "thread" if asked.threads == 1 else "threads"
    print(f"milliseconds: median, all forms of all folders in turns, {asked.clock} time, "
          f"{asked.threads} {plural}")  # fmt: skip


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
