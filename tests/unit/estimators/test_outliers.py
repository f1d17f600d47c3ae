"""Inputs far out: they decide neither the scale of a column nor the noise, in every delivery."""

import numpy as np
import pytest
import torch

from bayesieve.deliver.bundle import load
from bayesieve.deliver.runtime import as_runtime
from bayesieve.estimators import SieveRegressor
from bayesieve.estimators.scale import Scale
from problems import simulated
from unit.deliver.test_c import COMPILER, run_c


def wild(n, seed, far=1e4):
    """Smooth targets of 4 columns; two rows have a value of `far` in columns that do not matter."""
    X, y = simulated(n, 6, lambda X: np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2], seed=seed)
    X[0, 4], X[1, 5] = far, -far
    return X, y


def test_the_scale_is_that_of_the_other_rows():
    X, _ = wild(500, 0)
    scale = Scale.of(X, cut=True)
    assert (scale.std < 1.5).all()  # 447 for two of them by the plain formula
    units = scale.apply(X)
    assert scale.limit == pytest.approx(500**0.5 / 2)
    assert units.abs().max() == pytest.approx(scale.limit)
    calm = Scale.of(X[2:], cut=True)
    np.testing.assert_array_equal(calm.std, Scale.of(X[2:]).std)
    assert calm.limit == np.inf


def test_a_column_of_few_exceptions_keeps_its_scale():
    X = np.zeros((1000, 1))
    X[:2] = 1.0
    scale = Scale.of(X, cut=True)
    assert scale.std[0] == pytest.approx(X.std())
    assert scale.apply(X).max() == scale.limit < 20


def test_weights_count_in_a_cut_scale():
    X, _ = wild(450, 0)
    twice = np.concatenate([X, X[50:]])
    weight = np.where(np.arange(450) < 50, 1.0, 2.0)
    few, many = Scale.of(X, weight, cut=True), Scale.of(twice, cut=True)
    np.testing.assert_allclose(few.mean[:4], many.mean[:4], atol=1e-12)
    np.testing.assert_allclose(few.std[:4], many.std[:4])


@pytest.fixture(scope="module")
def model():
    return SieveRegressor(hidden=(30,), epochs=60, kl=0.3, random_state=0).fit(*wild(1000, 0))


def test_noise_and_coverage_are_those_of_ordinary_rows(model):
    """Where two values decide the scale, the noise is 1.6 times the error and covers .98."""
    X, y = wild(1000, 0)
    noise = model.predict_uncertainty(X)[0].mean()
    error = np.sqrt(np.mean((model.predict(X) - y)[2:] ** 2))
    assert noise < 1.25 * error
    X, y = wild(1000, 1, far=0.0)
    low, high = model.predict_interval(X).T
    share = np.mean((low <= y) & (y <= high))
    # Of 400 held-out rows the share has a standard error of .015.
    assert model.coverage_[0.9] == pytest.approx(share, abs=0.05)


def test_the_delivered_module_ends_inputs_where_training_did(model, tmp_path):
    X, _ = wild(20, 2, far=1e7)
    scale, rows = model.x_scale_, torch.as_tensor(X, dtype=torch.float32)
    inside = model.sparse_.to_module()(scale.apply(X)).detach()
    raw = model.compact_(rows).detach()
    np.testing.assert_allclose(raw, model.y_scale_.undo(inside), atol=2e-3)
    torch.testing.assert_close(load(model.export(tmp_path / "bundle"))(rows), raw)
    assert model.export(tmp_path / "model.h").exists()


def test_every_delivery_agrees_on_an_input_far_out(model, tmp_path):
    """ONNX, C and runtime, on rows beyond the limit and on ordinary ones."""
    runtime = pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    X, _ = wild(20, 2, far=1e5)
    rows = torch.as_tensor(X, dtype=torch.float32)
    with torch.no_grad():
        expected = model.y_scale_.undo(model.sparse_.to_module()(model.x_scale_.apply(X)))
    found = {"runtime": as_runtime(model.compact_, rows)(rows)}
    path = model.export(tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    onnx = dict(zip(names, session.run(None, {"input": rows.numpy()}), strict=True))
    found["onnx"] = onnx["output"]
    if COMPILER is not None:
        more = "float known = model_familiarity(x); fwrite(&known, sizeof known, 1, stdout);"
        values = run_c(model.export(tmp_path / "model.h"), rows, more)
        found["c"], known = values[:, :1], values[:, 1]
        np.testing.assert_allclose(known, model.familiarity(X), atol=1e-3)
    for name, values in found.items():
        np.testing.assert_allclose(values, expected, atol=2e-3, err_msg=name)
    np.testing.assert_allclose(onnx["familiarity"], model.familiarity(X), atol=1e-4)
