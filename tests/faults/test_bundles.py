"""A bundle is replaced in one step: readers and killed writers leave the old one or the new."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from bayesieve import files
from bayesieve.deliver import bundle as bundles
from bayesieve.deliver.bundle import read_bundle, save_bundle
from bayesieve.errors import DamagedFileError
from commands import Forked
from faults.injectors import Killed, fail_nth
from faults.rows import Tally, cases


def network(width):
    """A network whose weights, inputs and classes all tell which one it is."""
    module = nn.Linear(width, 2)
    nn.init.constant_(module.weight, width)
    nn.init.zeros_(module.bias)
    return module


def save(width, folder):
    return save_bundle(network(width), folder, classes=[f"{width}a", f"{width}b"], force=True)


def width_of(folder):
    """The width of the bundle in a folder; fails for a mixture."""
    bundle = read_bundle(folder)
    (width,) = bundle.input_shape
    weights = dict(bundle.module.named_parameters())["0.weight"]
    assert torch.equal(weights, torch.full((2, width), float(width)))
    assert bundle.classes == (f"{width}a", f"{width}b")
    return width


def no_exchange(*_):
    return False


SYSTEMS = pytest.mark.parametrize("can_exchange", [True, False], ids=["exchange", "two renames"])


N_READERS = 4


def read(folder, n):
    return [width_of(folder) for _ in range(n)]


def replace_for_ever(folder, widths):
    while True:
        for width in widths:
            save(width, folder)


@pytest.mark.skipif(os.name != "posix", reason="fork")
@SYSTEMS
def test_readers_beside_a_writer_meet_no_mixture(tmp_path, monkeypatch, can_exchange):
    folder, loads = save(3, tmp_path / "b"), cases(10, 250)
    if not can_exchange:
        monkeypatch.setattr(files, "exchange", no_exchange)
    writer = Forked(tmp_path / "errors.txt", replace_for_ever, folder, (3, 5))
    readers = [Forked(tmp_path / f"errors {i}.txt", read, folder, loads) for i in range(N_READERS)]
    try:
        assert [reader.wait(300) for reader in readers] == [0] * N_READERS, readers[0].errors
        widths = read(folder, loads)
        assert writer.is_alive, writer.errors
    finally:
        writer.end(9, 30)
    Tally.now.injected(N_READERS * loads)
    assert set(widths) <= {3, 5}
    assert width_of(folder) in (3, 5)  # killed wherever it was
    save(7, folder)  # which cleans up after it
    assert width_of(folder) == 7
    errors = [*(f"errors {i}.txt" for i in range(N_READERS)), "errors.txt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", *errors]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")])
def test_stopped_between_two_renames_a_bundle_remains(tmp_path, monkeypatch, n, error):
    folder = save(3, tmp_path / "b")
    monkeypatch.setattr(files, "exchange", no_exchange)
    with monkeypatch.context() as patch:
        if isinstance(error, Killed):  # cleans nothing up
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        fail_nth(patch, "rename", n, error)
        with pytest.raises(type(error)):
            save(5, folder)
    assert width_of(folder) == 3
    assert bundles.is_bundle(folder)
    save(5, folder)
    assert width_of(folder) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_killed_while_its_files_are_written_the_old_bundle_stays(tmp_path, monkeypatch, n):
    folder = save(3, tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        replaced = []

        def replace(self, target, real=Path.replace):
            replaced.append(target)
            if len(replaced) == n:
                raise Killed
            return real(self, target)

        patch.setattr(Path, "replace", replace)
        with pytest.raises(Killed):
            save(5, folder)
    assert width_of(folder) == 3
    assert len(list(tmp_path.glob(".b.*.part"))) == 1
    save(5, folder)
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_failed_exchange_keeps_the_old_bundle(tmp_path, monkeypatch):
    folder = save(3, tmp_path / "b")

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error", str(folder))

    monkeypatch.setattr(files, "exchange", broken)
    with pytest.raises(OSError, match="Input/output"):
        save(5, folder)
    assert width_of(folder) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_folders_exchange_names_in_one_step(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    if not files.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this system cannot")
    assert [(tmp_path / name / "file").read_text() for name in "ab"] == ["b", "a"]
    with pytest.raises(FileNotFoundError):
        files.exchange(tmp_path / "a", tmp_path / "none")


def test_a_posterior_of_a_bundle_that_was_replaced_is_not_mixed_in(tmp_path):
    folder = save(3, tmp_path / "b")
    (folder / "model.safetensors").write_bytes(
        (save(3, tmp_path / "c") / "model.safetensors").read_bytes()
    )
    assert width_of(folder) == 3  # the same content
    other = save(5, tmp_path / "d")
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(DamagedFileError, match=r"not the file that config\.json was written with"):
        read_bundle(folder)
