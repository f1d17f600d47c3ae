"""The UCI regression sets with their published random splits.

uci/<name>.npz holds x (n, p), y (n,), n_splits and test_mask = packbits(mask, axis=1) of the
(n_splits, n) test masks of Hernandez-Lobato & Adams (2015). `year` is read from the text file of
the UCI repository; its only split is the published one: the last 51,630 rows are the test set.
"""

import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesieve.checks import check_choice
from bayesieve.data.examples import DataSet
from bayesieve.data.files import missing_set, read_npz
from bayesieve.data.frames import Frame
from bayesieve.data.tables import RawTable, encode_table
from bayesieve.errors import DataError
from bayesieve.files import check_growth

# folder of the published text files, rows, inputs, splits
SPLIT_SETS = {
    "boston": ("bostonHousing", 506, 13, 20),
    "concrete": ("concrete", 1030, 8, 20),
    "energy": ("energy", 768, 8, 20),
    "kin8nm": ("kin8nm", 8192, 8, 20),
    "naval": ("naval-propulsion-plant", 11934, 16, 20),
    "power": ("power-plant", 9568, 4, 20),
    "protein": ("protein-tertiary-structure", 45730, 9, 5),
    "wine": ("wine-quality-red", 1599, 11, 20),
    "yacht": ("yacht", 308, 6, 20),
}
Splits: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]
YEAR_ROWS, YEAR_TEST_ROWS, YEAR_COLUMNS = 515_345, 51_630, 91
YEAR_FILE = "YearPredictionMSD.txt"


def find_uci(name: str, root: Path) -> Path | None:
    """Find the file of a set below root/uci.

    Example:
        >>> find_uci("boston", Path("no-such-folder")) is None
        True
    """
    options = [root / "uci" / f"{name}.npz"]
    if name == "year":
        options += [root / "uci" / YEAR_FILE, root / "uci" / f"{YEAR_FILE}.zip"]
    return next((path for path in options if path.is_file()), None)


def load_uci(name: str, root: Path, split: int = 0) -> DataSet:
    """Load one split of a set; inputs and target are standardised on its training part.

    Args:
        name: such as "boston", without "uci/".
        root: the folder that holds uci/.
        split: 0 to n_splits - 1.

    Example:
        >>> data = load_uci("boston", data_root(), split=3)  # doctest: +SKIP
        >>> len(data.train), len(data.test), data.n_splits  # doctest: +SKIP
        (455, 51, 20)
    """
    path = find_uci(name, root)
    if path is None:
        check_choice("uci", "name", name, (*SPLIT_SETS, "year"))
        raise missing_set(f"uci/{name}", root / "uci")
    x, y, masks = read_uci(path)
    if not 0 <= split < len(masks):
        raise ValueError(f"uci/{name}: split must be 0 to {len(masks) - 1}, got {split}.")
    frame = Frame({f"x{j}": column for j, column in enumerate(x.T, start=1)})
    rows = (np.flatnonzero(~masks[split]), np.flatnonzero(masks[split]))
    raw = RawTable(f"uci/{name}", str(path), frame, "y", y, "regression", *rows)
    return encode_table(raw, n_splits=len(masks))


def read_uci(path: Path) -> Splits:
    """Return x (n, p), y (n,) and the test masks (n_splits, n) of a file.

    Example:
        >>> x, y, masks = read_uci(data_root() / "uci" / "boston.npz")  # doctest: +SKIP
        >>> x.shape, masks.sum(axis=1)[0]  # doctest: +SKIP
        ((506, 13), 51)
    """
    if path.suffix != ".npz":
        return _read_year(path)
    arrays = read_npz(path)
    absent = {"x", "y", "n_splits", "test_mask"} - arrays.keys()
    if absent:
        raise DataError(f"uci: {path} must hold x, y, n_splits, test_mask; {absent} not found.")
    x, y, packed = arrays["x"], arrays["y"], arrays["test_mask"]
    n_splits = int(arrays["n_splits"])
    if x.ndim != 2 or y.shape != x.shape[:1] or not x.size:
        raise DataError(f"uci: {path} must hold x (n, p) and y (n,), got {x.shape}, {y.shape}.")
    if packed.dtype != np.uint8 or packed.shape != (n_splits, -(-len(y) // 8)):
        raise DataError(
            f"uci: test_mask of {path} must be bytes of shape ({n_splits}, {-(-len(y) // 8)}), "
            f"got {packed.dtype} of shape {packed.shape}. Make the file again."
        )
    masks = np.unpackbits(packed, axis=1, count=len(y)).astype(bool)
    empty = np.flatnonzero(masks.all(axis=1) | ~masks.any(axis=1))
    if len(empty):
        raise DataError(f"uci: split {empty[0]} of {path} must have training and test rows.")
    _check_finite(path, x, y)
    return x.astype(np.float64), y.astype(np.float64), masks


def _check_finite(path: Path, x: NDArray[Any], y: NDArray[Any]) -> None:
    wrong = np.argwhere(~np.isfinite(np.column_stack([x, y])))
    if len(wrong):
        row, column = wrong[0]
        where = "y" if column == x.shape[1] else f"column {column + 1} of x"
        raise DataError(f"uci: {path} must be finite, but row {row + 1} of {where} is not.")


def _read_year(path: Path) -> Splits:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(YEAR_FILE) as file:
                check_growth(path, archive.getinfo(YEAR_FILE).file_size)
                rows = np.loadtxt(file, delimiter=",", ndmin=2)
        else:
            rows = np.loadtxt(path, delimiter=",", ndmin=2)
    except DataError:
        raise
    except Exception as error:  # zipfile and numpy each have their errors
        raise DataError(f"uci/year: {path} must be an intact table: {error}. Fetch it.") from error
    if rows.shape != (YEAR_ROWS, YEAR_COLUMNS):
        raise DataError(
            f"uci/year: {path} must hold {YEAR_ROWS} rows of {YEAR_COLUMNS} numbers, got "
            f"{rows.shape[0]} of {rows.shape[1]}. Fetch it again."
        )
    masks = np.zeros((1, YEAR_ROWS), dtype=bool)
    masks[0, -YEAR_TEST_ROWS:] = True
    _check_finite(path, rows[:, 1:], rows[:, 0])
    return rows[:, 1:], rows[:, 0], masks
