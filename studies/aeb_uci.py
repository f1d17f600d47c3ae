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

import math
import statistics
from dataclasses import replace

from bayesieve import MAP, SGHMC, Problem, Schedule, likelihoods, load_data, priors
from bayesieve.assess.predict import RealPrediction, predict
from bayesieve.core.posterior import Samples
from bayesieve.data.examples import DataSet
from bayesieve.engines.sampling import Adapt, Averaging, Chain
from bayesieve.estimators.population import stacked
from bayesieve.nets import mlp
from bayesieve.training.fit import Fit
from bayesieve.training.launch import fit
from studies.harness import Run, chosen, count, make_row, study_parser

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
        return SGHMC(priors.Normal(1.0), step_size, chain=chain, start="he")
    prior = priors.GaussianLaplace(spike_scale=0.1, spike_share=0.02, scale=1.0)
    averaging = Averaging(1.0, 100.0, 0.7)
    adapt: Adapt = "sa" if method == "sghmc-sa" else "em"
    return SGHMC(prior, step_size, 1.0, adapt, averaging, chain, start="he")


def run_method(method: str, sets: list[DataSet], n_steps: int, device: str = "cpu") -> Fit:
    """One chain per split, all advanced together."""
    n = min(len(data.train) for data in sets)  # splits differ by a row at most
    x, y, rows = stacked([(data.train.x[:n], data.train.y[:n]) for data in sets])
    model = mlp((x.shape[1],), 1, widths=(50,))
    likelihood = likelihoods.Gaussian(learned=not method.startswith("sghmc-"))
    problem = Problem(model, likelihood, (x, y), rows=rows).to(device)
    schedule = Schedule(warmup=0.02, clip_norm=20.0)
    if method == "map":
        schedule = Schedule(lr="cosine", clip_norm=20.0)
    return fit(
        problem, engine(method, n, n_steps), steps=n_steps, batch_size=max(50, math.ceil(n / 10)),
        seed=0, schedule=schedule,
    )  # fmt: skip


def score(run: Fit, sets: list[DataSet]) -> tuple[list[float], float | None]:
    """Root mean squared error of every split, and the mean fraction of weights with ρ > 0.5."""
    errors, included = [], []
    for learned, data in zip(run.complete().posteriors, sets, strict=True):
        posterior = learned.to("cpu")
        assert isinstance(posterior, Samples)
        prediction = predict(posterior, data.test.x, n_samples=len(posterior.draws))
        assert isinstance(prediction, RealPrediction)
        residual = prediction.mean[:, 0] - data.test.y
        errors.append(float(residual.square().mean().sqrt() * data.test.target_std))
        if posterior.inclusion is not None:
            weights = posterior.inclusion[posterior.layout.sparse]
            included.append(float((weights > 0.5).double().mean()))
    return errors, statistics.fmean(included) if included else None


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = study_parser(__doc__, quick="boston and yacht, 4 splits",
                          full="all sets but protein, all splits")  # fmt: skip
    parser.add_argument("--sets", help=f"of {', '.join(SETS)}")
    parser.add_argument("--splits", type=count, help="of each set; all if left out")
    parser.add_argument("--steps", type=count, default=4000)
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args(arguments)
    usual = SETS[:-1] if options.full else SETS[0::7]
    names = chosen("aeb_uci", "set", options.sets or ",".join(usual), SETS)
    methods = chosen("aeb_uci", "method", options.methods, METHODS)
    run = Run("aeb_uci", arguments, options, settings={"steps": options.steps})
    for name in names:
        first = load_data(f"uci/{name}")
        n_splits = options.splits or ((first.n_splits or 1) if options.full else 4)
        sets = [load_data(f"uci/{name}", split=i) for i in range(n_splits)]
        for method in methods:
            setting = {"data": name, "method": method}
            if run.wants(f"{name}/{method}", setting):
                fitted = run_method(method, sets, options.steps, options.device)
                errors, included = score(fitted, sets)
                row = make_row(
                    f"{name}/{method}", setting, [{"rmse": error} for error in errors],
                    seeds=list(range(n_splits)), seconds=round(fitted.seconds, 1), spread=["rmse"],
                    metrics={"included": included},
                )  # fmt: skip
                run.add({**row, "data": name}, ("rmse", "rmse_standard_error"))
    return run.finish(("rmse", "rmse_standard_error", "included"))


if __name__ == "__main__":
    raise SystemExit(main())
