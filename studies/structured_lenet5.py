"""LeNet-5-Caffe with whole units sieved out: error, ONNX speed and file size on MNIST.

    python -m studies.structured_lenet5 --full --out results/structured_lenet5.json
    python -m studies.structured_lenet5 --quick           # two minutes on one CPU core

Protocol: no augmentation, pixels / 126, batch 128, sBNN with the local reparameterisation. Units
go while the network trains, those with the least evidence first (`GradualUnits`), then what is
left trains on. 20-50-500 units become 8-16-50: the target names 10-20-80 as the most, but those
are 13.6 times fewer parameters, and the file is to be 20 times smaller. `--held-out` trains on
55,000 images and scores the other 5,000; without it all 60,000 are used and the test images are
read once.
"""

import argparse
import importlib.util
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.assess.costs import count_macs
from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.latency import interleaved, ratio
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.priors import SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.examples import Examples
from bayesieve.engines.sbnn import SBNN
from bayesieve.nets import lenet5_caffe
from bayesieve.sieve.compact import compact
from bayesieve.sieve.schedule import GradualUnits
from bayesieve.sieve.unit_rules import GroupScore
from bayesieve.training.fit import fit
from bayesieve.training.schedule import Schedule
from studies.records import add_common_flags, record_head, splits, write_record

_BATCHES = (1, 64)
ERROR, SPEEDUP, SHRINKAGE = 0.010, 4.0, 20.0  # the targets


@dataclass(frozen=True)
class Setting:
    """How the network is trained and narrowed.

    Args:
        units: channels of conv1 and conv2 and units of fc1 that stay.
        epochs: passes over the data.
        prune_epochs: first and last epoch of pruning.
        kl: KL weight until pruning ends.
        kl_after: KL weight afterwards.
        score: which units go first; None is the evidence.
    """

    units: tuple[int, int, int] = (8, 16, 50)
    epochs: int = 80
    prune_epochs: tuple[int, int] = (8, 40)
    kl: float = 0.1
    kl_after: float = 0.1
    score: GroupScore = None

    @property
    def named(self) -> dict[str, int]:
        """Units by layer."""
        return dict(zip(("conv1", "conv2", "fc1"), self.units, strict=True))


def run_setting(
    setting: Setting, train: Examples, score_on: Examples, seeds: int, device: str
) -> tuple[dict[str, Any], SparseModel]:
    """Train all seeds as one population; returns the record and the first seed's network."""
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = lenet5_caffe((1, 28, 28), 10)
    prior = SpikeSlab(slab_std=math.exp(-1), spike_std=math.exp(-3), slab_prob=0.5)
    first, last = (epoch / setting.epochs for epoch in setting.prune_epochs)
    run = fit(
        Problem(model, Categorical(), train).to(device),
        [SBNN(prior=prior, lr=1e-3, init_std=math.exp(-4), start="he", local=True)] * seeds,
        epochs=setting.epochs,
        seed=1,
        schedule=Schedule(
            lr="cosine", kl=setting.kl, kl_after=setting.kl_after, kl_warmup_epochs=5
        ),
        pruning=GradualUnits(setting.named, start=first, end=last, score=setting.score),
    )
    models = [_sparse(posterior) for posterior in run.posteriors]
    errors = [evaluate(own, score_on).to_dict()["error"] for own in models]
    mean = statistics.fmean(errors)
    record = {
        "setting": asdict(setting),
        "engine": repr(run.engine),
        "errors": errors,
        "error_mean": mean,
        "target": ERROR,
        "met": mean <= ERROR,
        "seconds": time.perf_counter() - started,
    }
    return record, models[0].to("cpu")


def _sparse(posterior: Posterior) -> SparseModel:
    return SparseModel(posterior, posterior.mean != 0)


def delivery(sparse: SparseModel, x: Tensor, rounds: int = 31) -> dict[str, Any]:
    """Units, parameters and work after compaction; ONNX files and their times if onnx is there.

    Args:
        sparse: the narrowed network, on the CPU.
        x: inputs, (n, ...).
        rounds: timings of each file at each batch size.
    """
    dense = lenet5_caffe((1, 28, 28), 10).eval()
    small = compact(sparse, x)
    report: Any = small.compaction
    layers = {change.name: change.units[1] for change in report.layers}
    result: dict[str, Any] = {
        "units": layers,
        "parameters": [_size(dense), _size(small)],
        "macs": [count_macs(own, x[:1])[0] for own in (dense, small)],
        "same_classes": bool((small(x).argmax(1) == sparse.to_module()(x).argmax(1)).all()),
    }
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        result |= _onnx(dense, small, x, rounds)
    return result


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _onnx(dense: nn.Module, small: nn.Module, x: Tensor, rounds: int) -> dict[str, Any]:
    from bayesieve.deliver.onnx_running import OnnxSession

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sessions = {
            name: OnnxSession.of(own, Path(folder) / f"{name}.onnx", x[:64])
            for name, own in (("dense", dense), ("small", small))
        }
        sizes = {name: own.path.stat().st_size for name, own in sessions.items()}
        rows = []
        for batch in _BATCHES:
            array = x[:batch].clone().numpy()
            cases = {name: _call(own, array) for name, own in sessions.items()}
            times = interleaved(cases, rounds=rounds, clock="cpu")
            ms = {name: statistics.median(own) for name, own in times.items()}
            faster = ratio(times, "dense", "small")
            rows.append({"batch": batch, "ms": ms, "speedup": faster, "target": SPEEDUP,
                         "met": faster >= SPEEDUP})  # fmt: skip
    shrunk = sizes["dense"] / sizes["small"]
    file = {"bytes": sizes, "ratio": shrunk, "target": SHRINKAGE, "met": shrunk >= SHRINKAGE}
    return {"onnx_file": file, "onnx_speed": rows}


def _call(session: Any, x: Any) -> Any:
    return lambda: session.run(x)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--quick", action="store_true", help="one seed, 6 epochs, 12,000 images")
    length.add_argument("--full", action="store_true", help="80 epochs, all images")
    parser.add_argument("--units", default="8,16,50", help="of conv1, conv2 and fc1")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--kl", type=float, default=Setting.kl)
    parser.add_argument("--epochs", type=int, default=Setting.epochs)
    parser.add_argument("--score", choices=("evidence", "inclusion", "magnitude"))
    add_common_flags(parser)
    return parser.parse_args(arguments)


def _setting(options: argparse.Namespace) -> Setting:
    a, b, c = (int(part) for part in options.units.split(","))
    begin, end = round(options.epochs / 10), options.epochs // 2
    setting = Setting((a, b, c), options.epochs, (begin, end), options.kl, options.kl,
                      options.score)  # fmt: skip
    return replace(setting, epochs=6, prune_epochs=(1, 4)) if options.quick else setting


def main(arguments: list[str] | None = None) -> int:
    """Run the study from the command line."""
    options = _parse(arguments)
    train, score_on = splits(load_data("mnist"), held_out=options.held_out)
    if options.quick:
        train, options.seeds = train.subset(torch.arange(12_000)), 1
    record, sparse = run_setting(_setting(options), train, score_on, options.seeds, options.device)
    found = delivery(sparse, score_on.x[:1000].cpu())
    result: Mapping[str, Any] = {
        **record_head("structured_lenet5", arguments, options, len(score_on)),
        "record": record,
        "delivery": found,
    }
    print(f"units {found['units']}  error {100 * record['error_mean']:.2f} %  "
          f"parameters {found['parameters']}  {record['seconds']:.0f} s")  # fmt: skip
    for row in found.get("onnx_speed", []):
        print(f"onnxruntime, batch {row['batch']}: {row['speedup']:.2f} times faster")
    if "onnx_file" in found:
        print(f"ONNX file: {found['onnx_file']['ratio']:.1f} times smaller")
    write_record(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
