"""`predict`: new data, prepared as in training, to a table of predictions."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.data import prepare_images, prepare_table
from bayesieve.data.files import iterate_files, read_npz
from bayesieve.data.images import MAX_FILE_BYTES, MAX_PIXELS, SUFFIXES, decode_image
from bayesieve.data.tables import read_csv, read_parquet
from bayesieve.deliver.bundle import Bundle, check_input, read_bundle
from bayesieve.deliver.onnx import OnnxModel, read_onnx
from bayesieve.deliver.serving import Columns, bundle_columns, onnx_columns, predict_bundle
from bayesieve.errors import DataError, UsageError
from bayesieve.files import write_atomically
from bayesieve.runs.folder import check_out_file, is_bundle_folder
from bayesieve.runs.options import Predict

Row = tuple[object, ...]


@dataclass(frozen=True)
class _Taker:
    """Shape and dtype of a model's input, and the recipe that turns raw data into one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    recipe: Mapping[str, Any]
    feature_names: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Inputs, (N, ...), what each is called, and whether the recipe was applied."""

    x: Tensor
    label: str
    names: list[object]
    recipe_used: bool


def predict(asked: Predict) -> dict[str, Any]:
    """Write a CSV file of predictions; returns a summary."""
    model, data, out, samples = Path(asked.model), Path(asked.data), Path(asked.out), asked.samples
    check_out_file(out, force=asked.force)
    network = _read_model(model)
    if isinstance(network, OnnxModel) and samples:
        raise UsageError("--samples: draws are baked into an ONNX file when it is exported.")
    taker = _taker(network)
    inputs = _read_data(data, taker, prepared=asked.prepared)
    check_input(taker.shape, inputs.x)
    bad = (~inputs.x.isfinite()).reshape(len(inputs.x), -1).any(1).nonzero().reshape(-1)
    if len(bad):
        raise DataError(f"predict: row {int(bad[0]) + 1} of {data} is not finite.")
    x = inputs.x.to(taker.dtype)
    columns: Columns = {inputs.label: inputs.names}
    if isinstance(network, OnnxModel):
        columns |= onnx_columns(network, x)
    else:
        prediction = predict_bundle(network, x, n_samples=samples, seed=asked.seed)
        columns |= bundle_columns(prediction, network.classes, network.config.get("preprocessing"))
    rows = list(zip(*columns.values(), strict=True))
    write_atomically(out, _csv(columns, rows))
    return {
        "model": str(model),
        "data": str(data),
        "out": str(out),
        "n": len(rows),
        "columns": list(columns),
        "samples": samples,
        "preprocessing_applied": inputs.recipe_used,
    }


def _read_model(path: Path) -> Bundle | OnnxModel:
    if path.suffix == ".onnx" or path.is_file():
        if path.suffix != ".onnx":
            raise UsageError(f"{path} is neither a bundle folder nor an .onnx file.")
        return read_onnx(path)
    if is_bundle_folder(path):
        return read_bundle(path)
    raise UsageError(
        f"{path} is a run folder. Run `bayesieve compact {path} --out BUNDLE`, or "
        f"`bayesieve export {path} --to bundle --masked-ok --out BUNDLE`, and predict with that."
    )


def _taker(model: Bundle | OnnxModel) -> _Taker:
    if isinstance(model, OnnxModel):
        recipe = model.metadata.get("preprocessing") or {}
        return _Taker(model.input_shape, model.dtype, recipe, None)
    names = model.config.get("feature_names")
    recipe = model.config.get("preprocessing") or {}
    return _Taker(model.input_shape, model.dtype, recipe, None if names is None else tuple(names))


def _read_data(path: Path, taker: _Taker, *, prepared: bool) -> _Inputs:
    try:
        if path.is_dir():
            return _read_images(path, taker)
        if not path.is_file():
            raise UsageError(f"there is no file or folder {path}.")
        if path.suffix == ".npz":
            return _read_array(path, taker, prepared=prepared)
        if path.suffix.lower() in (".csv", ".parquet"):
            return _read_table(path, taker, prepared=prepared)
    except (KeyError, TypeError, AttributeError) as error:  # a recipe that is none
        raise ValueError(f"predict: the model's preprocessing is damaged ({error!r}).") from error
    raise UsageError(f"{path} must be an .npz, .csv or .parquet file or a folder of images.")


def _read_array(path: Path, taker: _Taker, *, prepared: bool) -> _Inputs:
    arrays = read_npz(path)
    if "x" not in arrays:
        raise DataError(f"npz: {path} must hold an array x, got {', '.join(arrays) or 'nothing'}.")
    x, kind = arrays["x"], taker.recipe.get("kind")
    if x.dtype.kind not in "biuf" or x.ndim < 2 or not len(x):
        raise DataError(
            f"npz: x of {path} must be numbers of shape (N, ...), got {x.dtype} of shape {x.shape}."
        )
    if not prepared and kind == "image" and x.dtype.kind in "biu":
        return _numbered(prepare_images(x, taker.recipe), recipe_used=True)
    if not prepared and kind == "table":
        columns = [column["name"] for column in taker.recipe["columns"]]
        if x.ndim != 2 or x.shape[1] != len(columns):
            raise ValueError(
                f"predict: the model takes {len(columns)} features, x of shape "
                f"(N, {len(columns)}), but the data have {x[0].size}: shape {x.shape}."
            )
        return _numbered(prepare_table(dict(zip(columns, x.T, strict=True)), taker.recipe), True)
    return _numbered(torch.from_numpy(_native(x)), recipe_used=False)


def _read_table(path: Path, taker: _Taker, *, prepared: bool) -> _Inputs:
    columns = read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    if taker.recipe.get("kind") == "table" and not prepared:
        return _numbered(prepare_table(columns, taker.recipe), recipe_used=True)
    if taker.recipe.get("kind") == "image" and not prepared:
        raise UsageError("this model takes images: give an NPZ or a folder, or add --prepared.")
    names = list(taker.feature_names or columns)
    missing = [name for name in names if name not in columns]
    if missing:
        raise DataError(f"csv: {path} lacks the column {missing[0]!r}.")
    texts = [name for name in names if columns[name].dtype.kind not in "biuf"]
    if texts:
        raise DataError(f"csv: column {texts[0]!r} of {path} must hold numbers.")
    x = torch.from_numpy(np.stack([columns[name].astype(np.float64) for name in names], 1))
    if x.shape[1] == torch.Size(taker.shape).numel():
        x = x.reshape(len(x), *taker.shape)  # a line of a CSV file has no other shape
    return _numbered(x, recipe_used=False)


def _read_images(path: Path, taker: _Taker) -> _Inputs:
    if taker.recipe.get("kind") != "image":
        raise UsageError(f"{path} is a folder of images, but the model does not take images.")
    channels, height, width = taker.recipe["shape"]
    if tuple(taker.recipe["shape"]) != taker.shape or height * width > MAX_PIXELS:
        raise ValueError(
            f"predict: the model takes inputs of shape {taker.shape}, but its preprocessing makes "
            f"images of shape {tuple(taker.recipe['shape'])}."
        )
    names: list[object] = []
    pixels = []
    for name, content in iterate_files(path, _is_image, MAX_FILE_BYTES):
        image = decode_image(path, name, content, height if height == width else None)
        if channels == 3 and image.shape[2] == 1:
            image = np.repeat(image, 3, axis=2)
        if image.shape != (height, width, channels):
            raise DataError(
                f"predict: {name} in {path} must be {width}x{height} with {channels} channels, "
                f"got {image.shape[1]}x{image.shape[0]} with {image.shape[2]}. Convert it first."
            )
        names.append(name)
        pixels.append(image)
    if not names:
        raise DataError(f"predict: {path} must hold images ({', '.join(SUFFIXES)}), found none.")
    return _Inputs(prepare_images(np.stack(pixels), taker.recipe), "file", names, True)


def _is_image(name: str) -> bool:
    hidden = any(word.startswith((".", "__MACOSX")) for word in name.split("/"))
    return name.lower().endswith(SUFFIXES) and not hidden


def _numbered(x: Tensor, recipe_used: bool) -> _Inputs:
    return _Inputs(x, "row", list(range(1, len(x) + 1)), recipe_used)


def _native(x: NDArray[Any]) -> NDArray[Any]:
    """The array in a dtype and byte order that torch has."""
    return np.ascontiguousarray(x, dtype=np.float64 if x.dtype.kind == "f" else np.int64)


def _csv(columns: Columns, rows: list[Row]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"{v:.8g}" if isinstance(v, float) else v for v in row])
    return text.getvalue()
