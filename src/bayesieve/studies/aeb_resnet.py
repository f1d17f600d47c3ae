"""ResNet-20 on CIFAR-10 pruned to 50 % and 90 % zeros by annealed SG-MCMC ([Deng], table 3).

    python -m bayesieve.studies.aeb_resnet --quick                      # minutes on one CPU core
    python -m bayesieve.studies.aeb_resnet --full --out results/aeb_resnet.json
    python -m bayesieve.studies.aeb_resnet --full --dense-epochs 60 --epochs 30 --held-out

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
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch

from bayesieve.assess.metrics import classification_report
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.checks import check_choice
from bayesieve.core.gaussian_laplace import GaussianLaplace
from bayesieve.core.layout import Roles
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Samples
from bayesieve.core.precision import Precision
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.augment import Augment
from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.pixels import PixelScale
from bayesieve.engines.chain import Adapt, Averaging, Chain
from bayesieve.engines.sghmc import SGHMC
from bayesieve.nets import resnet20
from bayesieve.sieve.schedule import AnnealedPruning
from bayesieve.studies.aeb_arguments import (
    numbers,
    prior_pairs,
    scored_on,
    splits,
    study_parser,
)
from bayesieve.studies.aeb_journal import Journal, Row
from bayesieve.studies.aeb_resnet_table import PAPER, draw_table, shown
from bayesieve.training.compiling import CompileMode
from bayesieve.training.fit import Fit, fit
from bayesieve.training.schedule import Schedule

METHODS: dict[str, Adapt] = {"a-sghmc": "none", "a-sghmc-em": "em", "a-sghmc-sa": "sa",
                             "sghmc-sa": "sa"}  # fmt: skip
PRIORS = {30: (0.5, 1e-3), 50: (0.1, 5e-4), 70: (0.1, 5e-5), 90: (0.005, 1e-5)}  # v₀, v₁
_DECAY = 5e-4  # weight decay per example of weights outside the sparse layers
_DENSE_TEMPERATURE, _TEMPERATURE = 1 / 20_000, 1e-3
_LAST_TEMPERATURE = 1.005**-1000
_PAPER_PULL = 1e-4 * (35_000 + 0.1 * 10_000 + 0.01 * 5_000)  # Σ lr over the paper's sparse phase
_MASK_END, _BURN_IN, _HOLD = 0.6, 0.8, 0.3  # fractions of a sparse run


@dataclass(frozen=True)
class Setting:
    """One run; `lr` is per example, as of a mean loss.

    Args:
        method: "dense" or one of METHODS.
        zeros: percent of all parameters.
        lr: learning rate.
        epochs: passes over the data.
        batch_size: images per step.
        spike_scale: v₀.
        slab_var: v₁.
        omega: factor of the stochastic approximation's weight (k + 1000)^-0.75.
        n_kept: draws averaged.
        precision: of the network in training.
        compile: whether elementwise kernels are compiled.
    """

    method: str
    zeros: int
    lr: float
    epochs: int
    batch_size: int = 500
    spike_scale: float = 0.1
    slab_var: float = 5e-4
    omega: float = 1.0
    n_kept: int = 20
    precision: Precision = "float32"
    compile: CompileMode = "off"


def roles() -> Roles:
    """The paper's sparse layers: every 3x3 convolution but the first."""
    return Roles(
        prune=("stage*.conv1.weight", "stage*.conv2.weight"),
        keep=("conv1.weight", "*.shortcut.conv.weight", "out.weight"),
    )


def pull(setting: Setting, n_steps: int) -> float:
    """Weight of the prior with which its total pull over a sparse run is the paper's.

    Example:
        >>> round(pull(Setting("a-sghmc-sa", 90, 0.02, 100), 10_000), 4)
        0.0277
    """
    mean_factor = _HOLD + (1 - _HOLD) / 2  # of a constant, then cosine, learning rate
    return min(1.0, _PAPER_PULL / (setting.lr * mean_factor * n_steps))


def engine(setting: Setting, n_data: int, n_steps: int) -> SGHMC:
    """The sampler of one run."""
    std = (_DECAY * n_data) ** -0.5
    step_size = setting.lr / n_data
    if setting.method == "dense":
        chain = Chain.over(n_steps, n_kept=setting.n_kept, burn_in=0.9)
        return SGHMC(Normal(std), step_size, _DENSE_TEMPERATURE, chain=chain)
    adapt = METHODS[setting.method]
    last = 1.0 if setting.method == "sghmc-sa" else _LAST_TEMPERATURE
    chain = Chain.over(n_steps, n_kept=setting.n_kept, burn_in=_BURN_IN, last_temperature=last)
    if adapt == "none":
        return SGHMC(Normal(std), step_size, _TEMPERATURE, chain=chain)
    prior = GaussianLaplace(
        spike_scale=setting.spike_scale, slab_std=math.sqrt(setting.slab_var), slab_share=1.0,
        penalty=_DECAY, other_std=std,
    )  # fmt: skip
    # The authors advise to leave σ and δ of deep networks alone.
    averaging = Averaging(setting.omega, 1000.0, 0.75, scale=False, slab_prob=False)
    return SGHMC(prior, step_size, _TEMPERATURE, adapt, averaging, chain)


def train(
    setting: Setting, data: DataSet, start: Samples | None, seed: int, device: str
) -> tuple[Fit, float]:
    """Run one chain; also the weight of its prior."""
    train_on = data.train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = resnet20(tuple(train_on.x.shape[1:]), 10)
    problem = Problem(
        model, Categorical(), train_on, roles=roles(), precision=setting.precision
    )  # fmt: skip
    n_steps = setting.epochs * math.ceil(len(train_on) / setting.batch_size)
    augment = Augment(shift=4, flip=True, fill=PixelScale.of(data.preprocessing).black)
    dense, weight = setting.method == "dense", 1.0
    schedule, pruning = Schedule(lr="cosine", warmup=0.05), None
    if not dense:
        weight = pull(setting, n_steps)
        schedule = Schedule(lr="cosine", hold=_HOLD, warmup=0.02, kl=weight)
        pruning = AnnealedPruning(setting.zeros / 100, end=_MASK_END)
    run = fit(
        problem, engine(setting, len(train_on), n_steps), epochs=setting.epochs,
        batch_size=setting.batch_size, seed=seed, schedule=schedule, pruning=pruning,
        start_from=start, augment=augment, device=device, compile=setting.compile,
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


def settings(given: argparse.Namespace) -> list[Setting]:
    """The sparse runs asked for."""
    found: list[Setting] = []
    for zeros, method, lr, omega, prior in product(
        given.zeros, given.methods.split(","), given.lr, given.omega, given.prior
    ):
        check_choice("aeb_resnet", "method", method, METHODS)
        check_choice("aeb_resnet", "zeros", str(zeros), [str(known) for known in PRIORS])
        spike_scale, slab_var = prior or PRIORS[zeros]
        setting = Setting(
            method, zeros, lr, given.epochs, given.batch_size, spike_scale, slab_var, omega,
            given.draws, given.precision, given.compile,
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
    own.add_argument("--dense-epochs", type=int, default=200)
    own.add_argument("--epochs", type=int, default=100, help="of a sparse run")
    own.add_argument("--batch-size", type=int, default=500)
    own.add_argument("--dense-lr", type=float, default=0.2)
    own.add_argument("--lr", type=numbers, default=(0.02,), help="of sparse runs; comma list")
    own.add_argument("--omega", type=numbers, default=(1.0,), help="comma list")
    own.add_argument("--prior", type=prior_pairs, default=(None,), help="comma list of v0:v1")
    own.add_argument("--draws", type=int, default=20)
    own.add_argument("--seed", type=int, default=0)
    return own


def main(arguments: list[str] | None = None) -> int:
    """Train the dense network, then every sparse setting from it, writing the record after each."""
    given = parser().parse_args(arguments)
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
    for setting in [dense, *todo]:
        label = f"{setting.method} {setting.zeros} % lr {setting.lr:g} omega {setting.omega:g}"
        kind = "dense" if start is None else "sparse"
        if not journal.has_time(label, kind):
            continue
        row, last = run_setting(setting, data, start, given.seed, given.device)
        start = last if start is None else start
        journal.add(row, kind, row["seconds"])
        print(f"{label}: single {row['single']:.2f} average {row['average']:.2f} % zeros "
              f"{100 * row['zeros']:.2f} % in {row['seconds']:.0f} s", flush=True)  # fmt: skip
    if given.figures is not None:
        draw_table(journal.rows, given.figures / "aeb_resnet.png")
    print(shown(journal.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
