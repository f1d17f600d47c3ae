"""Predictions and scores of a stream are those of the same examples in memory."""

import pytest
import torch
from torch import Generator, nn
from torch.utils.data import DataLoader, TensorDataset

from bayesieve.assess import predict as module
from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Categorical, Gaussian, Heteroscedastic
from bayesieve.core.problem import Problem
from bayesieve.data import streams as _streams  # noqa: F401 - reads loaders
from bayesieve.engines.laplace import laplace
from bayesieve.uncertainty.familiarity import Familiarity
from problems import posterior_around
from zoo import chain

X = torch.randn(50, 3, generator=Generator().manual_seed(0))


CASES = {
    "classes": (Categorical(), 3, torch.arange(50) % 3),
    "numbers": (Gaussian(), 1, X[:, 0]),
    "noise of each": (Heteroscedastic(), 2, X[:, 0]),
}


@pytest.mark.parametrize("n_samples", [0, 4, None])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_scores_of_a_stream_are_those_of_its_examples(monkeypatch, case, n_samples):
    monkeypatch.setattr(module, "_INPUTS_AT_ONCE", 16)
    likelihood, n_outputs, y = case
    posterior = posterior_around(chain(3, 4, n_outputs), likelihood, 0.1)
    loader = DataLoader(TensorDataset(X, y), batch_size=7, shuffle=True)  # scored in order
    asked = {"n_samples": n_samples, "seed": 1}
    in_memory, streamed = (evaluate(posterior, data, **asked) for data in ((X, y), loader))
    if n_samples is None:  # the first inputs of a stream decide
        in_memory = evaluate(posterior, (X, y), n_samples=streamed["draws"], seed=1)
    assert streamed.to_dict() == pytest.approx(in_memory.to_dict(), rel=1e-5)
    known = Familiarity.of(X)
    prediction = predict(posterior, loader, **asked, familiarity=known, abstain=0.5)
    assert prediction.familiarity.shape == prediction.abstained.shape == (50,)


def test_curvature_is_summed_over_a_stream():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    data = X, torch.arange(50) % 3
    found = [
        laplace(Problem(model, Categorical(), d), batch_size=8)
        for d in (data, TensorDataset(*data))
    ]
    torch.testing.assert_close(found[0].std, found[1].std)
