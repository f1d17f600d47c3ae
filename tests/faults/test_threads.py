"""Four threads on one model: every answer has the bits of the answer that one thread gets.

The long form makes five times as many calls.
"""

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import numpy as np
import pytest
import torch
from torch import nn

import bayesieve as bs
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.posterior import Samples, SparseModel
from bayesieve.deliver.bundle import read_bundle, save_bundle
from bayesieve.deliver.runtime import as_runtime
from bayesieve.deliver.serving import predict_bundle
from bayesieve.sieve.compact import compact
from faults.rows import Tally, cases
from problems import posterior_around, seeded
from zoo import Calling, built, chain

N_THREADS = 4
N_CALLS = cases(60, 500)
N_FEATURES = 4


@pytest.fixture(autouse=True)
def _many_switches():
    """Let threads switch after 10 microseconds, not after 5,000."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def inputs():
    return torch.randn(N_THREADS, 6, N_FEATURES, generator=seeded(1)).unbind()


def assert_same_in_threads(call, parts, n_calls=N_CALLS, beside=()):
    """Call each part in its thread again and again, while other functions run beside."""
    parts = list(parts)
    expected = [np.asarray(call(part)) for part in parts]
    start = Barrier(len(parts) + len(beside))

    def wrong(i):
        start.wait()
        answers = (np.asarray(call(parts[i])) for _ in range(n_calls))
        return sum(not np.array_equal(answer, expected[i]) for answer in answers)

    def run(function):
        start.wait()
        return function()

    with ThreadPoolExecutor(len(parts) + len(beside)) as pool:
        others = [pool.submit(run, function) for function in beside]
        counts = list(pool.map(wrong, range(len(parts))))
        results = [other.result() for other in others]
    Tally.now.injected(n_calls * len(parts))
    assert counts == [0] * len(parts)
    return results


def small_net():
    return chain(N_FEATURES, 8, 3, act=nn.ReLU)


def batch_norm_net():
    norm = partial(chain, N_FEATURES, 8, 3, norm=nn.BatchNorm1d)
    return norm(act=lambda: nn.Sequential(nn.Dropout(0.5), nn.ReLU()))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 2, batch_first=True)
        self.last = nn.Linear(N_FEATURES, 3)

    def forward(self, x):
        words = x.reshape(len(x), -1, 2)
        return self.last(self.attention(words, words, words)[0].flatten(1))


def tied():
    layer, last = nn.Linear(N_FEATURES, N_FEATURES), nn.Linear(N_FEATURES, 3)
    function = lambda s, x: s.last(s.again(torch.tanh(s.first(x))))  # noqa: E731
    return Calling(function, first=layer, again=layer, last=last)


@pytest.mark.parametrize("make", [small_net, batch_norm_net, Attention, tied])
def test_sampled_predictions_of_a_posterior(make):
    posterior = posterior_around(built(make), Categorical(), 0.1)
    assert_same_in_threads(lambda x: bs.predict(posterior, x, n_samples=8).probs, inputs())
    assert torch.backends.mha.get_fastpath_enabled()
    assert all(p.is_meta for p in posterior.network.skeleton.parameters())


def test_draws_with_statistics_of_their_own():
    net = built(batch_norm_net)
    posterior = posterior_around(net, Categorical(), 0.1)
    draws = posterior.draw(5, seeded())
    means = torch.randn(5, 8, generator=seeded(2))
    samples = Samples(
        posterior.network, draws, buffers=posterior.buffers, draw_buffers={"1.running_mean": means}
    )
    assert_same_in_threads(lambda x: bs.predict(samples, x, n_samples=5).probs, inputs())


def test_predictions_of_a_sparse_model():
    posterior = posterior_around(built(small_net), Gaussian(), 0.1)
    keep = torch.rand(posterior.layout.size, generator=seeded()) < 0.5
    sparse = SparseModel(posterior.masked(keep), keep)
    assert_same_in_threads(lambda x: bs.predict(sparse, x, n_samples=8).mean, inputs())


@pytest.fixture(scope="module")
def fitted():
    x = np.random.default_rng(0).normal(size=(40, N_FEATURES))
    options = {"hidden": (4,), "epochs": 1, "folds": 0, "n_samples": 4, "random_state": 0}
    regressor = bs.SieveRegressor(**options).fit(x, x[:, 0])
    return {"regressor": regressor, "classifier": bs.SieveClassifier(**options).fit(x, x[:, 0] > 0)}


@pytest.mark.parametrize(
    ("name", "method"), [("regressor", "predict"), ("classifier", "predict_proba")]
)
def test_predictions_of_an_estimator(fitted, name, method):
    rows = [x.double().numpy() for x in inputs()]
    assert_same_in_threads(getattr(fitted[name], method), rows)


@pytest.mark.parametrize("n_samples", [0, 4])
def test_predictions_of_a_loaded_bundle(tmp_path, n_samples):
    posterior = posterior_around(built(small_net), Categorical(), 0.1)
    keep = torch.ones(posterior.layout.size, dtype=torch.bool)
    module = compact(posterior.to_module(), torch.zeros(1, N_FEATURES))
    sparse = SparseModel(posterior, keep)
    save_bundle(module, tmp_path / "bundle", posterior=posterior, sparse=sparse)
    bundle = read_bundle(tmp_path / "bundle")

    def call(x):
        return predict_bundle(bundle, x, n_samples=n_samples).probs

    assert_same_in_threads(call, inputs())
    assert_same_in_threads(lambda x: bundle.module(x).detach(), inputs())


def test_the_runtime():
    module = posterior_around(built(small_net), Categorical(), 0.1).to_module()
    runtime = as_runtime(module, torch.cat(inputs()))
    assert_same_in_threads(runtime, inputs())


def test_a_fit_and_a_trace_beside_predictions():
    """A fit, compaction and predictions, all of one module with BatchNorm and dropout."""
    net = built(batch_norm_net)
    posterior = posterior_around(net, Categorical(), 0.1)
    x = torch.randn(40, N_FEATURES, generator=seeded())
    problem = bs.Problem(net, Categorical(), (x, (x[:, 0] > 0).long()))

    def fit(seed):
        return bs.fit(problem, bs.MAP(), epochs=3, batch_size=10, seed=seed).posterior.mean

    def trace():
        return [len(list(compact(posterior.to_module(), x).graph.nodes)) for _ in range(5)]

    expected = [fit(0), fit(1), trace()]
    state = torch.get_rng_state()
    beside = [lambda: fit(0), lambda: fit(1), trace]
    first, second, nodes = assert_same_in_threads(
        lambda x: bs.predict(posterior, x, n_samples=2).probs, inputs()[:2], N_CALLS // 2, beside
    )
    assert torch.equal(first, expected[0])
    assert torch.equal(second, expected[1])
    assert nodes == expected[2]
    assert torch.equal(torch.get_rng_state(), state)
    assert "wrapper" not in nn.Module.__call__.__qualname__


def test_copies_made_for_threads_are_not_stored():
    posterior = posterior_around(built(small_net), Categorical(), 0.1)
    x = inputs()[0]
    before = len(pickle.dumps(posterior.network))
    expected = bs.predict(posterior, x, n_samples=4).probs
    assert len(pickle.dumps(posterior.network)) < before + 500
    again = pickle.loads(pickle.dumps(posterior))
    assert torch.equal(bs.predict(again, x, n_samples=4).probs, expected)
