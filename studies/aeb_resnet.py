"""ResNet-20 on CIFAR-10 pruned to 50 % and 90 % zeros by annealed SG-MCMC ([Deng], table 3).

    python -m studies.aeb_resnet --quick                      # minutes on one CPU core
    python -m studies.aeb_resnet --full --out results/aeb_resnet.json
    python -m studies.aeb_resnet --full --dense-epochs 60 --epochs 30 --held-out
    python -m studies.aeb_resnet --full --seed 1 --keep draws --out seed1.json
    python -m studies.aeb_resnet --full --pool draws --out results/aeb_resnet.json

Protocol: images standardised per channel, shifted by up to 4 pixels and mirrored at random; batches
of 500; step size lr / N. One dense SGHMC chain is the baseline and the start of all others. Those
prune by magnitude, layer by layer, all 3x3 convolutions but the first, along S (1 - D^(k/U)); zeros
are counted over all parameters. "single" is the last draw, "average" the averaged probabilities of
draws kept after the mask is final: evenly spaced, or one at the end of each cosine cycle of the
step size (`--cycles`). `--held-out` scores 5,000 training images, for choosing settings.
`--distill` gives the draws of the dense chain a share of the labels of a sparse run, which is not
the paper's: such rows end in "/kd". `--keep` stores the draws of every row, and `--pool` makes one
row of the chains of several seeds: their scores one by one, and "pooled" those of all their draws.

Methods: "a-sghmc" (normal prior, annealed), "a-sghmc-em" and "a-sghmc-sa" (Gaussian-Laplace prior
learned), "sghmc-sa" (the last without annealing).

Departure: the paper takes 50,000 steps of a hundredth of our length. The prior's weight is lowered
so that its total pull, the sum over steps of step size times weight, is the paper's.
"""

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from bayesieve import SGHMC, Problem, Roles, Schedule, load_data, priors
from bayesieve.contrib.distill import soften
from bayesieve.core.execution import Precision
from bayesieve.core.posterior import Samples
from bayesieve.core.storage import load_posterior, read_header, save
from bayesieve.data.examples import DataSet
from bayesieve.engines.sampling import Adapt, Averaging
from bayesieve.fast.backend import CompileMode
from bayesieve.nets import resnet20
from bayesieve.sieve.ranking import Scope
from bayesieve.sieve.schedule import AnnealedPruning
from bayesieve.training.fit import Fit
from bayesieve.training.launch import fit
from studies import images
from studies.figures import lines
from studies.harness import Run, chosen, numbers, only_draws, prior_pairs, splits, whole_numbers
from studies.record import Row, make_row, over_seeds

# The paper's accuracies in % by zeros in %: the best on test images after the target sparsity.
PAPER = {
    "dense": {0: 93.90},
    "a-sghmc": {30: 94.07, 50: 94.16, 70: 93.16, 90: 90.59},
    "a-sghmc-em": {30: 94.18, 50: 94.19, 70: 93.41, 90: 91.26},
    "sghmc-sa": {30: 94.13, 50: 94.11, 70: 93.52, 90: 91.45},
    "a-sghmc-sa": {30: 94.23, 50: 94.27, 70: 93.74, 90: 91.68},
}
POOLED = {"dense/0": 93.0, "a-sghmc-sa/50": 93.5, "a-sghmc-sa/90": 91.7}  # our aims
BEHIND = (
    "Ours are averages of one chain at the end of 440 to 680 passes, theirs the best test accuracy "
    "of some thousand. Three chains pooled have 94.10 % dense, 94.16 % at 50 % zeros and 92.53 % "
    "at 90 %. Rows but A-SGHMC-SA at 50 and 90 % have no weight decay, which the lowered weight of "
    "the prior takes with it: their draws are alike and overconfident."
)
Masks = Literal["chain", "cycle", "draw"]
METHODS: dict[str, Adapt] = {"a-sghmc": "none", "a-sghmc-em": "em", "a-sghmc-sa": "sa",
                             "sghmc-sa": "sa"}  # fmt: skip
PRIORS = {30: (0.5, 1e-3), 50: (0.1, 5e-4), 70: (0.1, 5e-5), 90: (0.005, 1e-5)}  # v₀, v₁
_DECAY = 5e-4  # weight decay per example of weights outside the sparse layers
_DENSE_TEMPERATURE, _TEMPERATURE = 1 / 20_000, 1e-3
_LAST_TEMPERATURE = 1.005**-1000
_PAPER_PULL = 1e-4 * (35_000 + 0.1 * 10_000 + 0.01 * 5_000)  # Σ lr over the paper's sparse phase
_MASK_END, _HOLD, _BURN_IN = 0.6, 0.3, 0.8  # fractions of a sparse run
_CYCLES_MASK_END = 1.8  # cycles of a sparse run after which its mask is final
_TEACHER_TEMPERATURE = 2.0  # the dense chain is sure of most training images
# The paper's sparse layers: every 3x3 convolution but the first.
ROLES = Roles(
    prune=("stage*.conv1.weight", "stage*.conv2.weight"),
    keep=("conv1.weight", "*.shortcut.conv.weight", "out.weight"),
)


@dataclass(frozen=True)
class Setting:
    """One run; `lr` is per example, as of a mean loss."""

    method: str  # "dense" or one of METHODS
    zeros: int  # percent of all parameters
    lr: float  # learning rate
    epochs: int  # passes over the data
    batch_size: int = 500  # images per step
    spike_scale: float = 0.1  # v₀
    slab_var: float = 5e-4  # v₁
    omega: float = 1.0  # factor of the stochastic approximation's weight (k + 1000)^-0.75
    n_kept: int = 20  # draws averaged
    precision: Precision = "float32"  # of the network in training
    compile: CompileMode = "off"  # whether elementwise kernels are compiled
    pull: float = 1.0  # factor on the weight of the prior of sparse runs
    cycles: int = 0  # cosine cycles of the step, a draw at the end of each; 0 for one decay
    scope: Scope = "layer"  # "layer" prunes every layer alike, as the paper does
    decay: float = 0.0  # weight decay per example in a sparse run, beside the lowered prior
    distill: float = 0.0  # share of the dense chain's draws in the labels of a sparse run
    # whose zeros a draw has: those of its chain, of its cycle, or of the dense draw it began at
    masks: Masks = "chain"

    @property
    def name(self) -> str:
        """Method and zeros of a row.

        Example:
            >>> Setting("a-sghmc-sa", 90, 0.1, 70).name
            'a-sghmc-sa/90'
        """
        masks = "" if self.masks == "chain" else f"/mask of each {self.masks}"
        return f"{self.method}/{self.zeros}" + ("/kd" if self.distill else "") + masks


def pull(setting: Setting, n_steps: int) -> float:
    """Weight of the prior with which its total pull over a sparse run is the paper's, or more.

    Example:
        >>> round(pull(Setting("a-sghmc-sa", 90, 0.02, 100), 10_000), 4)
        0.0277
    """
    hold = 0.0 if setting.cycles else _HOLD
    mean_factor = hold + (1 - hold) / 2  # of a constant, then cosine, learning rate
    return min(1.0, setting.pull * _PAPER_PULL / (setting.lr * mean_factor * n_steps))


def engine(setting: Setting, n_data: int, n_steps: int, n_runs: int = 1) -> SGHMC:
    """The sampler of one run, or of each of several that share the prior's pull.

    The weight of the prior multiplies all of it, so `decay` is divided by that weight first.
    """
    weight = 1.0 if setting.method == "dense" else pull(setting, n_steps * n_runs)
    decay = setting.decay / weight
    std = ((_DECAY + decay) * n_data) ** -0.5
    step_size = setting.lr / n_data
    if setting.method == "dense":
        chain = images.chain_of(n_steps, setting.n_kept, 0.9, cycles=setting.cycles)
        return SGHMC(priors.Normal(std), step_size, _DENSE_TEMPERATURE, chain=chain)
    adapt = METHODS[setting.method]
    last = 1.0 if setting.method == "sghmc-sa" else _LAST_TEMPERATURE
    first = min(1, setting.cycles - 1)  # the mask settles in the first of several cycles
    chain = images.chain_of(n_steps, setting.n_kept, _BURN_IN, cycles=setting.cycles,
                            first_cycle=first, last_temperature=last)  # fmt: skip
    if adapt == "none":
        return SGHMC(priors.Normal(std), step_size, _TEMPERATURE, chain=chain)
    prior = priors.GaussianLaplace(
        spike_scale=setting.spike_scale, slab_std=math.sqrt(setting.slab_var), slab_share=1.0,
        penalty=_DECAY, other_std=std, decay=decay * n_data,
    )  # fmt: skip
    # The authors advise to leave σ and δ of deep networks alone.
    averaging = Averaging(setting.omega, 1000.0, 0.75, scale=False, slab_prob=False)
    return SGHMC(prior, step_size, _TEMPERATURE, adapt, averaging, chain)


def posed(data: DataSet, precision: Precision, seed: int) -> Problem:
    """The network and the training images."""
    return images.image_problem(partial(resnet20, n_outputs=10), data, seed, roles=ROLES,
                                precision=precision, augment=images.moved(data))  # fmt: skip


def single_draws(posterior: Samples) -> list[Samples]:
    """Every draw alone, with the normalisation statistics that belong to it."""
    singles = []
    for one in posterior.split(1):
        buffers = {**posterior.buffers, **{name: v[0] for name, v in one.draw_buffers.items()}}
        singles.append(replace(one, buffers=buffers, draw_buffers={}))
    return singles


def sieved(
    setting: Setting, problem: Problem, starts: Sequence[Samples], seed: int, n_runs: int = 1
) -> Fit:
    """Train a setting from the newest of `starts`, as one of `n_runs` that share a prior's pull."""
    n_steps = setting.epochs * math.ceil(problem.n_data / setting.batch_size)
    schedule, pruning = Schedule(lr="cosine", warmup=0.05, compile=setting.compile), None
    if setting.method != "dense":
        weight = pull(setting, n_steps * n_runs)
        schedule = replace(schedule, hold=_HOLD, warmup=0.02, kl=weight)
        end = _CYCLES_MASK_END / setting.cycles if setting.cycles > 1 else _MASK_END
        pruning = AnnealedPruning(setting.zeros / 100, end=end, scope=setting.scope)
    if setting.cycles:
        schedule = replace(schedule, lr="constant", hold=None, warmup=0.01)
    return fit(
        problem, engine(setting, problem.n_data, n_steps, n_runs), epochs=setting.epochs,
        batch_size=setting.batch_size, seed=seed, schedule=schedule, pruning=pruning,
        start_from=starts[-1] if starts else None,
    )  # fmt: skip


def sieved_apart(
    setting: Setting, problem: Problem, starts: Sequence[Samples], seed: int
) -> list[Fit]:
    """Draws with a mask of their own: a run of one cycle for each, all together as long as one.

    "draw" prunes every draw of the dense chain alone. "cycle" goes on from the draw before, whose
    zeros may come back. Draws of one mask are much alike; these explain the data by other weights.
    """
    n_runs = len(starts) if setting.masks == "draw" else setting.cycles
    part = replace(setting, epochs=setting.epochs // n_runs, cycles=1)
    runs: list[Fit] = []
    for i in range(n_runs):
        before = starts[: i + 1] if setting.masks == "draw" else [*starts, *map(draws_of, runs)]
        runs.append(sieved(part, problem, before, n_runs * seed + i, n_runs))
    return runs


def draws_of(run: Fit) -> Samples:
    """The kept draws of a run, 0 where they are pruned."""
    posterior = run.sparse().posterior
    assert isinstance(posterior, Samples)
    return posterior


def joined(parts: Sequence[Samples]) -> Samples:
    """The draws of several chains as those of one."""
    names = parts[0].draw_buffers
    return replace(
        parts[0], draws=torch.cat([one.draws for one in parts]), logit_inclusion=None,
        draw_buffers={name: torch.cat([one.draw_buffers[name] for one in parts]) for name in names},
    )  # fmt: skip


def run_setting(
    setting: Setting, data: DataSet, start: Samples | None, seed: int, device: str
) -> tuple[Row, Samples]:
    """Train and score one setting, a sparse one from the draws of `start`; row and draws."""
    began = time.perf_counter()
    problem = posed(data, setting.precision, seed).to(device)
    starts = single_draws(start) if start is not None else []
    if setting.distill:
        problem = soften(problem, starts, setting.distill, _TEACHER_TEMPERATURE)
    if setting.masks == "chain":
        runs = [sieved(setting, problem, starts, seed)]
    else:
        runs = sieved_apart(setting, problem, starts, seed)
    posterior = joined([draws_of(run) for run in runs])
    keep = torch.stack([run.sparse().keep for run in runs])
    n_steps = sum(run.history[-1]["step"] for run in runs)
    metrics = {
        "zeros": 1 - float(keep.double().mean()),
        "zeros_of_all": 1 - float(keep.any(0).double().mean()),
        "prior_weight": round(1.0 if setting.method == "dense" else pull(setting, n_steps), 5),
        "draws": len(posterior.draws),
        "steps": n_steps,
        **images.fit_times(*runs),
    }
    scores = images.draw_scores(images.draw_log_probs(posterior, data.test), data.test)
    seconds = round(time.perf_counter() - began, 2)
    row = make_row(setting.name, asdict(setting), [scores], seeds=[seed], seconds=seconds,
                   metrics=metrics)  # fmt: skip
    return row, posterior


def read_draws(
    path: Path, data: DataSet, common: dict[str, Any], device: str
) -> tuple[Row, Samples]:
    """The row and the draws that another run has left."""
    extra = read_header(path)["extra"]
    if extra["common"] != common:
        raise ValueError(
            f"aeb_resnet: {path} was trained and scored on {extra['common']}, this run is on "
            f"{common}. Give another file."
        )
    posterior = load_posterior(path, posed(data, "float32", 0))
    assert isinstance(posterior, Samples)
    return extra["row"], posterior.to(device)


def pool(folder: Path, data: DataSet, common: dict[str, Any], device: str) -> list[Row]:
    """One row for every setting in a folder of `--keep`, over the seeds that are there."""
    chains: dict[str, list[tuple[Row, Samples]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        row, draws = read_draws(path, data, common, device)
        chains.setdefault(row["name"], []).append((row, draws))
    if not chains:
        raise ValueError(f"aeb_resnet: there are no draws in {folder}. Make some with --keep.")
    pooled = []
    for members in chains.values():
        log_probs = torch.cat([images.draw_log_probs(draws, data.test) for _, draws in members])
        scores = images.draw_scores(log_probs, data.test)
        del scores["single"]  # the last draw of one chain
        row = over_seeds([row for row, _ in members], spread=("accuracy", "single"))
        row["metrics"] |= {f"pooled_{key}": value for key, value in scores.items()}
        row["metrics"]["pooled_draws"] = len(log_probs)
        pooled.append(row)
    return pooled


def settings(options: argparse.Namespace) -> tuple[Setting, list[Setting]]:
    """The dense run, and the sparse runs asked for."""
    dense = Setting("dense", 0, options.dense_lr, options.dense_epochs, options.batch_size,
                    n_kept=options.draws, precision=options.precision,
                    compile=options.compile, cycles=options.dense_cycles)  # fmt: skip
    sparse: list[Setting] = []
    chosen("aeb_resnet", "zeros", ",".join(map(str, options.zeros)), [str(z) for z in PRIORS])
    for zeros, method, lr, omega, prior, factor, scope, decay, share, masks in product(
        options.zeros, chosen("aeb_resnet", "method", options.methods, METHODS), options.lr,
        options.omega, options.prior, options.pull, options.scope.split(","), options.decay,
        options.distill, options.masks,
    ):  # fmt: skip
        spike_scale, slab_var = prior or PRIORS[zeros]
        setting = Setting(
            method, zeros, lr, options.epochs, options.batch_size, spike_scale, slab_var, omega,
            options.draws, options.precision, options.compile, factor,
            options.cycles, scope, decay, share, masks,
        )  # fmt: skip
        if METHODS[method] == "none":  # it has no such prior
            setting = replace(setting, spike_scale=0.0, slab_var=0.0, omega=0.0)
        sparse.append(setting)
    return dense, list(dict.fromkeys(sparse))


def main(arguments: list[str] | None = None) -> int:
    """Train the dense network, then every sparse setting from it, writing the record after each."""
    parser = images.pruning_parser(
        __doc__, quick="500 images, one epoch, 90 %% zeros", figures="aeb_resnet.png", lr=0.1,
        epochs=70, dense_lr=0.2, dense_epochs=100, batch_size=500,
    )  # fmt: skip
    parser.add_argument("--methods", default="a-sghmc,a-sghmc-em,a-sghmc-sa")
    parser.add_argument("--zeros", type=whole_numbers, default=(50, 90),
                     help=f"of {', '.join(map(str, PRIORS))}")  # fmt: skip
    parser.add_argument("--dense", type=Path,
                     help="file of the dense network: read if it exists, else written")  # fmt: skip
    parser.add_argument("--omega", type=numbers, default=(1.0,), help="comma list")
    parser.add_argument("--prior", type=prior_pairs, default=(None,), help="comma list of v0:v1")
    parser.add_argument("--pull", type=numbers, default=(1.0,),
                     help="factors on the prior's weight; comma list")  # fmt: skip
    parser.add_argument("--cycles", type=int, default=0, help="of the step size of a sparse run")
    parser.add_argument("--dense-cycles", type=int, default=0)
    parser.add_argument("--scope", default="layer", help="comma list of layer, global")
    parser.add_argument("--decay", type=numbers, default=(0.0,),
                     help="weight decay per example of sparse runs; comma list")  # fmt: skip
    parser.add_argument("--distill", type=numbers, default=(0.0,),
                     help="share of the dense chain in the labels; comma list")  # fmt: skip
    parser.add_argument("--masks", default="chain",
                     help=f"whose zeros a draw has, of {', '.join(get_args(Masks))}")  # fmt: skip
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="folder that receives the draws of every row")
    parser.add_argument("--pool", type=Path,
                     help="train nothing: pool the chains that --keep left here")  # fmt: skip
    options = parser.parse_args(arguments)
    if only_draws(options, "aeb_resnet", draw):
        return 0
    options.masks = chosen("aeb_resnet", "masks", options.masks, get_args(Masks))
    few, few_test = (None, None) if options.full else (500, 200)
    if not options.full:
        options.epochs, options.dense_epochs, options.batch_size = 1, 1, 50
        options.zeros, options.draws = (90,), 3
    dense, sparse = settings(options)
    data = splits(load_data("cifar10"), held_out=options.held_out, few=few, few_test=few_test)
    run = Run("aeb_resnet", arguments, options, data=data.name,
              settings={"n_train": len(data.train), "quick": not options.full})  # fmt: skip
    common = {name: run.record[name] for name in ("data", "scored_on")} | run.record["settings"]

    if options.pool is not None:
        for row in pool(options.pool, data, common, options.device):
            run.add(row, ("accuracy", "single", "pooled_accuracy"))
        return run.finish(("zeros", "single", "accuracy", "pooled_accuracy", "nll", "ece"), draw)

    def measure(setting: Setting, start: Samples | None) -> tuple[Row, Samples]:
        is_stored = start is None and options.dense is not None
        if is_stored and options.dense.exists():
            return read_draws(options.dense, data, common, options.device)
        row, draws = run_setting(setting, data, start, options.seed, options.device)
        extra = {"row": row, "common": common}
        if is_stored:
            save(draws, options.dense, extra=extra)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            stem = f"{setting.name.replace('/', '-')}-{options.seed}"
            save(draws, options.keep / f"{stem}.safetensors", extra=extra)
        return row, draws

    images.prune_dense(run, dense, sparse, measure, ("single", "accuracy", "zeros"))
    return run.finish(("zeros", "single", "accuracy", "nll", "ece"), draw)


_TEST_IMAGES = 10_000


def draw(rows: Sequence[Row], folder: Path) -> Path:
    """Error of each method against the fraction of zeros, the dense network as a line.

    Bands are a standard error: over seeds where there are several, else of the 10,000 images.
    """
    series: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for row in sorted(rows, key=lambda row: float(row["metrics"]["zeros"])):
        error = 1 - row["metrics"]["accuracy"] / 100
        each = [one["accuracy"] / 100 for one in row["each"]]
        spread = (error * (1 - error) / _TEST_IMAGES) ** 0.5
        if len(each) > 1:
            spread = statistics.stdev(each) / len(each) ** 0.5
        columns = series.setdefault(row["setting"]["method"], ([], [], []))
        for column, value in zip(columns, (row["metrics"]["zeros"], error, spread), strict=True):
            column.append(value)
    title = "ResNet-20, CIFAR-10, ± a standard error"
    _, dense, _ = series.pop("dense", ([], [], []))
    return lines(series, folder / "aeb_resnet.png", title=title, xlabel="zeros",
                 ylabel="test error of the average", level=dense[0] if dense else None,
                 level_name="dense", from_zero=True, percent_x=True, percent_y=True)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
