import json
from pathlib import Path

import pytest
import torch

from bayesieve.core.random import own_stream
from bayesieve.training.checkpoint import (
    has_checkpoint,
    read_checkpoint,
    rng_states,
    set_rng_states,
    write_checkpoint,
)


def at(step):
    tensors = {"a": torch.full((2, 3), float(step)), "rng": torch.arange(4, dtype=torch.uint8)}
    return tensors, {"step": step, "history": [{"log_lik": -1.5}], "best": None}


def write(folder, *steps):
    return [write_checkpoint(folder, step, *at(step)) for step in steps]


def test_what_is_written_comes_back(tmp_path):
    (path,) = write(tmp_path / "new" / "checkpoints", 7)
    assert path.name == "checkpoint-000000007.safetensors"
    (tensors, meta), (expected, expected_meta) = read_checkpoint(path.parent), at(7)
    assert meta == expected_meta
    assert tensors.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(tensors[name], value)
        assert tensors[name].dtype == value.dtype


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path):
    write(tmp_path, 1, 2, 30, 4)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint-000000004.safetensors",
        "checkpoint-000000030.safetensors",
    ]
    assert read_checkpoint(tmp_path)[1]["step"] == 30


def test_other_files_are_not_touched(tmp_path):
    for name in ("checkpoint-mine.safetensors", "notes.txt", ".checkpoint-1.part"):
        (tmp_path / name).write_text("x")
    write(tmp_path, 1, 2, 3)
    assert {"checkpoint-mine.safetensors", "notes.txt", ".checkpoint-1.part"} <= {
        p.name for p in tmp_path.iterdir()
    }


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGE = pytest.mark.parametrize("damage", [flip, cut, empty])


@DAMAGE
def test_a_damaged_file_falls_back_to_the_one_before(tmp_path, logged, damage):
    damage(write(tmp_path, 1, 2)[1])
    assert read_checkpoint(tmp_path)[1]["step"] == 1
    assert "checkpoint-000000002.safetensors is damaged" in logged.getvalue()


@DAMAGE
def test_only_damaged_files_raise(tmp_path, damage):
    for path in write(tmp_path, 1, 2):
        damage(path)
    with pytest.raises(ValueError, match=r"every checkpoint in .* is damaged .*`force`"):
        read_checkpoint(tmp_path)


def test_no_checkpoint_raises(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(
            ValueError, match=r"resume: no checkpoint in .*; start without `resume`"
        ):
            read_checkpoint(folder)


def test_a_failed_write_leaves_the_old_files_whole(tmp_path, monkeypatch):
    write(tmp_path, 1)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full_disk(*_):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full_disk)
    for step in (1, 2):
        with pytest.raises(OSError, match="no space left"):
            write_checkpoint(tmp_path, step, *at(step))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert read_checkpoint(tmp_path)[1]["step"] == 1


def test_the_header_is_plain_json(tmp_path):
    (path,) = write(tmp_path, 5)
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert json.loads(header["__metadata__"]["bayesieve"]) == at(5)[1]


def test_has_checkpoint_looks_into_the_run_folder(tmp_path):
    assert not has_checkpoint(tmp_path)
    write(tmp_path / "checkpoints", 1)
    assert has_checkpoint(tmp_path)


def test_global_random_states_go_round():
    cpu = torch.device("cpu")
    with own_stream("test", 3):
        saved = rng_states(cpu)
        first = torch.rand(3)
        torch.rand(5)
        set_rng_states(saved, cpu)
        assert torch.equal(torch.rand(3), first)
        torch.manual_seed(3)
        assert torch.equal(torch.rand(3), first)
