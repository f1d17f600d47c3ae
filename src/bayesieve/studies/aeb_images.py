"""MNIST and FashionMNIST with adaptive SG-MCMC ([Deng], table 2; figure 2 with `--attack`).

    python -m bayesieve.studies.aeb_images --quick                        # minutes on one CPU core
    python -m bayesieve.studies.aeb_images --full --attack --out results/aeb_images.json
    python -m bayesieve.studies.aeb_images --full --held-out --methods sghmc-sa --lr 0.03,0.1

Protocol: pixels centred and scaled on the training images, batches of 1000, step size lr / N. A
chain keeps draws over its second half; "average" is the accuracy of their averaged probabilities,
"single" that of the last draw alone, "pooled" the average over all chains of a method. Without
augmentation the network is 2-Conv-2-FC, with it 2-Conv-BN-3-FC; "fc1" carries the Gaussian-Laplace
prior, other weights a normal one. `--held-out` scores 5,000 training images, for choosing settings;
without it the test images are read once per run. lr, temperature and prior may be comma lists: all
combinations are run.

Methods: "vanilla" and "dropout" (Adam), "sgd", "sghmc" and "sgld" with normal priors, and their
"-em" and "-sa" variants.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import torch

from bayesieve.assess.metrics import classification_report
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.checks import check_choice
from bayesieve.core.layout import Roles
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Samples
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.pixels import PixelScale
from bayesieve.data.preprocessing import centred
from bayesieve.engines.map import MAP
from bayesieve.studies.aeb_adversarial import attack, draw_curves
from bayesieve.studies.aeb_arguments import (
    numbers,
    prior_pairs,
    scored_on,
    splits,
    study_parser,
)
from bayesieve.studies.aeb_image_tasks import METHODS, TASKS, Setting, Task, engine, network
from bayesieve.studies.aeb_journal import Journal, Row, table
from bayesieve.training.fit import fit
from bayesieve.training.schedule import Schedule

_DEFAULT_METHODS = "sgd,dropout,sghmc,sghmc-em,sghmc-sa"


@dataclass(frozen=True, eq=False)
class Trained:
    """One chain: its draws and what they predict."""

    posterior: Samples
    prediction: ClassPrediction
    seconds: float


def train(
    setting: Setting, task: Task, train_on: Examples, score_on: Examples, seed: int, device: str
) -> Trained:
    """Run one chain and predict with every draw it kept."""
    augment = task.augment
    shape = tuple(train_on.x.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(setting, shape, augmented=augment is not None)
    roles = Roles(prune=("fc1.weight",), keep=("conv*.weight", "fc*.weight", "out.weight"))
    problem = Problem(model, Categorical(), train_on, roles=roles, precision=setting.precision)
    n_steps = setting.epochs * math.ceil(len(train_on) / setting.batch_size)
    own = engine(setting, len(train_on), n_steps)
    # Point estimates end at a minimum; chains keep moving while they are averaged.
    schedule = (
        Schedule(lr="cosine", warmup=0.02)
        if isinstance(own, MAP)
        else Schedule(lr=setting.decay, hold=0.5, warmup=0.02)
    )
    run = fit(
        problem, own, epochs=setting.epochs, batch_size=setting.batch_size, seed=seed,
        schedule=schedule, augment=augment, device=device, compile=setting.compile,
    )  # fmt: skip
    posterior = run.posterior
    assert isinstance(posterior, Samples)
    prediction = predict(posterior, score_on.x, n_samples=len(posterior.draws))
    assert isinstance(prediction, ClassPrediction)
    return Trained(posterior, prediction, run.seconds)


def run_setting(
    name: str, setting: Setting, task: Task, train_on: Examples, score_on: Examples, device: str
) -> tuple[Row, Samples]:
    """All chains of one setting: its row, and the posterior of the first chain."""
    began = time.perf_counter()
    chains = [
        train(setting, task, train_on, score_on, seed, device) for seed in range(setting.chains)
    ]
    labels = score_on.y.to(chains[0].prediction.log_probs.device)

    def accuracy(prediction: ClassPrediction) -> float:
        return round(100 * (prediction.label == labels).double().mean().item(), 3)

    everything = torch.cat([chain.prediction.sample_log_probs for chain in chains])
    report = classification_report(everything, labels).to_dict()
    last = [ClassPrediction(chain.prediction.sample_log_probs[-1:]) for chain in chains]
    row: Row = {
        "task": name,
        "setting": asdict(setting),
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
    return row, chains[0].posterior


def prepared(task: Task, held_out: bool, n_train: int | None) -> tuple[DataSet, Task]:
    """Centred images in their two splits, and the task with black as the fill of what is new."""
    data = splits(centred(load_data(task.data)), held_out, n_train)
    if task.augment is not None:
        black = PixelScale.of(data.preprocessing).black
        task = replace(task, augment=replace(task.augment, fill=black))
    return data, task


def settings(given: argparse.Namespace, task: Task) -> list[Setting]:
    """Every combination asked for; the comma lists concern chains only."""
    found: list[Setting] = []
    temperatures = given.temperature or (task.temperature,)
    for method, lr, temperature, prior in product(
        given.methods.split(","), given.lr, temperatures, given.prior
    ):
        check_choice("aeb_images", "method", method, METHODS)
        if method == "dropout" and task.augment is not None:
            continue  # that network has its own dropout: it is "vanilla"
        point = method in ("vanilla", "dropout", "sgd")
        setting = Setting(
            method, lr, temperature, prior[0], prior[1], batch_size=given.batch_size,
            epochs=given.epochs or task.epochs, chains=1 if point else given.chains,
            n_kept=given.draws, precision=given.precision, compile=given.compile,
            weight_decay=given.weight_decay, decay=given.decay,
        )  # fmt: skip
        plain = replace(setting, temperature=0.0) if point else setting
        if plain not in found:
            found.append(plain)
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
        (__doc__ or "").split("\n")[0], quick="2,000 images, 2 epochs", precision="float32"
    )
    own.add_argument("--tasks", default="mnist", help=f"of {', '.join(TASKS)}, or 'all'")
    own.add_argument("--methods", default=_DEFAULT_METHODS, help=f"of {', '.join(METHODS)}")
    own.add_argument("--epochs", type=int, help="instead of the task's own")
    own.add_argument("--batch-size", type=int, default=1000)
    own.add_argument("--lr", type=numbers, default=(0.03,), help="comma list")
    own.add_argument("--temperature", type=numbers, help="comma list; the paper's if left out")
    own.add_argument("--prior", type=prior_pairs, default=((1.0, 0.1),), help="comma list of v0:v1")
    own.add_argument("--weight-decay", type=float, default=5e-4, help="per example")
    own.add_argument("--decay", choices=("constant", "cosine", "linear"), default="constant",
                     help="of the step size of chains, over the second half")  # fmt: skip
    own.add_argument("--chains", type=int, default=1, help="chains of a sampler, one after another")
    own.add_argument("--draws", type=int, default=30, help="kept of each chain")
    own.add_argument("--attack", action="store_true", help="fast gradient sign curves (figure 2)")
    return own


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen tasks and methods, writing the record after each."""
    given = parser().parse_args(arguments)
    names = list(TASKS) if given.tasks == "all" else given.tasks.split(",")
    n_train = None
    if not given.full:
        n_train, given.epochs, given.batch_size = 2000, given.epochs or 2, 100
        given.draws = 3
    for name in names:
        check_choice("aeb_images", "task", name, TASKS)
    common = {"scored_on": scored_on(given.held_out), "n_train": n_train or "all"}
    journal = Journal("aeb_images", given.out, arguments, given.device, given.budget, common)
    for name in names:
        data, task = prepared(TASKS[name], given.held_out, n_train)
        curves: dict[str, list[dict[str, float]]] = {}
        for setting in settings(given, task):
            label = f"{name} {setting.method} lr {setting.lr:g} T {setting.temperature:g}"
            kind = f"{name} {setting.chains}"
            if not journal.has_time(label, kind):
                continue
            row, posterior = run_setting(name, setting, task, data.train, data.test, given.device)
            if given.attack:
                scale = PixelScale.of(data.preprocessing)
                row["fgsm"] = curves[setting.method] = attack(posterior, data.test, scale)
            journal.add(row, kind, row["seconds"])
            print(f"{label}: average {row['average']} pooled {row['pooled']:.2f} % "
                  f"in {row['seconds']:.0f} s", flush=True)  # fmt: skip
        if curves and given.figures is not None:
            title = f"Fast gradient sign, {name}"
            draw_curves(curves, given.figures / f"aeb_{name}_fgsm.png", title)
    print(shown(journal.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
