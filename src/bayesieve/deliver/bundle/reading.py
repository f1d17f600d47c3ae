"""Read a bundle: its manifest, config.json, and the network that it describes.

Nothing of a folder is believed before it is checked: names, sizes, checksums, then numbers.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.assess.predict import as_point
from bayesieve.core import storage
from bayesieve.core.likelihoods import Likelihood, from_dict
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.storage import read_tensors
from bayesieve.deliver.bundle import posterior as stored
from bayesieve.deliver.bundle.graph import graph_from_json, output_shape
from bayesieve.deliver.bundle.packing import unpack
from bayesieve.deliver.bundle.posterior import likelihood_from_json
from bayesieve.errors import DamagedFileError, damaged
from bayesieve.files import read_json, sha256, standing, what_works
from bayesieve.graph.graph import named_tensors, replace_tensor
from bayesieve.uncertainty.familiarity import FILE as FAMILIARITY
from bayesieve.uncertainty.familiarity import Familiarity

FORMAT = "bayesieve-bundle"
VERSION = 1
HEADERS, CHECKSUM, NO_SUM = "headers", "checksum", "0" * 64  # of config.json
_ENTRIES = {
    "format", "format_version", "bayesieve_version", "input", "inputs", "classes", "feature_names",
    "likelihood", "preprocessing", "thresholds", "provenance", "about", "packed", "tied", "order",
    "graph", "masks", "posterior", "familiarity", "sha256", "check", HEADERS, CHECKSUM,
}  # fmt: skip
_ATTEMPTS = 10  # to read a bundle that others replace meanwhile
_MEAN_WORKS = "The mean weights are in another file: predictions without draws still work."
_CHECKED = 16  # numbers
_INPUT_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")
Sizes = tuple[tuple[tuple[int, ...], torch.dtype], ...]  # shape of one example and dtype


@dataclass(frozen=True, eq=False)
class Bundle:
    """A folder that was read and checked.

    Args:
        path: the folder.
        config: config.json.
        module: the network, in eval mode.
    """

    path: Path
    config: Mapping[str, Any]
    module: fx.GraphModule

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.config["input"]["shape"])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the inputs."""
        return getattr(torch, self.config["input"]["dtype"])

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs of a network that has several; none of one that has not."""
        return tuple(row["name"] for row in self.config.get("inputs") or ())

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, in the order of the outputs."""
        classes = self.config.get("classes")
        return None if classes is None else tuple(classes)

    @cached_property
    def likelihood(self) -> Likelihood:
        """Return how outputs become densities, at the noise level of the point model."""
        likelihood = likelihood_from_json(self.config.get("likelihood"), self.classes)
        if likelihood is None:
            raise ValueError(
                f"load: {self.path} does not say what its outputs mean. Save it again with "
                "likelihood=, sparse= or classes=."
            )
        return likelihood

    @cached_property
    def keep(self) -> Tensor | None:
        """Which weights were kept before compaction, (d,) bool, if the bundle has masks."""
        if self.config.get("masks") is None:
            return None
        with what_works(_MEAN_WORKS):
            path = _tensors_of(self.path, stored.MASKS, self.config)
            tensors, _ = read_tensors(path)
        return stored.read_keep(path, self.config["masks"], tensors)

    @cached_property
    def point(self) -> Samples:
        """The module as a posterior of one draw."""
        return as_point(self.module, self.likelihood)

    @cached_property
    def posterior(self) -> Posterior:
        """The posterior over the weights before compaction."""
        if self.config.get("posterior") is None:
            raise ValueError(
                f"load: {self.path} holds no posterior, only its mean. Write the bundle with "
                "a posterior (`compact(posterior=True)`) to draw from it."
            )
        with what_works(_MEAN_WORKS):
            path = _tensors_of(self.path, stored.POSTERIOR, self.config)
            tensors, _ = read_tensors(path)
        return stored.read_posterior(path, self.config, tensors, self.keep)

    @cached_property
    def familiarity(self) -> Familiarity | None:
        """Return how like the training examples inputs are; None in bundles without it."""
        if self.config.get("familiarity") is None:
            return None
        path = _tensors_of(self.path, FAMILIARITY, self.config)
        known = Familiarity.read(path)
        if known.shape != self.input_shape:
            raise damaged(path, f"it is of inputs of shape {known.shape}")
        return known


def read_bundle(folder: Path | str) -> Bundle:
    """Read a bundle and check it; its posterior is read when asked for.

    A bundle that is replaced meanwhile is read again: never a mixture of two.

    Raises:
        ValueError: a file is missing, damaged or hostile; the message names it.
    """
    folder = Path(folder)
    for _ in range(_ATTEMPTS):
        before = _identity(folder)
        try:
            return _read(standing(folder))
        except (ValueError, OSError):
            if before == _identity(folder):
                raise
    raise DamagedFileError(f"load: {folder} is being replaced all the time; try again later.")


def _identity(folder: Path) -> tuple[int, ...]:
    """Identity of a folder; another folder of the same name has another."""
    try:
        now = folder.stat()
    except OSError:
        return ()
    return now.st_ino, now.st_mtime_ns, now.st_ctime_ns


def _read(folder: Path) -> Bundle:
    if not folder.is_dir():
        hint = "; for a posterior use load_posterior or load_sparse" if folder.is_file() else ""
        raise ValueError(f"load: there is no bundle folder {folder}{hint}.")
    path = _file(folder, "config.json")
    config = read_json(path)
    _check_config(path, config)
    _check_sum(path, config)
    with what_works("Without it the bundle predicts nothing: copy it again, or write it anew."):
        model_path = _tensors_of(folder, "model.safetensors", config)
        tensors, _ = read_tensors(model_path)
    try:
        module = graph_from_json(config["graph"])
        (shape, dtype), *others = _sizes(config, module)
        outputs = output_shape(module, shape, dtype, others)
        check_classes(config.get("classes"), outputs, config.get("likelihood"))
    except ValueError as error:
        raise damaged(path, str(error).removeprefix("load: ").rstrip(".")) from error
    try:
        fill(module, config, tensors)
        check_outputs(module, shape, dtype, others)
    except (ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise damaged(model_path, reason) from error
    return Bundle(folder, config, module)


def is_bundle(folder: Path) -> bool:
    """Return whether a folder claims to be a bundle."""
    path = standing(folder) / "config.json"
    return path.is_file() and read_json(path).get("format") == FORMAT


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Raise unless config.json describes a bundle of this version."""
    if config.get("format") != FORMAT:
        raise ValueError(f"load: {path} does not describe a bundle; it lacks format {FORMAT!r}.")
    if config.get("format_version") != VERSION:
        raise ValueError(
            f"load: {path} has format version {config.get('format_version')!r}, this version "
            f"reads {VERSION}. Update bayesieve."
        )
    for name in ("input", "packed", "tied", "order", "graph"):
        if not isinstance(config.get(name), dict):
            raise damaged(path, f"it has no {name}")
    rows = config.get("inputs")
    if not isinstance(rows, list | None) or rows == []:
        raise damaged(path, "its inputs must be a list")
    for row in (config["input"], *(rows or ())):
        shape = row.get("shape") if isinstance(row, dict) else None
        fits = isinstance(shape, list) and len(shape) <= 8 and (bool(shape) or rows is not None)
        fits = fits and all(type(size) is int and 0 < size < 1 << 31 for size in shape or ())
        if not fits or row.get("dtype") not in _INPUT_DTYPES:
            raise damaged(path, "it has no valid input shape and dtype")
    if not all(isinstance(first, str) for first in config["tied"].values()):
        raise damaged(path, "its tied tensors must be names")
    for name in ("classes", "feature_names"):
        words = config.get(name)
        if words is not None and not (
            isinstance(words, list) and all(isinstance(w, str) for w in words)
        ):
            raise damaged(path, f"its {name} must be a list of names")
    for name in ("preprocessing", "likelihood", "masks", "posterior", "familiarity"):
        if not isinstance(config.get(name), dict | None):
            raise damaged(path, f"its {name} must be an object")


def _sizes(config: Mapping[str, Any], module: fx.GraphModule) -> Sizes:
    """Shape and dtype of every input, in the order of the graph's arguments."""
    names = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
    rows = config.get("inputs") or [{"name": names[0], **config["input"]}]
    if [row.get("name") for row in rows] != names:
        raise ValueError(f"its graph takes {', '.join(names)[:200]}")
    return tuple((tuple(row["shape"]), getattr(torch, row["dtype"])) for row in rows)


def fill(module: nn.Module, config: Mapping[str, Any], stored_as: Mapping[str, Tensor]) -> None:
    """Put the stored weights in the places of a module on the meta device.

    Args:
        module: what is filled.
        config: `packed`, `tied` and `order` of config.json.
        stored_as: tensors of the file.

    Raises:
        ValueError: a tensor is missing, belongs to no layer, or does not fit its place.
    """
    packed, tied = config["packed"], config["tied"]
    made: dict[str, Tensor] = {}
    for name, slot in named_tensors(module).items():
        source = tied.get(name, name)
        if source not in made:
            how = packed.get(source)
            if not isinstance(how, dict | None):
                raise ValueError(f"tensor {source!r} is packed in an unknown way")
            stored_value = unpack(source, stored_as, how)
            made[source] = _in_order(source, stored_value, config["order"].get(source))
        value = made[source]
        if value.shape != slot.shape:
            raise ValueError(
                f"tensor {name!r} must have shape {tuple(slot.shape)}, got {tuple(value.shape)}"
            )
        if value.is_floating_point() != slot.is_floating_point():
            raise ValueError(f"tensor {name!r} must be {slot.dtype}, got {value.dtype}")
        if isinstance(slot, nn.Parameter) and not isinstance(value, nn.Parameter):
            made[source] = nn.Parameter(value)
        replace_tensor(module, name, made[source])
    left = set(stored_as)
    for name in made:
        how = packed.get(name)
        left -= {name} if how is None else {f"{name}#values", f"{name}#{how['as']}"}
    if left:
        raise ValueError(f"tensor {sorted(left)[0][:80]!r} belongs to no layer")


def _file(folder: Path, name: str) -> Path:
    """A file of a bundle; raises if it is missing."""
    path = folder / name
    if not path.is_file():
        raise DamagedFileError(f"load: {folder} is no bundle: the file {name} is missing.")
    return path


def _tensors_of(folder: Path, name: str, config: Mapping[str, Any]) -> Path:
    """A file of tensors that config.json belongs to; its content is checked when it is read."""
    path = _file(folder, name)
    sums: list[Any] = [config.get(key) for key in (HEADERS, "sha256")]
    header, whole = (rows.get(name) if isinstance(rows, dict) else None for rows in sums)
    if header is not None:  # covers the sums of all blocks, and is read at once
        fits = header == storage.header_sum(path)
    else:
        fits = whole is None or whole == sha256(path)
    if not fits:
        raise damaged(path, "it is not the file that config.json was written with")
    return path


def _check_sum(path: Path, config: Mapping[str, Any]) -> None:
    """Raise unless config.json is as it was written; earlier versions wrote no checksum."""
    if unknown := sorted(config.keys() - _ENTRIES):  # perhaps the checksum, by a damaged name
        raise damaged(path, f"it has the entry {unknown[0][:40]!r}, which bayesieve does not write")
    known = config.get(CHECKSUM)
    if known is None:
        return
    text = path.read_bytes()
    blank = text.replace(str(known).encode(), NO_SUM.encode(), 1)
    if hashlib.sha256(blank).hexdigest() != known:
        raise damaged(path, f"its {len(text)} bytes are not those written (SHA-256)")


def _in_order(name: str, value: Tensor, order: object) -> Tensor:
    """The same tensor with its axes in a given order in memory."""
    if order is None:
        return value
    if not isinstance(order, list) or sorted(map(str, order)) != [*map(str, range(value.dim()))]:
        raise ValueError(f"tensor {name!r} has an impossible order of axes")
    inverse = [order.index(axis) for axis in range(value.dim())]
    return value.permute(order).contiguous().permute(inverse)


def check_input(expected: tuple[int, ...], x: Tensor) -> None:
    """Raise unless inputs, (N, ...), have the shape that a model takes; the message names both.

    Example:
        >>> check_input((4,), torch.zeros(2, 3))
        Traceback (most recent call last):
        ValueError: predict: the model takes 4 features, inputs of shape (N, 4), but the data have \
3: shape (2, 3).
    """
    if x.shape[1:] != expected:
        shown = ", ".join(str(size) for size in expected)
        raise ValueError(
            f"predict: the model takes {math.prod(expected)} features, inputs of shape "
            f"(N, {shown}), but the data have {x.shape[1:].numel()}: shape {tuple(x.shape)}."
        )


def check_classes(
    classes: Sequence[str] | None, outputs: Sequence[int], likelihood: Mapping[str, Any] | None
) -> None:
    """Raise unless there is one output per class, or one in all for two classes."""
    if classes is None:
        return
    n_outputs = outputs[-1] if len(outputs) > 1 else 1
    single = n_outputs == 1 and len(classes) == 2
    if single and likelihood is not None:
        single = from_dict(likelihood).n_outputs(2) == 1
    if n_outputs != len(classes) and not single:
        raise ValueError(
            f"the network has {n_outputs} outputs but there are {len(classes)} classes"
        )


def example_input(shape: Sequence[int], dtype: torch.dtype, n: int = 4) -> Tensor:
    """Inputs that depend on nothing but their shape, (n, *shape).

    Example:
        >>> example_input((2,), torch.float32, 2)
        tensor([[0.0000, 0.7071],
                [1.0000, 0.7071]])
    """
    size = torch.Size((n, *shape))
    if not dtype.is_floating_point:
        return torch.zeros(size, dtype=dtype)  # word 0 exists in every vocabulary
    wave = torch.arange(size.numel(), dtype=torch.float64).mul(torch.pi / 4).sin()
    return wave.reshape(size).to(dtype)


def check_outputs(
    module: fx.GraphModule,
    shape: Sequence[int],
    dtype: torch.dtype,
    others: Sequence[tuple[Sequence[int], torch.dtype]] = (),
) -> list[float] | None:
    """The first outputs on `example_input`, which `verify` compares; None if not all finite."""
    quiet = fx.Interpreter(module)  # calling the module itself would print a failure
    quiet.extra_traceback = False
    with torch.no_grad():
        inputs = [example_input(*one) for one in ((shape, dtype), *others)]
        outputs = quiet.run(*inputs).double().reshape(-1)[:_CHECKED]
    return outputs.tolist() if bool(outputs.isfinite().all()) else None
