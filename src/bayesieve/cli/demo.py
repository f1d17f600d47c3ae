"""`bayesieve demo`: the whole way on a small example, in about a minute."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve.cli.console import ForceFlag, JsonFlag, note, print_json, print_quality
from bayesieve.runs.config import (
    DataConfig,
    EngineConfig,
    NetConfig,
    PruningConfig,
    RunConfig,
    ScheduleConfig,
    TrainingConfig,
)
from bayesieve.runs.folder import RunFolder

EXAMPLE = "Example: bayesieve demo --out runs/demo"


def demo(
    out: Annotated[Path, typer.Option(help="Run folder to write.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of both trainings.")] = 0,
    force: ForceFlag = False,
    json: JsonFlag = False,
) -> None:
    """Train a dense network and a sparse Bayesian one on 8x8 digits, and compare them."""
    folder = RunFolder(out)
    folder.check_free(force=force or folder.made_by("demo"))
    result, delivered = _compare(folder, epochs, seed)
    if json:
        print_json({**result, "delivered": delivered})
        return
    print_quality("digits, test images", result)
    n_images = result["dense"]["n_examples"]
    print(
        "error: wrong answers. NLL: how surprised it is by the truth. ECE: gap between its "
        "confidence\nand its accuracy. Lower is better for all three; one image of "
        f"{n_images} is {100 / n_images:.2f} %."
    )
    print(_in_words(delivered))
    print(f"open in a browser: {out / 'report.html'} (as text: {out / 'report.md'})")


def _in_words(delivered: dict[str, Any]) -> str:
    """What was delivered, in two lines."""
    before, after = ("-".join(str(own[i]) for own in delivered["units"]) for i in (0, 1))
    parameters = "{:,} parameters {:,}".format(*delivered["parameters"])
    was, now = delivered["ms_of_64"]
    faster = (
        ""
        if now is None
        else f"64 images take {1000 * now:.0f} µs, not {1000 * was:.0f}, on one core. "
    )
    changed = delivered["changed_predictions"] or "no"
    return (
        f"compacted: {before} hidden units are {after}, {parameters}; {changed} answer changed.\n"
        f"{faster}The model to deliver: {delivered['model']}"
    )


def sparse_config(epochs: int, seed: int) -> RunConfig:
    """The sparse Bayesian network; its numbers were chosen on held-out training data."""
    return RunConfig(
        data=DataConfig(name="digits"),
        net=NetConfig(name="mlp:100,50"),
        engine=EngineConfig(name="sbnn", lr=1e-2),
        schedule=ScheduleConfig(kl=0.1),
        pruning=PruningConfig(zeros=0.9),
        training=TrainingConfig(
            epochs=epochs, batch_size=64, seed=seed, device="cpu", threads=1, checkpoint_every=1000
        ),
    )


def dense_config(epochs: int, seed: int) -> RunConfig:
    """The same network trained the usual way."""
    sparse = sparse_config(epochs, seed)
    return replace(
        sparse,
        engine=EngineConfig(name="map", lr=1e-3),
        schedule=ScheduleConfig(),
        pruning=PruningConfig(),
    )


def _compare(folder: RunFolder, epochs: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    from bayesieve.runs.build import make_plan
    from bayesieve.runs.showcase import train_both

    note("digits: 1,797 handwritten digits of 8x8 pixels, network 64-100-50-10")
    dense, sparse = make_plan(dense_config(epochs, seed)), make_plan(sparse_config(epochs, seed))
    return train_both(dense, sparse, folder)
