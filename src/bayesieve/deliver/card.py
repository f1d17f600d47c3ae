"""The model card of a bundle: what it is, how good and how large, how to use it, where from."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesieve.core.likelihoods import from_dict

_WORDS = {
    "error": "error", "nll": "NLL (nats)", "ece": "ECE", "rmse": "RMSE",
    "log_lik": "log-likelihood (nats)", "coverage_90": "90 % coverage", "zeros": "zeros",
    "weights": "non-zero parameters", "parameters": "parameters", "bytes": "bytes",
}  # fmt: skip
_FRACTIONS = ("error", "ece", "coverage_90", "zeros")


def model_card(
    title: str, config: Mapping[str, Any], metrics: Mapping[str, Any], sizes: Mapping[str, int]
) -> str:
    """Write README.md of a bundle.

    Args:
        title: name of the folder.
        config: what stands in config.json.
        metrics: numbers by name, or by stage ("dense", "masked", "compacted") and name.
        sizes: bytes of each other file.

    Example:
        >>> config = {"input": {"shape": [4], "dtype": "float32"}, "classes": ["no", "yes"]}
        >>> card = model_card("c", config, {"error": 0.02}, {"model.safetensors": 900})
        >>> print(card[card.index("## Numbers") : card.index("## Files")].rstrip())
        ## Numbers
        <BLANKLINE>
        |  | model |
        | --- | ---: |
        | error | 2.00 % |
    """
    parts = [
        _front_matter(config),
        f"# {title}\n\n{_summary(config)}",
        _data(config),
        _numbers(metrics),
        _removed(metrics),
        _files(sizes),
        _use(config, title),
        _provenance(config),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(config: Mapping[str, Any]) -> str:
    task = "regression" if config.get("classes") is None else "classification"
    return f"---\nlibrary_name: bayesieve\ntags: [bayesian, sparse, {task}]\n---"


def _summary(config: Mapping[str, Any]) -> str:
    shape = "×".join(str(size) for size in config["input"]["shape"])
    classes = config.get("classes")
    what = f"a classifier of {len(classes)} classes" if classes else "a network"
    if _is_regression(config):
        what = "a regression"
    spread = " Posterior draws come with it." if config.get("posterior") else ""
    return (
        f"This folder holds {what} on inputs of shape {shape} ({config['input']['dtype']}): the "
        "mean of a Bayesian posterior after the weights that the data do not need were removed."
        f"{spread}"
    )


def _is_regression(config: Mapping[str, Any]) -> bool:
    row = config.get("likelihood")
    return row is not None and from_dict(row).task == "regression"


def _data(config: Mapping[str, Any]) -> str:
    lines = []
    run = (config.get("provenance") or {}).get("run") or {}
    name = (run.get("data") or {}).get("name")
    if name:
        lines.append(f"- data: {name}")
    if config.get("classes"):
        shown = [_plain(word) for word in config["classes"][:20]]
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
    if _is_regression(config):
        unit = ", in units of the standardised target" if recipe.get("target") else ""
        lines.append(f"- noise: {from_dict(config['likelihood']).describe()}{unit}")
    return "## Data\n\n" + "\n".join(lines) if lines else ""


def _numbers(metrics: Mapping[str, Any]) -> str:
    stages = {
        name: numbers
        for name, numbers in metrics.items()
        if isinstance(numbers, Mapping) and name != "compaction" and set(numbers) & set(_WORDS)
    }
    if not stages and set(metrics) & set(_WORDS):
        stages = {"model": metrics}
    if not stages:
        return ""
    rows = [["", *stages], ["---", *["---:"] * len(stages)]]
    for key, word in _WORDS.items():
        if any(key in numbers for numbers in stages.values()):
            rows.append([word, *(_number(key, numbers.get(key)) for numbers in stages.values())])
    return "## Numbers\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _number(key: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return ""
    if key in _FRACTIONS:
        return f"{100 * value:.2f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _removed(metrics: Mapping[str, Any]) -> str:
    report = metrics.get("compaction")
    if not isinstance(report, Mapping) or "layers" not in report:
        return ""
    rows = [["layer", "units", "inputs", "parameters"], ["---", "---:", "---:", "---:"]]
    for row in report["layers"]:
        pairs = [_arrow(row[key]) for key in ("units", "inputs", "parameters")]
        rows.append([f"{_plain(row['name'])} ({_plain(row['kind'])})", *pairs])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if report.get("input_features") is not None:
        read = report["input_features"]
        read = len(read) if isinstance(read, list | tuple) else read
        lines += ["", f"Reads {read} of {report['n_inputs']} input features."]
    lines += [f"\nNot removed: {_plain(line)}." for line in report.get("kept", ())]
    return "## What was removed\n\n" + "\n".join(lines)


def _arrow(pair: Sequence[int]) -> str:
    before, after = pair
    return f"{after:,}" if before == after else f"{before:,} → {after:,}"


def _files(sizes: Mapping[str, int]) -> str:
    rows = [f"| `{name}` | {size:,} |" for name, size in sizes.items()]
    total = f"| together | {sum(sizes.values()):,} |"
    return "\n".join(["## Files", "", "| file | bytes |", "| --- | ---: |", *rows, total])


def _use(config: Mapping[str, Any], title: str) -> str:
    shape = ", ".join(str(size) for size in config["input"]["shape"])
    zeros = f"torch.zeros(1, {shape}, dtype=torch.{config['input']['dtype']})"
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


def _provenance(config: Mapping[str, Any]) -> str:
    lines = [f"- bayesieve {config.get('bayesieve_version', '')}"]
    given = config.get("provenance") or {}
    run = given.get("run") or {}
    if run.get("engine"):
        lines.append(f"- engine: {_settings(run['engine'])}")
    if run.get("training"):
        lines.append(f"- seed: {run['training'].get('seed')}")
    if config.get("thresholds"):
        lines.append(f"- pruned by: {_settings(config['thresholds'])}")
    versions = given.get("versions") or {}
    lines += [f"- {_plain(n)} {_plain(v)}" for n, v in versions.items() if n != "bayesieve"]
    return "## Provenance\n\n" + "\n".join(lines)


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_plain(v)}" for key, v in values.items() if v is not None)


def _plain(value: object) -> str:
    """Text on one line that cannot break out of its place in the page."""
    return " ".join(str(value).split())[:200].replace("|", "/").replace("`", "'")
