"""One torch thread, and hypothesis with fixed examples: a test that passes once passes again."""

import functools
import gc
import importlib
import io
import logging
import sys

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "bayesieve", deadline=None, derandomize=True, max_examples=50, database=None
)
hypothesis.settings.load_profile("bayesieve")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage while tests are collected, nor among them later: they live to the end.

    Garbage of running tests is looked for more rarely than usual: most objects are kept anyway.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)


@pytest.fixture
def logged():
    """Text of all warnings that the package logs during a test."""
    text, logger = io.StringIO(), logging.getLogger("bayesieve")
    handler = logging.StreamHandler(text)
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    yield text
    logger.removeHandler(handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch  # not above: who only shares out the tests does without

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _no_seeds_for_missing_devices():
    """`torch.manual_seed` notes for each kind of device who asked, should one ever appear."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            if not kind.is_available():
                patch.setattr(kind, "manual_seed_all", lambda seed: None, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_power_cuts():
    """Files are written as ever, but nobody waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_table_of_onnx_operators():
    """Keep the tables which torch.onnx makes anew for every export, in over a second."""
    with pytest.MonkeyPatch.context() as patch:
        if "onnxscript" in sys.modules:  # otherwise this run has few exports, or none
            exporter = importlib.import_module("torch.onnx._internal.exporter._registration")
            table = exporter.ONNXRegistry
            once = functools.cache(table.from_torchlib)
            patch.setattr(table, "from_torchlib", staticmethod(once))
            decompositions = importlib.import_module("torch.onnx._internal.exporter._decomp")
            for_all = functools.cache(decompositions.create_onnx_friendly_decomposition_table)
            patch.setattr(
                decompositions,
                "create_onnx_friendly_decomposition_table",
                lambda operators: dict(for_all(frozenset(operators))),
            )
            utils = importlib.import_module("torch._export.utils")
            listed = functools.cache(utils._materialize_cpp_cia_ops)  # nobody here adds operators
            patch.setattr(utils, "_materialize_cpp_cia_ops", listed)
        yield
