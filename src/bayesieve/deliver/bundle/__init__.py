"""A bundle: one folder that holds a finished model and everything needed to use it.

    model.safetensors       weights; those with many zeros as places and values (see `packing`)
    config.json             the graph, input shape, preprocessing, classes, likelihood, provenance
    metrics.json            numbers, where given
    masks.safetensors       which weights of the network before compaction were kept, where given
    posterior.safetensors   the kept part of the posterior, where given
    familiarity.safetensors what training inputs look like, where given
    architecture.py         the same network in plain torch
    README.md               the model card

Nothing in a bundle is code to bayesieve: `load` reads tensors and JSON, and calls only names that
are on the list in `allowed`. architecture.py is for people without bayesieve and is never run here.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve import __version__
from bayesieve.assess.familiarity import FILE as FAMILIARITY
from bayesieve.assess.familiarity import Familiarity
from bayesieve.core import storage
from bayesieve.core.inputs import Input, Inputs, as_inputs, tensors_of
from bayesieve.core.likelihoods import Likelihood, from_dict
from bayesieve.core.posterior import Posterior, Samples, SparseModel, as_point
from bayesieve.core.storage import dtype_name, file_bytes, header_sum_of, read_tensors
from bayesieve.deliver.bundle import posterior as stored
from bayesieve.deliver.bundle.architecture import architecture_source
from bayesieve.deliver.bundle.graph import (
    first_names,
    graph_from_json,
    graph_to_json,
    named_tensors,
    output_shape,
    replace_tensor,
    trace,
)
from bayesieve.deliver.bundle.packing import pack_all, unpack
from bayesieve.deliver.bundle.posterior import likelihood_from_json, likelihood_to_json
from bayesieve.deliver.card import bundle_card
from bayesieve.errors import DamagedFileError, VerificationError, damaged, what_works
from bayesieve.files import folder_for, read_json, sha256, standing, write_atomically

FORMAT = "bayesieve-bundle"
VERSION = 1
FILES = (
    "model.safetensors", "config.json", "metrics.json", stored.MASKS, stored.POSTERIOR, FAMILIARITY,
    "architecture.py", "README.md",
)  # fmt: skip
_HEADERS, _CHECKSUM, _NO_SUM = "headers", "checksum", "0" * 64  # of config.json
_ENTRIES = {
    "format", "format_version", "bayesieve_version", "input", "inputs", "classes", "feature_names",
    "likelihood", "preprocessing", "thresholds", "provenance", "about", "packed", "tied", "order",
    "graph", "masks", "posterior", "familiarity", "sha256", "check", _HEADERS, _CHECKSUM,
}  # fmt: skip
_ATTEMPTS = 10  # to read a bundle that others replace meanwhile
_MEAN_WORKS = "The mean weights are in another file: predictions without draws still work."
_CHECKED = 16  # numbers
_INPUT_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")
Sizes = tuple[tuple[tuple[int, ...], torch.dtype], ...]  # shape of one example and dtype
_ABOUT = (
    "packed tensors are stored as <name>#values and <name>#gaps (zeros before each entry, one "
    "byte; 255 is 255 zeros and no entry) or <name>#bits (one bit per element, lowest first)"
)


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
                "posterior= (`bayesieve compact --posterior`) to draw from it."
            )
        with what_works(_MEAN_WORKS):
            path = _tensors_of(self.path, stored.POSTERIOR, self.config)
            tensors, _ = read_tensors(path)
        return stored.read_posterior(path, self.config, tensors, self.keep)

    @cached_property
    def familiarity(self) -> Familiarity | None:
        """How like the training examples inputs are; None in bundles without it."""
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
        _check_classes(config.get("classes"), outputs, config.get("likelihood"))
    except ValueError as error:
        raise damaged(path, str(error).removeprefix("load: ").rstrip(".")) from error
    try:
        _fill(module, config, tensors)
        check_outputs(module, shape, dtype, others)
    except (ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise damaged(model_path, reason) from error
    return Bundle(folder, config, module)


def load(folder: Path | str) -> Any:
    """Read the module of a bundle, in eval mode; it gives the saved one's outputs bit for bit.

    A folder of a narrowed model of transformers gives that model (`deliver.huggingface`).

    Example:
        >>> import tempfile
        >>> module, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3)
        >>> path = save_bundle(module, Path(tempfile.mkdtemp()) / "small")
        >>> torch.equal(load(path)(x), module(x))
        True
    """
    from bayesieve.deliver import huggingface  # which needs this module

    if huggingface.is_folder(Path(folder)):
        return huggingface.load(folder)
    return read_bundle(folder).module


def is_bundle(folder: Path) -> bool:
    """Whether a folder claims to be a bundle."""
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


def _tensors_of(folder: Path, name: str, config: Mapping[str, Any]) -> Path:
    """A file of tensors that config.json belongs to; its content is checked when it is read."""
    path = _file(folder, name)
    sums: list[Any] = [config.get(key) for key in (_HEADERS, "sha256")]
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
    known = config.get(_CHECKSUM)
    if known is None:
        return
    text = path.read_bytes()
    blank = text.replace(str(known).encode(), _NO_SUM.encode(), 1)
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


def _check_classes(
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


# ---------------------------------------------------------------------------------------- writing


def save(
    thing: Posterior | SparseModel | nn.Module, path: Path | str, **options: Any
) -> Path:  # fmt: skip
    """Write a posterior or sparse model to one file, or a module to a folder.

    The folder is a bundle; of a narrowed model of transformers one of `deliver.huggingface`.

    Args:
        thing: what to save.
        path: file of a posterior or sparse model; folder of a module.
        options: `extra` of `core.storage.save`, or those of `save_bundle`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "small"
        >>> sorted(p.name for p in save(nn.Linear(2, 1), folder).iterdir())
        ['README.md', 'architecture.py', 'config.json', 'model.safetensors']
    """
    from bayesieve.deliver import huggingface  # which needs this module

    if huggingface.is_narrowed(thing):
        return huggingface.save(thing, path, **options)
    if isinstance(thing, nn.Module):
        return save_bundle(thing, path, **options)
    if isinstance(thing, SparseModel | Posterior):
        return storage.save(thing, path, **options)
    raise TypeError(
        f"save: {type(thing).__name__} cannot be saved; give a Posterior, a SparseModel or a "
        "module."
    )


def save_bundle(
    module: nn.Module,
    folder: Path | str,
    *,
    example: Any = None,
    posterior: Posterior | None = None,
    sparse: SparseModel | None = None,
    likelihood: Likelihood | None = None,
    familiarity: Familiarity | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    thresholds: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Path:
    """Write a module to a bundle folder, all or nothing, and check that it reads back the same.

    Args:
        module: what `compact` returned, or any module that torch.fx or, with an example,
            torch.export can trace.
        folder: to write; its parent must exist.
        example: some inputs, (n, ...), or a tuple or dict of them; needed where the shape of an
            input is not plain from the preprocessing, the features or a first linear layer.
        posterior: to store as well, for predictions with uncertainty.
        sparse: the model before compaction; its masks are stored.
        likelihood: how outputs become densities; that of `sparse` or `posterior` unless given.
        familiarity: of inputs, for predictions that say when an input is unlike the training data.
        preprocessing: recipe from raw data to inputs, plain JSON.
        classes: their names, in the order of the outputs.
        feature_names: one per input column.
        thresholds: what was pruned by, plain JSON.
        metrics: numbers for metrics.json and the card.
        config: provenance, plain JSON.
        force: replace an existing bundle.

    Raises:
        UnsupportedModelError: the module calls something that a bundle cannot hold.
    """
    folder = Path(folder)
    check_free(folder, force=force)
    example = None if example is None else as_inputs("save", example)
    traced = trace(module, example).cpu()
    weights, tied = _stored_tensors(traced)
    inputs = _inputs_of(traced, example, preprocessing, feature_names)
    (shape, dtype), *others = inputs.values()
    graph = graph_to_json(traced)
    try:
        outputs = output_shape(graph_from_json(graph), shape, dtype, others)
        _check_classes(classes, outputs, None)
    except ValueError as error:
        raise ValueError(f"save: {error}.") from error
    tensors, packed = pack_all(weights)
    whole = posterior if posterior is not None else (None if sparse is None else sparse.posterior)
    values: dict[str, Any] = {
        "format": FORMAT,
        "format_version": VERSION,
        "bayesieve_version": __version__,
        "input": {"shape": list(shape), "dtype": dtype_name(dtype)},
        **({"inputs": _input_rows(inputs)} if others else {}),
        "classes": None if classes is None else [str(name) for name in classes],
        "feature_names": None if feature_names is None else [str(n) for n in feature_names],
        "likelihood": likelihood_to_json(likelihood, whole),
        "preprocessing": None if preprocessing is None else dict(preprocessing),
        "thresholds": None if thresholds is None else dict(thresholds),
        "provenance": None if config is None else dict(config),
        "about": _ABOUT,
        "packed": packed,
        "tied": tied,
        "order": {n: order for n, value in weights.items() if (order := _axis_order(value))},
        "graph": graph,
    }
    files = {"model.safetensors": file_bytes(tensors, {"format": "pt"})}
    if sparse is not None:
        files[stored.MASKS], values["masks"] = stored.pack_keep(sparse)
    if posterior is not None:
        keep = None if sparse is None else sparse.keep
        files[stored.POSTERIOR], values["posterior"] = stored.pack_posterior(posterior, keep)
    if familiarity is not None:
        if familiarity.shape != shape or others:
            raise ValueError(
                f"save: familiarity is of inputs of shape {familiarity.shape}, the module's are "
                f"{shape}."
            )
        files[FAMILIARITY] = familiarity.to_bytes()
        values["familiarity"] = {"kinds": len(familiarity.centres)}
    values[_HEADERS] = {name: header_sum_of(data) for name, data in files.items()}
    if metrics is not None:
        files["metrics.json"] = _json_rows(metrics, "metrics").encode()
    values["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    values["check"] = check_outputs(traced, shape, dtype, others)
    values[_CHECKSUM] = _NO_SUM
    text = _json_rows(values, "config")
    digest = hashlib.sha256(text.encode()).hexdigest()
    files["config.json"] = text.replace(_NO_SUM, digest, 1).encode()
    files["architecture.py"] = architecture_source(graph).encode()
    sizes = {name: len(data) for name, data in files.items()}
    files["README.md"] = bundle_card(folder.name, values, metrics or {}, sizes).encode()
    return _write_folder(folder, files, traced)


def copy_bundle(bundle: Bundle, folder: Path | str, *, force: bool = False) -> Path:
    """Write the same bundle elsewhere; its architecture.py is made anew, its other files copied."""
    folder = Path(folder)
    check_free(folder, force=force)
    paths = [bundle.path / name for name in FILES]
    files = {path.name: path.read_bytes() for path in paths if path.is_file()}
    files["architecture.py"] = architecture_source(bundle.config["graph"]).encode()
    return _write_folder(folder, files, bundle.module)


def stored_bytes(module: nn.Module) -> int:
    """Bytes of the weights in model.safetensors, without its header.

    Example:
        >>> stored_bytes(nn.Linear(3, 2))
        32
    """
    tensors, _ = pack_all(_stored_tensors(trace(module).cpu())[0])
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _check_same(module: fx.GraphModule, folder: Path) -> None:
    """Raise unless a folder reads back as a bundle of this module."""
    try:
        read = read_bundle(folder)
    except ValueError as error:
        reason = str(error).partition(" is damaged: ")[2] or str(error)
        raise ValueError(f"save: {reason}") from error
    written, again = _stored_tensors(module)[0], _stored_tensors(read.module)[0]
    if written.keys() != again.keys() or not all(_same_bits(written[n], again[n]) for n in written):
        raise VerificationError("save: the bundle does not read back as what was written.")
    if graph_to_json(module) != graph_to_json(read.module):
        raise VerificationError("save: the graph does not read back as what was written.")
    if read.config.get("posterior") is not None:
        read.posterior  # noqa: B018 - reads and checks
    read.familiarity  # noqa: B018 - reads and checks


def check_free(folder: Path, *, force: bool) -> None:
    """Raise unless a bundle may be written here; force replaces a bundle, and nothing else."""
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"save: the folder {folder.parent} does not exist; create it.")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"save: {folder} is a file; a bundle is a folder.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not force:
        raise FileExistsError(f"save: {folder} is not empty; use force to replace a bundle.")
    if not is_bundle(folder):
        raise FileExistsError(f"save: {folder} holds something else than a bundle; remove it.")
    others = sorted({path.name for path in folder.iterdir()} - {*FILES})
    if others:
        raise FileExistsError(
            f"save: {folder} holds {', '.join(others[:3])}, no file of a bundle; move it away."
        )


def _write_folder(folder: Path, files: Mapping[str, bytes], module: fx.GraphModule) -> Path:
    """Fill a folder beside the target, check that it holds the module, then give it its name."""
    with folder_for(folder) as hidden:
        for name, data in files.items():
            write_atomically(hidden / name, data)
        _check_same(module, hidden)
    return folder


def _stored_tensors(module: fx.GraphModule) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor that the graph reads, once, and the names under which one is met again."""
    read: set[str] = set()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            read.add(str(node.target))
        elif node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            read |= {f"{node.target}.{name}" for name in named_tensors(layer)}
    named = {name: value for name, value in named_tensors(module).items() if name in read}
    tied = first_names(named)
    return {name: value.detach() for name, value in named.items() if name not in tied}, tied


def _axis_order(tensor: Tensor) -> list[int] | None:
    """Axes from the slowest to the fastest in memory; None where that is the usual order.

    The order changes how sums are rounded, so a bundle keeps it.
    """
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride()[axis])
    usual = tensor.is_contiguous() or not tensor.permute(order).is_contiguous()
    return None if usual else order


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((a.reshape(-1).contiguous().view(torch.uint8) ==
                 b.reshape(-1).contiguous().view(torch.uint8)).all())  # fmt: skip


def _input_rows(inputs: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": list(shape), "dtype": dtype_name(dtype)}
        for name, (shape, dtype) in inputs.items()
    ]


def _inputs_of(
    traced: fx.GraphModule,
    example: Input | None,
    preprocessing: Mapping[str, Any] | None,
    feature_names: Sequence[str] | None,
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each input by its name in the graph."""
    places = [node for node in traced.graph.nodes if node.op == "placeholder"]
    names = [str(node.target) for node in places if node.users or not node.args]
    if isinstance(example, Inputs) or len(names) > 1:
        tensors = () if example is None else tensors_of(example)
        if len(tensors) != len(names):
            raise ValueError(
                f"save: the module takes {', '.join(names)}; give example=, as many inputs."
            )
        given = example.named if isinstance(example, Inputs) and example.names else None
        ordered = tensors if given is None or {*given} != {*names} else [given[n] for n in names]
        return {n: (tuple(t.shape[1:]), t.dtype) for n, t in zip(names, ordered, strict=True)}
    return {names[0]: _input_of(traced, example, preprocessing, feature_names)}


def _input_of(
    traced: fx.GraphModule,
    example: Tensor | None,
    preprocessing: Mapping[str, Any] | None,
    feature_names: Sequence[str] | None,
) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of one input, from the most reliable source there is."""
    first = next((p for p in traced.parameters() if p.is_floating_point()), None)
    dtype = torch.float32 if first is None else first.dtype
    if example is not None:
        return tuple(example.shape[1:]), example.dtype
    entry = next(iter(traced.graph.nodes))
    if entry.meta.get("shape") is not None:  # `compact` notes the shapes of its example
        return tuple(entry.meta["shape"])[1:], dtype
    if preprocessing is not None and preprocessing.get("kind") == "image":
        return tuple(preprocessing["shape"]), dtype
    if feature_names is not None:
        return (len(feature_names),), dtype
    reader = next(iter(entry.users), None)
    if reader is not None and reader.op == "call_module":
        layer = traced.get_submodule(str(reader.target))
        if isinstance(layer, nn.Linear):
            return (layer.in_features,), dtype
    raise ValueError(
        "save: the shape of an input is not plain from this module; give example=, a few inputs."
    )


def _json_rows(values: Mapping[str, Any], what: str) -> str:
    """JSON with one line per entry, and one per row of a graph: readable, yet small."""
    lines = []
    for name, value in values.items():
        if name == "graph":
            groups = []
            for key, rows in value.items():
                inside = ",\n      ".join(_dumps(row, "graph") for row in rows)
                groups.append(f'    "{key}": ' + (f"[\n      {inside}\n    ]" if rows else "[]"))
            lines.append('  "graph": {\n' + ",\n".join(groups) + "\n  }")
        else:
            lines.append(f"  {json.dumps(name)}: {_dumps(value, what)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dumps(value: Any, what: str) -> str:
    """JSON text of plain data."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"save: {what} must be plain JSON data: {error}.") from error
