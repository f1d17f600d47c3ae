"""Damaged and hostile bundles: one clear ValueError that names the file, and nothing executed."""

import json
import os
import pickle
import resource
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, SparseModel
from bayesieve.deliver.bundle import load, read_bundle, save_bundle

MODEL, CONFIG = "model.safetensors", "config.json"
MASKS, POSTERIOR = "masks.safetensors", "posterior.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3))
    with torch.no_grad():
        module[0].weight[torch.rand(30, 40) < 0.9] = 0
    network = Network.of(module, Categorical())
    mean = network.weights_of(module)
    q = Factorised(network, mean, torch.full_like(mean, 0.1)).masked(mean != 0)
    folder = tmp_path_factory.mktemp("bundles") / "good"
    sparse = SparseModel(q, mean != 0)
    return save_bundle(module, folder, posterior=q, sparse=sparse, classes=["a", "b", "c"])


@pytest.fixture
def folder(original, tmp_path):
    """A bundle without checksums, which an attacker leaves out or makes anew."""
    return without_sums(Path(shutil.copytree(original, tmp_path / "bundle")))


@pytest.fixture(autouse=True)
def _bounded_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


def read_all(folder):
    bundle = read_bundle(folder)
    return bundle.keep, bundle.posterior


def refused(folder, file, match="load: "):
    """Reading everything in the bundle must name the file; returns the message."""
    with pytest.raises(ValueError, match=match) as caught:
        read_all(folder)
    message = str(caught.value)
    assert file in message
    assert len(message) < 600
    return message


def edit(folder, change):
    path = folder / CONFIG
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def without_sums(folder):
    edit(folder, lambda config: [config.pop(name) for name in ("sha256", "headers", "checksum")])
    return folder


def edit_tensors(folder, change, file=MODEL):
    tensors = load_file(folder / file)
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / file)


def with_header(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, offsets, dtype="F32"):
    return {"0.weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch owned",))


HOSTILE_TENSORS = {
    "empty": b"",
    "cut off": b"\x10\0\0",
    "lying header length": struct.pack("<Q", 2**63) + b"{}",
    "header longer than the file": struct.pack("<Q", 100) + b"{}",
    "long header": struct.pack("<Q", 17 << 20) + b" " * (17 << 20),
    "no JSON": with_header(b"hello"),
    "no object": with_header(b"[1]"),
    "depth bomb": with_header(b"[" * 100_000),
    "object bomb": with_header(b'{"a":' * 50_000),
    "huge shape": with_header(entry([2**40, 2**40], [0, 4]), b"\0" * 4),
    "huge declared bytes": with_header(entry([2**40], [0, 2**42]), b"\0" * 4),
    "shape against offsets": with_header(entry([2], [0, 4]), b"\0" * 4),
    "negative shape": with_header(entry([-1], [0, 4]), b"\0" * 4),
    "negative offsets": with_header(entry([1], [-4, 0]), b"\0" * 4),
    "offsets backwards": with_header(entry([1], [4, 0]), b"\0" * 4),
    "fractional shape": with_header(entry([1.0], [0, 4]), b"\0" * 4),
    "unknown dtype": with_header(entry([1], [0, 4], "OBJ"), b"\0" * 4),
    "many axes": with_header(entry([1] * 1000, [0, 4]), b"\0" * 4),
    "no offsets": with_header({"0.weight": {"dtype": "F32", "shape": [1]}}, b"\0" * 4),
    "pickle": pickle.dumps(Bomb()),
    "zip": b"PK\x03\x04" + b"\0" * 100,
    "text": b"version https://git-lfs.github.com/spec/v1\n",
}


@pytest.mark.parametrize("file", [MODEL, MASKS, POSTERIOR])
@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_hostile_tensor_files(folder, file, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (folder / file).write_bytes(HOSTILE_TENSORS[name])
    refused(folder, file, "is damaged|must have at most")
    assert not (tmp_path / "owned").exists()


def test_torch_save_renamed(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"0.weight": Bomb()}, folder / MODEL)
    refused(folder, MODEL, "damaged")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("file", [MODEL, MASKS, POSTERIOR])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_cut_off_files(folder, file, part):
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[: int(part * len(data))])
    refused(folder, file, "damaged")


@pytest.mark.parametrize("file", [MODEL, CONFIG, MASKS, POSTERIOR])
def test_missing_files(folder, file):
    (folder / file).unlink()
    assert "missing" in refused(folder, file)


def test_a_missing_folder(tmp_path):
    with pytest.raises(ValueError, match="no bundle folder"):
        load(tmp_path / "nowhere")


def test_code_in_the_folder_is_never_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("architecture.py", "__init__.py", "sitecustomize.py"):
        (folder / name).write_text("open('owned', 'w')")
    load(folder)
    assert not (tmp_path / "owned").exists()
    assert not (folder / "owned").exists()


# --- config.json


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 100_000, b'{"a": NaN}',
     b'{"a": ' + b"9" * 10_000 + b"}", pickle.dumps(Bomb()), b'{"format": "other"}', b"{}"],
    ids=["empty", "open", "list", "number", "not text", "deep", "deep objects", "nan", "digits",
         "pickle", "other format", "nothing"],
)  # fmt: skip
def test_hostile_json(folder, text):
    (folder / CONFIG).write_bytes(text)
    refused(folder, CONFIG)


def test_a_json_file_that_is_too_large(folder):
    with (folder / CONFIG).open("r+b") as stream:
        stream.truncate(1 << 33)  # takes no room on most disks
    refused(folder, CONFIG, "must have at most")


def put(*path, value):
    def change(config):
        *folders, last = path
        for key in folders:
            config = config[key]
        config[last] = value

    return change


HOSTILE_CONFIGS = {
    "newer version": put("format_version", value=2),
    "no input": put("input", value=None),
    "no shape": put("input", "shape", value=[]),
    "negative shape": put("input", "shape", value=[-40]),
    "huge shape": put("input", "shape", value=[2**40]),
    "large shape": put("input", "shape", value=[2**30, 2**30]),
    "other shape": put("input", "shape", value=[41]),
    "text shape": put("input", "shape", value="40"),
    "wrong dtype": put("input", "dtype", value="complex64"),
    "no graph": put("graph", value=None),
    "other layer": put("graph", "modules", 0, 1, value="LSTM"),
    "larger layer": put("graph", "modules", 2, 2, value={"in_features": 31, "out_features": 3}),
    "classes": put("classes", value=["a", "b"]),
    "classes of numbers": put("classes", value=[1, 2, 3]),
    "no packed": put("packed", value=[]),
    "no order": put("order", value=None),
    "tied to no name": put("tied", value={"2.weight": [1]}),
    "likelihood": put("likelihood", value="softmax"),
    "masks": put("masks", value=3),
}


@pytest.mark.parametrize("name", HOSTILE_CONFIGS)
def test_hostile_configs(folder, name):
    edit(folder, HOSTILE_CONFIGS[name])
    refused(folder, CONFIG)


def test_wrong_class_count_names_both_numbers(folder):
    edit(folder, put("classes", value=["a", "b"]))
    message = refused(folder, CONFIG)
    assert "3 outputs" in message
    assert "2 classes" in message


# --- weights that do not fit the graph

MISFITS = {
    "unknown tensor": (None, lambda t: t.update(extra=torch.zeros(1))),
    "missing tensor": (None, lambda t: t.pop("2.bias")),
    "wrong shape": (None, lambda t: t.update({"2.bias": torch.zeros(4)})),
    "whole numbers": (None, lambda t: t.update({"2.bias": torch.zeros(3, dtype=torch.int64)})),
    "index out of range": (None, lambda t: t.update(
        {"0.weight#gaps": torch.full((300,), 254, dtype=torch.uint8),
         "0.weight#values": torch.zeros(300)})),
    "too few gaps": (None, lambda t: t.update(
        {"0.weight#gaps": t["0.weight#gaps"][:3], "0.weight#values": torch.zeros(3)})),
    "values for more places": (None, lambda t: t.update({"0.weight#values": torch.zeros(500)})),
    "no values": (None, lambda t: t.pop("0.weight#values")),
    "no gaps": (None, lambda t: t.pop("0.weight#gaps")),
    "gaps of floats": (None, lambda t: t.update({"0.weight#gaps": torch.zeros(9)})),
    "gaps in two axes": (None, lambda t: t.update(
        {"0.weight#gaps": t["0.weight#gaps"][None].repeat(2, 1)})),
    "huge packed shape": (put("packed", "0.weight", "shape", value=[2**38, 2**38]), None),
    "larger packed shape": (put("packed", "0.weight", "shape", value=[30, 4000]), None),
    "negative packed shape": (put("packed", "0.weight", "shape", value=[-30, -40]), None),
    "text as packed shape": (put("packed", "0.weight", "shape", value="30"), None),
    "unknown packing": (put("packed", "0.weight", "as", value="pickle"), None),
    "packing of text": (put("packed", "0.weight", value="gaps"), None),
    "index in place of weights": (put("packed", "0.weight", "index", value=True), None),
    "too few bits": (put("packed", "0.weight", "as", value="bits"), lambda t: t.update(
        {"0.weight#bits": t.pop("0.weight#gaps")[:1]})),
    "bits out of range": (put("packed", "0.weight", value={"as": "bits", "shape": [29, 41]}),
        lambda t: t.update({"0.weight#bits": torch.full((149,), 255, dtype=torch.uint8)})),
    "order": (put("order", value={"0.weight": [0, 0]}), None),
    "order of text": (put("order", value={"0.weight": "01"}), None),
    "dtype of words": (put("input", "dtype", value="int64"), None),
    "tied to nothing": (put("tied", value={"2.bias": "9.bias"}), None),
    "tied to another shape": (put("tied", value={"2.bias": "0.bias"}), None),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_weights_that_do_not_fit(folder, name):
    config, tensors = MISFITS[name]
    if config is not None:
        edit(folder, config)
    if tensors is not None:
        edit_tensors(folder, tensors)
    refused(folder, MODEL, "damaged")


def test_an_index_beyond_the_features_is_refused(tmp_path, capfd):
    class Chooses(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("places", torch.arange(0, 80, 2))
            self.head = nn.Linear(40, 2)

        def forward(self, x):
            return self.head(torch.index_select(x, 1, self.places))

    folder = save_bundle(Chooses(), tmp_path / "b", feature_names=[str(i) for i in range(80)])
    config = json.loads((folder / CONFIG).read_text())
    assert config["packed"]["places"]["index"] is True
    assert torch.equal(load(folder).places, torch.arange(0, 80, 2))
    edit(without_sums(folder), lambda c: c["packed"].pop("places"))

    def beyond(tensors):
        del tensors["places#bits" if "places#bits" in tensors else "places#gaps"]
        tensors["places"] = torch.arange(50, 90)

    edit_tensors(folder, beyond)
    refused(folder, MODEL, "damaged: .*out of")
    assert capfd.readouterr() == ("", "")


# --- masks and posterior


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (MASKS, put("masks", "layout", value=None)),
        (MASKS, put("masks", "layout", value=[["0.weight", [2**40], "PRUNE"]])),
        (MASKS, put("masks", "layout", value=[["0.weight", [30, 41], "PRUNE"]])),
        (MASKS, put("masks", "packed", value=None)),
        (POSTERIOR, put("posterior", "layout", value=[["0.weight", [30, 40], "NONE"]])),
        (POSTERIOR, put("posterior", "layout", value=[["0.weight", [2**30] * 4, "PRUNE"]])),
        (POSTERIOR, put("posterior", "class", value="Horseshoe")),
        (POSTERIOR, put("posterior", "dtype", value="int64")),
        (POSTERIOR, put("posterior", "graph", value={})),
        (POSTERIOR, put("posterior", "tied", value={"a": "b"})),
        (POSTERIOR, put("posterior", "graph", "modules", 0, 2, "in_features", value=41)),
    ],
)
def test_masks_and_posteriors_that_do_not_fit(folder, file, change):
    edit(folder, change)
    refused(folder, file, "damaged")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("mean"),
        lambda t: t.update(mean=t["mean"][:-1]),
        lambda t: t.update(std=t["std"].double()),
        lambda t: t.update(mean=t["mean"].reshape(1, 1, -1)),
    ],
)
def test_posterior_tensors_that_do_not_fit(folder, change):
    edit_tensors(folder, change, POSTERIOR)
    refused(folder, POSTERIOR, "damaged")


def test_the_original_is_fine(folder):
    bundle = read_bundle(folder)
    assert int(bundle.keep.sum()) == int((bundle.posterior.mean != 0).sum())
