"""Airfoil self-noise, 1,503 rows of 5 inputs: fetched from the UCI repository on request.

    python -m studies.airfoil          # downloads into the data folder (BAYESIEVE_DATA), once

No copy is part of this project, and nothing here was measured on it. The SHA-256 of the published
file is not known to us: the first download notes the one it got in a file beside it, and every
later reading compares with that note. The content is checked in any case: 1,503 rows of 6 finite
numbers.
"""

import hashlib
import urllib.request
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesieve.data.files import data_root
from bayesieve.errors import DamagedFileError, DataError
from bayesieve.files import write_atomically

URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/00291/airfoil_self_noise.dat"
ROWS, COLUMNS = 1503, 6


def find_airfoil(root: Path) -> Path | None:
    """The file below a data folder; None where it has not been fetched."""
    path = root / "uci" / "airfoil_self_noise.dat"
    return path if path.is_file() else None


def fetch_airfoil(root: Path, url: str = URL) -> Path:
    """Download the file unless it is there; returns where it is."""
    path = root / "uci" / "airfoil_self_noise.dat"
    if not path.is_file():
        with urllib.request.urlopen(url, timeout=60) as answer:
            content = answer.read(10_000_000)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.decode("ascii"))
        write_atomically(_note(path), hashlib.sha256(path.read_bytes()).hexdigest() + "\n")
    read_airfoil(path)
    return path


def read_airfoil(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inputs, (1503, 5), and sound pressure level, (1503,), of a file that is checked."""
    note = _note(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if note.is_file() and note.read_text(encoding="ascii").strip() != found:
        raise DamagedFileError(f"airfoil: {path} has changed since it was fetched. Fetch it again.")
    try:
        values = np.loadtxt(path)
    except ValueError as error:
        raise DataError(f"airfoil: {path} must hold {COLUMNS} numbers a line: {error}.") from error
    if values.shape != (ROWS, COLUMNS) or not np.isfinite(values).all():
        raise DataError(
            f"airfoil: {path} must have {ROWS} rows of {COLUMNS} finite numbers, got "
            f"{values.shape}."
        )
    return values[:, :-1], values[:, -1]


def _note(path: Path) -> Path:
    return path.with_suffix(".sha256")


if __name__ == "__main__":
    print(fetch_airfoil(data_root()))
