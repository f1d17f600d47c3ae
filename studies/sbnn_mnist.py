"""Sparse networks on MNIST with sBNN: error at a fixed fraction of zeros ([Saha], tables 5 and 7).

    python -m studies.sbnn_mnist --settings l300-98.5 --seeds 4 --out results/x.json
    python -m studies.sbnn_mnist --quick            # minutes on two CPU cores

Protocol: no augmentation, pixels / 126, batch 128. Sparsity is strict: zeros over all parameters,
biases included. `--held-out` trains on 55,000 images and scores the other 5,000; without it all
60,000 are used and the test images are read once per setting. Settings with "kd" train on labels
softened half and half by dense sBNNs of the same network and data (self-distillation); that is not
part of the paper and is always labelled.

Paper ([Saha], tables 5 and 7): LeNet-300-100 1.94 % at 95.0 % zeros, LeNet-5-Caffe 1.06 % at
99.2 %, 784-1200-1200-10 1.61 % at 98 %. Sparse VD ([Molchanov]): 1.92 % at 98.5 % and 0.75 % at
99.64 %.
"""

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from bayesieve import SBNN, Problem, Schedule, likelihoods, load_data, priors
from bayesieve.contrib.distill import soften
from bayesieve.data.examples import Examples
from bayesieve.nets import lenet5_caffe, lenet_300_100, mlp
from bayesieve.sieve.ranking import ScoreName
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.launch import fit
from studies.harness import Row, Run, chosen, make_row, splits, study_parser
from studies.images import mean_and_draws


@dataclass(frozen=True)
class Setting:
    """One row: a network, a sparsity and how it is trained."""

    net: str  # "l300", "l5" or "m1200"
    zeros: float  # target fraction of zeros over all parameters
    epochs: int  # passes over the data
    prune_epochs: tuple[int, int]  # first and last epoch of pruning
    kl: float = 0.3  # KL weight until pruning ends
    kl_after: float = 1.0  # KL weight afterwards
    score: ScoreName = "snr"  # which weights go first
    soft: bool = False  # whether pruned weights may return until pruning ends
    teachers: int = 0  # dense networks whose predictions soften the labels; 0 for none
    teacher_epochs: int = 60  # their training length
    target: float | None = None  # error (a fraction) this row is meant to reach, if any


_L300 = Setting("l300", 0.985, 160, (20, 90))
_L5 = Setting("l5", 0.995, 70, (10, 42), kl_after=0.3, teacher_epochs=20)
_M1200 = Setting("m1200", 0.98, 80, (10, 50), kl=0.1, kl_after=0.3)
SETTINGS = {
    "l300-98.5": replace(_L300, target=0.0170),
    "l300-95": replace(_L300, zeros=0.95, target=0.0165),
    "l300-98.5-magnitude": replace(_L300, score="magnitude"),
    "l300-98.5-kd": replace(_L300, teachers=4, target=0.0160),
    "l300-98.5-magnitude-kd": replace(_L300, score="magnitude", teachers=4),
    "l5-99.5": replace(_L5, target=0.0088),
    "l5-99.5-soft": replace(_L5, soft=True),
    "l5-99.5-soft-kd": replace(_L5, soft=True, teachers=2, target=0.0078),
    "l5-99.5-kd": replace(_L5, teachers=2),
    "m1200-98": replace(_M1200, target=0.0140),
    "m1200-98-magnitude": replace(_M1200, score="magnitude"),
    "m1200-98-kd": replace(_M1200, teachers=4, teacher_epochs=40),
    "m1200-98-magnitude-kd": replace(_M1200, score="magnitude", teachers=4, teacher_epochs=40),
    "m1200-98-long": replace(_M1200, epochs=120, prune_epochs=(15, 75)),
}


def build(net: str, shape: tuple[int, ...] = (1, 28, 28)) -> nn.Module:
    """LeNet-300-100 ("l300"), LeNet-5-Caffe ("l5") or two layers ("m1200") for ten classes."""
    if net == "l300":
        return lenet_300_100(shape, 10)
    if net == "l5":
        return lenet5_caffe(shape, 10)
    return mlp(shape, 10, widths=(int(net.removeprefix("m")),) * 2)


def engine() -> SBNN:
    """Prior and optimiser common to all rows."""
    prior = priors.SpikeSlab(slab_std=math.exp(-1), spike_std=math.exp(-3), slab_prob=0.5)
    return SBNN(prior=prior, lr=1e-3, init_std=math.exp(-4), start="he", local=True)


def run_setting(
    name: str, setting: Setting, train: Examples, score_on: Examples, seeds: int, device: str
) -> Row:
    """Train all seeds of a setting as one population and score each of them."""
    problem = Problem(build(setting.net), likelihoods.Categorical(), train).to(device)
    started = time.perf_counter()
    if setting.teachers:
        dense = fit(
            problem, [engine()] * setting.teachers, epochs=setting.teacher_epochs, seed=1001,
            schedule=Schedule(lr="cosine", kl=0.1, kl_warmup_epochs=10),
        )  # fmt: skip
        problem = soften(problem, dense.posteriors)
    schedule = Schedule(lr="cosine", kl=setting.kl, kl_after=setting.kl_after, kl_warmup_epochs=10)
    first, last = (epoch / setting.epochs for epoch in setting.prune_epochs)
    pruning = GradualPruning(
        setting.zeros, start=first, end=last, score=setting.score, soft=setting.soft
    )
    run = fit(
        problem, [engine()] * seeds, epochs=setting.epochs, seed=1, schedule=schedule,
        pruning=pruning,
    )  # fmt: skip
    names = ("error", "nll", "ece", "zeros", "weights")
    each = [mean_and_draws(run.sparse(member), score_on, names, names[:3])
            for member in range(run.n_models)]  # fmt: skip
    return make_row(
        name, asdict(setting), each, seeds=seeds, seconds=time.perf_counter() - started,
        metrics={"fit_seconds": run.seconds}, spread=["error"], engine=repr(run.engine),
    )  # fmt: skip


def timing(train: Examples, device: str, epochs: int, population: int) -> dict[str, Any]:
    """Seconds of one LeNet-300-100 run and of a population of them, compiling included."""
    numbers: dict[str, Any] = {"epochs": epochs, "population": population}
    setting = replace(SETTINGS["l300-98.5"], epochs=epochs)
    for label, k in (("first", 1), ("one", 1), ("many", population)):
        row = run_setting(label, setting, train, train.subset(torch.arange(1000)), k, device)
        numbers[f"{label}_seconds"] = row["metrics"]["fit_seconds"]
    numbers["ratio"] = numbers["many_seconds"] / numbers["one_seconds"]
    return numbers


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen settings and write one record."""
    parser = study_parser(__doc__, "--held-out", quick="one seed, 6 epochs, 12,000 images",
                          seeds=4)  # fmt: skip
    parser.add_argument("--settings", default="l300-98.5", help=f"comma list of {list(SETTINGS)}")
    parser.add_argument("--timing", type=int, metavar="K", help="time one run against K together")
    options = parser.parse_args(arguments)
    names = chosen("sbnn_mnist", "setting", options.settings, SETTINGS)
    few = 12_000 if options.quick else None
    data = splits(load_data("mnist"), held_out=options.held_out, few=few)
    seeds = 1 if options.quick else options.seeds
    run = Run("sbnn_mnist", arguments, options, data=data.name)
    if options.timing:
        run.notes["timing"] = timing(data.train, options.device, 160, options.timing)
        print(json.dumps(run.notes["timing"]))
    for name in names:
        setting = SETTINGS[name]
        if options.quick:
            setting = replace(setting, epochs=6, prune_epochs=(1, 4), teacher_epochs=2)
        if run.wants(name, asdict(setting)):
            run.add(run_setting(name, setting, data.train, data.test, seeds, options.device),
                    ("error", "mc_error", "zeros"))  # fmt: skip
    return run.finish()


if __name__ == "__main__":
    raise SystemExit(main())
