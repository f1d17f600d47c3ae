"""Write files whole or not at all, and read JSON that may be damaged or hostile."""

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from bayesieve.errors import damaged

MAX_JSON_BYTES = 64 << 20
MAX_DEPTH = 64
Content = bytes | str | Mapping[str, Any] | list[Any] | Callable[[IO[bytes]], object]
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.S)


def write_atomically(path: Path | str, content: Content) -> Path:
    r"""Write a file: after a crash the path holds the old content or the new, never a mixture.

    The content goes to a hidden neighbour of the file, is forced to the disk, and then takes the
    file's name in one step.

    Args:
        path: file to write; its folder must exist. An existing file is replaced.
        content: bytes; text, as UTF-8; a mapping or list, as JSON; or a function that writes to an
            open stream, for content that should not stand in memory at once.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_atomically(Path(folder) / "a.json", {"n": 1})
        ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
        [('a.json', '{\n "n": 1\n}\n')]
    """
    if isinstance(content, Mapping | list):
        content = json.dumps(content, indent=1) + "\n"
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))  # a link keeps pointing where it points
    if not target.parent.is_dir():
        raise FileNotFoundError(f"save: the folder {target.parent} does not exist; create it.")
    if target.is_dir():
        raise IsADirectoryError(f"save: {target} is a folder; give a file name.")
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with hidden.open("xb") as stream:
            if isinstance(data, bytes):
                stream.write(data)
            else:
                data(stream)
            stream.flush()
            os.fsync(stream.fileno())
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)
    if os.name == "posix":  # make the new name survive a power cut
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return Path(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object from a file, of bounded size and depth.

    Raises:
        DamagedFileError: the file is too large, nested too deeply, or no JSON object.

    Example:
        >>> import tempfile
        >>> read_json(write_atomically(Path(tempfile.mkdtemp()) / "a.json", {"a": [1]}))
        {'a': [1]}
    """
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise damaged(path, f"it has {size} bytes, more than {MAX_JSON_BYTES}")
    return parse_json(path, path.read_bytes())


def parse_json(path: Path, text: bytes, what: str = "it") -> dict[str, Any]:
    """One JSON object of bounded depth; raises an error that names the file and `what` of it."""
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
        elif token[0] in (b"]", b"}"):
            depth -= 1
        if depth > MAX_DEPTH:
            raise damaged(path, f"{what} is nested deeper than {MAX_DEPTH} levels")
    try:
        values = json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{what} is no JSON ({str(error)[:120]})") from error
    if not isinstance(values, dict):
        raise damaged(path, f"{what} must hold one JSON object")
    return values


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")
