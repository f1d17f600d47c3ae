"""A bundle: one folder that holds a finished model and everything needed to use it.

    model.safetensors       weights; those with many zeros as places and values (see `packing`)
    config.json             the graph, input shape, preprocessing, classes, likelihood, provenance
    metrics.json            numbers, where given
    masks.safetensors       which weights of the network before compaction were kept, where given
    posterior.safetensors   the kept part of the posterior, where given
    architecture.py         the same network in plain torch
    README.md               the model card

Nothing in a bundle is code to bayesieve: `load` reads tensors and JSON, and calls what is on the
list of `_allowed`. architecture.py is for people without bayesieve and is never run here.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, fx, nn

from bayesieve import __version__
from bayesieve.core import storage
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.deliver import _stored_posterior as stored
from bayesieve.deliver._bundle_reading import (
    FORMAT,
    VERSION,
    Bundle,
    check_classes,
    check_input,
    check_outputs,
    example_input,
    is_bundle,
    outputs_of,
    read_bundle,
)
from bayesieve.deliver._bundle_writing import (
    axis_order,
    check_free,
    input_of,
    json_rows,
    own_tensors,
    pack_all,
    same_bits,
    write_folder,
)
from bayesieve.deliver._files import dtype_name
from bayesieve.deliver.architecture import architecture_source
from bayesieve.deliver.card import model_card
from bayesieve.deliver.graph_json import graph_from_json, graph_to_json, trace
from bayesieve.deliver.likelihood_json import likelihood_to_json
from bayesieve.errors import VerificationError

__all__ = [
    "Bundle",
    "check_free",
    "check_input",
    "check_outputs",
    "copy_bundle",
    "example_input",
    "is_bundle",
    "load",
    "load_bundle",
    "read_bundle",
    "save",
    "save_bundle",
    "stored_bytes",
]

_ABOUT = (
    "packed tensors are stored as <name>#values and <name>#gaps (zeros before each entry, one "
    "byte; 255 is 255 zeros and no entry) or <name>#bits (one bit per element, lowest first)"
)


def save(
    thing: Posterior | SparseModel | nn.Module, path: Path | str, **options: Any
) -> Path:  # fmt: skip
    """Write a posterior or sparse model to one file, or a module to a bundle folder.

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
    example: Tensor | None = None,
    posterior: Posterior | None = None,
    sparse: SparseModel | None = None,
    likelihood: Likelihood | None = None,
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
        module: what `compact` returned, or any module that torch.fx can trace.
        folder: to write; its parent must exist.
        example: some inputs, (n, ...); needed where the shape of an input is not plain from the
            preprocessing, the features or a first linear layer.
        posterior: to store as well, for predictions with uncertainty.
        sparse: the model before compaction; its masks are stored.
        likelihood: how outputs become densities; that of `sparse` or `posterior` unless given.
        preprocessing: recipe from raw data to inputs, plain JSON.
        classes: their names, in the order of the outputs.
        feature_names: one per input column.
        thresholds: what was pruned by, plain JSON.
        metrics: numbers for metrics.json and the card.
        config: provenance, plain JSON.
        force: replace a bundle that lies there.

    Raises:
        UnsupportedModelError: the module calls something that a bundle cannot hold.
    """
    folder = Path(folder)
    check_free(folder, force=force)
    traced = trace(module).cpu()
    weights, tied = own_tensors(traced)
    shape, dtype = input_of(traced, example, preprocessing, feature_names)
    graph = graph_to_json(traced)
    try:
        outputs = outputs_of(graph_from_json(graph), shape, dtype)
        check_classes(classes, outputs, None)
    except ValueError as error:
        raise ValueError(f"save: {error}.") from error
    parts, packed = pack_all(weights)
    whole = posterior if posterior is not None else (None if sparse is None else sparse.posterior)
    values: dict[str, Any] = {
        "format": FORMAT,
        "format_version": VERSION,
        "bayesieve_version": __version__,
        "input": {"shape": list(shape), "dtype": dtype_name(dtype)},
        "classes": None if classes is None else [str(name) for name in classes],
        "feature_names": None if feature_names is None else [str(n) for n in feature_names],
        "likelihood": likelihood_to_json(likelihood, whole),
        "preprocessing": None if preprocessing is None else dict(preprocessing),
        "thresholds": None if thresholds is None else dict(thresholds),
        "provenance": None if config is None else dict(config),
        "about": _ABOUT,
        "packed": packed,
        "tied": tied,
        "order": {n: order for n, value in weights.items() if (order := axis_order(value))},
        "graph": graph,
    }
    files = {"model.safetensors": tensors_to_bytes(parts, {"format": "pt"})}
    if sparse is not None:
        files[stored.MASKS], values["masks"] = stored.pack_keep(sparse)
    if posterior is not None:
        keep = None if sparse is None else sparse.keep
        files[stored.POSTERIOR], values["posterior"] = stored.pack_posterior(posterior, keep)
    values["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    values["check"] = check_outputs(traced, shape, dtype)
    files["config.json"] = json_rows(values, "config").encode()
    if metrics is not None:
        files["metrics.json"] = json_rows(metrics, "metrics").encode()
    files["architecture.py"] = architecture_source(graph).encode()
    sizes = {name: len(data) for name, data in files.items()}
    files["README.md"] = model_card(folder.name, values, metrics or {}, sizes).encode()
    write_folder(folder, files, partial(_check_same, traced), force=force)
    return folder


def copy_bundle(bundle: Bundle, folder: Path | str, *, force: bool = False) -> Path:
    """Write the same bundle elsewhere; its architecture.py is made anew, its other files copied."""
    folder = Path(folder)
    check_free(folder, force=force)
    names = ("model.safetensors", "config.json", "metrics.json", stored.MASKS, stored.POSTERIOR)
    paths = [bundle.path / name for name in (*names, "README.md")]
    files = {path.name: path.read_bytes() for path in paths if path.is_file()}
    files["architecture.py"] = architecture_source(bundle.config["graph"]).encode()
    write_folder(folder, files, partial(_check_same, bundle.module), force=force)
    return folder


def load(folder: Path | str) -> fx.GraphModule:
    """Read the module of a bundle, in eval mode; it gives the saved one's outputs bit for bit.

    Example:
        >>> import tempfile, torch
        >>> module, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3)
        >>> path = save(module, Path(tempfile.mkdtemp()) / "small")
        >>> torch.equal(load(path)(x), module(x))
        True
    """
    return read_bundle(folder).module


load_bundle = load


def stored_bytes(module: nn.Module) -> int:
    """Bytes of the weights in model.safetensors, without its header.

    Example:
        >>> stored_bytes(nn.Linear(3, 2))
        32
    """
    parts, _ = pack_all(own_tensors(trace(module).cpu())[0])
    return sum(part.numel() * part.element_size() for part in parts.values())


def _check_same(module: fx.GraphModule, folder: Path) -> None:
    try:
        read = read_bundle(folder)
    except ValueError as error:
        raise ValueError(f"save: {_reason(error)}") from error
    own, found = own_tensors(module)[0], own_tensors(read.module)[0]
    if own.keys() != found.keys() or not all(same_bits(own[n], found[n]) for n in own):
        raise VerificationError("save: the bundle does not read back as what was written.")
    if graph_to_json(module) != graph_to_json(read.module):
        raise VerificationError("save: the graph does not read back as what was written.")
    if read.config.get("posterior") is not None:
        read.posterior  # noqa: B018 - reads and checks


def _reason(error: ValueError) -> str:
    return str(error).partition(" is damaged: ")[2] or str(error)
