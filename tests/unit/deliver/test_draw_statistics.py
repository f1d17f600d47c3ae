"""Draws keep their own BatchNorm statistics in bundles and in baked mixtures."""

import pytest
import torch
from torch import nn

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples
from bayesieve.deliver.bundle import read_bundle, save_bundle
from bayesieve.deliver.onnx import bake
from problems import normal32
from zoo import built

X = normal32(6, 3, seed=5)


def model_of():
    return built(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    )


@pytest.fixture
def posterior():
    network = Network.of(model_of(), Categorical())
    draws = normal32(4, network.layout.size, seed=1)
    statistics = {
        "1.running_mean": normal32(4, 4, seed=2),
        "1.running_var": normal32(4, 4, seed=3).exp(),
    }
    return Samples(network, draws, None, network.buffers(), statistics)


@pytest.mark.parametrize("n_samples", [4, 7])
def test_a_bundle_predicts_as_the_draws_did(tmp_path, posterior, n_samples):
    folder = save_bundle(model_of(), tmp_path / "b", posterior=posterior)
    again = read_bundle(folder).posterior
    actual, expected = (predict(q, X, n_samples=n_samples).probs for q in (again, posterior))
    assert torch.equal(actual, expected)


def test_statistics_of_another_shape_are_refused(tmp_path, posterior):
    wrong = {**posterior.draw_buffers, "1.running_mean": torch.zeros(4, 5)}
    broken = Samples(posterior.network, posterior.draws, None, posterior.buffers, wrong)
    with pytest.raises(ValueError, match="of the draws does not fit that of the mean"):
        save_bundle(model_of(), tmp_path / "b", posterior=broken)  # it reads what it wrote
    assert not (tmp_path / "b").exists()


def test_a_mixture_has_the_statistics_of_each_draw(posterior):
    probability = bake(posterior, 4, 0)(X)[0]
    torch.testing.assert_close(
        probability, predict(posterior, X, n_samples=4).probs, check_dtype=False
    )
