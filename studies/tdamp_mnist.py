"""EM-TDAMP on MNIST: half of the hidden units of 784-128-10 removed, beside Adam.

    python -m studies.tdamp_mnist --seeds 5 --out results/tdamp_mnist.json --folder run
    python -m studies.tdamp_mnist --full --seeds 1 --out results/tdamp_mnist_full.json
    python -m studies.tdamp_mnist --passes 40 --rows tdamp-64-of-128-long
    python -m studies.tdamp_mnist --quick           # under a minute on one CPU core

Protocol: the first 10,000 training images, batch 100, 10 passes; pixels centred by the training
mean and scaled to unit average energy, for Adam too. Rows: half of the units kept, all of them, as
many as the evidence supports, two hidden layers, and Adam at both widths. The last three passes
cool. The row "long" is meant for 40 passes: it forgets sooner and steps more carefully. Settings
were chosen on training images 10,000 to 19,999 and 50,000 to 59,999 (those of "long" on the former,
one seed); curves are drawn over the former; the test images are read once per finished run.
`--full` trains on all 60,000 images and draws its curves over the test images; nothing is chosen
there.

The report that this study answers imitates the algorithm with Adam (`tdamp_report` runs its
program): accuracy 92.77 %, precision 0.9294, recall 0.9263, F1 0.9268, entropy 0.0070. It calls 64
units active but evaluates all 128.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bayesieve import MAP, TDAMP, Problem, likelihoods, load_data, priors
from bayesieve.assess import figures
from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.storage import save
from bayesieve.data.examples import Examples
from bayesieve.engines import Engine
from bayesieve.nets import mlp
from bayesieve.training.fit import Fit
from bayesieve.training.launch import fit
from bayesieve.training.progress import Progress
from bayesieve.uncertainty.calibration import fit_temperature
from studies.figures import lines
from studies.harness import Row, Run, chosen, make_row, seeded, study_parser
from studies.images import mean_and_draws, of_unit_energy

# What the report prints.
PAPER = {"accuracy": 0.9277, "precision": 0.9294, "recall": 0.9263, "f1": 0.9268,
         "entropy": 0.0070, "units": 64}  # fmt: skip
_N_TRAIN = 10_000
Case = tuple[Engine[Any], tuple[int, ...]]  # and the widths it starts from
_PRIOR = priors.GroupSparse(hidden_variance=0.25, output_variance=2.0)


def cases(passes: int) -> dict[str, Case]:
    """Every row; pruning ends after 0.6 of the passes, the last 0.3 cool."""
    prune = (min(2, passes), max(2, round(0.6 * passes)))
    learned = TDAMP(prune_passes=prune, cool_passes=(round(0.7 * passes) + 1, passes))
    base = replace(learned, prior=_PRIOR, power=12.0, cool_memory=10.0)
    adam = MAP(optimizer="adam", lr=1e-3)
    return {
        "tdamp-64-of-128": (replace(base, keep=0.5), (128,)),
        "tdamp-128": (replace(base, keep=1.0), (128,)),
        "tdamp-learned": (learned, (128,)),
        "tdamp-256-128": (replace(base, keep=1.0), (256, 128)),
        "tdamp-64-of-128-long": (replace(base, keep=0.5, memory=3.0, trust=0.3), (128,)),
        "adam-64": (adam, (64,)),
        "adam-128": (adam, (128,)),
    }


class Splits(NamedTuple):
    """Training images, the images curves are drawn over, and those read once."""

    train: Examples
    watch: Examples
    test: Examples


def splits(n_train: int | None) -> Splits:
    """Centred and scaled by the training images; None trains on all and watches the test images."""
    data = load_data("mnist")
    if n_train is None:
        train, test = of_unit_energy(data.train, data.test)
        return Splits(train, test, test)
    n = min(n_train, len(data.train) // 2)
    first, second = (data.train.subset(torch.arange(i, i + n)) for i in (0, n))
    return Splits(*of_unit_energy(first, second, data.test))


def n_units(posterior: Posterior) -> int:
    """Hidden units with at least one incoming weight that is not exactly 0."""
    named = posterior.layout.unflatten(posterior.mean)
    hidden = [name for name in named if name.startswith("fc") and name.endswith("weight")]
    return sum(int((named[name] != 0).any(1).sum()) for name in hidden)


def run_once(
    case: Case, data: Splits, seed: int, passes: int, device: str = "cpu"
) -> tuple[Fit, list[dict[str, Any]]]:
    """Train one seed and note after each pass how well the posterior mean does."""
    history: list[dict[str, Any]] = []

    def note(progress: Progress) -> bool:
        posterior = progress.posterior()
        scores = evaluate(posterior, data.watch).to_dict()
        names = ("accuracy", "precision", "recall", "f1", "nll", "ece")
        history.append({"pass": progress.epoch, **{name: scores[name] for name in names},
                        "units": n_units(posterior), "zeros": scores["zeros"],
                        "seconds": progress.row["seconds"]})  # fmt: skip
        return False

    shape = tuple(data.train.x.shape[1:])
    engine, widths = case
    model = seeded(seed, mlp, shape, 10, widths=widths)  # Adam starts from its weights
    problem = Problem(model, likelihoods.Categorical(), data.train).to(device)
    run = fit(problem, engine, epochs=passes, batch_size=100, seed=seed, callbacks=[note])
    return run, history


def record(run: Fit, history: Sequence[Mapping[str, Any]], data: Splits) -> dict[str, Any]:
    """The test scores of one seed: at the mean, over draws, and at a temperature fit elsewhere."""
    posterior = run.posterior
    watched = predict(posterior, data.watch.x)
    assert isinstance(watched, ClassPrediction)
    temperature = fit_temperature(watched.log_probs.cpu(), data.watch.y)
    tempered = evaluate(posterior, data.test, temperature=temperature).to_dict()
    names = ("accuracy", "precision", "recall", "f1", "nll", "ece", "entropy", "zeros", "weights")
    drawn = ("accuracy", "nll", "ece", "entropy")
    return {
        **mean_and_draws(posterior, data.test, names, drawn, "draws_"),
        "temperature": temperature,
        **{f"tempered_{name}": tempered[name] for name in ("nll", "ece")},
        "units": n_units(posterior),
        "seconds_per_pass": statistics.median(row["seconds"] for row in history),
        "history": list(history),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the table and write one record, and a folder of pictures on request."""
    parser = study_parser(__doc__, quick="one seed, 2,000 images", full="all 60,000 images",
                          seeds=5)  # fmt: skip
    parser.set_defaults(device="cpu")
    parser.add_argument("--passes", type=int, default=10)
    names = list(cases(10))
    shown = [name for name in names if not name.endswith("-long")]
    parser.add_argument("--rows", default=",".join(shown), help=f"comma list of {names}")
    parser.add_argument("--folder", type=Path, help="for pictures and the posterior")
    options = parser.parse_args(arguments)
    data = splits(None if options.full else 2_000 if options.quick else _N_TRAIN)
    seeds = [0] if options.quick else list(range(options.seeds))
    watched = "test images" if options.full else "training images not trained on"
    settings = {"n_train": len(data.train), "passes": options.passes, "curves_over": watched}
    run = Run("tdamp_mnist", arguments, options, data="MNIST", settings=settings)
    first: Fit | None = None
    usual = options.quick or len(data.train) == _N_TRAIN
    for name in chosen("tdamp_mnist", "--rows", options.rows, names):
        case, each = cases(options.passes)[name], []
        setting = {"engine": repr(case[0]), "widths": case[1]}
        row_name = name if usual else f"{name}/{len(data.train)}"  # the table has 10,000 images
        if not run.wants(row_name, setting):
            continue
        for seed in seeds:
            fitted, history = run_once(case, data, seed, options.passes, options.device)
            each.append(record(fitted, history, data))
            first = fitted if first is None and name == "tdamp-64-of-128" else first
        passes = len(each[0]["history"])
        row = make_row(row_name, setting, each, seeds=seeds, spread=["accuracy"],
                       metrics={"passes": passes})  # fmt: skip
        row["seconds"] = passes * row["metrics"]["seconds_per_pass"]
        run.add(row, ("accuracy", "nll", "ece", "draws_accuracy", "units", "seconds_per_pass"))
    if options.folder is not None and first is not None:
        write_folder(options.folder, first, run.rows)
    return run.finish()


def write_folder(folder: Path, run: Fit, rows: Sequence[Row]) -> None:
    """The sparse posterior and four pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    posterior = run.posterior
    inclusion = posterior.inclusion
    assert inclusion is not None
    save(SparseModel(posterior, inclusion > 0.5), folder / "posterior.safetensors")
    histories = {row["name"]: row["each"][0]["history"] for row in rows}
    main = histories["tdamp-64-of-128"]
    passes = range(1, len(main) + 1)
    lines({name: (passes, [line["accuracy"] for line in history])
           for name, history in histories.items()}, folder / "accuracy.png",
          title="Accuracy after each pass", xlabel="pass", ylabel="accuracy")  # fmt: skip
    lines({key: (passes, [line[key] for line in main]) for key in ("precision", "recall", "f1")},
          folder / "scores.png", title="Means over classes", xlabel="pass",
          ylabel="score")  # fmt: skip
    lines({"tdamp-64-of-128": (passes, [line["units"] for line in main])}, folder / "units.png",
          title="Active hidden units", xlabel="pass", ylabel="units")  # fmt: skip
    points = [(line["zeros"], 1 - line["accuracy"]) for line in main]
    figures.error_vs_sparsity(points, folder / "sparsity.png")


if __name__ == "__main__":
    raise SystemExit(main())
