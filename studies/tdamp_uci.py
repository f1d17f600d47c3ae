"""EM-TDAMP on the UCI regression sets: RMSE, log-likelihood and coverage over the published splits.

    python -m studies.tdamp_uci --full --out results/tdamp_uci.json   # 12 CPU minutes
    python -m studies.tdamp_uci --quick                       # one split of two sets

Protocol: one hidden layer of 50 units, inputs and target standardised on the training part, the
published splits of Hernández-Lobato and Adams (2015), batch 10, the noise learned, 50 posterior
draws. For every split the prior variance is chosen inside its own training part: a fifth of it is
held out once, the candidate of the highest predictive density wins, and all of the training part is
then learned. The test part is read once. Passes, memory and cooling were fixed on held-out fifths
of the training parts of the first splits of Boston and Yacht. RMSE and densities are in the unit of
the target.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from bayesieve import TDAMP, Problem, evaluate, fit, likelihoods, load_data, priors
from bayesieve.core.posterior import Posterior
from bayesieve.data.examples import Examples
from bayesieve.nets import mlp
from studies.harness import Run, chosen, count, make_row, study_parser

SETS = ("boston", "concrete", "energy", "yacht")
_WIDTH, _BATCH, _DRAWS, _START_NOISE = 50, 10, 50, 0.7
_SCORES = ("rmse", "log_lik", "coverage_90", "interval_width_90")


@dataclass(frozen=True)
class Candidate:
    """Numbers that are chosen inside the training part."""

    variance: float  # of hidden and output weights, times the layer's inputs
    passes: int  # EM iterations; the last quarter cools

    @property
    def engine(self) -> TDAMP:
        """All units are kept: with 50 of them there is nothing to gain from removal."""
        prior = priors.GroupSparse(hidden_variance=self.variance, output_variance=self.variance)
        cool = (3 * self.passes // 4 + 1, self.passes)
        return TDAMP(prior=prior, keep=1.0, power=1.0, memory=20.0, cool_passes=cool,
                     cool_memory=2.0)  # fmt: skip


CANDIDATES = (Candidate(0.3, 40), Candidate(1.0, 40))


def learn(candidate: Candidate, data: Examples, seed: int) -> Posterior:
    """One run on standardised examples."""
    model = mlp(tuple(data.x.shape[1:]), 1, widths=(_WIDTH,))
    problem = Problem(model, likelihoods.Gaussian(_START_NOISE, learned=True), data)
    run = fit(problem, candidate.engine, epochs=candidate.passes, batch_size=_BATCH, seed=seed)
    return run.posterior


def choose(data: Examples, seed: int) -> Candidate:
    """The candidate with the highest predictive density on a held-out fifth."""
    train, held_out = data.split(0.2, seed)

    def density(candidate: Candidate) -> float:
        posterior = learn(candidate, train, seed)
        return float(evaluate(posterior, held_out, n_samples=_DRAWS, seed=seed)["log_lik"])

    return max(CANDIDATES, key=density)


def run_split(name: str, split: int) -> dict[str, Any]:
    """Choose, learn and score one split."""
    data = load_data(f"uci/{name}", split=split)
    train, test = (part.to(dtype=torch.float32) for part in (data.train, data.test))
    began = time.perf_counter()
    candidate = choose(train, split)
    posterior = learn(candidate, train, split)
    scores = evaluate(posterior, test, n_samples=_DRAWS, seed=split).to_dict()
    return {
        **{key: scores[key] for key in _SCORES},
        "variance": candidate.variance,
        "passes": candidate.passes,
        "n_train": len(train),
        "n_test": len(test),
        "seconds": round(time.perf_counter() - began, 2),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the sets and write one record, renewed after each set."""
    parser = study_parser(__doc__, quick="one split of boston and yacht",
                          full="all published splits", device=False)  # fmt: skip
    parser.add_argument("--sets", default=",".join(SETS), help=f"comma list of {SETS}")
    parser.add_argument("--splits", type=count, default=5, help="splits per set, from the first")
    options = parser.parse_args(arguments)
    asked = "boston,yacht" if options.quick else options.sets
    settings = {"width": _WIDTH, "batch": _BATCH, "draws": _DRAWS,
                "candidates": [repr(one) for one in CANDIDATES],
                "engine": repr(CANDIDATES[0].engine)}  # fmt: skip
    run = Run("tdamp_uci", arguments, options, settings=settings, test_reads="once per split")
    for name in chosen("tdamp_uci", "--sets", asked, SETS):
        n_splits = load_data(f"uci/{name}").n_splits or 1
        n = 1 if options.quick else n_splits if options.full else min(options.splits, n_splits)
        setting = {"data": name, "n_splits": n}
        if run.wants(name, setting):
            each = [run_split(name, split) for split in range(n)]
            rmse, n_test = [one["rmse"] for one in each], sum(one["n_test"] for one in each)
            covered = sum(one["coverage_90"] * one["n_test"] for one in each)
            metrics = {"rmse_median": statistics.median(rmse), "first_split_rmse": rmse[0],
                       "coverage_90_pooled": covered / n_test}  # fmt: skip
            seconds = sum(one["seconds"] for one in each)
            row = make_row(name, setting, each, seeds=list(range(n)), seconds=seconds,
                           metrics=metrics, spread=["rmse"])  # fmt: skip
            run.add({**row, "data": name}, ("rmse", "rmse_median", "log_lik", "coverage_90_pooled"))
    return run.finish()


if __name__ == "__main__":
    raise SystemExit(main())
