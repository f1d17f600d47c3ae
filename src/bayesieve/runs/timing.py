"""`profile`: size, work, memory and time of runs and bundles, in every form worth timing."""

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from bayesieve.assess.costs import Candidate
from bayesieve.assess.costs import profile as profile_candidates
from bayesieve.core.posterior import SparseModel
from bayesieve.deliver.bundle import Bundle, example_input, stored_bytes
from bayesieve.deliver.onnx import OnnxSession
from bayesieve.deliver.runtime import Runtime, as_runtime
from bayesieve.errors import UnsupportedModelError
from bayesieve.fast.native import KernelUnavailableError
from bayesieve.report.packing import spread_out
from bayesieve.runs.arguments import Arg, Count, Json, Place, Threads, command
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.run import read_folder
from bayesieve.runs.text import note
from bayesieve.sieve.compact import compact

_EXAMPLES = 64
_CALIBRATION = 500  # training examples that 8-bit weights are calibrated on


@command
def profile(
    folders: Annotated[Sequence[Place], Arg(positional=True, metavar="PATH")],
    *,
    rounds: Count = 15,
    threads: Threads = 1,
    clock: Literal["wall", "cpu"] = "wall",
    trust: bool = False,
) -> Json:
    """Measure networks: as they are, compacted, in our runtime (also int8) and in onnxruntime.

    Args:
        folders: Run folders or bundles; the first is compared with.
        rounds: Timings of each candidate.
        threads: CPU threads of every candidate.
        clock: cpu counts this process alone.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    torch.set_num_threads(threads)
    candidates: dict[str, Candidate] = {}
    files: dict[str, Path] = {}
    left_out: list[str] = []
    networks: dict[str, dict[str, nn.Module]] = {}  # of each folder; the last is delivered
    inputs: dict[str, Tensor] = {}
    calibrations: dict[str, Tensor] = {}  # of runs; a bundle has no training data
    data = None
    for folder in folders:
        RunFolder(Path(folder)).read("config.json")  # names a folder that has none
        content = read_folder(Path(folder), trust=trust)
        if isinstance(content, Bundle):
            networks[str(folder)] = {"bundle": content.module}
            files[f"{folder} bundle"] = Path(folder) / "model.safetensors"
            example = example_input(content.input_shape, content.dtype, _EXAMPLES)
        else:
            example, model = content.data.test.x[:_EXAMPLES], content.model
            data = example if data is None else data
            module = model.to_module()
            networks[str(folder)] = {"dense": module}
            seen = content.data.train.x
            calibrations[str(folder)] = seen[spread_out(len(seen), _CALIBRATION)]
            if isinstance(model, SparseModel):
                networks[str(folder)] = {"masked": module, "compact": compact(model, example)}
        inputs[str(folder)] = example
    (first, example), *others = inputs.items()
    for name, x in others:
        if x.shape[1:] != example.shape[1:]:
            raise ValueError(
                f"profile: {first} takes inputs of shape {tuple(example.shape[1:])}, {name} of "
                f"{tuple(x.shape[1:])}. Profile them one by one."
            )
    example = example if data is None else data
    with tempfile.TemporaryDirectory() as scratch:
        for index, (folder, modules) in enumerate(networks.items()):
            path = Path(scratch) / f"{index}.onnx"
            for kind, module in modules.items():
                candidates[f"{folder} {kind}"] = module
            forms: dict[str, Callable[[], Candidate]] = {
                "runtime": partial(as_runtime, module, example, threads=threads),
                "onnxruntime": partial(OnnxSession, module, path, example, threads=threads),
            }
            if folder in calibrations and _has_sparse_linear(module):
                forms["int8"] = partial(
                    _in_int8, module, example, threads=threads, calibration=calibrations[folder]
                )
            for kind, make in forms.items():
                try:
                    candidates[f"{folder} {kind}"] = make()
                except (UnsupportedModelError, KernelUnavailableError, ImportError) as error:
                    left_out.append(f"{folder} {kind}: {error}")
                    note(left_out[-1])
            if path.is_file():
                files[f"{folder} onnxruntime"] = path
        rows = profile_candidates(candidates, example, files=files, rounds=rounds, clock=clock)
    for row in rows:
        folder, _, kind = row["name"].rpartition(" ")
        form = networks[folder].get(kind)
        row["delivered_bytes"] = None if form is None else stored_bytes(form)
        row["rounding"] = _rounding(candidates[row["name"]])
    return {
        "clock": clock,
        "threads": threads,
        "left_out": left_out,
        "rows": rows,
    }


def _has_sparse_linear(module: nn.Module) -> bool:
    linear = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return any(bool((layer.weight == 0).any()) for layer in linear)


def _in_int8(module: nn.Module, example: Tensor, *, threads: int, calibration: Tensor) -> Runtime:
    """Our runtime with 8-bit weights where they are faster."""
    made = as_runtime(module, example, threads=threads, precision="int8", calibration=calibration)
    if made.rounding is None:
        raise KernelUnavailableError(made.kernel)
    return made


def _rounding(candidate: Candidate) -> Json | None:
    """Return what 8-bit weights change on training examples, and the batch sizes in them."""
    if not isinstance(candidate, Runtime) or candidate.rounding is None:
        return None
    batches = [row.batch for row in candidate.plan if row.choice == "int8"]
    words = str(candidate.rounding)
    return {**dataclasses.asdict(candidate.rounding), "batches": batches, "words": words}
