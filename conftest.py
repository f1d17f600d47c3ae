"""Examples in docstrings run in an empty folder; workers share out tests by neighbourhood."""

import importlib
import importlib.util

import pytest
from _pytest.doctest import DoctestItem

# Files that are an adapter of a library and nothing else.
_ADAPTERS = ("lightning", "transformers")
collect_ignore = [
    f"src/bayesieve/contrib/{name}.py"
    for name in _ADAPTERS
    if importlib.util.find_spec(name) is None
]


@pytest.fixture(autouse=True)
def _empty_folder(request, tmp_path_factory, monkeypatch):
    if isinstance(request.node, DoctestItem):
        monkeypatch.chdir(tmp_path_factory.mktemp("example"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give workers neighbouring tests, which share fixtures; who is done early helps others."""
    if config.option.dist == "load":
        return importlib.import_module("xdist.scheduler").WorkStealingScheduling(config, log)
    return None
