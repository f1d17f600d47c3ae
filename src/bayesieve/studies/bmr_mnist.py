"""Sparse networks on MNIST with stochastic Bayesian model reduction.

    python -m bayesieve.studies.bmr_mnist --full --seeds 3 --out results/bmr_mnist.json
    python -m bayesieve.studies.bmr_mnist --settings l300-98.5 --held-out
    python -m bayesieve.studies.bmr_mnist --quick              # minutes on two CPU cores

Protocol: no augmentation, pixels / 126, batch 128. Sparsity is strict: zeros over all parameters,
biases included. Each row has a few candidate trainings. They are compared on 5,000 held-out
training images (the rest is trained on); the best one that is sparse enough is trained again on all
60,000 and the test images are read once. `--held-out` stops before that.

Published for LeNet-300-100: Sparse VD ([Molchanov]) 1.92 % at 98.5 % zeros, [Saha] 1.94 % at 95 %.
"""

import argparse
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from bayesieve.assess.evaluate import evaluate
from bayesieve.checks import check_choice
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import SparseModel
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.examples import Examples
from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.sieve.bmr import support
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.sieve.scores import Score, ScoreName
from bayesieve.studies.records import command, hold_out, machine, write_record
from bayesieve.studies.sbnn_mnist import build
from bayesieve.training.fit import Fit, fit
from bayesieve.training.schedule import Schedule

_N_DRAWS = 20


@dataclass(frozen=True)
class Candidate:
    """One way to train a row.

    Args:
        own: how the engine prunes by itself: weights with ΔF > 0 ("savage-dickey"), ΔF > ζ with a
            learned ζ per layer ("layer"; both spare the last layer) or one for all weights
            ("global"), or not at all ("none").
        top_up: which weights go until the row's zeros are reached: those of least "evidence" (ΔF)
            or "snr"; "none" leaves it to the engine.
        kl: weight of the KL until pruning ends.
        kl_after: weight afterwards.
        prune_epochs: first and last epoch of pruning.
    """

    own: Literal["savage-dickey", "layer", "global", "none"] = "savage-dickey"
    top_up: Literal["evidence", "snr", "none"] = "snr"
    kl: float = 0.1
    kl_after: float = 1.0
    prune_epochs: tuple[int, int] = (16, 90)

    @property
    def reduction(self) -> Reduction | None:
        """What the engine is told; None where it does not prune. Fractions are set by the row."""
        if self.own == "none":
            return None
        if self.own == "savage-dickey":
            return Reduction("savage-dickey")
        return Reduction("hierarchical", scope=self.own, spare_last=self.own == "layer")


@dataclass(frozen=True)
class Row:
    """A network, a sparsity, and the trainings to choose from.

    Args:
        net: "l300" or "l5".
        zeros: fraction of zeros over all parameters to reach.
        target: error (a fraction) to reach.
        epochs: passes over the data.
        candidates: by name.
    """

    net: str
    zeros: float
    target: float
    epochs: int
    candidates: dict[str, Candidate]


_L300 = {
    "savage-dickey": Candidate(top_up="none"),
    "savage-dickey, topped up": Candidate(),
    "savage-dickey kl .03, topped up": Candidate(kl=0.03),
    "one zeta, topped up": Candidate(own="global"),
    "zeta per layer, topped up": Candidate(own="layer"),
    "snr kl .1": Candidate(own="none"),
    "snr kl .3": Candidate(own="none", kl=0.3),
    "evidence kl .3": Candidate(own="none", top_up="evidence", kl=0.3),
}
_L5 = {
    "savage-dickey, topped up": Candidate(kl_after=0.3, prune_epochs=(8, 42)),
    "savage-dickey kl .03, topped up": Candidate(kl=0.03, kl_after=0.3, prune_epochs=(8, 42)),
    "snr kl .1": Candidate(own="none", kl_after=0.3, prune_epochs=(8, 42)),
    "snr kl .3": Candidate(own="none", kl=0.3, kl_after=0.3, prune_epochs=(8, 42)),
}
ROWS = {
    "l300-97.6": Row("l300", 0.976, 0.0170, 160, _L300),
    "l300-98.5": Row("l300", 0.985, 0.0170, 160, _L300),
    "l5-99.2": Row("l5", 0.992, 0.0090, 70, _L5),
}


def train(row: Row, own: Candidate, data: Examples, seeds: int, device: str) -> Fit:
    """All seeds of a candidate as one population."""
    problem = Problem(build(row.net), Categorical(), data).to(device)
    first, last = (epoch / row.epochs for epoch in own.prune_epochs)
    schedule = Schedule(lr="cosine", kl=own.kl, kl_after=own.kl_after, kl_warmup_epochs=10)
    reduction = own.reduction
    if reduction is not None:  # then the engine turns the dial of the KL
        reduction = replace(reduction, start=first, end=last, kl=own.kl / own.kl_after)
        schedule = Schedule(lr="cosine", kl=own.kl_after, kl_warmup_epochs=10)
    engine = BMR(reduction=reduction, lr=1e-2, init_std=0.18, start="he", local=True)
    pruning = None
    if own.top_up != "none":
        by_evidence = support("savage-dickey", prior_std="empirical")
        score: Score | ScoreName = by_evidence if own.top_up == "evidence" else "snr"
        pruning = GradualPruning(row.zeros, start=first, end=last, score=score)
    elif reduction is None:
        raise ValueError("bmr_mnist: a candidate must prune by itself or be topped up.")
    return fit(
        problem, engine, epochs=row.epochs, seed=1, n_models=seeds, schedule=schedule,
        pruning=pruning,
    )  # fmt: skip


def scores(run: Fit, data: Examples) -> dict[str, Any]:
    """Errors of every seed, at the mean and with draws, and where their weights are."""
    rows = []
    for member in range(run.n_models):
        sparse = run.sparse(member)
        at_mean = evaluate(sparse, data).to_dict()
        sampled = evaluate(sparse, data, n_samples=_N_DRAWS).to_dict()
        rows.append({"error": at_mean["error"], "nll": at_mean["nll"], "ece": at_mean["ece"],
                     "zeros": at_mean["zeros"], "mc_error": sampled["error"],
                     "mc_nll": sampled["nll"], "mc_ece": sampled["ece"],
                     "kept": kept(sparse)})  # fmt: skip
    return {
        "error_mean": statistics.fmean(own["error"] for own in rows),
        "mc_error_mean": statistics.fmean(own["mc_error"] for own in rows),
        "zeros_min": min(own["zeros"] for own in rows),
        "seeds": rows,
        "fit_seconds": run.seconds,
    }


def kept(sparse: SparseModel) -> dict[str, int]:
    """Weights left in each prunable tensor."""
    layout = sparse.layout
    return {
        name: int(sparse.keep[layout.slices[name]].sum())
        for name in layout.names
        if layout.slices[name].start < layout.n_sparse
    }


def choose(tried: dict[str, dict[str, Any]], zeros: float) -> str:
    """The candidate of least held-out error among those sparse enough (else the sparsest).

    Example:
        >>> rows = {"a": {"error_mean": 0.02, "zeros_min": 0.99},
        ...         "b": {"error_mean": 0.01, "zeros_min": 0.90}}
        >>> choose(rows, 0.98)
        'a'
    """
    enough = [name for name, own in tried.items() if own["zeros_min"] >= zeros - 1e-4]
    if not enough:
        return max(tried, key=lambda name: tried[name]["zeros_min"])
    return min(enough, key=lambda name: tried[name]["error_mean"])


def run_row(
    name: str, row: Row, data: tuple[Examples, Examples], seeds: int, device: str, *, final: bool
) -> dict[str, Any]:
    """Compare the candidates on held-out images; with `final` train the best again and test it."""
    started = time.perf_counter()
    part, held_out = hold_out(data[0])
    tried = {}
    for label, own in row.candidates.items():
        tried[label] = scores(train(row, own, part, seeds, device), held_out)
        _print(f"{name} held out, {label}", tried[label])
    best = choose(tried, row.zeros)
    record: dict[str, Any] = {"name": name, "row": asdict(row), "held_out": tried, "chosen": best}
    if final:
        found = scores(train(row, row.candidates[best], data[0], seeds, device), data[1])
        _print(f"{name} test, {best}", found)
        met = found["error_mean"] <= row.target and found["zeros_min"] >= row.zeros - 1e-4
        record |= {"test": found, "met": met}
    return record | {"total_seconds": time.perf_counter() - started}


def _print(label: str, found: dict[str, Any]) -> None:
    errors = " ".join(f"{100 * own['error']:.2f}" for own in found["seeds"])
    print(f"{label:<46} error {100 * found['error_mean']:.2f} % ({errors})  {_N_DRAWS} draws "
          f"{100 * found['mc_error_mean']:.2f} %  zeros {100 * found['zeros_min']:.2f} %  "
          f"{found['fit_seconds']:.0f} s", flush=True)  # fmt: skip


def _shortened(row: Row) -> Row:
    """Six epochs of one candidate, for a look on a CPU."""
    chosen = [pair for pair in row.candidates.items() if pair[1].top_up != "none"][:1]
    return replace(
        row,
        epochs=6,
        candidates={label: replace(own, prune_epochs=(1, 4)) for label, own in chosen},
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen rows and write one JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--settings", default="l300-97.6", help=f"comma list of {list(ROWS)}")
    parser.add_argument("--full", action="store_true", help="all rows")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="candidates separated by ;, all unless given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--held-out", action="store_true", help="do not read the test images")
    parser.add_argument("--quick", action="store_true", help="one seed, 6 epochs, 12,000 images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    names = list(ROWS) if options.full else [n for n in options.settings.split(",") if n]
    for name in names:
        check_choice("bmr_mnist", "setting", name, ROWS)
    data = load_data("mnist")
    images = data.train
    if options.quick:
        images, options.seeds = images.subset(torch.arange(min(12_000, len(images)))), 1
    result: dict[str, Any] = {
        "study": "bmr_mnist",
        "machine": machine(options.device),
        "command": command("bmr_mnist", arguments),
        "seeds": options.seeds,
        "records": [],
    }
    for name in names:
        row = _shortened(ROWS[name]) if options.quick else ROWS[name]
        if options.only:
            wanted = [label.strip() for label in options.only.split(";")]
            for label in wanted:
                check_choice("bmr_mnist", "candidate", label, row.candidates)
            row = replace(row, candidates={label: row.candidates[label] for label in wanted})
        record = run_row(
            name, row, (images, data.test), options.seeds, options.device,
            final=not options.held_out,
        )  # fmt: skip
        result["records"].append(record)
        write_record(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
