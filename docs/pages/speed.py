"""Tables of how fast delivered networks answer, from the record of benchmarks/inference.py."""

from collections.abc import Mapping
from typing import Any

Record = Mapping[str, Any]

# The way a network is best delivered, and the network that is compared with.
_BEST = {"LeNet-300-100": "our runtime", "784-1200-1200-10": "our runtime",
         "LeNet-5-Caffe": "our runtime", "ResNet-20, 90 % zeros": "our runtime",
         "ResNet-20, 95 % zeros": "our runtime",
         "LeNet-5-Caffe 8-16-50": "onnxruntime, compact"}  # fmt: skip
_DENSE = "onnxruntime, dense"
_WORDS = {"our runtime": "our runtime", "onnxruntime, compact": "onnxruntime"}


def short_table(record: Record) -> str:
    """One row per network: dense onnxruntime beside the best way to deliver it.

    Example:
        >>> machine = {"cpu": "C", "instructions": "I", "torch": "2", "onnxruntime": "1"}
        >>> ways = (("onnxruntime, dense", 0.2, 1.0), ("our runtime", 0.05, 4.0))
        >>> rows = [{"net": "LeNet-300-100", "name": way, "batch": n, "ms": ms, "value": ratio}
        ...         for way, ms, ratio in ways for n in (1, 64)]
        >>> short_table({"machine": machine, "rows": rows}).splitlines()[2][32:]
        '200 µs, 50 µs (4 times faster) | 200 µs, 50 µs (4 times faster) |'
    """
    lines = [
        "| network | runs in | one example: dense, sieved | 64 examples: dense, sieved |",
        "| --- | --- | ---: | ---: |",
    ]
    times = _times(record)
    for net, method in _BEST.items():
        if any((net, name, n) not in times for name in (_DENSE, method) for n in (1, 64)):
            continue
        cells = []
        for batch in (1, 64):
            dense, (ms, ratio) = times[net, _DENSE, batch][0], times[net, method, batch]
            cells.append(f"{_shown(dense)}, {_shown(ms)} ({ratio:.2g} times faster)")
        name = f"{net}{_zeros(record, net)}"
        lines.append(f"| {name} | {_WORDS[method]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Dense: onnxruntime. One thread, {_machine(record)}."])


def full_table(record: Record) -> str:
    """Every measured way to run each network, with times and ratios to dense onnxruntime."""
    lines = [
        "| network | way | ms, one example | times faster | ms, 64 examples | times faster |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    times = _times(record)
    for net, method in dict.fromkeys((net, method) for net, method, _ in times):
        cells = []
        for batch in (1, 64):
            numbers = times.get((net, method, batch))
            cells += ["", ""] if numbers is None else [f"{numbers[0]:.4f}", f"{numbers[1]:.2f}"]
        lines.append(f"| {net}{_zeros(record, net)} | {method} | {' | '.join(cells)} |")
    about = f"Measured on: {_machine(record)}, one thread, masks {record['machine']['masks']}."
    return "\n".join([about, "", *lines])


def _times(record: Record) -> dict[tuple[str, str, int], tuple[float, float]]:
    """Milliseconds and times faster than dense onnxruntime, by network, way and batch size."""
    return {
        (row["net"], row["name"], row["batch"]): (row["ms"], row["value"])
        for row in record["rows"]
        if row["batch"] is not None
    }


def _zeros(record: Record, net: str) -> str:
    numbers = [r["value"] for r in record["rows"] if (r["net"], r["name"]) == (net, "zeros")]
    return f", {100 * numbers[0]:.4g} % zeros" if numbers else ""


def _machine(record: Record) -> str:
    machine = record["machine"]
    versions = f"torch {machine['torch']}, onnxruntime {machine['onnxruntime']}"
    return f"{machine['cpu']} ({machine['instructions']}), {versions}"


def _shown(ms: float) -> str:
    return f"{1000 * ms:.3g} µs" if ms < 1 else f"{ms:.3g} ms"
