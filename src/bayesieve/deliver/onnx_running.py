"""Run ONNX files in onnxruntime: files from anywhere, checked first, and our exports, for timing.

A file may point to data outside itself, by any path. Such a file is refused before the runtime
sees it, and the runtime gets the checked bytes, not the path.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesieve.deliver.onnx import export_onnx
from bayesieve.errors import DamagedFileError, damaged
from bayesieve.files import MAX_DEPTH

_WHO = "predict"
MAX_FILE_BYTES = 2 << 30  # the limit of the format itself
_MAX_TEXT = 16 << 20
_JSON_ENTRIES = ("classes", "preprocessing", "likelihood")
_INPUT_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(int64)": torch.int64,
}


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file that passed every check.

    Args:
        path: the file.
        session: of onnxruntime.
        input_shape: of one example.
        dtype: of inputs.
        metadata: what the exporter wrote: classes, preprocessing, likelihood, task, n_samples.
    """

    path: Path
    session: Any
    input_shape: tuple[int, ...]
    dtype: torch.dtype
    metadata: dict[str, Any]

    def run(self, x: Tensor, batch_size: int = 2048) -> dict[str, Tensor]:
        """Outputs by name for inputs of shape (N, ...)."""
        name = self.session.get_inputs()[0].name
        names = [output.name for output in self.session.get_outputs()]
        results = [self.session.run(names, {name: batch.numpy()}) for batch in x.split(batch_size)]
        return {
            name: torch.from_numpy(np.concatenate([batch[i] for batch in results]))
            for i, name in enumerate(names)
        }


def read_onnx(path: Path | str) -> OnnxModel:
    """Read an ONNX file with one input and a free batch axis.

    Raises:
        ImportError: the extra `onnx` is not installed.
        DamagedFileError: the file is damaged, or points to data outside itself.
    """
    path = Path(path)
    onnx, runtime = _import_extra()
    if not path.is_file():
        raise ValueError(f"predict: there is no file {path}.")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise damaged(path, f"it has {size} bytes, more than {MAX_FILE_BYTES}", _WHO)
    data = path.read_bytes()
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise damaged(path, "it is no ONNX file", _WHO) from error
    _refuse_external_data(path, onnx, model)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of error for each of its codes
        raise damaged(path, f"onnxruntime refuses it ({_short(error)})", _WHO) from error
    shape, dtype = _input_of(path, session)
    return OnnxModel(path, session, shape, dtype, _metadata(path, model))


def _import_extra() -> tuple[Any, Any]:
    try:
        return import_module("onnx"), import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(
            "predict: ONNX files need onnx and onnxruntime. Run `pip install 'bayesieve[onnx]'`."
        ) from error


def _refuse_external_data(path: Path, onnx: Any, model: Any) -> None:
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.external_data):
            where = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
            raise DamagedFileError(
                f"predict: {path} keeps tensor {tensor.name[:80]!r} in another file "
                f"({where[:80]!r}). External data are refused: export the model to one file."
            )


def _tensors(message: Any) -> Iterator[Any]:
    """Every TensorProto anywhere in a message."""
    waiting = [message]
    while waiting:
        message = waiting.pop()
        if message.DESCRIPTOR.name == "TensorProto":
            yield message
            continue
        for field, value in message.ListFields():
            if field.message_type is None:
                continue
            repeated = hasattr(value, "__len__") and not hasattr(value, "DESCRIPTOR")
            waiting.extend(value if repeated else [value])


def _input_of(path: Path, session: Any) -> tuple[tuple[int, ...], torch.dtype]:
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in _INPUT_TYPES or not inputs[0].shape:
        raise DamagedFileError(
            f"predict: {path} must have one input of numbers, got {len(inputs)}."
        )
    batch, *shape = inputs[0].shape
    if isinstance(batch, int) or not all(isinstance(size, int) for size in shape):
        raise DamagedFileError(
            f"predict: {path} must have a free batch axis and fixed others, got {inputs[0].shape}."
        )
    return tuple(shape), _INPUT_TYPES[inputs[0].type]


def _metadata(path: Path, model: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for entry in model.metadata_props:
        text = entry.value
        if len(text) > _MAX_TEXT:
            raise damaged(path, f"metadata {entry.key[:80]!r} is too long", _WHO)
        if entry.key not in _JSON_ENTRIES:
            metadata[entry.key] = text
            continue
        if text.count("[") + text.count("{") > 1_000_000 or "[" * MAX_DEPTH in text:
            raise damaged(path, f"metadata {entry.key!r} is nested too deeply", _WHO)
        try:
            metadata[entry.key] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise damaged(path, f"metadata {entry.key!r} is no JSON", _WHO) from error
    kinds = {"classes": list, "preprocessing": dict, "likelihood": dict}
    if not all(isinstance(metadata.get(name), kind | None) for name, kind in kinds.items()):
        raise damaged(path, "its metadata are not those of an export", _WHO)
    return metadata


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


class OnnxSession:
    """An ONNX file in onnxruntime on the CPU: tensor in, tensor out.

    Args:
        path: a file with one input and one output.
        module: the module it was made from.
        threads: how many onnxruntime may use.
    """

    def __init__(self, path: Path, module: nn.Module, *, threads: int = 1) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        self._session: Any = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name
        self.path, self.module = path, module

    @classmethod
    def of(cls, module: nn.Module, path: Path, example: Tensor, *, threads: int = 1) -> Self:
        """Export a module to a file and open it."""
        return cls(export_onnx(module, path, example), module, threads=threads)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs, (n, ...), of inputs, (n, ...)."""
        return torch.from_numpy(self.run(x.numpy()))

    def run(self, x: NDArray[Any]) -> NDArray[Any]:
        """The same on arrays, with no other call around onnxruntime's own."""
        return self._session.run(None, {self._input: x})[0]
