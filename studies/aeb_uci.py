"""UCI regression with SGHMC, SGHMC-EM and SGHMC-SA ([Deng], appendix).

    python -m studies.aeb_uci --quick                        # boston and yacht, a minute
    python -m studies.aeb_uci --full --out results/aeb_uci.json

Protocol: one hidden layer of 50 ReLU units, the published splits of 10 % test rows, inputs and
targets standardised on the training rows, batches of 50 rows (a tenth of larger sets), step size
0.005 / N, friction 0.1, ω = (k + 100)^-0.7. The temperature falls geometrically from 1 to 1/1000
over the run, by at most the 1/1.003 a step of the authors' code. All splits of a set are one
population of chains. The prediction is the mean over draws of the last half of the run; errors are
in the target's own unit. A map (Adam) of the same network stands beside.

The noise of the likelihood is the prior's σ, learned with it; the authors' code weighs the squared
errors without it. The table of the paper's appendix is not at hand: nothing stands beside ours.
σ is no estimate of the noise of the data, so no intervals are reported.
"""

import argparse
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import torch

from bayesieve.assess.figures.style import dress, legend, new_figure, series_colors
from bayesieve.assess.figures.style import save as save_figure
from bayesieve.assess.predict import RealPrediction, predict
from bayesieve.checks import check_choice
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior import Samples
from bayesieve.core.priors import GaussianLaplace, Normal
from bayesieve.core.problem import Problem
from bayesieve.core.rows import Rows
from bayesieve.data import load_data
from bayesieve.data.examples import DataSet
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Adapt, Averaging, Chain
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.nets import mlp
from bayesieve.training.fit import Fit, fit
from bayesieve.training.schedule import Schedule
from studies.aeb_arguments import count
from studies.aeb_journal import Journal, Row, table

SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "wine", "yacht", "protein")
METHODS = ("map", "sghmc", "sghmc-em", "sghmc-sa")
_COOLING, _COLDEST = 1 / 1.003, 1e-3


def engine(method: str, n_data: int, n_steps: int) -> MAP | SGHMC:
    """The engine of a method for N training rows."""
    if method == "map":
        return MAP(optimizer="adam", lr=1e-2, weight_decay=1e-3, start="he")
    cooling = max(_COOLING, _COLDEST ** (1 / n_steps))
    chain = replace(Chain.over(n_steps, n_kept=20), cooling=cooling)
    step_size = 5e-3 / n_data
    if method == "sghmc":
        return SGHMC(Normal(1.0), step_size, chain=chain, start="he")
    prior = GaussianLaplace(spike_scale=0.1, spike_share=0.02, scale=1.0)
    averaging = Averaging(1.0, 100.0, 0.7)
    adapt: Adapt = "sa" if method == "sghmc-sa" else "em"
    return SGHMC(prior, step_size, 1.0, adapt, averaging, chain, start="he")


def run_method(method: str, sets: list[DataSet], n_steps: int, device: str = "cpu") -> Fit:
    """One chain per split, all advanced together."""
    n = min(len(own.train) for own in sets)  # splits differ by a row at most
    parts = [own.train for own in sets]
    x = torch.cat([part.x[:n] for part in parts])
    y = torch.cat([part.y[:n] for part in parts])
    rows = Rows(torch.arange(len(sets) * n).view(len(sets), n))
    model = mlp((x.shape[1],), 1, widths=(50,))
    likelihood = Gaussian() if method.startswith("sghmc-") else Gaussian(learned=True)
    problem = Problem(model, likelihood, (x, y), rows=rows).to(device)
    schedule = (
        Schedule(lr="cosine", clip_norm=20.0)
        if method == "map"
        else Schedule(warmup=0.02, clip_norm=20.0)
    )
    return fit(
        problem, engine(method, n, n_steps), steps=n_steps, batch_size=max(50, math.ceil(n / 10)),
        seed=0, schedule=schedule,
    )  # fmt: skip


def score(run: Fit, sets: list[DataSet]) -> tuple[list[float], float | None]:
    """Root mean squared error of every split, and the mean fraction of weights with ρ > 0.5."""
    errors, included = [], []
    for found, own in zip(run.posteriors, sets, strict=True):
        posterior = found.to("cpu")
        assert isinstance(posterior, Samples)
        prediction = predict(posterior, own.test.x, n_samples=len(posterior.draws))
        assert isinstance(prediction, RealPrediction)
        residual = prediction.mean[:, 0] - own.test.y
        errors.append(float(residual.square().mean().sqrt() * own.test.target_std))
        if posterior.inclusion is not None:
            weights = posterior.inclusion[posterior.layout.sparse]
            included.append(float((weights > 0.5).double().mean()))
    return errors, statistics.fmean(included) if included else None


def shown(rows: list[Row]) -> str:
    """Mean error and its standard error over splits."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [["data", *methods]]
    for name in dict.fromkeys(row["data"] for row in rows):
        own = {row["method"]: row for row in rows if row["data"] == name}
        cells = [f"{own[m]['rmse']:.3f} ± {own[m]['standard_error']:.3f}" for m in methods]
        lines.append([name, *cells])
    return table(lines)


def draw(rows: list[Row], path: Path) -> Path:
    """Errors relative to the map, one colour per method."""
    figure = new_figure(7.2, 4.0)
    axes = figure.add_subplot()
    names = list(dict.fromkeys(row["data"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    base = {row["data"]: row["rmse"] for row in rows if row["method"] == methods[0]}
    for color, method in zip(series_colors(len(methods)), methods, strict=True):
        own = {row["data"]: row["rmse"] for row in rows if row["method"] == method}
        axes.plot(names, [own[name] / base[name] for name in names], "o", color=color,
                  label=method)  # fmt: skip
    dress(axes, title="UCI regression", xlabel="", ylabel=f"RMSE relative to {methods[0]}")
    legend(axes)
    return save_figure(figure, path)


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="boston and yacht, 4 splits")
    length.add_argument("--full", action="store_true", help="all sets but protein, all splits")
    parser.add_argument("--sets", help=f"of {', '.join(SETS)}")
    parser.add_argument("--splits", type=count, help="of each set; all if left out")
    parser.add_argument("--steps", type=count, default=4000)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--figures", type=Path, help="folder for figures")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    names = given.sets.split(",") if given.sets else SETS[:-1] if given.full else SETS[0::7]
    methods = given.methods.split(",")
    for name in names:
        check_choice("aeb_uci", "set", name, SETS)
    for method in methods:
        check_choice("aeb_uci", "method", method, METHODS)
    journal = Journal("aeb_uci", given.out, arguments, given.device, None, {"steps": given.steps})
    for name in names:
        first = load_data(f"uci/{name}")
        n_splits = given.splits or (first.n_splits if given.full else 4)
        sets = [load_data(f"uci/{name}", split=i) for i in range(n_splits)]
        for method in methods:
            run = run_method(method, sets, given.steps, given.device)
            errors, included = score(run, sets)
            spread = statistics.stdev(errors) / len(errors) ** 0.5 if len(errors) > 1 else 0.0
            row: Row = {"data": name, "method": method, "rmse": statistics.fmean(errors),
                        "standard_error": spread, "included": included, "splits": errors,
                        "fit_seconds": round(run.seconds, 1)}  # fmt: skip
            journal.add(row, name, run.seconds)
            print(f"{name} {method}: {row['rmse']:.3f} ± {spread:.3f}  {run.seconds:.0f} s",
                  flush=True)  # fmt: skip
    if given.figures is not None:
        draw(journal.rows, given.figures / "aeb_uci.png")
    print(shown(journal.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
