"""How fast a sieved network answers: our runtime against dense onnxruntime and torch.

The records are results/inference.json, of a machine with AVX2, and results/inference-avx512.json;
docs/performance.md shows all of their rows.

Networks: with MNIST at hand (BAYESIEVE_DATA), LeNet-300-100 and 784-1200-1200-10 are trained here
by sBNN and pruned on the way, seed 1, so masks and inputs are real. Without it they keep their
initial weights under a mask drawn at random, equally sparse in every layer, with more of it in the
middle of the image and dead units cleaned; inputs are then sparse noise. LeNet-5-Caffe keeps its
initial weights: how long 8-16-50 of its units take does not depend on their values. What they can
learn is the matter of `studies/structured_lenet5.py`. ResNet-20 has the published weights, where
they are at hand, less the smallest ones.

All candidates of a network run in turns, in one process and one thread; `ms` is the median over
rounds of the processor time of a call, `speedup` the median over rounds of the time of dense
onnxruntime by the time of the candidate in the SAME round. Processor time, so that a busy machine
does not inflate it. Successive calls get different images. The kernel skips inputs that are 0,
which most pixels are; one row shows noise without zeros in their place. Candidates take and return
NumPy arrays or torch tensors, whichever they prefer. "int8" is `as_runtime(..., precision="int8")`,
calibrated on 500 training images: it runs in 8-bit weights where that is faster, and its printed
plan says how many weights have them (those of Linear layers).

    OMP_NUM_THREADS=1 python -m benchmarks.inference                # 14 minutes, most to train
    OMP_NUM_THREADS=1 python -m benchmarks.inference --epochs 1     # quick
"""

import argparse
import dataclasses
import importlib.metadata
import itertools
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import prune as torch_prune

from bayesieve.assess.costs import ratio
from bayesieve.assess.predict import as_point
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples, SparseModel
from bayesieve.core.priors import SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.examples import DataSet
from bayesieve.data.files import data_root
from bayesieve.deliver.bundle import save_bundle
from bayesieve.deliver.onnx import OnnxSession
from bayesieve.deliver.runtime import as_runtime
from bayesieve.engines.sbnn import SBNN
from bayesieve.errors import DataError
from bayesieve.graph.costs import interleaved
from bayesieve.nets import lenet5_caffe, lenet_300_100, mlp, resnet20
from bayesieve.sieve.compact import compact
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.sieve.unit_rules import keep_units
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from studies.pretrained_resnet import published

SHAPE, N_CLASSES, BATCHES = (1, 28, 28), 10, (1, 64)
BASELINE, NOISE = "onnxruntime, dense", "our runtime on noise without zeros"
FLOATS, INT8 = "our runtime", "our runtime, int8"
N_CALIBRATION = 500
Case = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One measurement and, where it has one, its target."""

    net: str
    name: str
    batch: int | None
    ms: float | None
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True)
class Setting:
    """A network to sieve.

    Args:
        build: makes it.
        zeros: fraction of all parameters to be 0.
        epochs: of training, where there are data.
        targets: speedup of our runtime over dense onnxruntime, by batch size.
        bundle_bytes: how large the bundle may be.
    """

    build: Callable[[], nn.Module]
    zeros: float
    epochs: int
    targets: Mapping[int, float]
    bundle_bytes: int | None = None


SETTINGS = {
    "LeNet-300-100": Setting(
        lambda: lenet_300_100(SHAPE, N_CLASSES), 0.985, 20, {1: 2.5, 64: 5.0}, 40_000
    ),
    "784-1200-1200-10": Setting(
        lambda: mlp(SHAPE, N_CLASSES, widths=(1200, 1200)), 0.98, 4, {1: 12.0, 64: 40.0}
    ),
    "LeNet-5-Caffe": Setting(lambda: lenet5_caffe(SHAPE, N_CLASSES), 0.995, 4, {1: 3.0}),
}
RESNETS = {0.9: 3.0, 0.95: 5.0}  # speedup of our runtime at batch 1, by zeros
STRUCTURES = (  # the larger one is the limit the target names; it alone is 13.5 times smaller
    {"conv1": 10, "conv2": 20, "fc1": 80},
    {"conv1": 8, "conv2": 16, "fc1": 50},
)
STRUCTURED_SPEEDUP, STRUCTURED_SIZE = 4.0, 20.0
INT8_NET = "784-1200-1200-10"
INT8_SPEEDUP, INT8_POINTS = 1.5, 0.1  # over our runtime in floats; change of the test error


# -------------------------------------------------------------------------------------- networks


def mnist() -> DataSet | None:
    try:
        return load_data("mnist")
    except DataError:
        return None


def built(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return build()


def trained(setting: Setting, data: DataSet, epochs: int) -> SparseModel:
    """Train and prune with one seed; the mask is that of `GradualPruning`."""
    prior = SpikeSlab(slab_std=0.37, spike_std=0.05, slab_prob=0.5)
    engine = SBNN(prior=prior, lr=1e-3, init_std=0.018, start="he")
    run = fit(
        Problem(built(setting.build), Categorical(), data.train),
        engine,
        epochs=epochs,
        seed=1,
        schedule=Schedule(lr="cosine", kl=0.1, kl_warmup_epochs=2, compile="off"),
        pruning=GradualPruning(setting.zeros, start=0.1, end=0.7),
    )
    posterior = run.posterior
    keep = keep_zeros(setting.zeros)(posterior)
    return SparseModel(posterior.masked(keep), keep)


def masked_at_random(setting: Setting) -> SparseModel:
    """Initial weights under a random mask that favours the middle of the image."""
    module = built(setting.build)
    network = Network.of(module, Categorical())
    posterior = Samples(network, network.weights_of(module)[None])
    generator = Generator().manual_seed(1)
    axis = torch.linspace(-2, 2, SHAPE[1]).square()
    centre = (-(axis[:, None] + axis[None, :])).exp().flatten()

    def score(posterior: object) -> Tensor:
        values = torch.rand(network.layout.size, generator=generator)
        if "conv1.weight" not in network.layout.slices:
            first = values[network.layout.slices["fc1.weight"]].view(-1, centre.numel())
            first *= 0.9 + 0.1 * centre
        return values

    return prune(posterior, keep_zeros(setting.zeros, score=score, scope="layer"))


def inputs(data: DataSet | None, n: int = max(BATCHES)) -> Tensor:
    """Some images, or noise of which four in five pixels are 0."""
    if data is not None:
        return data.test.x[:n].contiguous()
    generator = Generator().manual_seed(2)
    x = torch.rand(n, *SHAPE, generator=generator)
    return x * (torch.rand(x.shape, generator=generator) < 0.2)


def with_torch_masks(module: nn.Module) -> nn.Module:
    """The masks of `torch.nn.utils.prune`, left on."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            torch_prune.custom_from_mask(layer, "weight", layer.weight.detach() != 0)
    return module


# ----------------------------------------------------------------------------------------- rows


def sieved_rows(
    name: str, setting: Setting, data: DataSet | None, epochs: int | None, rounds: int
) -> tuple[list[Row], str]:
    """Times of every form of one sieved network, what stayed equal, and the runtime's plan."""
    sparse = masked_at_random(setting)
    if data is not None:
        sparse = trained(setting, data, epochs or setting.epochs)
    x = inputs(data)
    dense, masked, small = built(setting.build).eval(), sparse.to_module(), compact(sparse, x)
    runtime = as_runtime(small, x)
    known = inputs(None, N_CALIBRATION) if data is None else data.train.x[:N_CALIBRATION]
    rounded = as_runtime(small, x, precision="int8", calibration=known)
    rows = [Row(name, "zeros", None, None, sparse.zeros, "fraction", setting.zeros)]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        sessions = {
            label: OnnxSession(module, Path(folder) / f"{label}.onnx", x)
            for label, module in (("dense", dense), ("compact", small))
        }
        forms: dict[str, Callable[[Any], object]] = {
            BASELINE: sessions["dense"].run,
            "torch, dense": dense,
            "torch, masks of torch.nn.utils.prune": with_torch_masks(sparse.to_module()),
            "torch, masked": masked,
            "torch, compact": small,
            "onnxruntime, compact": sessions["compact"].run,
            FLOATS: runtime,
            INT8: rounded,
            NOISE: runtime,
        }
        rows += timed(name, forms, x, rounds, {FLOATS: setting.targets})
        path = save_bundle(small, Path(folder) / "bundle", example=x, sparse=sparse)
        size = sum(file.stat().st_size for file in path.iterdir())
        rows.append(Row(name, "bundle, whole folder", None, None, size, "bytes",
                        setting.bundle_bytes, at_most=True))  # fmt: skip
        if data is not None:
            rows += equal_rows(name, masked, {"compact": small, "runtime": runtime}, data)
            rows.append(int8_row(name, masked, rounded, data))
    return rows, rounded.describe()


def timed(
    net: str,
    forms: Mapping[str, Callable[[Any], object]],
    x: Tensor,
    rounds: int,
    targets: Mapping[str, Mapping[int, float]],
) -> list[Row]:
    rows = []
    noise = torch.randn(x.shape, generator=Generator().manual_seed(3))
    for batch in BATCHES:
        cases: dict[str, Case] = {}
        for name, form in forms.items():
            tensors = (noise if name == NOISE else x).clone().split(batch)
            arrays = [tensor.numpy() for tensor in tensors]
            cases[name] = _case(form, tensors if isinstance(form, nn.Module) else arrays)
        times = interleaved(cases, rounds=rounds, clock="cpu")
        for name, measured in times.items():
            target = targets.get(name, {}).get(batch)
            speedup = ratio(times, BASELINE, name)
            rows.append(Row(net, name, batch, statistics.median(measured), speedup, "x", target))
        if INT8 in times:
            target = INT8_SPEEDUP if net == INT8_NET else None
            label = f"our runtime, int8 against floats, batch {batch}"
            gained = ratio(times, FLOATS, INT8)
            rows.append(Row(net, label, None, None, gained, "x", target))
    return rows


def _case(form: Callable[[Any], object], batches: Sequence[object]) -> Case:
    following = itertools.cycle(batches)  # each call has another image
    return lambda: form(next(following))


def equal_rows(
    net: str, masked: nn.Module, forms: Mapping[str, Callable[[Tensor], Tensor]], data: DataSet
) -> list[Row]:
    """How many test predictions stay as they were, one image at a time and all at once."""
    x = data.test.x
    wanted = masked(x).argmax(1)
    error = float((wanted != data.test.y).double().mean())
    rows = [Row(net, "test error of the masked network", None, None, error, "fraction")]
    for name, form in forms.items():
        together = form(x).argmax(1)
        alone = torch.cat([form(x[i : i + 1]).argmax(1) for i in range(len(x))])
        same = int(((together == wanted) & (alone == wanted)).sum())
        rows.append(Row(net, f"test predictions unchanged by the {name}", None, None, same,
                        "of 10,000", len(x)))  # fmt: skip
    return rows


def int8_row(
    net: str, masked: nn.Module, rounded: Callable[[Tensor], Tensor], data: DataSet
) -> Row:
    """Test error with 8-bit weights less that of the masked network, in points."""
    wrong = [int((form(data.test.x).argmax(1) != data.test.y).sum()) for form in (masked, rounded)]
    change = 100 * (wrong[1] - wrong[0]) / len(data.test.y)
    return Row(net, "change of the test error by int8", None, None, change, "points",
               INT8_POINTS, at_most=True)  # fmt: skip


def structured_rows(
    units: Mapping[str, int], data: DataSet | None, rounds: int, *, judged: bool
) -> list[Row]:
    """LeNet-5-Caffe with some units left, as an ONNX file."""
    name = f"LeNet-5-Caffe {'-'.join(map(str, units.values()))}"
    module = built(lambda: lenet5_caffe(SHAPE, N_CLASSES)).eval()
    network = Network.of(module, Categorical())
    posterior = Samples(network, network.weights_of(module)[None])
    x = inputs(data)
    small = compact(prune(posterior, keep_units(units)), x)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        dense = OnnxSession(module, Path(folder) / "dense.onnx", x)
        compacted = OnnxSession(small, Path(folder) / "small.onnx", x)
        forms: dict[str, Callable[[Any], object]] = {
            BASELINE: dense.run,
            "torch, dense": module,
            "torch, compact": small,
            "onnxruntime, compact": compacted.run,
            "our runtime": as_runtime(small, x),
        }
        target = dict.fromkeys(BATCHES, STRUCTURED_SPEEDUP) if judged else {}
        rows = timed(name, forms, x, rounds, {"onnxruntime, compact": target})
        shrunk = dense.path.stat().st_size / compacted.path.stat().st_size
    return [*rows, Row(name, "ONNX file, dense by compact", None, None, shrunk, "x",
                       STRUCTURED_SIZE if judged else None)]  # fmt: skip


def resnet_rows(zeros: float, rounds: int) -> list[Row]:
    """ResNet-20 without its smallest weights: the published one, or initial weights without it."""
    try:
        net: nn.Module = published(20, data_root()).eval()
    except FileNotFoundError:
        net = built(lambda: resnet20((3, 32, 32), N_CLASSES)).eval()
    sparse = prune(as_point(net, Categorical()), keep_zeros(zeros, score="magnitude"))
    x = torch.randn(max(BATCHES), 3, 32, 32, generator=Generator().manual_seed(2))
    masked = sparse.to_module()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        forms: dict[str, Callable[[Any], object]] = {
            BASELINE: OnnxSession(net, Path(folder) / "dense.onnx", x).run,
            "torch, dense": net,
            "our runtime": as_runtime(masked, x),
        }
        name = f"ResNet-20, {100 * zeros:g} % zeros"
        return timed(name, forms, x, rounds, {"our runtime": {1: RESNETS[zeros]}})


# --------------------------------------------------------------------------------------- report


def machine(data: DataSet | None) -> dict[str, str]:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": importlib.metadata.version("onnxruntime"),
        "cpu": (names or [platform.processor()])[0],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "masks": "random" if data is None else "trained on MNIST",
        "date": time.strftime("%Y-%m-%d"),
    }


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| net | what | batch | ms | value | target | met |",
             "|---|---|---:|---:|---:|---:|---|"]  # fmt: skip
    for row in rows:
        ms = "" if row.ms is None else f"{row.ms:.4f}"
        value = f"{row.value:.2f} x" if row.unit == "x" else f"{row.value:,.6g} {row.unit}"
        target = "" if row.target is None else f"{row.target:g}"
        met = {True: "yes", False: "NO", None: ""}[row.met]
        batch = "" if row.batch is None else str(row.batch)
        lines.append(f"| {row.net} | {row.name} | {batch} | {ms} | {value} | {target} | {met} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--epochs", type=int, help="of training, in place of each net's own")
    known = [*SETTINGS, "ResNet-20"]
    parser.add_argument("--nets", nargs="+", choices=known, default=known)
    parser.add_argument("--out", type=Path, help="JSON file, such as results/inference.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = mnist()
    rows: list[Row] = []
    plans = {}
    for name in options.nets:
        if name == "ResNet-20":
            rows += [row for zeros in RESNETS for row in resnet_rows(zeros, options.rounds)]
            continue
        setting = SETTINGS[name]
        measured, plans[name] = sieved_rows(name, setting, data, options.epochs, options.rounds)
        rows += measured
    for units in STRUCTURES if "LeNet-5-Caffe" in options.nets else ():
        judged = units is STRUCTURES[-1]
        rows += structured_rows(units, data, options.rounds, judged=judged)
    about = machine(data)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(table(rows))
    for name, plan in plans.items():
        print(f"\n{name}\n{plan}")
    if options.out is not None:
        listed = [dataclasses.asdict(row) | {"met": row.met} for row in rows]
        result = {"machine": about, "rows": listed, "plans": plans}
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
