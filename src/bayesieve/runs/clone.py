"""Commands whose work is in the package `studies`: it is in a clone, not in the wheel."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from bayesieve.errors import UsageError
from bayesieve.runs.arguments import (
    ARGUMENT,
    COMMAND_LINE,
    Arg,
    Config,
    Count,
    Json,
    Place,
    Share,
    WholeNumber,
    command,
)


@command
def compare(
    out: Place,
    parts: Annotated[Sequence[Place] | None, ARGUMENT] = None,
    *,
    data: str | None = None,
    net: str | None = None,
    methods: str | Sequence[str] | None = None,
    changes: Annotated[Sequence[str] | None, Arg(metavar="TEXT", word="set")] = None,
    epochs: Count = 20,
    seeds: Count = 3,
    batch_size: Count = 128,
    zeros: str | Sequence[float] = "0.9,0.95,0.98,0.99",
    finetune: int = 5,
    samples: Count = 32,
    outside: str | None = None,
    attack: float = 0.1,
    n_train: int | None = None,
    n_test: int | None = None,
    held_out: Share | None = None,
    shift: int = 0,
    flip: bool = False,
    target: str | None = None,
    seed: int = 0,
    device: str = "auto",
    compile: Literal["auto", "on", "off"] = "auto",
    precision: Literal["float32", "bf16"] = "float32",
    force: bool = False,
    figures: bool = True,
) -> Json:
    """Train and score every method with the same number of gradients; rank them honestly.

    Args:
        out: Folder to write.
        parts: Comparisons to join, made in parts by `methods` or `seed`.
        data: Data set to train on: see `bayesieve data list`.
        net: Network; the default of `bayesieve train` unless given.
        methods: Comma list; every method that applies unless given.
        changes: A setting of one method, METHOD.SECTION.NAME=VALUE such as sghmc.engine.lr=0.1;
            repeated.
        epochs: Passes over the data of each method.
        seeds: Repetitions.
        batch_size: Examples per gradient.
        zeros: Fractions of zeros to prune to; empty for none.
        finetune: Epochs of masked training after pruning.
        samples: Weight vectors averaged in a prediction.
        outside: Data set whose test inputs should look foreign.
        attack: Strength of the FGSM attack on images; 0 for none.
        n_train: Use only this many training examples.
        n_test: Score on only this many examples.
        held_out: Score on this fraction of the training examples instead of the test split: for
            choosing settings.
        shift: Move training images by up to this many pixels at random.
        flip: Mirror training images at random.
        target: Tables: the column to predict.
        seed: Seed of everything.
        device: auto, cpu, cuda or cuda:N.
        compile: Whether to compile steps: auto does it for long runs.
        precision: Of the network in a training step; bf16 is faster on a GPU.
        force: Replace what is in `out`.
        figures: Whether to draw pictures.
    """
    asked = dict(locals())
    require_studies("compare")
    from studies.comparison.budget import Compare
    from studies.comparison.compare import compare as compare_methods

    return compare_methods(Compare(**asked, arguments=COMMAND_LINE.get()))


@command
def sweep(
    config: Config | None = None,
    *,
    out: Place,
    trials: WholeNumber = 20,
    search: Sequence[str] | None = None,
    storage: Annotated[str | None, Arg(metavar="URL")] = None,
    name: str = "bayesieve",
    figures: bool = True,
    trust: bool = False,
    **settings: Any,
) -> Json:
    """Search for settings: validation error against size, as a Pareto front.

    Args:
        config: YAML, TOML or JSON file with what stays fixed.
        out: Folder of the search; an old one is continued.
        trials: Settings to try in this call; 0 only gathers what workers found.
        search: What varies: section.name=LOW:HIGH[:log] or section.name=A|B|C, repeated. Learning
            rate, KL weight and zeros unless given.
        storage: Database URL shared by workers on several machines; a journal file in `out` unless
            given, which workers on one machine share.
        name: Name of the search in the database, which may hold several.
        figures: Whether to draw pictures.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
        settings: Settings of the run by name, such as data='digits', engine='sbnn', zeros=0.9.
    """
    require_studies("sweep")
    from studies.search import sweep as search_settings

    return search_settings(
        out, settings, config=config, trials=trials, search=search or (), storage=storage,
        name=name, figures=figures, trust=trust,
    )  # fmt: skip


def require_studies(command: str) -> None:
    """Make the package `studies` importable: it is in a clone of the repository, not in the wheel.

    The clone is the one this package runs from, else the one around the working directory.
    """
    here = Path.cwd()
    for folder in (Path(__file__).parents[3], here, *here.parents):
        if (folder / "studies" / "__init__.py").is_file() and (
            folder / "src" / "bayesieve"
        ).is_dir():
            if str(folder) not in sys.path:
                sys.path.append(str(folder))
            return
    raise UsageError(
        f"{command}: the studies are not part of the installed package; clone the repository and "
        "run the command inside the clone."
    )
