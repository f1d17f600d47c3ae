"""`bayesieve sieve`: from weights somebody trained to a run folder with a sparse network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesieve.cli.console import (
    FiguresFlag,
    ForceFlag,
    JsonFlag,
    given_arguments,
    note,
    print_json,
)
from bayesieve.cli.evaluate import DeviceFlag
from bayesieve.cli.prune import OutOption, Reestimate, show_pruned
from bayesieve.errors import UsageError
from bayesieve.runs.config import DataConfig, NetConfig
from bayesieve.runs.folder import RunFolder

if TYPE_CHECKING:
    from bayesieve.runs.evidence import Way

EXAMPLE = "Example: bayesieve sieve own.safetensors --net mlp:24 --data digits --out s"

LOST = 0.05  # nats per example: what a user should hear about

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
    if zeros is not None and threshold is not None:
        raise UsageError("give either --zeros or --threshold, not both.")
    folder = RunFolder(out)
    folder.check_free(force=force)
    from bayesieve.runs.evidence import Way

    way = Way(zeros, threshold, rule, curvature, labels, seed, reestimate_batchnorm)
    settings = DataConfig(name=data, target=target), NetConfig(name=net, warm_start=str(model))
    result = _run(folder, settings, way, device, figures=figures)
    if json:
        print_json(result)
    else:
        show_pruned({"trained": result["dense"], "sieved": result}, folder)


def loss_warning(lost: float, zeros: float, *, old_statistics: bool) -> str:
    """What to say of a sieve that took too much.

    The evidence is that of each weight, or unit, with all others in place; where many lean on each
    other, as before a BatchNorm, they are missed together though none is alone.

    Args:
        lost: nats per example.
        zeros: fraction of all parameters.
        old_statistics: whether BatchNorm statistics are still those of the dense network.

    Example:
        >>> loss_warning(0.3, 0.9, old_statistics=False)[:46]
        'sieve: the network lost 0.300 nats per example'
    """
    renew = "Renew its BatchNorm statistics (--reestimate-batchnorm). " if old_statistics else ""
    return (
        f"sieve: the network lost {lost:.3f} nats per example with {zeros:.1%} zeros. {renew}"
        "Take fewer (--zeros; curve.json has the cost of each), or train what is left: "
        f"`bayesieve prune RUN --zeros {zeros:.3f} --finetune 5`."
    )


def _run(
    folder: RunFolder,
    settings: tuple[DataConfig, NetConfig],
    way: "Way",
    device: str,
    *,
    figures: bool,
) -> dict[str, Any]:
    from bayesieve.core.workspace import statistics_names
    from bayesieve.runs.evidence import sieve_trained
    from bayesieve.runs.sparse import write_pruned

    run, pruned = sieve_trained(*settings, way, device)
    record = {
        "command": "sieve",
        "arguments": given_arguments(),
        "source": run.config.net.warm_start,
        "rule": way.to_dict(),
    }
    origin = f"trained weights of {Path(run.config.net.warm_start or '').name}, not trained again"
    remarks = way.evidence(run.model)
    result = write_pruned(
        run, pruned, folder, record, figures=figures, remarks=remarks, origin=origin
    )
    lost = result["nll"] - result["dense"]["nll"]
    if lost > LOST:
        old = not way.reestimate_batchnorm and bool(statistics_names(run.model.network))
        note(loss_warning(lost, result["zeros"], old_statistics=old))
    return result
