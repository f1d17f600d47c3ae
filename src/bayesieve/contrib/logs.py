"""Numbers of a run for the tools that people watch: CSV, TensorBoard, Weights & Biases, MLflow.

Every log is a callback of `fit` and writes the same numbers: those of a row of `metrics.jsonl`,
with one curve for each model of a population. `EverySteps(100, log)` writes between epochs too.
"""

import csv
import importlib.util
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bayesieve.errors import UsageError
from bayesieve.files import write_atomically
from bayesieve.training.progress import Progress, Row


def scalars(row: Row) -> dict[str, float]:
    """The numbers of a row by name; those of a population get the number of their model.

    Example:
        >>> scalars({"epoch": 2, "log_lik": [-3.0, -4.0], "note": "warm"})
        {'epoch': 2.0, 'log_lik/0': -3.0, 'log_lik/1': -4.0}
    """
    numbers = {}
    for name, value in row.items():
        many = isinstance(value, list | tuple)
        for i, one in enumerate(value if many else [value]):
            if isinstance(one, int | float) and not isinstance(one, bool):
                numbers[f"{name}/{i}" if many else name] = float(one)
    return numbers


class Log(ABC):
    """A callback that writes numbers and never ends the run; `close` it, or use it in a `with`.

    Args:
        folder: of the run.
        settings: of the run, for tools that show them.
    """

    package: ClassVar[str | None] = None  # module to import, which is also its name for pip
    extra: ClassVar[str | None] = None  # of ours, that installs it

    def __init__(self, folder: Path | str, settings: Mapping[str, Any] | None = None) -> None:
        self.check_installed()
        self._open(Path(folder), settings or {})

    @classmethod
    def check_installed(cls) -> None:
        """Raise if the package that writes is missing."""
        if cls.package is not None and importlib.util.find_spec(cls.package) is None:
            name = cls.package if cls.extra is None else f"'bayesieve[{cls.extra}]'"
            raise ImportError(f"{cls.__name__} needs {cls.package}: `pip install {name}`.")

    @abstractmethod
    def _open(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin."""

    @abstractmethod
    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of one step."""

    def close(self) -> None:  # noqa: B027 (not every log has something to close)
        """End."""

    def __call__(self, progress: Progress) -> bool:
        """Write one row; never ends the run."""
        self.write(progress.step, scalars(progress.row))
        return False

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CsvLog(Log):
    """A line per row in FOLDER/metrics.csv; a resumed run goes on where it stood.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> log = CsvLog(folder)
        >>> log.write(10, {"elbo": -5.0})
        >>> log.write(20, {"elbo": -4.0, "val_error": 0.25})
        >>> print((folder / "metrics.csv").read_text().strip())
        step,elbo,val_error
        10,-5.0,
        20,-4.0,0.25
    """

    def _open(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._path, self._rows = folder / "metrics.csv", list[dict[str, Any]]()
        if self._path.exists():
            with self._path.open(encoding="utf-8", newline="") as file:
                self._rows = [dict(row) for row in csv.DictReader(file)]

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add a line; a new column, or a step that was there before, rewrites the file."""
        old = self._rows
        columns = list(dict.fromkeys(name for row in old[-1:] for name in row)) or ["step"]
        new = [name for name in numbers if name not in columns]
        kept = [row for row in old if int(row["step"]) < step]
        row = {"step": step} | {name: numbers.get(name, "") for name in (*columns[1:], *new)}
        if new or len(kept) < len(old) or not old:
            self._rows = [dict.fromkeys(row, "") | one for one in kept] + [row]
            write_atomically(self._path, self._lines(self._rows, header=True))
            return
        self._rows.append(row)
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._lines([row], header=False))

    @staticmethod
    def _lines(rows: Sequence[Mapping[str, Any]], *, header: bool) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


class TensorBoardLog(Log):
    """Scalars in FOLDER/tensorboard, for `tensorboard --logdir FOLDER`."""

    package: ClassVar[str | None] = "tensorboard"
    extra: ClassVar[str | None] = "tensorboard"

    def _open(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point of every curve."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbLog(Log):
    """A run of Weights & Biases, named after the folder; WANDB_* variables say where and whose."""

    package: ClassVar[str | None] = "wandb"

    def _open(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(
            dir=str(folder), name=folder.name, config=dict(settings), reinit="create_new"
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point of every curve."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlflowLog(Log):
    """A run of MLflow, named after the folder; MLFLOW_* variables say where it goes."""

    package: ClassVar[str | None] = "mlflow"

    def _open(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import mlflow

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        experiment = mlflow.set_experiment(name).experiment_id
        self._client: Any = mlflow.MlflowClient()
        self._run: str = self._client.create_run(experiment, run_name=folder.name).info.run_id
        for key, value in _flat(settings).items():
            self._client.log_param(self._run, key, value)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point of every curve."""
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


LOGS: dict[str, type[Log]] = {
    "csv": CsvLog,
    "tensorboard": TensorBoardLog,
    "wandb": WandbLog,
    "mlflow": MlflowLog,
}


def log_classes(names: Sequence[str]) -> list[type[Log]]:
    """The logs of these names, each once; raises for an unknown one and for a missing package.

    Example:
        >>> [one.__name__ for one in log_classes(["csv", "csv"])]
        ['CsvLog']
    """
    chosen = dict.fromkeys(name.strip() for name in names)
    if unknown := [name for name in chosen if name not in LOGS]:
        raise UsageError(f"`log` must be one of {', '.join(LOGS)}, got {unknown[0]!r}.")
    for name in chosen:
        LOGS[name].check_installed()
    return [LOGS[name] for name in chosen]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names.

    Example:
        >>> _flat({"engine": {"lr": 0.1}, "seed": 0})
        {'engine.lr': 0.1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= (
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{name}": value}
        )
    return flat
