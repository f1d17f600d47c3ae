"""Sparse networks on MNIST with stochastic Bayesian model reduction.

    python -m studies.bmr_mnist --full --seeds 3 --out results/bmr_mnist.json
    python -m studies.bmr_mnist --settings l300-98.5 --held-out
    python -m studies.bmr_mnist --settings l300-98.5 --chosen "spikes, evidence kl .3"
    python -m studies.bmr_mnist --quick              # minutes on two CPU cores

Protocol: no augmentation, pixels / 126, batch 128. Sparsity is strict: zeros over all parameters,
biases included. Each row has a few candidate trainings (studies/bmr_ways.py). They are compared by
the NLL of 5,000 held-out training images (the rest is trained on); the best one that is sparse
enough is trained again on all 60,000 and the test images are read once. `--held-out` stops before
that. Candidates called "spikes" are model reduction of a spike-and-slab posterior (SBNN); the
others have the paper's prior, a learned width per layer.

Published for LeNet-300-100: Sparse VD ([Molchanov]) 1.92 % at 98.5 % zeros, [Saha] 1.94 % at 95 %.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bayesieve.assess.evaluate import evaluate
from bayesieve.checks import check_choice
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Factorised, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.examples import Examples
from bayesieve.training.fit import Fit, fit
from studies.bmr_ways import ROWS, Candidate, Row, together
from studies.records import command, hold_out, machine, write_record
from studies.sbnn_mnist import build

_N_DRAWS = 20


def train(row: Row, ways: Sequence[Candidate], data: Examples, seeds: int, device: str) -> Fit:
    """All seeds of candidates that differ in numbers only, as one population."""
    problem = Problem(build(row.net), Categorical(), data).to(device)
    engines = [own.engine(row.epochs) for own in ways for _ in range(seeds)]
    first = ways[0]
    return fit(
        problem, engines, epochs=row.epochs, seed=1, schedule=first.schedule(),
        pruning=first.pruning(row.zeros, row.epochs),
    )  # fmt: skip


def scores(run: Fit, data: Examples, members: Sequence[int]) -> dict[str, Any]:
    """Errors of some members, at the mean and with draws, and where their weights are."""
    rows = []
    for member in members:
        sparse = run.sparse(member)
        at_mean = evaluate(sparse, data).to_dict()
        sampled = evaluate(sparse, data, n_samples=_N_DRAWS).to_dict()
        rows.append({"error": at_mean["error"], "nll": at_mean["nll"], "ece": at_mean["ece"],
                     "zeros": at_mean["zeros"], "mc_error": sampled["error"],
                     "mc_nll": sampled["nll"], "mc_ece": sampled["ece"],
                     "kept": kept(sparse), "layers": layers(sparse)})  # fmt: skip
    return {
        "error_mean": statistics.fmean(own["error"] for own in rows),
        "mc_error_mean": statistics.fmean(own["mc_error"] for own in rows),
        "mc_nll_mean": statistics.fmean(own["mc_nll"] for own in rows),
        "zeros_min": min(own["zeros"] for own in rows),
        "seeds": rows,
        "fit_seconds": run.seconds,
        "trained_together": run.n_models,
    }


def kept(sparse: SparseModel) -> dict[str, int]:
    """Weights left in each prunable tensor."""
    layout = sparse.layout
    return {
        name: int(sparse.keep[layout.slices[name]].sum())
        for name in layout.names
        if layout.slices[name].start < layout.n_sparse
    }


def layers(sparse: SparseModel) -> dict[str, dict[str, float]]:
    """Root mean square, and medians of |mean| / std, of what is left in each prunable tensor."""
    found, posterior = {}, sparse.posterior
    assert isinstance(posterior, Factorised)
    for name in kept(sparse):
        part = sparse.layout.slices[name]
        own = sparse.keep[part]
        mean, std = posterior.mean[part][own].double(), posterior.std[part][own].double()
        found[name] = {
            "rms": mean.square().mean().sqrt().item(),
            "std": std.median().item(),
            "snr": (mean.abs() / std).median().item(),
        }
    return found


def choose(tried: dict[str, dict[str, Any]], zeros: float) -> str:
    """The candidate of least held-out NLL among those sparse enough (else the sparsest).

    By the likelihood and not by the error: one standard error of 100 mistakes is 10, more than
    most candidates differ by.

    Example:
        >>> rows = {"a": {"mc_nll_mean": 0.08, "zeros_min": 0.99},
        ...         "b": {"mc_nll_mean": 0.07, "zeros_min": 0.90}}
        >>> choose(rows, 0.98)
        'a'
    """
    enough = [name for name, own in tried.items() if own["zeros_min"] >= zeros - 1e-4]
    if not enough:
        return max(tried, key=lambda name: tried[name]["zeros_min"])
    return min(enough, key=lambda name: tried[name]["mc_nll_mean"])


def run_row(
    name: str, row: Row, data: tuple[Examples, Examples], seeds: int, device: str, *,
    final: bool, chosen: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Compare the candidates on held-out images; with `final` train the best again and test it.

    Args:
        name: of the row.
        row: what is trained, and how.
        data: training and test images.
        seeds: models per candidate.
        device: where.
        final: whether to train the best one on all training images and read the test images.
        chosen: candidate of an earlier comparison, which is then not repeated.
    """
    started = time.perf_counter()
    tried = {} if chosen else _compare(name, row, data[0], seeds, device)
    best = chosen or choose(tried, row.zeros)
    record: dict[str, Any] = {"name": name, "row": asdict(row), "held_out": tried, "chosen": best}
    if final:
        run = train(row, [row.candidates[best]], data[0], seeds, device)
        found = scores(run, data[1], range(seeds))
        _print(f"{name} test, {best}", found)
        met = found["error_mean"] <= row.target and found["zeros_min"] >= row.zeros - 1e-4
        record |= {"test": found, "met": met}
    return record | {"total_seconds": time.perf_counter() - started}


def _compare(
    name: str, row: Row, images: Examples, seeds: int, device: str
) -> dict[str, dict[str, Any]]:
    """Held-out scores of every candidate."""
    part, held_out = hold_out(images)
    tried = {}
    for labels in together(row.candidates):
        run = train(row, [row.candidates[label] for label in labels], part, seeds, device)
        for i, label in enumerate(labels):
            tried[label] = scores(run, held_out, range(i * seeds, (i + 1) * seeds))
            _print(f"{name} held out, {label}", tried[label])
    return tried


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
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument("--held-out", action="store_true", help="do not read the test images")
    goal.add_argument("--chosen", help="candidate to test, without comparing it again")
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
        only = options.chosen or options.only
        if only:
            wanted = [label.strip() for label in only.split(";")]
            for label in wanted:
                check_choice("bmr_mnist", "candidate", label, row.candidates)
            row = replace(row, candidates={label: row.candidates[label] for label in wanted})
        record = run_row(
            name, row, (images, data.test), options.seeds, options.device,
            final=not options.held_out, chosen=options.chosen,
        )  # fmt: skip
        result["records"].append(record)
        write_record(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
