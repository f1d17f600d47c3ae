"""Half the units of every architecture go, and the smaller network computes the same."""

import copy

import pytest
import torch
from torch.nn import functional as F

from architectures import ARCHITECTURES
from make_models_table import PAGE, halved
from problems import normal


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_half_the_units_go_and_the_rest_computes_the_same(name):
    case = ARCHITECTURES[name]
    half = halved(name, case)
    before, after = half.report.parameters
    assert half.report.max_difference < 1e-5
    assert after <= case.left * before, half.report
    assert after <= 1.1 * (1 - half.sparse.zeros) * before, half.report  # what is masked is gone
    assert half.row in PAGE.read_text(encoding="utf-8"), "run python docs/make_models_table.py"

    _, x = case.build()
    again = copy.deepcopy(half.small)
    assert torch.equal(again(x), half.small(x))
    again.train()
    start = {name: buffer.clone() for name, buffer in again.named_buffers()}
    optimiser = torch.optim.SGD(again.parameters(), 1e-3)
    for _ in range(2):
        optimiser.zero_grad()
        out = again(x)
        F.mse_loss(out, normal(*out.shape, seed=1, dtype=torch.float32)).backward()
        optimiser.step()
    still = [n for n, p in again.named_parameters() if p.grad is None or not p.grad.any()]
    still += [n for n, b in again.named_buffers() if "running" in n and torch.equal(b, start[n])]
    assert not still, still
