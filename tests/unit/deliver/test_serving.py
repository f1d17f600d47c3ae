"""A delivered regression states the same uncertainty as the posterior it was made from."""

import math
from statistics import NormalDist

import pytest
import torch
from scipy import stats

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Gaussian, Heteroscedastic, StudentT
from bayesieve.core.network import Network, materialise
from bayesieve.core.posterior import Factorised
from bayesieve.deliver.bundle import read_bundle, save_bundle
from bayesieve.deliver.onnx import export_onnx, read_onnx
from bayesieve.deliver.serving import bundle_columns, onnx_columns, predict_bundle
from problems import normal, normal32
from zoo import chain

X = normal32(7, 3, seed=1)
RECIPE = {"kind": "table", "columns": [], "target": {"mean": 10.0, "std": 4.0}}
CASES = {
    "gaussian": (Gaussian(0.3, learned=True), 1),
    "student-t": (StudentT(0.3, 5.0, learned=True), 1),
    "heteroscedastic": (Heteroscedastic(0.4, 0.05), 2),
}


def made(name):
    """A network and a posterior over it whose noise differs from where it started."""
    likelihood, n_outputs = CASES[name]
    model = chain(3, 5, n_outputs)
    network = Network.of(model, likelihood)
    mean = network.weights_of(model) + 0.3 * normal(network.layout.size, seed=2).float()
    posterior = Factorised(network, mean, torch.full_like(mean, 0.1))
    return materialise(network, mean, {}), posterior


@pytest.mark.parametrize("n_samples", [0, 5])
@pytest.mark.parametrize("name", CASES)
def test_a_bundle_predicts_as_its_posterior_does(name, n_samples, tmp_path):
    module, posterior = made(name)
    save_bundle(module, tmp_path / "b", posterior=posterior)
    actual = predict_bundle(read_bundle(tmp_path / "b"), X, n_samples=n_samples, seed=3)
    expected = predict(posterior, X, n_samples=n_samples, seed=3)
    torch.testing.assert_close(actual.mean, expected.mean)
    torch.testing.assert_close(actual.aleatoric_std, expected.aleatoric_std)
    torch.testing.assert_close(actual.epistemic_std, expected.epistemic_std)
    for bound, other in zip(actual.interval(0.8), expected.interval(0.8), strict=True):
        torch.testing.assert_close(bound, other)
    assert actual.mean.shape == (7, 1)


@pytest.mark.parametrize("name", CASES)
def test_columns_hold_90_percent_of_the_noise_in_the_unit_of_the_target(name, tmp_path):
    module, posterior = made(name)
    save_bundle(module, tmp_path / "b", posterior=posterior)
    columns = bundle_columns(predict_bundle(read_bundle(tmp_path / "b"), X), None, RECIPE)
    output = module(X).double().detach()
    log_noise = float(posterior.mean[-1])  # the learned number comes last
    if name == "gaussian":
        half = NormalDist().inv_cdf(0.95) * torch.tensor(math.exp(log_noise)).expand(7)
    elif name == "student-t":
        half = torch.tensor(stats.t.ppf(0.95, 5.0) * math.exp(log_noise)).expand(7)
    else:
        noise = (0.4**2 * (2 * output[:, 1]).exp() + 0.05**2).sqrt()
        half = NormalDist().inv_cdf(0.95) * noise
    expected = {
        "lower_90": 4 * (output[:, 0] - half) + 10,
        "upper_90": 4 * (output[:, 0] + half) + 10,
        "epistemic": torch.zeros(7),
    }
    for key, values in expected.items():
        assert columns[key] == pytest.approx(values.tolist(), rel=1e-5, abs=1e-6), key


@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [0, 3])
@pytest.mark.parametrize("name", CASES)
def test_an_onnx_file_gives_the_columns_of_its_bundle(name, n_samples, tmp_path):
    module, posterior = made(name)
    save_bundle(module, tmp_path / "b", posterior=posterior)
    export_onnx(module, tmp_path / "m.onnx", X, posterior=posterior, n_samples=n_samples,
                preprocessing=RECIPE)  # fmt: skip
    actual = onnx_columns(read_onnx(tmp_path / "m.onnx"), X)
    bundle = read_bundle(tmp_path / "b")
    expected = bundle_columns(predict_bundle(bundle, X, n_samples=n_samples), None, RECIPE)
    assert list(actual) == list(expected)
    for key, values in expected.items():
        assert actual[key] == pytest.approx(values, rel=1e-4, abs=1e-4), key


def test_the_card_says_what_the_noise_is(tmp_path):
    for name, words in (
        ("gaussian", "- noise: Gaussian with standard deviation 0."),
        ("student-t", "- noise: Student-t with scale 0."),
        ("heteroscedastic", "the standard deviation is sqrt(0.05² + 0.4² exp(2 s))"),
    ):
        module, posterior = made(name)
        save_bundle(module, tmp_path / name, posterior=posterior)
        card = (tmp_path / name / "README.md").read_text()
        assert "This folder holds a regression" in card
        assert words in card
