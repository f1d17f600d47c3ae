"""NaN, infinity and odd types in data, targets and weights: an error that names them.

Posteriors that are not finite are in test_mismatch, NaN in inputs of delivered networks in
test_not_a_number.
"""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bayesieve import nets
from commands import call, refused, write_table

SHORT = ("--net", "mlp:4", "--steps", "2", "--no-figures", "--device", "cpu")


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "1e400", "1e39", "-1e300", "NA"])
@pytest.mark.parametrize("column", [0, 2], ids=["input", "target"])
def test_numbers_of_a_table(tmp_path, word, column):
    def row(i):
        numbers = [i % 7, i % 5, f"{i % 3 + 0.1 * i:.1f}"]
        return [word if (i, j) == (5, column) else value for j, value in enumerate(numbers)]

    path = write_table(tmp_path / "t.csv", row=row)
    given = ("--data", f"csv:{path}", "--target", "y", *SHORT, "--out", tmp_path / "o")
    message = refused(1, "train", *given)
    for part in (str(path), f"column {'aby'[column]!r}", "row 6"):
        assert part in message
    assert not (tmp_path / "o").exists()


X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
ARRAYS = {
    "nan": (np.where(np.eye(30, 3) > 0, np.nan, X), Y, "column 'x1' must have no missing value"),
    "infinite target": (X, np.where(Y == 0, np.inf, Y), "column 'y' must be finite"),
    "nan label": (X, np.where(Y == 0, np.nan, Y), "column 'y' must have no missing value"),
    "too large": (X * 1e300, Y, "must be within ±1e+30"),
    "complex": (X + 1j, Y, "must hold numbers"),
    "shorter": (X, Y[:20], "must hold x of shape"),
    "one class": (X, 0 * Y, "must have two classes or more"),
    "no axis": (X[:, 0], Y, "target must name a column|must hold x"),
    "images": (X[:, None, :, None], Y, "must hold x of shape"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_no_table(tmp_path, name):
    x, y, message = ARRAYS[name]
    path = tmp_path / "t.npz"
    np.savez(path, x=x, y=y)
    result = call("train", "--data", f"npz:{path}", *SHORT, "--out", tmp_path / "o")
    assert result.exit_code in (1, 2), result.exception
    assert any(part in result.stderr for part in message.split("|")), result.stderr
    assert "npz" in result.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("command", ["train", "sieve"])
@pytest.mark.parametrize("kind", ["nan", "infinite", "whole numbers", "overflow"])
def test_weights_to_start_from(tmp_path, command, kind):
    weights = nets.mlp((1, 8, 8), 10, [4]).state_dict()
    fill = {"nan": math.nan, "infinite": math.inf, "overflow": 1e30}.get(kind)
    if fill is not None:
        weights = {name: torch.full_like(value, fill) for name, value in weights.items()}
    else:
        weights = {name: value.int() for name, value in weights.items()}
    path = tmp_path / "w.safetensors"
    save_file(weights, path)
    given = ("--data", "digits", "--net", "mlp:4", "--no-figures", "--out", tmp_path / "o")
    if command == "sieve":
        result = call("sieve", path, *given)
    else:
        result = call("train", "--warm-start", path, "--steps", "2", *given)
    assert result.exit_code in (1, 2), result.exception
    said = {"nan": "'fc1.weight' holds NaN or infinity", "infinite": "'fc1.weight' holds NaN",
            "whole numbers": "'fc1.weight' is torch.int32", "overflow": "finite"}[kind]  # fmt: skip
    assert said in result.stderr or (kind == "overflow" and "NaN or infinity" in result.stderr)
