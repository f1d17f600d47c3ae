"""One torch thread, and hypothesis with fixed examples: a test that passes once passes again."""

import functools
import importlib
import sys

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "bayesieve", deadline=None, derandomize=True, max_examples=50, database=None
)
hypothesis.settings.load_profile("bayesieve")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _one_table_of_onnx_operators():
    """Keep the table of operators which torch.onnx rebuilds for every export, in over a second."""
    with pytest.MonkeyPatch.context() as patch:
        if "onnxscript" in sys.modules:  # otherwise this run has few exports, or none
            exporter = importlib.import_module("torch.onnx._internal.exporter._registration")
            table = exporter.ONNXRegistry
            once = functools.cache(table.from_torchlib)
            patch.setattr(table, "from_torchlib", staticmethod(once))
        yield
