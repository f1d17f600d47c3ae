"""Scalars of a run for TensorBoard: a callback of `fit`."""

import importlib.util
from pathlib import Path
from typing import Any

from bayesieve.training.options import Progress


def check_installed() -> None:
    """Raise if TensorBoard is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ImportError(
            "TensorBoard logs need tensorboard: `pip install 'bayesieve[tensorboard]'`."
        )


class ScalarLog:
    """Writes every number of an epoch's row; a population gets one curve per model.

    Args:
        folder: where TensorBoard looks (`tensorboard --logdir FOLDER`).

    Example:
        fit(problem, engine, epochs=10, callbacks=[ScalarLog(Path("runs/a/tensorboard"))])
    """

    def __init__(self, folder: Path) -> None:
        check_installed()
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, progress: Progress) -> bool:
        """Write one epoch; never ends the run."""
        for name, value in progress.row.items():
            if isinstance(value, list | tuple):
                for i, own in enumerate(value):
                    self._add(f"{name}/{i}", own, progress.step)
            else:
                self._add(name, value, progress.step)
        self._writer.flush()
        return False

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()

    def _add(self, name: str, value: object, step: int) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._writer.add_scalar(name, value, step)
