"""Sources of streams in files: mapped arrays, and Parquet and Arrow tables.

Each knows its length without reading the data, and reads any rows by their numbers, so that runs
are resumed exactly (`data.streams`).
"""

import io
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesieve.data.files import npy_header
from bayesieve.data.streams import Pair, StoredRows
from bayesieve.errors import DataError

PathLike = str | os.PathLike[str]
_BLOCKS_HELD = 10  # row groups in memory of each process that reads; a window and some more
_CUT = "the file is cut short"


class MappedArrays(StoredRows):
    """Inputs and targets in NumPy files that stay on the disk.

    Args:
        x: a .npy file with an array (N, ...); or an .npz file written by `numpy.savez` (not
            `savez_compressed`), which holds both arrays.
        y: a .npy file with the targets, (N, ...); of an .npz file None.
        names: of inputs and targets in an .npz file.
        scale: what inputs are multiplied by, for bytes 0 to 255 such as 1 / 255; None leaves them.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "data.npz"
        >>> np.savez(path, x=np.ones((5, 3), np.float32), y=np.arange(5))
        >>> rows = MappedArrays(path)
        >>> len(rows), rows.take(np.array([3, 1]))[1]
        (5, tensor([3, 1]))
    """

    def __init__(
        self,
        x: PathLike,
        y: PathLike | None = None,
        *,
        names: tuple[str, str] = ("x", "y"),
        scale: float | None = None,
    ) -> None:
        self.scale = scale
        if y is None:
            self.x, self.y = (npz_member(Path(x), name) for name in names)
        else:
            self.x, self.y = mapped_npy(Path(x)), mapped_npy(Path(y))
        if len(self.x) != len(self.y):
            raise DataError(
                f"MappedArrays: {len(self.x)} inputs and {len(self.y)} targets in {x}; there must "
                "be one target for each input."
            )

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: np.ndarray) -> Pair:
        """Copies of some rows."""
        x = torch.from_numpy(self.x[rows])
        if self.scale is not None:
            x = x.to(torch.float32) * self.scale
        return x, torch.from_numpy(self.y[rows])


def mapped_npy(path: Path) -> np.ndarray:
    """The array of a .npy file, on the disk."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be mapped as a .npy file: {error}.") from error


def npz_member(path: Path, name: str) -> np.ndarray:
    """An array inside an .npz file, mapped; raises if it is compressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(f"{name}.npy")
            known = archive.namelist()
    except KeyError as error:
        with zipfile.ZipFile(path) as archive:
            known = archive.namelist()
        raise DataError(f"{path}: has no array {name!r}, but {', '.join(known)}.") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: is no .npz file: {error}.") from error
    if info.compress_type != zipfile.ZIP_STORED:
        raise DataError(f"{path}: array {name!r} is compressed. Write it with numpy.savez.")
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
        if len(lengths) < 4:
            raise DataError(f"{path}: {_CUT}.")
        skip = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        file.seek(skip, io.SEEK_CUR)
        try:
            shape, fortran, dtype = npy_header(file)
        except ValueError as error:
            raise DataError(f"{path}: array {name!r} has no header of NumPy: {error}.") from error
        start = file.tell()
    if dtype.hasobject:
        raise DataError(f"{path}: array {name!r} holds objects, not numbers.")
    order: Any = "F" if fortran else "C"
    try:
        return np.memmap(path, dtype, "r", start, shape, order)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {_CUT} ({error}).") from error


class TableFiles(StoredRows):
    """Rows of Parquet files (.parquet) or Arrow files (.arrow, .feather), row group by row group.

    Inputs become float32. Lists of one length in a column (pixels, tokens) become further axes, and
    whole numbers in them, and targets that are whole, int64.

    Args:
        files: paths, in the order of the rows.
        target: the column of the targets.
        columns: the inputs; None takes all others. One column of lists is taken as it is, other
            columns stand side by side.

    Example:
        >>> import tempfile, pyarrow, pyarrow.parquet
        >>> path = Path(tempfile.mkdtemp()) / "rows.parquet"
        >>> table = pyarrow.table({"a": [1.0, 2.0, 3.0], "b": [0, 1, 0], "y": [1, 0, 1]})
        >>> pyarrow.parquet.write_table(table, path, row_group_size=2)
        >>> rows = TableFiles([path], "y")
        >>> rows.blocks, rows.take(np.array([2]))
        ([2, 1], (tensor([[3., 0.]]), tensor([1])))
    """

    def __init__(
        self, files: Sequence[PathLike], target: str, columns: Sequence[str] | None = None
    ) -> None:
        self.files = [Path(file) for file in ([files] if isinstance(files, str) else files)]
        if not self.files:
            raise ValueError("TableFiles: give at least one file.")
        self._places: list[tuple[int, int]] = []  # file and row group of each block
        lengths: list[int] = []
        for number, path in enumerate(self.files):
            names, groups = _opened(path)[:2]
            columns = columns or [name for name in names if name != target]
            if missing := {target, *columns} - set(names):
                raise DataError(
                    f"{path}: has no column {', '.join(sorted(missing))}; its columns are "
                    f"{', '.join(names)}."
                )
            self._places += [(number, group) for group in range(len(groups))]
            lengths += groups
        self.target, self.columns, self.blocks = target, list(columns or ()), lengths
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._held: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        if not len(self):
            raise DataError(f"{self.files[0]}: there is no row to read.")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: np.ndarray) -> Pair:
        """Some rows; row groups read before stay in memory, the last ones."""
        blocks = np.searchsorted(self._starts, rows, "right") - 1
        x: np.ndarray | None = None
        y: np.ndarray | None = None
        for block in np.unique(blocks):
            here = blocks == block
            inputs, targets = self._block(int(block))
            if x is None or y is None:
                x = np.empty((len(rows), *inputs.shape[1:]), inputs.dtype)
                y = np.empty((len(rows), *targets.shape[1:]), targets.dtype)
            places = rows[here] - self._starts[block]
            x[here], y[here] = inputs[places], targets[places]
        assert x is not None
        assert y is not None
        return torch.from_numpy(x), torch.from_numpy(y)

    def _block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        if block in self._held:
            self._held.move_to_end(block)
            return self._held[block]
        number, group = self._places[block]
        path = self.files[number]
        table = _opened(path)[2](group, [*self.columns, self.target])
        columns = [_numbers(path, name, table.column(name)) for name in self.columns]
        x = columns[0]
        if len(columns) > 1 or x.ndim == 1:
            x = np.concatenate([_flat(column) for column in columns], 1).astype(np.float32)
        y = _numbers(path, self.target, table.column(self.target))
        self._held[block] = x, y
        if len(self._held) > _BLOCKS_HELD:
            self._held.popitem(last=False)
        return x, y


def _flat(column: np.ndarray) -> np.ndarray:
    return column.reshape(len(column), -1)


def _opened(path: Path) -> tuple[list[str], list[int], Callable[[int, list[str]], Any]]:
    """Columns, rows of each group, and a function that reads some columns of a group."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{path}: reading it needs pyarrow. Install bayesieve[tables].") from error
    try:
        if path.suffix == ".parquet":
            file = parquet.ParquetFile(path)
            meta = file.metadata
            groups = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
            return file.schema_arrow.names, groups, file.read_row_group
        reader = arrow.ipc.open_file(arrow.memory_map(str(path)))
        groups = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        return reader.schema.names, groups, lambda i, names: reader.get_batch(i).select(names)
    except (OSError, arrow.ArrowException) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{path}: cannot be read as a table: {reason}.") from error


def _numbers(path: Path, name: str, column: Any) -> np.ndarray:
    """A column of numbers, or of lists of them of one length, without gaps."""
    import pyarrow as arrow

    if column.null_count:
        raise DataError(f"{path}: column {name!r} has {column.null_count} missing values.")
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    kind, shape = column.type, [len(column)]
    while arrow.types.is_list(kind) or arrow.types.is_fixed_size_list(kind):
        inner = column.flatten()
        if not len(column) or len(inner) % len(column) or not _even(column):
            raise DataError(f"{path}: the lists of column {name!r} have several lengths.")
        shape.append(len(inner) // int(np.prod(shape)))
        column, kind = inner, inner.type
    boolean = arrow.types.is_boolean(kind)
    if not (boolean or arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
        raise DataError(
            f"{path}: column {name!r} holds {kind}, not numbers. Encode it, or leave it out with "
            "columns=."
        )
    values = column.to_numpy(zero_copy_only=False).reshape(shape)
    whole = boolean or arrow.types.is_integer(kind)
    return np.ascontiguousarray(values, np.int64 if whole else np.float32)


def _even(column: Any) -> bool:
    import pyarrow.compute as compute

    lengths = compute.list_value_length(column)
    return bool(compute.min(lengths) == compute.max(lengths))
