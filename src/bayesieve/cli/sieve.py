"""`bayesieve sieve`: from weights somebody trained to a run folder with a sparse network."""

from pathlib import Path
from typing import Annotated

import typer

from bayesieve import runs
from bayesieve.cli.console import (
    FiguresFlag,
    ForceFlag,
    JsonFlag,
    given_arguments,
    print_json,
)
from bayesieve.cli.evaluate import DeviceFlag
from bayesieve.cli.prune import OutOption, Reestimate, show_pruned
from bayesieve.runs.folder import RunFolder

EXAMPLE = "Example: bayesieve sieve own.safetensors --net mlp:24 --data digits --out s"

ModelArgument = Annotated[
    Path, typer.Argument(help="State dict of the trained network, as .safetensors.")
]
Net = Annotated[str, typer.Option(help="Its network, as `train --net` takes it.")]
Data = Annotated[str, typer.Option(help="The data it was trained on, as `train --data` takes it.")]
Target = Annotated[str | None, typer.Option(help="Tables: the column to predict.")]
Zeros = Annotated[
    float | None,
    typer.Option(
        help="Fraction of all parameters to set to 0; what the evidence says unless given."
    ),
]
Threshold = Annotated[
    float | None, typer.Option(help="Keep weights needed with at least this probability [0.5].")
]
RuleOption = Annotated[
    str,
    typer.Option(
        help="Whether each layer's share of needed weights is learned, or even odds are taken.",
        metavar="hierarchical|savage-dickey",
    ),
]
Curvature = Annotated[
    str,
    typer.Option(
        help="Of the weights of each unit together, which lets the rest make up for what goes, or "
        "of each weight alone (any network).",
        metavar="unit|diagonal",
    ),
]
Labels = Annotated[
    str,
    typer.Option(
        help="Curvature from one label sampled per example, or from all of them.",
        metavar="sampled|exact",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the sampled labels.")]


def sieve(
    model: ModelArgument,
    net: Net,
    data: Data,
    out: OutOption,
    target: Target = None,
    zeros: Zeros = None,
    threshold: Threshold = None,
    rule: RuleOption = "savage-dickey",
    curvature: Curvature = "unit",
    labels: Labels = "sampled",
    seed: Seed = 0,
    reestimate_batchnorm: Reestimate = False,
    force: ForceFlag = False,
    device: DeviceFlag = "auto",
    figures: FiguresFlag = True,
    json: JsonFlag = False,
) -> None:
    """Remove from a trained network what the data do not support; nothing is trained again.

    One pass over the data gives every weight a standard deviation (Laplace); Bayesian model
    reduction then tells which weights the evidence would rather see at 0.
    """
    result = runs.sieve(
        model,
        net,
        data,
        out,
        target=target,
        zeros=zeros,
        threshold=threshold,
        rule=rule,
        curvature=curvature,
        labels=labels,
        seed=seed,
        reestimate_batchnorm=reestimate_batchnorm,
        force=force,
        device=device,
        figures=figures,
        arguments=given_arguments(),
    )
    if json:
        print_json(result)
    else:
        show_pruned({"trained": result["dense"], "sieved": result}, RunFolder(out))
