"""The work of `bayesieve profile`: what lies in each folder, in every form worth timing."""

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesieve.assess.latency import Candidate, ClockName, ProfileRow
from bayesieve.assess.latency import profile as profile_candidates
from bayesieve.core.network import materialise
from bayesieve.core.posterior import SparseModel
from bayesieve.deliver.bundle import read_bundle
from bayesieve.deliver.onnx_running import OnnxSession
from bayesieve.deliver.runtime import as_runtime
from bayesieve.errors import UnsupportedModelError
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.run import load_run
from bayesieve.sieve.compact import compact

_EXAMPLES = 64
_BUNDLE = "bayesieve-bundle"  # what config.json of a bundle says it is
_ONNX = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Found:
    """What a folder holds.

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


def measure(
    folders: Sequence[Path], *, rounds: int, threads: int, clock: ClockName
) -> tuple[list[ProfileRow], list[str]]:
    """Rows of all candidates in one interleaved run, and what was left out and why."""
    torch.set_num_threads(threads)
    found = {str(folder): _read(folder) for folder in folders}
    example = next((own.example for own in found.values() if own.real), None)
    if example is None:
        example = next(iter(found.values())).example
    _check_same_input(found)
    candidates: dict[str, Candidate] = {}
    files: dict[str, Path] = {}
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for index, (folder, own) in enumerate(found.items()):
            path = Path(scratch) / f"{index}.onnx"
            for kind, module in own.modules.items():
                candidates[f"{folder} {kind}"] = module
            files |= {f"{folder} {kind}": file for kind, file in own.files.items()}
            module = list(own.modules.values())[-1]
            for kind, make in _forms(module, example, path, threads).items():
                try:
                    candidates[f"{folder} {kind}"] = make()
                except (UnsupportedModelError, ImportError) as error:
                    left_out.append(f"{folder} {kind}: {error}")
            if path.is_file():
                files[f"{folder} onnxruntime"] = path
        rows = profile_candidates(candidates, example, files=files, rounds=rounds, clock=clock)
    return rows, left_out


def _forms(
    module: nn.Module, example: Tensor, path: Path, threads: int
) -> dict[str, Callable[[], Candidate]]:
    """Ways to run the module that are not the module itself."""

    def onnx() -> Candidate:
        missing = [name for name in _ONNX if importlib.util.find_spec(name) is None]
        if missing:
            raise ImportError(f"{', '.join(missing)} not installed: pip install 'bayesieve[onnx]'")
        return OnnxSession.of(module, path, example, threads=threads)

    return {"runtime": lambda: as_runtime(module, example, threads=threads), "onnxruntime": onnx}


def _read(folder: Path) -> Found:
    if RunFolder(folder).read("config.json").get("format") == _BUNDLE:
        bundle = read_bundle(folder)
        shape = (_EXAMPLES, *bundle.input_shape)
        example = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(bundle.dtype)
        return Found({"bundle": bundle.module}, example, False,
                     {"bundle": folder / "model.safetensors"})  # fmt: skip
    run = load_run(RunFolder(folder), device="cpu")
    example = run.data.test.x[:_EXAMPLES]
    if not isinstance(run.model, SparseModel):
        module = materialise(run.model.network, run.model.mean, run.model.buffers)
        return Found({"dense": module}, example, True)
    masked = run.model.to_module()
    return Found({"masked": masked, "compact": compact(run.model, example)}, example, True)


def _check_same_input(found: dict[str, Found]) -> None:
    (first, own), *others = found.items()
    for name, other in others:
        if other.example.shape[1:] != own.example.shape[1:]:
            raise ValueError(
                f"profile: {first} takes inputs of shape {tuple(own.example.shape[1:])}, {name} of "
                f"{tuple(other.example.shape[1:])}. Profile them one by one."
            )
