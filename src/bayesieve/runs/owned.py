"""A folder that a command writes into: it is new, empty, or carries our marker.

The marker `.bayesieve.json` says what kind of folder it is and lists every file we wrote, with its
SHA-256 once it is complete. A name is listed before its file is written. Nothing that is not listed
is ever replaced or removed. While a command writes, `.bayesieve.lock` names it.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from bayesieve.errors import DamagedFileError, UsageError, damaged
from bayesieve.files import read_json, sha256, write_atomically
from bayesieve.lock import LOCK, Lock, folder_locked, is_locked_here

MARKER = ".bayesieve.json"
CHECKPOINTS = "checkpoints/checkpoint-*.safetensors"  # one entry for all: they come and go
GROUPS = tuple(f"group-{i}" for i in range(64))  # folders of parts of a large population
_PATTERNS = {f"{home}{CHECKPOINTS}" for home in ("", "teachers/", *(f"{g}/" for g in GROUPS))}
_SHOWN = 3  # names in a message


@dataclass(frozen=True)
class OwnedFolder:
    """One folder of ours: `check_free` before any work, then `locked`, `begin`, `place`, `seal`.

    Example:
        >>> import tempfile
        >>> folder = OwnedFolder(Path(tempfile.mkdtemp()) / "a")
        >>> with folder.locked():
        ...     folder.begin(force=False)
        ...     _ = folder.place("a.txt").write_text("ours")
        ...     folder.seal()
        >>> list(folder.listed()), folder.read_bytes("a.txt")
        (['a.txt'], b'ours')
    """

    path: Path
    kind: ClassVar[str] = "result"
    # Names this kind of folder writes; a file of such a name that is not listed stands in the way.
    layout: ClassVar[tuple[str, ...]] = ()

    # ------------------------------------------------------------------------------- the marker

    def listed(self) -> dict[str, str | None] | None:
        """The files we wrote and their checksums, as far as known; None without a marker."""
        marker = self._marker()
        return None if marker is None else marker[1]

    def _marker(self) -> tuple[str, dict[str, str | None]] | None:
        path = self.path / MARKER
        if not path.is_file():
            return None
        values = read_json(path)
        kind, files = values.get("kind"), values.get("files")
        if (
            not isinstance(kind, str)
            or not isinstance(files, dict)
            or values.get("sha256") != _sum(kind, files)
        ):
            raise damaged(path, f"it is not as we wrote it; without it {self.path} can still be "
                          "read, but not written into", self.kind)  # fmt: skip
        return kind, files

    def _write_marker(self, files: dict[str, str | None], kind: str | None = None) -> None:
        kind = kind or self.kind
        about = "bayesieve wrote the files listed here, and replaces or removes no others"
        marker = {"about": about, "kind": kind, "files": files, "sha256": _sum(kind, files)}
        write_atomically(self.path / MARKER, marker)

    # ------------------------------------------------------------------------- before any work

    def holds(self) -> str | None:
        """Name the content that only `force` may replace; None if there is none."""
        files = self.listed()
        return f"a {self.kind}" if files and any(map(self._files, files)) else None

    def is_old(self) -> bool:
        """Return whether an earlier version, which wrote no marker, wrote the folder."""
        return False

    def check_free(self, inputs: Iterable[Path] = (), *, force: bool, flag: str = "`out`") -> None:
        """Raise unless a command may begin here; changes nothing.

        Args:
            inputs: what the command reads; none of it may be a file that would be replaced.
            force: whether what we wrote may be replaced.
            flag: how the user named the folder.
        """
        if not str(self.path) or self.path.is_file():
            raise UsageError(f"{flag} {self.path} is a file; give a folder.")
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{flag} {self.path} is no folder; give a new one.")
        # First: a file that another process has just written may not be listed yet.
        if (self.path / LOCK).exists() and not is_locked_here(self.path):
            Lock(self.path / LOCK, str(self.path)).check()
        self._check_ours(flag)
        ours = {
            os.path.realpath(file) for name in self.listed() or () for file in self._files(name)
        }
        if read := next((path for path in inputs if os.path.realpath(path) in ours), None):
            raise UsageError(
                f"{flag} {self.path} holds {read}, an input of this command; give another {flag}."
            )
        holds = None if force else self.holds()
        if holds:
            raise UsageError(
                f"{self.path} holds {holds}; use {self._remedy()}`force` to replace it, or another "
                f"{flag}."
            )

    def _remedy(self) -> str:
        return ""

    def _check_ours(self, flag: str) -> None:
        marker = self._marker()
        if marker is None:
            if others := self._others():
                if self.is_old():
                    raise UsageError(
                        f"{flag} {self.path} holds a {self.kind} of an earlier version, which did "
                        "not list its files: it can be read, but nothing in it is replaced. Give "
                        f"another {flag}, or move it away."
                    )
                raise self._foreign(others, flag)
            return
        kind, files = marker
        if kind != self.kind:
            raise UsageError(f"{flag} {self.path} holds a {kind}; give another {flag}.")
        known = {file for name in files for file in self._files(name)}
        found = {file for pattern in self.layout for file in self.path.glob(pattern)}
        if found - known:
            raise self._foreign(
                sorted(str(file.relative_to(self.path)) for file in found - known), flag
            )

    def _others(self) -> list[str]:
        """Everything in the folder but our marker and lock."""
        if not self.path.is_dir():
            return []
        return sorted(file.name for file in self.path.iterdir() if file.name not in (MARKER, LOCK))

    def _foreign(self, names: list[str], flag: str) -> UsageError:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return UsageError(
            f"{self.path} holds {', '.join(names[:_SHOWN])}{more}, not listed there as written by "
            f"bayesieve: it is neither replaced nor removed. Move it away, or give another {flag}."
        )

    # --------------------------------------------------------------------------------- writing

    def locked(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Make the folder and keep other processes from writing into it.

        A command that calls another one on the same folder locks it once.
        """
        return folder_locked(self.path, wait)

    def begin(self, *, force: bool, flag: str = "`out`") -> None:
        """Remove what we wrote here earlier and start an empty list of files."""
        self.check_free(force=force, flag=flag)
        self.remove(self.listed() or ())
        self._write_marker({})

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that are listed as ours, and the folders they leave empty."""
        kind, files = self._marker() or (self.kind, {})
        for name in sorted({*names} & {*files}, key=_first):
            for file in self._files(name):
                file.unlink(missing_ok=True)
                with suppress(OSError):  # not empty, or not only ours
                    while (file := file.parent) != self.path:
                        file.rmdir()
            del files[name]
        self._write_marker(files, kind)

    def adopt(self) -> None:
        """Go on in a folder of ours; one of an earlier version gets the list of its files."""
        if self._marker() is None:
            names = {p.relative_to(self.path).as_posix() for g in self.layout
                     for p in self.path.glob(g)}  # fmt: skip
            self._write_marker(dict.fromkeys(sorted(names)))
        self._check_ours("`out`")

    def place(self, *names: str) -> Path:
        """List files that are about to be written; returns the path of the first.

        Raises:
            UsageError: a file of such a name exists and is not ours.
        """
        self.check_place(*names)
        marker = self._marker()
        kind, files = marker or (self.kind, {})
        for name in names:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        if marker is not None and any(files.get(name, "") is not None for name in names):
            self._write_marker(files | dict.fromkeys(names), kind)
        return self.path / names[0]

    def check_place(self, *names: str, flag: str = "`out`") -> None:
        """Raise if a file of such a name exists and is not listed as ours."""
        files = self.listed() or {}
        foreign = [
            name for name in names if name not in files and os.path.lexists(self.path / name)
        ]
        if foreign:
            raise self._foreign(foreign, flag)

    def check_open(self, *names: str, flag: str = "`out`") -> None:
        """Raise unless files may be added: to a new or empty folder, one of ours, or an old one."""
        if not (self.listed() is None and self.is_old()):
            self.check_free(force=True, flag=flag)
        self.check_place(*names, flag=flag)

    def open_to_add(self) -> None:
        """Begin a list of files, unless the folder has one or is an old one, which stays as is."""
        if self.listed() is None and not self.is_old():
            self.begin(force=False)

    def seal(self) -> None:
        """Write down the checksums of the listed files, but for those that carry their own."""
        marker = self._marker()
        if marker is None:
            return
        kind, files = marker
        for name, known in files.items():
            if known is None and not name.endswith(".safetensors"):
                found = self._files(name)
                files[name] = sha256(found[0]) if found else None
        self._write_marker(files, kind)

    def _files(self, name: str) -> list[Path]:
        """The existing files of one entry of the marker; none that lies outside the folder."""
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            return []
        home = (self.path / pure).parent
        if os.path.realpath(home) != os.path.join(os.path.realpath(self.path), *pure.parts[:-1]):
            return []  # through a link
        if name in _PATTERNS:
            return [*home.glob(pure.name), *home.glob(pure.with_suffix(".sha256").name)]
        file = self.path / pure
        return [file] if os.path.lexists(file) and not file.is_dir() else []

    # --------------------------------------------------------------------------------- reading

    def read_bytes(self, name: str) -> bytes:
        """The content of a file, compared with the checksum in the marker if it is there."""
        file, content = self.path / name, (self.path / name).read_bytes()
        expected = (self.listed() or {}).get(name)
        if expected is not None and hashlib.sha256(content).hexdigest() != expected:
            raise DamagedFileError(
                f"{file} is damaged: its {len(content)} bytes are not those that were written "
                f"(SHA-256 differs from {MARKER}). The other files of {self.path} are checked "
                "when they are read. Restore it from a copy, or make the folder anew."
            )
        return content


def _sum(kind: str, files: dict[str, str | None]) -> str:
    return hashlib.sha256(json.dumps([kind, files], sort_keys=True).encode()).hexdigest()


def _first(name: str) -> tuple[bool, bool, str]:
    """Order of removal: a run whose settings are gone is neither read nor continued by mistake."""
    return name != "config.json", name != "metrics.json", name
