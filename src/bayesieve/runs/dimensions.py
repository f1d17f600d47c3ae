"""What a search varies, and the storage in which its workers meet."""

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesieve.errors import UsageError
from bayesieve.runs.config import RunConfig, plain_value, takes_whole_numbers, to_dict

if TYPE_CHECKING:
    import optuna

_ATTEMPTS, _PAUSE = 6, 0.25  # to open a database, and the least time between two, in seconds
_OWN = ("device", "threads")  # settings of training that each machine may choose for itself


@dataclass(frozen=True)
class Dimension:
    """One setting that varies: a range, perhaps on a log scale, or a list of choices."""

    name: str  # section.setting
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[bool | int | float | str, ...] = ()
    whole: bool = False

    @classmethod
    def parse(cls, text: str) -> "Dimension":
        """Read `section.name=LOW:HIGH[:log]` or `section.name=A|B`.

        Example:
            >>> Dimension.parse("engine.lr=1e-4:1e-2:log").high
            0.01
            >>> Dimension.parse("engine.start=he|module").choices
            ('he', 'module')
            >>> Dimension.parse("training.batch_size=32:256:log").middle
            91
        """
        name, equals, rest = text.partition("=")
        if not equals or "." not in name:
            raise UsageError(f"--search must read section.name=LOW:HIGH or A|B, got {text!r}.")
        if "|" in rest:
            return cls(name, choices=tuple(plain_value(part.strip()) for part in rest.split("|")))
        parts = rest.split(":")
        try:
            low, high = float(parts[0]), float(parts[1])
        except (IndexError, ValueError) as error:
            raise UsageError(f"--search {name}: give LOW:HIGH, got {rest!r}.") from error
        log = parts[2:] == ["log"]
        if low >= high or (log and low <= 0) or (len(parts) > 2 and not log):
            raise UsageError(f"--search {name}: LOW:HIGH[:log] with LOW < HIGH, got {rest!r}.")
        whole = takes_whole_numbers(name)
        if whole and not (low.is_integer() and high.is_integer()):
            raise UsageError(f"--search {name}: give whole numbers, got {rest!r}.")
        return cls(name, low, high, log, whole=whole)

    def suggest(self, trial: "optuna.Trial") -> Any:
        """A value for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    @property
    def middle(self) -> Any:
        """A value that may be tried: half way, or the first choice."""
        if self.choices:
            return self.choices[0]
        value = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        return round(value) if self.whole else value


def open_study(out: Path, storage: str | None, name: str, seed: int) -> "optuna.Study":
    """The search of that name, begun now or earlier, here or by another worker.

    Args:
        out: folder of the journal, if there is no database.
        storage: database URL, or None.
        name: of the search, which may share its database with others.
        seed: of the settings tried.
    """
    try:
        import optuna
        from sqlalchemy.exc import ArgumentError, DatabaseError

        from bayesieve.runs.trial_sampler import TrialSampler
    except ImportError as error:
        raise ImportError(
            "sweep needs optuna: install it with `pip install 'bayesieve[sweep]'`."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for attempt in range(_ATTEMPTS):
        try:
            return optuna.create_study(
                study_name=name,
                storage=storage or _journal(out),
                directions=["minimize", "minimize"],
                sampler=TrialSampler(seed),
                load_if_exists=True,
            )
        except (ArgumentError, DatabaseError) as error:
            # Workers that start together all make the tables of a new database; one succeeds.
            if isinstance(error, DatabaseError) and attempt < _ATTEMPTS - 1:
                time.sleep(_PAUSE * (1 + random.random()))
                continue
            reason = " ".join(str(error).split())
            raise UsageError(
                f"--storage {storage}: this database cannot be used ({reason}). A URL looks like "
                "sqlite:////shared/sweep.db or postgresql://user@host/sweeps."
            ) from error
    raise AssertionError("the last attempt returns or raises")


def _journal(out: Path) -> "optuna.storages.BaseStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(out / "journal.log")))


def check_same(study: "optuna.Study", config: RunConfig, space: Sequence[Dimension]) -> None:
    """Raise unless a search is continued with what it was begun with."""
    settings = to_dict(config)
    settings["training"] = {k: v for k, v in settings["training"].items() if k not in _OWN}
    about = {"config": settings, "space": [repr(own) for own in space]}
    before = study.user_attrs.get("about")
    if before is None:
        study.set_user_attr("about", about)
    elif json.loads(json.dumps(about)) != before:
        raise UsageError(
            "the search in this storage was begun with other settings; give those, or another "
            "--out (with --storage: another --name)."
        )
