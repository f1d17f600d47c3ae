"""Large-p-small-n logistic regression with SGLD, SGLD-EM and SGLD-SA ([Deng], appendix).

    python -m studies.aeb_logistic --quick                       # a minute
    python -m studies.aeb_logistic --full --out results/aeb_logistic.json

Protocol: n = 300, p = 1000, X ~ N(0, Σ) with Σ_ij = 0.6^|i-j|, β = (N(3, 0.2²), N(2, 0.2²),
N(1, 0.2²), 0, ...), P(y = 1) = 1 / (1 + exp(-x β)); full batches, ε = 0.001 k^(-1/3), σ = 1 held
fixed. All data sets are one population of chains of the library's own engine. The averaged
probabilities of draws kept after half of the run are scored on 2,000 test points per data set; a
coefficient is selected where ρ > 0.5.

Methods: "sgld" (penalties fixed at 1), "em" (ω = 1), "paper" (ω = 10 (k + 1000)^-0.7) and "sa",
ours: a search before the sampling as in aeb_linear. In a run of K steps the temperature rises from
0 to 1 over the first K/10, penalties begin at 9 instead of 1, and ω = (10/K) (1 + 5k/K)^-0.7. 9 is
half of √(2 n v log p) = 18, about the level above which no noise gets in; v = 0.076 is the mean
variance of a label.

"third_gain" of a row is how many nats the third variable adds to a fit of the first two,
"most_of_another" the most that a variable without effect would. "Best possible" is the accuracy of
the true coefficients. The table of the paper's appendix is not at hand: nothing stands beside ours.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve import SGLD, Problem, likelihoods, priors
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.engines.sampling import Adapt, Averaging, Chain
from bayesieve.estimators.population import stacked
from bayesieve.training.fit import Fit
from bayesieve.training.launch import fit
from studies.aeb_linear import P, make_data, support_counts
from studies.harness import Run, chosen, count, make_row, study_parser

N, N_TEST = 300, 2000
_SEARCH = 0.1  # share of a run over which a search warms up


@dataclass(frozen=True)
class Method:
    """The way the prior follows the chain."""

    adapt: Adapt  # as of the engine
    weight: float = 1.0  # factor of ω
    penalty: float = 1.0  # starting κ₀ and κ₁
    searches: bool = False  # whether the run begins with a search, and ω is in units of its length

    def averaging(self, n_steps: int) -> Averaging:
        """The ω of a run; σ is held.

        Example:
            >>> averaging = Method("sa", searches=True).averaging(1000)
            >>> round(averaging.omega(torch.tensor(0.0)).item(), 6)  # 5 / K
            0.005
        """
        if not self.searches:
            return Averaging(self.weight, scale=False)
        unit = n_steps / 5
        return Averaging(self.weight * unit**-0.3, unit, 0.7, scale=False)


METHODS = {
    "sa": Method("sa", weight=2.0, penalty=9.0, searches=True),
    "paper": Method("sa", weight=10.0),
    "em": Method("em"),
    "sgld": Method("none"),
}


def logistic_data(seeds: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The data sets of the study; the first N points are for training."""
    return make_data(
        seeds, N + N_TEST,
        lambda mean, g: (torch.rand(len(mean), generator=g) < torch.sigmoid(mean)).float(),
    )  # fmt: skip


def run_method(
    method: str, x: Tensor, y: Tensor, spike_scale: float, n_steps: int, device: str = "cpu"
) -> Fit:
    """One chain on the first n points of every data set, all advanced together."""
    rule = METHODS[method]
    # the penalties stay where they begin if nothing adapts
    prior = priors.GaussianLaplace(spike_scale=spike_scale, penalty=rule.penalty)
    chain = Chain(burn_in=n_steps // 2, thin=max(1, n_steps // 100), n_kept=50, power=1 / 3,
                  warming=round(_SEARCH * n_steps) if rule.searches else 0)  # fmt: skip
    engine = SGLD(prior, 1e-3, adapt=rule.adapt, averaging=rule.averaging(n_steps), chain=chain)
    model = nn.Linear(P, 1, bias=False)
    nn.init.zeros_(model.weight)
    inputs, labels, rows = stacked(list(zip(x[:, :N], y[:, :N], strict=True)))
    problem = Problem(model, likelihoods.Bernoulli(), (inputs, labels), rows=rows).to(device)
    return fit(problem, engine, steps=n_steps, batch_size=N, seed=0)


def score(run: Fit, x: Tensor, y: Tensor, truth: Tensor) -> list[dict[str, Any]]:
    """Accuracy and nll on the test points of each data set, and what was selected."""
    numbers = []
    for i, posterior in enumerate(run.complete().posteriors):
        posterior = posterior.to("cpu")
        x_test, y_test = x[i, N:], y[i, N:]
        prediction = predict(posterior, x_test, n_samples=50)
        assert isinstance(prediction, ClassPrediction)
        nll = -prediction.log_probs.gather(1, y_test.long()[:, None]).mean().item()
        inclusion = posterior.inclusion
        selected = torch.zeros(P) > 0 if inclusion is None else inclusion > 0.5
        third, *others = gains(x[i, :N], y[i, :N]).tolist()
        numbers.append(
            {
                "accuracy": (prediction.label == y_test).double().mean().item(),
                "best_possible": ((x_test @ truth[i] > 0) == (y_test > 0)).double().mean().item(),
                "nll": nll,
                "selected": int(selected.sum()),
                "true_selected": int(selected[:3].sum()),
                "third_gain": third,
                "most_of_another": max(others),
                "fit_seconds": round(run.seconds, 1),
            }
        )
    return numbers


def gains(x: Tensor, y: Tensor) -> Tensor:
    """Nats by which each further variable would raise the likelihood of a fit to the first two.

    By the score test: the slope at 0, squared, over twice its variance. Where a variable without
    effect has more of it than the third, the labels speak for the wrong one.

    Args:
        x: (n, p).
        y: labels 0 and 1, (n,).

    Returns:
        (p - 2,), that of the third variable first.
    """
    first, rest, target = x[:, :2].double(), x[:, 2:].double(), y.double()
    w = first.new_zeros(2)
    for _ in range(25):  # Newton's method
        prob = torch.sigmoid(first @ w)
        weighted = first * (prob * (1 - prob))[:, None]
        w = w + torch.linalg.solve(weighted.T @ first, first.T @ (target - prob))
    prob = torch.sigmoid(first @ w)
    spread = prob * (1 - prob)
    weighted = first * spread[:, None]
    left = rest - first @ torch.linalg.solve(weighted.T @ first, weighted.T @ rest)
    return (left.T @ (target - prob)).square() / (2 * (left.square() * spread[:, None]).sum(0))


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = study_parser(__doc__, quick="2 data sets, 3,000 steps",
                          full="8 data sets, 40,000 steps")  # fmt: skip
    parser.add_argument("--data-sets", type=count)
    parser.add_argument("--first", type=int, default=1, help="seed of the first data set")
    parser.add_argument("--steps", type=count)
    parser.add_argument("--methods", default="sa,paper,em,sgld")
    parser.add_argument("--spike-scale", type=float, default=0.03, help="v0")
    options = parser.parse_args(arguments)
    n_sets = options.data_sets or (8 if options.full else 2)
    n_steps = options.steps or (40_000 if options.full else 3_000)
    methods = chosen("aeb_logistic", "method", options.methods, METHODS)
    settings = {"n": N, "p": P, "n_test": N_TEST, "steps": n_steps,
                "spike_scale": options.spike_scale}  # fmt: skip
    run = Run("aeb_logistic", arguments, options, settings=settings)
    seeds = tuple(range(options.first, options.first + n_sets))
    x, y, truth = logistic_data(seeds)
    for method in methods:
        if run.wants(method, asdict(METHODS[method])):
            fitted = run_method(method, x, y, options.spike_scale, n_steps, options.device)
            each = score(fitted, x, y, truth)
            row = make_row(method, asdict(METHODS[method]), each, seeds=seeds,
                           metrics=support_counts(each))  # fmt: skip
            run.add(row, ("accuracy", "best_possible", "nll"))
    return run.finish(("accuracy", "best_possible", "nll", "all_three_selected", "exact_support"))


if __name__ == "__main__":
    raise SystemExit(main())
