"""C of the package, compiled once with the system's compiler, and kept in the user's cache.

A library is named by a hash of its text, the compiler and the processor, since it is compiled for
the processor at hand: a home folder shared by machines holds one library for each. The folder must
belong to the user and nobody else may write to it; otherwise it is not used. Everything that is
compiled has a twin in Python, which runs where there is no compiler.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesieve.environment import cache_dir

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = (
    "-std=gnu99", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-trapping-math", "-fopenmp-simd", "-fPIC", "-shared",
)  # fmt: skip
_QUIET = ("-Wno-psabi",)
_SECONDS = 60
# In one file: functions of the first serve all.
_STEPS = ("steps.c", "activations.c", "chains.c", "unit_scales.c")
_DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
Array = ctypes.Array[Any]


class KernelUnavailableError(Exception):
    """There is no compiled kernel here; the message says why."""


def fields(kind: type, names: str) -> list[tuple[str, type]]:
    """Fields of a C structure that have one type."""
    return [(name, kind) for name in names.split()]


def address(tensor: "Tensor | Array | None") -> int | None:
    """Where the numbers of a contiguous CPU tensor, or of a C array, are in memory."""
    if tensor is None:
        return None
    if isinstance(tensor, ctypes.Array):
        return ctypes.addressof(tensor)
    assert tensor.is_contiguous()
    assert tensor.dtype in _DTYPES
    return tensor.data_ptr()


def addresses(*tensors: "Tensor | Array | None") -> "ctypes.Array[ctypes.c_void_p]":
    """Addresses of contiguous CPU tensors and of C arrays, for a C structure of pointers."""
    return (ctypes.c_void_p * len(tensors))(*map(address, tensors))


def table(rows: Sequence[Sequence[Tensor | int | None]]) -> "ctypes.Array[ctypes.c_int64]":
    """A C array of structures of pointers and counts, one for each row.

    Example:
        >>> list(table([(None, 0, 3), (None, 3, 5)]))
        [0, 0, 3, 0, 3, 5]
    """
    numbers = [x if isinstance(x, int) else address(x) or 0 for row in rows for x in row]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def columns(k: int, *numbers: Tensor | float) -> "ctypes.Array[ctypes.c_float]":
    """A C array of floats, (k, columns), from numbers: floats, scalars or tensors (k, 1).

    Operations of torch on so few numbers took longer than the step of a small network in C.

    Example:
        >>> list(columns(2, 0.5, torch.tensor([[1.0], [2.0]])))
        [0.5, 1.0, 0.5, 2.0]
    """
    values = [number if isinstance(number, float) else number.tolist() for number in numbers]
    rows = [[v if isinstance(v, float) else v[i][0] for v in values] for i in range(k)]
    return (ctypes.c_float * (k * len(values)))(*(value for row in rows for value in row))


@functools.cache
def product_dtype() -> torch.dtype:
    """For products whose third digit does not count: bfloat16 where a CPU multiplies it faster."""
    has_it = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # from torch 2.6 on
    return torch.bfloat16 if has_it is not None and has_it() else torch.float32


@functools.cache
def load(package: str, *texts: str) -> ctypes.CDLL:
    """The library of some C files of a package, read one after another; built on first use.

    Raises:
        KernelUnavailableError: no compiler, or what it made does not load.
    """
    compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if os.name != "posix" or compiler is None:
        raise KernelUnavailableError("no C compiler (cc, gcc or clang) on the path")
    folder = _private_folder(cache_dir() / "kernels")
    files = resources.files(package)
    source = "\n".join((files / name).read_text(encoding="utf-8") for name in texts)
    file = folder / f"kernel-{_fingerprint(compiler, source)}.so"
    if not file.is_file():
        _compile(compiler, source, file)
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise KernelUnavailableError(f"the compiled kernel does not load: {error}") from error


@functools.cache
def steps() -> ctypes.CDLL | None:
    """The library of training steps; None where it cannot be built."""
    try:
        library = load("bayesieve.fast", *_STEPS)
    except KernelUnavailableError:
        return None
    pointer, count, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    library.bayesieve_draw.argtypes = (count, count, count, *[pointer] * 5)
    library.bayesieve_draws.argtypes = (count, count, count, *[pointer] * 4)
    library.bayesieve_adam.argtypes = (pointer, *[count] * 4, real, pointer)
    library.bayesieve_scale.argtypes = (*[count] * 5, *[pointer] * 4)
    library.bayesieve_adabelief.argtypes = (pointer, *[count] * 6, real)
    library.bayesieve_layer_scales.argtypes = (pointer, count, count, ctypes.c_int, real)
    library.bayesieve_spread.argtypes = (count, count, count, *[pointer] * 6)
    library.bayesieve_square.argtypes = (count, pointer, pointer)
    library.bayesieve_perturb.argtypes = (count, count, count, *[pointer] * 7)
    library.bayesieve_perturb_back.argtypes = (count, count, count, *[pointer] * 6)
    library.bayesieve_join.argtypes = (count, *[pointer] * 3)
    library.bayesieve_relu_moments.argtypes = (count, *[pointer] * 4)
    library.bayesieve_move_chains.argtypes = (pointer, *[count] * 4, real)
    library.bayesieve_follow.argtypes = (pointer, *[count] * 4)
    library.bayesieve_unit_factors.argtypes = (pointer, *[count] * 3, ctypes.c_int)
    library.bayesieve_unit_scales.argtypes = (pointer, *[count] * 3, ctypes.c_int, real)
    for name in (
        "draw",
        "draws",
        "adam",
        "scale",
        "spread",
        "square",
        "perturb",
        "perturb_back",
        "join",
        "adabelief",
        "layer_scales",
        "relu_moments",
        "move_chains",
        "follow",
        "unit_factors",
        "unit_scales",
    ):
        getattr(library, f"bayesieve_{name}").restype = None
    return library


def _private_folder(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise KernelUnavailableError(f"the cache folder cannot be made: {error}") from error
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KernelUnavailableError(f"others may write to the cache folder {folder}")
    return folder


def _fingerprint(compiler: str, source: str) -> str:
    version = _output([compiler, "--version"])
    processor = [platform.system(), platform.machine(), platform.processor()]
    described = Path("/proc/cpuinfo")
    if described.is_file():
        lines = described.read_text(encoding="utf-8", errors="replace").splitlines()
        known = ("model name", "flags", "Features", "CPU part")
        processor += sorted({line for line in lines if line.startswith(known)})
    texts = [source, " ".join(_FLAGS), compiler, version, *processor]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


def _compile(compiler: str, source: str, path: Path) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            text, made = Path(folder) / "kernel.c", Path(folder) / "kernel.so"
            text.write_text(source, encoding="utf-8")
            _output([compiler, *_FLAGS, *_QUIET, str(text), "-o", str(made), "-lm"])
            made.replace(path)
    except OSError as error:
        raise KernelUnavailableError(f"the kernel cannot be written: {error}") from error


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        first = " ".join(str(reason).split())[:200]
        raise KernelUnavailableError(f"{Path(command[0]).name} failed: {first}") from error
    return done.stdout
