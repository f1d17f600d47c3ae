"""Chain diagnostics against autoregressive chains, whose effective size is known."""

import math

import pytest
import torch
from torch import nn

from bayesieve.assess.diagnostics import (
    diagnose,
    effective_sample_size,
    pooled,
    split_rhat,
    standard_error,
)
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples

NETWORK = Network.of(nn.Linear(2, 1), Gaussian())


def autoregressive(phi, m=4, n=4000, d=3, seed=0):
    """Chains x_t = φ x_{t-1} + √(1 - φ²) ε: variance 1, effective size m n (1 - φ) / (1 + φ)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(m, n, d, generator=generator, dtype=torch.float64)
    x = [noise[:, 0]]
    for t in range(1, n):
        x.append(phi * x[-1] + math.sqrt(1 - phi**2) * noise[:, t])
    return torch.stack(x, 1)


def chains_of(draws):
    return [Samples(NETWORK, own.float()) for own in draws]


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, -0.3])
def test_the_effective_size_of_an_autoregressive_chain(phi):
    draws = autoregressive(phi)
    exact = 16_000 * (1 - phi) / (1 + phi)
    torch.testing.assert_close(
        effective_sample_size(draws).mean().item(), exact, rtol=0.15, atol=0.0
    )
    error = standard_error(draws)
    torch.testing.assert_close(error.mean().item(), exact**-0.5, rtol=0.1, atol=0.0)


def test_rhat_is_one_for_equal_chains_and_large_for_distant_ones():
    draws = autoregressive(0.2)
    assert (split_rhat(draws) < 1.01).all()
    draws[0] += 3
    # four chains of variance 1, one mean at 3: B/n = Var of (3, 3, 0, ..., 0) over eight halves
    expected = math.sqrt(1 + torch.tensor([3.0, 3.0, *[0.0] * 6]).var().item())
    assert split_rhat(draws).tolist() == pytest.approx([expected] * 3, rel=0.05)


def test_rhat_sees_a_drift_common_to_all_chains():
    draws = autoregressive(0.0, n=200) + torch.linspace(0, 5, 200)[None, :, None]
    assert (split_rhat(draws) > 1.3).all()


def test_rhat_by_hand():
    draws = torch.tensor([[0.0, 2.0, 1.0, 5.0], [1.0, 1.0, 4.0, 2.0]])[..., None]
    halves = torch.tensor([[0.0, 2.0], [1.0, 5.0], [1.0, 1.0], [4.0, 2.0]])
    within = halves.var(1).mean()
    expected = ((within / 2 + halves.mean(1).var()) / within).sqrt()
    assert split_rhat(draws).item() == pytest.approx(expected.item())


def test_chains_that_agree_raise_no_warning():
    report = diagnose(chains_of(autoregressive(0.3, n=400)))
    assert report.problems == ()
    assert (report.n_chains, report.n_draws, report.still) == (4, 400, 0)
    assert report.rhat[0] <= report.rhat[1] <= report.rhat[2]
    assert report.ess[0] <= report.ess[1] <= report.ess[2]
    assert report.spread == pytest.approx(1, rel=0.1)


def test_chains_that_disagree_or_stand_still_are_named():
    draws = autoregressive(0.3, n=400)
    draws[0] += 4
    with pytest.warns(UserWarning, match="chains disagree"):
        diagnose(chains_of(draws))
    with pytest.warns(UserWarning, match="no weight moves"):
        report = diagnose(chains_of(torch.zeros(2, 8, 3)))
    assert report.still == 1
    with pytest.warns(UserWarning, match="move slowly"):
        diagnose(chains_of(autoregressive(0.99, m=2, n=100).clone()))


@pytest.mark.parametrize("n", [4, 6, 40])
def test_alternating_draws_are_worth_a_bounded_number(n):
    draws = torch.tensor([1.0, -1.0]).repeat(n // 2)[None, :, None].expand(2, n, 1)
    draws = draws + 0.01 * torch.randn(2, n, 1, generator=torch.Generator().manual_seed(0))
    ess = effective_sample_size(draws).item()
    assert 0 < ess <= 2 * n * math.log10(2 * n) * 1.001


def test_pooling_puts_draws_together_and_averages_inclusion():
    logits = torch.tensor([[0.0, 0.0, 0.0], [math.log(3), 0.0, torch.inf]])
    parts = [Samples(NETWORK, torch.full((2, 3), float(i)), logits[i]) for i in range(2)]
    whole = pooled(parts)
    assert whole.draws.shape == (4, 3)
    assert whole.mean.tolist() == [0.5] * 3
    assert whole.inclusion.tolist() == pytest.approx([0.625, 0.5, 0.75])


def test_chains_with_other_buffers_are_not_pooled():
    buffers = ({"mean": torch.zeros(2)}, {"mean": torch.ones(2)})
    parts = [Samples(NETWORK, torch.zeros(2, 3), None, own) for own in buffers]
    with pytest.raises(ValueError, match="the module buffer 'mean' differs"):
        pooled(parts)
    with pytest.raises(ValueError, match="at least one"):
        pooled([])


def test_pooled_draws_keep_their_own_statistics():
    parts = []
    for i in range(2):
        own = {"mean": torch.full((2, 4), float(i))}
        shared = {"mean": torch.full((4,), float(i)), "num_batches_tracked": torch.tensor(i)}
        parts.append(Samples(NETWORK, torch.zeros(2, 3), None, shared, own))
    whole = pooled(parts)
    assert whole.draw_buffers["mean"][:, 0].tolist() == [0, 0, 1, 1]
    assert whole.buffers["mean"].tolist() == [0.5] * 4


def test_too_few_draws_are_refused():
    with pytest.raises(ValueError, match="n >= 4, got"):
        split_rhat(torch.zeros(2, 3, 1))
