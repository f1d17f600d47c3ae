"""A module as a `torch.export` archive (`.pt2`): runs in torch without the code that made it."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.core.inputs import Input, tensors_of
from bayesieve.deliver.export_checks import (
    check_arguments,
    check_same,
    first_output,
    on_cpu,
    outputs_of,
    trace,
)
from bayesieve.files import write_atomically


def export_pt2(module: nn.Module, path: Path | str, example: Any) -> Path:
    """Write a module as a `.pt2` file with a free batch axis, checked by reading it back.

    The file holds weights and graph on the CPU, in eval mode; no value of the example and no
    source code. Read it with `torch.export.load(path).module()`.

    Args:
        module: maps inputs, shape (n, ...), to one tensor; it is not changed.
        path: of the file; an existing one is replaced in one step.
        example: some inputs, shape (n, ...), of the kind the model will meet; a tuple or dict of
            tensors for several, which the archive takes in their order.

    Returns:
        The path.

    Raises:
        UnsupportedModelError: the module cannot be traced with a free batch axis.
        VerificationError: the archive, read back, gives other outputs; nothing was written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_pt2(nn.Linear(3, 2), f"{folder}/model.pt2", torch.randn(4, 3))
        ...     again = torch.export.load(path).module()
        >>> again(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    path, example = check_arguments("export_pt2", path, example)
    module = on_cpu(module)
    first_output("export_pt2", module, example)
    program = trace("export_pt2", module, example)
    program.example_inputs = None
    archive = io.BytesIO()
    torch.export.save(program, archive)
    data = archive.getvalue()
    again = torch.export.load(io.BytesIO(data)).module()

    def read_back(x: Input) -> dict[str, Tensor]:
        with torch.no_grad():
            return {"output": again(*tensors_of(x))}

    check_same("export_pt2", outputs_of(module), read_back, example)
    return write_atomically(path, data)
