"""A run folder: what lies in it, who may write to it, and how it is read back."""

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesieve import __version__
from bayesieve.errors import DamagedFileError, UsageError
from bayesieve.runs.config import RECORD, RunConfig, from_dict, to_dict

_FILES = (
    "config.json", "metrics.jsonl", "metrics.json", "curve.json", "chains.json", "attack.json",
    "report.md", "report.html",
)  # fmt: skip
_PACKAGES = ("torch", "numpy", "safetensors")


@dataclass(frozen=True)
class RunFolder:
    """Where a run is kept.

    config.json holds the settings, posterior.safetensors what was learned (with its mask, when
    pruned), metrics.json the final numbers, metrics.jsonl one line per epoch.
    """

    path: Path

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
        """What there is for people to read, and where."""
        drawn = any(self.figures.glob("*.png"))
        what = "pictures and report" if drawn else "report"
        return f"{what}: {self.path / 'report.md'}"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: metrics.json is written last."""
        return (self.path / "metrics.json").is_file()

    def member(self, index: int) -> Path:
        """The saved posterior of one model of a population."""
        return self.path / f"posterior-{index}.safetensors"

    def made_by(self, command: str) -> bool:
        """Whether a run of this command lies here."""
        if not (self.path / "config.json").is_file():
            return False
        record = self.read("config.json").get(RECORD, {})
        return isinstance(record, dict) and record.get("command") == command

    def check_free(self, *, force: bool) -> None:
        """Raise unless a new run may be written here."""
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"--out {self.path} is a file; give a folder.")
        if force or not (self.path / "config.json").exists():
            return
        what = "a finished run" if self.finished else "an unfinished run"
        way = "" if self.finished else "--resume to continue it, "
        raise UsageError(
            f"{self.path} holds {what}; use {way}--force to replace it, or another --out."
        )

    def clear(self) -> None:
        """Remove what an earlier run left; files that are not ours stay."""
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        for pattern in ("posterior*.safetensors", "figures/*.png"):
            for file in self.path.glob(pattern):
                file.unlink()
        for name in ("checkpoints", "teachers"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def create(self, config: RunConfig, record: Mapping[str, Any]) -> None:
        """Make the folder and write config.json: the settings, and a record of how it was made."""
        self.path.mkdir(parents=True, exist_ok=True)
        versions = {"bayesieve": __version__, "python": platform.python_version()}
        versions |= {name: importlib.metadata.version(name) for name in _PACKAGES}
        self.write("config.json", {**to_dict(config), RECORD: {**record, "versions": versions}})

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file, all or nothing."""
        self.write_text(name, json.dumps(values, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, all or nothing."""
        from bayesieve.files import write_atomically

        write_atomically(self.path / name, text)

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the folder."""
        file = self.path / name
        if not file.is_file():
            raise UsageError(f"{self.path} is not a run folder: it has no {name}.")
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DamagedFileError(f"{file} is damaged: {error}.") from error
        if not isinstance(values, dict):
            raise DamagedFileError(f"{file} is damaged: it must hold one JSON object.")
        return values

    def read_config(self) -> RunConfig:
        """The settings the run was made with."""
        values = self.read("config.json")
        if "format" in values:
            raise UsageError(f"{self.path} is a bundle; give the run folder it was made from.")
        values.pop(RECORD, None)
        return from_dict(values, str(self.path / "config.json"))
