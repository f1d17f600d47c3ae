"""A network in onnxruntime as a plain function, for comparisons."""

from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesieve.deliver.onnx_export import export_onnx


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
