"""CIFAR files, image folders and archives, and the scaling of their pixels."""

import io
import json
import os
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.data import cache as cache_module
from bayesieve.data import images as images_module
from bayesieve.data import load_data, prepare_images
from bayesieve.data.cache import is_mapped, read_arrays, write_arrays
from bayesieve.data.image_sets import LAYOUTS
from bayesieve.data.images import PixelScale, image_recipe
from bayesieve.engines.map import MAP
from bayesieve.errors import DataError
from bayesieve.files import LIMITS
from bayesieve.runs.memory import memory_need
from bayesieve.training.launch import fit


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BAYESIEVE_CACHE", str(folder))
    return folder


def png(size, seed, mode="RGB", kind="PNG"):
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def write_tar(path, files):
    mode = {".gz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_folder(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def two_classes(kind="png"):
    names = [f"{part}/{label}" for part in ("train", "test") for label in ("cat", "ant")]
    save = "JPEG" if kind == "jpg" else "PNG"
    return {
        f"{name}/{k}.{kind}": png((6, 4), 10 * i + k, kind=save)
        for i, name in enumerate(names)
        for k in range(3)
    }


def cifar_files(name, n=4):
    layout, rng = LAYOUTS[name], np.random.default_rng(0)
    files, pixels = {}, {}
    for file in (*layout.train, layout.test):
        pixels[file] = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
        fine = np.arange(n, dtype=np.uint8)[:, None]
        labels = [fine] if layout.n_label_bytes == 1 else [fine * 0 + 19, fine + 90]
        files[file] = np.hstack([*labels, pixels[file]]).tobytes()
    return files, pixels


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["folder", "flat", "archive"])
def test_cifar_binary(tmp_path, name, form):
    files, pixels = cifar_files(name)
    layout = LAYOUTS[name]
    if form == "archive":
        (tmp_path / name).mkdir()
        inside = {f"{layout.folder}/{file}": content for file, content in files.items()}
        write_tar(tmp_path / name / layout.archive, inside)
    else:
        write_folder(tmp_path / name / (layout.folder if form == "folder" else "."), files)
    data = load_data(name, root=tmp_path)
    train = np.concatenate([pixels[file] for file in layout.train]).reshape(-1, 3, 32, 32) / 255
    mean, std = train.mean(axis=(0, 2, 3)), train.std(axis=(0, 2, 3))
    expected = (train - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(data.train.x.numpy(), expected, atol=2e-6)
    assert data.preprocessing["mean"] == pytest.approx(mean.tolist())
    offset = 0 if name == "cifar10" else 90
    assert data.test.y.tolist() == [offset + k for k in range(4)]
    assert (data.name, data.n_outputs) == (layout.title, len(layout.classes))


def test_cifar_class_names_come_from_the_file(tmp_path):
    files, _ = cifar_files("cifar100")
    names = [f"thing{k}" for k in range(100)]
    files["fine_label_names.txt"] = "\n".join(names).encode()
    write_folder(tmp_path / "cifar100", files)
    assert load_data("cifar100", root=tmp_path).classes == tuple(names)
    (tmp_path / "cifar100" / "fine_label_names.txt").write_text("one two")
    with pytest.raises(DataError, match="must name 100 classes, got 2"):
        load_data("cifar100", root=tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:-1], r"byte offset 9219 has only 3072"),
        (lambda b: b"", r"byte offset 0 has only 0"),
        (lambda b: b[:3073] + b"\x0a" + b[3074:], r"0 to 9, got 10 at byte offset 3073"),
        (lambda b: b[:3073], r"must be equally long, got \[1, 4\]"),
    ],
)
def test_cifar_damage(tmp_path, damage, message):
    files, _ = cifar_files("cifar10")
    files["data_batch_3.bin"] = damage(files["data_batch_3.bin"])
    write_folder(tmp_path / "cifar10", files)
    with pytest.raises(DataError, match=message):
        load_data("cifar10", root=tmp_path)


def test_cifar_missing_batch_and_missing_set(tmp_path):
    files, _ = cifar_files("cifar10")
    del files["data_batch_2.bin"]
    write_folder(tmp_path / "cifar10", files)
    with pytest.raises(DataError, match=r"data_batch_2\.bin not found"):
        load_data("cifar10", root=tmp_path)
    with pytest.raises(DataError, match="bayesieve data fetch cifar100"):
        load_data("cifar100", root=tmp_path)


@pytest.mark.parametrize(
    "form", ["folder", "pets.tar", "pets.tar.gz", "pets.tar.xz", "wrapped.tar"]
)
def test_image_folder_and_archives_agree(tmp_path, form):
    files = two_classes()
    path = tmp_path / form
    if form == "folder":
        write_folder(path, {**files, "README.txt": b"hello", "train/cat/.DS_Store": b"x"})
    elif form == "wrapped.tar":
        write_tar(path, {f"pets/{name}": content for name, content in reversed(files.items())})
    else:
        write_tar(path, files)
    data = load_data(f"images:{path}")
    assert data.classes == ("ant", "cat")
    assert data.input_shape == (3, 4, 6)
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train.x.mean(dim=(0, 2, 3)).abs().max() < 1e-6
    raw = np.asarray(Image.open(io.BytesIO(files["test/ant/0.png"])))[None]
    recipe = json.loads(json.dumps(data.preprocessing))
    assert prepare_images(raw, recipe).equal(data.test.x[:1])


def test_images_without_test_folder_are_split(tmp_path):
    files = {f"{label}/{k}.png": png((4, 4), k) for label in "ab" for k in range(5)}
    write_folder(tmp_path, files)
    first, again, other = (load_data(f"images:{tmp_path}", seed=s) for s in (0, 0, 1))
    assert (len(first.train), len(first.test)) == (8, 2)
    assert first.test.x.equal(again.test.x)
    assert not first.test.x.equal(other.test.x)


def test_images_grey_mixed_and_resized(tmp_path):
    grey = {f"train/a/{k}.png": png((4, 4), k, "L") for k in range(4)}
    write_folder(tmp_path / "grey", {**grey, "train/b/0.png": png((4, 4), 9, "L")})
    assert load_data(f"images:{tmp_path / 'grey'}").input_shape == (1, 4, 4)
    write_folder(tmp_path / "mixed", {**grey, "train/b/0.png": png((4, 4), 9)})
    assert load_data(f"images:{tmp_path / 'mixed'}").input_shape == (3, 4, 4)
    write_folder(tmp_path / "sizes", {**grey, "train/b/big.png": png((8, 4), 9, "L")})
    with pytest.raises(DataError, match=r"train/b/big\.png is 8x4, but train/a/0\.png is 4x4"):
        load_data(f"images:{tmp_path / 'sizes'}")
    data = load_data(f"images:{tmp_path / 'sizes'}", image_size=2)
    assert data.input_shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train/a/x.png": b"not an image"}, r"x\.png must be an intact image"),
        ({"train/a/x.png": png((9, 9), 0)[:60]}, r"must be an intact image"),
        ({"train/a/x.txt": b"text"}, r"train/a/x\.txt must be an image"),
        ({"x.png": png((2, 2), 0)}, r"x\.png must be in train/<class>/"),
        ({"val/a/x.png": png((2, 2), 0)}, r"are in one folder, val\. Give that folder"),
        (
            {"train/a/x.png": png((2, 2), 0), "b/x.png": png((2, 2), 0)},
            r"for all files or for none",
        ),
        ({"README": b""}, r"must hold train/<class>/ with images"),
        ({"test/a/x.png": png((2, 2), 0)}, r"got only a test folder"),
    ],
)
def test_image_folder_errors(tmp_path, files, message):
    write_folder(tmp_path, files)
    with pytest.raises(DataError, match=message):
        load_data(f"images:{tmp_path}")


def test_all_files_that_cannot_be_used_are_listed_at_once_or_left_out(tmp_path):
    good = {f"{label}/{k}.png": png((2, 2), k) for label in "ab" for k in range(3)}
    bad = {f"a/bad{k}.png": b"no image" for k in range(11)} | {"b/notes.txt": b"", "top.png": b""}
    write_folder(tmp_path, good | bad)
    (tmp_path / "a" / "nowhere.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"14 files in .*; and 4 more\. Fix.*`skip_bad`") as caught:
        load_data(f"images:{tmp_path}")
    assert "a/bad0.png must be an intact image" in str(caught.value)
    with pytest.warns(UserWarning, match=r"14 files in .* They are left out\."):
        data = load_data(f"images:{tmp_path}", skip_bad=True)
    assert len(data.train) + len(data.test) == 6


def test_folders_inside_a_class_and_links_to_folders_are_read(tmp_path):
    images = {f"{label}/deep/er/{k}.png": png((2, 2), k) for label in "ab" for k in range(3)}
    write_folder(tmp_path / "real", {f"train/{name}": content for name, content in images.items()})
    elsewhere = tmp_path / "elsewhere"
    write_folder(elsewhere, {f"{k}.png": png((2, 2), k) for k in range(2)})
    (tmp_path / "real" / "train" / "c").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(tmp_path / "real" / "train" / "c")
    (elsewhere / "one.png").symlink_to(tmp_path / "real" / "train" / "a" / "deep" / "er" / "0.png")
    data = load_data(f"images:{tmp_path / 'real'}")
    assert data.classes == ("a", "b", "c")
    assert len(data.train) + len(data.test) == 9


def test_sixteen_bit_and_huge_images_are_refused(tmp_path, monkeypatch):
    out = io.BytesIO()
    Image.fromarray(np.zeros((2, 2), dtype=np.uint16)).save(out, "PNG")
    write_folder(tmp_path / "deep", {"a/x.png": out.getvalue()})
    with pytest.raises(DataError, match=r"a/x\.png .* 8 bits per channel"):
        load_data(f"images:{tmp_path / 'deep'}")
    monkeypatch.setitem(LIMITS, "pixels", 3)
    write_folder(tmp_path / "huge", {"a/x.png": png((2, 2), 0)})
    with pytest.raises(DataError, match="at most 3 pixels, got 4"):
        load_data(f"images:{tmp_path / 'huge'}")
    monkeypatch.setitem(LIMITS, "member", 10)
    with pytest.raises(DataError, match="at most 10 bytes"):
        load_data(f"images:{tmp_path / 'huge'}")


@pytest.mark.parametrize("name", ["../evil.png", "/evil.png", "train/a/../../x.png"])
def test_tar_names_must_stay_inside(tmp_path, name):
    write_tar(tmp_path / "x.tar", {name: png((2, 2), 0)})
    with pytest.raises(DataError, match="must stay inside the archive"):
        load_data(f"images:{tmp_path / 'x.tar'}")


def test_tar_links_and_damage(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("train/a/x.png")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(DataError, match="is a link or device"):
        load_data(f"images:{path}")
    whole = tmp_path / "y.tar.xz"
    write_tar(whole, two_classes())
    whole.write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"y\.tar\.xz must be an intact tar .* byte offset"):
        load_data(f"images:{whole}")
    with pytest.raises(DataError, match="does not exist"):
        load_data(f"images:{tmp_path / 'none'}")


@pytest.mark.parametrize("kind", ["archive", "folder"])
def test_many_images_are_decoded_once(tmp_path, cache, monkeypatch, kind):
    monkeypatch.setattr(images_module, "CACHE_FROM", 1)
    path = tmp_path / ("pets.tar" if kind == "archive" else "pets")
    (write_tar if kind == "archive" else write_folder)(path, two_classes("jpg"))
    first = load_data(f"images:{path}")
    (stored,) = (cache / "decoded").glob("*.npz")

    def fail(*_):
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr(images_module, "decode_image", fail)
        again = load_data(f"images:{path}")
        assert again.train.x.equal(first.train.x)
        assert again.classes == first.classes
        if kind == "folder":  # a file changed: the entry is of another folder
            next(path.rglob("*.jpg")).write_bytes(png((4, 4), 9))
            with pytest.raises(AssertionError, match="decoded again"):
                load_data(f"images:{path}")
    damaged = bytearray(stored.read_bytes())
    damaged[-200] ^= 1
    stored.write_bytes(damaged)
    if kind == "archive":
        assert load_data(f"images:{path}").test.x.equal(first.test.x)


def test_inputs_larger_than_max_memory_stay_on_the_disk(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(images_module, "_STACK", 3)
    write_folder(tmp_path / "pets", two_classes())
    spec = f"images:{tmp_path / 'pets'}"
    data = load_data(spec)
    monkeypatch.setattr(images_module, "_IMAGES_AT_ONCE", 4)  # what follows counts in blocks
    size = data.train.x.nbytes + data.test.x.nbytes
    assert not is_mapped(load_data(spec, max_memory=size).train.x)
    for _ in range(2):  # written, then found
        on_disk = load_data(spec, max_memory=size - 1)
        for name in ("train", "test"):
            split, expected = getattr(on_disk, name), getattr(data, name)
            assert is_mapped(split.x)
            assert split.x.equal(expected.x)
            assert split.y.equal(expected.y)
        assert on_disk.preprocessing == data.preprocessing
        assert on_disk.classes == data.classes
    assert not list((cache / "decoded").glob("part-*"))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(data.train.x[0].numel(), 2))
    problem = Problem(model, Categorical(), on_disk.train)
    assert memory_need(problem, MAP(), batch_size=2).data == 0
    assert fit(problem, MAP(), epochs=1, batch_size=2).history
    with pytest.raises(ValueError, match="max_memory cannot be used with 'digits'"):
        load_data("digits", max_memory=1)


def test_old_entries_of_the_cache_are_removed(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(cache_module, "_KEPT", 2)
    for i in range(4):
        assert write_arrays(f"{i}", {"a": np.arange(3)})
        os.utime(cache / "decoded" / f"{i}.npz", (i, i))
    assert sorted(path.name for path in (cache / "decoded").glob("*.npz")) == ["2.npz", "3.npz"]
    assert read_arrays("3", ["a"]) is not None
    assert read_arrays("0", ["a"]) is None


def test_unwritable_cache_is_no_error(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(images_module, "CACHE_FROM", 1)
    (cache / "decoded").write_text("a file where the folder should be")
    write_tar(tmp_path / "pets.tar", two_classes())
    assert len(load_data(f"images:{tmp_path / 'pets.tar'}").train) == 6


def test_constant_channel_gets_std_one(tmp_path):
    out = io.BytesIO()
    Image.new("L", (3, 3), 51).save(out, "PNG")
    write_folder(tmp_path, {f"{label}/{k}.png": out.getvalue() for label in "ab" for k in range(3)})
    data = load_data(f"images:{tmp_path}")
    assert data.preprocessing["std"] == [1.0]
    assert torch.allclose(data.train.x, torch.zeros(()), atol=1e-6)


def test_pixels_undo_the_recipe_and_inputs_redo_it():
    recipe = image_recipe((3, 2, 2), [0.1, 0.2, 0.3], [0.5, 0.6, 0.7])
    raw = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3) * 10
    x = prepare_images(raw, recipe)
    scale = PixelScale.of(recipe)
    pixels = scale.pixels(x)
    torch.testing.assert_close(pixels, torch.from_numpy(raw).permute(0, 3, 1, 2).float() / 255)
    torch.testing.assert_close(scale.inputs(pixels), x)
    black = prepare_images(np.zeros_like(raw), recipe)[0, :, 0, 0]
    torch.testing.assert_close(torch.tensor(scale.black), black)


def test_the_identity_changes_no_bit():
    x = torch.rand(2, 1, 2, 2)
    assert PixelScale().pixels(x) is x
    assert PixelScale().inputs(x) is x


def test_wrong_recipes_are_refused():
    with pytest.raises(ValueError, match="the recipe must be of images, got 'table'"):
        PixelScale.of({"kind": "table"})
    with pytest.raises(ValueError, match="as many means as stds"):
        PixelScale((0.0, 1.0), (1.0,))
    with pytest.raises(ValueError, match="std must be > 0"):
        PixelScale((0.0,), (0.0,))
