"""Kernels of the runtime: with a compiler, or as on a machine without one."""

import pytest

from bayesieve.deliver import runtime
from bayesieve.deliver.runtime.kernels import KernelUnavailableError, library


@pytest.fixture
def quick(monkeypatch):
    """Measure each candidate once."""
    monkeypatch.setattr(runtime, "_ROUNDS", 1)


@pytest.fixture
def compiler():
    """Skip the test where the kernels cannot be compiled."""
    try:
        library()
    except KernelUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def uncompiled(monkeypatch):
    """A machine without a compiler."""

    def missing():
        raise KernelUnavailableError("no C compiler (cc, gcc or clang) on the path")

    monkeypatch.setattr(runtime, "library", missing)
