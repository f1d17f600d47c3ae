"""The same data as Markdown: a model card for repositories and reviews."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesieve.report.packing import Json

_WORDS = {
    "error": "error", "rmse": "RMSE", "nll": "NLL (nats)", "ece": "ECE", "brier": "Brier score",
    "coverage_90": "90 % coverage", "epistemic": "doubt about the weights (nats)",
}  # fmt: skip
_FRACTIONS = ("error", "ece", "coverage_90")


def model_card(data: Json) -> str:
    """The Markdown model card of every run of a report.

    Args:
        data: what `collect` returns.
    """
    parts = ["---\nlibrary_name: bayesieve\ntags: [bayesian, sparse]\n---"]
    for run in data["runs"]:
        parts += [
            f"# {_plain(run['name'])}\n\n{_summary(run)}",
            "## Before and after\n\n" + _table(headline_rows(run)),
            _curve(run),
            _layers(run),
            _limits(run),
            _provenance(run),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline_rows(run: Json) -> list[list[str]]:
    """A header and rows of text: quality, size and speed before and after."""
    before, after = run["headline"]["before"], run["headline"]["after"]
    sampled = run["headline"]["sampled"]
    columns: list[tuple[str, Mapping[str, Any]]] = []
    if before["quality"] is not None:
        columns.append((before["name"], before["quality"]))
    columns.append(("this model", after["quality"]))
    if sampled is not None:
        columns.append(("averaged over draws", sampled))
    rows = [["test set", *(name for name, _ in columns)]]
    for key, word in _WORDS.items():
        if any(key in own for _, own in columns):
            rows.append([word, *(_number(key, own.get(key)) for _, own in columns)])
    width = len(rows[0])
    kept = [
        ["parameters kept", f"{after['weights']:,} of {before['parameters']:,}"],
        ["bytes", f"{_count(after['bytes'])} (all weights: {before['bytes']:,})"],
        ["multiply-adds", f"{_count(after['macs'])} (all weights: {before['macs']:,})"],
    ]
    for key, where in (("latency_ms", "torch"), ("runtime_ms", "runtime")):
        for n, ms in (before[key] or {}).items():
            own = (after[key] or {}).get(n)
            text = "not measured" if own is None else f"{own:.3g} ms"
            kept.append([f"time, batch {n}, {where}", f"{text} (all weights: {ms:.3g} ms)"])
    # what is counted once belongs to this model, wherever its column is
    place = 1 if before["quality"] is None else 2
    for name, text in kept:
        cells = [""] * (width - 1)
        cells[place - 1] = text
        rows.append([name, *cells])
    return rows


def _summary(run: Json) -> str:
    data, after = run["data"], run["headline"]["after"]
    shape = "×".join(str(size) for size in data["input_shape"])
    what = "a regression" if run["task"] == "regression" else f"{len(data['classes'])} classes"
    return (
        f"{_plain(run['title'])}: {what} on {data['name']}, inputs of shape {shape}, "
        f"{data['n_train']:,} training and {data['n_test']:,} test examples. "
        f"{100 * after['zeros']:.1f} % of the parameters are exactly 0."
    )


def _curve(run: Json) -> str:
    points = run["curve"]["points"]
    key = "rmse" if run["task"] == "regression" else "error"
    some = points[:: max(1, len(points) // 8)]
    rows = [["zeros", "kept", _WORDS[key], "NLL (nats)", "multiply-adds"]]
    for point in some:
        rows.append([
            f"{100 * point['zeros']:.2f} %", f"{point['weights']:,}", _number(key, point[key]),
            f"{point['nll']:.4f}", _count(point.get("macs")),
        ])  # fmt: skip
    words = f"Pruned further in one shot by {run['curve']['score']}, without more training."
    return f"## Error against sparsity\n\n{words}\n\n{_table(rows)}"


def _layers(run: Json) -> str:
    report = run["compaction"]
    if report is None:
        return f"## Layers\n\nNot compacted: {_plain(run['not_compacted'])}"
    rows = [["layer", "units", "inputs", "parameters"]]
    for layer in report["layers"]:
        pairs = [_arrow(layer[key]) for key in ("units", "inputs", "parameters")]
        rows.append([f"{_plain(layer['name'])} ({layer['kind']})", *pairs])
    kept = [f"- {_plain(line)}" for line in report["kept"]]
    why = "\n\nNot removed, and why:\n\n" + "\n".join(kept) if kept else ""
    return f"## Layers\n\n{_table(rows)}{why}"


def _limits(run: Json) -> str:
    data = run["data"]
    lines = [
        f"- Tested on the test split of {data['name']} alone; other data need their own test.",
        "- Pruning was judged on averages; rare kinds of inputs may suffer more than the average.",
    ]
    if run["headline"]["sampled"] is None:
        lines.append("- A point estimate: it states no doubt about its own weights.")
    return "## Limits\n\n" + "\n".join(lines)


def _provenance(run: Json) -> str:
    own = run["provenance"]
    lines = [f"- {_plain(name)} {_plain(text)}" for name, text in own["versions"].items()]
    lines += [f"- `{_plain(name)}`: SHA-256 {digest}" for name, digest in own["hashes"].items()]
    command = f"\n\n```sh\n{_plain(own['command'])}\n```" if own["command"] else ""
    return "## Provenance\n\n" + "\n".join(lines) + command


def _table(rows: Sequence[Sequence[str]]) -> str:
    header, *rest = rows
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, marks, *rest))


def _number(key: str, value: object) -> str:
    if not isinstance(value, int | float):
        return ""
    return f"{100 * value:.2f} %" if key in _FRACTIONS else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "not measured" if value is None else f"{value:,}"


def _arrow(pair: Sequence[int]) -> str:
    before, after = pair
    return f"{after:,}" if before == after else f"{before:,} → {after:,}"


def _plain(value: object) -> str:
    """Text on one line that cannot break out of its place in the page."""
    return " ".join(str(value).split())[:300].replace("|", "/").replace("`", "'")
