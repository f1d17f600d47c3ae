"""Downloading data sets from their public homes: checked, then renamed into place."""

import hashlib
import http.client
import io
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesieve.data.files import ROOT_VARIABLE, data_root
from bayesieve.data.registry import RemoteFile, data_info
from bayesieve.errors import DataError
from bayesieve.files import write_atomically

Progress: TypeAlias = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all
_TIMEOUT_S = 60
_PIECE = 1 << 18


def fetch_data(name: str, progress: Progress | None = None, root: Path | None = None) -> Path:
    """Download a data set into `root` (default: `data_root()`) unless it is there already.

    Args:
        name: a name of `list_data`.
        progress: called as (file, bytes so far, bytes in all or None) while reading.
        root: the folder to put it in.

    Returns:
        The folder the files are in.

    Example:
        >>> fetch_data("mnist").name  # doctest: +SKIP
        'mnist'
    """
    root = data_root() if root is None else root
    info = data_info(name, root)
    if not info.files:
        return root  # comes with a dependency
    folder = root / Path(info.files[0].path).parent
    if info.found:
        return folder
    for file in info.files:
        try:
            _fetch_file(file, root / file.path, progress)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
            raise DataError(
                f"fetch: {file.url} must be reachable, but: {error}. Check the network, or put "
                f"the files of {info.name} into {folder} by hand."
            ) from error
        except OSError as error:
            raise DataError(
                f"fetch: {folder} must be writable: {error}. Set {ROOT_VARIABLE} to a folder "
                "that is."
            ) from error
    return folder


def _fetch_file(file: RemoteFile, target: Path, progress: Progress | None) -> None:
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)

    def download(out: IO[bytes]) -> None:
        if file.uci_shape is not None:
            _build_uci(file, out, progress)
            return
        digest = hashlib.new(file.checksum.partition(":")[0] or "sha256")
        unpack = zlib.decompressobj(wbits=31) if file.unpacked else None
        try:
            for piece in _pieces(file.url, target.name, progress):
                out.write(piece)
                digest.update(unpack.decompress(piece) if unpack else piece)
        except zlib.error as error:
            raise _wrong_content(file, f"no valid gzip data ({error})") from error
        wanted = file.checksum.partition(":")[2]
        if wanted and digest.hexdigest() != wanted:
            raise _wrong_content(file, digest.hexdigest())

    write_atomically(target, download)


def _wrong_content(file: RemoteFile, got: str) -> DataError:
    return DataError(
        f"fetch: {file.url} must have checksum {file.checksum}, got {got}. Nothing was kept; "
        "try again later, or report that the file has changed."
    )


def _pieces(url: str, name: str, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        while piece := _read_piece(response):
            done += len(piece)
            yield piece
            if progress is not None:
                progress(name, done, total)
    if total is not None and done < total:
        raise urllib.error.URLError(f"the connection ended after {done} of {total} bytes")


def _read_piece(response: IO[bytes]) -> bytes:
    try:
        return response.read(_PIECE)
    except OSError as error:  # told apart from trouble with the disk
        raise urllib.error.URLError(error) from error


def _build_uci(file: RemoteFile, out: IO[bytes], progress: Progress | None) -> None:
    def table(part: str) -> NDArray[np.float64]:
        content = b"".join(_pieces(file.url + part, part, progress))
        return np.loadtxt(io.BytesIO(content), ndmin=1)

    try:
        rows = table("data.txt")
        n_splits = int(table("n_splits.txt")[0])
        x = rows[:, table("index_features.txt").astype(int)]
        y = rows[:, int(table("index_target.txt")[0])]
        masks = np.zeros((n_splits, len(rows)), dtype=bool)
        for split in range(n_splits):
            masks[split, table(f"index_test_{split}.txt").astype(int)] = True
    except (ValueError, IndexError) as error:
        raise DataError(
            f"fetch: {file.url} must hold tables of numbers and row numbers: {error}. Nothing "
            "was kept; try again later."
        ) from error
    if (*x.shape, n_splits) != file.uci_shape:
        raise DataError(
            f"fetch: {file.url} must hold (rows, inputs, splits) {file.uci_shape}, got "
            f"{(*x.shape, n_splits)}. Nothing was kept; report that the files have changed."
        )
    packed = np.packbits(masks, axis=1)
    np.savez(out, x=x, y=y, n_splits=np.array(n_splits), test_mask=packed)
