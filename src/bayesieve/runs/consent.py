"""Consent to run a user's code: a stored run or configuration imports nothing by itself.

A run of `net=module:package.file.factory` keeps two things: the SHA-256 of the factory's source
file, in the record of config.json, and the network's graph as plain data, in network.safetensors,
where `torch.fx` can trace it. Later commands use the graph. They import the factory only when the
caller says so (`trust`, or `net` with its name), and only while its file is unchanged.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesieve.core.layout import Layout
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.network import Network
from bayesieve.core.storage import BUFFERS, file_bytes, read_tensors
from bayesieve.data import DataSet
from bayesieve.deliver.bundle.graph import graph_from_json, graph_to_json, output_shape, trace
from bayesieve.deliver.bundle.posterior import ONE_LAYER, pack_network, read_network
from bayesieve.errors import UnsupportedModelError, UsageError, damaged
from bayesieve.files import parse_json, sha256
from bayesieve.nets.importing import is_factory, source_file
from bayesieve.runs.arguments import Json
from bayesieve.runs.build import build_likelihood, build_network
from bayesieve.runs.config import RunConfig
from bayesieve.runs.folder import NETWORK, RunFolder
from bayesieve.runs.text import note

_FACTORY = "factory"  # in the record of config.json
_KEY = "bayesieve"  # of the description, in the metadata of network.safetensors


def check_named(
    config: RunConfig, source: object, *, named: bool, folder: RunFolder | None = None
) -> None:
    """Raise where settings from a file name a factory that the caller has not named or trusted.

    Args:
        config: settings, those of files among them.
        source: where they come from.
        named: whether the caller has named the factory or trusts it.
        folder: the run that is continued; its factory must be unchanged.
    """
    name = config.net.name
    if not is_factory(name):
        return
    if not named:
        where = source if folder is None else folder.path / "config.json"
        raise UsageError(
            f"{where} names the network {name}, {_whose(name)} would run. Give its name again, "
            f"`net={name}`, or `trust`."
        )
    if folder is not None:
        check_unchanged(folder, name)


def factory_record(name: str | None, source: RunFolder | None = None) -> Json:
    """Name and hash of a factory's file, for config.json; nothing for our own networks.

    Args:
        name: of the network.
        source: the run that a run is made from, whose record stays.
    """
    if name is None or not is_factory(name):
        return {}
    if source is not None:
        stored = source.record.get(_FACTORY)
        return {_FACTORY: stored} if isinstance(stored, dict) else {}
    file = source_file(name)
    return {} if file is None else {_FACTORY: {"file": file.name, "sha256": sha256(file)}}


def check_unchanged(folder: RunFolder, name: str | None) -> None:
    """Raise unless the file of a factory is the one that a run was trained with."""
    stored = factory_record(name, folder).get(_FACTORY)
    if stored is None:
        return  # an older run, or a factory without a file
    now = factory_record(name).get(_FACTORY)
    if now is None or now["sha256"] != stored.get("sha256"):
        what = "cannot be found" if now is None else "is not the file"
        raise UsageError(
            f"{folder.path} was made with {name}, but {stored.get('file')} {what} that it was made "
            "with. Bring it back as it was, or leave out `net` and `trust` to use the stored graph."
        )


def keep_network(
    folder: RunFolder, network: Network, w: Tensor, x: Tensor, source: RunFolder | None = None
) -> None:
    """Write the graph of a factory's network, so that the run can be read without its code.

    Args:
        folder: the run that is written.
        network: what the factory built.
        w: some weights, (d,).
        x: some inputs, (n, ...), on which graph and code must agree bit for bit.
        source: the run that it was made from; its graph is kept where it has one.
    """
    if source is not None and (source.path / NETWORK).is_file():
        folder.write(NETWORK, (source.path / NETWORK).read_bytes())
        return
    network, w, x = network.to("cpu"), w.cpu()[None], x.cpu()
    try:
        tensors, description = pack_network(network)
        prefix = BUFFERS + (ONE_LAYER if description["one_layer"] else "")
        tensors |= {prefix + name: value for name, value in network.buffers().items()}
        again, buffers = _read(description, tensors, network.likelihood), network.buffers()
        if not torch.equal(again.outputs(w, x, buffers), network.outputs(w, x, buffers)):
            raise UnsupportedModelError("its graph gives other outputs than its code.")
    except Exception as error:  # the user's module may do anything; its code can still be trained
        note(
            "the network cannot be stored without its code; commands on this run will need "
            f"`trust`. {str(error).removeprefix('save: ')}"
        )
        return
    description["trains"] = _trains(network, description["graph"])
    folder.write(NETWORK, file_bytes(tensors, {_KEY: json.dumps(description)}))


def _trains(network: Network, graph: Mapping[str, Any]) -> bool:
    """Return whether a network trains as its graph says, besides the modes of its layers."""
    try:
        return graph_to_json(trace(network.skeleton, training=True)) == graph
    except UnsupportedModelError:
        return False


def network_of(folder: RunFolder, config: RunConfig, data: DataSet, *, trust: bool) -> Network:
    """The network of a finished run: ours by its name, a user's from its graph or trusted code.

    Raises:
        UsageError: it has no graph and is not trusted, or its code has changed.
        DamagedFileError: the stored graph is not one of a network for these data.
    """
    name = config.net.name
    if not is_factory(name):
        return build_network(config, data)
    if trust:
        check_unchanged(folder, name)
        return build_network(config, data)
    path = folder.path / NETWORK
    if not path.is_file():
        raise UsageError(
            f"{folder.path} names the network {name}, {_whose(name)} would run: the folder has no "
            f"{NETWORK}. Add `trust` (in Python trust=True) if you trust it."
        )
    tensors, description = _stored(path)
    likelihood = build_likelihood(config.net, data)
    wanted = (2, likelihood.n_outputs(data.n_outputs))
    try:
        graph = graph_from_json(description.get("graph"))
        made = tuple(output_shape(graph, data.input_shape, getattr(torch, config.net.dtype)))
        if made != wanted:
            raise ValueError(f"it makes outputs of shape {made}, the data ask for {wanted}")
        return _read(description, tensors, likelihood).seeing(data.train.x)
    except ValueError as error:
        raise damaged(path, str(error).removeprefix("load: ").rstrip(".")) from error


def check_trainable(folder: RunFolder) -> None:
    """Raise unless the stored graph of a run may be trained in the place of its code."""
    if _stored(folder.path / NETWORK)[1].get("trains") is not True:
        raise UsageError(
            f"{folder.path}: its network does other things in training than in its stored graph. "
            "Add `trust` to train its code."
        )


def _stored(path: Path) -> tuple[dict[str, Tensor], Json]:
    tensors, metadata = read_tensors(path)
    return tensors, parse_json(path, metadata.get(_KEY, "").encode(), "its description")


def _read(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], likelihood: Likelihood
) -> Network:
    """The network of a description; a module that is one layer is that layer again."""
    network, _ = read_network(description, tensors, likelihood)
    if description.get("one_layer") is not True:
        return network
    layer = network.skeleton._modules.get(ONE_LAYER.rstrip("."))
    if layer is None or len(network.skeleton._modules) > 1:
        raise ValueError("it is not one layer")
    layout = network.layout
    names = tuple(name.removeprefix(ONE_LAYER) for name in layout.names)
    layout = Layout(names, layout.shapes, layout.roles)
    return Network(layer, likelihood, layout, network.device, network.dtype)


def _whose(name: str | None) -> str:
    file = source_file(name or "")
    return "whose code" if file is None else f"whose code ({file})"
