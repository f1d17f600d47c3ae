"""`bayesieve scratch train`: the NumPy perceptron."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve.checks import check_choice
from bayesieve.cli.console import JsonFlag, note, print_json
from bayesieve.errors import UsageError
from bayesieve.files import check_output
from bayesieve.text import as_percent

_CLASSES = {
    "activation": {"relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "Tanh", "linear": "Linear"},
    "loss": {"cross-entropy": "CrossEntropy", "squared-error": "SquaredError"},
    "initialiser": {"glorot": "Glorot", "random": "Random", "gaussian": "Gaussian"},
    "optimiser": {"gd": "GradientDescent", "adam": "Adam"},
}
scratch_app = typer.Typer(
    help="Train a perceptron written in NumPy alone.",
    epilog="Example: bayesieve scratch train --data mnist --optimiser adam --decay",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@scratch_app.command("train", epilog="Example: bayesieve scratch train --data digits --epochs 30")
def train(
    data: Annotated[str, typer.Option(help="A classification set of `data list`.")] = "digits",
    units: Annotated[str, typer.Option(help="Hidden units, A,B,...")] = "500,250,100",
    activation: Annotated[str, typer.Option(help="relu, sigmoid, tanh or linear.")] = "relu",
    loss: Annotated[str, typer.Option(help="cross-entropy or squared-error.")] = "cross-entropy",
    l1: Annotated[float, typer.Option(help="Strength of an L1 penalty.")] = 0.0,
    l2: Annotated[float, typer.Option(help="Strength of an L2 penalty.")] = 0.0,
    initialiser: Annotated[str, typer.Option(help="glorot, random or gaussian.")] = "glorot",
    optimiser: Annotated[str, typer.Option(help="gd or adam.")] = "adam",
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; 0.1 for gd and 0.001 for adam if not set.")
    ] = None,
    decay: Annotated[
        bool, typer.Option("--decay/--no-decay", help="Let the rate fall linearly to 0.")
    ] = True,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 15,
    batch_size: Annotated[int, typer.Option(help="Examples per step.")] = 64,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    seed: Annotated[int, typer.Option(help="Seed of start and shuffling.")] = 0,
    figure: Annotated[Path | None, typer.Option(help="PNG of the losses to write.")] = None,
    json: JsonFlag = False,
) -> None:
    """Train, and print precision, recall and F1 of each class on the test data."""
    from bayesieve import scratch

    if figure is not None:
        check_output(figure, flag="--figure")

    rule, rate = _named("optimiser", optimiser), 1e-3 if optimiser == "adam" else 0.1
    schedule = scratch.linear_decay if decay else scratch.constant
    plan = scratch.Plan(rule(rate if lr is None else lr), epochs, batch_size, seed, schedule)
    hidden, start = _named("activation", activation), _named("initialiser", initialiser)
    if l1 and l2:
        raise UsageError("--l1 and --l2 cannot be used together. Choose one.")
    penalty = scratch.L1(l1) if l1 else scratch.L2(l2) if l2 else None
    objective = _named("loss", loss)(penalty)
    try:
        layers = tuple(int(word) for word in units.split(",") if word)
    except ValueError:
        raise UsageError(f"--units must be whole numbers A,B,..., got {units!r}.") from None
    splits, n_classes = _load(data)
    net = scratch.FeedForwardNet(
        splits["train"][0].shape[1],
        layers,
        n_classes,
        hidden=hidden(),
        loss=objective,
        initialiser=start(),
        dtype=dtype,  # type: ignore[arg-type]
        seed=seed,
    )
    sizes = "-".join(str(n) for n in (splits["train"][0].shape[1], *layers, n_classes))
    note(f"network {sizes}, {activation}, {loss}; {optimiser}, {epochs} epochs of {data}")
    history = net.train(*splits["train"], plan, splits["val"])
    if figure is not None:
        from bayesieve.assess.figures import training_curves

        losses = [
            {"epoch": row.epoch, "train_loss": row.train_loss, "val_loss": row.val_loss}
            for row in history.records
            if row.val_loss is not None
        ]
        training_curves(losses, figure)
    report = scratch.classification_report(
        splits["test"][1], net.predict(splits["test"][0]), n_classes
    )
    accuracies = {name: net.evaluate(*part).accuracy for name, part in splits.items()}
    if json:
        print_json({"net": repr(net), "accuracy": accuracies, "train_loss": history.train_loss,
                    "val_loss": history.val_loss})  # fmt: skip
        return
    print(report)
    words = {"train": "training", "val": "held-out", "test": "test"}
    right = ", ".join(f"{words[name]} {as_percent(value)}" for name, value in accuracies.items())
    last = history.records[-1]
    print(f"loss: training {last.train_loss:.4g}, held-out {last.val_loss:.4g}")
    print(f"result: accuracy {right}")


def _named(option: str, name: str) -> Any:
    """The class of the room `scratch` that an option names."""
    from bayesieve import scratch

    check_choice("scratch", option, name, _CLASSES[option])
    return getattr(scratch, _CLASSES[option][name])


def _load(name: str) -> tuple[dict[str, tuple[Any, Any]], int]:
    """Rows standardised with one mean and std of the training part; a sixth is held out."""
    from bayesieve.data import load_data

    data = load_data(name)
    if data.task != "classification":
        raise UsageError(f"--data must be a classification set, got {name!r}.")
    rest, held_out = data.train.split(1 / 6, seed=0)
    mean, std = rest.x.mean(), rest.x.std()
    splits = {"train": rest, "val": held_out, "test": data.test}
    rows = {
        split: (((examples.x - mean) / std).flatten(1).numpy(), examples.y.numpy())
        for split, examples in splits.items()
    }
    return rows, data.n_outputs
