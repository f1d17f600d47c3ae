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
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve import Problem, Schedule, compact, evaluate, fit, load_data
from bayesieve.assess.costs import count_macs, ratio
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import SparseModel
from bayesieve.data.examples import Examples
from bayesieve.graph.costs import interleaved
from bayesieve.nets import lenet5_caffe
from bayesieve.sieve.schedule import GradualUnits
from bayesieve.sieve.unit_rules import GroupScore
from studies.harness import Row, Run, make_row, seeded, splits, study_parser
from studies.sbnn_mnist import engine

_BATCHES = (1, 64)
ERROR, SPEEDUP, SHRINKAGE = 0.010, 4.0, 20.0  # the targets


@dataclass(frozen=True)
class Setting:
    """Numbers with which the network is trained and narrowed."""

    # channels of conv1 and conv2 and units of fc1 that stay
    units: tuple[int, int, int] = (8, 16, 50)
    epochs: int = 80  # passes over the data
    prune_epochs: tuple[int, int] = (8, 40)  # first and last epoch of pruning
    kl: float = 0.1  # KL weight until pruning ends
    kl_after: float = 0.1  # KL weight afterwards
    score: GroupScore = None  # which units go first; None is the evidence

    @property
    def name(self) -> str:
        """Units of the row."""
        return "-".join(str(n) for n in self.units)


def run_setting(
    setting: Setting, train: Examples, score_on: Examples, seeds: int, device: str
) -> tuple[Row, SparseModel]:
    """Train all seeds as one population; returns the row and the first seed's network."""
    started = time.perf_counter()
    model = seeded(1, lenet5_caffe, (1, 28, 28), 10)
    units = dict(zip(("conv1", "conv2", "fc1"), setting.units, strict=True))
    first, last = (epoch / setting.epochs for epoch in setting.prune_epochs)
    run = fit(
        Problem(model, Categorical(), train).to(device),
        [engine()] * seeds,
        epochs=setting.epochs,
        seed=1,
        schedule=Schedule(
            lr="cosine", kl=setting.kl, kl_after=setting.kl_after, kl_warmup_epochs=5
        ),
        pruning=GradualUnits(units, start=first, end=last, score=setting.score),
    )
    models = [SparseModel(posterior, posterior.mean != 0) for posterior in run.posteriors]
    each = [{"error": evaluate(model, score_on)["error"]} for model in models]
    row = make_row(setting.name, asdict(setting), each, seeds=seeds, engine=repr(run.engine),
                   seconds=time.perf_counter() - started)  # fmt: skip
    return row, models[0].to("cpu")


def delivery(sparse: SparseModel, x: Tensor, rounds: int = 31) -> tuple[dict[str, float], Any]:
    """Numbers of the compacted network, and details: units, classes, and its ONNX files if any.

    Args:
        sparse: the narrowed network, on the CPU.
        x: inputs, (n, ...).
        rounds: timings of each file at each batch size.
    """
    dense = lenet5_caffe((1, 28, 28), 10).eval()
    small = compact(sparse, x)
    report: Any = small.compaction
    metrics: dict[str, float] = {}
    for prefix, net in (("dense_", dense), ("", small)):
        metrics[f"{prefix}parameters"] = sum(p.numel() for p in net.parameters())
        metrics[f"{prefix}macs"] = count_macs(net, x[:1])[0]
    detail: dict[str, Any] = {
        "units": {change.name: change.units[1] for change in report.layers},
        "same_classes": bool((small(x).argmax(1) == sparse.to_module()(x).argmax(1)).all()),
    }
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        metrics |= _onnx(dense, small, x, rounds)
    return metrics, detail


def _onnx(dense: nn.Module, small: nn.Module, x: Tensor, rounds: int) -> dict[str, float]:
    """Bytes of both ONNX files and milliseconds of both at each batch size."""
    from bayesieve.deliver.onnx import OnnxSession

    torch.set_num_threads(1)
    numbers: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sessions = {
            name: OnnxSession(net, Path(folder) / f"{name}.onnx", x[:64])
            for name, net in (("dense", dense), ("small", small))
        }
        for name, session in sessions.items():
            numbers[f"{name}_bytes"] = session.path.stat().st_size
        numbers["shrinkage"] = numbers["dense_bytes"] / numbers["small_bytes"]
        for batch in _BATCHES:
            array = x[:batch].clone().numpy()
            cases = {name: partial(session.run, array) for name, session in sessions.items()}
            times = interleaved(cases, rounds=rounds, clock="cpu")
            for name, taken in times.items():
                numbers[f"{name}_ms-{batch}"] = statistics.median(taken)
            numbers[f"speedup-{batch}"] = ratio(times, "dense", "small")
    return numbers


def parser() -> argparse.ArgumentParser:
    """The command line of the study."""
    parser = study_parser(__doc__, "--held-out", quick="one seed, 6 epochs, 12,000 images",
                          full="80 epochs, all images", required=True, seeds=4)  # fmt: skip
    parser.add_argument("--units", default="8,16,50", help="of conv1, conv2 and fc1")
    parser.add_argument("--kl", type=float, default=Setting.kl)
    parser.add_argument("--epochs", type=int, default=Setting.epochs)
    parser.add_argument("--score", choices=("evidence", "inclusion", "magnitude"))
    return parser


def setting_of(options: argparse.Namespace) -> Setting:
    """The setting of a command line."""
    a, b, c = (int(part) for part in options.units.split(","))
    begin, end = round(options.epochs / 10), options.epochs // 2
    setting = Setting((a, b, c), options.epochs, (begin, end), options.kl, options.kl,
                      options.score)  # fmt: skip
    return replace(setting, epochs=6, prune_epochs=(1, 4)) if options.quick else setting


def main(arguments: list[str] | None = None) -> int:
    """Run the study from the command line."""
    options = parser().parse_args(arguments)
    few, seeds = (12_000, 1) if options.quick else (None, options.seeds)
    data = splits(load_data("mnist"), held_out=options.held_out, few=few)
    setting = setting_of(options)
    run = Run("structured_lenet5", arguments, options, data=data.name)
    if run.wants(setting.name, asdict(setting)):
        row, sparse = run_setting(setting, data.train, data.test, seeds, options.device)
        metrics, detail = delivery(sparse, data.test.x[:1000].cpu())
        row["metrics"] |= metrics
        row["detail"] |= detail
        run.add(row)
    return run.finish(("error", "parameters", "macs", "shrinkage", "speedup-1", "speedup-64"))


if __name__ == "__main__":
    raise SystemExit(main())
