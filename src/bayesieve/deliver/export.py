"""A module as a `torch.export` archive (`.pt2`), which runs in torch without the code that made it.

Every export makes the same checks: its arguments, the trace, and equal outputs on several inputs.
"""

import copy
import io
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.assess.predict import single_draws
from bayesieve.core.inputs import Input, arguments, as_inputs, logits_of, mapped, shown, tensors_of
from bayesieve.core.likelihoods import (
    ClassLikelihood,
    ClassPrediction,
    Prediction,
    RealLikelihood,
)
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Posterior
from bayesieve.errors import UnsupportedModelError, VerificationError
from bayesieve.files import write_atomically
from bayesieve.graph.capture import Called
from bayesieve.sieve.verify import redrawn

Outputs = Mapping[str, Tensor]  # by name

TOLERANCE = 1e-4  # of the outputs' scale
_BATCH_SIZES = (1, 2, 7)


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


def delivered(prediction: Prediction) -> Outputs:
    """Collect what an exported file returns, by the names of `Likelihood.delivered`."""
    if isinstance(prediction, ClassPrediction):
        values = prediction.probs, prediction.entropy, prediction.epistemic
        return dict(zip(ClassLikelihood.delivered, values, strict=True))
    values = prediction.mean, prediction.aleatoric_std, prediction.epistemic_std
    return dict(zip(RealLikelihood.delivered, values, strict=True))


def on_cpu(module: nn.Module) -> nn.Module:
    """A copy of a module on the CPU in eval mode, sharing nothing with the original.

    Each tensor gets contiguous memory: torch's archives store the whole memory behind a view, and
    warn of transposed weights.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"export: a module is needed, got {type(module).__name__}. Of a sparse model take "
            "compact(sparse, example) or sparse.to_module()."
        )
    copied = copy.deepcopy(module).cpu().eval()
    for tensor in (*copied.parameters(), *copied.buffers()):
        tensor.data = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copied


def check_arguments(who: str, path: Path | str, example: object) -> tuple[Path, Input]:
    """Raise unless a file can be put at `path` and `example` is a batch; both ready for use."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{who}: the folder {path.parent} does not exist; create it.")
    if path.is_dir():
        raise IsADirectoryError(f"{who}: {path} is a folder; give a file name.")
    example = as_inputs(who, example)
    least = 2 if isinstance(example, Tensor) else 1
    if any(tensor.dim() < least or tensor.numel() == 0 for tensor in tensors_of(example)):
        raise ValueError(
            f"{who}: example must be a batch of inputs, shape (n, ...) with n > 0, "
            f"got {shown(example)}."
        )
    return path, mapped(lambda tensor: tensor.detach().cpu(), example)


def check_inputs(example: Input) -> list[Input]:
    """Batches of several sizes: the example, and copies of its rows that are changed a little.

    Real numbers get noise of the example's spread, and there is a batch of zeros. Whole numbers
    (tokens, masks) change places between rows, position by position: any other number may be
    none that the network knows, and zeros may mean that there is nothing to read. Of several
    inputs each is `redrawn` by itself, so that a mask stays one that lets something through.

    Example:
        >>> [len(x) for x in check_inputs(torch.randn(4, 3))]
        [4, 1, 2, 7, 2]
        >>> sorted(check_inputs(torch.tensor([[1, 5], [2, 6]]))[2][:, 0].tolist())
        [1, 2]
    """
    generator = torch.Generator().manual_seed(0)
    if not isinstance(example, Tensor):
        others = (
            example.map(partial(redrawn, n=size, generator=generator)) for size in _BATCH_SIZES
        )
        return [example, *others]
    batches: list[Input] = [example]
    for size in _BATCH_SIZES:
        rows = example[torch.arange(size) % len(example)]
        if example.is_floating_point():
            noise = torch.empty_like(rows).normal_(generator=generator)
            spread = float(example.std(correction=0)) or 1.0
            rows = rows + spread * noise
        else:
            order = torch.rand(rows.shape, generator=generator).argsort(0)
            rows = rows.gather(0, order)
        batches.append(rows)
    if example.is_floating_point():
        batches.append(torch.zeros_like(example[:1]).expand(2, *example.shape[1:]).contiguous())
    return batches


def first_output(who: str, module: nn.Module, example: Input) -> Tensor:
    """Raise unless the module maps the example to one tensor; return that."""
    try:
        output = outputs_of(module)(example)["output"]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{who}: the module does not run on an example of {shown(example)}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise UnsupportedModelError(
            f"{who}: the module must return one tensor, got {type(output).__name__}."
        )
    return output


def outputs_of(module: Callable[..., Any]) -> Callable[[Input], Outputs]:
    """The function of a module without gradients; its output is called "output"."""

    def run(x: Input) -> Outputs:
        args, kwargs = arguments(module, x) if isinstance(module, nn.Module) else ((x,), {})
        with torch.no_grad():
            return {"output": logits_of(module(*args, **kwargs))}

    return run


def check_same(
    who: str,
    expected: Callable[[Input], Outputs],
    exported: Callable[[Input], Outputs],
    example: Input,
) -> None:
    """Raise unless two functions agree within `TOLERANCE` of the scale of their outputs.

    The scale is 1 for probabilities and nats, otherwise the largest magnitude of any output.

    Args:
        who: the function that checks.
        expected: outputs by torch.
        exported: outputs by the exported file.
        example: inputs, (n, ...); see `check_inputs`.
    """
    for x in check_inputs(example):
        wanted, actual = expected(x), exported(x)
        sizes = [float(value.abs().max()) for value in wanted.values()]
        scale = 1.0 if "probability" in wanted else max(sizes)
        for name, value in wanted.items():
            exact, other = value.double(), actual[name].double()
            if exact.shape != other.shape:
                raise VerificationError(
                    f"{who}: the exported {name!r} has shape {tuple(other.shape)} where torch "
                    f"gives {tuple(exact.shape)}. Nothing was written."
                )
            if not bool(exact.isfinite().all()):
                raise VerificationError(
                    f"{who}: the module's own {name!r} is not finite on the inputs it was checked "
                    "on. Nothing was written; give an example like the data the model was trained "
                    "on."
                )
            difference = float((exact - other).abs().max())
            if not difference <= TOLERANCE * scale:  # a NaN is no agreement either
                relative = difference / scale if scale > 0 else math.inf
                raise VerificationError(
                    f"{who}: the exported {name!r} differs from torch by {difference:.2e}, "
                    f"{relative:.1e} of its scale; allowed is {TOLERANCE:g}. Nothing was written."
                )


def trace(who: str, module: nn.Module, example: Input) -> torch.export.ExportedProgram:
    """The module's graph with a free batch axis; no value of the example stays in it.

    Several inputs are as many arguments of the graph.
    """
    value = 0 if isinstance(example, Tensor) else 1  # of several one may be a mask
    rows = (torch.full_like(t[:1], value) for t in tensors_of(example))
    tensors = tuple(row.repeat_interleave(2, 0) for row in rows)
    whole = isinstance(example, Tensor)
    if whole:
        with torch.no_grad():
            output = module(*tensors)
        whole = logits_of(output) is output
    batch = torch.export.Dim("batch", min=1)
    try:
        with warnings.catch_warnings():  # a recurrent layer renews the list of its own weights
            warnings.filterwarnings("ignore", message="The tensor attribute")
            program = torch.export.export(
                module if whole else Called(module, example).eval(),
                tensors,
                dynamic_shapes=({0: batch},) if whole else (tuple({0: batch} for _ in tensors),),
                strict=False,
            )
    except Exception as error:  # the user's forward meets symbolic sizes and may raise anything
        reason = str(error).strip().split("\n\n")[0][:500]
        raise UnsupportedModelError(
            f"{who}: torch.export cannot trace this module with a free batch axis: {reason}"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names and lines of the user's files
    return program


def drawn_modules(posterior: Posterior, n: int, seed: int) -> tuple[Tensor, list[nn.Module]]:
    """The n > 0 draws that `predict` takes, (n, d), and the network with each of them."""
    draws = list(single_draws(posterior, n, seed))
    modules = [materialise(posterior.network, *draw) for draw in draws]
    return torch.stack([row for row, _ in draws]), modules
