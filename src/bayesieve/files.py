"""Write files so that a crash or a reader never sees half a file."""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

Content = bytes | str | Mapping[str, Any] | list[Any] | Callable[[IO[bytes]], object]


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
