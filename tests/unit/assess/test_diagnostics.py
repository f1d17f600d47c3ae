"""Chain diagnostics against autoregressive chains, whose effective size is known."""

import math
import re
import warnings

import pytest
import torch
from torch import nn

from bayesieve.assess.diagnostics import (
    ChainReport,
    diagnose,
    diagnose_models,
    effective_sample_size,
    moves,
    pooled,
    split_rhat,
    traces,
)
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples
from bayesieve.core.storage import load_posterior, save
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sgmcmc import SGLD
from bayesieve.runs.config import keywords
from runs import fit_toy, toy, with_batch_norm

NETWORK = Network.of(nn.Linear(2, 1), Gaussian())
# The predictions are the two weights and the bias, which makes their R-hat that of the draws.
X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
EXAMPLES = X, torch.zeros(3)


def autoregressive(phi, m=4, n=4000, d=3, seed=0):
    """Chains x_t = φ x_{t-1} + √(1 - φ²) ε: variance 1, effective size m n (1 - φ) / (1 + φ)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(m, n, d, generator=generator, dtype=torch.float64)
    x = [noise[:, 0]]
    for t in range(1, n):
        x.append(phi * x[-1] + math.sqrt(1 - phi**2) * noise[:, t])
    return torch.stack(x, 1)


def chains_of(draws):
    return [Samples(NETWORK, kept.float()) for kept in draws]


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, -0.3])
def test_the_effective_size_of_an_autoregressive_chain(phi):
    draws = autoregressive(phi)
    exact = 16_000 * (1 - phi) / (1 + phi)
    size = effective_sample_size(draws)
    torch.testing.assert_close(size.mean().item(), exact, rtol=0.15, atol=0.0)
    error = draws.double().flatten(0, 1).std(0) / size.sqrt()  # of the mean
    torch.testing.assert_close(error.mean().item(), exact**-0.5, rtol=0.1, atol=0.0)


def test_rhat_is_one_for_equal_chains_and_large_for_distant_ones():
    draws = autoregressive(0.2)
    assert (split_rhat(draws) < 1.01).all()
    draws[0] += 3
    # four chains of variance 1, one mean at 3: B/n = Var of (3, 3, 0, ..., 0) over eight halves
    expected = math.sqrt(1 + torch.tensor([3.0, 3.0, *[0.0] * 6]).var().item())
    assert split_rhat(draws).tolist() == pytest.approx([expected] * 3, rel=0.05)


def test_chains_that_agree_raise_no_warning():
    report = diagnose(chains_of(autoregressive(0.3, n=400)), EXAMPLES)
    assert report.problems == ()
    assert (report.n_chains, report.n_draws, report.still) == (4, 400, 0)
    assert report.rhat[0] <= report.rhat[1] <= report.rhat[2]
    assert report.ess[0] <= report.ess[1] <= report.ess[2]
    assert report.log_lik_rhat < 1.1
    assert report.log_lik_ess > 100
    assert str(report).startswith("4 x 400 draws; predictions: R-hat 1.0")


def test_chains_that_disagree_or_move_slowly_are_named():
    draws = autoregressive(0.3, n=400)
    draws[0] += 4
    with pytest.warns(UserWarning, match=r"chains have not mixed: .* run longer \(`epochs`"):
        diagnose(chains_of(draws), EXAMPLES)
    slow = autoregressive(0.99, m=2, n=100)
    with pytest.warns(UserWarning, match=r"move slowly: .* raise the step \(`lr`\)") as said:
        report = diagnose(chains_of(slow), EXAMPLES)
    assert f"{report.ess[2]:.1f} of 200 draws" in str(said[0].message)


def test_the_course_of_a_chain_is_its_log_likelihood_and_its_predictions():
    kept = autoregressive(0.3, n=4)[0].float()
    course = traces(Samples(NETWORK, kept), EXAMPLES)
    outputs = torch.stack([kept[:, 0] + kept[:, 2], kept[:, 1] + kept[:, 2], kept[:, 2]], 1)
    log_lik = torch.distributions.Normal(outputs.double(), 1.0).log_prob(torch.zeros(3).double())
    torch.testing.assert_close(course[:, 1:], outputs.double())
    torch.testing.assert_close(course[:, 0], log_lik.sum(1))


def test_chains_of_a_network_agree_though_its_units_have_changed_places():
    module = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))
    network, x = Network.of(module, Gaussian()), torch.linspace(-1, 1, 5)[:, None]
    one = 2 + 0.3 * autoregressive(0.0, m=1, n=100, d=4).float()[0]
    one[:, 0] -= 4  # the two units have weights of unlike sign
    other = 2 + 0.3 * autoregressive(0.0, m=1, n=100, d=4, seed=1).float()[0]
    other[:, 0] -= 4
    chains = [Samples(network, one), Samples(network, other[:, [1, 0, 3, 2]])]
    report = diagnose(chains, (x, x[:, 0]))
    assert report.problems == ()
    assert split_rhat(torch.stack([chain.draws for chain in chains]))[0] > 3


def test_models_that_are_no_chains_have_no_report():
    module = toy().network
    point = Samples(module, torch.zeros(1, module.layout.size))
    assert diagnose_models([point, point], EXAMPLES) is None


STANDING = torch.arange(1.0, 7.0).view(2, 1, 3).expand(2, 8, 3)  # two chains, each at its place


@pytest.mark.parametrize("draws", [torch.zeros(2, 8, 3), STANDING], ids=["pruned", "apart"])
def test_chains_that_stand_still_do_not_disagree(draws):
    message = r"no weight moves: raise the step \(`lr`\) or the `temperature`\.$"
    with pytest.warns(UserWarning, match=message):
        report = diagnose(chains_of(draws), EXAMPLES)
    assert (report.still, report.rhat, report.ess) == (1, None, None)


def test_pruned_weights_need_not_move_but_most_others_must():
    draws = autoregressive(0.3, n=400)
    draws[..., 1:] = 0
    assert diagnose(chains_of(draws), EXAMPLES).problems == ()
    draws[..., 1:] = 1
    with pytest.warns(UserWarning, match=r"66.7 % of the weights do not move: raise the step"):
        report = diagnose(chains_of(draws), EXAMPLES)
    assert report.still == pytest.approx(2 / 3)


def test_the_arguments_that_are_named_are_settings_of_a_run():
    far = ChainReport(2, 8, (3.0, 3.0, 3.0), (2.0, 2.0, 2.0), 3.0, 2.0, 0.0)
    still = ChainReport(2, 8, None, None, None, None, 1.0)
    named = re.findall(r"`(\w+)`", " ".join(far.problems + still.problems))
    assert {"lr", "temperature", "epochs"} == set(named) <= {*keywords()}


def test_what_moves_moves_inside_a_chain():
    draws = torch.zeros(2, 4, 3)
    draws[1] = 1.0  # another place, no motion
    draws[1, 2, 1] = 1.5
    assert moves(draws).tolist() == [False, True, False]


def plain_ess(draws):
    """One quantity, (m, n): sums over lags and pairs as the formulas print them."""
    half = draws.shape[1] // 2
    chains = [chain[start:][:half] for chain in draws.tolist() for start in (0, half)]
    m, n = len(chains), half
    means = [sum(chain) / n for chain in chains]

    def covariance(lag):
        each = [
            sum((chain[t] - mean) * (chain[t + lag] - mean) for t in range(n - lag)) / n
            for chain, mean in zip(chains, means, strict=True)
        ]
        return sum(each) / m

    within = covariance(0) * n / (n - 1)
    centre = sum(means) / m
    between = sum((mean - centre) ** 2 for mean in means) / (m - 1)
    total = (n - 1) / n * within + between
    time, smallest, lag = -1.0, math.inf, 0
    while lag + 1 < n:
        pair = [1.0 if t == 0 else 1 - (within - covariance(t)) / total for t in (lag, lag + 1)]
        if sum(pair) <= 0:
            break
        smallest = min(smallest, sum(pair))
        time += 2 * smallest
        lag += 2
    return m * n / max(time, 1 / math.log10(m * n)), math.sqrt(total / within)


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.95, -0.5])
def test_effective_size_and_rhat_agree_with_sums_over_lags(phi):
    draws = autoregressive(phi, m=3, n=60, d=5, seed=1)
    plain = [plain_ess(draws[..., j]) for j in range(5)]
    assert effective_sample_size(draws).tolist() == pytest.approx([row[0] for row in plain])
    assert split_rhat(draws).tolist() == pytest.approx([row[1] for row in plain])


@pytest.mark.parametrize("n", [4, 6, 40])
def test_alternating_draws_are_worth_a_bounded_number(n):
    draws = torch.tensor([1.0, -1.0]).repeat(n // 2)[None, :, None].expand(2, n, 1)
    draws = draws + 0.01 * torch.randn(2, n, 1, generator=torch.Generator().manual_seed(0))
    ess = effective_sample_size(draws).item()
    assert 0 < ess <= 2 * n * math.log10(2 * n) * 1.001


def test_pooling_puts_draws_together_and_averages_inclusion():
    logits = torch.tensor([[0.0, 0.0, 0.0], [math.log(3), 0.0, torch.inf]])
    chains = [Samples(NETWORK, torch.full((2, 3), float(i)), logits[i]) for i in range(2)]
    whole = pooled(chains)
    assert whole.draws.shape == (4, 3)
    assert whole.mean.tolist() == [0.5] * 3
    assert whole.inclusion.tolist() == pytest.approx([0.625, 0.5, 0.75])


def test_chains_with_other_buffers_are_not_pooled():
    buffers = ({"mean": torch.zeros(2)}, {"mean": torch.ones(2)})
    chains = [Samples(NETWORK, torch.zeros(2, 3), None, rows) for rows in buffers]
    with pytest.raises(ValueError, match="the module buffer 'mean' differs"):
        pooled(chains)
    with pytest.raises(ValueError, match="at least one"):
        pooled([])


def test_pooled_draws_keep_the_statistics_of_their_chain():
    chains = []
    for i in range(2):
        rows = {"mean": torch.full((2, 4), float(i))}
        shared = {"mean": torch.full((4,), float(i)), "num_batches_tracked": torch.tensor(i)}
        chains.append(Samples(NETWORK, torch.zeros(2, 3), None, shared, rows))
    whole = pooled(chains)
    assert whole.draw_buffers["mean"][:, 0].tolist() == [0, 0, 1, 1]
    assert whole.buffers["mean"].tolist() == [0.5] * 4


def test_chains_of_several_processes_meet_in_their_files(tmp_path):
    # One run per device, each with a seed and different chains; what they share is the network.
    engine = SGLD(step_size=1e-3, chain=Chain.over(40, n_kept=10))
    files = []
    for seed in (0, 1):
        run = fit_toy(toy(with_batch_norm), engine, epochs=14, seed=seed, n_models=2)
        for i, chain in enumerate(run.posteriors):
            files.append(tmp_path / f"{seed}-{i}.safetensors")
            save(chain, files[-1])
    chains = [load_posterior(file, toy(with_batch_norm)) for file in files]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such short chains disagree
        report = diagnose(chains, (toy().x, toy().y))
    assert (report.n_chains, report.n_draws) == (4, 10)
    whole = pooled(chains)
    assert len(whole.draws) == len(whole.draws.unique(dim=0)) == 40
    assert whole.draw_buffers["1.running_mean"].shape[0] == 40


def test_too_few_draws_are_refused():
    with pytest.raises(ValueError, match="n >= 4, got"):
        split_rhat(torch.zeros(2, 3, 1))


def test_chains_of_unequal_length_are_refused():
    chains = [Samples(NETWORK, torch.zeros(n, 3)) for n in (4, 5)]
    with pytest.raises(ValueError, match=r"equally many .* got draws of shape \(4, 3\), \(5,"):
        diagnose(chains, EXAMPLES)
    with pytest.raises(ValueError, match="got draws of shape none"):
        diagnose([], EXAMPLES)
