"""`bayesieve evaluate`: how good a run is on a split of its data."""

from pathlib import Path
from typing import Annotated

import typer

from bayesieve import runs
from bayesieve.cli.console import JsonFlag, print_json, print_table

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
    result = runs.evaluate(
        run,
        samples=samples,
        seed=seed,
        temperature=temperature,
        split=split,
        member=member,
        device=device,
    )
    if json:
        print_json(result)
        return
    rows = [(name, f"{value:.5g}" if isinstance(value, float) else str(value))
            for name, value in result.items()]  # fmt: skip
    print_table(f"{run} on the {split} split", ("", ""), rows)
