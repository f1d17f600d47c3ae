"""Sieving a trained network as far as held-out examples allow."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.problem import Problem
from bayesieve.errors import UnsupportedModelError
from bayesieve.sieve.evidence import prune_by_evidence, weight_evidence
from bayesieve.sieve.trained import ranked, sieve_trained
from problems import normal
from zoo import BY_NAME


def linear(weights, n=400, noise=1.0):
    """A linear regression at its true weights, and held-out examples; inputs of variance 1."""
    x = normal(2 * n, len(weights), seed=0).float()
    model = nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
        y = model(x)[:, 0] + noise * normal(2 * n, seed=1).float()
    problem = Problem(model, Gaussian(noise), (x[:n], y[:n]))
    return problem, (x[n:], y[n:])


def loss_of(model, held_out):
    x, y = held_out
    network, w = model.network, model.posterior.mean
    output = network.outputs(w[None], x, model.posterior.buffers)[0]
    return -network.likelihood.log_prob(output, y, network.numbers(w)).mean().item()


@pytest.mark.parametrize("curvature", ["unit", "diagonal"])
def test_what_removing_costs_is_half_the_squares_of_the_weights(curvature):
    """Independent inputs of variance 1 and noise 1: removing w costs w² / 2 nats per example."""
    weights = [0.02 * k for k in range(1, 21)]
    problem, held_out = linear(weights, n=5_000)
    found = sieve_trained(problem, held_out, max_loss=0.1, curvature=curvature)
    gone = sum(w * w for w, keep in zip(weights, found.model.keep, strict=True) if not keep)
    assert found.cost.lost == pytest.approx(gone / 2, rel=0.1)
    assert found.cost.lost <= 0.1
    n_gone = int((~found.model.keep).sum())
    assert not found.model.keep[:n_gone].any()  # the smallest ones
    assert sum(w * w for w in weights[: n_gone + 2]) / 2 > 0.1  # and about as many as may go


def test_the_curve_is_what_the_cut_networks_lose():
    problem, held_out = linear([0.1, 0.5, 1.0, -0.3, 0.05, 0.01])
    found = sieve_trained(problem, held_out, max_loss=0.05)
    dense = loss_of(ranked(problem).pruned(0.0), held_out)
    assert found.curve[0].lost == 0
    assert loss_of(found.model, held_out) - dense == pytest.approx(found.cost.lost, abs=1e-6)
    assert any(point.lost > 0.05 for point in found.curve)  # it went on until that was too much
    assert f"{found.cost.lost:+.4f} nats" in str(found)


def test_a_loss_of_0_still_removes_what_no_example_misses():
    problem, held_out = linear([1.0, 0.0, 2.0, 0.0])
    found = sieve_trained(problem, held_out, max_loss=0.0, curvature="diagonal")
    assert found.model.keep.tolist() == [True, False, True, False]


@pytest.mark.filterwarnings("ignore:prune_by_evidence")
def test_evidence_alone_would_ruin_what_this_does_not():
    """Thirty copies of one input share its effect: each is superfluous, all together are not."""
    x = normal(400, 1, seed=0).float().expand(-1, 30) + 0.05 * normal(400, 30, seed=2).float()
    model = nn.Linear(30, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1 / 30)
        y = model(x)[:, 0] + 0.3 * normal(400, seed=1).float()
    problem = Problem(model, Gaussian(0.3), (x[:300], y[:300]))
    held_out = (x[300:], y[300:])
    found = sieve_trained(problem, held_out)
    assert found.cost.lost <= 0.01
    assert found.model.zeros > 0.5  # the rest of the unit follows
    odds = weight_evidence("savage-dickey", prior_std=1.0)
    alone = prune_by_evidence(ranked(problem).posterior, odds)
    dense = loss_of(ranked(problem).pruned(0.0), held_out)
    assert loss_of(alone, held_out) > dense + 1


def test_networks_without_plain_layers_are_ranked_weight_by_weight():
    problem = BY_NAME["attention"].problem(24)
    held_out = (problem.x, problem.y)
    assert sieve_trained(problem, held_out).curvature == "diagonal"
    with pytest.raises(UnsupportedModelError, match="curvature by unit"):
        sieve_trained(problem, held_out, curvature="unit")


def test_sequences_are_sieved_too():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
        x = torch.randint(5, (60, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    problem = Problem(model, Categorical(), (x[:40], x[:40]))
    found = sieve_trained(problem, (x[40:], x[40:]), max_loss=0.2)
    assert found.model.zeros > 0.2
    assert found.cost.mistakes == 0


def test_batchnorm_statistics_are_renewed_if_asked():
    problem = BY_NAME["batch_norm"].problem(40)
    held_out = (problem.x, problem.y)
    found = sieve_trained(problem, held_out, max_loss=10.0, reestimate=True)
    name = next(name for name in found.model.posterior.buffers if name.endswith("running_mean"))
    before = found.posterior.buffers[name]
    assert not torch.equal(found.model.posterior.buffers[name], before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_loss": -0.1}, r"^sieve_trained: max_loss must be"),
        ({"curvature": "full"}, r"^sieve: curvature must be one of unit, diagonal"),
        ({"labels": "all"}, r"^laplace: labels must be one of exact, sampled"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    problem, held_out = linear([1.0, 0.0])
    with pytest.raises(ValueError, match=message):
        sieve_trained(problem, held_out, **options)
