"""`bayesieve compare`: all engines on one network and data set under one budget."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve.cli.config_files import UsageError
from bayesieve.cli.console import FiguresFlag, JsonFlag, print_json, print_table

EXAMPLE = (
    "Example: bayesieve compare --data mnist --net lenet-300-100 --epochs 20 --seeds 3 "
    "--outside fashion-mnist --out runs/compare"
)


def compare(
    data: Annotated[str, typer.Option(help="Data set: see `bayesieve data list`.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    net: Annotated[
        str | None, typer.Option(help="Network; the default of `bayesieve train` unless given.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma list; every method that applies unless given.")
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
    target: Annotated[str | None, typer.Option(help="Tables: the column to predict.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace what is in --out.")] = False,
    figures: FiguresFlag = True,
    json: JsonFlag = False,
) -> None:
    """Train and score every method with the same number of gradients; rank them honestly."""
    if (out / "compare.json").exists() and not force:
        raise UsageError(f"{out} holds a comparison already; give --force or another --out.")
    from bayesieve.cli.comparing import Wanted, run_comparison

    wanted = Wanted(
        data=data,
        net=net,
        methods=None if methods is None else tuple(m.strip() for m in methods.split(",")),
        outside=outside,
        target=target,
        n_train=n_train,
        seed=seed,
        device=device,
    )
    budget = {
        "epochs": epochs,
        "batch_size": batch_size,
        "seeds": seeds,
        "zeros": _fractions(zeros),
        "finetune": finetune,
        "draws": samples,
        "attack": attack or None,
    }
    result = run_comparison(wanted, budget, out, figures=figures)
    if json:
        print_json(result)
        return
    _show(result, out)


def _short(metric: str) -> str:
    """A name that fits a terminal, such as 98 % for the error at 98 % zeros."""
    for words in ("error at ", " zeros", "error under ", "out-of-distribution "):
        metric = metric.replace(words, "")
    return metric


def _fractions(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise UsageError(f"--zeros must be numbers such as 0.9,0.98; got {text!r}.") from error


def _show(result: dict[str, Any], out: Path) -> None:
    header, *rows = result["table"]
    print_table(
        "Mean over seeds",
        tuple(_short(name) for name in header),
        [tuple(cell.split(" ")[0] for cell in row) for row in rows],
    )
    for sentence in result["reading"]:
        print(f"- {sentence}")
    for left_out in result["left_out"]:
        print(f"- {left_out['name']} left out: {left_out['reason']}")
    print(f"table, picture and numbers: {out / 'compare.md'}")
