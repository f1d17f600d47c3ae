"""A VGG-like network on CIFAR-10 pruned while an sBNN learns it ([Saha], table 9).

    python -m studies.sbnn_vgg --quick                        # a minute on one CPU core
    python -m studies.sbnn_vgg --full --out results/sbnn_vgg.json
    python -m studies.sbnn_vgg --full --held-out --zeros 98.5 --kl 0.01,0.03,0.1
    python -m studies.sbnn_vgg --join seed0.json seed1.json --out results/sbnn_vgg.json
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
"""

import argparse
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from bayesieve import MAP, SBNN, Schedule, evaluate, load_data, priors
from bayesieve.core.execution import Precision
from bayesieve.core.posterior import Posterior
from bayesieve.data.examples import DataSet
from bayesieve.engines import Engine
from bayesieve.fast.backend import CompileMode
from bayesieve.nets import vgg
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.launch import fit
from studies import images
from studies.figures import lines
from studies.harness import Row, Run, joined, make_row, numbers, only_draws, splits
from studies.record import over_seeds

PUBLISHED = {0.0: 7.6, 98.5: 8.7}  # the paper's test errors in % by zeros in %
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_QUICK = 8  # the quick network has an eighth of the maps
_QUICK_IMAGES, _QUICK_EPOCHS = 3000, 8
_PRUNE = (0.1, 0.6)  # of a sparse run
_LOCAL_COST = 2.5  # an epoch with noise on activations, in epochs of the dense network


@dataclass(frozen=True)
class Setting:
    """One run."""

    zeros: float  # percent of all parameters; 0 is the dense network
    epochs: int  # passes over the data
    lr: float  # of SGD with momentum for the dense network, of Adam for a sparse one
    kl: float = 0.0  # weight of the KL term
    local: bool = True  # noise on activations instead of weights
    batch_size: int = 250  # images per step
    precision: Precision = "float32"  # of the network in training
    compile: CompileMode = "off"  # whether elementwise kernels are compiled
    stages: tuple[tuple[int, ...], ...] = STAGES  # maps of each convolution, stage by stage

    @property
    def name(self) -> str:
        """The zeros of a row, in percent.

        Example:
            >>> Setting(98.5, 40, 1e-3).name
            '98.5'
        """
        return f"{self.zeros:g}"


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
    prior = priors.SpikeSlab(slab_std=1.0, spike_std=math.exp(-5), slab_prob=0.5)
    return SBNN(prior, lr=setting.lr, init_std=math.exp(-6), local=setting.local)


def run_setting(
    setting: Setting, data: DataSet, start: Posterior | None, seed: int, device: str
) -> tuple[Row, Posterior]:
    """Train and score one setting; its row and the posterior."""
    began = time.perf_counter()
    build = partial(vgg_like, n_outputs=10, stages=setting.stages)
    problem = images.image_problem(build, data, seed, precision=setting.precision,
                                   augment=images.moved(data))  # fmt: skip
    schedule, pruning = Schedule(lr="cosine", warmup=0.1, compile=setting.compile), None
    if setting.zeros:
        schedule = Schedule(
            lr="cosine", warmup=0.02, kl=setting.kl, kl_warmup_epochs=1, compile=setting.compile
        )
        pruning = GradualPruning(setting.zeros / 100, start=_PRUNE[0], end=_PRUNE[1])
    run = fit(
        problem.to(device), engine(setting), epochs=setting.epochs, batch_size=setting.batch_size,
        seed=seed, schedule=schedule, pruning=pruning, start_from=start,
    )  # fmt: skip
    sparse = run.sparse()
    at_mean = evaluate(sparse, data.test).to_dict()
    again = evaluate(images.renewed(sparse, data.train), data.test).to_dict()
    scores = {
        "error": round(100 * at_mean["error"], 3), "nll": at_mean["nll"], "ece": at_mean["ece"],
        "renewed_error": round(100 * again["error"], 3), "renewed_nll": again["nll"],
        "zeros": at_mean["zeros"], "weights": at_mean["weights"],
    }  # fmt: skip
    metrics = {
        "parameters": sparse.layout.size,
        "log_lik": run.history[-1]["log_lik"],
        **images.fit_times(run),
    }
    seconds = round(time.perf_counter() - began, 2)
    row = make_row(setting.name, asdict(setting), [scores], seeds=[seed], seconds=seconds,
                   metrics=metrics, engine=repr(run.engine))  # fmt: skip
    return row, sparse.posterior


def settings(options: argparse.Namespace) -> tuple[Setting, list[Setting]]:
    """The dense run, and the sparse runs in order: all of the first sparsity first."""
    dense = Setting(0.0, options.dense_epochs, options.dense_lr, batch_size=options.batch_size,
                    precision=options.precision, compile=options.compile)  # fmt: skip
    if not options.full:
        narrow = tuple(tuple(maps // _QUICK for maps in stage) for stage in STAGES)
        dense = replace(dense, epochs=_QUICK_EPOCHS, lr=0.05, batch_size=50, stages=narrow)
        options.zeros, options.epochs = (98.5,), _QUICK_EPOCHS
    sparse = [
        replace(dense, zeros=zeros, epochs=options.epochs, lr=lr, kl=kl,
                local=options.noise == "activations")
        for zeros in options.zeros for kl in options.kl for lr in options.lr
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
    parser = images.pruning_parser(
        __doc__, "--join", quick="narrow network, 3,000 images, 98.5 %% zeros",
        figures="sbnn_vgg.png",
        lr=1e-3, epochs=40, dense_lr=0.1, dense_epochs=40, batch_size=250,
    )  # fmt: skip
    parser.add_argument(
        "--zeros", type=numbers, default=(98.5, 95.0, 90.0, 99.0), help="comma list"
    )
    parser.add_argument("--kl", type=numbers, default=(0.01,), help="comma list")
    parser.add_argument(
        "--limit", type=float, help="seconds: sparse runs are made short enough to end by then"
    )
    parser.add_argument("--noise", choices=("activations", "weights"), default="activations")
    options = parser.parse_args(arguments)
    if only_draws(options, "sbnn_vgg", draw):
        return 0
    if options.join:  # one record for each seed
        joined(options.join, "sbnn_vgg", options.out, ("seed", "out"), pool=over_seeds)
        return 0
    dense, sparse = settings(options)
    few, few_test = (None, None) if options.full else (_QUICK_IMAGES, 500)
    data = splits(load_data("cifar10"), held_out=options.held_out, few=few, few_test=few_test)
    run = Run("sbnn_vgg", arguments, options, data=data.name,
              settings={"n_train": len(data.train), "quick": not options.full})  # fmt: skip

    def measure(setting: Setting, start: Posterior | None) -> tuple[Row, Posterior]:
        if start is not None and options.limit is not None:
            epoch = run.rows[0]["metrics"]["fit_seconds"] / dense.epochs
            setting = shortened(setting, options.limit - run.seconds, epoch)
        return run_setting(setting, data, start, options.seed, options.device)

    images.prune_dense(run, dense, sparse, measure, ("error", "renewed_error", "zeros"))
    return run.finish(("error", "renewed_error", "nll", "zeros", "weights"), draw)


def draw(rows: Sequence[Row], folder: Path) -> Path:
    """Error in % against the weights left in %, ours and the paper's."""
    sparse = sorted((100 - row["setting"]["zeros"], row["metrics"]["error"])
                    for row in rows if row["setting"]["zeros"])  # fmt: skip
    if not sparse:
        raise ValueError("sbnn_vgg: no sparse network among the rows.")
    dense = [row["metrics"]["error"] for row in rows if not row["setting"]["zeros"]]
    shares, errors = zip(*sparse, strict=True)
    series = {"ours": (shares, errors), "the paper's": ((1.5,), (PUBLISHED[98.5],))}
    return lines(series, folder / "sbnn_vgg.png", title="VGG-like network, CIFAR-10",
                 xlabel="parameters left in %", ylabel="test error in %",
                 level=dense[0] if dense else PUBLISHED[0.0])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
