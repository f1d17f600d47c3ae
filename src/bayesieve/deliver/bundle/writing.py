"""Write a bundle, all or nothing, and check that it reads back as the same network."""

import hashlib
import inspect
import json
import keyword
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve import __version__
from bayesieve.core.inputs import Input, Inputs, as_inputs, tensors_of
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.storage import dtype_name, file_bytes, header_sum_of
from bayesieve.deliver.bundle import allowed
from bayesieve.deliver.bundle import posterior as stored
from bayesieve.deliver.bundle.graph import (
    first_names,
    graph_from_json,
    graph_to_json,
    output_shape,
    trace,
)
from bayesieve.deliver.bundle.packing import pack_all
from bayesieve.deliver.bundle.posterior import likelihood_to_json
from bayesieve.deliver.bundle.reading import (
    CHECKSUM,
    FORMAT,
    HEADERS,
    NO_SUM,
    VERSION,
    Bundle,
    check_classes,
    check_outputs,
    is_bundle,
    read_bundle,
)
from bayesieve.deliver.card import bundle_card
from bayesieve.errors import VerificationError
from bayesieve.files import folder_for, write_atomically
from bayesieve.graph.graph import named_tensors
from bayesieve.uncertainty.familiarity import FILE as FAMILIARITY
from bayesieve.uncertainty.familiarity import Familiarity

FILES = (
    "model.safetensors", "config.json", "metrics.json", stored.MASKS, stored.POSTERIOR, FAMILIARITY,
    "architecture.py", "README.md",
)  # fmt: skip
_ABOUT = (
    "packed tensors are stored as <name>#values and <name>#gaps (zeros before each entry, one "
    "byte; 255 is 255 zeros and no entry) or <name>#bits (one bit per element, lowest first)"
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
    rows = [{"name": n, "shape": list(s), "dtype": dtype_name(d)} for n, (s, d) in inputs.items()]
    graph = graph_to_json(traced)
    try:
        outputs = output_shape(graph_from_json(graph), shape, dtype, others)
        check_classes(classes, outputs, None)
    except ValueError as error:
        raise ValueError(f"save: {error}.") from error
    tensors, packed = pack_all(weights)
    whole = posterior if posterior is not None else (None if sparse is None else sparse.posterior)
    values: dict[str, Any] = {
        "format": FORMAT,
        "format_version": VERSION,
        "bayesieve_version": __version__,
        "input": {"shape": list(shape), "dtype": dtype_name(dtype)},
        **({"inputs": rows} if others else {}),
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
    values[HEADERS] = {name: header_sum_of(data) for name, data in files.items()}
    if metrics is not None:
        files["metrics.json"] = _json_rows(metrics, "metrics").encode()
    values["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    values["check"] = check_outputs(traced, shape, dtype, others)
    values[CHECKSUM] = NO_SUM
    text = _json_rows(values, "config")
    digest = hashlib.sha256(text.encode()).hexdigest()
    files["config.json"] = text.replace(NO_SUM, digest, 1).encode()
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
    """Return whether two tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((a.reshape(-1).contiguous().view(torch.uint8) ==
                 b.reshape(-1).contiguous().view(torch.uint8)).all())  # fmt: skip


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


# ---------------------------------------------------------------------------------- in plain torch


def architecture_source(graph: Mapping[str, Any]) -> str:
    """Python source of a graph: a class `Model`, and `load_model` that fills in the weights.

    Example:
        >>> from torch import nn
        >>> source = architecture_source(graph_to_json(trace(nn.Sequential(nn.Linear(2, 1)))))
        >>> print(source[source.index("class Model") : source.index("def unpack")].rstrip())
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer_0 = nn.Linear(in_features=2, out_features=1)
        <BLANKLINE>
            def forward(self, input_1):
                _0 = self.layer_0(input_1)
                return _0
        <BLANKLINE>
        <BLANKLINE>
        # names of the layers in model.safetensors
        NAMES = {'0': 'layer_0'}
    """
    names = _attributes(graph)
    lines = []
    ours = {kind for _, kind, _ in graph["modules"]} & set(allowed.OURS)
    lines += [f"\n{inspect.getsource(allowed.OURS[kind])}" for kind in sorted(ours)]
    lines += ["\nclass Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    for path, kind, arguments in graph["modules"]:
        constants = {
            key: repr(tuple(value)) if isinstance(value, list) else _expression(value)
            for key, value in arguments.items()
        }
        arguments_text = ", ".join(f"{key}={text}" for key, text in constants.items())
        home = "" if kind in ours else "nn."
        lines.append(f"        self.{names[path]} = {home}{kind}({arguments_text})")
    for path, kind, shape, dtype in graph["tensors"]:
        empty = f"torch.empty({shape}, dtype=torch.{dtype})"
        if kind == "parameter":
            lines.append(f"        self.{names[path]} = nn.Parameter({empty})")
        else:
            lines.append(f'        self.register_buffer("{names[path]}", {empty})')
    lines += ["", *_forward(graph, names)]
    renamed = {path: name for path, name in names.items() if path != name}
    lines += ["\n", "# names of the layers in model.safetensors", f"NAMES = {renamed!r}"]
    place = resources.files("bayesieve.deliver.bundle") / "architecture.txt"
    head, tail = place.read_text(encoding="utf-8").split("{{network}}")
    return "\n".join([head, *lines]) + "\n" + tail


def _attributes(graph: Mapping[str, Any]) -> dict[str, str]:
    """A plain attribute name for every layer and loose tensor."""
    names: dict[str, str] = {}
    for path in (row[0] for row in (*graph["modules"], *graph["tensors"])):
        name = path.replace(".", "_")
        if name[0].isdigit() or keyword.iskeyword(name):
            name = f"layer_{name}"
        while name in names.values():
            name += "_"
        names[path] = name
    return names


def _forward(graph: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    inputs = [name for name, op, *_ in graph["nodes"] if op == "input"]
    lines = [f"    def forward(self, {', '.join(inputs)}):"]
    for name, op, target, arguments, keywords in graph["nodes"]:
        values = [_expression(value) for value in arguments]
        named = [f"{key}={_expression(value)}" for key, value in keywords.items()]
        inside = ", ".join([*values, *named])
        if op == "input":
            continue
        if op == "output":
            lines.append(f"        return {values[0]}")
            continue
        if op == "layer":
            call = f"self.{names[target]}({inside})"
        elif op == "tensor":
            owner, _, leaf = target.rpartition(".")
            call = f"self.{names.get(target) or f'{names[owner]}.{leaf}'}"
        elif op == "method":
            call = f"{values[0]}.{target}({', '.join([*values[1:], *named])})"
        elif target == "getattr":
            call = f"{values[0]}.{arguments[1]}"
        elif target in allowed.INFIX:
            left, right = (f"({v})" if v.startswith("-") else v for v in values)
            call = f"{left} {allowed.INFIX[target]} {right}"
        else:
            call = f"{target}({inside})"
        lines.append(f"        {name} = {call}")
    return lines


def _expression(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_expression(item) for item in value)}]"
    if not isinstance(value, dict):
        return repr(value)
    ((kind, inner),) = value.items()
    if kind == "node":
        return str(inner)
    if kind == "tuple":
        inside = ", ".join(_expression(item) for item in inner)
        return f"({inside},)" if len(inner) == 1 else f"({inside})"
    if kind == "slice":
        return f"slice({', '.join(_expression(item) for item in inner)})"
    if kind == "dtype":
        return f"torch.{inner}"
    return "..." if kind == "ellipsis" else f'float("{inner}")'
