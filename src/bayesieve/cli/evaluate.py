"""`bayesieve evaluate`: how good a run is on a split of its data."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesieve.cli.console import JsonFlag, print_json, print_table
from bayesieve.errors import UsageError
from bayesieve.runs.folder import RunFolder

if TYPE_CHECKING:
    from bayesieve.runs.run import Run

EXAMPLE = "Example: bayesieve evaluate runs/b --samples 100 --json"
RunArgument = Annotated[
    Path, typer.Argument(help="Run folder of `train` or `prune`.", metavar="RUN")
]
DeviceFlag = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]


def evaluate(
    run: RunArgument,
    samples: Annotated[
        int,
        typer.Option(
            help="Posterior draws to average over, of all chains of a sampler; 0 uses the mean "
            "weights."
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Calibrate on the validation split first.")
    ] = False,
    split: Annotated[str, typer.Option(help="What to test on.", metavar="test|train|val")] = "test",
    member: Annotated[
        int | None, typer.Option(help="Which model of a run with --n-models, from 0.")
    ] = None,
    device: DeviceFlag = "auto",
    json: JsonFlag = False,
) -> None:
    """Test a run: error, likelihood, calibration and size."""
    if split not in ("test", "train", "val"):
        raise UsageError(f"--split must be test, train or val, got {split!r}.")
    from bayesieve.runs.run import all_chains, load_run

    own = load_run(RunFolder(run), member=member, device=device)
    if samples and member is None:
        own = replace(own, model=all_chains(RunFolder(run), own))
    result = _measure(own, split, samples, seed, calibrate=temperature)
    if json:
        print_json(result)
        return
    rows = [(name, f"{value:.5g}" if isinstance(value, float) else str(value))
            for name, value in result.items()]  # fmt: skip
    print_table(f"{run} on the {split} split", ("", ""), rows)


def _measure(run: "Run", split: str, samples: int, seed: int, *, calibrate: bool) -> dict[str, Any]:
    from bayesieve.assess.evaluate import evaluate as score
    from bayesieve.runs.results import numbers

    splits = {"test": run.data.test, "train": run.train, "val": run.held_out}
    examples = splits[split]
    if examples is None:
        raise UsageError("--split val: this run held nothing out; train with --val-fraction.")
    extra: dict[str, Any] = {"split": split, "samples": samples}
    temperature = 1.0
    if calibrate:
        temperature = extra["temperature"] = _temperature(run, samples, seed)
    scored = score(run.model, examples, n_samples=samples, seed=seed, temperature=temperature)
    return {**numbers(scored, run.model), **extra}


def _temperature(run: "Run", samples: int, seed: int) -> float:
    from bayesieve.assess.calibration import fit_temperature
    from bayesieve.assess.predict import ClassPrediction, predict

    if run.held_out is None:
        raise UsageError("--temperature needs held-out examples; train with --val-fraction.")
    prediction = predict(run.model, run.held_out.x, n_samples=samples, seed=seed)
    if not isinstance(prediction, ClassPrediction):
        raise UsageError("--temperature is for classification.")
    return fit_temperature(prediction.log_probs.cpu(), run.held_out.y)
