"""ResNet-20 on CIFAR-10 pruned to 50 % and 90 % zeros by annealed SG-MCMC ([Deng], table 3).

    python -m studies.aeb_resnet --quick                      # minutes on one CPU core
    python -m studies.aeb_resnet --full --out results/aeb_resnet.json
    python -m studies.aeb_resnet --full --dense-epochs 60 --epochs 30 --held-out

Protocol: images standardised per channel, shifted by up to 4 pixels and mirrored at random; batches
of 500; step size lr / N. One dense SGHMC chain is the baseline and the start of all others. Those
prune by magnitude, layer by layer, all 3x3 convolutions but the first, along S (1 - D^(k/U)); zeros
are counted over all parameters. "single" is the last draw, "average" the averaged probabilities of
draws kept after the mask is final. `--held-out` scores 5,000 training images, for choosing
settings.

Methods: "a-sghmc" (normal prior, annealed), "a-sghmc-em" and "a-sghmc-sa" (Gaussian-Laplace prior
learned), "sghmc-sa" (the last without annealing).

Departure: the paper takes 50,000 steps of a hundredth of our length. The prior's weight is lowered
so that its total pull, the sum over steps of step size times weight, is the paper's.

The JPEG copy of CIFAR-10 is lossy: compare with the dense network trained on the same copy.
"""

import argparse
import math
import sys
import time
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bayesieve.assess.metrics import classification_report
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.checks import check_choice
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Samples
from bayesieve.core.precision import Precision
from bayesieve.core.problem import Problem
from bayesieve.core.storage import load_posterior, read_header, save
from bayesieve.data import load_data
from bayesieve.data.augment import Augment
from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.preprocessing import PixelScale
from bayesieve.nets import resnet20
from bayesieve.sieve.schedule import AnnealedPruning
from bayesieve.training.fit import Fit, fit
from bayesieve.training.schedule import Schedule
from studies.aeb_arguments import (
    numbers,
    prior_pairs,
    scored_on,
    splits,
    study_parser,
)
from studies.aeb_journal import Journal, Row, read_rows
from studies.aeb_resnet_setting import (
    HOLD,
    MASK_END,
    METHODS,
    PRIORS,
    Setting,
    engine,
    pull,
    roles,
)
from studies.aeb_resnet_table import PAPER, draw_table, shown


def posed(data: DataSet, precision: Precision, seed: int) -> Problem:
    """The network and what it learns from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = resnet20(tuple(data.train.x.shape[1:]), 10)
    augment = Augment(shift=4, flip=True, fill=PixelScale.of(data.preprocessing).black)
    return Problem(
        model, Categorical(), data.train, roles=roles(), precision=precision, augment=augment
    )


def train(
    setting: Setting, data: DataSet, start: Samples | None, seed: int, device: str
) -> tuple[Fit, float]:
    """Run one chain; also the weight of its prior."""
    train_on = data.train
    problem = posed(data, setting.precision, seed)
    n_steps = setting.epochs * math.ceil(len(train_on) / setting.batch_size)
    dense, weight = setting.method == "dense", 1.0
    schedule, pruning = Schedule(lr="cosine", warmup=0.05, compile=setting.compile), None
    if not dense:
        weight = pull(setting, n_steps)
        schedule = Schedule(lr="cosine", hold=HOLD, warmup=0.02, kl=weight, compile=setting.compile)
        pruning = AnnealedPruning(setting.zeros / 100, end=MASK_END)
    run = fit(
        problem.to(device), engine(setting, len(train_on), n_steps), epochs=setting.epochs,
        batch_size=setting.batch_size, seed=seed, schedule=schedule, pruning=pruning,
        start_from=start,
    )  # fmt: skip
    return run, weight


def last_draw(posterior: Samples) -> Samples:
    """The newest draw alone, with the normalisation statistics that belong to it."""
    own = posterior.split(1)[-1]
    buffers = {**posterior.buffers, **{name: v[0] for name, v in own.draw_buffers.items()}}
    return replace(own, buffers=buffers, draw_buffers={})


def run_setting(
    setting: Setting, data: DataSet, start: Samples | None, seed: int, device: str
) -> tuple[Row, Samples]:
    """Train and score one setting; its row and the last draw."""
    began = time.perf_counter()
    run, weight = train(setting, data, start, seed, device)
    sparse = run.sparse()
    posterior = sparse.posterior
    assert isinstance(posterior, Samples)
    scores = _scores(posterior, data.test)
    row: Row = {
        "setting": asdict(setting),
        "seed": seed,
        "prior_weight": round(weight, 5),
        **scores,
        "zeros": sparse.zeros,
        "paper": PAPER[setting.method].get(setting.zeros),
        "steps": run.history[-1]["step"],
        "fit_seconds": round(run.seconds, 2),
        "epoch_seconds": min(line["seconds"] for line in run.history),
        "seconds": round(time.perf_counter() - began, 2),
    }
    return row, last_draw(posterior)


def _scores(posterior: Samples, test: Examples) -> dict[str, Any]:
    prediction = predict(posterior, test.x, n_samples=len(posterior.draws))
    assert isinstance(prediction, ClassPrediction)
    labels = test.y.to(prediction.log_probs.device)
    average = classification_report(prediction.sample_log_probs, labels).to_dict()
    single = classification_report(prediction.sample_log_probs[-1:], labels).to_dict()
    return {
        "single": round(100 * single["accuracy"], 3),
        "average": round(100 * average["accuracy"], 3),
        "average_nll": average["nll"],
        "average_ece": average["ece"],
        "draws": len(posterior.draws),
    }


def read_dense(
    path: Path, data: DataSet, common: dict[str, Any], device: str
) -> tuple[Row, Samples]:
    """The row and the last draw of a dense network that another run has left."""
    extra = read_header(path)["extra"]
    if extra["common"] != common:
        raise ValueError(
            f"aeb_resnet: {path} was trained and scored on {extra['common']}, this run is on "
            f"{common}. Give another file to --dense."
        )
    found = load_posterior(path, posed(data, "float32", 0))
    assert isinstance(found, Samples)
    return extra["row"], found.to(device)


def settings(given: argparse.Namespace) -> list[Setting]:
    """The sparse runs asked for."""
    found: list[Setting] = []
    for zeros, method, lr, omega, prior, factor in product(
        given.zeros, given.methods.split(","), given.lr, given.omega, given.prior, given.pull
    ):
        check_choice("aeb_resnet", "method", method, METHODS)
        check_choice("aeb_resnet", "zeros", str(zeros), [str(known) for known in PRIORS])
        spike_scale, slab_var = prior or PRIORS[zeros]
        setting = Setting(
            method, zeros, lr, given.epochs, given.batch_size, spike_scale, slab_var, omega,
            given.draws, given.precision, given.compile, factor,
        )  # fmt: skip
        if METHODS[method] == "none":  # it has no such prior
            setting = replace(setting, spike_scale=0.0, slab_var=0.0, omega=0.0)
        if setting not in found:
            found.append(setting)
    return found


def parser() -> argparse.ArgumentParser:
    """The command line of the study."""
    own = study_parser(
        (__doc__ or "").split("\n")[0], quick="500 images, one epoch, 90 %%", precision="bf16"
    )
    own.add_argument("--methods", default="a-sghmc,a-sghmc-em,a-sghmc-sa")
    own.add_argument("--zeros", type=lambda text: tuple(int(p) for p in text.split(",")),
                     default=(50, 90), help=f"of {', '.join(map(str, PRIORS))}")  # fmt: skip
    own.add_argument("--dense", type=Path,
                     help="file of the dense network: read if it exists, else written")  # fmt: skip
    own.add_argument("--dense-epochs", type=int, default=100)
    own.add_argument("--epochs", type=int, default=70, help="of a sparse run")
    own.add_argument("--batch-size", type=int, default=500)
    own.add_argument("--dense-lr", type=float, default=0.2)
    own.add_argument("--lr", type=numbers, default=(0.1,), help="of sparse runs; comma list")
    own.add_argument("--omega", type=numbers, default=(1.0,), help="comma list")
    own.add_argument("--prior", type=prior_pairs, default=(None,), help="comma list of v0:v1")
    own.add_argument("--pull", type=numbers, default=(1.0,),
                     help="factors on the prior's weight; comma list")  # fmt: skip
    own.add_argument("--draws", type=int, default=20)
    own.add_argument("--seed", type=int, default=0)
    return own


def main(arguments: list[str] | None = None) -> int:
    """Train the dense network, then every sparse setting from it, writing the record after each."""
    given = parser().parse_args(arguments)
    if given.draw is not None:
        draw_table(read_rows(given.draw), given.figures / "aeb_resnet.png")
        return 0
    n_train = None
    if not given.full:
        n_train, given.epochs, given.dense_epochs, given.batch_size = 500, 1, 1, 50
        given.zeros, given.draws = (90,), 3
    todo = settings(given)
    data = splits(load_data("cifar10"), given.held_out, n_train, 200)
    common = {"data": data.name, "scored_on": scored_on(given.held_out),
              "n_train": len(data.train)}  # fmt: skip
    journal = Journal("aeb_resnet", given.out, arguments, given.device, given.budget, common)
    dense = Setting("dense", 0, given.dense_lr, given.dense_epochs, given.batch_size,
                    n_kept=given.draws, precision=given.precision,
                    compile=given.compile)  # fmt: skip
    start: Samples | None = None
    if given.dense is not None and given.dense.exists():
        row, start = read_dense(given.dense, data, common, given.device)
        journal.add(row, "dense", 0.0)
    for setting in todo if start is not None else [dense, *todo]:
        label = (f"{setting.method} {setting.zeros} % lr {setting.lr:g} omega {setting.omega:g} "
                 f"pull {setting.pull:g}")  # fmt: skip
        kind = "dense" if start is None else "sparse"
        if not journal.has_time(label, kind):
            continue
        row, last = run_setting(setting, data, start, given.seed, given.device)
        if start is None:
            start = last
            if given.dense is not None:
                save(last, given.dense, extra={"row": row, "common": common})
        journal.add(row, kind, row["seconds"])
        print(f"{label}: single {row['single']:.2f} average {row['average']:.2f} % zeros "
              f"{100 * row['zeros']:.2f} % in {row['seconds']:.0f} s", flush=True)  # fmt: skip
    if given.figures is not None:
        draw_table(journal.rows, given.figures / "aeb_resnet.png")
    print(shown(journal.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
