"""The command line from a pruned run to bundles, exports, checks and predictions."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from bayesieve import runs as bs_runs
from bayesieve.assess.predict import predict
from bayesieve.data import load_data
from bayesieve.deliver.bundle import load, read_bundle
from commands import as_json, ok, refused, rows_of

TINY = ["--net", "mlp:16", "--device", "cpu", "--no-figures"]


def numbers(rows, name):
    return torch.tensor([float(row[name]) for row in rows], dtype=torch.float64)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A dense and a pruned classifier, and its bundles without and with posterior."""
    root = tmp_path_factory.mktemp("runs")
    ok("train", "--data", "digits", *TINY, "--epochs", "4", "--lr", "1e-2", "--out", root / "a")
    ok("prune", root / "a", "--zeros", "0.8", "--no-figures", "--out", root / "b")
    ok("compact", root / "b", "--out", root / "c")
    ok("compact", root / "b", "--posterior", "--out", root / "q")
    return root


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A regression on a CSV file with a text column, pruned and bundled with its posterior."""
    root = tmp_path_factory.mktemp("table")
    source = np.random.default_rng(0)
    x = source.normal(100, 20, (120, 3))
    color = source.choice(["red", "blue"], 120)
    y = 5000 + 30 * x[:, 0] + 400 * (color == "red") + source.normal(0, 10, 120)
    lines = ["a,b,c,color,price"]
    lines += [f"{r[0]},{r[1]},{r[2]},{c},{t}" for r, c, t in zip(x, color, y, strict=True)]
    (root / "data.csv").write_text("\n".join(lines))
    ok("train", "--data", f"csv:{root / 'data.csv'}", "--target", "price", *TINY, "--epochs",
       "30", "--batch-size", "32", "--lr", "1e-2", "--out", root / "a")  # fmt: skip
    ok("prune", root / "a", "--zeros", "0.5", "--no-figures", "--out", root / "b")
    ok("compact", root / "b", "--posterior", "--out", root / "c")
    return root


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Test images of the digits as raw pixels: NPZ and folder."""
    root = tmp_path_factory.mktemp("images")
    x = load_data("digits").test.x[:12]
    pixels = (x[:, 0] * 16).round().to(torch.uint8).numpy()
    np.savez(root / "raw.npz", x=pixels)
    np.savez(root / "ready.npz", x=x.numpy())
    (root / "png" / "some").mkdir(parents=True)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(root / "png" / "some" / f"{i:02d}.png")
    (root / "png" / "notes.txt").write_text("not an image")
    return root


@pytest.mark.parametrize("command", ["compact", "verify", "export", "predict"])
def test_help_has_an_example_and_json(command):
    text = ok(command, "--help").stdout
    assert f"bayesieve {command}" in text
    assert "--json" in text


# --- compact


def test_compact_writes_a_bundle_that_loads(runs):
    run = bs_runs.load(runs / "b", device="cpu")
    x = run.data.test.x
    small, masked = load(runs / "c"), run.model.to_module()
    with torch.no_grad():
        torch.testing.assert_close(small(x), masked(x), rtol=0, atol=1e-5)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in masked.parameters())
    assert torch.equal(read_bundle(runs / "c").keep, run.model.keep)
    files = {path.name for path in (runs / "c").iterdir()}
    assert files == {"README.md", "architecture.py", "config.json", "familiarity.safetensors",
                     "masks.safetensors", "metrics.json", "model.safetensors"}  # fmt: skip


def test_compact_reports_every_stage(runs, tmp_path):
    result = as_json("compact", runs / "b", "--out", tmp_path / "new" / "c")
    assert result["dense"]["parameters"] == result["masked"]["parameters"] == 1210
    assert result["compacted"]["parameters"] < 1210
    assert result["compacted"]["error"] == result["masked"]["error"]
    assert result["changed_predictions"] == 0
    assert result["n_test"] == 364
    assert result["compaction"]["parameters"] == [1210, result["compacted"]["parameters"]]
    assert result["bundle_bytes"] == sum(result["files"].values())
    saved = json.loads((tmp_path / "new" / "c" / "metrics.json").read_text())
    read = result["compaction"]["input_features"]
    assert saved["compaction"].pop("input_features") == (read and len(read))
    del result["compaction"]["input_features"]
    assert saved == {key: result[key] for key in saved}
    config = read_bundle(tmp_path / "new" / "c").config
    assert config["thresholds"]["zeros"] == 0.8
    assert config["preprocessing"] == load_data("digits").preprocessing
    assert str(tmp_path) not in (tmp_path / "new" / "c" / "config.json").read_text()
    assert str(runs) not in (tmp_path / "new" / "c" / "README.md").read_text()


def test_compact_prints_tables(runs, tmp_path):
    text = ok("compact", runs / "b", "--out", tmp_path / "c").stdout
    for word in ("dense", "masked", "compacted", "fc1", "bundle:"):
        assert word in text


def test_compact_refuses(runs, tmp_path):
    assert "is not pruned" in refused(2, "compact", runs / "a", "--out", tmp_path / "c")
    assert "must differ" in refused(2, "compact", runs / "b", "--out", runs / "b")
    assert "Use --force" in refused(2, "compact", runs / "b", "--out", runs / "c")
    assert "something else" in refused(2, "compact", runs / "b", "--out", runs / "a", "--force")
    assert (runs / "a" / "posterior.safetensors").is_file()
    assert "not a run folder" in refused(2, "compact", tmp_path, "--out", tmp_path / "c")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(2, "compact", runs / "b", "--out", tmp_path / "file")


def test_force_replaces_a_bundle(runs, tmp_path):
    ok("compact", runs / "b", "--out", tmp_path / "c")
    ok("compact", runs / "b", "--out", tmp_path / "c", "--posterior", "--force")
    assert (tmp_path / "c" / "posterior.safetensors").is_file()


# --- verify


def test_verify_against_run_and_bundle(runs):
    result = as_json("verify", runs / "q", "--against", runs / "b")
    assert result["ok"]
    assert result["posterior"] == "Factorised"
    assert result["changed_predictions"] == 0
    assert result["max_difference"] < 1e-5
    assert result["n_inputs"] == 364
    assert as_json("verify", runs / "c", "--against", runs / "q")["max_difference"] == 0
    text = ok("verify", runs / "c").stdout
    assert "intact" in text
    assert "difference to recorded outputs" in text  # not a count of them


def test_verify_finds_changes(runs, tmp_path):
    for name in ("flip", "source", "missing"):
        ok("export", runs / "c", "--to", "bundle", "--out", tmp_path / name)
    model = tmp_path / "flip" / "model.safetensors"
    tensors = load_file(model)
    tensors["fc1.bias"][0] += 1e-6
    save_file(tensors, model)
    assert "is not the file that config.json" in refused(1, "verify", tmp_path / "flip")
    (tmp_path / "source" / "architecture.py").write_text("import os")
    assert "architecture.py" in refused(1, "verify", tmp_path / "source")
    (tmp_path / "missing" / "model.safetensors").unlink()
    assert "missing" in refused(1, "verify", tmp_path / "missing")


def test_verify_finds_another_model(runs, tmp_path):
    ok("prune", runs / "a", "--zeros", "0.5", "--no-figures", "--out", tmp_path / "other")
    assert "differ" in refused(1, "verify", runs / "c", "--against", tmp_path / "other")
    assert "give a bundle" in refused(2, "verify", runs / "b")
    assert "no folder" in refused(2, "verify", tmp_path / "nowhere")


# --- export


def test_export_onnx_and_predict_give_the_same_classes(runs, images, tmp_path):
    pytest.importorskip("onnxruntime")
    result = as_json("export", runs / "c", "--to", "onnx", "--out", tmp_path / "m.onnx")
    assert result["bytes"] == (tmp_path / "m.onnx").stat().st_size
    for model, out in ((tmp_path / "m.onnx", "a.csv"), (runs / "c", "b.csv")):
        ok("predict", model, images / "raw.npz", "--out", tmp_path / out)
    a, b = rows_of(tmp_path / "a.csv"), rows_of(tmp_path / "b.csv")
    assert [row["class"] for row in a] == [row["class"] for row in b]
    torch.testing.assert_close(numbers(a, "entropy"), numbers(b, "entropy"), rtol=0, atol=1e-4)


def test_an_onnx_file_of_images_takes_raw_pixels_unless_asked(runs, images, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    inputs = {}
    for name, options in (("raw", []), ("prepared", ["--prepared"])):
        path = tmp_path / f"{name}.onnx"
        ok("export", runs / "c", "--to", "onnx", *options, "--out", path)
        (inputs[name],) = runtime.InferenceSession(str(path)).get_inputs()
        ok("predict", path, images / "raw.npz", "--out", tmp_path / f"{name}.csv")
    assert (inputs["raw"].name, inputs["raw"].type) == ("pixels", "tensor(uint8)")
    assert (inputs["prepared"].name, inputs["prepared"].type) == ("input", "tensor(float)")
    a, b = (rows_of(tmp_path / f"{name}.csv") for name in inputs)
    torch.testing.assert_close(numbers(a, "entropy"), numbers(b, "entropy"), rtol=0, atol=1e-5)
    out = tmp_path / "no.csv"
    assert "prepares them itself" in refused(
        2, "predict", tmp_path / "raw.onnx", images / "raw.npz", "--prepared", "--out", out
    )
    np.savez(tmp_path / "floats.npz", x=np.zeros((2, 1, 8, 8)))
    assert "must be raw pixels" in refused(
        1, "predict", tmp_path / "raw.onnx", tmp_path / "floats.npz", "--out", out
    )
    assert "--to onnx" in refused(2, "export", runs / "c", "--to", "c", "--prepared", "--out", out)


def test_exported_draws_are_those_of_the_posterior(runs, images, tmp_path):
    pytest.importorskip("onnxruntime")
    ok("export", runs / "q", "--to", "onnx", "--samples", "3", "--seed", "5", "--out",
       tmp_path / "m.onnx")  # fmt: skip
    ok("predict", tmp_path / "m.onnx", images / "raw.npz", "--out", tmp_path / "a.csv")
    ok("predict", runs / "q", images / "raw.npz", "--samples", "3", "--seed", "5", "--out",
       tmp_path / "b.csv")  # fmt: skip
    a, b = rows_of(tmp_path / "a.csv"), rows_of(tmp_path / "b.csv")
    assert [row["class"] for row in a] == [row["class"] for row in b]
    for name in ("probability", "entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(numbers(a, name), numbers(b, name), rtol=0, atol=1e-4)
    assert numbers(b, "epistemic").max() > 0
    assert "baked" in refused(2, "predict", tmp_path / "m.onnx", images / "raw.npz", "--samples",
                              "3", "--out", tmp_path / "c.csv")  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [("pt2", [], "m.pt2"), ("c", [], "m.h"), ("c", ["--int8"], "m.h"), ("bundle", [], "m")],
)
def test_export_in_every_form(runs, tmp_path, kind, options, name):
    result = as_json("export", runs / "c", "--to", kind, *options, "--out", tmp_path / name)
    assert result["bytes"] > 0
    assert not result["masked"]
    if kind == "bundle":
        x = load_data("digits").test.x
        torch.testing.assert_close(load(tmp_path / name)(x), load(runs / "c")(x), rtol=0, atol=0)
        for file in (runs / "c").iterdir():
            assert (tmp_path / name / file.name).read_bytes() == file.read_bytes()


def test_a_bundle_with_posterior_exports_as_one(runs, tmp_path):
    ok("export", runs / "q", "--to", "bundle", "--out", tmp_path / "m")
    a, b = read_bundle(runs / "q"), read_bundle(tmp_path / "m")
    assert torch.equal(a.posterior.mean, b.posterior.mean)
    assert torch.equal(a.keep, b.keep)


def test_masked_models_need_a_flag(runs, tmp_path):
    for run in ("a", "b"):
        message = refused(2, "export", runs / run, "--to", "pt2", "--out", tmp_path / "m.pt2")
        assert "--masked-ok" in message
        assert "only masked" in message
    done = ok("export", runs / "b", "--to", "bundle", "--masked-ok", "--out", tmp_path / "m")
    assert "as large and as slow" in done.stderr
    x = load_data("digits").test.x
    reference = bs_runs.load(runs / "b", device="cpu").model.to_module()
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path / "m")(x), reference(x), rtol=0, atol=0)
    ok("export", runs / "a", "--to", "bundle", "--masked-ok", "--out", tmp_path / "dense")


def test_export_refuses(runs, tmp_path):
    out = tmp_path / "m.onnx"
    assert "Did you mean 'onnx'" in refused(2, "export", runs / "c", "--to", "onxx", "--out", out)
    assert "--to onnx" in refused(2, "export", runs / "c", "--to", "c", "--samples", "2",
                                  "--out", out)  # fmt: skip
    assert "--to c" in refused(2, "export", runs / "c", "--to", "pt2", "--int8", "--out", out)
    assert "needs a posterior" in refused(2, "export", runs / "c", "--to", "onnx", "--samples",
                                          "2", "--out", out)  # fmt: skip
    out.write_text("mine")
    assert "--force" in refused(2, "export", runs / "c", "--to", "onnx", "--out", out)
    assert out.read_text() == "mine"
    assert "no config.json" in refused(2, "export", tmp_path, "--to", "c", "--out", tmp_path / "m")


# --- predict


def test_predictions_are_those_of_the_library(runs, images, tmp_path):
    out = tmp_path / "p.csv"
    result = as_json("predict", runs / "q", images / "ready.npz", "--samples", "8", "--out", out)
    assert result["n"] == 12
    assert not result["preprocessing_applied"]
    rows = rows_of(out)
    assert list(rows[0]) == ["row", "class", "probability", "entropy", "aleatoric", "epistemic",
                             "familiarity"]  # fmt: skip
    assert [row["row"] for row in rows] == [str(i) for i in range(1, 13)]
    run = bs_runs.load(runs / "b", device="cpu")
    found = predict(run.model, run.data.test.x[:12], n_samples=8)
    assert [int(row["class"]) for row in rows] == found.label.tolist()
    for name in ("entropy", "aleatoric", "epistemic"):
        expected = getattr(found, name).double()
        torch.testing.assert_close(numbers(rows, name), expected, rtol=1e-5, atol=1e-7)


def test_raw_pixels_and_images_are_prepared(runs, images, tmp_path):
    tables = {}
    for name in ("raw.npz", "ready.npz", "png"):
        result = as_json("predict", runs / "c", images / name, "--out", tmp_path / f"{name}.csv")
        assert result["preprocessing_applied"] == (name != "ready.npz")
        tables[name] = rows_of(tmp_path / f"{name}.csv")
    assert [row["file"] for row in tables["png"]] == [f"some/{i:02d}.png" for i in range(12)]
    for name in ("raw.npz", "png"):
        for column in ("class", "probability", "entropy"):
            assert [r[column] for r in tables[name]] == [r[column] for r in tables["ready.npz"]]
    assert float(tables["png"][0]["epistemic"]) == 0


def test_a_regression_is_predicted_in_its_own_unit(table, tmp_path):
    out = tmp_path / "p.csv"
    as_json("predict", table / "c", table / "data.csv", "--samples", "16", "--out", out)
    rows = rows_of(out)
    assert list(rows[0]) == ["row", "mean", "std", "aleatoric", "epistemic", "lower_90",
                             "upper_90", "familiarity"]  # fmt: skip
    truth = numbers(rows_of(table / "data.csv"), "price")
    assert 5000 < numbers(rows, "mean").mean() < 12_000
    error = (numbers(rows, "mean") - truth).square().mean().sqrt()
    assert error < 0.5 * truth.std()
    assert (numbers(rows, "std") > numbers(rows, "epistemic")).all()
    run = bs_runs.load(table / "b", device="cpu")
    found = predict(run.model, run.data.test.x, n_samples=16)
    mean = run.data.test.in_target_unit(found.mean[:, 0]).double().sort().values
    column = numbers(rows, "mean")
    nearest = (mean[:, None] - column[None, :]).abs().min(1).values
    assert nearest.max() < 0.05  # every test row is among those predicted


def test_a_regression_through_onnx(table, tmp_path):
    pytest.importorskip("onnxruntime")
    for options in ([], ["--samples", "4"]):
        ok("export", table / "c", "--to", "onnx", *options, "--force", "--out",
           tmp_path / "m.onnx")  # fmt: skip
        ok("predict", tmp_path / "m.onnx", table / "data.csv", "--force", "--out",
           tmp_path / "a.csv")  # fmt: skip
        ok("predict", table / "c", table / "data.csv", *options, "--force", "--out",
           tmp_path / "b.csv")  # fmt: skip
        a, b = rows_of(tmp_path / "a.csv"), rows_of(tmp_path / "b.csv")
        assert list(a[0]) == list(b[0])
        assert {"mean", "std", "lower_90", "upper_90"} < set(a[0])
        for name in list(a[0])[1:]:
            torch.testing.assert_close(numbers(a, name), numbers(b, name), rtol=1e-4, atol=1e-2)


def test_wrong_feature_counts_name_both_numbers(runs, table, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 7)))
    message = refused(2, "predict", runs / "c", tmp_path / "x.npz", "--out", tmp_path / "p.csv")
    assert "64 features" in message
    assert "have 7" in message
    message = refused(2, "predict", table / "c", tmp_path / "x.npz", "--out", tmp_path / "p.csv")
    assert "4 features" in message
    assert "have 7" in message
    assert not (tmp_path / "p.csv").exists()


def test_predict_refuses(runs, table, images, tmp_path):
    out = tmp_path / "p.csv"
    np.savez(tmp_path / "y.npz", y=np.zeros(2))
    assert "array x" in refused(1, "predict", runs / "c", tmp_path / "y.npz", "--out", out)
    np.savez(tmp_path / "nan.npz", x=np.full((2, 1, 8, 8), np.nan))
    assert "row 1" in refused(1, "predict", runs / "c", tmp_path / "nan.npz", "--out", out)
    np.savez(tmp_path / "text.npz", x=np.array([["a"]]))
    assert "must be numbers" in refused(
        1, "predict", runs / "c", tmp_path / "text.npz", "--out", out
    )
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,3")
    assert "'color'" in refused(1, "predict", table / "c", tmp_path / "t.csv", "--out", out)
    assert "does not take images" in refused(
        2, "predict", table / "c", images / "png", "--out", out
    )
    assert "takes images" in refused(2, "predict", runs / "c", tmp_path / "t.csv", "--out", out)
    assert "run folder" in refused(2, "predict", runs / "b", images / "raw.npz", "--out", out)
    assert "no file" in refused(2, "predict", runs / "c", tmp_path / "none.npz", "--out", out)
    assert "holds no posterior" in refused(2, "predict", runs / "c", images / "raw.npz",
                                           "--samples", "2", "--out", out)  # fmt: skip
    (tmp_path / "data.txt").write_text("1")
    assert ".npz, .csv or .parquet" in refused(
        2, "predict", runs / "c", tmp_path / "data.txt", "--out", out
    )
    assert not out.exists()
    out.write_text("mine")
    assert "--force" in refused(2, "predict", runs / "c", images / "raw.npz", "--out", out)


# --- hostile ONNX files


@pytest.fixture(scope="module")
def exported(runs, tmp_path_factory):
    """The compacted classifier as an ONNX file."""
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    ok("export", runs / "c", "--to", "onnx", "--out", path)
    return path


def onnx_with(tmp_path, change, exported):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "m.onnx"
    model = onnx.load(exported, load_external_data=False)
    change(onnx, model)
    path.write_bytes(model.SerializeToString())
    return path


def outside(location):
    def change(onnx, model):
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


def hidden(onnx, model):
    """External data in a constant inside a function, where checkers seldom look."""
    tensor = onnx.TensorProto(name="inner", data_type=1, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    node = onnx.helper.make_node("Constant", [], ["c"], value=tensor)
    model.functions.append(
        onnx.helper.make_function("own", "F", [], ["c"], [node], model.opset_import)
    )


@pytest.mark.parametrize(
    "change", [outside("../../secret"), outside("/etc/hostname"), outside("weights.bin"), hidden],
    ids=["parent", "absolute", "beside", "hidden"],
)  # fmt: skip
def test_external_data_are_refused(exported, images, tmp_path, change):
    path = onnx_with(tmp_path, change, exported)
    message = refused(1, "predict", path, images / "raw.npz", "--out", tmp_path / "p.csv")
    assert "External data are refused" in message
    assert "m.onnx" in message


def test_damaged_onnx_files_are_refused(exported, images, tmp_path):
    path = tmp_path / "m.onnx"
    for data in (b"", b"hello", b"\x80\x04pickle", b"\0" * 1000):
        path.write_bytes(data)
        message = refused(1, "predict", path, images / "raw.npz", "--out", tmp_path / "p.csv")
        assert "m.onnx is damaged" in message

    def deep(onnx, model):
        for entry in model.metadata_props:
            if entry.key == "classes":
                entry.value = "[" * 100_000

    path = onnx_with(tmp_path, deep, exported)
    message = refused(1, "predict", path, images / "raw.npz", "--out", tmp_path / "p.csv")
    assert "levels of nesting" in message


def test_a_missing_extra_is_named(runs, images, tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = refused(
        1, "predict", tmp_path / "m.onnx", images / "raw.npz", "--out", tmp_path / "p.csv"
    )
    assert "bayesieve[onnx]" in message
