"""Examples in docstrings run in an empty folder, so that they may write files."""

import pytest
from _pytest.doctest import DoctestItem


@pytest.fixture(autouse=True)
def _empty_folder(request, tmp_path_factory, monkeypatch):
    if isinstance(request.node, DoctestItem):
        monkeypatch.chdir(tmp_path_factory.mktemp("example"))
