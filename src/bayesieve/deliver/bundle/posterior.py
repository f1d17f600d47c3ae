"""The Bayesian part of a bundle: likelihood, masks, and the kept part of a posterior.

Masks and posterior belong to the network before compaction, whose graph is in config.json under
"posterior". Tensors have the names of `core.storage`; of every vector of length d only the kept
entries are stored.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.core.layout import Layout, Role
from bayesieve.core.likelihoods import Categorical, Likelihood, from_dict
from bayesieve.core.network import NUMBERS_PREFIX, Network
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.posterior_horseshoe import UnitScaled
from bayesieve.core.storage import (
    BUFFERS,
    DRAW_BUFFERS,
    dtype_name,
    file_bytes,
    posterior_from,
    posterior_tensors,
)
from bayesieve.deliver.bundle.allowed import DTYPES
from bayesieve.deliver.bundle.graph import (
    first_names,
    graph_from_json,
    graph_to_json,
    is_layer,
    trace,
)
from bayesieve.deliver.bundle.packing import pack_all, unpack
from bayesieve.errors import UnsupportedModelError, damaged
from bayesieve.files import check_growth
from bayesieve.graph.graph import replace_tensor

MASKS, POSTERIOR = "masks.safetensors", "posterior.safetensors"
_VECTORS = {  # the tensors of a posterior with one entry per weight
    "Factorised": ("mean", "std", "logit_inclusion"),
    "Samples": ("draws", "logit_inclusion"),
}
_FROZEN = "frozen."
ONE_LAYER = "0."  # what `trace` puts before the names of a module that is one layer
MAX_SIZE = 1 << 31  # entries of a weight vector


def likelihood_to_json(
    likelihood: Likelihood | None, posterior: Posterior | None
) -> dict[str, Any] | None:
    """Name and numbers of a likelihood; a learned noise level is that of the posterior mean.

    Example:
        >>> from bayesieve.core.likelihoods import StudentT
        >>> likelihood_to_json(StudentT(scale=0.5), None)
        {'name': 'StudentT', 'scale': 0.5, 'df': 4.0, 'learned': False}
    """
    if likelihood is None and posterior is not None:
        likelihood = posterior.network.likelihood
    if likelihood is None:
        return None
    if posterior is None or not likelihood.parameters():
        return likelihood.to_dict()
    return likelihood.to_dict(posterior.network.numbers(posterior.mean))


def likelihood_from_json(
    row: Mapping[str, Any] | None, classes: Sequence[str] | None, *, learned: bool = False
) -> Likelihood | None:
    """The likelihood of a bundle; with classes and nothing said it is a softmax.

    Args:
        row: what `likelihood_to_json` made.
        classes: names of the classes, if there are any.
        learned: whether a posterior holds a learned noise level; otherwise it is the number in
            `row`.

    Example:
        >>> likelihood_from_json({"name": "Gaussian", "noise_std": 0.5}, None)
        Gaussian(noise_std=0.5, learned=False)
    """
    if row is None:
        return None if classes is None else Categorical()
    try:
        return from_dict({**row, "learned": learned and row.get("learned") is True})
    except ValueError as error:
        raise ValueError(f"load: config.json is damaged: its likelihood: {error}") from error


def pack_keep(sparse: SparseModel) -> tuple[bytes, dict[str, Any]]:
    """masks.safetensors, and its description: the layout, and how each mask is packed."""
    pieces = sparse.layout.pieces(sparse.keep.cpu())
    tensors, packed = pack_all({name: mask for name, mask in pieces if not bool(mask.all())})
    description = {"layout": sparse.layout.to_json(), "packed": packed}
    return file_bytes(tensors, {"format": "pt"}), description


def read_keep(path: Path, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
    """The masks of all tensors as one vector, (d,) bool."""
    try:
        layout = _layout(description.get("layout"))
        packed = description.get("packed")
        if not isinstance(packed, dict):
            raise ValueError("its masks are not described")
        check_growth(path, layout.size)
        keep = torch.ones(layout.size, dtype=torch.bool)
        known = {name.partition("#")[0] for name in tensors}
        for name, piece in layout.pieces(keep):
            if name not in known:
                continue
            mask = unpack(name, tensors, packed.get(name))
            if mask.shape != piece.shape or mask.dtype != torch.bool:
                raise ValueError(
                    f"mask {name!r} must have shape {tuple(piece.shape)}, got {tuple(mask.shape)}"
                )
            piece.copy_(mask)
    except ValueError as error:
        raise damaged(path, str(error)) from error
    return keep


def pack_posterior(posterior: Posterior, keep: Tensor | None) -> tuple[bytes, dict[str, Any]]:
    """posterior.safetensors, and its description.

    Args:
        posterior: a `Factorised` or `Samples`; of a `UnitScaled` its means and stds are stored.
        keep: (d,) bool; the rest is 0 and not stored. None keeps everything.
    """
    if isinstance(posterior, UnitScaled):
        posterior = posterior.factorised()
    kind = type(posterior).__name__
    if kind not in _VECTORS:
        raise UnsupportedModelError(f"save: a bundle cannot hold a {kind}.")
    network = posterior.network
    keep = torch.ones(network.layout.size, dtype=torch.bool) if keep is None else keep.cpu()
    fixed, description = pack_network(network)
    prefix = ONE_LAYER if description["one_layer"] else ""
    tensors = {
        name: value.cpu()[..., keep] if name in _VECTORS[kind] else value
        for name, value in posterior_tensors(posterior).items()
    }
    for start in (BUFFERS, DRAW_BUFFERS) if prefix else ():
        for name in [name for name in tensors if name.startswith(start)]:
            tensors[start + prefix + name.removeprefix(start)] = tensors.pop(name)
    return file_bytes(tensors | fixed, {"format": "pt"}), {"class": kind, **description}


def pack_network(network: Network) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Frozen parameters of a network, and the plain data from which `read_network` builds it.

    Raises:
        UnsupportedModelError: the network cannot be traced, or has layers no bundle can hold.
    """
    skeleton = trace(network.skeleton, network.example)
    prefix = ONE_LAYER if is_layer(network.skeleton) else ""
    frozen: dict[str, Tensor] = {
        _FROZEN + name: p for name, p in skeleton.named_parameters() if not p.is_meta
    }
    layout = [
        row if str(row[0]).startswith(NUMBERS_PREFIX) else [f"{prefix}{row[0]}", *row[1:]]
        for row in network.layout.to_json()
    ]
    return frozen, {
        "layout": layout,
        "dtype": dtype_name(network.dtype),
        "tied": first_names(dict(skeleton.named_parameters(remove_duplicate=False))),
        "graph": graph_to_json(skeleton),
        "one_layer": bool(prefix),
    }


def read_posterior(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], keep: Tensor | None
) -> Posterior:
    """The posterior of a bundle, on a network of its own."""
    description = config["posterior"]
    try:
        likelihood = likelihood_from_json(
            config.get("likelihood"), config.get("classes"), learned=True
        )
        if likelihood is None:
            raise ValueError("it has no likelihood")
        network, buffers = read_network(description, tensors, likelihood)
        layout = network.layout
        check_growth(path, layout.size)
        whole = torch.ones(layout.size, dtype=torch.bool) if keep is None else keep
        if whole.shape != (layout.size,):
            raise ValueError(f"its masks have {len(whole)} entries, its layout {layout.size}")
        kind = description.get("class")
        if kind not in _VECTORS:
            raise ValueError(f"it holds an unknown posterior {str(kind)[:40]!r}")
        full = {
            name: _spread(tensors, name, whole, network.dtype)
            for name in _VECTORS[kind]
            if name != "logit_inclusion" or name in tensors
        }
        return posterior_from(kind, full | buffers, network)
    except ValueError as error:
        raise damaged(path, str(error).rstrip(".")) from error


def _spread(tensors: Mapping[str, Tensor], name: str, keep: Tensor, dtype: torch.dtype) -> Tensor:
    """A vector of length d from its kept entries; the rest is 0, or impossible to include."""
    if name not in tensors:
        raise ValueError(f"tensor {name!r} is missing")
    kept, n = tensors[name], int(keep.sum())
    if kept.dim() not in (1, 2) or kept.shape[-1] != n or kept.dtype != dtype:
        raise ValueError(
            f"tensor {name!r} must have {n} entries of {dtype}, got shape {tuple(kept.shape)} of "
            f"{kept.dtype}"
        )
    rest = -math.inf if name == "logit_inclusion" else 0.0
    full = torch.full((*kept.shape[:-1], len(keep)), rest, dtype=dtype)
    full[..., keep] = kept
    return full


def read_network(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], likelihood: Likelihood
) -> tuple[Network, dict[str, Tensor]]:
    """The network that `pack_network` described, and its buffers: for the mean, and for each draw.

    Raises:
        ValueError: the description or the tensors are not those of a network.
    """
    layout = _layout(description.get("layout"))
    skeleton = graph_from_json(description.get("graph"))
    dtype = DTYPES.get(str(description.get("dtype")))
    if dtype is None or not dtype.is_floating_point:
        raise ValueError("its dtype is unknown")
    skeleton.to(dtype)
    _retie(skeleton, description.get("tied"))
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    for name, slot in list(skeleton.named_parameters()):
        fixed = tensors.get(_FROZEN + name)
        if fixed is not None and fixed.shape == slot.shape and name not in shapes:
            replace_tensor(skeleton, name, nn.Parameter(fixed, requires_grad=False))
        elif shapes.get(name) != slot.shape:
            raise ValueError(
                f"parameter {name!r} of shape {tuple(slot.shape)} does not fit its layout"
            )
    buffers = {}
    for name, place in list(skeleton.named_buffers()):
        value, rows = tensors.get(BUFFERS + name), tensors.get(DRAW_BUFFERS + name)
        if value is None or value.shape != place.shape:
            raise ValueError(f"buffer {name!r} of shape {tuple(place.shape)} is missing")
        replace_tensor(skeleton, name, value)
        buffers[BUFFERS + name] = value
        if rows is not None:
            if rows.shape[1:] != value.shape or rows.dtype != value.dtype:
                raise ValueError(f"buffer {name!r} of the draws does not fit that of the mean")
            buffers[DRAW_BUFFERS + name] = rows
    return Network(skeleton, likelihood, layout, torch.device("cpu"), dtype), buffers


def _retie(module: nn.Module, tied: object) -> None:
    named = dict(module.named_parameters(remove_duplicate=False))
    if not isinstance(tied, dict) or not {*tied, *map(str, tied.values())} <= named.keys():
        raise ValueError("its tied parameters are unknown")
    for name, first in tied.items():
        if named[name].shape != named[first].shape:
            raise ValueError(f"{name!r} and {first!r} are tied but differ in shape")
        replace_tensor(module, name, named[first])


def _layout(rows: object) -> Layout:
    if not isinstance(rows, list) or not rows:
        raise ValueError("its layout is not a list of tensors")
    names, shapes, roles = [], [], []
    for row in rows:
        fits = isinstance(row, list) and len(row) == 3 and isinstance(row[0], str)
        if not fits or row[2] not in [*Role.__members__] or not isinstance(row[1], list):
            raise ValueError(f"its layout has a wrong entry: {str(row)[:80]}")
        if not all(type(size) is int and 0 <= size < MAX_SIZE for size in row[1]):
            raise ValueError(f"its layout has a wrong shape: {str(row)[:80]}")
        names.append(row[0])
        shapes.append(torch.Size(row[1]))
        roles.append(Role[row[2]])
    layout = Layout(tuple(names), tuple(shapes), tuple(roles))
    if len(set(names)) != len(names) or layout.size > MAX_SIZE:
        raise ValueError("its layout repeats a name or is too large")
    return layout
