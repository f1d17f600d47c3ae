"""`predict`: new data, prepared as in training, to a table of predictions."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.core.batch import first_not_finite
from bayesieve.core.likelihoods import Prediction
from bayesieve.data import prepare_images, prepare_table
from bayesieve.data.encoding import raw_columns, without_level
from bayesieve.data.files import iterate_files, read_npz
from bayesieve.data.images import SUFFIXES, decode_image, is_image
from bayesieve.data.tables import read_csv, read_parquet
from bayesieve.deliver.bundle import Bundle, check_input, read_bundle
from bayesieve.deliver.onnx import OnnxModel, read_onnx
from bayesieve.deliver.serving import Columns, bundle_columns, onnx_columns, predict_bundle
from bayesieve.errors import DataError, UsageError
from bayesieve.files import limit, write_atomically
from bayesieve.runs.arguments import ARGUMENT, Draws, Json, Place, Share, command, n_samples_of
from bayesieve.runs.folder import check_out_file, is_bundle_folder, model_files

Recipe = Mapping[str, Any]  # turns raw data into inputs of a network
Inputs = tuple[Tensor, Columns, bool]  # (N, ...), the column of names, was the recipe applied?


@command
def predict(
    model: Annotated[Place, ARGUMENT],
    data: Annotated[Place, ARGUMENT],
    out: Place,
    *,
    samples: Draws = 0,
    seed: int = 0,
    prepared: bool = False,
    abstain: Share | None = None,
    force: bool = False,
) -> Json:
    """Predict new data, with uncertainties, as a CSV file.

    Raw integers (pixels) and tables are prepared as the model's training data were; images of
    floating-point numbers are taken as prepared.

    Args:
        model: Bundle folder or ONNX file.
        data: NPZ with an array x, CSV or parquet with named columns, or folder of images.
        out: CSV file to write.
        samples: Posterior draws to average over; 0 uses the mean weights, auto as many draws as
            bring their standard error below 2 %.
        seed: Seed of the draws.
        prepared: x is network input already; do not standardise it.
        abstain: Mark inputs less familiar than this part of held-out ones, such as 0.95.
        force: Replace the file at `out`.
    """
    model, data, out = Path(model), Path(data), Path(out)
    n_samples, n_draws = n_samples_of(samples), 0
    check_out_file(out, [*model_files(model), data], force=force)
    network = _read_model(model)
    if isinstance(network, OnnxModel) and n_samples != 0:
        raise UsageError("`samples`: draws are baked into an ONNX file when it is exported.")
    about = network.metadata if isinstance(network, OnnxModel) else network.config
    try:
        inputs, columns, recipe_used = _read_data(data, network, about, prepared=prepared)
    except (KeyError, TypeError, AttributeError) as error:  # a recipe that is none
        raise ValueError(f"predict: the model's preprocessing is damaged ({error!r}).") from error
    check_input(network.input_shape, inputs)
    if (bad := first_not_finite(inputs)) is not None:
        raise DataError(f"predict: row {bad + 1} of {data} is not finite.")
    x = inputs.to(network.dtype)
    if isinstance(network, OnnxModel):
        columns |= onnx_columns(network, x, abstain)
    else:
        prediction = predict_bundle(network, x, n_samples=n_samples, seed=seed, abstain=abstain)
        n_draws = 0 if n_samples == 0 else prediction.n_draws
        if recipe_used and about["preprocessing"]["kind"] == "table":
            entries = about["preprocessing"]["columns"]
            prediction = _with_unknown_levels(prediction, inputs, entries, partial(
                predict_bundle, network, n_samples=n_draws, seed=seed
            ))  # fmt: skip
        columns |= bundle_columns(prediction, network.classes, about.get("preprocessing"))
    write_atomically(out, _csv(columns))
    return {
        "model": str(model),
        "data": str(data),
        "out": str(out),
        "n": len(x),
        "columns": list(columns),
        "samples": n_draws,
        "preprocessing_applied": recipe_used,
    }


def _with_unknown_levels(
    prediction: Prediction, inputs: Tensor, entries: Any, predicted: Callable[[Tensor], Prediction]
) -> Prediction:
    """Return the prediction with the uncertainty about levels that training never saw."""
    values = inputs.double().numpy()
    if not without_level(values, entries).any():
        return prediction
    from bayesieve.estimators.mixture import with_unknown_levels  # here: it loads scikit-learn

    def of_rows(rows: NDArray[np.float64]) -> Prediction:
        return predicted(torch.as_tensor(rows).to(inputs.dtype))

    return with_unknown_levels(prediction, values, entries, of_rows)


def _read_model(path: Path) -> Bundle | OnnxModel:
    if path.suffix == ".onnx" or path.is_file():
        if path.suffix != ".onnx":
            raise UsageError(f"{path} is neither a bundle folder nor an .onnx file.")
        return read_onnx(path)
    if is_bundle_folder(path):
        bundle = read_bundle(path)
        if bundle.input_names:
            raise UsageError(
                f"{path} takes several inputs ({', '.join(bundle.input_names)}), which no table "
                "holds. Call bayesieve.load(path) in Python."
            )
        return bundle
    raise UsageError(
        f"{path} is a run folder. Run `compact({path}, out=BUNDLE)`, or "
        f"`export({path}, to=bundle, masked_ok=True, out=BUNDLE)`, and predict with that."
    )


def _read_data(
    path: Path, network: Bundle | OnnxModel, about: Mapping[str, Any], *, prepared: bool
) -> Inputs:
    """Read inputs; the recipe that `about` a model holds is applied to those not yet prepared."""
    recipe: Recipe = about.get("preprocessing") or {}
    raw = about.get("takes") == "raw"
    if raw and prepared:
        raise UsageError("`prepared`: this ONNX file takes raw pixels and prepares them itself.")
    if path.is_dir():
        images, columns = _read_images(path, recipe)
        return _as_inputs(images, recipe, raw=raw), columns, True
    if not path.is_file():
        raise UsageError(f"there is no file or folder {path}.")
    if prepared:
        recipe = {}
    if path.suffix == ".npz":
        x, recipe_used = _read_array(path, recipe, raw=raw)
    elif path.suffix.lower() in (".csv", ".parquet"):
        x, recipe_used = _read_table(path, network.input_shape, recipe, about.get("feature_names"))
    else:
        raise UsageError(f"{path} must be an .npz, .csv or .parquet file or a folder of images.")
    return x, {"row": list(range(1, len(x) + 1))}, recipe_used


def _as_inputs(images: NDArray[Any], recipe: Recipe, *, raw: bool) -> Tensor:
    """Raw images, (N, H, W[, C]), as a network takes them: prepared, or as they are."""
    prepared = prepare_images(images, recipe)
    if not raw:
        return prepared
    if images.min() < 0 or images.max() > 255:
        raise DataError(
            f"predict: pixels must lie in 0..255, got {images.min()} to {images.max()}."
        )
    channels, height, width = recipe["shape"]
    return torch.from_numpy(images.reshape(-1, height, width, channels).astype(np.uint8))


def _read_array(path: Path, recipe: Recipe, *, raw: bool) -> tuple[Tensor, bool]:
    arrays = read_npz(path)
    if "x" not in arrays:
        raise DataError(f"npz: {path} must hold an array x, got {', '.join(arrays) or 'nothing'}.")
    x, kind = arrays["x"], recipe.get("kind")
    if x.dtype.kind not in "biuf" or x.ndim < 2 or not x.size:
        raise DataError(
            f"npz: x of {path} must be numbers of shape (N, ...), got {x.dtype} of shape {x.shape}."
        )
    if kind == "image" and x.dtype.kind in "biu":
        return _as_inputs(x, recipe, raw=raw), True
    if raw:
        raise DataError(
            f"npz: x of {path} must be raw pixels, whole numbers (N, H, W, channels), since "
            f"this ONNX file prepares them itself; got {x.dtype}."
        )
    if kind == "table":
        columns = raw_columns(recipe["columns"])
        if x.ndim != 2 or x.shape[1] != len(columns):
            raise ValueError(
                f"predict: the model takes {len(columns)} features, x of shape "
                f"(N, {len(columns)}), but the data have {x[0].size}: shape {x.shape}."
            )
        return prepare_table(dict(zip(columns, x.T, strict=True)), recipe), True
    # in a dtype and byte order that torch has
    native = np.ascontiguousarray(x, dtype=np.float64 if x.dtype.kind == "f" else np.int64)
    return torch.from_numpy(native), False


def _read_table(
    path: Path, shape: tuple[int, ...], recipe: Recipe, feature_names: Sequence[str] | None
) -> tuple[Tensor, bool]:
    columns = read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    if recipe.get("kind") == "table":
        return prepare_table(columns, recipe), True
    if recipe.get("kind") == "image":
        raise UsageError("this model takes images: give an NPZ or a folder, or add `prepared`.")
    names = list(feature_names or columns)
    for name in names:
        if name not in columns:
            raise DataError(f"csv: {path} lacks the column {name!r}.")
        if columns[name].dtype.kind not in "biuf":
            raise DataError(f"csv: column {name!r} of {path} must hold numbers.")
    x = torch.from_numpy(np.stack([columns[name].astype(np.float64) for name in names], 1))
    if x.shape[1] == torch.Size(shape).numel():
        x = x.reshape(len(x), *shape)  # a line of a CSV file has no other shape
    return x, False


def _read_images(path: Path, recipe: Recipe) -> tuple[NDArray[Any], Columns]:
    if recipe.get("kind") != "image":
        raise UsageError(f"{path} is a folder of images, but the model does not take images.")
    channels, height, width = recipe["shape"]
    if height * width > limit("pixels"):
        raise ValueError(f"predict: images of {height} x {width} pixels are too large.")
    images = {}
    for name, content in iterate_files(path, is_image):
        image = decode_image(path, name, content, height if height == width else None)
        if channels == 3 and image.shape[2] == 1:
            image = np.repeat(image, 3, axis=2)
        if image.shape != (height, width, channels):
            raise DataError(
                f"predict: {name} in {path} must be {width}x{height} with {channels} channels, "
                f"got {image.shape[1]}x{image.shape[0]} with {image.shape[2]}. Convert it first."
            )
        images[name] = image
    if not images:
        raise DataError(f"predict: {path} must hold images ({', '.join(SUFFIXES)}), found none.")
    return np.stack(list(images.values())), {"file": list(images)}


def _csv(columns: Columns) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([f"{v:.8g}" if isinstance(v, float) else v for v in row])
    return text.getvalue()
