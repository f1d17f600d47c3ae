"""Models of the library transformers that lost units: still of their class, with widths in config.

`narrowed` puts the layers that `compact` leaves into a copy of the model, in the places of those
that were wider, and checks that it computes the same. The result is a `PreTrainedModel` that
trains and generates; its config has the entry "bayesieve":

    layers    [[path, kind, arguments], ...]: layers that differ from those the config asks for
    tensors   {name: shape}: narrower parameters that belong to no layer
    numbers   {path: {name: whole number}}: sizes that attention layers remember
    tied      {name: first name}: parameters that are one

A folder of `save` has config.json, model.safetensors (all buffers among them) and
modeling_bayesieve.py, which loads it by transformers alone. `load` reads JSON and tensors only. It
takes the class from transformers itself, by a name on its list of models, and makes no other layer
than a bundle may hold (`bundle.allowed`). Nothing that a file names is imported or run.
"""

import copy
import inspect
import json
from collections.abc import Mapping
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.core.inputs import as_inputs
from bayesieve.core.posterior import SparseModel
from bayesieve.core.storage import file_bytes, read_tensors
from bayesieve.deliver.bundle import allowed
from bayesieve.deliver.bundle.graph import build_layer, first_names, layer_arguments
from bayesieve.deliver.bundle.reading import fill
from bayesieve.errors import UnsupportedModelError, VerificationError, damaged
from bayesieve.files import check_growth, folder_for, read_json, write_atomically
from bayesieve.graph.graph import named_tensors, replace_tensor
from bayesieve.sieve.compact import compact
from bayesieve.sieve.verify import verify

ENTRY, VERSION = "bayesieve", 1
FILES = ("config.json", "model.safetensors", "modeling_bayesieve.py")
_SIZES = ("split_size", "num_key_value_groups", "all_head_size", "num_heads", "num_attention_heads")
_KINDS = ("Linear", "Embedding", "LayerNorm", "RMSNorm", "FoldedLayerNorm", "Conv1d", "Conv2d")
_MOST_LAYERS = 1024  # of what a config asks for
# entries of a config that name code, files or places
_UNSAFE = ("auto_map", "attn_implementation", "quantization_config", "custom_pipelines", "adapter")


def _transformers(who: str) -> Any:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise ImportError(
            f"{who}: models of this kind need transformers ({error}). Run `pip install "
            "transformers`."
        ) from error


def is_pretrained(module: object) -> bool:
    """Return whether a module is a model of transformers; the library is not loaded for it."""
    names = [f"{kind.__module__}.{kind.__name__}" for kind in type(module).__mro__]
    return "transformers.modeling_utils.PreTrainedModel" in names


def is_narrowed(module: object) -> bool:
    """Return whether a module is what `narrowed` returned, or was loaded as such."""
    return is_pretrained(module) and isinstance(getattr(module.config, ENTRY, None), dict)  # type: ignore[attr-defined]


def narrowed(model: SparseModel | nn.Module, example: Any) -> Any:
    """A pruned model of transformers without the units that are gone, of the same class.

    Args:
        model: a sparse model of one, or one in which weights are exactly 0; it is not changed.
        example: some inputs, as for `compact`: {"input_ids": ..., "attention_mask": ...}.

    Returns:
        A `PreTrainedModel` in eval mode.

    Raises:
        UnsupportedModelError: the smaller network cannot be had by other layers alone.
    """
    module = model.to_module() if isinstance(model, SparseModel) else model
    if not is_pretrained(module):
        raise TypeError(
            f"narrowed: {type(module).__name__} is no model of transformers. Use compact."
        )
    known = type(module).__module__.startswith("transformers.models.")
    if not known or type(module).__name__ not in dir(_transformers("narrowed")):
        raise UnsupportedModelError(
            f"narrowed: {type(module).__name__} is no class of transformers itself. Use compact."
        )
    small = compact(model, example)
    result: Any = copy.deepcopy(module).eval()
    layers, tensors = _transplant(small, result)
    numbers = _resize_attention(result)
    inputs = as_inputs("narrowed", example)
    try:
        verify(result, module, inputs)
    except (VerificationError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnsupportedModelError(
            f"narrowed: {type(module).__name__} with narrower layers is not the pruned network "
            f"({reason}). Use compact, whose graph says how they are wired."
        ) from error
    tied = first_names(dict(result.named_parameters(remove_duplicate=False)))
    entry = {"version": VERSION, "layers": layers, "tensors": tensors, "numbers": numbers,
             "tied": tied}  # fmt: skip
    setattr(result.config, ENTRY, entry)
    result.config.architectures = [type(module).__name__]
    return result


def _transplant(
    small: fx.GraphModule, result: nn.Module
) -> tuple[list[list[Any]], dict[str, list[int]]]:
    """Put the layers and tensors of a compacted graph into a model, in place; describe them."""
    shapes: dict[str, list[int]] = {}
    known, read = named_tensors(result), named_tensors(small)
    for name in dict.fromkeys(str(n.target) for n in small.graph.nodes if n.op == "get_attr"):
        if isinstance(known.get(name), nn.Parameter) and known[name].shape != read[name].shape:
            replace_tensor(result, name, nn.Parameter(read[name].detach().clone()))
            shapes[name] = list(read[name].shape)
    rows: list[list[Any]] = []
    put: dict[int, nn.Module] = {}
    for name in dict.fromkeys(str(n.target) for n in small.graph.nodes if n.op == "call_module"):
        layer = small.get_submodule(name)
        kind = type(layer).__name__
        if kind not in _KINDS:
            continue
        path = _place(name, layer, result)
        if path is None:
            raise UnsupportedModelError(
                f"narrowed: layer {name!r} ({kind}) of the smaller network has no place in "
                f"{type(result).__name__}. Use compact."
            )
        owner, _, leaf = path.rpartition(".")
        new = put.setdefault(
            id(layer), copy.deepcopy(layer, {id(p): p for p in layer.parameters()})
        )
        setattr(result.get_submodule(owner), leaf, new)
        rows.append([path, kind, layer_arguments(layer)])
    for module in result.modules():
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.clone()
    return rows, shapes


def _place(name: str, layer: nn.Module, model: nn.Module) -> str | None:
    """Where a layer of the graph belongs: the module whose weight it had, of its kind."""
    base = name.removesuffix("_layer").removesuffix(".weight")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    weight = parameters.get(f"{base}.weight")
    if weight is None:
        return None
    for path, module in model.named_modules():
        same = isinstance(getattr(module, "weight", None), Tensor) and module.weight is weight
        if same and isinstance(module, nn.Embedding) == isinstance(layer, nn.Embedding):
            return path
    return None


def _resize_attention(model: nn.Module) -> dict[str, dict[str, int]]:
    """Set the sizes that attention layers remember to those of their projections, in place."""
    numbers: dict[str, dict[str, int]] = {}
    for path, module in model.named_modules():
        width = {
            name: child.out_features
            for name, child in module.named_children()
            if isinstance(child, nn.Linear)
        }
        new: dict[str, int] = {}
        if "c_attn" in width and hasattr(module, "split_size"):
            new["split_size"] = width["c_attn"] // 3
        if "query" in width and hasattr(module, "all_head_size"):
            new["all_head_size"] = width["query"]
        if {"q_proj", "k_proj"} <= width.keys() and hasattr(module, "num_key_value_groups"):
            new["num_key_value_groups"] = max(width["q_proj"] // max(width["k_proj"], 1), 1)
        head = getattr(module, "head_dim", getattr(module, "attention_head_size", None))
        total = new.get("all_head_size", new.get("split_size", width.get("q_proj")))
        for name in ("num_heads", "num_attention_heads"):
            if total and isinstance(head, int) and head and hasattr(module, name):
                new[name] = total // head
        for name, value in new.items():
            setattr(module, name, value)
        if new:
            numbers[path] = new
    return numbers


# ------------------------------------------------------------------------------------ the folder


def save(model: Any, folder: Path | str) -> Path:
    """Write what `narrowed` returned to a folder, and check that it reads back.

    The folder must be new or empty.
    """
    if not is_narrowed(model):
        raise TypeError("save: give a model of `narrowed`; others have their own save_pretrained.")
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"save: {folder} is not empty.")
    config = json.loads(model.config.to_json_string(use_diff=False))
    unsafe = {name for name in config if name.startswith("_") or name in _UNSAFE}
    config = {name: value for name, value in config.items() if name not in unsafe}
    tied = config[ENTRY]["tied"]
    tensors = {n: t.detach().cpu().contiguous() for n, t in named_tensors(model).items()
               if n not in tied}  # fmt: skip
    with folder_for(folder) as hidden:
        write_atomically(hidden / "config.json", json.dumps(config, indent=2).encode())
        write_atomically(hidden / "model.safetensors", file_bytes(tensors, {"format": "pt"}))
        write_atomically(hidden / "modeling_bayesieve.py", _modelling().encode())
        again = load(hidden)
    for name, tensor in tensors.items():
        if not torch.equal(named_tensors(again)[name], tensor):
            raise VerificationError(f"save: {name!r} does not read back as it was written.")
    return folder


def _modelling() -> str:
    """The source of modeling_bayesieve.py."""
    text = (resources.files("bayesieve.deliver") / "modeling_bayesieve.txt").read_text("utf-8")
    ours = [inspect.getsource(allowed.OURS[kind]) for kind in _KINDS if kind in allowed.OURS]
    return text.replace("{{layers}}", "\n\n".join(ours))


def load(folder: Path | str) -> Any:
    """Read a model that `save` wrote; a `PreTrainedModel` in eval mode.

    Raises:
        DamagedFileError: a file is missing, damaged or hostile; the message names it.
    """
    transformers, folder = _transformers("load"), Path(folder)
    path = folder / "config.json"
    config = read_json(path)
    entry = config.pop(ENTRY, None)
    try:
        layers, tensors, numbers, tied = _checked_entry(entry)
        model = _empty(transformers, config)
        for name, shape in tensors.items():
            model.get_parameter(name)
            replace_tensor(model, name, nn.Parameter(torch.empty(shape, device="meta")))
        for row in layers:
            owner, _, leaf = row[0].rpartition(".")
            parent = model.get_submodule(owner)
            if not isinstance(parent._modules.get(leaf), nn.Module):
                raise ValueError(f"the model has no layer {row[0]!r}")
            parent._modules[leaf] = build_layer(*row)
        for place, sizes in numbers.items():
            for name, value in sizes.items():
                if type(getattr(model.get_submodule(place), name, None)) is not int:
                    raise ValueError(f"layer {place!r} has no {name}")
                setattr(model.get_submodule(place), name, value)
    except (ValueError, AttributeError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise damaged(path, reason) from error
    file = folder / "model.safetensors"
    if not file.is_file():
        raise damaged(file, "it is missing")
    check_growth(file, 8 * sum(t.numel() for t in model.parameters()))
    try:
        fill(model, {"packed": {}, "tied": tied, "order": {}}, read_tensors(file)[0])
    except ValueError as error:
        raise damaged(file, str(error)) from error
    setattr(model.config, ENTRY, entry)
    return model.eval()


def _checked_entry(entry: Any) -> tuple[list[Any], dict[str, Any], dict[str, Any], dict[str, str]]:
    """Layers, tensors, numbers and ties of a config, of the right kinds."""
    if not isinstance(entry, dict) or entry.get("version") != VERSION:
        raise ValueError(f"its entry {ENTRY!r} is not of version {VERSION}")
    rows: list[Any] = [entry.get(name) for name in ("layers", "tensors", "numbers", "tied")]
    layers, tensors, numbers, tied = rows
    if not isinstance(layers, list) or not all(isinstance(one, dict) for one in rows[1:]):
        raise ValueError(f"its entry {ENTRY!r} lacks layers, tensors, numbers or tied")
    for shape in tensors.values():
        if not isinstance(shape, list) or not all(map(_is_size, shape)):
            raise ValueError(f"it has a wrong shape {str(shape)[:80]}")
    for row in layers:
        plain = isinstance(row, list) and len(row) == 3 and isinstance(row[2], dict)
        if not plain or not isinstance(row[0], str) or row[1] not in _KINDS:
            raise ValueError(f"it has a wrong layer {str(row)[:80]}")
    for sizes in numbers.values():
        if not isinstance(sizes, dict) or not {*sizes} <= {*_SIZES}:
            raise ValueError(f"it has wrong sizes {str(sizes)[:80]}")
        if not all(map(_is_size, sizes.values())):
            raise ValueError(f"it has wrong sizes {str(sizes)[:80]}")
    if not all(isinstance(name, str) for pair in tied.items() for name in pair):
        raise ValueError("its tied tensors must be names")
    return layers, tensors, numbers, tied


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _empty(transformers: Any, config: Mapping[str, Any]) -> Any:
    """The model that a config asks for, on the meta device; only classes of transformers itself."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ValueError("it must name one architecture")
    kind: Any = getattr(transformers, names[0], None) if names[0].isidentifier() else None
    ours = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not ours or not kind.__module__.startswith("transformers.models."):
        raise ValueError(f"{names[0][:80]!r} is no model of transformers")
    if config.get("model_type") != kind.config_class.model_type:
        raise ValueError(f"{names[0]} is of another model_type")
    known = kind.config_class().to_dict()
    plain = {
        name: value
        for name, value in config.items()
        if name in known and not name.startswith("_") and name not in _UNSAFE
    }
    for name, value in plain.items():
        if "layer" in name and isinstance(value, int) and value > _MOST_LAYERS:
            raise ValueError(f"{name} = {value} is unreasonably large")
    with torch.device("meta"):
        return kind(kind.config_class(**plain))


def is_folder(folder: Path) -> bool:
    """Return whether a folder claims to hold a model that `save` wrote."""
    path = folder / "config.json"
    return path.is_file() and ENTRY in read_json(path)
