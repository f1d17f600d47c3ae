"""Half the units of real networks: parameters, multiply-adds, time and exactness, with peers.

    OMP_NUM_THREADS=1 python -m benchmarks.units [--peers] [--only TEXT] [--out FILE]

With `--only` the other rows of FILE stay as they are.

The networks are those of timm and transformers, with random weights (no download). Ours goes by
`prune(posterior, keep_units(0.5))` and `compact`. With `--peers`, torch-pruning removes half of
the channels of a copy, by magnitude, in every layer but the last. A result is exact if it computes
what the whole network computes with the removed weights at 0: the largest difference of outputs,
relative to their scale. Time is the median of batches of 2 on one core, taking turns. timm,
transformers and torch-pruning are the extra `zoo`; what is missing is said and left out.
"""

import argparse
import copy
import importlib
import json
import platform
import statistics
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.assess.costs import count_macs
from bayesieve.assess.predict import as_point
from bayesieve.core.inputs import Input, as_inputs, call, logits_of
from bayesieve.core.likelihoods import Categorical
from bayesieve.files import write_atomically
from bayesieve.graph.costs import interleaved
from bayesieve.sieve.compact import compact, report_of
from bayesieve.sieve.compaction.lifting import plain_layers
from bayesieve.sieve.groups import find_groups
from bayesieve.sieve.prune import prune
from bayesieve.sieve.unit_rules import keep_units
from benchmarks.libraries import LIBRARY_MODELS, LibraryModel, missing, timm

_FULL = ("resnet18", "resnet50", "densenet121", "convnext_atto")  # thin elsewhere
NETWORKS: dict[str, LibraryModel] = {
    **{f"timm {name}": timm(name) for name in _FULL},
    **{name: case for name, case in LIBRARY_MODELS.items() if "thin" not in name},
}
EXACT = 1e-5


def parameters(module: nn.Module) -> int:
    """Number of parameters; tied ones count once."""
    return sum(p.numel() for p in module.parameters())


def ours(model: nn.Module, example: Any) -> tuple[nn.Module, dict[str, Any]]:
    """The network with half its units, and what is known of it."""
    posterior = as_point(model, Categorical())
    sparse = prune(posterior, keep_units(0.5, example=example))
    small = compact(sparse, example)
    usual = ("is the input", "must keep its shape")
    stays = [s for s in find_groups(posterior.network, example).fixed if not s.endswith(usual)]
    return small, {"difference": report_of(small).max_difference, "stays": stays[:3]}


def peer(model: nn.Module, x: Input) -> tuple[nn.Module, dict[str, Any]]:
    """The same by torch-pruning; the weights it removed are found by numbers in the gradients."""
    pruning = importlib.import_module("torch_pruning")
    small, zeroed = copy.deepcopy(model), copy.deepcopy(model)
    inputs = dict(x.named) if not isinstance(x, Tensor) else x
    heads = {
        layer: count
        for owner in small.modules()
        if isinstance(count := getattr(owner, "num_heads", None), int)
        for leaf in ("qkv", "query", "key", "value", "q", "k", "v")
        if isinstance(layer := getattr(owner, leaf, None), nn.Linear)
    }
    last = [m for m in small.modules() if isinstance(m, nn.Linear | nn.Conv2d)][-1]
    pruner = pruning.pruner.MagnitudePruner(
        small, inputs, importance=pruning.importance.MagnitudeImportance(p=2), pruning_ratio=0.5,
        ignored_layers=[last], num_heads=heads, prune_num_heads=bool(heads), head_pruning_ratio=0.5,
        output_transform=lambda out: logits_of(out).sum(),
    )  # fmt: skip
    for parameter in small.parameters():
        parameter.grad = torch.arange(parameter.numel(), dtype=parameter.dtype).view_as(parameter)
    pruner.step()
    for owner in small.modules():  # what its examples do for the attention of timm
        if isinstance(qkv := getattr(owner, "qkv", None), nn.Linear) and qkv in pruner.num_heads:
            n_heads = pruner.num_heads[qkv]
            width = qkv.out_features // 3
            vars(owner).update(num_heads=n_heads, head_dim=width // n_heads, attn_dim=width)
    whole = dict(zeroed.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, parameter in small.named_parameters():
            assert parameter.grad is not None
            kept = torch.zeros(whole[name].numel(), dtype=torch.bool)
            kept[parameter.grad.flatten().long()] = True
            whole[name].mul_(kept.view_as(whole[name]))
            parameter.grad = None
        wanted, found = call(zeroed, x), call(small, x)
    difference = float((wanted - found).abs().max() / wanted.abs().max().clamp_min(1e-12))
    return small, {"difference": difference}


class _Called(nn.Module):
    """A network on its inputs, whatever it is given."""

    def __init__(self, module: nn.Module, x: Input) -> None:
        super().__init__()
        self.module, self.x = module, x

    def forward(self, _: Tensor) -> Tensor:
        """The outputs."""
        return call(self.module, self.x)


def _macs(module: nn.Module, x: Input) -> int:
    plain = plain_layers(copy.deepcopy(module))  # counts the linear maps of transformers too
    return count_macs(_Called(plain, x), torch.zeros(1))[0]


def measure(case: LibraryModel, *, peers: bool) -> dict[str, Any]:
    """One row of the table."""
    model, example = case.build()
    x = as_inputs("units", example)
    modules: dict[str, nn.Module] = {"whole": model}
    row: dict[str, Any] = {"parameters": {}, "macs": {}, "ms": {}}
    makers: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
        "ours": lambda: ours(model, example)
    }
    if peers:
        makers["torch-pruning"] = lambda: peer(model, x)
    for who, make in makers.items():
        try:
            modules[who], row[who] = make()
        except Exception as error:  # a peer may fail in any way, and the row says how
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            row[who] = {"failed": said[:200]}
    with torch.no_grad():
        calls = {who: (lambda m=module: call(m, x)) for who, module in modules.items()}
        times = interleaved(calls, rounds=9, clock="cpu")
    for who, module in modules.items():
        row["parameters"][who] = parameters(module)
        row["macs"][who] = _macs(module, x)
        row["ms"][who] = round(statistics.median(times[who]), 3)
    return row


def line(name: str, row: dict[str, Any]) -> str:
    """A row as text."""
    cells = [f"{name:32s} {row['parameters']['whole']:>10,}"]
    for who in ("ours", "torch-pruning"):
        if who not in row:
            continue
        if "failed" in row[who]:
            cells.append(f"{who}: {row[who]['failed'][:60]}")
            continue
        share = row["parameters"][who] / row["parameters"]["whole"]
        work = row["macs"][who] / max(row["macs"]["whole"], 1)
        cells.append(
            f"{who}: {share:.3f} parameters, {work:.3f} multiply-adds, "
            f"{row['ms']['whole'] / row['ms'][who]:.2f} times as fast, off by "
            f"{row[who]['difference']:.0e}"
        )
    return " | ".join(cells)


def main() -> None:
    """Print a line for each network, and write the record if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peers", action="store_true", help="compare with torch-pruning")
    parser.add_argument("--only", default="", help="networks whose name has this text")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    peers = asked.peers and not missing("torch_pruning")
    if asked.peers and not peers:
        print("torch-pruning is missing: pip install torch-pruning")
    rows: dict[str, dict[str, Any]] = {}
    if asked.only and asked.out is not None and asked.out.exists():  # the others stay
        rows = json.loads(asked.out.read_text(encoding="utf-8"))["rows"]
    for name, case in NETWORKS.items():
        if asked.only not in name:
            continue
        if missing(case.library):
            print(f"{name}: {case.library} is missing: pip install 'bayesieve[zoo]'")
            continue
        rows[name] = measure(case, peers=peers)
        print(line(name, rows[name]), flush=True)
        if asked.out is not None:
            write_atomically(asked.out, {"benchmark": "units", **_machine(), "rows": rows})


def _machine() -> dict[str, Any]:
    """Versions of libraries, and the machine."""
    versions = {}
    for package in ("torch", "timm", "transformers", "torch-pruning"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return {
        "command": "OMP_NUM_THREADS=1 python -m benchmarks.units --peers --out results/units.json",
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "versions": versions,
        "batch": 2,
    }


if __name__ == "__main__":
    main()
