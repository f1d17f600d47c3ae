"""A run folder: its files, how far its run is, and checks before a path is written to or read.

Nothing here imports torch.
"""

import importlib.metadata
import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from bayesieve import __version__
from bayesieve.errors import DamagedFileError, UsageError
from bayesieve.files import check_limit, check_output, parse_json, standing, write_atomically
from bayesieve.runs.arguments import ARGUMENT, Json, Place, command
from bayesieve.runs.config import RECORD, RunConfig, from_dict, to_dict, without_record
from bayesieve.runs.owned import CHECKPOINTS, OwnedFolder

NETWORK = "network.safetensors"  # the graph of a network that a user's factory built
PAGE, CERTIFICATE = "report.html", "certificate.json"
_ABOUT_RUN = "config.json"
_BARS = 30  # of a course drawn as text
_PICTURES = (
    "training", "reliability", "confusion", "uncertainty", "examples", "fit", "inclusion", "layers",
    "sparsity", "overview", "pixels", "importance", "attack",
)  # fmt: skip


@dataclass(frozen=True)
class RunFolder(OwnedFolder):
    """Where a run is kept.

    config.json holds the settings, posterior.safetensors what was learned (with its mask, when
    pruned), familiarity.safetensors what training inputs look like, metrics.json the final
    numbers, metrics.jsonl one line per epoch.
    """

    kind: ClassVar[str] = "run"
    layout: ClassVar[tuple[str, ...]] = (
        _ABOUT_RUN, "metrics.jsonl", "metrics.json", "curve.json", "chains.json", "attack.json",
        CERTIFICATE, "familiarity.safetensors", NETWORK, "report.md", PAGE, "importance.json",
        "posterior*.safetensors", CHECKPOINTS, "checkpoints/checkpoint-*.sha256",
        *(f"figures/{name}.png" for name in _PICTURES),
    )  # fmt: skip

    @property
    def posterior(self) -> Path:
        """The saved posterior of the only, or first, model."""
        return self.path / "posterior.safetensors"

    @property
    def figures(self) -> Path:
        """Folder of pictures."""
        return self.path / "figures"

    @property
    def to_read(self) -> str:
        """The files for people to read, and where they are."""
        drawn = any(self.figures.glob("*.png"))
        what = "pictures and report" if drawn else "report"
        return f"{what}: {self.path / 'report.md'}"

    @property
    def finished(self) -> bool:
        """Return whether the run came to its end: metrics.json is written last."""
        return (self.path / "metrics.json").is_file()

    def member(self, index: int) -> Path:
        """The saved posterior of one model of a population."""
        return self.path / f"posterior-{index}.safetensors"

    def members(self) -> list[tuple[int, Path]]:
        """Index and file of every model of a population that has a file, in order."""
        names = ((path.stem.partition("-")[2], path) for path in self.path.glob("posterior-*"))
        found = [(int(index), path) for index, path in names if index.isdecimal()]
        return sorted(pair for pair in found if pair[1] == self.member(pair[0]))

    def made_by(self, command: str) -> bool:
        """Return whether a run of this command lies here."""
        return (self.path / _ABOUT_RUN).is_file() and self.record.get("command") == command

    def holds(self) -> str | None:
        """A finished or an unfinished run, in words; None if nothing of ours lies here."""
        if not (self.path / _ABOUT_RUN).exists():
            return super().holds()
        return "a finished run" if self.finished else "an unfinished run"

    def is_old(self) -> bool:
        """Return whether a version without markers wrote this run."""
        if self.listed() is not None or not (self.path / _ABOUT_RUN).is_file():
            return False
        with suppress(DamagedFileError):  # somebody else's config.json
            return isinstance(self.read(_ABOUT_RUN).get(RECORD), dict)
        return False

    def _remedy(self) -> str:
        can_resume = not self.finished and self.made_by("train")
        return "`train(resume=True)` to continue it, " if can_resume else ""

    def inputs(self) -> list[Path]:
        """The files that commands read to open this run: its own, its data, its start."""
        files = [file for pattern in self.layout for file in self.path.glob(pattern)]
        return [file for file in files if file.name != PAGE] + inputs_of(self.read_config())

    def create(
        self,
        config: RunConfig,
        command: str,
        arguments: str | None = None,
        **record: Any,
    ) -> None:
        """Make the folder and write config.json: the settings, and a record of how it was made.

        Args:
            config: settings without gaps.
            command: what wrote the folder, such as train.
            arguments: its command line, if it was called from there.
            record: more that belongs to the record.
        """
        called = {} if arguments is None else {"arguments": arguments}
        made_with = versions("python", "torch", "numpy", "safetensors")
        about = {"command": command, **called, **record, "versions": made_with}
        self.write(_ABOUT_RUN, {**to_dict(config), RECORD: about})
        self.seal()

    def write(self, name: str, content: Mapping[str, Any] | str | bytes) -> None:
        """Write a JSON file, a text file or bytes, all or nothing."""
        write_atomically(self.place(name), content)

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the folder."""
        file = self.path / name
        if not file.is_file():
            raise UsageError(f"{self.path} is not a run folder: it has no {name}.")
        check_limit(file, "json", file.stat().st_size, "bytes of JSON")
        return parse_json(file, self.read_bytes(name), constants=True)

    @property
    def record(self) -> dict[str, Any]:
        """Return how the run was made, from config.json; empty if it is not there."""
        record = self.read(_ABOUT_RUN).get(RECORD)
        return record if isinstance(record, dict) else {}

    def history(self) -> list[dict[str, Any]]:
        """The numbers of every epoch so far."""
        file = self.path / "metrics.jsonl"
        lines = self.read_bytes(file.name).splitlines() if file.is_file() else []
        return [parse_json(file, line, "a line", constants=True) for line in lines if line.strip()]

    def read_config(self) -> RunConfig:
        """The settings the run was made with."""
        values = self.read("config.json")
        if "format" in values:
            raise UsageError(f"{self.path} is a bundle; give the run folder it was made from.")
        return from_dict(without_record(values), str(self.path / "config.json"))


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
    course = course_of(folder.history(), folder.read_config().training.epochs)
    return {"run": str(run), "finished": folder.finished, **course}


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


def inputs_of(config: RunConfig) -> list[Path]:
    """The files and folders that settings name: data, and weights to start from."""
    named = [(config.data.name or "").partition(":")[2], config.net.warm_start]
    return [Path(path).expanduser() for path in named if path]


def versions(*names: str) -> dict[str, str]:
    """Versions of Bayesieve and of the packages named; python and system are names too."""
    known = {"python": platform.python_version, "system": platform.platform}
    numbers = {"bayesieve": __version__}
    for name in names:
        try:
            numbers[name] = known[name]() if name in known else importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            numbers[name] = "not installed"
    return numbers


def check_out(out: Path, *, force: bool) -> None:
    """Raise unless a bundle may be written to `out`; its parent folders are made."""
    from bayesieve.deliver.bundle import check_free

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        check_free(out, force=force)
    except (FileExistsError, NotADirectoryError) as error:
        hint = "" if force else " Use `force`, or another `out`."
        reason = str(error).removeprefix("save: ").replace("; use force to replace a bundle", "")
        raise UsageError(f"`out`: {reason}{hint}") from error


def check_out_file(out: Path, inputs: Sequence[Path | str] = (), *, force: bool) -> None:
    """Raise unless a file may be written to `out`; its parent folders are made."""
    check_output(out, inputs)
    if os.path.lexists(out) and not force:
        raise UsageError(f"`out={out}` exists; use `force` to replace it, or another `out`.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"`out={out}`: {out.parent} is no folder.") from error


def model_files(path: Path) -> list[Path]:
    """The files behind a model, which no output may replace: of a run, a bundle, or one file."""
    from bayesieve.deliver.bundle import FILES

    if not path.is_dir():
        return [path]
    return [path / n for n in FILES] if is_bundle_folder(path) else RunFolder(path).inputs()


def is_bundle_folder(path: Path) -> bool:
    """Return whether a folder is a bundle; raises unless it is a bundle or a run."""
    from bayesieve.deliver.bundle import is_bundle

    path = standing(path)
    if not path.is_dir():
        raise UsageError(f"there is no folder {path}.")
    if not (path / "config.json").is_file():
        raise UsageError(f"{path} is neither a bundle nor a run folder: it has no config.json.")
    return is_bundle(path)
