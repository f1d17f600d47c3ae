"""One wrong byte or a missing end: every load says so, with the file and the place, and stops."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bayesieve import runs
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, SparseModel
from bayesieve.core.storage import file_bytes, load_posterior, read_tensors, save
from bayesieve.deliver.bundle import read_bundle, save_bundle
from bayesieve.errors import DamagedFileError
from bayesieve.runs.owned import MARKER
from commands import call, ok, refused
from faults.injectors import RUN, flip, positions, truncate
from faults.rows import cases
from zoo import chain

EVERY = cases(1 << 20, 4096)  # bytes between two damages
MASKS = (0x01, 0x20, 0x80)


@pytest.fixture(scope="module")
def network():
    return chain(6, 5, 3, act=nn.ReLU)


@pytest.fixture(scope="module")
def original(tmp_path_factory, network):
    home = tmp_path_factory.mktemp("damage")
    runs.train(out=home / "run", **RUN)
    whole = Network.of(network, Categorical())
    mean = whole.weights_of(network)
    q = Factorised(whole, mean, torch.full_like(mean, 0.1)).masked(mean > 0)
    save_bundle(network, home / "bundle", posterior=q, sparse=SparseModel(q, mean > 0),
                classes=["a", "b", "c"], metrics={"error": 0.5})  # fmt: skip
    return home


@pytest.fixture
def home(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "home"))


def read_all(folder):
    bundle = read_bundle(folder)
    return bundle.module, bundle.keep, bundle.posterior


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "masks.safetensors", "posterior.safetensors"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_bundle_with_one_wrong_byte_is_refused_by_name(home, tally, name, damage):
    path = home / "bundle" / name
    whole = path.read_bytes()
    for i, at in enumerate(positions(path, EVERY, least=25)):
        flip(path, at, MASKS[i % 3]) if damage == "flip" else truncate(path, at)
        with pytest.raises(ValueError, match=re.escape(name)):  # not the wrong numbers
            read_all(home / "bundle")
        tally.injected()
        path.write_bytes(whole)
    read_all(home / "bundle")


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_posterior_with_one_wrong_byte_is_refused_by_name(home, tally, network, damage):
    whole = Network.of(network, Categorical())
    mean = whole.weights_of(network)
    path = save(Factorised(whole, mean, torch.ones_like(mean)), home / "q.safetensors")
    content = path.read_bytes()
    for i, at in enumerate(positions(path, EVERY, least=120)):
        flip(path, at, MASKS[i % 3]) if damage == "flip" else truncate(path, at)
        with pytest.raises(DamagedFileError, match=r"q\.safetensors"):
            load_posterior(path, whole)
        tally.injected()
        path.write_bytes(content)
    load_posterior(path, whole)


RUN_FILES = ("config.json", "metrics.json", "posterior.safetensors", "familiarity.safetensors")


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_with_one_wrong_byte_is_refused_by_name(home, tally, name):
    path = home / "run" / name
    whole = path.read_bytes()
    for i, at in enumerate(positions(path, EVERY, least=4)):
        flip(path, at, MASKS[i % 3])
        command = ("certify", home / "run", "--against", home / "run")
        if name == "metrics.json":  # what a finished run answers with
            command = ("train", "--resume", "--out", home / "run")
        result = call(*command)
        if name == "posterior.safetensors":
            assert name in refused(1, "evaluate", home / "run")
        assert result.exit_code in (1, 2), (at, result.stdout)
        assert name in result.stderr
        assert "Traceback" not in result.stderr
        tally.injected()
        path.write_bytes(whole)


def test_the_message_names_the_range_and_the_tensors(tmp_path):
    tensors = {"a": torch.zeros(1 << 18), "b": torch.zeros(1 << 18), "c": torch.zeros(100)}
    path = tmp_path / "t.safetensors"
    path.write_bytes(file_bytes(tensors, {}))
    start = len(path.read_bytes()) - 4 * sum(map(len, tensors.values()))
    flip(path, start + (1 << 20) + 5)
    with pytest.raises(DamagedFileError) as caught:
        read_tensors(path)
    first, last = start + (1 << 20), start + (2 << 20) - 1
    assert f"bytes {first} to {last} are not those written (SHA-256; tensors 'b')" in str(
        caught.value
    )
    flip(path, -1)
    with pytest.raises(DamagedFileError, match=r"and 400|'b', 'c'"):
        read_tensors(path)


def test_files_are_the_same_bytes_every_time():
    tensors = {name: torch.arange(5.0) for name in "abcdef"}
    made = {file_bytes(tensors, {"bayesieve": "{}", "format": "pt"}) for _ in range(20)}
    assert len(made) == 1


def test_files_of_other_versions_are_read(tmp_path, home):
    path = tmp_path / "t.safetensors"
    save_file({"a": torch.ones(2)}, path, {"format": "pt"})  # without checksums
    assert torch.equal(read_tensors(path)[0]["a"], torch.ones(2))
    path.write_bytes(file_bytes({"a": torch.ones(2), "b": torch.zeros(0, 3)}, {}))  # with
    assert load_file(path)["b"].shape == (0, 3)
    config = json.loads((home / "bundle" / "config.json").read_text())
    for name in ("checksum", "headers"):
        del config[name]
    (home / "bundle" / "config.json").write_text(json.dumps(config))
    read_all(home / "bundle")
    flip(home / "bundle" / "model.safetensors", -1)  # the manifest has its hash
    with pytest.raises(DamagedFileError, match=r"model\.safetensors"):
        read_all(home / "bundle")


def test_what_still_works_is_said_and_works(home):
    flip(home / "bundle" / "posterior.safetensors", -1)
    bundle = read_bundle(home / "bundle")
    with pytest.raises(DamagedFileError, match="predictions without draws still work"):
        bundle.posterior  # noqa: B018 - reads
    assert bundle.module(torch.zeros(1, 6)).shape == (1, 3)
    path = home / "run" / "posterior.safetensors"
    whole = path.read_bytes()
    flip(path, -1)
    line = refused(1, "evaluate", home / "run")
    assert "bytes " in line
    assert "Make it anew from its checkpoints: remove" in line
    (home / "run" / "metrics.json").unlink()
    ok("train", "--out", home / "run", "--resume", "--no-figures")
    assert path.read_bytes() == whole


def test_a_file_that_its_marker_does_not_know_is_read_unchecked(home):
    (home / "run" / MARKER).unlink()
    path = home / "run" / "metrics.json"
    path.write_text(path.read_text().replace(" ", "  "))
    ok("evaluate", home / "run")
