"""`bayesieve doctor`: what this machine has, for bug reports and first steps."""

import os
from typing import Any

from bayesieve.cli.console import JsonFlag, print_json, print_table
from bayesieve.runs.folder import versions

EXAMPLE = "Example: bayesieve doctor --json"
_PACKAGES = (
    "torch", "numpy", "scipy", "scikit-learn", "safetensors", "typer", "rich",
    "matplotlib", "pyarrow", "onnx", "onnxruntime",
)  # fmt: skip


def doctor(json: JsonFlag = False) -> None:
    """Show versions, devices, the compiler, and which data sets are found."""
    import torch

    from bayesieve.data import data_root, list_data
    from bayesieve.data.files import ROOT_VARIABLE
    from bayesieve.fast.backend import compiler_missing

    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(n_cuda)]
    missing = compiler_missing(torch.device("cuda" if n_cuda else "cpu"))
    facts: dict[str, Any] = {
        "versions": versions("python", "system", *_PACKAGES),
        "devices": ["cpu", *names],
        "threads": torch.get_num_threads(),
        "compiler": "available" if missing is None else missing,
        "data_root": str(data_root()),
        "data_root_set": bool(os.environ.get(ROOT_VARIABLE)),
        "data_found": [info.name for info in list_data() if info.found],
    }
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
