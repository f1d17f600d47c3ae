"""`bayesieve compare`: all engines on one network and data set under one budget."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve import runs
from bayesieve.cli.console import (
    FiguresFlag,
    JsonFlag,
    given_arguments,
    print_json,
    print_table,
)

EXAMPLE = "Example: bayesieve compare --data digits --epochs 20 --out runs/compare"


def compare(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    parts: Annotated[
        list[Path] | None,
        typer.Argument(help="Comparisons to join, made in parts by --methods or --seed."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set to train on: see `bayesieve data list`.")
    ] = None,
    net: Annotated[
        str | None, typer.Option(help="Network; the default of `bayesieve train` unless given.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma list; every method that applies unless given.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of one method, METHOD.SECTION.NAME=VALUE such as sghmc.engine.lr=0.1; "
            "repeated.",
            metavar="TEXT",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data of each method.")] = 20,
    seeds: Annotated[int, typer.Option(help="Repetitions.")] = 3,
    batch_size: Annotated[int, typer.Option(help="Examples per gradient.")] = 128,
    zeros: Annotated[
        str, typer.Option(help="Fractions of zeros to prune to; empty for none.")
    ] = "0.9,0.95,0.98,0.99",
    finetune: Annotated[int, typer.Option(help="Epochs of masked training after pruning.")] = 5,
    samples: Annotated[int, typer.Option(help="Weight vectors averaged in a prediction.")] = 32,
    outside: Annotated[
        str | None, typer.Option(help="Data set whose test inputs should look foreign.")
    ] = None,
    attack: Annotated[
        float, typer.Option(help="Strength of the FGSM attack on images; 0 for none.")
    ] = 0.1,
    n_train: Annotated[
        int | None, typer.Option(help="Use only this many training examples.")
    ] = None,
    n_test: Annotated[int | None, typer.Option(help="Score on only this many examples.")] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Score on this fraction of the training examples instead of the test split: "
            "for choosing settings."
        ),
    ] = None,
    shift: Annotated[
        int, typer.Option(help="Move training images by up to this many pixels at random.")
    ] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror training images at random.")] = False,
    target: Annotated[str | None, typer.Option(help="Tables: the column to predict.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    compile: Annotated[
        str,
        typer.Option(
            help="Whether to compile steps: auto does it for long runs.", metavar="auto|on|off"
        ),
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="Of the network in a training step; bf16 is faster on a GPU.",
            metavar="float32|bf16",
        ),
    ] = "float32",
    force: Annotated[bool, typer.Option("--force", help="Replace what is in --out.")] = False,
    figures: FiguresFlag = True,
    json: JsonFlag = False,
) -> None:
    """Train and score every method with the same number of gradients; rank them honestly."""
    result = runs.compare(
        out,
        parts,
        data=data,
        net=net,
        methods=methods,
        changes=changes,
        epochs=epochs,
        seeds=seeds,
        batch_size=batch_size,
        zeros=zeros,
        finetune=finetune,
        samples=samples,
        outside=outside,
        attack=attack,
        n_train=n_train,
        n_test=n_test,
        held_out=held_out,
        shift=shift,
        flip=flip,
        target=target,
        seed=seed,
        device=device,
        compile=compile,
        precision=precision,
        force=force,
        figures=figures,
        arguments=given_arguments(),
    )
    if json:
        print_json(result)
    else:
        _show(result, out)


def _show(result: dict[str, Any], out: Path) -> None:
    """Two tables that fit a terminal: how good each method is, and what it loses and costs."""
    header, *rows = result["table"]
    zeros = [i for i, name in enumerate(header) if name.endswith("zeros")]
    costs = range(header.index("seconds"), len(header))
    quality = [i for i in range(1, len(header)) if i not in zeros and i not in costs]
    metric = header[zeros[0]].partition(" at ")[0] if zeros else ""
    title = f"{metric} after pruning, and cost" if zeros else "Cost"
    for words, columns in (("Mean over seeds", quality), (title, [*zeros, *costs])):
        print_table(
            words,
            ("method", *(_short(header[i]) for i in columns)),
            [(row[0], *(row[i].partition(" ±")[0] for i in columns)) for row in rows],
        )
    for sentence in result["reading"]:
        print(f"- {sentence}")
    for left_out in result["left_out"]:
        print(f"- {left_out['name']} left out: {left_out['reason']}")
    print(f"table, picture and numbers: {out / 'compare.md'}")


def _short(metric: str) -> str:
    """A name that fits a terminal, such as 98 % for the error at 98 % zeros.

    Example:
        >>> _short("error at 98 % zeros"), _short("error under FGSM 0.1")
        ('98 %', 'FGSM 0.1')
    """
    for words in ("error at ", "RMSE at ", " zeros", "error under ", "out-of-distribution "):
        metric = metric.replace(words, "")
    return metric
