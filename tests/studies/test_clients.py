"""Posteriors of clients joined: exact Bayes where it is known, and over Flower's interface."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.engines.flat_vi import FlatVI
from problems import normal
from studies import clients as joining
from studies.clients import join_clients

N = 4
NETWORK = Network.of(nn.Linear(N, 1, bias=False, dtype=torch.float64), Gaussian(noise_std=0.5))
PRIOR = Factorised(NETWORK, torch.zeros(N).double(), torch.full((N,), 0.7).double())


def exact(x, y):
    """The posterior of a linear model whose inputs are orthogonal: a product of normals."""
    precision = PRIOR.std**-2 + 4 * x.square().sum(0)
    return Factorised(NETWORK, 4 * (x.mT @ y) / precision, precision.rsqrt())


def clients():
    """Three clients' inputs and targets, of which no two inputs of an example overlap."""
    xs = [torch.eye(N).double() * scale for scale in (1.0, 0.5, 2.0)]
    return [(x, normal(N, seed=i)) for i, x in enumerate(xs)]


def test_the_product_of_clients_is_the_posterior_of_all_data():
    joined = join_clients(PRIOR, [exact(x, y) for x, y in clients()], [N] * 3)
    x, y = (torch.cat(parts) for parts in zip(*clients(), strict=True))
    torch.testing.assert_close(joined.mean, exact(x, y).mean)
    torch.testing.assert_close(joined.std, exact(x, y).std)


def test_rounds_that_begin_where_the_last_one_ended_count_everything_once():
    first, second, third = (exact(*client) for client in clients())
    begun = join_clients(PRIOR, [first, second], [N, N])
    x, y = (torch.cat(parts) for parts in zip(*clients(), strict=True))
    # What the third client would have learned, had it begun with the first two's posterior.
    precision = begun.std**-2 + third.std**-2 - PRIOR.std**-2
    linear = begun.mean * begun.std**-2 + third.mean * third.std**-2
    later = Factorised(NETWORK, linear / precision, precision.rsqrt())
    torch.testing.assert_close(join_clients(begun, [later], [N]).mean, exact(x, y).mean)


def test_a_client_that_learned_nothing_changes_no_product():
    known = exact(*clients()[0])
    vague = Factorised(NETWORK, PRIOR.mean + 3, 2 * PRIOR.std)
    joined = join_clients(PRIOR, [known, vague], [N, 1000])
    torch.testing.assert_close(joined.mean, known.mean)
    assert (joined.std <= PRIOR.std).all()


def test_the_average_of_equal_clients_is_one_of_them_and_weighs_examples():
    one, other = (exact(*client) for client in clients()[:2])
    same = join_clients(PRIOR, [one, one], [3, 5], "average")
    torch.testing.assert_close((same.mean, same.std), (one.mean, one.std))
    joined = join_clients(PRIOR, [one, other], [30, 10], "average")
    torch.testing.assert_close(joined.std**-2, 0.75 * one.std**-2 + 0.25 * other.std**-2)


def test_points_and_statistics_are_means_by_examples():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    network = Network.of(module, Gaussian())
    start = Factorised(network, torch.zeros(10), torch.ones(10), buffers=network.buffers())
    start.std[network.layout.n_bayesian :] = 0
    low, high = (
        Factorised(network, start.mean + m, start.std / 2, buffers=dict(start.buffers))
        for m in (0.0, 4.0)
    )
    high.buffers["1.running_mean"] = start.buffers["1.running_mean"] + 4
    joined = join_clients(start, [low, high], [3, 1], "average")
    assert joined.mean[-1].item() == joined.buffers["1.running_mean"][0].item() == 1.0


def test_wrong_calls_are_named():
    with pytest.raises(ValueError, match="got 1 clients and 2 numbers"):
        join_clients(PRIOR, [PRIOR], [1, 2])
    with pytest.raises(ValueError, match="rule must be"):
        join_clients(PRIOR, [PRIOR], [1], "sum")
    with pytest.raises(ValueError, match="4 numbers each"):
        joining.from_arrays(PRIOR, [torch.zeros(3).numpy(), torch.zeros(4).numpy()])


def test_flower_carries_posteriors():
    """One round of two clients through the classes that Flower calls."""
    pytest.importorskip("flwr", reason="needs Flower: pip install flwr")
    from flwr.common import Code, FitRes, Status, parameters_to_ndarrays
    from flwr.common import ndarrays_to_parameters as packed

    engine, results, learned = FlatVI(prior=Normal(0.7)), [], []
    strategy = joining.flower_strategy(PRIOR, "product")
    sent = parameters_to_ndarrays(strategy.initialize_parameters(None))
    for x, y in clients()[:2]:
        model = nn.Linear(N, 1, bias=False, dtype=torch.float64)
        problem = Problem(model, Gaussian(noise_std=0.5), (x, y))
        client = joining.flower_client(problem, engine, PRIOR, epochs=1, batch_size=N)
        arrays, n, _ = client.fit(sent, {"round": 1})
        learned.append(joining.from_arrays(PRIOR, arrays))
        results.append((None, FitRes(Status(Code.OK, ""), packed(arrays), n, {})))
    parameters, _ = strategy.aggregate_fit(1, results, [])
    mean, std = parameters_to_ndarrays(parameters)
    joined = join_clients(PRIOR, learned, [N, N])
    torch.testing.assert_close(torch.as_tensor(mean), joined.mean)
    torch.testing.assert_close(torch.as_tensor(std), joined.std)
