"""The IDX reader on good, damaged and hostile files."""

import gzip
import struct

import numpy as np
import pytest
import torch

from bayesieve.data import load_data, prepare_images
from bayesieve.data.image_sets import read_idx
from bayesieve.errors import DataError


def idx_bytes(array: np.ndarray):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_set(folder, *, packed=True):
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 28, 28))
    files = {
        "train-images-idx3-ubyte": pixels,
        "train-labels-idx1-ubyte": np.arange(12) % 10,
        "t10k-images-idx3-ubyte": pixels[:4],
        "t10k-labels-idx1-ubyte": np.arange(4),
    }
    for name, array in files.items():
        content = idx_bytes(array)
        path = folder / (name + ".gz" if packed else name)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return pixels


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_loads_pixels_over_126(tmp_path, name, packed):
    pixels = write_set(tmp_path / name, packed=packed)
    data = load_data(name, root=tmp_path)
    assert data.train.x.shape == (12, 1, 28, 28)
    torch.testing.assert_close(data.train.x[:, 0], torch.from_numpy(pixels).float() / 126)
    assert data.train.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.n_outputs == 10
    again = prepare_images(pixels[:4].astype(np.uint8), data.preprocessing)
    assert again.equal(data.test.x)


def test_missing_set_names_command_folder_and_variable(tmp_path):
    with pytest.raises(DataError) as caught:
        load_data("mnist", root=tmp_path)
    for part in ("bayesieve data fetch mnist", str(tmp_path / "mnist"), "BAYESIEVE_DATA"):
        assert part in str(caught.value)


def test_environment_variable_sets_the_root(tmp_path, monkeypatch):
    write_set(tmp_path / "mnist")
    monkeypatch.setenv("BAYESIEVE_DATA", str(tmp_path))
    assert load_data("mnist").name == "MNIST"


NOISE = gzip.compress(idx_bytes(np.random.default_rng(0).integers(0, 256, 5000)), mtime=0)
GIGABYTES = gzip.compress(b"\x00\x00\x08\x03" + b"\x00\x0f\xff\xff" * 3 + bytes(100), mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"got nothing at byte offset 0"),
        (b"\x00\x00\x0d\x01" + bytes(8), r"got 00 00 0d 01 at byte offset 0"),
        (b"\x00\x00\x08\x03" + bytes(8), r"must begin with 00 00 08 01"),
        (b"\x00\x00\x08\x01\x00\x00", r"ends at byte offset 6"),
        (idx_bytes(np.arange(5)) + b"x", r"must end at byte offset 13"),
        (b"\x00\x00\x08\x01\xff\xff\xff\xff" + bytes(9), r"more than its 17 bytes can hold"),
        (
            gzip.compress(idx_bytes(np.arange(50))[:20], mtime=0),
            r"hold 58 bytes .* ends at byte offset 20",
        ),
        (NOISE[: len(NOISE) // 2], "damaged after byte offset"),
        (NOISE[:-8] + b"\x00" * 8, "damaged after byte offset"),
        (GIGABYTES, r"more than its .* bytes can hold"),  # and nothing is allocated
    ],
)
def test_damaged_files(tmp_path, content, message):
    path = tmp_path / "labels"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, n_axes=3 if content == GIGABYTES else 1)
    assert str(path) in str(caught.value)


def test_label_range_and_count(tmp_path):
    write_set(tmp_path / "mnist", packed=False)
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.array([1, 2, 10] + [0] * 9)))
    with pytest.raises(DataError, match="must be 0 to 9, got 10 at byte offset 10"):
        load_data("mnist", root=tmp_path)
    labels.write_bytes(idx_bytes(np.arange(9)))
    with pytest.raises(DataError, match="got 9 labels for 12 images"):
        load_data("mnist", root=tmp_path)


def test_image_sizes_must_agree(tmp_path):
    write_set(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((4, 2, 2))))
    with pytest.raises(DataError, match=r"pixels like those of .* got \(2, 2\)"):
        load_data("mnist", root=tmp_path)


def test_prepare_images_refuses_other_shapes(tmp_path):
    write_set(tmp_path / "mnist")
    recipe = load_data("mnist", root=tmp_path).preprocessing
    with pytest.raises(ValueError, match=r"must have shape \(N, 28, 28, 1\), got"):
        prepare_images(np.zeros((2, 8, 8)), recipe)
