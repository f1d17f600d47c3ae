"""A VGG-like network on CIFAR-10 pruned while an sBNN learns it ([Saha], table 9).

    python -m studies.sbnn_vgg --quick                        # a minute on one CPU core
    python -m studies.sbnn_vgg --full --out results/sbnn_vgg.json
    python -m studies.sbnn_vgg --full --held-out --zeros 98.5 --kl 0.01,0.03,0.1
    python -m studies.sbnn_vgg --draw results/sbnn_vgg.json --figures docs/images

Protocol: 13 convolutions and 2 linear layers, BatchNorm after all but the last, no dropout, about
15 million parameters. Images are standardised per channel, shifted by up to 4 pixels and mirrored
at random. A dense network is trained first; every sparse run starts from it, as in the paper, under
the paper's prior (log slab std 0, log spike std -5, probability 1/2), and loses the weights with
the least signal to noise. Zeros are counted over all parameters. `--held-out` scores 5,000 training
images, for choosing settings.

Departures: the KL term has a weight below 1. A weight in the slab costs about 4 nats; the 220,000
that are left at 98.5 % would outweigh the likelihood of 50,000 images several times over. Pruning
is gradual, the paper's is one cut. "renewed" is the error after BatchNorm has seen the training
images once more without noise; the error without it comes first.

The JPEG copy of CIFAR-10 is lossy: compare with the dense network trained on the same copy.
"""

import argparse
import json
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.precision import Precision
from bayesieve.core.priors import SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.augment import Augment
from bayesieve.data.examples import DataSet
from bayesieve.data.preprocessing import PixelScale
from bayesieve.engines import Engine
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.nets import vgg
from bayesieve.sieve.prune import reestimate_batchnorm
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.compiling import CompileMode
from bayesieve.training.fit import Fit, fit
from bayesieve.training.schedule import Schedule
from studies.aeb_arguments import numbers, splits, study_parser
from studies.aeb_journal import Journal, Row, table
from studies.records import scored_on
from studies.sbnn_published import VGG

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_QUICK = 8  # the quick network has an eighth of the maps
_QUICK_IMAGES, _QUICK_EPOCHS = 3000, 8
_PRUNE = (0.1, 0.6)  # of a sparse run
_RENEW = 10_000  # training images that renew BatchNorm
_LOCAL_COST = 2.5  # an epoch with noise on activations, in epochs of the dense network


@dataclass(frozen=True)
class Setting:
    """One run.

    Args:
        zeros: percent of all parameters; 0 is the dense network.
        epochs: passes over the data.
        lr: of SGD with momentum for the dense network, of Adam for a sparse one.
        kl: weight of the KL term.
        local: noise on activations instead of weights.
        batch_size: images per step.
        precision: of the network in training.
        compile: whether elementwise kernels are compiled.
        stages: maps of each convolution, stage by stage.
    """

    zeros: float
    epochs: int
    lr: float
    kl: float = 0.0
    local: bool = True
    batch_size: int = 250
    precision: Precision = "float32"
    compile: CompileMode = "off"
    stages: tuple[tuple[int, ...], ...] = STAGES


def vgg_like(
    input_shape: tuple[int, ...], n_outputs: int, stages: Sequence[Sequence[int]] = STAGES
) -> nn.Sequential:
    """Convolutions of `nets.vgg`, then two linear layers with BatchNorm between them.

    Example:
        >>> sum(p.numel() for p in vgg_like((3, 32, 32), 10).parameters())
        14987722
    """
    width = stages[-1][-1]
    body = vgg(input_shape, width, stages)
    layers = OrderedDict(body.named_children())
    layers["fc1"] = layers.pop("out")
    layers["norm_fc1"] = nn.BatchNorm1d(width)
    layers["act_fc1"] = nn.ReLU()
    layers["out"] = nn.Linear(width, n_outputs)
    return nn.Sequential(layers)


def engine(setting: Setting) -> Engine[Any]:
    """SGD for the dense network, else the variational engine under the paper's prior."""
    if setting.zeros == 0:
        return MAP(optimizer="sgd", lr=setting.lr, weight_decay=5e-4, momentum=0.9)
    prior = SpikeSlab(slab_std=1.0, spike_std=math.exp(-5), slab_prob=0.5)
    return SBNN(prior, lr=setting.lr, init_std=math.exp(-6), local=setting.local)


def train(setting: Setting, data: DataSet, start: Posterior | None, seed: int, device: str) -> Fit:
    """Run one setting, from the dense network if there is one."""
    examples = data.train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = vgg_like(tuple(examples.x.shape[1:]), 10, setting.stages)
    augment = Augment(shift=4, flip=True, fill=PixelScale.of(data.preprocessing).black)
    problem = Problem(
        model, Categorical(), examples, precision=setting.precision, augment=augment
    ).to(device)
    schedule, pruning = Schedule(lr="cosine", warmup=0.1, compile=setting.compile), None
    if setting.zeros:
        schedule = Schedule(
            lr="cosine", warmup=0.02, kl=setting.kl, kl_warmup_epochs=1, compile=setting.compile
        )
        pruning = GradualPruning(setting.zeros / 100, start=_PRUNE[0], end=_PRUNE[1])
    return fit(
        problem, engine(setting), epochs=setting.epochs, batch_size=setting.batch_size, seed=seed,
        schedule=schedule, pruning=pruning, start_from=start,
    )  # fmt: skip


def run_setting(
    setting: Setting, data: DataSet, start: Posterior | None, seed: int, device: str
) -> tuple[Row, Posterior]:
    """Train and score one setting; its row and what was learned."""
    began = time.perf_counter()
    run = train(setting, data, start, seed, device)
    sparse = run.sparse()
    row: Row = {
        "setting": asdict(setting),
        "seed": seed,
        "engine": repr(run.engine),
        **_scores(sparse, data),
        "paper": VGG.get(setting.zeros),
        "parameters": sparse.layout.size,
        "log_lik": run.history[-1]["log_lik"],
        "fit_seconds": round(run.seconds, 2),
        "epoch_seconds": min(line["seconds"] for line in run.history),
        "seconds": round(time.perf_counter() - began, 2),
    }
    return row, sparse.posterior


def _scores(sparse: SparseModel, data: DataSet) -> dict[str, Any]:
    at_mean = evaluate(sparse, data.test).to_dict()
    renewed = reestimate_batchnorm(sparse, data.train.x[:: -(-len(data.train) // _RENEW)])
    again = evaluate(renewed, data.test).to_dict()
    return {
        "error": round(100 * at_mean["error"], 3),
        "nll": at_mean["nll"],
        "ece": at_mean["ece"],
        "renewed_error": round(100 * again["error"], 3),
        "renewed_nll": again["nll"],
        "zeros": at_mean["zeros"],
        "weights": at_mean["weights"],
    }


def shown(rows: Sequence[Row]) -> str:
    """The table beside the paper's numbers."""
    lines = [["zeros %", "weights", "kl", "lr", "error %", "renewed %", "NLL", "paper %", "s"]]
    for row in rows:
        own = row["setting"]
        lines.append(
            [
                f"{100 * row['zeros']:.2f}", f"{row['weights']:,}", f"{own['kl']:g}",
                f"{own['lr']:g}", f"{row['error']:.2f}", f"{row['renewed_error']:.2f}",
                f"{row['nll']:.3f}", "" if row["paper"] is None else f"{row['paper']:g}",
                f"{row['seconds']:.0f}",
            ]
        )  # fmt: skip
    return table(lines)


def parser() -> argparse.ArgumentParser:
    """The command line of the study."""
    own = study_parser(
        (__doc__ or "").split("\n")[0], quick="narrow network, 3,000 images, 98.5 %% zeros",
        precision="bf16",
    )  # fmt: skip
    own.add_argument("--zeros", type=numbers, default=(98.5, 95.0, 90.0, 99.0), help="comma list")
    own.add_argument("--kl", type=numbers, default=(0.01,), help="comma list")
    own.add_argument("--lr", type=numbers, default=(1e-3,), help="of sparse runs; comma list")
    own.add_argument("--dense-lr", type=float, default=0.1)
    own.add_argument("--dense-epochs", type=int, default=40)
    own.add_argument("--epochs", type=int, default=40, help="of a sparse run")
    own.add_argument(
        "--limit", type=float, help="seconds: sparse runs are made short enough to end by then"
    )
    own.add_argument("--batch-size", type=int, default=250)
    own.add_argument("--noise", choices=("activations", "weights"), default="activations")
    own.add_argument("--seed", type=int, default=0)
    return own


def settings(given: argparse.Namespace) -> tuple[Setting, list[Setting]]:
    """The dense run, and the sparse runs in order: all of the first sparsity first."""
    dense = Setting(0.0, given.dense_epochs, given.dense_lr, batch_size=given.batch_size,
                    precision=given.precision, compile=given.compile)  # fmt: skip
    if not given.full:
        narrow = tuple(tuple(maps // _QUICK for maps in stage) for stage in STAGES)
        dense = replace(dense, epochs=_QUICK_EPOCHS, lr=0.05, batch_size=50, stages=narrow)
        given.zeros, given.epochs = (98.5,), _QUICK_EPOCHS
    sparse = [
        replace(dense, zeros=zeros, epochs=given.epochs, lr=lr, kl=kl,
                local=given.noise == "activations")
        for zeros in given.zeros for kl in given.kl for lr in given.lr
    ]  # fmt: skip
    return dense, sparse


def shortened(setting: Setting, seconds: float, dense_epoch: float) -> Setting:
    """The setting with as many epochs as should fit, at most its own and at least one.

    Args:
        setting: of a sparse run.
        seconds: that it may take.
        dense_epoch: seconds of an epoch of the dense network.

    Example:
        >>> shortened(Setting(98.5, 40, 1e-3), 50.0, 1.0).epochs
        20
    """
    factor = _LOCAL_COST if setting.local else 1.2
    return replace(setting, epochs=max(1, min(setting.epochs, int(seconds / factor / dense_epoch))))


def main(arguments: list[str] | None = None) -> int:
    """Train the dense network, then every sparse setting from it, writing the record after each."""
    given = parser().parse_args(arguments)
    if given.draw is not None:
        files = [json.loads(path.read_text(encoding="utf-8")) for path in given.draw]
        _draw([row for file in files for row in file["rows"]], given.figures)
        return 0
    dense, todo = settings(given)
    few = None if given.full else _QUICK_IMAGES
    data = splits(load_data("cifar10"), given.held_out, few)
    common = {"data": data.name, "scored_on": scored_on(held_out=given.held_out),
              "n_train": len(data.train), "quick": not given.full}  # fmt: skip
    journal = Journal("sbnn_vgg", given.out, arguments, given.device, given.budget, common)
    start: Posterior | None = None
    for setting in [dense, *todo]:
        label = f"{setting.zeros:g} % zeros, kl {setting.kl:g}, lr {setting.lr:g}"
        kind = "dense" if start is None else "sparse"
        if not journal.has_time(label, kind):
            continue
        if given.limit is not None and journal.rows:
            left = given.limit - journal.seconds
            setting = shortened(setting, left, journal.rows[0]["fit_seconds"] / dense.epochs)
        row, learned = run_setting(setting, data, start, given.seed, given.device)
        start = learned if start is None else start
        journal.add(row, kind, row["seconds"])
        print(f"{label}: error {row['error']:.2f} % (renewed {row['renewed_error']:.2f} %) "
              f"in {row['seconds']:.0f} s", flush=True)  # fmt: skip
    if given.figures is not None:
        _draw(journal.rows, given.figures)
    print(shown(journal.rows))
    return 0


def _draw(rows: Sequence[Row], folder: Path | None) -> None:
    # Drawing needs matplotlib; the numbers do not.
    from studies.sbnn_vgg_figure import draw_errors

    if folder is None:
        raise ValueError("sbnn_vgg: give a folder for the picture, --figures FOLDER.")
    draw_errors(rows, folder / "sbnn_vgg.png")


if __name__ == "__main__":
    sys.exit(main())
