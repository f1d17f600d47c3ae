"""From a table to a bundle, predictions and a selection, by the command line alone."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

from bayesieve import SieveClassifier, SieveRegressor, SieveSelector, load, load_data, runs
from bayesieve.cli.console import print_table
from bayesieve.core.posterior import posterior_of
from bayesieve.data.tables import read_table
from bayesieve.runs import tables
from commands import as_json, ok, refused


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """240 rows: price depends on area, |age| and whether the color is red."""
    source = np.random.default_rng(0)
    n = 240
    area, age, noise = source.normal(size=(3, n))
    color = source.choice(["red", "blue"], n)
    price = 100 + 20 * area - 15 * np.abs(age) + 10 * (color == "red") + source.normal(size=n)
    path = tmp_path_factory.mktemp("tables") / "house.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["area", "age", "noise", "color", "price"])
        writer.writerows(zip(area, age, noise, color, price, strict=True))
    return path


@pytest.fixture(scope="module")
def fitted(house, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    out, report = folder / "model", folder / "report"
    arguments = ("fit-table", house, "--target", "price", "--epochs", 60, "--hidden", "16")
    return out, report, as_json(*arguments, "--out", out, "--report", report)


def test_fit_table_learns_reports_and_tells_what_matters(fitted):
    _, report, result = fitted
    assert result["task"] == "regression"
    assert result["rows"]["test"] == 48
    assert result["metrics"]["rmse"] < 12  # the target's std is about 22
    assert set(result["importance"]) == {"area", "age", "noise", "color"}
    assert result["importance"]["area"] > result["importance"]["noise"]
    text = (report / "report.md").read_text()
    assert "Which inputs matter" in text
    assert (report / "figures" / "importance.png").is_file()
    stored = json.loads((report / "importance.json").read_text())
    assert max(stored["phi"]) == 1
    assert all(0 <= low <= high for low, high in zip(stored["low"], stored["high"], strict=True))


def test_predict_reads_the_same_columns_and_answers_in_the_targets_unit(fitted, house, tmp_path):
    out, _, result = fitted
    rows = tmp_path / "p.csv"
    ok("predict", out, house, "--out", rows, "--samples", 8)
    with rows.open() as file:
        found = list(csv.DictReader(file))
    with house.open() as file:
        truth = [float(row["price"]) for row in csv.DictReader(file)]
    means = np.array([float(row["mean"]) for row in found])
    error = float(np.sqrt(np.mean((means - np.array(truth)) ** 2)))
    assert error < 1.5 * result["metrics"]["rmse"]
    assert all(float(row["lower_90"]) < float(row["mean"]) < float(row["upper_90"])
               for row in found)  # fmt: skip
    assert all(float(row["epistemic"]) > 0 for row in found)


@pytest.mark.slow
def test_fit_table_prunes_and_compacts(house, tmp_path):
    out, report = tmp_path / "small", tmp_path / "report"
    result = as_json("fit-table", house, "--target", "price", "--zeros", 0.6, "--epochs", 20,
                     "--hidden", 16, "--out", out, "--report", report, "--no-figures")  # fmt: skip
    assert result["metrics"]["zeros"] == pytest.approx(0.6, abs=0.02)
    ok("predict", out, house, "--out", tmp_path / "p.csv", "--samples", 4)


def test_a_text_target_is_a_classification(house, tmp_path):
    arguments = ("--epochs", 8, "--hidden", "8", "--no-figures", "--report", tmp_path / "r",
                 "--kl", 1)  # fmt: skip
    result = as_json("fit-table", house, "--target", "color", *arguments, "--out", tmp_path / "m")
    assert result["task"] == "classification"
    ok("predict", tmp_path / "m", house, "--out", tmp_path / "p.csv")
    assert "class" in (tmp_path / "p.csv").read_text().splitlines()[0]
    assert as_json("evaluate", tmp_path / "r")["kl"] == 1


@pytest.mark.slow
def test_select_keeps_what_matters(house, tmp_path):
    folder = tmp_path / "which"
    result = as_json("select", house, "--target", "price", "--fdr", 0.1, "--bootstrap", 2,
                     "--report", folder)  # fmt: skip
    assert {"area", "age"} <= set(result["kept"])
    assert "noise" not in result["kept"]
    assert "color" in result["kept"]
    assert result["expected_fdr"] <= 0.1
    assert result["error_kept"] < 1.1 * result["error_all"]
    assert (folder / "probability.png").is_file()
    assert json.loads((folder / "selection.json").read_text())["kept"] == result["kept"]
    text = (folder / "report.md").read_text()
    assert "Which inputs matter for price" in text
    line = refused(2, "select", house, "--target", "price", "--report", folder)
    assert "--force" in line


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--fraction", 0.4), ("--cross-validate",)])
def test_select_by_share(house, tmp_path, monkeypatch, flags):
    monkeypatch.setattr(tables, "_FOLDS", 3)
    result = as_json("select", house, "--target", "price", *flags, "--bootstrap", 0,
                     "--report", tmp_path / "s")  # fmt: skip
    assert result["stability"] is None
    if flags[0] == "--fraction":
        assert len(result["kept"]) == 2
    else:
        assert result["path"]["chosen"] in result["path"]["proportions"]
        assert {"area", "age"} <= set(result["kept"])
        assert (tmp_path / "s" / "path.png").is_file()


def test_fit_table_learns_what_the_regressor_learns(fitted, house):
    _, report, _ = fitted
    run = runs.load(report, device="cpu")
    data = load_data(f"csv:{house}", target="price", seed=0)
    model = SieveRegressor(hidden=(16,), epochs=60, random_state=0, standardise=False)
    model.fit(data.train.x.numpy(), data.train.y.numpy())
    assert torch.equal(posterior_of(run.model).mean, model.posterior_.mean)
    assert torch.equal(posterior_of(run.model).std, model.posterior_.std)
    assert run.config.schedule.kl == model.kl_


def test_embedded_columns_are_in_run_and_bundle(tmp_path):
    """Steps that plain columns learn late: the folds choose bins."""
    x = np.random.default_rng(0).uniform(-1, 1, size=(400, 2)).round(6)
    rows = np.c_[x, np.floor(6 * x[:, 0]) % 2]
    path = tmp_path / "steps.csv"
    np.savetxt(path, rows, "%.6f", ",", header="a,b,y", comments="")
    flags = ("--kl", 0.1, "--epochs", 30, "--no-figures", "--task", "regression")
    out, report = tmp_path / "m", tmp_path / "r"
    as_json("fit-table", path, "--target", "y", *flags, "--out", out, "--report", report)
    data = load_data(f"csv:{path}", target="y", task="regression", seed=0)
    model = SieveRegressor(epochs=30, kl=0.1, random_state=0, standardise=False)
    model.fit(data.train.x.numpy(), data.train.y.numpy())
    run = runs.load(report, device="cpu")
    assert run.config.net.name == "mlp:50:relu:8"
    assert torch.equal(posterior_of(run.model).mean, model.posterior_.mean)
    expected = model.sparse_.to_module()(3 * data.test.x)
    for delivered in (run.model.to_module(), load(out)):
        torch.testing.assert_close(delivered(3 * data.test.x), expected, rtol=0, atol=1e-5)


def test_fit_table_learns_what_the_classifier_learns(house, tmp_path):
    flags = ("--no-figures", "--report", tmp_path / "r", "--out", tmp_path / "m", "--seed", 3)
    as_json("fit-table", house, "--target", "color", "--epochs", 10, *flags)
    data = load_data(f"csv:{house}", target="color", seed=3)
    model = SieveClassifier(epochs=10, random_state=3, standardise=False)
    model.fit(data.train.x.numpy(), data.train.y.numpy())
    run = runs.load(tmp_path / "r", device="cpu")
    assert torch.equal(posterior_of(run.model).mean, model.posterior_.mean)
    settings = model.settings_
    assert run.config.net.name == "mlp:50,50"  # the folds prefer plain columns here
    assert run.config.training.batch_size == settings.batch_size
    assert run.config.engine.lr == settings.engine.lr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "settings"),
    [((), {"rule": "fdr"}), (("--cross-validate",), {"rule": "cross-validated", "folds": 3})],
)
def test_select_chooses_what_the_selector_chooses(house, tmp_path, monkeypatch, flags, settings):
    monkeypatch.setattr(tables, "_FOLDS", 3)
    result = as_json("select", house, "--target", "price", *flags, "--bootstrap", 2, "--seed", 1,
                     "--no-figures", "--report", tmp_path / "s")  # fmt: skip
    raw = read_table("csv", house, target="price", seed=1)
    model = SieveRegressor()
    selector = SieveSelector(
        estimator=model, network="additive", **settings, bootstrap=2, random_state=1
    )
    selector.fit(raw.frame.take(raw.train), raw.y[raw.train])
    assert [row["kept"] for row in result["inputs"]] == selector.support_.tolist()
    assert [row["probability"] for row in result["inputs"]] == selector.inclusion_.tolist()
    assert [row["phi"] for row in result["inputs"]] == selector.feature_importances_.tolist()
    assert [row["frequency"] for row in result["inputs"]] == selector.frequency_.tolist()


def test_diabetes_gives_the_same_columns_to_both(tmp_path):
    data = load_diabetes()  # whole numbers as targets, but too many for classes
    header = ",".join([*data.feature_names, "y"])
    path = write(tmp_path / "diabetes.csv", header, np.c_[data.data, data.target])
    result = as_json("select", path, "--target", "y", "--fdr", 0.1, "--bootstrap", 0,
                     "--no-figures", "--report", tmp_path / "s")  # fmt: skip
    train = load_data(f"csv:{path}", target="y", seed=0).train
    selector = SieveSelector(rule="fdr", level=0.1, random_state=0)
    selector.fit(train.x.numpy(), train.y.numpy())
    kept = np.array(data.feature_names)[selector.support_].tolist()
    assert result["kept"] == kept
    assert {"bmi", "bp", "s5"} <= set(kept)
    for seed in range(2):
        whole = SieveSelector(rule="fdr", level=0.1, random_state=seed).fit(data.data, data.target)
        assert {"bmi", "bp", "s5"} <= set(np.array(data.feature_names)[whole.support_])


def write(path, header, rows):
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("command", ["fit-table", "select"])
def test_errors_come_before_any_work(command, house, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    constant = write(tmp_path / "constant.csv", "a,b,y", [(i, i % 7, 3.0) for i in range(40)])
    few = write(tmp_path / "few.csv", "a,b,y", [(i, i % 3, i + 0.5) for i in range(12)])
    assert "one value only" in refused(1, command, constant, "--target", "y",
                                       "--task", "regression")  # fmt: skip
    assert "at least 20 rows are needed, got 12" in refused(1, command, few, "--target", "y")
    assert "Did you mean 'price'?" in refused(2, command, house, "--target", "pric")
    line = refused(1, command, house, "--target", "color", "--task", "regression")
    assert "must be numbers for regression" in line
    assert "there is no file" in refused(2, command, tmp_path / "no.csv", "--target", "y")
    assert "must be a .csv" in refused(2, command, _text(tmp_path), "--target", "y")
    assert "--task must be" in refused(2, command, house, "--target", "price", "--task", "rank")
    assert "--missing must be" in refused(2, command, house, "--target", "price",
                                          "--missing", "drop")  # fmt: skip
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"constant.csv", "few.csv", "notes.txt"}


def _text(folder):
    path = folder / "notes.txt"
    path.write_text("nothing")
    return path


def test_options_that_contradict_are_refused(house, tmp_path):
    both = ("--fdr", 0.1, "--fraction", 0.2)
    assert "give one of" in refused(2, "select", house, "--target", "price", *both)
    assert "between 0 and 1" in refused(2, "select", house, "--target", "price", "--fdr", 2)
    assert "--bootstrap" in refused(2, "select", house, "--target", "price", "--bootstrap", 1)
    same = ("--out", tmp_path / "x", "--report", tmp_path / "x")
    assert "different folders" in refused(2, "fit-table", house, "--target", "price", *same)
    assert "--engine" in refused(2, "fit-table", house, "--target", "price", "--engine", "svm")
    for flag, value in (("--epochs", 0), ("--zeros", 1.2), ("--test-fraction", 0)):
        line = refused(2, "fit-table", house, "--target", "price", flag, value)
        assert line.startswith(f"error: fit-table: {flag} must be")
    line = refused(2, "fit-table", house, "--target", "price", "--hidden", "50x50")
    assert "--hidden must be widths" in line


def test_select_keeps_no_constant_column(tmp_path):
    source = np.random.default_rng(3)
    a, b = source.normal(size=(2, 60))
    rows = zip(a, ["same"] * 60, source.choice(["x", "z"], 60), 4 * a + 0.1 * b, strict=True)
    path = write(tmp_path / "t.csv", "a,one,two,y", rows)
    result = as_json("select", path, "--target", "y", "--bootstrap", 0,
                     "--no-figures", "--report", tmp_path / "s")  # fmt: skip
    found = {row["name"]: row["probability"] for row in result["inputs"]}
    assert result["kept"] == ["a"]
    assert found["one"] == 0.0
    assert found["two"] < 0.5


def test_wide_numbers_are_never_cut(capsys):
    cells = tuple(f"{10.0**i:.4e}" for i in range(12))
    print_table("", tuple("abcdefghijkl"), [cells])
    printed = capsys.readouterr().out
    assert [cell for cell in cells if cell not in printed] == []


def test_predict_reads_parquet(fitted, house, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    csv_reader = pytest.importorskip("pyarrow.csv")
    path = tmp_path / "house.parquet"
    parquet.write_table(csv_reader.read_csv(house), path)
    for source, out in ((path, tmp_path / "a.csv"), (house, tmp_path / "b.csv")):
        ok("predict", fitted[0], source, "--out", out)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


@pytest.fixture(scope="module")
def dirty(tmp_path_factory):
    """200 rows as people have them: gaps, dates, a name of the row, and counts to predict."""
    source = np.random.default_rng(0)
    n = 200
    age, size = source.normal(50, 10, n), source.normal(size=n)
    days = np.datetime64("2023-01-01") + source.integers(0, 700, n).astype("timedelta64[D]")
    visits = source.poisson(np.exp(1 + 0.6 * size))
    rows = zip(
        [f"id{k}" for k in range(n)],
        [f"{a:.1f}" if k % 9 else "NA" for k, a in enumerate(age)],
        [f"{s:.3f}" for s in size],
        days,
        source.choice(["red", "blue", "?"], n),
        visits,
        strict=True,
    )
    return write(tmp_path_factory.mktemp("dirty") / "t.csv", "id,age,size,day,color,visits", rows)


@pytest.mark.parametrize("command", ["fit-table", "select"])
def test_all_that_is_wrong_with_a_file_is_said_at_once(command, dirty, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(1, command, dirty, "--target", "visits", "--task", "regression")
    assert "3 problems." in line
    for words in ("'age' must have no missing value, but row 1", "'day' holds dates",
                  "Use --date-parts", "--drop day",
                  "'color' must have no missing value", "--missing impute"):  # fmt: skip
        assert words in line
    line = refused(1, command, dirty, "--target", "color")
    assert "(1) column 'color' must have no missing value" in line
    assert "Targets are never imputed" in line
    line = refused(2, command, dirty, "--target", "visits", "--drop", "idd")
    assert "drop: 'idd' is no column of it. Did you mean 'id'?" in line
    assert "is the target" in refused(2, command, dirty, "--target", "visits", "--drop", "visits")
    uneven = tmp_path / "uneven.csv"
    uneven.write_text("a,b,y\n1,2,3\n1,2\n1,2,3,4\n1,2,3\n")
    line = refused(1, command, uneven, "--target", "y")
    assert "these (fields) have not: 3 (2), 4 (4)" in line


def test_fit_table_reads_gaps_dates_and_counts(dirty, tmp_path):
    flags = ("--drop", "id", "--drop", "color", "--missing", "impute", "--date-parts",
             "--likelihood", "negative-binomial", "--epochs", 60, "--hidden", 8, "--no-figures",
             "--report", tmp_path / "r", "--out", tmp_path / "m")  # fmt: skip
    result = as_json("fit-table", dirty, "--target", "visits", *flags)
    assert result["task"] == "regression"
    assert set(result["importance"]) == {"age", "size", "day"}
    assert max(result["importance"], key=result["importance"].get) == "size"
    config = runs.load(tmp_path / "r", device="cpu").config
    assert config.data.drop == ("id", "color")
    assert config.data.date_parts
    assert config.net.likelihood == "negative-binomial"
    ok("predict", tmp_path / "m", dirty, "--out", tmp_path / "p.csv", "--samples", 4)
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["lower_90"]) == int(float(row["lower_90"])) >= 0 for row in rows)
    assert as_json("evaluate", tmp_path / "r")["nll"] == pytest.approx(result["metrics"]["nll"])


def test_select_reads_gaps_and_dates(dirty, tmp_path):
    result = as_json("select", dirty, "--target", "visits", "--task", "regression", "--drop", "id",
                     "--missing", "impute", "--date-parts", "--bootstrap", 0, "--no-figures",
                     "--report", tmp_path / "s")  # fmt: skip
    assert [row["name"] for row in result["inputs"]] == ["age", "size", "day", "color"]
    assert result["kept"] == ["size"]


def test_classes_may_count_evenly(house, tmp_path):
    flags = ("--epochs", 4, "--hidden", 4, "--no-figures", "--report", tmp_path / "r", "--out",
             tmp_path / "m")  # fmt: skip
    as_json("fit-table", house, "--target", "color", "--class-weight", "balanced", *flags)
    line = refused(2, "fit-table", house, "--target", "price", "--class-weight", "balanced")
    assert "--class-weight is for a classification, but 'price' is read as a regression" in line
    line = refused(2, "fit-table", house, "--target", "color", "--likelihood", "student-t")
    assert "--likelihood is for a regression" in line


def test_predict_doubts_a_level_that_training_never_saw(tmp_path):
    source = np.random.default_rng(0)
    level = source.integers(8, size=160)
    rows = [(f"level {k}", f"{3 * k + source.normal():.3f}") for k in level]
    path = write(tmp_path / "t.csv", "c,y", rows)
    new = write(tmp_path / "new.csv", "c", [("level 2",), ("another",)])
    ok("fit-table", path, "--target", "y", "--epochs", 60, "--hidden", 16, "--no-figures",
       "--report", tmp_path / "r", "--out", tmp_path / "m")  # fmt: skip
    for samples in (0, 8):
        out = tmp_path / f"{samples}.csv"
        with pytest.warns(UserWarning, match="'c' has values that training never saw in 1 row"):
            ok("predict", tmp_path / "m", new, "--out", out, "--samples", samples)
        with out.open() as file:
            known, other = list(csv.DictReader(file))
        # the means of the levels have a standard deviation of 6.9
        assert float(known["epistemic"]) < 2
        assert 4 < float(other["epistemic"]) < 10
        assert float(other["lower_90"]) < 0 + 6 < 15 < float(other["upper_90"])
