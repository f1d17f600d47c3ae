"""`watch`: how far a run is, from the files that training writes after each epoch. No torch."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from bayesieve.runs.arguments import ARGUMENT, Json, Place, command
from bayesieve.runs.folder import RunFolder

_BARS = 30  # of a course drawn as text


@command
def watch(
    run: Annotated[Place, ARGUMENT],
    *,
    once: bool = False,
) -> Json:
    """Show how far a run is while it trains, from another terminal; Ctrl-C ends only the view.

    Args:
        run: Run folder of `train`, under way or finished.
        once: Show where it is now, and end.
    """
    folder = RunFolder(Path(run))
    config, file = folder.read_config(), folder.path / "metrics.jsonl"
    lines = file.read_bytes().splitlines() if file.is_file() else []
    return {
        "run": str(run),
        "finished": folder.finished,
        **course_of([json.loads(line) for line in lines if line.strip()], config.training.epochs),
    }


def course_of(history: Sequence[Mapping[str, Any]], epochs: int | None) -> Json:
    """The course of training so far.

    Args:
        history: the rows of metrics.jsonl, one per epoch; of a population the first is shown.
        epochs: how many there will be, if that is known.

    Returns:
        epoch, epochs, seconds spent, seconds_left (None where not known) and `numbers`: by name
        the last value and a course of at most 30 values.

    Example:
        >>> rows = [{"epoch": 1, "seconds": 2.0, "zeros": 0.1}, {"epoch": 2, "seconds": 4.0,
        ...          "zeros": [0.5, 0.6]}]
        >>> seen = course_of(rows, 4)
        >>> seen["seconds_left"], seen["numbers"]
        (6.0, {'zeros': {'now': 0.5, 'course': [0.1, 0.5]}})
    """
    done = len(history)
    spent = sum(float(row.get("seconds", 0.0)) for row in history)
    left = None if not done or epochs is None else max(0, epochs - done) * spent / done
    every = math.ceil(max(done, 1) / _BARS)
    some = [*history[:-1:every], *history[-1:]]
    skipped = ("epoch", "step", "seconds")
    names = [name for name in (history[-1] if done else {}) if name not in skipped]
    courses = {name: [_number(row.get(name)) for row in some] for name in names}
    numbers = {
        name: {"now": values[-1], "course": [v for v in values if v is not None]}
        for name, values in courses.items()
        if values[-1] is not None
    }
    return {"epoch": done, "epochs": epochs, "seconds": round(spent, 3), "seconds_left": left,
            "numbers": numbers}  # fmt: skip


def _number(value: Any) -> float | None:
    first = value[0] if isinstance(value, list) and value else value
    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    return float(first) if is_number and math.isfinite(first) else None
