"""The UCI files and the bundled digits."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import datasets

from bayesieve.data import load_data, uci
from bayesieve.data.image_sets import _bundled_digits
from bayesieve.errors import DataError


def write_uci(root, name="boston", **changes: np.ndarray):
    rng = np.random.default_rng(0)
    masks = np.zeros((3, 21), dtype=bool)
    for k in range(3):
        masks[k, rng.permutation(21)[:4]] = True
    arrays = {
        "x": np.column_stack([rng.normal(5, 3, (21, 2)), np.full(21, 0.1)]),
        "y": rng.normal(20, 4, 21),
        "n_splits": np.array(3),
        "test_mask": np.packbits(masks, axis=1),
    }
    arrays.update(changes)
    (root / "uci").mkdir(exist_ok=True)
    np.savez(root / "uci" / f"{name}.npz", **arrays)
    return {**arrays, "masks": masks}


@pytest.mark.parametrize("spec", ["uci/boston", "uci:boston"])
@pytest.mark.parametrize("split", [0, 2])
def test_split_is_standardised_on_its_training_part(tmp_path, spec, split):
    arrays = write_uci(tmp_path)
    data = load_data(spec, split=split, root=tmp_path)
    mask = arrays["masks"][split]
    x, y = arrays["x"], arrays["y"]
    expected = (x[mask, :2] - x[~mask, :2].mean(0)) / x[~mask, :2].std(0)
    np.testing.assert_allclose(data.test.x[:, :2], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.test.in_target_unit(data.test.y), y[mask], rtol=1e-5)
    assert data.train.x[:, 2].abs().max() < 1e-6
    assert (len(data.train), len(data.test), data.n_splits, data.n_outputs) == (17, 4, 3, 1)
    assert data.train.target_std.item() == pytest.approx(y[~mask].std(), rel=1e-5)


@pytest.mark.parametrize("split", [-1, 3])
def test_split_range(tmp_path, split):
    write_uci(tmp_path)
    with pytest.raises(ValueError, match=f"split must be 0 to 2, got {split}"):
        load_data("uci/boston", split=split, root=tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.zeros(20)}, r"must hold x \(n, p\) and y \(n,\)"),
        ({"test_mask": np.zeros((3, 9), dtype=np.uint8)}, "test_mask of .* must be bytes"),
        ({"test_mask": np.zeros((3, 3), dtype=np.uint8)}, "split 0 .* training and test rows"),
        ({"x": np.full((21, 2), np.nan)}, "row 1 of column 1 of x is not"),
    ],
)
def test_damaged_uci(tmp_path, changes, message):
    write_uci(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        load_data("uci/boston", root=tmp_path)


def test_missing_and_unknown_names(tmp_path):
    with pytest.raises(DataError, match="bayesieve data fetch uci/boston"):
        load_data("uci/boston", root=tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'boston'"):
        load_data("uci/bostn", root=tmp_path)
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "wine.npz", x=np.zeros((3, 2)))
    with pytest.raises(DataError, match="not found"):
        load_data("uci/wine", root=tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_year_from_its_text_file(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(uci, "YEAR_ROWS", 12)
    monkeypatch.setattr(uci, "YEAR_TEST_ROWS", 3)
    rows = np.random.default_rng(0).normal(size=(12, 91)).round(4)
    rows[:, 0] = 1990 + np.arange(12)
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / "uci").mkdir()
    path = tmp_path / "uci" / "YearPredictionMSD.txt"
    if packed:
        with zipfile.ZipFile(f"{path}.zip", "w") as archive:
            archive.writestr(path.name, text)
    else:
        path.write_text(text)
    data = load_data("uci/year", root=tmp_path)
    assert (data.input_shape, data.n_splits) == ((90,), 1)
    years = data.test.in_target_unit(data.test.y)
    torch.testing.assert_close(years, torch.tensor([1999.0, 2000.0, 2001.0]), rtol=1e-6, atol=1e-3)
    monkeypatch.setattr(uci, "YEAR_ROWS", 13)
    with pytest.raises(DataError, match="must hold 13 rows of 91 numbers, got 12 of 91"):
        load_data("uci/year", root=tmp_path)


def test_digits_are_stratified_and_fixed():
    first, again = load_data("digits"), load_data("digits", seed=5)
    assert first.test.x.equal(again.test.x)
    assert first.train.x.min() == 0
    assert first.train.x.max() == 1
    share = torch.bincount(first.test.y) / (
        torch.bincount(first.test.y) + torch.bincount(first.train.y)
    )
    assert (share - 0.2).abs().max() < 0.005


def test_digits_are_those_of_scikit_learn():
    images, labels = _bundled_digits()
    theirs = datasets.load_digits()
    assert np.array_equal(images, theirs.images)
    assert np.array_equal(labels, theirs.target)


_REAL = os.environ.get("BAYESIEVE_DATA")
needs_data = pytest.mark.skipif(not _REAL, reason="BAYESIEVE_DATA is not set: no real data here")


@pytest.mark.slow
@needs_data
def test_real_mnist():
    if not (Path(_REAL or "") / "mnist").is_dir():
        pytest.skip("no mnist in BAYESIEVE_DATA")
    data = load_data("mnist")
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert (data.train.x.mean() * 126 / 255).item() == pytest.approx(0.1307, abs=1e-4)


@needs_data
@pytest.mark.parametrize(("name", "n", "p"), [("boston", 506, 13), ("yacht", 308, 6)])
def test_real_uci(name, n, p):
    if not (Path(_REAL or "") / "uci" / f"{name}.npz").is_file():
        pytest.skip(f"no uci/{name} in BAYESIEVE_DATA")
    data = load_data(f"uci/{name}", split=19)
    assert (len(data.train) + len(data.test), data.input_shape, data.n_splits) == (n, (p,), 20)
