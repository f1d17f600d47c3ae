"""The library of C: built once, in a folder that nobody else may write to, or not at all."""

import os

import pytest

from bayesieve.fast import native
from bayesieve.fast.native import KernelUnavailableError


@pytest.fixture(autouse=True)
def library():
    if native.steps() is None:
        pytest.skip("no C compiler")


def built():
    return native.load.__wrapped__("bayesieve.fast", "steps.c")


def test_a_cache_folder_others_can_write_to_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESIEVE_CACHE", str(tmp_path))
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(KernelUnavailableError, match="others may write"):
        built()
    folder.chmod(0o700)
    assert built().bayesieve_draw is not None


def test_a_compiler_that_fails_is_a_reason_and_leaves_nothing(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\n')
    broken.chmod(0o700)
    monkeypatch.setenv("BAYESIEVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native.shutil, "which", lambda name: str(broken))
    with pytest.raises(KernelUnavailableError, match="cc failed"):
        built()
    assert os.listdir(tmp_path / "cache" / "kernels") == []


def test_no_compiler_is_a_reason(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    with pytest.raises(KernelUnavailableError, match="no C compiler"):
        built()
