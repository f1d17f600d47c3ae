"""How a bundle gets onto the disk: which tensors, which shape, all files or none."""

import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.deliver._bundle_reading import is_bundle
from bayesieve.deliver.packing import pack
from bayesieve.files import write_atomically


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


def write_folder(
    folder: Path, files: Mapping[str, bytes], check: Callable[[Path], None], *, force: bool
) -> None:
    """Fill a folder beside the target, check it, then give it its name.

    Args:
        folder: the target.
        files: content by name.
        check: raises if what it reads there is not what it should be.
        force: replace what lies there.
    """
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.part")
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.old")
    try:
        part.mkdir()
        for name, data in files.items():
            write_atomically(part / name, data)
        check(part)
        if force and folder.is_dir():
            folder.rename(old)
        try:
            part.rename(folder)
        except OSError:
            if old.is_dir():
                old.rename(folder)
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def own_tensors(module: fx.GraphModule) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor once, and the names under which a parameter is met again."""
    weights: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    named = [*module.named_parameters(remove_duplicate=False),
             *module.named_buffers(remove_duplicate=False)]  # fmt: skip
    used = _used_names(module)
    for name, value in named:
        if name not in used:
            continue
        if id(value) in first:
            tied[name] = first[id(value)]
            continue
        first[id(value)] = name
        weights[name] = value.detach()
    return weights, tied


def _used_names(module: fx.GraphModule) -> set[str]:
    """Tensors that the graph reads, by the layers it calls or directly."""
    used: set[str] = set()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            used.add(str(node.target))
        elif node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            pairs = (*layer.named_parameters(remove_duplicate=False), *layer.named_buffers())
            used |= {f"{node.target}.{name}" for name, _ in pairs}
    return used


def axis_order(tensor: Tensor) -> list[int] | None:
    """Axes from the slowest to the fastest in memory; None where that is the usual order.

    The order changes how sums are rounded, so a bundle keeps it.

    Example:
        >>> axis_order(torch.zeros(3, 2)), axis_order(torch.zeros(3, 2).T)
        (None, [1, 0])
    """
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride()[axis])
    usual = tensor.is_contiguous() or not tensor.permute(order).is_contiguous()
    return None if usual else order


def pack_all(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What to store, and how each packed tensor is packed."""
    parts: dict[str, Tensor] = {}
    packed: dict[str, Any] = {}
    for name, value in weights.items():
        own, how = pack(name, value)
        parts |= own
        if how is not None:
            packed[name] = how
    return parts, packed


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((a.reshape(-1).contiguous().view(torch.uint8) ==
                 b.reshape(-1).contiguous().view(torch.uint8)).all())  # fmt: skip


def input_of(
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


def json_rows(values: Mapping[str, Any], what: str) -> str:
    """JSON with one line per entry, and one per row of a graph: readable, yet small."""
    lines = []
    for name, value in values.items():
        if name == "graph":
            groups = [f'    "{key}": {_lines(rows)}' for key, rows in value.items()]
            lines.append('  "graph": {\n' + ",\n".join(groups) + "\n  }")
        else:
            lines.append(f"  {json.dumps(name)}: {dumps(value, what)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(rows: list[Any]) -> str:
    inside = ",\n      ".join(dumps(row, "graph") for row in rows)
    return f"[\n      {inside}\n    ]" if rows else "[]"


def dumps(value: Any, what: str) -> str:
    """JSON text of plain data."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"save: {what} must be plain JSON data: {error}.") from error
