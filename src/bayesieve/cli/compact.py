"""`bayesieve compact`: from a pruned run to a bundle with a physically smaller model."""

from typing import Any

from bayesieve.cli.console import note, print_quality, print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import Compact
from bayesieve.text import as_bytes

EXAMPLE = "Example: bayesieve compact runs/b --out runs/c"


@command(Compact)
def compact(asked: Compact, result: dict[str, Any]) -> None:
    """Print the numbers of every stage, and every layer before and after."""
    report = result["compaction"]
    stages = [name for name in ("dense", "masked", "compacted") if name in result]
    print_quality("Test set, mean weights", {name: result[name] for name in stages})
    layers = [
        (row["name"], row["kind"], *(_pair(row[key]) for key in ("units", "inputs", "parameters")))
        for row in report["layers"]
    ]
    layers.append(("all", "", "", "", _pair(report["parameters"])))
    print_table("Layers, before -> after", ("", "", "units", "inputs", "parameters"), layers)
    if report["input_features"] is not None:
        read = len(report["input_features"])
        print(f"reads {read} of {report['n_inputs']} input features")
    for line in report["kept"]:
        print(f"not removed: {line}")
    changed = result["changed_predictions"]
    labels = "" if changed is None else f"changed labels: {changed} of {result['n_test']}; "
    note(f"compaction: {labels}largest difference of outputs {report['max_difference']:.2g}")
    print(f"bundle: {result['bundle']} ({as_bytes(result['bundle_bytes'])})")


def _pair(pair: list[int]) -> str:
    before, after = pair
    return f"{after:,}" if before == after else f"{before:,} -> {after:,}"
