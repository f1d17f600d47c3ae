"""Whether the elementwise part of a step is worth compiling, and can be, on this machine."""

import importlib.util
import os
import shutil
from typing import Literal

import torch

from bayesieve.checks import check_choice

CompileMode = Literal["auto", "on", "off"]
COMPILE_MODES = ("auto", "on", "off")
# One weight update costs about 2e-8 s more eagerly; compiling costs some 15 s once.
_WORTHWHILE_UPDATES = 3e9


def compiler_missing(device: torch.device) -> str | None:
    """Why `torch.compile` cannot work for this device, or None when it can."""
    if device.type == "cuda":
        found = importlib.util.find_spec("triton") is not None
        return None if found else "the package 'triton' is not installed"
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "c++", "clang++"]
    if any(shutil.which(name) for name in names):
        return None
    return f"no C++ compiler found (looked for {', '.join(names)})"


def should_compile(mode: CompileMode, device: torch.device, n_updates: float) -> bool:
    """Decide for a run that will update weights `n_updates` times in all (steps · k · d).

    "auto" compiles when the run is long enough to repay it and a compiler is found. Results are
    the same up to rounding, except that on a CPU weight noise is drawn in another way (core.noise).
    """
    check_choice("fit", "compile", mode, COMPILE_MODES)
    if mode == "off":
        return False
    reason = compiler_missing(device)
    if mode == "on":
        if reason is not None:
            raise ValueError(f"fit: compile='on' but {reason}. Install it or use compile='off'.")
        return True
    return reason is None and n_updates >= _WORTHWHILE_UPDATES
