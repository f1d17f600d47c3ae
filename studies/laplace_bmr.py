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

import torch

from bayesieve import MAP, Problem, Schedule, evaluate, fit, likelihoods, load_data, prune
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.data.examples import DataSet
from bayesieve.engines.laplace import laplace_units
from bayesieve.nets import lenet_300_100
from bayesieve.sieve.evidence import prune_units_by_evidence
from bayesieve.sieve.rules import keep_zeros
from studies.harness import Row, Run, make_row, splits, study_parser

ZEROS: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.98)


def sieved(
    problem: Problem, point: Posterior, zeros: tuple[float, ...]
) -> dict[str, list[SparseModel]]:
    """The network at every sparsity, by method of pruning."""
    units = laplace_units(problem, point, labels="exact")
    return {
        "magnitude": [prune(point, keep_zeros(z, score="magnitude")) for z in zeros],
        "evidence": [prune(units.posterior, keep_zeros(z, score="evidence")) for z in zeros],
        "unit, kept means": [prune(units.posterior, keep_zeros(z, score="snr")) for z in zeros],
        "unit": [prune_units_by_evidence(units, z) for z in zeros],
    }


def run_study(data: DataSet, zeros: tuple[float, ...], epochs: int, seeds: int,
              device: str) -> list[Row]:  # fmt: skip
    """One row per method and sparsity with the errors of every seed, and one of the networks."""
    torch.manual_seed(0)
    dense = lenet_300_100((1, 28, 28), 10)
    run = fit(Problem(dense, likelihoods.Categorical(), data.train).to(device),
              [MAP(lr=1e-3)] * seeds, epochs=epochs, seed=1,
              schedule=Schedule(lr="cosine"))  # fmt: skip
    scores: dict[str, list[dict[str, float]]] = {}
    settings: dict[str, dict[str, float | str]] = {"dense": {"method": "none", "zeros": 0.0}}
    for point in run.posteriors:
        scores.setdefault("dense", []).append({"error": evaluate(point, data.test)["error"]})
        for method, models in sieved(run.problem, point, zeros).items():
            for share, model in zip(zeros, models, strict=True):
                name, result = f"{method}/{share:g}", evaluate(model, data.test).to_dict()
                settings[name] = {"method": method, "zeros": share}
                numbers = {key: result[key] for key in ("error", "nll")}
                scores.setdefault(name, []).append(numbers)
    return [make_row(name, settings[name], each, seeds=seeds) for name, each in scores.items()]


def main(arguments: list[str] | None = None) -> int:
    """Train, sieve, print the curve and write one record."""
    parser = study_parser(__doc__, "--held-out", quick="one seed, 3 epochs, 12,000 images",
                          seeds=3)  # fmt: skip
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    zeros, few = ZEROS, None
    if options.quick:
        options.seeds, options.epochs, zeros, few = 1, 3, (0.5, 0.8, 0.9), 12_000
    data = splits(load_data("mnist"), held_out=options.held_out, few=few)
    run = Run("laplace_bmr", arguments, options, data=data.name,
              settings={"n_train": len(data.train), "epochs": options.epochs})  # fmt: skip
    if not run.rows:
        for row in run_study(data, zeros, options.epochs, options.seeds, options.device):
            run.add(row)
    return run.finish(("error", "nll"))


if __name__ == "__main__":
    raise SystemExit(main())
