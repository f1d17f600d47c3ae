"""Statistics of normalisation layers: per draw, as vectors and back, recomputed for a mean."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network, call_with, materialise, tied_names
from bayesieve.core.posterior import Samples, SparseModel
from bayesieve.core.storage import load_posterior, save
from bayesieve.core.workspace import flat_statistics, named_statistics, statistics_names
from bayesieve.sieve.prune import reestimate_batchnorm
from problems import normal32, seeded
from zoo import built

NAMES = ("1.running_mean", "1.running_var")


def network_of():
    layers = built(
        lambda: (nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    )
    return Network.of(nn.Sequential(*layers), Categorical())


def samples(n=5):
    network = network_of()
    draws = normal32(n, network.layout.size, seed=1)
    statistics = {NAMES[0]: normal32(n, 4, seed=2), NAMES[1]: normal32(n, 4, seed=3).exp()}
    shared = network.buffers() | {name: value.mean(0) for name, value in statistics.items()}
    return Samples(network, draws, None, shared, statistics)


X = normal32(40, 3, seed=4)


def by_hand(posterior, x):
    """Log-probabilities of every draw by a separate module, (n, N, classes)."""
    rows = []
    for i, w in enumerate(posterior.draws):
        statistics = {name: value[i] for name, value in posterior.draw_buffers.items()}
        module = materialise(posterior.network, w, {**posterior.buffers, **statistics})
        rows.append(module(x).log_softmax(-1))
    return torch.stack(rows).detach()


def test_names_are_those_of_running_statistics_alone():
    assert statistics_names(network_of()) == NAMES
    plain = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    assert statistics_names(Network.of(plain, Categorical())) == ()
    untracked = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False))
    assert statistics_names(Network.of(untracked, Categorical())) == ()


def test_vectors_and_buffers_are_the_same_numbers():
    statistics = samples().draw_buffers
    flat = flat_statistics(NAMES, statistics)
    assert flat.shape == (5, 8)
    back = named_statistics(NAMES, flat, {name: value[0] for name, value in statistics.items()})
    assert all(torch.equal(back[name], statistics[name]) for name in NAMES)


def test_each_draw_predicts_with_its_statistics():
    posterior = samples()
    expected = by_hand(posterior, X)
    predicted = predict(posterior, X, n_samples=5).sample_log_probs
    torch.testing.assert_close(predicted, expected)
    shared = replace(posterior, draw_buffers={})
    assert not torch.allclose(predict(shared, X, n_samples=5).sample_log_probs, expected, atol=0.1)


def test_resampled_draws_take_their_statistics_along():
    posterior = samples()
    chosen = posterior.choose(9, seeded(0))
    which = (chosen.draws[:, None] == posterior.draws).all(-1).int().argmax(1)
    assert len(set(which.tolist())) > 2
    assert torch.equal(chosen.draw_buffers[NAMES[0]], posterior.draw_buffers[NAMES[0]][which])
    assert torch.equal(posterior.draw(9, seeded(0)), chosen.draws)
    predicted = predict(posterior, X, n_samples=9, seed=0).sample_log_probs
    torch.testing.assert_close(predicted, by_hand(posterior, X)[which])


def test_draws_evaluated_at_once_equal_draws_evaluated_in_turn():
    posterior = samples()
    network, statistics = posterior.network, dict(posterior.draw_buffers)
    shared = {n: v for n, v in posterior.buffers.items() if n not in statistics}
    module = network.skeleton.eval()
    names = tied_names(module)

    def one(parameters, statistics):
        return call_with(module, names, parameters, {**shared, **statistics}, X)

    outputs = torch.vmap(one)(network.split(posterior.draws)[0], statistics)
    expected = network.outputs(posterior.draws, X, posterior.buffers, statistics)
    torch.testing.assert_close(outputs, expected)


def test_files_hold_the_statistics_of_every_draw(tmp_path):
    posterior = samples()
    back = load_posterior(save(posterior, tmp_path / "q"), posterior.network)
    assert back.draw_buffers.keys() == posterior.draw_buffers.keys()
    for name, value in posterior.draw_buffers.items():
        assert torch.equal(back.draw_buffers[name], value)


def test_reestimated_statistics_are_those_of_the_mean_and_of_every_draw():
    posterior = samples()
    sparse = SparseModel(posterior, torch.ones(posterior.layout.size, dtype=torch.bool))
    renewed = reestimate_batchnorm(sparse, X, batch_size=20).posterior
    rows = torch.cat([posterior.mean[None], posterior.draws])
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    for i, w in enumerate(rows):
        hidden = materialise(posterior.network, w, posterior.buffers)[0](X[order])
        mean = torch.stack([part.mean(0) for part in hidden.split(20)]).mean(0)
        variance = torch.stack([part.var(0) for part in hidden.split(20)]).mean(0)
        drawn, shared = renewed.draw_buffers, renewed.buffers
        moments = [drawn[name][i - 1] if i else shared[name] for name in NAMES]
        torch.testing.assert_close(moments[0], mean)
        torch.testing.assert_close(moments[1], variance)


def test_buffers_of_another_number_of_draws_are_refused():
    with pytest.raises(ValueError, match="one entry for each of 5 draws"):
        replace(samples(), draw_buffers={NAMES[0]: torch.zeros(4, 4)})
