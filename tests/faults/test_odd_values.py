"""Odd values and parts that do not belong together: an error that names them, never another number.

NaN and infinity in data, targets and weights; settings, data, posterior and checkpoint of different
runs; networks of which nothing is left. Posteriors that are not finite are in test_hostile, NaN in
inputs of delivered networks in test_not_a_number.
"""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bayesieve import nets
from bayesieve.runs.owned import MARKER
from commands import as_json, call, ok, refused

SHORT = ("--net", "mlp:4", "--steps", "2", "--no-figures", "--device", "cpu")


def table(change=lambda i, row: row, header="a,b,y", *, classes=False):
    rows = []
    for i in range(40):
        target = "uvw"[i % 3] if classes else f"{i % 3 + 0.1 * i:.1f}"
        rows.append(",".join(change(i, [str(i % 7), str(i % 5), target])))
    return "\n".join([header, *rows])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs: on a table, on classes, in double precision, and of another width."""
    home = tmp_path_factory.mktemp("odd")
    (home / "t.csv").write_text(table())
    (home / "c.csv").write_text(table(classes=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        others = {"wide": ("--net", "mlp:5"), "double": ("--dtype", "float64")}
        for out in ("run", "classes", "wide", "double"):
            data, more = "c" if out == "classes" else "t", others.get(out, ())
            ok("train", "--data", f"csv:{data}.csv", "--target", "y", *SHORT, *more, "--out", out)
    return home


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy of them without markers, whose checksums would speak first."""
    home = tmp_path / "odd"
    shutil.copytree(made, home)
    for path in (*home.glob(f"*/{MARKER}"), *home.glob("*/config.json")):
        if path.name == MARKER:
            path.unlink()
        else:  # the data of the copy
            path.write_text(path.read_text().replace(str(made), str(home)))
    monkeypatch.chdir(home)
    return home


# --------------------------------------------------------------------------- numbers that are none


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "1e400", "1e39", "-1e300", "NA"])
@pytest.mark.parametrize("column", [0, 2], ids=["input", "target"])
def test_numbers_of_a_table(tmp_path, word, column):
    def change(i, row):
        return [word if (i, j) == (5, column) else value for j, value in enumerate(row)]

    path = tmp_path / "t.csv"
    path.write_text(table(change))
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


# ----------------------------------------------------------------------------- parts of other runs

MIXED = [  # the run, whose part, which part, what the message says
    ("run", "classes", "posterior.safetensors", "is of another network"),
    ("run", "wide", "posterior.safetensors", "is of another network than mlp:4"),
    ("run", "wide", "config.json", "is of another network than mlp:5"),
    ("run", "double", "posterior.safetensors", "holds float64 weights"),
    ("double", "run", "posterior.safetensors", "holds float32 weights"),
    ("run", "double", "config.json", "holds float32 weights"),
    ("classes", "run", "config.json", "is of another network"),
]


@pytest.mark.parametrize(("run", "other", "part", "said"), MIXED)
def test_a_part_of_another_run(place, run, other, part, said):
    shutil.copy(place / other / part, place / run / part)
    message = refused(2, "evaluate", run)
    assert said in message
    assert f"{run}/posterior.safetensors" in message


@pytest.mark.parametrize(
    ("run", "other", "said"),
    [("run", "classes", "the checkpoint was made with engine"),
     ("run", "double", "is torch.float64"),
     ("run", "wide", "has shape (1, 22) in the checkpoint and (1, 18) here")],
)  # fmt: skip
def test_checkpoints_of_another_run(place, run, other, said):
    for name in ("metrics.json", "posterior.safetensors"):
        (place / run / name).unlink()
    shutil.rmtree(place / run / "checkpoints")
    shutil.copytree(place / other / "checkpoints", place / run / "checkpoints")
    result = call("train", "--resume", "--no-figures", "--out", run)
    assert result.exit_code in (1, 2), result.exception
    assert said in result.stderr or "other data" in result.stderr or "--data" in result.stderr


OTHER_DATA = {  # file, its new content, what the message says
    "fewer columns": ("t", table(lambda i, row: row[1:], "b,y"), "number 1 was 'a', now it is 'b'"),
    "more columns": ("t", table(lambda i, row: ["1", *row], "z,a,b,y"), "number 1 was 'a', now it"),
    "another order": ("t", table(lambda i, row: [row[1], row[0], row[2]], "b,a,y"), "number 1 was"),
    "text": (
        "t",
        table(lambda i, row: [f"q{row[0]}", *row[1:]]),
        "number 1 was 'a', now it is 'a=q0'",
    ),
    "another target": ("t", table(header="a,b,z"), "target must name a column"),
    "nothing": ("t", "a,b,y\n", "must have rows"),
    "labels for numbers": ("t", table(classes=True), "is for regression|is of another network"),
    "a renamed class": (
        "c",
        table(classes=True).replace(",u", ",x"),
        "number 1 was 'u', now it is 'v'",
    ),
    "another class": (
        "c",
        table(classes=True).replace(",w", ",z", 3),
        "number 4 was None, now it is",
    ),
    "a class less": (
        "c",
        table(classes=True).replace(",w", ",v"),
        "number 3 was 'w', now it is None",
    ),
}


@pytest.mark.parametrize("name", OTHER_DATA)
def test_data_that_have_changed(place, name):
    file, text, said = OTHER_DATA[name]
    (place / f"{file}.csv").write_text(text)
    result = call("evaluate", "run" if file == "t" else "classes")
    assert result.exit_code in (1, 2), result.exception
    assert any(part in result.stderr for part in said.split("|")), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_runs_of_earlier_versions_have_no_names(place):
    path = place / "run/config.json"
    path.write_text(path.read_text().replace('"names"', '"other"'))
    as_json("evaluate", "run")


# --------------------------------------------------------------------------------- nothing is left


@pytest.mark.parametrize(
    "rule",
    ["--zeros 1", "--zeros 1 --allow-empty-layers", "--zeros 0.99 --allow-empty-layers",
     "--target-macs 0", "--target-latency 1e-9"],
)  # fmt: skip
def test_more_than_can_go_is_refused_with_what_can(place, rule):
    message = refused(2, "prune", "run", *rule.split(), "--no-figures", "--out", "p")
    assert "can" in message
    assert "reached" in message
    assert not Path("p").exists()


@pytest.mark.parametrize("run", ["run", "classes"])
@pytest.mark.parametrize("rule", ["--threshold 1 --allow-empty-layers", "--keep-units 0"])
def test_a_network_of_which_nothing_is_left_still_works(place, run, rule):
    pruned = as_json("prune", run, *rule.split(), "--no-figures", "--out", "p")
    again = as_json("evaluate", "p")
    score = "rmse" if run == "run" else "error"
    assert again[score] == pruned[score]
    assert math.isfinite(again[score])
    ok("compact", "p", "--out", "b")
    ok("verify", "b", "--against", "p")
    ok("predict", "b", "t.csv", "--out", "y.csv")
    rows = Path("y.csv").read_text().splitlines()
    assert len(rows) == 41
    assert "nan" not in "".join(rows)
