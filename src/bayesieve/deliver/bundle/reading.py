"""Read a bundle: check everything it says, then put its weights into place."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.core.likelihoods import Likelihood, from_dict
from bayesieve.core.posterior import Posterior
from bayesieve.core.storage import read_tensors
from bayesieve.deliver.bundle import posterior as stored
from bayesieve.deliver.bundle.graph import (
    graph_from_json,
    named_tensors,
    output_shape,
    replace_tensor,
)
from bayesieve.deliver.bundle.packing import unpack
from bayesieve.deliver.bundle.posterior import likelihood_from_json
from bayesieve.errors import DamagedFileError, damaged
from bayesieve.files import read_json

FORMAT = "bayesieve-bundle"
VERSION = 1
_CHECKED = 16  # numbers
_INPUT_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64")


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
        """Of inputs."""
        return getattr(torch, self.config["input"]["dtype"])

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, in the order of the outputs."""
        classes = self.config.get("classes")
        return None if classes is None else tuple(classes)

    @cached_property
    def likelihood(self) -> Likelihood:
        """How outputs become densities, at the noise level of the point model."""
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
        path = _file(self.path, stored.MASKS)
        tensors, _ = read_tensors(path)
        return stored.read_keep(path, self.config["masks"], tensors)

    @cached_property
    def posterior(self) -> Posterior:
        """The posterior over the weights before compaction."""
        if self.config.get("posterior") is None:
            raise ValueError(
                f"load: {self.path} holds no posterior, only its mean. Write the bundle with "
                "posterior= (`bayesieve compact --posterior`) to draw from it."
            )
        path = _file(self.path, stored.POSTERIOR)
        return stored.read_posterior(path, self.config, read_tensors(path)[0], self.keep)


def read_bundle(folder: Path | str) -> Bundle:
    """Read a bundle and check it; its posterior is read when asked for.

    Raises:
        ValueError: a file is missing, damaged or hostile; the message names it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        hint = "; for a posterior use load_posterior or load_sparse" if folder.is_file() else ""
        raise ValueError(f"load: there is no bundle folder {folder}{hint}.")
    path = _file(folder, "config.json")
    config = read_json(path)
    _check_config(path, config)
    model_path = _file(folder, "model.safetensors")
    tensors, _ = read_tensors(model_path)
    try:
        module = graph_from_json(config["graph"])
        shape = tuple(config["input"]["shape"])
        dtype = getattr(torch, config["input"]["dtype"])
        outputs = output_shape(module, shape, dtype)
        check_classes(config.get("classes"), outputs, config.get("likelihood"))
    except ValueError as error:
        raise damaged(path, str(error).removeprefix("load: ").rstrip(".")) from error
    try:
        _fill(module, config, tensors)
        check_outputs(module, shape, dtype)
    except (ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise damaged(model_path, reason) from error
    return Bundle(folder, config, module)


def load(folder: Path | str) -> fx.GraphModule:
    """Read the module of a bundle, in eval mode; it gives the saved one's outputs bit for bit.

    Example:
        >>> import tempfile
        >>> from bayesieve.deliver.bundle import save_bundle
        >>> module, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3)
        >>> path = save_bundle(module, Path(tempfile.mkdtemp()) / "small")
        >>> torch.equal(load(path)(x), module(x))
        True
    """
    return read_bundle(folder).module


def is_bundle(folder: Path) -> bool:
    """Whether a folder claims to be a bundle."""
    path = folder / "config.json"
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
    described = config.get("input")
    shape = described.get("shape") if isinstance(described, dict) else None
    fits = isinstance(shape, list) and 0 < len(shape) <= 8
    fits = fits and all(type(size) is int and 0 < size < 1 << 31 for size in shape or ())
    if not fits or described.get("dtype") not in _INPUT_DTYPES:  # type: ignore[union-attr]
        raise damaged(path, "it has no valid input shape and dtype")
    for name in ("packed", "tied", "order", "graph"):
        if not isinstance(config.get(name), dict):
            raise damaged(path, f"it has no {name}")
    if not all(isinstance(first, str) for first in config["tied"].values()):
        raise damaged(path, "its tied tensors must be names")
    for name in ("classes", "feature_names"):
        words = config.get(name)
        if words is not None and not (
            isinstance(words, list) and all(isinstance(w, str) for w in words)
        ):
            raise damaged(path, f"its {name} must be a list of names")
    for name in ("preprocessing", "likelihood", "masks", "posterior"):
        if not isinstance(config.get(name), dict | None):
            raise damaged(path, f"its {name} must be an object")


def _fill(module: fx.GraphModule, config: Mapping[str, Any], stored_as: dict[str, Tensor]) -> None:
    """Put the stored weights in the places of a module on the meta device."""
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
    module: fx.GraphModule, shape: Sequence[int], dtype: torch.dtype
) -> list[float] | None:
    """The first outputs on `example_input`, which `verify` compares; None if not all finite."""
    quiet = fx.Interpreter(module)  # calling the module itself would print a failure
    quiet.extra_traceback = False
    with torch.no_grad():
        outputs = quiet.run(example_input(shape, dtype)).double().reshape(-1)[:_CHECKED]
    return outputs.tolist() if bool(outputs.isfinite().all()) else None
