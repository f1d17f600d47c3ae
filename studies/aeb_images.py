"""MNIST and FashionMNIST with adaptive SG-MCMC ([Deng], table 2; figure 2 with `--attack`).

    python -m studies.aeb_images --quick                        # minutes on one CPU core
    python -m studies.aeb_images --full --attack --out results/aeb_images.json
    python -m studies.aeb_images --full --paper --methods sghmc-sa
    python -m studies.aeb_images --full --held-out --methods sghmc-sa --lr 0.03,0.1

Protocol: pixels centred and scaled on the training images, step size lr / N. A chain keeps draws
over its second half, evenly spaced or one at the end of each cycle of its step size; "average" is
the accuracy of their averaged probabilities, "single" that of the last draw alone, "pooled" the
average over all chains of a method, which is also what is attacked. Without augmentation the
network is 2-Conv-2-FC, with it 2-Conv-BN-3-FC; "fc1" carries the Gaussian-Laplace prior, other
weights a normal one. Settings are ours, chosen on held-out images, or the paper's with `--paper`;
options replace single ones. `--held-out` scores 5,000 training images, for choosing settings;
without it the test images are read once per run. lr, temperature and prior may be comma lists: all
combinations are run. A budget that is too short for all chains of a setting leaves out the last.

Methods: "vanilla" and "dropout" (Adam), "sgd", "sghmc" and "sgld" with normal priors, and their
"-em" and "-sa" variants. Where our setting has dropout the chains have it, "vanilla" and "sgd" not.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch

from bayesieve.assess.metrics import classification_report
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.checks import check_choice
from bayesieve.core.layout import Roles
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Samples
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.augment import Augment
from bayesieve.data.examples import DataSet
from bayesieve.data.preprocessing import PixelScale, centred
from bayesieve.engines.map import MAP
from bayesieve.training.fit import fit
from bayesieve.training.schedule import Schedule
from studies.aeb_adversarial import attack, draw_attacks
from studies.aeb_arguments import (
    numbers,
    prior_pairs,
    scored_on,
    splits,
    study_parser,
)
from studies.aeb_image_tasks import METHODS, TASKS, Setting, Task, engine, network
from studies.aeb_journal import Journal, Row, read_rows, table

_SINGLE = ("epochs", "batch_size", "weight_decay", "decay", "cycles", "dropout", "chains", "n_kept",
           "precision", "compile")  # fmt: skip
_DEFAULT_METHODS = "sgd,dropout,sghmc,sghmc-em,sghmc-sa"


@dataclass(frozen=True, eq=False)
class Trained:
    """One chain: its draws and what they predict."""

    posterior: Samples
    prediction: ClassPrediction
    seconds: float


def train(
    setting: Setting, data: DataSet, augment: Augment | None, seed: int, device: str
) -> Trained:
    """Run one chain and predict with every draw it kept."""
    train_on, score_on = data.train, data.test
    shape = tuple(train_on.x.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(setting, shape, augmented=augment is not None)
    roles = Roles(prune=("fc1.weight",), keep=("conv*.weight", "fc*.weight", "out.weight"))
    problem = Problem(
        model, Categorical(), train_on, roles=roles, precision=setting.precision, augment=augment
    )
    n_steps = setting.epochs * math.ceil(len(train_on) / setting.batch_size)
    own = engine(setting, len(train_on), n_steps)
    # Point estimates end at a minimum; chains keep moving while they are averaged.
    schedule = (
        Schedule(lr="cosine", warmup=0.02, compile=setting.compile)
        if isinstance(own, MAP)
        else Schedule(lr=setting.decay, hold=0.5, warmup=0.02, compile=setting.compile)
    )
    run = fit(
        problem.to(device), own, epochs=setting.epochs, batch_size=setting.batch_size, seed=seed,
        schedule=schedule,
    )  # fmt: skip
    posterior = run.posterior
    assert isinstance(posterior, Samples)
    prediction = predict(posterior, score_on.x, n_samples=len(posterior.draws))
    assert isinstance(prediction, ClassPrediction)
    return Trained(posterior, prediction, run.seconds)


def run_setting(
    name: str, setting: Setting, data: DataSet, augment: Augment | None, journal: Journal,
    device: str,
) -> tuple[Row, Samples]:  # fmt: skip
    """All chains of one setting that the budget allows: its row, and their draws together."""
    began = time.perf_counter()
    chains = [train(setting, data, augment, 0, device)]
    while len(chains) < setting.chains and journal.fits(1.2 * chains[-1].seconds):
        chains.append(train(setting, data, augment, len(chains), device))
    setting = replace(setting, chains=len(chains))
    task = TASKS[name]
    labels = data.test.y.to(chains[0].prediction.log_probs.device)

    def accuracy(prediction: ClassPrediction) -> float:
        return round(100 * (prediction.label == labels).double().mean().item(), 3)

    everything = torch.cat([chain.prediction.sample_log_probs for chain in chains])
    report = classification_report(everything, labels).to_dict()
    last = [ClassPrediction(chain.prediction.sample_log_probs[-1:]) for chain in chains]
    row: Row = {
        "task": name,
        "setting": asdict(setting),
        "augment": None if augment is None else asdict(augment),
        "average": [accuracy(chain.prediction) for chain in chains],
        "single": [accuracy(own) for own in last],
        "pooled": accuracy(ClassPrediction(everything)),
        "pooled_nll": report["nll"],
        "pooled_ece": report["ece"],
        "draws": len(everything),
        "paper": dict(task.paper).get(setting.method),
        "target": task.target if setting.method == "sghmc-sa" else None,
        "fit_seconds": [round(chain.seconds, 2) for chain in chains],
        "seconds": round(time.perf_counter() - began, 2),
    }
    return row, together([chain.posterior for chain in chains])


def together(chains: Sequence[Samples]) -> Samples:
    """The draws of several chains as one posterior; what is not a draw's own is the first's."""
    own = {name: torch.cat([chain.draw_buffers[name] for chain in chains])
           for name in chains[0].draw_buffers}  # fmt: skip
    return replace(chains[0], draws=torch.cat([chain.draws for chain in chains]), draw_buffers=own)


def prepared(
    given: argparse.Namespace, task: Task, n_train: int | None
) -> tuple[DataSet, Augment | None]:
    """Centred images in their two splits, and how batches are changed: what is new is black."""
    data = splits(centred(load_data(task.data)), given.held_out, n_train)
    augment = task.their_augment if given.paper else task.our_augment
    if augment is None:
        return data, None
    black = PixelScale.of(data.preprocessing).black
    return data, replace(augment, fill=black, **_asked(given, "shift", "erase"))


def _asked(given: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were not left out."""
    values = {name: getattr(given, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def settings(given: argparse.Namespace, task: Task) -> list[Setting]:
    """Every combination asked for; the comma lists concern chains only."""
    found: list[Setting] = []
    base = task.theirs if given.paper else task.ours
    base = replace(base, **_asked(given, *_SINGLE))
    for method, lr, temperature, prior in product(
        given.methods.split(","), given.lr or (base.lr,), given.temperature or (base.temperature,),
        given.prior or ((base.spike_scale, base.slab_var),),
    ):  # fmt: skip
        check_choice("aeb_images", "method", method, METHODS)
        if method == "dropout" and task.their_augment is not None:
            continue  # that network has its own dropout: it is "vanilla"
        setting = replace(base, method=method, lr=lr, temperature=temperature,
                          spike_scale=prior[0], slab_var=prior[1])  # fmt: skip
        if method in ("vanilla", "dropout", "sgd"):
            setting = replace(setting, temperature=0.0, chains=1, cycles=0, dropout=0.0)
        if setting not in found:
            found.append(setting)
    return found


def shown(rows: Sequence[Row]) -> str:
    """The table beside the paper's numbers."""
    lines = [["task", "method", "lr", "T", "single %", "average %", "pooled %", "paper %", "s"]]
    for row in rows:
        own = row["setting"]
        mean = [sum(row[name]) / len(row[name]) for name in ("single", "average")]
        lines.append(
            [
                row["task"], own["method"], f"{own['lr']:g}", f"{own['temperature']:g}",
                *(f"{value:.2f}" for value in mean), f"{row['pooled']:.2f}",
                "" if row["paper"] is None else f"{row['paper']:.2f}", f"{row['seconds']:.0f}",
            ]
        )  # fmt: skip
    return table(lines)


def parser() -> argparse.ArgumentParser:
    """The command line of the study."""
    own = study_parser(
        (__doc__ or "").split("\n")[0], quick="2,000 images, 2 epochs", precision=None
    )
    own.add_argument("--tasks", default="mnist", help=f"of {', '.join(TASKS)}, or 'all'")
    own.add_argument("--methods", default=_DEFAULT_METHODS, help=f"of {', '.join(METHODS)}")
    own.add_argument("--paper", action="store_true",
                     help="the paper's settings instead of ours where none are given")  # fmt: skip
    own.add_argument("--epochs", type=int)
    own.add_argument("--batch-size", type=int)
    own.add_argument("--lr", type=numbers, help="comma list")
    own.add_argument("--temperature", type=numbers, help="comma list")
    own.add_argument("--prior", type=prior_pairs, help="comma list of v0:v1")
    own.add_argument("--weight-decay", type=float, help="per example")
    own.add_argument("--decay", choices=("constant", "cosine", "linear"),
                     help="of the step size of chains, over the second half")  # fmt: skip
    own.add_argument("--cycles", type=int,
                     help="cosine cycles of the step size, a draw at the end of each")  # fmt: skip
    own.add_argument("--dropout", type=float, help="before fc1, without augmentation")
    own.add_argument("--shift", type=int, help="pixels, of augmented tasks")
    own.add_argument("--erase", type=float, help="probability, of augmented tasks")
    own.add_argument("--chains", type=int, help="chains of a sampler, one after another")
    own.add_argument("--draws", type=int, dest="n_kept", help="kept of each chain without cycles")
    own.add_argument("--attack", action="store_true", help="fast gradient sign curves (figure 2)")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen tasks and methods, writing the record after each."""
    given = parser().parse_args(arguments)
    if given.draw is not None:
        draw_attacks(read_rows(given.draw), given.figures)
        return 0
    names = list(TASKS) if given.tasks == "all" else given.tasks.split(",")
    n_train = None
    if not given.full:
        n_train, given.epochs, given.batch_size = 2000, given.epochs or 2, 100
        given.n_kept, given.chains = 3, given.chains or 1
    for name in names:
        check_choice("aeb_images", "task", name, TASKS)
    common = {"scored_on": scored_on(given.held_out), "n_train": n_train or "all"}
    journal = Journal("aeb_images", given.out, arguments, given.device, given.budget, common)
    for name in names:
        task = TASKS[name]
        data, augment = prepared(given, task, n_train)
        for setting in settings(given, task):
            label = f"{name} {setting.method} lr {setting.lr:g} T {setting.temperature:g}"
            kind = f"{name} {setting.chains}"
            if not journal.has_time(label, kind):
                continue
            row, posterior = run_setting(name, setting, data, augment, journal, given.device)
            if given.attack:
                scale = PixelScale.of(data.preprocessing)
                row["fgsm"] = attack(posterior, data.test, scale)
            journal.add(row, kind, row["seconds"])
            print(f"{label}: average {row['average']} pooled {row['pooled']:.2f} % "
                  f"in {row['seconds']:.0f} s", flush=True)  # fmt: skip
    if given.figures is not None:
        draw_attacks(journal.rows, given.figures)
    print(shown(journal.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
