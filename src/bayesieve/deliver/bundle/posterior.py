"""The Bayesian part of a bundle: masks, and what is kept of a posterior.

Masks and posterior belong to the network before compaction, whose graph stands in config.json
under "posterior". Of every vector of length d only the kept entries are stored.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from bayesieve.core.layout import Layout, Role
from bayesieve.core.network import EXTRA_PREFIX, Network
from bayesieve.core.posterior import Factorised, Posterior, Samples, SparseModel
from bayesieve.core.posterior_horseshoe import UnitScaled
from bayesieve.core.storage import dtype_name
from bayesieve.deliver.bundle.allowed import DTYPES
from bayesieve.deliver.bundle.graph import graph_from_json, graph_to_json, is_layer, trace
from bayesieve.deliver.bundle.packing import pack, unpack
from bayesieve.deliver.likelihood_json import likelihood_from_json
from bayesieve.errors import UnsupportedModelError, damaged

MASKS, POSTERIOR = "masks.safetensors", "posterior.safetensors"
_FIELDS = {"Factorised": ("mean", "std"), "Samples": ("draws",)}
_BUFFERS, _DRAW_BUFFERS, _FROZEN = "buffers.", "draw_buffers.", "frozen."
MAX_SIZE = 1 << 31  # entries of a weight vector


def pack_keep(sparse: SparseModel) -> tuple[bytes, dict[str, Any]]:
    """masks.safetensors, and its description: the layout, and how each mask is packed."""
    parts: dict[str, Tensor] = {}
    packed = {}
    for name, mask in sparse.layout.pieces(sparse.keep.cpu()):
        if bool(mask.all()):
            continue  # nothing was removed here
        own, how = pack(name, mask)
        parts |= own
        if how is not None:
            packed[name] = how
    description = {"layout": sparse.layout.to_json(), "packed": packed}
    return tensors_to_bytes(parts, {"format": "pt"}), description


def read_keep(path: Path, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
    """The masks of all tensors as one vector, (d,) bool."""
    try:
        layout = _layout(description.get("layout"))
        packed = description.get("packed")
        if not isinstance(packed, dict):
            raise ValueError("its masks are not described")
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
    if kind not in _FIELDS:
        raise UnsupportedModelError(f"save: a bundle cannot hold a {kind}.")
    network = posterior.network
    keep = torch.ones(network.layout.size, dtype=torch.bool) if keep is None else keep.cpu()
    tensors = {name: getattr(posterior, name) for name in _FIELDS[kind]}
    logit = getattr(posterior, "logit_inclusion", None)
    if logit is not None:
        tensors["logit_inclusion"] = logit
    parts = {name: value.detach().cpu()[..., keep] for name, value in tensors.items()}
    skeleton, prefix = trace(network.skeleton), "0." if is_layer(network.skeleton) else ""
    parts |= {_BUFFERS + prefix + name: value.cpu() for name, value in posterior.buffers.items()}
    if isinstance(posterior, Samples):
        rows = posterior.draw_buffers.items()
        parts |= {_DRAW_BUFFERS + prefix + name: value.cpu() for name, value in rows}
    frozen = (p for p in skeleton.named_parameters() if not p[1].is_meta)
    parts |= {_FROZEN + name: value.detach().cpu() for name, value in frozen}
    own = {name: value.clone().contiguous() for name, value in parts.items()}
    description = {
        "class": kind,
        "layout": [_prefixed(row, prefix) for row in network.layout.to_json()],
        "dtype": dtype_name(network.dtype),
        "tied": _tied(skeleton),
        "graph": graph_to_json(skeleton),
    }
    return tensors_to_bytes(own, {"format": "pt"}), description


def _prefixed(row: list[object], prefix: str) -> list[object]:
    name = str(row[0])
    return row if name.startswith(EXTRA_PREFIX) else [prefix + name, *row[1:]]


def read_posterior(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], keep: Tensor | None
) -> Posterior:
    """The posterior of a bundle, on a network of its own."""
    description = config["posterior"]
    try:
        layout = _layout(description.get("layout"))
        network = _network(config, description, layout, tensors)
        whole = torch.ones(layout.size, dtype=torch.bool) if keep is None else keep
        if whole.shape != (layout.size,):
            raise ValueError(f"its masks have {len(whole)} entries, its layout {layout.size}")
        kind = description.get("class")
        if kind not in _FIELDS:
            raise ValueError(f"it holds an unknown posterior {str(kind)[:40]!r}")
        vectors = [_spread(tensors, name, whole, network.dtype, 0.0) for name in _FIELDS[kind]]
        logit = None
        if "logit_inclusion" in tensors:
            logit = _spread(tensors, "logit_inclusion", whole, network.dtype, -math.inf)
        buffers = _buffers(network, tensors)
        if kind == "Samples":
            return Samples(network, vectors[0], logit, buffers, _draw_buffers(buffers, tensors))
        return Factorised(network, vectors[0], vectors[1], None, logit, buffers)
    except ValueError as error:
        raise damaged(path, str(error).rstrip(".")) from error


def _spread(
    tensors: Mapping[str, Tensor], name: str, keep: Tensor, dtype: torch.dtype, rest: float
) -> Tensor:
    if name not in tensors:
        raise ValueError(f"tensor {name!r} is missing")
    kept, n = tensors[name], int(keep.sum())
    if kept.dim() not in (1, 2) or kept.shape[-1] != n or kept.dtype != dtype:
        raise ValueError(
            f"tensor {name!r} must have {n} entries of {dtype}, got shape {tuple(kept.shape)} of "
            f"{kept.dtype}"
        )
    full = torch.full((*kept.shape[:-1], len(keep)), rest, dtype=dtype)
    full[..., keep] = kept
    return full


def _network(
    config: Mapping[str, Any],
    description: Mapping[str, Any],
    layout: Layout,
    tensors: Mapping[str, Tensor],
) -> Network:
    skeleton = graph_from_json(description.get("graph"))
    dtype = DTYPES.get(str(description.get("dtype")))
    if dtype is None or not dtype.is_floating_point:
        raise ValueError("its dtype is unknown")
    skeleton.to(dtype)
    _retie(skeleton, description.get("tied"))
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    for name, slot in list(skeleton.named_parameters()):
        given = tensors.get(_FROZEN + name)
        if given is not None and given.shape == slot.shape and name not in shapes:
            _replace(skeleton, name, nn.Parameter(given, requires_grad=False))
        elif shapes.get(name) != slot.shape:
            raise ValueError(
                f"parameter {name!r} of shape {tuple(slot.shape)} does not fit its layout"
            )
    for name, place in list(skeleton.named_buffers()):
        value = tensors.get(_BUFFERS + name)
        if value is None or value.shape != place.shape:
            raise ValueError(f"buffer {name!r} of shape {tuple(place.shape)} is missing")
        _replace(skeleton, name, value)
    likelihood = likelihood_from_json(config.get("likelihood"), config.get("classes"), learned=True)
    if likelihood is None:
        raise ValueError("it has no likelihood")
    return Network(skeleton, likelihood, layout, torch.device("cpu"), dtype)


def _buffers(network: Network, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensors[_BUFFERS + name] for name, _ in network.skeleton.named_buffers()}


def _draw_buffers(shared: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers that each draw has of its own, one row per draw."""
    own = {
        name: tensors[_DRAW_BUFFERS + name] for name in shared if _DRAW_BUFFERS + name in tensors
    }
    for name, value in own.items():
        if value.shape[1:] != shared[name].shape or value.dtype != shared[name].dtype:
            raise ValueError(f"buffer {name!r} of the draws does not fit that of the mean")
    return own


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    folder, _, leaf = name.rpartition(".")
    owner = module.get_submodule(folder)
    home = owner._parameters if leaf in owner._parameters else owner._buffers
    home[leaf] = value  # type: ignore[assignment]


def _tied(module: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    pairs = module.named_parameters(remove_duplicate=False)
    return {name: own for name, p in pairs if (own := first.setdefault(id(p), name)) != name}


def _retie(module: nn.Module, tied: object) -> None:
    named = dict(module.named_parameters(remove_duplicate=False))
    if not isinstance(tied, dict) or not {*tied, *map(str, tied.values())} <= named.keys():
        raise ValueError("its tied parameters are unknown")
    for name, first in tied.items():
        if named[name].shape != named[first].shape:
            raise ValueError(f"{name!r} and {first!r} are tied but differ in shape")
        _replace(module, name, named[first])


def _layout(rows: object) -> Layout:
    if not isinstance(rows, list) or not rows:
        raise ValueError("its layout is not a list of tensors")
    names, shapes, roles = [], [], []
    for row in rows:
        fits = isinstance(row, list) and len(row) == 3 and isinstance(row[0], str)
        if not fits or row[2] not in Role.__members__ or not isinstance(row[1], list):
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
