"""The registry, downloading (from file:// addresses) and the choice of loader."""

import gzip
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from bayesieve.data import RemoteFile, data_info, data_root, fetch_data, list_data, load_data
from bayesieve.data.files import cache_dir
from bayesieve.data.registry import REGISTRY
from bayesieve.errors import DataError


def test_every_download_has_an_address_and_a_check():
    for info in REGISTRY.values():
        assert info.description
        assert info.source
        for file in info.files:
            assert file.url.startswith(("https://", "http://fashion-mnist"))
            assert file.checksum or file.uci_shape or info.name == "uci/year"


def test_list_and_info(tmp_path):
    by_name = {info.name: info for info in list_data(tmp_path)}
    assert by_name["digits"].found
    assert not by_name["mnist"].found
    assert by_name["mnist"].location is None
    assert data_info("uci:boston", tmp_path).name == "uci/boston"
    with pytest.raises(ValueError, match="Did you mean 'mnist'"):
        data_info("mnits")


def test_root_default_and_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("BAYESIEVE_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("BAYESIEVE_DATA", "")
    assert data_root().name == "bayesieve"
    monkeypatch.setenv("BAYESIEVE_CACHE", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    monkeypatch.delenv("BAYESIEVE_CACHE")
    assert cache_dir().name == "bayesieve"


def _serve(monkeypatch, name, files):
    monkeypatch.setitem(REGISTRY, name, replace(REGISTRY[name], files=files))


def _mnist_files(source):
    source.mkdir()
    contents = {
        "train-images-idx3-ubyte.gz": bytes([0, 0, 8, 3, *[0, 0, 0, 2] * 3]) + bytes(range(8)),
        "train-labels-idx1-ubyte.gz": bytes([0, 0, 8, 1, 0, 0, 0, 2, 3, 4]),
        "t10k-images-idx3-ubyte.gz": bytes([0, 0, 8, 3, *[0, 0, 0, 2] * 3]) + bytes(range(8)),
        "t10k-labels-idx1-ubyte.gz": bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6]),
    }
    files = []
    for name, content in contents.items():
        (source / name).write_bytes(gzip.compress(content, mtime=0))
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        url = (source / name).as_uri()
        files.append(RemoteFile(f"mnist/{name}", url, digest, unpacked=True))
    return tuple(files)


def test_fetch_then_load(tmp_path, monkeypatch):
    _serve(monkeypatch, "mnist", _mnist_files(tmp_path / "source"))
    seen: list[tuple[str, int, int | None]] = []
    root = tmp_path / "root"
    folder = fetch_data("mnist", lambda *event: seen.append(event), root)
    assert folder == root / "mnist"
    assert len(seen) == 4
    assert all(done == total for _, done, total in seen)
    assert load_data("mnist", root=root).test.y.tolist() == [5, 6]
    assert sorted(path.name[0] for path in folder.iterdir()) == ["t"] * 4
    seen.clear()
    assert fetch_data("mnist", lambda *event: seen.append(event), root) == folder
    assert not seen


def test_fetch_refuses_wrong_content_and_keeps_nothing(tmp_path, monkeypatch):
    files = _mnist_files(tmp_path / "source")
    _serve(monkeypatch, "mnist", (replace(files[0], checksum="sha256:00"), *files[1:]))
    with pytest.raises(DataError, match="must have checksum sha256:00, got"):
        fetch_data("mnist", root=tmp_path / "root")
    assert not list((tmp_path / "root" / "mnist").iterdir())
    (tmp_path / "source" / "train-images-idx3-ubyte.gz").write_bytes(b"<html>sorry</html>")
    with pytest.raises(DataError, match="no valid gzip data"):
        fetch_data("mnist", root=tmp_path / "root")


def test_fetch_unreachable_and_unwritable(tmp_path, monkeypatch):
    url = (tmp_path / "nothing.tar.gz").as_uri()
    _serve(monkeypatch, "cifar10", (RemoteFile("cifar10/x.tar.gz", url, "md5:00"),))
    with pytest.raises(DataError, match=r"must be reachable.*by hand"):
        fetch_data("cifar10", root=tmp_path / "root")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.raises(DataError, match=r"must be writable.*BAYESIEVE_DATA"):
        fetch_data("cifar10", root=blocked)


def test_fetch_digits_needs_nothing(tmp_path):
    assert fetch_data("digits", root=tmp_path) == tmp_path


def test_fetch_builds_uci_from_text(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    rows = np.random.default_rng(0).normal(size=(10, 4))
    np.savetxt(source / "data.txt", rows)
    (source / "n_splits.txt").write_text("2\n")
    (source / "index_features.txt").write_text("0.0\n2.0\n")
    (source / "index_target.txt").write_text("3\n")
    (source / "index_test_0.txt").write_text("1\n4\n")
    (source / "index_test_1.txt").write_text("9\n")
    remote = RemoteFile("uci/yacht.npz", source.as_uri() + "/", uci_shape=(10, 2, 2))
    _serve(monkeypatch, "uci/yacht", (remote,))
    fetch_data("uci/yacht", root=tmp_path)
    data = load_data("uci/yacht", root=tmp_path)
    np.testing.assert_allclose(data.test.in_target_unit(data.test.y), rows[[1, 4], 3], rtol=1e-4)
    assert len(load_data("uci/yacht", split=1, root=tmp_path).test) == 1
    other = tmp_path / "other"
    _serve(monkeypatch, "uci/yacht", (replace(remote, uci_shape=(11, 2, 2)),))
    with pytest.raises(DataError, match=r"\(11, 2, 2\), got \(10, 2, 2\)"):
        fetch_data("uci/yacht", root=other)
    (source / "index_test_0.txt").write_text("1\n99\n")
    with pytest.raises(DataError, match="row numbers"):
        fetch_data("uci/yacht", root=other)
    assert not list((other / "uci").iterdir())


@pytest.mark.parametrize("spec", ["mnsit", "csv:", "", "zip:x"])
def test_unknown_spec(spec):
    with pytest.raises(ValueError, match="load_data: spec must be one of digits, mnist"):
        load_data(spec)


def test_options_that_do_not_apply_are_refused():
    with pytest.raises(ValueError, match="target, image_size cannot be used with 'digits'"):
        load_data("digits", target="y", image_size=3)
