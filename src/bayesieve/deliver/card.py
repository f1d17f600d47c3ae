"""The model card of a bundle, in Markdown, and the rows of numbers that a report shares with it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bayesieve.core.likelihoods import from_dict
from bayesieve.text import as_percent, certificate_rows, markdown_table, one_line, tempering_words

_WORDS = {
    "error": "error", "rmse": "RMSE", "nll": "NLL (nats)", "ece": "ECE",
    "log_lik": "log-likelihood (nats)", "brier": "Brier score", "coverage_90": "90 % coverage",
    "epistemic": "epistemic uncertainty (nats)", "zeros": "zeros",
    "weights": "non-zero parameters", "parameters": "parameters", "bytes": "bytes",
}  # fmt: skip
_OF_BUNDLES = ("error", "nll", "ece", "rmse", "log_lik", "coverage_90", "zeros", "weights",
               "parameters", "bytes")  # fmt: skip
_OF_REPORTS = ("error", "rmse", "nll", "ece", "brier", "coverage_90", "epistemic")
_FRACTIONS = ("error", "ece", "coverage_90", "zeros")


def bundle_card(
    title: str, config: Mapping[str, Any], metrics: Mapping[str, Any], sizes: Mapping[str, int]
) -> str:
    """Write README.md of a bundle.

    Args:
        title: name of the folder.
        config: the content of config.json.
        metrics: numbers by name, or by stage ("dense", "masked", "compacted") and name.
        sizes: bytes of each other file.

    Example:
        >>> config = {"input": {"shape": [4], "dtype": "float32"}, "classes": ["no", "yes"]}
        >>> card = bundle_card("c", config, {"error": 0.02}, {"model.safetensors": 900})
        >>> print(card[card.index("## Numbers") : card.index("## Files")].rstrip())
        ## Numbers
        <BLANKLINE>
        |  | model |
        | --- | ---: |
        | error | 2.00 % |
    """
    classes, posterior = config.get("classes"), config.get("posterior")
    task = "regression" if classes is None else "classification"
    size = "×".join(str(n) for n in config["input"]["shape"])
    what = f"a classifier of {len(classes)} classes" if classes else "a network"
    if (noise := _noise(config)) is not None:
        what = "a regression"
    summary = (
        f"This folder holds {what} on inputs of shape {size} ({config['input']['dtype']}): the "
        "mean of a Bayesian posterior after the weights that the data do not need were removed."
    )
    files = [[f"`{name}`", f"{n:,}"] for name, n in sizes.items()]
    files.append(["together", f"{sum(sizes.values()):,}"])
    return _joined(
        f"---\nlibrary_name: bayesieve\ntags: [bayesian, sparse, {task}]\n---",
        f"# {title}\n\n{summary}" + (_draws(config) if posterior else ""),
        _section("Data", _data(config, noise)),
        _numbers(metrics),
        _removed(metrics),
        _certificate((config.get("provenance") or {}).get("certificate")),
        _section("Files", [markdown_table(["file", "bytes"], files)]),
        _use(config, title),
        _section("Provenance", _origin(config)),
    )


def _draws(config: Mapping[str, Any]) -> str:
    """That draws come with a bundle, and how much data their spread counts."""
    kl = (config.get("provenance") or {}).get("kl", 1)
    words = tempering_words(kl) if isinstance(kl, int | float) and kl > 0 else ""
    return f" Posterior draws come with it. {words}".rstrip()


def _noise(config: Mapping[str, Any]) -> str | None:
    """The noise of a regression in words; None for any other network."""
    row = config.get("likelihood")
    likelihood = None if row is None else from_dict(row)
    if likelihood is None or likelihood.task != "regression":
        return None
    return likelihood.describe()


def _data(config: Mapping[str, Any], noise: str | None) -> list[str]:
    lines = []
    run = (config.get("provenance") or {}).get("run") or {}
    name = (run.get("data") or {}).get("name")
    if name:
        lines.append(f"- data: {name}")
    if config.get("classes"):
        shown = [one_line(word) for word in config["classes"][:20]]
        more = "" if len(config["classes"]) <= 20 else ", ..."
        lines.append(f"- classes: {', '.join(shown)}{more}")
    if config.get("feature_names"):
        lines.append(f"- features: {len(config['feature_names'])}, named in config.json")
    recipe = config.get("preprocessing") or {}
    if recipe.get("kind") == "image":
        lines.append(
            f"- inputs: (pixels / {recipe['scale']:g} - {recipe['mean']}) / {recipe['std']}, "
            "channel by channel"
        )
    elif recipe.get("kind") == "table":
        lines.append("- inputs: standardised and one-hot columns, as config.json describes")
    if noise is not None:
        unit = ", in units of the standardised target" if recipe.get("target") else ""
        lines.append(f"- noise: {noise}{unit}")
    return lines


def _numbers(metrics: Mapping[str, Any]) -> str:
    stages = {
        name: numbers
        for name, numbers in metrics.items()
        if isinstance(numbers, Mapping) and name != "compaction" and set(numbers) & set(_OF_BUNDLES)
    }
    if not stages and set(metrics) & set(_OF_BUNDLES):
        stages = {"model": metrics}
    if not stages:
        return ""
    rows = _metric_rows(_OF_BUNDLES, stages.values())
    return _section("Numbers", [markdown_table(["", *stages], rows)])


def _removed(metrics: Mapping[str, Any]) -> str:
    report = metrics.get("compaction")
    if not isinstance(report, Mapping) or "layers" not in report:
        return ""
    lines = [_layer_table(report)]
    if report.get("input_features") is not None:
        read = report["input_features"]
        read = len(read) if isinstance(read, list | tuple) else read
        lines += ["", f"Reads {read} of {report['n_inputs']} input features."]
    lines += [f"\nNot removed: {one_line(line)}." for line in report.get("kept", ())]
    return _section("What was removed", lines)


def _use(config: Mapping[str, Any], title: str) -> str:
    shape = ", ".join(str(size) for size in config["input"]["shape"])
    zeros = f"torch.zeros(1, {shape}, dtype=torch.{config['input']['dtype']})"
    if config.get("inputs"):
        sizes = ((row["name"], [1, *row["shape"]], row["dtype"]) for row in config["inputs"])
        zeros = ", ".join(f"{n}=torch.zeros({size}, dtype=torch.{kind})" for n, size, kind in sizes)
    return f"""## Use

With bayesieve:

```python
import bayesieve as bs

model = bs.load({title!r})
```

With torch and safetensors alone, in this folder:

```python
import torch
from architecture import load_model

print(load_model()({zeros}).shape)
```

On files: `bayesieve predict {title} data.npz --out predictions.csv`."""


def _origin(config: Mapping[str, Any]) -> list[str]:
    lines = [f"- bayesieve {config.get('bayesieve_version', '')}"]
    provenance = config.get("provenance") or {}
    run = provenance.get("run") or {}
    if run.get("engine"):
        lines.append(f"- engine: {_settings(run['engine'])}")
    if run.get("training"):
        lines.append(f"- seed: {run['training'].get('seed')}")
    if config.get("thresholds"):
        lines.append(f"- pruned by: {_settings(config['thresholds'])}")
    versions = provenance.get("versions") or {}
    lines += [f"- {one_line(n)} {one_line(v)}" for n, v in versions.items() if n != "bayesieve"]
    return lines


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {one_line(v)}" for key, v in values.items() if v is not None)


def headline_rows(run: Mapping[str, Any]) -> list[list[str]]:
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
    rows += _metric_rows(_OF_REPORTS, [numbers for _, numbers in columns])
    kept = [
        ["parameters kept", f"{after['weights']:,} of {before['parameters']:,}"],
        ["bytes", f"{_count(after['bytes'])} (all weights: {before['bytes']:,})"],
        ["multiply-adds", f"{_count(after['macs'])} (all weights: {before['macs']:,})"],
    ]
    for key, where in (("latency_ms", "torch"), ("runtime_ms", "runtime")):
        for n, ms in (before[key] or {}).items():
            now = (after[key] or {}).get(n)
            text = "not measured" if now is None else f"{now:.3g} ms"
            kept.append([f"time, batch {n}, {where}", f"{text} (all weights: {ms:.3g} ms)"])
    # what is counted once belongs to this model, wherever its column is
    place = 1 if before["quality"] is None else 2
    for name, text in kept:
        cells = [""] * len(columns)
        cells[place - 1] = text
        rows.append([name, *cells])
    return rows


def _layer_table(report: Mapping[str, Any]) -> str:
    """Units, inputs and parameters of each layer before and after compaction."""
    keys = ("units", "inputs", "parameters")
    rows = []
    for layer in report["layers"]:
        pairs = [layer[key] for key in keys]
        sizes = [f"{b:,}" if a == b else f"{a:,} → {b:,}" for a, b in pairs]
        rows.append([f"{one_line(layer['name'])} ({one_line(layer['kind'])})", *sizes])
    return markdown_table(["layer", *keys], rows)


def _certificate(certificate: Mapping[str, Any] | None) -> str:
    """Every check of `certify`, and whether all passed; nothing without a certificate."""
    if certificate is None:
        return ""
    verdict = "certified" if certificate["certified"] else "not certified"
    words = (
        f"Against {one_line(certificate['against'])} on {certificate['n_examples']:,} test "
        f"examples: **{verdict}**."
    )
    header, *rows = certificate_rows(certificate)
    cells = [[one_line(cell) for cell in row] for row in rows]
    return _section("Certificate", [words, "", markdown_table(header, cells)])


def _metric_rows(keys: Iterable[str], columns: Collection[Mapping[str, Any]]) -> list[list[str]]:
    """One row for each metric that some column has."""
    return [
        [_WORDS[key], *(_number(key, numbers.get(key)) for numbers in columns)]
        for key in keys
        if any(key in numbers for numbers in columns)
    ]


def _number(key: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return ""
    if key in _FRACTIONS:
        return as_percent(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "not measured" if value is None else f"{value:,}"


def _section(title: str, lines: Sequence[str]) -> str:
    """A heading and its lines; nothing where there is no line."""
    return "\n".join([f"## {title}", "", *lines]) if lines else ""


def _joined(*sections: str) -> str:
    return "\n\n".join(section for section in sections if section) + "\n"
