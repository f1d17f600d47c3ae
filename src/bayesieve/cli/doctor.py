"""`bayesieve doctor`: what this machine has, for bug reports and first steps."""

import importlib.metadata
import platform
from typing import Any

from bayesieve import __version__
from bayesieve.cli.console import JsonFlag, print_json, print_table

EXAMPLE = "Example: bayesieve doctor --json"
_PACKAGES = (
    "torch", "numpy", "scipy", "scikit-learn", "safetensors", "typer", "rich",
    "matplotlib", "pyarrow", "onnx", "onnxruntime",
)  # fmt: skip


def doctor(json: JsonFlag = False) -> None:
    """Show versions, devices, the compiler, and which data sets are found."""
    facts = {"versions": _versions(), **_devices(), **_data()}
    if json:
        print_json(facts)
        return
    rows = [(name, str(value)) for name, value in facts["versions"].items()]
    rows += [
        ("devices", ", ".join(facts["devices"])),
        ("torch threads", str(facts["threads"])),
        ("compiling", facts["compiler"]),
        ("data folder", facts["data_root"] + ("" if facts["data_root_set"] else " (default)")),
        ("data found", ", ".join(facts["data_found"])),
    ]
    print_table("Bayesieve on this machine", ("", ""), rows, numbers=False)


def _versions() -> dict[str, str]:
    versions = {"bayesieve": __version__, "python": platform.python_version()}
    versions["system"] = platform.platform()
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _devices() -> dict[str, Any]:
    import torch

    from bayesieve.training.stepper import compiler_missing

    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(n_cuda)]
    missing = compiler_missing(torch.device("cuda" if n_cuda else "cpu"))
    return {
        "devices": ["cpu", *names],
        "threads": torch.get_num_threads(),
        "compiler": "available" if missing is None else missing,
    }


def _data() -> dict[str, Any]:
    import os

    from bayesieve.data import data_root, list_data
    from bayesieve.data.files import ROOT_VARIABLE

    return {
        "data_root": str(data_root()),
        "data_root_set": bool(os.environ.get(ROOT_VARIABLE)),
        "data_found": [info.name for info in list_data() if info.found],
    }
