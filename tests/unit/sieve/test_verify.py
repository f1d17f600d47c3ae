"""Two networks that compute the same, and two that do not."""

import pytest
import torch
from torch import nn

from bayesieve.errors import VerificationError
from bayesieve.sieve.verify import TOLERANCE, verify
from problems import normal32

WEIGHT = normal32(20, seed=0)
EXAMPLE = normal32(5, 20, seed=1)
FORWARDS, BACKWARDS = tuple(range(20)), tuple(reversed(range(20)))


class Steep(nn.Module):
    """sin(10⁴ w'x + shift), summed in an order of its own: each is rounded in another way."""

    def __init__(self, order, shift=0.0):
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.clone())
        self.order, self.shift = order, shift

    def forward(self, x):
        total = torch.zeros_like(x[:, :1])
        for j in self.order:
            total = total + x[:, j : j + 1] * self.weight[j]
        return torch.sin(1e4 * total + self.shift)


class Rigid(Steep):
    """The same in float32, whatever is asked for."""

    def forward(self, x):
        return torch.sin(1e4 * (x.float() @ self.weight[:, None]))


def test_rounding_that_a_network_magnifies_is_no_difference():
    one, other = Steep(FORWARDS), Steep(BACKWARDS)
    with torch.no_grad():
        assert (one(EXAMPLE) - other(EXAMPLE)).abs().max() > 10 * TOLERANCE
    assert verify(one, other, EXAMPLE) == TOLERANCE
    assert one.weight.dtype == torch.float32


def test_a_difference_that_float64_has_too_is_one():
    with pytest.raises(VerificationError, match=r"on the example .* more than 1e-05 of it"):
        verify(Steep(FORWARDS), Steep(BACKWARDS, shift=1e-3), EXAMPLE)


def test_networks_in_float64_are_judged_as_they_are():
    one, other = (Steep(FORWARDS, shift).double() for shift in (0.0, 1e-3))
    with pytest.raises(VerificationError, match=r"on the example .* more than 1e-05 of it"):
        verify(one, other, EXAMPLE.double())


def test_a_network_that_cannot_run_in_float64_is_judged_as_it_is():
    with pytest.raises(VerificationError, match=r"on the example .* more than 1e-05 of it"):
        verify(Steep(FORWARDS), Rigid(BACKWARDS), EXAMPLE)
