"""`profile`: size, work, memory and time of runs and bundles, in every form worth timing."""

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.assess.costs import Candidate
from bayesieve.assess.costs import profile as profile_candidates
from bayesieve.core.posterior import SparseModel
from bayesieve.deliver.bundle import Bundle
from bayesieve.deliver.onnx import OnnxSession
from bayesieve.deliver.runtime import as_runtime
from bayesieve.errors import UnsupportedModelError
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.options import Profile
from bayesieve.runs.run import read_folder
from bayesieve.runs.text import note
from bayesieve.sieve.compact import compact

_EXAMPLES = 64
_ONNX = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Content:
    """The networks of a folder.

    Args:
        modules: plain modules by what they are, such as "compact"; the last is what is delivered.
        example: inputs, (n, ...).
        real: whether the example is data and not made up.
        files: the file behind a module.
    """

    modules: dict[str, nn.Module]
    example: Tensor
    real: bool
    files: dict[str, Path] = field(default_factory=dict)


def profile(asked: Profile) -> dict[str, Any]:
    """Measure everything in one interleaved run; returns rows, and what was left out and why."""
    clock, threads, rounds = asked.clock, asked.threads, asked.rounds
    torch.set_num_threads(threads)
    contents = {str(folder): _read(Path(folder)) for folder in asked.folders}
    example = next((content.example for content in contents.values() if content.real), None)
    if example is None:
        example = next(iter(contents.values())).example
    _check_same_input(contents)
    candidates: dict[str, Candidate] = {}
    files: dict[str, Path] = {}
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for index, (folder, content) in enumerate(contents.items()):
            path = Path(scratch) / f"{index}.onnx"
            for kind, module in content.modules.items():
                candidates[f"{folder} {kind}"] = module
            files |= {f"{folder} {kind}": file for kind, file in content.files.items()}
            module = list(content.modules.values())[-1]
            for kind, make in _forms(module, example, path, threads).items():
                try:
                    candidates[f"{folder} {kind}"] = make()
                except (UnsupportedModelError, ImportError) as error:
                    left_out.append(f"{folder} {kind}: {error}")
                    note(left_out[-1])
            if path.is_file():
                files[f"{folder} onnxruntime"] = path
        rows = profile_candidates(candidates, example, files=files, rounds=rounds, clock=clock)
    return {
        "clock": clock,
        "threads": threads,
        "left_out": left_out,
        "rows": rows,
    }


def _forms(
    module: nn.Module, example: Tensor, path: Path, threads: int
) -> dict[str, Callable[[], Candidate]]:
    """Ways to run the module that are not the module itself."""

    def onnx() -> Candidate:
        missing = [name for name in _ONNX if importlib.util.find_spec(name) is None]
        if missing:
            raise ImportError(f"{', '.join(missing)} not installed: pip install 'bayesieve[onnx]'")
        return OnnxSession(module, path, example, threads=threads)

    return {"runtime": lambda: as_runtime(module, example, threads=threads), "onnxruntime": onnx}


def _read(folder: Path) -> Content:
    RunFolder(folder).read("config.json")  # names a folder that has none
    content = read_folder(folder)
    if isinstance(content, Bundle):
        shape = (_EXAMPLES, *content.input_shape)
        example = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(content.dtype)
        files = {"bundle": folder / "model.safetensors"}
        return Content({"bundle": content.module}, example, False, files)
    example, model = content.data.test.x[:_EXAMPLES], content.model
    module = model.to_module()
    if not isinstance(model, SparseModel):
        return Content({"dense": module}, example, True)
    return Content({"masked": module, "compact": compact(model, example)}, example, True)


def _check_same_input(contents: dict[str, Content]) -> None:
    shapes = {name: tuple(content.example.shape[1:]) for name, content in contents.items()}
    (first, shape), *others = shapes.items()
    for name, other in others:
        if other != shape:
            raise ValueError(
                f"profile: {first} takes inputs of shape {shape}, {name} of {other}. Profile them "
                "one by one."
            )
