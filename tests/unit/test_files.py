"""Atomic writes: the old content or the new, never a mixture."""

import json
import os
import stat

import pytest

from bayesieve.files import write_atomically


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomically(path, b"old")

    def broken(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_atomic_write_follows_links_and_respects_the_umask(tmp_path):
    real = tmp_path / "real.txt"
    real.write_bytes(b"old")
    link = tmp_path / "link.txt"
    link.symlink_to(real)
    before = os.umask(0o022)
    try:
        write_atomically(link, b"new")
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o644


def test_atomic_write_names_a_wrong_place(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder .*none does not exist"):
        write_atomically(tmp_path / "none" / "a", b"")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write_atomically(tmp_path, b"")


def test_text_json_and_writers(tmp_path):
    path = tmp_path / "a"
    assert write_atomically(path, "ä") == path
    assert path.read_bytes() == "ä".encode()
    write_atomically(path, {"n": [1, 2]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"n": [1, 2]}
    write_atomically(path, lambda stream: stream.write(b"streamed"))
    assert path.read_bytes() == b"streamed"


def test_a_writer_that_raises_leaves_the_old_file(tmp_path):
    path = write_atomically(tmp_path / "a", b"old")

    def broken(stream):
        stream.write(b"half")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_atomically(path, broken)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]
