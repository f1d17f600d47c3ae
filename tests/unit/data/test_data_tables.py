"""Own tables: encoding, imputation, splits, errors."""

import builtins
import json

import numpy as np
import pytest
import torch

from bayesieve.data import load_data, prepare_table
from bayesieve.data.encoding import MAX_LEVELS
from bayesieve.errors import DataError

N = 40


def raw_table():
    rng = np.random.default_rng(0)
    return {
        "age": [round(float(a), 2) for a in rng.uniform(20, 80, N)],
        "color": [("red", "blue", "green")[k % 3] for k in range(N)],
        "member": [bool(k % 2) for k in range(N)],
        "const": [7.5] * N,
        "income": [round(0.37 * float(k) + 0.01, 2) for k in rng.permutation(N)],
    }


def write_csv(path, table, delimiter=","):
    rows = [
        delimiter.join(table),
        *(delimiter.join(map(str, r)) for r in zip(*table.values(), strict=True)),
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def write_parquet(path, table):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(table), path)
    return path


def write_npz(path, table):
    np.savez(path, **{name: np.array(values) for name, values in table.items()})
    return path


WRITERS = {"csv": write_csv, "parquet": write_parquet, "npz": write_npz}


@pytest.mark.parametrize("kind", WRITERS)
def test_regression_table(tmp_path, kind):
    table = raw_table()
    path = WRITERS[kind](tmp_path / f"people.{kind}", table)
    data = load_data(f"{kind}:{path}", target="income")
    names = ("age", "color=blue", "color=green", "color=red", "member", "const")
    assert (data.name, data.task, data.feature_names) == ("people", "regression", names)
    assert (len(data.train), len(data.test), data.n_outputs) == (32, 8, 1)
    assert abs(data.train.x[:, 0].mean()) < 1e-6
    assert abs(data.train.x[:, 0].std(correction=0) - 1) < 1e-6
    assert data.train.x[:, 1:4].sum(dim=1).eq(1).all()
    assert data.train.x[:, 5].eq(0).all()
    assert data.test.x[:, 5].eq(0).all()
    recipe = json.loads(json.dumps(data.preprocessing))
    x = prepare_table(table, recipe)
    income = torch.tensor(table["income"], dtype=torch.float32)
    everything = torch.cat([data.train.x, data.test.x])
    y = torch.cat([data.train.in_target_unit(data.train.y), data.test.in_target_unit(data.test.y)])
    rows = [int(torch.where((income - value).abs() < 1e-4)[0][0]) for value in y]
    assert sorted(rows) == list(range(N))
    assert x[rows].equal(everything)


def test_standardisation_ignores_test_rows(tmp_path):
    table = raw_table()
    path = write_csv(tmp_path / "t.csv", table)
    first = load_data(f"csv:{path}", target="income")
    recipe = first.preprocessing["columns"][0]
    test_age = (first.test.x[:, 0] * recipe["std"] + recipe["mean"]).tolist()
    table["age"] = [1e6 if min(abs(a - t) for t in test_age) < 1e-3 else a for a in table["age"]]
    write_csv(path, table)
    second = load_data(f"csv:{path}", target="income")
    assert second.preprocessing["columns"][0] == recipe
    assert second.test.x[:, 0].min() > 1e3


def test_a_value_far_out_does_not_decide_the_scale_of_its_column(tmp_path):
    """The wild row alone would give a std of 1.6e5 and inputs of 0 for all others."""
    table = raw_table()
    plain = load_data(f"csv:{write_csv(tmp_path / 't.csv', table)}", target="income")
    table["age"][3] = 1e6  # a row of the training part
    data = load_data(f"csv:{write_csv(tmp_path / 't.csv', table)}", target="income")
    recipe = data.preprocessing
    age, *_, const = recipe["columns"]
    assert age["limit"] == const["limit"] == 5
    assert data.train.x[:, 0].max() == 5
    assert 10 < age["std"] < 50
    new = prepare_table({**{k: v[:2] for k, v in table.items()}, "age": [-1e9, 50]}, recipe)
    assert new[0, 0] == -5
    assert new[1, 0] == pytest.approx((50 - age["mean"]) / age["std"])
    assert all("limit" not in column for column in plain.preprocessing["columns"])


@pytest.mark.parametrize("value", [10**30, 0.1, 2**62, -1e-300])
def test_a_constant_column_is_zero_whatever_its_size(tmp_path, value):
    table = raw_table()
    table["const"] = [value + k if isinstance(value, int) else value for k in range(N)]
    data = load_data(f"csv:{write_csv(tmp_path / 't.csv', table)}", target="income")
    assert data.feature_names is not None
    column = data.feature_names.index("const")
    assert bool((data.train.x[:, column] == 0).all())
    assert bool((data.test.x[:, column] == 0).all())


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["yes", "no"] * 20, "classification", ("no", "yes")),
        ([True, False] * 20, "classification", ("False", "True")),
        ([3, 1, 2, 10] * 10, "classification", ("1", "2", "3", "10")),
        (list(range(40)), "regression", None),
        ([0.5, 1.5] * 20, "regression", None),
    ],
)
@pytest.mark.parametrize("kind", WRITERS)
def test_guessed_task(tmp_path, kind, values, task, classes):
    path = WRITERS[kind](tmp_path / "t", {"a": list(range(N)), "y": values})
    if kind == "npz":
        path = path.with_name("t.npz")
    data = load_data(f"{kind}:{path}", target="y")
    assert (data.task, data.classes) == (task, classes)


def test_task_override(tmp_path):
    table = {"a": list(range(N)), "y": [k % 3 for k in range(N)], "t": ["u", "v"] * 20}
    path = write_csv(tmp_path / "t.csv", {**table, "f": [0.5, 1.5] * 20})
    assert load_data(f"csv:{path}", target="y", task="regression").classes is None
    assert load_data(f"csv:{path}", target="a", task="classification").n_outputs == N
    with pytest.raises(DataError, match="'t' must be numbers for regression"):
        load_data(f"csv:{path}", target="t", task="regression")
    with pytest.raises(DataError, match="got fractions"):
        load_data(f"csv:{path}", target="f", task="classification")
    with pytest.raises(ValueError, match="Did you mean 'regression'"):
        load_data(f"csv:{path}", target="y", task="regresion")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_missing_values_refused_or_imputed(tmp_path, kind):
    table = raw_table()
    nothing = "NA" if kind == "csv" else None
    table["age"][4] = table["color"][6] = table["member"][9] = nothing
    path = WRITERS[kind](tmp_path / f"t.{kind}", table)
    with pytest.raises(DataError, match=r"column 'age' must have no missing value, but row 5 "):
        load_data(f"{kind}:{path}", target="income")
    for seed in range(4):
        data = load_data(f"{kind}:{path}", target="income", missing="impute", seed=seed)
        entries = {entry["name"]: entry for entry in data.preprocessing["columns"]}
        age, color = entries["age"], entries["color"]
        shown = data.train.x[:, 0] * age["std"] + age["mean"]
        known = sorted(v for v in shown.tolist() if abs(v - age["fill"]) > 1e-4)
        assert len(known) in (31, 32, 30)
        assert known[len(known) // 2 - 1] <= age["fill"] <= known[len(known) // 2]
        assert color["fill"] in color["levels"]
        # an input that says so where a training row lacks the value, and only there
        assert ("age missing" in entries) == (len(known) < 32)
        assert (color["fill"] == "(missing)") == ("(missing)" in color["levels"])
        assert torch.cat([data.train.x, data.test.x]).isfinite().all()
    row = {"age": [None], "color": [float("nan")], "member": [None], "const": [7.5]}
    assert prepare_table(row, data.preprocessing)[0, 0].item() == pytest.approx(
        (age["fill"] - age["mean"]) / age["std"], abs=1e-5
    )


def test_missing_target_is_never_imputed(tmp_path):
    table = raw_table()
    table["income"][2] = ""
    path = write_csv(tmp_path / "t.csv", table)
    with pytest.raises(DataError, match=r"'income' .* row 3 .*drop these rows"):
        load_data(f"csv:{path}", target="income", missing="impute")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin with a line of column names"),
        ("a,y\n", "must have rows"),
        ("a,y\n1,2\n3\n", r"line 3 of .* must have 2 fields like the first, got 1"),
        ("a,a,y\n1,2,3\n", "distinct names, got a more than once"),
        ("a,,y\n1,2,3\n", "an empty name"),
        ('a,y\n"1,2\n', "line 2 of .* malformed"),
        ("y\n1\n2\n", "must have a column besides the target"),
        ("a,y\n1,1\ninf,2\n3,3\n4,4\n5,5\n", r"'a' must be finite, but row 2 "),
        ("a,y\n1,u\n2,u\n3,u\n4,u\n5,u\n", "two classes or more, got one: 'u'"),
        ("a,y\n,1\n,2\n,3.5\n,4\n,5\n", "'a' must have no missing value"),
    ],
)
def test_csv_errors(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_data(f"csv:{path}", target="y")


def test_csv_forms(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(
        b'\xef\xbb\xbfa;"b c";y\r\n1_0;"x;\n1";1\r\n1_1;u;2\r\n\r\n' + b"1_0;u;3.5\r\n" * 3
    )
    data = load_data(f"csv:{path}", target="y")
    assert data.feature_names == ("a=1_0", "a=1_1", "b c=u", "b c=x;\n1")
    path.write_bytes(b"a,y\n\xff,1\n")
    with pytest.raises(DataError, match="byte offset 4 is not"):
        load_data(f"csv:{path}", target="y")
    with pytest.raises(DataError, match="does not"):
        load_data(f"csv:{tmp_path / 'none.csv'}", target="y")


def test_target_is_required_and_suggested(tmp_path):
    path = write_csv(tmp_path / "t.csv", raw_table())
    with pytest.raises(ValueError, match=r"target must name a column .* got 'incom'. Did you mean"):
        load_data(f"csv:{path}", target="incom")
    with pytest.raises(ValueError, match="none was given"):
        load_data(f"csv:{path}")
    wide = tmp_path / "wide.csv"
    wide.write_text(",".join(f"c{i}" for i in range(40)) + "\n" + ",".join("0" * 40) + "\n")
    with pytest.raises(ValueError, match=r"\(c0, .*, c11 and 28 more\); got 'c40'. Did you mean"):
        load_data(f"csv:{wide}", target="c40")
    with pytest.raises(TypeError, match="spec must be text such as 'digits', got None"):
        load_data(None)  # type: ignore[arg-type]


def test_missing_values_are_counted_and_advice_fits_the_moment():
    recipe = {"columns": [{"name": "a", "kind": "numeric", "mean": 0, "std": 1, "fill": None}]}
    for values, words in (
        ([1, None], r"row 2 .* does\."),
        ([None, None], "row 1 .* and 1 more do"),
    ):
        with pytest.raises(DataError, match=rf"{words}.* Fill them or drop the rows; a model"):
            prepare_table({"a": values}, recipe)


def test_all_missing_in_training_and_too_many_levels(tmp_path):
    table = {"a": ["NA"] * N, "y": [k / 7 for k in range(N)]}
    path = write_csv(tmp_path / "t.csv", table)
    with pytest.raises(DataError, match="all are missing"):
        load_data(f"csv:{path}", target="y", missing="impute")
    n = 2 * MAX_LEVELS
    commas = {"a": [f"-{k},5" for k in range(n)], "y": list(range(n))}
    path = write_csv(tmp_path / "t.csv", commas, delimiter=";")
    with pytest.raises(DataError, match=r"Write its numbers with a decimal point\."):
        load_data(f"csv:{path}", target="y")


def test_prepare_table_errors(tmp_path):
    path = write_csv(tmp_path / "t.csv", raw_table())
    recipe = load_data(f"csv:{path}", target="income").preprocessing
    row = {"age": [30.0], "color": ["red"], "member": [True], "const": [1.0]}
    assert prepare_table(row, recipe).shape == (1, 6)
    with pytest.warns(UserWarning, match=r"'color' has values .* never saw in 1 row \('pink'\)"):
        pink = prepare_table({**row, "color": ["pink"]}, recipe)
    assert pink[0, 1:4].tolist() == [0, 0, 0]
    for change, message in (
        ({"age": [None]}, "'age' must have no missing value"),
        ({"age": ["old"]}, "'age' must hold numbers"),
    ):
        with pytest.raises(DataError, match=message):
            prepare_table({**row, **change}, recipe)
    del row["age"]
    with pytest.raises(DataError, match="column 'age' must be given"):
        prepare_table(row, recipe)


def test_npz_matrix_form(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "m.npz"
    x = rng.normal(size=(20, 3))
    np.savez(path, x=x, y=rng.normal(3, 2, size=(20, 2)), feature_names=np.array(["a", "b", "c"]))
    data = load_data(f"npz:{path}")
    assert (data.feature_names, data.n_outputs) == (("a", "b", "c"), 2)
    assert data.train.target_mean.shape == (2,)
    assert data.train.y.mean(dim=0).abs().max() < 1e-6
    np.savez(path, x=x, y=np.zeros(19))
    with pytest.raises(DataError, match=r"got \(20, 3\) and \(19,\)"):
        load_data(f"npz:{path}")
    np.savez(path, x=x, y=np.zeros(20), feature_names=np.array(["a"]))
    with pytest.raises(DataError, match="got 1 names"):
        load_data(f"npz:{path}")
    np.savez(path, a=np.zeros(20), b=np.zeros(3))
    with pytest.raises(DataError, match="1-D and equally long"):
        load_data(f"npz:{path}", target="a")
    np.savez(path, a=np.zeros(20), b=np.zeros(20, dtype=complex))
    with pytest.raises(DataError, match="got type complex128"):
        load_data(f"npz:{path}", target="a")


def test_npz_of_images_says_what_to_take(tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, x=np.zeros((4, 1, 8, 8)), y=np.arange(4))
    with pytest.raises(DataError, match=r"got \(4, 1, 8, 8\) .* For images take a folder"):
        load_data(f"npz:{path}")
    np.savez(path, x=np.zeros((4, 2)), y=np.arange(3))
    with pytest.raises(DataError, match=r"got \(4, 2\) and \(3,\)\.$"):
        load_data(f"npz:{path}")


def test_npz_never_unpickles_and_checks_sizes(tmp_path):
    import zipfile

    path = tmp_path / "m.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match="holds Python objects"):
        load_data(f"npz:{path}")
    path.write_bytes(b"not a zip")
    with pytest.raises(DataError, match="intact"):
        load_data(f"npz:{path}")
    header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 1 << 20)}
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, header)
        member.write(bytes(80))
    with pytest.raises(DataError, match=r"declares .* bytes of data, but 80 follow"):
        load_data(f"npz:{path}")


def test_parquet_errors(tmp_path, monkeypatch):
    import datetime

    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="intact parquet file"):
        load_data(f"parquet:{path}", target="y")
    days = [datetime.date(2024, 1, 1)] * 3
    write_parquet(path, {"day": days, "y": [1.0, 2.5, 3.0]})
    with pytest.raises(DataError, match=r"'day' holds dates. Use `date_parts`, or drop it"):
        load_data(f"parquet:{path}", target="y")
    write_parquet(path, {"day": [[1]] * 3, "y": [1.0, 2.5, 3.0]})
    with pytest.raises(DataError, match=r"column 'day' .* got list"):
        load_data(f"parquet:{path}", target="y")
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"bayesieve\[tables\]"):
        load_data(f"parquet:{path}", target="y")
