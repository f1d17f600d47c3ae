"""What can be found wrong with a run before it starts, in the words of its flags."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bayesieve.checks import check_fraction, check_positive, check_seed
from bayesieve.cli.config import RunConfig
from bayesieve.cli.config_files import UsageError
from bayesieve.cli.flags import flag_of
from bayesieve.core.likelihoods import Categorical
from bayesieve.data import DataSet, Examples
from bayesieve.errors import DataError

if TYPE_CHECKING:
    from bayesieve.cli.building import Plan

FILES = ("csv", "parquet", "npz", "images")  # what comes before the colon of a path
_CHECKS: tuple[tuple[Callable[..., None], dict[str, bool], str, str], ...] = (
    (check_positive, {}, "training", "n_models"),
    (check_positive, {}, "training", "threads"),
    (check_positive, {}, "training", "clip_norm"),
    (check_positive, {}, "training", "checkpoint_every"),
    (check_positive, {}, "training", "patience"),
    (check_fraction, {"open_ends": True}, "training", "val_fraction"),
    (check_fraction, {}, "training", "distill_weight"),
    (check_fraction, {}, "pruning", "keep_units"),
)


def check_settings(config: RunConfig) -> None:
    """Raise for numbers that no data or network could make right."""
    values = asdict(config)
    for check, options, section, name in _CHECKS:
        value = values[section][name]
        if value is not None:
            check("train", **options, **{flag_of(section, name): value})
    for section in ("training", "data"):
        check_seed("train", **{flag_of(section, "seed"): values[section]["seed"]})
    if config.training.distill is not None and config.training.distill < 1:
        raise UsageError(f"--distill must be at least 1, got {config.training.distill}.")
    if config.training.distill is None and config.training.distill_epochs is not None:
        raise UsageError("--distill-epochs needs --distill, the number of teachers.")


def check_path(name: str) -> None:
    """Raise if a data set is named by a path that leads nowhere."""
    kind, colon, rest = name.partition(":")
    path = Path(rest).expanduser()
    if not (colon and rest and kind in FILES):
        return
    if not path.exists():
        raise UsageError(f"--data: there is no file or folder {path}.")
    if kind != "images" and path.is_dir():
        raise UsageError(f"--data: {path} is a folder; {kind}: needs a file.")


def check_varied(data: DataSet, train: Examples) -> None:
    """Raise unless the targets to learn from differ."""
    if bool((train.y == train.y[:1]).all()):
        what = "value" if train.y.is_floating_point() else "class"
        fix = "Choose another target." if len(data.input_shape) == 1 else "Add another class."
        raise DataError(
            f"--data: the target has one {what} only in the rows to learn from; there is nothing "
            f"to predict. {fix}"
        )


def check_plan(plan: "Plan") -> None:
    """Find now what would otherwise fail once the folder is written, or after minutes."""
    training = plan.config.training
    plan.length.check(plan.problem, plan.schedule, plan.pruning, None)
    if plan.augment is not None:
        plan.augment.check(plan.problem.x)
    for name, value in asdict(plan.config.engine).items():
        if isinstance(value, tuple) and len(value) != training.n_models:
            flag = flag_of("engine", name)
            raise UsageError(f"{flag} has {len(value)} numbers; --n-models is {training.n_models}.")
    if training.distill is not None and not isinstance(plan.problem.likelihood, Categorical):
        raise UsageError("--distill needs a categorical likelihood.")
    state: Any = plan.engine.init(  # an engine that cannot take the network says so here
        plan.problem, torch.Generator().manual_seed(0), training.n_models
    )
    if plan.pruning is not None:
        plan.pruning.check(plan.engine.posterior(plan.problem, state, 0))
