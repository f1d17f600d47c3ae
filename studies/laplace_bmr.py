"""Sieving a network that somebody has trained, without training it again: against magnitude.

    python -m studies.laplace_bmr --out results/laplace_bmr.json
    python -m studies.laplace_bmr --held-out            # no test images
    python -m studies.laplace_bmr --quick               # minutes on two CPU cores

LeNet-300-100 is trained on MNIST as plain networks are (Adam, cosine, no prior, no pruning). Then
weights are removed once and for all by

    magnitude          |w|, all layers compared
    evidence           ΔF (B4) with the marginal std of the Laplace approximation by unit (L4)
    unit, kept means   |w| / that std
    unit               the same in four rounds, and the rest of each unit follows (L5)

and the error at the mean weights is read. Sparsity is strict: zeros over all parameters, biases
included. Settings were chosen with `--held-out`, on 5,000 training images not trained on.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import torch

from bayesieve.assess.evaluate import evaluate
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.examples import Examples
from bayesieve.engines.laplace_units import laplace_units
from bayesieve.engines.map import MAP
from bayesieve.nets import lenet_300_100
from bayesieve.sieve.evidence import prune_units_by_evidence
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_zeros
from bayesieve.training.fit import fit
from bayesieve.training.schedule import Schedule
from studies.records import add_common_flags, record_head, splits, write_record

ZEROS: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.98)
MUST_WIN = 0.95  # the largest sparsity at which magnitude must be beaten


def trained(
    data: Examples, epochs: int, seeds: int, device: str
) -> tuple[Problem, list[Posterior]]:
    """Plain networks of several seeds, trained together."""
    torch.manual_seed(0)
    problem = Problem(lenet_300_100((1, 28, 28), 10), Categorical(), data).to(device)
    run = fit(
        problem, [MAP(lr=1e-3)] * seeds, epochs=epochs, seed=1, schedule=Schedule(lr="cosine")
    )
    return run.problem, run.posteriors


def sieved(
    problem: Problem, point: Posterior, zeros: tuple[float, ...]
) -> dict[str, list[SparseModel]]:
    """The network at every sparsity, by way of pruning."""
    units = laplace_units(problem, point, labels="exact")
    ways: dict[str, list[SparseModel]] = {
        "magnitude": [prune(point, keep_zeros(z, score="magnitude")) for z in zeros],
        "evidence": [prune(units.posterior, keep_zeros(z, score="evidence")) for z in zeros],
        "unit, kept means": [prune(units.posterior, keep_zeros(z, score="snr")) for z in zeros],
        "unit": [prune_units_by_evidence(units, z) for z in zeros],
    }
    return ways


def run_study(
    data: Examples,
    score_on: Examples,
    zeros: tuple[float, ...],
    epochs: int,
    seeds: int,
    device: str,
) -> dict[str, Any]:
    """Errors and negative log-likelihoods of every way, sparsity and seed."""
    problem, points = trained(data, epochs, seeds, device)
    rows: dict[str, dict[str, list[list[float]]]] = {}
    dense = []
    for point in points:
        dense.append(evaluate(point, score_on).to_dict()["error"])
        for way, models in sieved(problem, point, zeros).items():
            found = [evaluate(model, score_on).to_dict() for model in models]
            own = rows.setdefault(way, {"error": [], "nll": []})
            own["error"].append([row["error"] for row in found])
            own["nll"].append([row["nll"] for row in found])
    means = {
        way: {name: [statistics.fmean(c) for c in zip(*own[name], strict=True)] for name in own}
        for way, own in rows.items()
    }
    wins = {
        name: [
            means["unit"][name][i] < means["magnitude"][name][i]
            for i, z in enumerate(zeros)
            if z <= MUST_WIN
        ]
        for name in ("error", "nll")
    }
    return {"zeros": list(zeros), "dense_error": dense, "ways": rows, "means": means,
            "unit_beats_magnitude": wins}  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """Mean errors in percent, one line per way."""
    head = f"{'zeros, %':<18}" + "".join(f"{100 * z:8.1f}" for z in found["zeros"])
    lines = [head]
    for way, own in found["means"].items():
        lines.append(f"{way:<18}" + "".join(f"{100 * e:8.2f}" for e in own["error"]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Train, sieve, print the curve and write one JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="one seed, 3 epochs, 12,000 images")
    add_common_flags(parser)
    options = parser.parse_args(arguments)
    train, score_on = splits(load_data("mnist"), held_out=options.held_out)
    zeros = ZEROS
    if options.quick:
        train = train.subset(torch.arange(min(12_000, len(train))))
        options.seeds, options.epochs, zeros = 1, 3, (0.5, 0.8, 0.9)
    started = time.perf_counter()
    found = run_study(train, score_on, zeros, options.epochs, options.seeds, options.device)
    print(table(found))
    result = {
        **record_head("laplace_bmr", arguments, options, len(score_on)),
        "trained_on": len(train),
        "epochs": options.epochs,
        "seeds": options.seeds,
        **found,
        "seconds": time.perf_counter() - started,
    }
    write_record(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
