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

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from bayesieve.assess.figures.style import dress, legend, new_figure, series_colors
from bayesieve.assess.figures.style import save as save_figure
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.checks import check_choice
from bayesieve.core.likelihoods import Bernoulli
from bayesieve.core.priors import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.core.rows import Rows
from bayesieve.engines.sampling import Adapt, Averaging, Chain
from bayesieve.engines.sgmcmc import SGLD
from bayesieve.training.fit import Fit, fit
from studies.aeb_arguments import count
from studies.aeb_journal import Journal, Row, table

N, P, N_TEST = 300, 1000, 2000
_SEARCH = 0.1  # share of a run over which a search warms up


@dataclass(frozen=True)
class Method:
    """How the prior follows the chain.

    Args:
        adapt: as of the engine.
        weight: factor of ω.
        penalty: starting κ₀ and κ₁.
        searches: whether the run begins with a search, and ω is in units of its length.
    """

    adapt: Adapt
    weight: float = 1.0
    penalty: float = 1.0
    searches: bool = False

    def averaging(self, n_steps: int) -> Averaging:
        """The ω of a run; σ is held.

        Example:
            >>> own = Method("sa", searches=True).averaging(1000)
            >>> round(own.omega(torch.tensor(0.0)).item(), 6)  # 5 / K
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


def make_data(seeds: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """One data set per seed: x (D, n, p), labels (D, n) and coefficients (D, p); test points last.

    Training and test points of a data set share one draw of the coefficients.
    """
    lag = torch.arange(P, dtype=torch.float64)
    chol = torch.linalg.cholesky(0.6 ** (lag[:, None] - lag).abs()).float()
    xs, ys, truths = [], [], []
    for seed in seeds:
        g = Generator().manual_seed(seed)
        truth = torch.zeros(P)
        truth[:3] = torch.tensor([3.0, 2.0, 1.0]) + 0.2 * torch.randn(3, generator=g)
        x = torch.randn(N + N_TEST, P, generator=g) @ chol.T
        ys.append((torch.rand(N + N_TEST, generator=g) < torch.sigmoid(x @ truth)).float())
        xs.append(x)
        truths.append(truth)
    return torch.stack(xs), torch.stack(ys), torch.stack(truths)


def run_method(
    method: str, x: Tensor, y: Tensor, spike_scale: float, n_steps: int, device: str = "cpu"
) -> Fit:
    """One chain on the first n points of every data set, all advanced together."""
    own = METHODS[method]
    n_sets = len(x)
    # the penalties stay where they begin if nothing adapts
    prior = GaussianLaplace(spike_scale=spike_scale, penalty=own.penalty)
    chain = Chain(burn_in=n_steps // 2, thin=max(1, n_steps // 100), n_kept=50, power=1 / 3,
                  warming=round(_SEARCH * n_steps) if own.searches else 0)  # fmt: skip
    engine = SGLD(prior, 1e-3, adapt=own.adapt, averaging=own.averaging(n_steps), chain=chain)
    model = nn.Linear(P, 1, bias=False)
    nn.init.zeros_(model.weight)
    rows = Rows(torch.arange(n_sets * N).view(n_sets, N))
    data = (x[:, :N].reshape(-1, P), y[:, :N].reshape(-1))
    problem = Problem(model, Bernoulli(), data, rows=rows).to(device)
    return fit(problem, engine, steps=n_steps, batch_size=N, seed=0)


def score(run: Fit, x: Tensor, y: Tensor, truth: Tensor, method: str, first: int = 1) -> list[Row]:
    """Accuracy and nll on the test points of each data set, and what was selected."""
    rows: list[Row] = []
    for i, own in enumerate(run.posteriors):
        posterior = own.to("cpu")
        x_test, y_test = x[i, N:], y[i, N:]
        prediction = predict(posterior, x_test, n_samples=50)
        assert isinstance(prediction, ClassPrediction)
        nll = -prediction.log_probs.gather(1, y_test.long()[:, None]).mean().item()
        inclusion = posterior.inclusion
        chosen = torch.zeros(P) > 0 if inclusion is None else inclusion > 0.5
        third, *others = gains(x[i, :N], y[i, :N]).tolist()
        rows.append(
            {
                "method": method,
                "data_set": first + i,
                "accuracy": (prediction.label == y_test).double().mean().item(),
                "best_possible": ((x_test @ truth[i] > 0) == (y_test > 0)).double().mean().item(),
                "nll": nll,
                "selected": int(chosen.sum()),
                "true_selected": int(chosen[:3].sum()),
                "third_gain": third,
                "most_of_another": max(others),
            }
        )
    return rows


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
    own, rest, target = x[:, :2].double(), x[:, 2:].double(), y.double()
    w = own.new_zeros(2)
    for _ in range(25):  # Newton's method
        prob = torch.sigmoid(own @ w)
        weighted = own * (prob * (1 - prob))[:, None]
        w = w + torch.linalg.solve(weighted.T @ own, own.T @ (target - prob))
    prob = torch.sigmoid(own @ w)
    spread = prob * (1 - prob)
    weighted = own * spread[:, None]
    left = rest - own @ torch.linalg.solve(weighted.T @ own, weighted.T @ rest)
    return (left.T @ (target - prob)).square() / (2 * (left.square() * spread[:, None]).sum(0))


def shown(rows: list[Row]) -> str:
    """Means over data sets."""
    lines = [["method", "accuracy %", "best possible %", "nll", "all three", "exactly these"]]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        mean = {
            name: sum(row[name] for row in own) / len(own)
            for name in ("accuracy", "best_possible", "nll")
        }
        exact = sum(row["true_selected"] == row["selected"] == 3 for row in own)
        found = sum(row["true_selected"] == 3 for row in own)
        percents = [f"{100 * mean[name]:.2f}" for name in ("accuracy", "best_possible")]
        counts = [f"{n}/{len(own)}" for n in (found, exact)]
        lines.append([method, *percents, f"{mean['nll']:.3f}", *counts])
    return table(lines)


def draw(rows: list[Row], path: Path) -> Path:
    """Test accuracy of every data set, one colour per method."""
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for color, method in zip(series_colors(len(methods)), methods, strict=True):
        own = [row for row in rows if row["method"] == method]
        axes.plot([row["data_set"] for row in own], [row["accuracy"] for row in own], "o",
                  color=color, label=method)  # fmt: skip
    dress(axes, title="Logistic regression, p = 1000, n = 300", xlabel="data set",
          ylabel="test accuracy")  # fmt: skip
    legend(axes)
    return save_figure(figure, path)


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="2 data sets, 3,000 steps")
    length.add_argument("--full", action="store_true", help="8 data sets, 40,000 steps")
    parser.add_argument("--data-sets", type=count)
    parser.add_argument("--first", type=int, default=1, help="seed of the first data set")
    parser.add_argument("--steps", type=count)
    parser.add_argument("--methods", default="sa,paper,em,sgld")
    parser.add_argument("--spike-scale", type=float, default=0.03, help="v0")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--figures", type=Path, help="folder for figures")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    n_sets = given.data_sets or (8 if given.full else 2)
    n_steps = given.steps or (40_000 if given.full else 3_000)
    methods = given.methods.split(",")
    for method in methods:
        check_choice("aeb_logistic", "method", method, METHODS)
    common = {"n": N, "p": P, "n_test": N_TEST, "steps": n_steps, "spike_scale": given.spike_scale,
              "methods": {name: asdict(METHODS[name]) for name in methods}}  # fmt: skip
    journal = Journal("aeb_logistic", given.out, arguments, given.device, None, common)
    x, y, truth = make_data(tuple(range(given.first, given.first + n_sets)))
    for method in methods:
        began = time.perf_counter()
        run = run_method(method, x, y, given.spike_scale, n_steps, given.device)
        for row in score(run, x, y, truth, method, given.first):
            journal.add({**row, "fit_seconds": round(run.seconds, 1)}, method, 0.0)
        print(f"{method}: {time.perf_counter() - began:.0f} s", flush=True)
    if given.figures is not None:
        draw(journal.rows, given.figures / "aeb_logistic.png")
    print(shown(journal.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
