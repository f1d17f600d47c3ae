"""Half the units of every architecture go, and the smaller network computes the same."""

import copy

import pytest
import torch
from torch.nn import functional as F

from architectures import ARCHITECTURES
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior import as_point
from bayesieve.sieve.compact import compact, report_of
from bayesieve.sieve.groups import groups_of
from bayesieve.sieve.prune import prune
from bayesieve.sieve.unit_rules import keep_units
from problems import normal


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_half_the_units_go_and_the_rest_computes_the_same(name):
    case = ARCHITECTURES[name]
    model, x = case.build()
    posterior = as_point(model, Gaussian())
    sparse = prune(posterior, keep_units(0.5, example=x))
    small = compact(sparse, x)
    report = report_of(small)
    assert report.max_difference < 1e-5
    before, after = report.parameters
    assert after <= case.left * before, (report, groups_of(posterior.network, x))
    removed = 1 - sparse.zeros
    assert after <= removed * before * 1.1, report  # what is masked is gone

    again = copy.deepcopy(small)
    assert torch.equal(again(x), small(x))
    again.train()
    optimiser = torch.optim.SGD(again.parameters(), 1e-3)
    start = {name: tensor.clone() for name, tensor in again.state_dict().items()}
    for _ in range(2):
        optimiser.zero_grad()
        out = again(x)
        F.mse_loss(out, normal(*out.shape, seed=1, dtype=torch.float32)).backward()
        optimiser.step()
    still = [n for n, p in again.named_parameters() if p.grad is None or not p.grad.any()]
    still += [n for n, b in again.named_buffers() if "running" in n and torch.equal(b, start[n])]
    assert not still, still
