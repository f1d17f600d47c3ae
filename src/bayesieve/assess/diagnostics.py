"""Diagnostics of Markov chains: agreement, effective sample size, and pooled draws.

For m chains of n draws each, split into halves so that a drift inside a chain shows too:

    W   mean over half-chains of their variance
    B/n variance over half-chains of their means
    R̂ = √(((n-1)/n W + B/n) / W)                                      [Gelman], eqs 11.3 and 11.4
    ESS = m n / (1 + 2 Σ_t ρ_t),  ρ_t = 1 - (W - mean autocovariance_t) / var⁺

summed over pairs of lags until a pair's sum is negative, pairs being made non-increasing (Geyer's
initial monotone sequence). Both are computed for many quantities at once.

The weights of a network are not identified: two chains may predict the same with units in another
order. So chains are compared by what they predict (`traces`), and by the log-likelihood.

Reference: [Gelman], sections 11.4 and 11.5; [Geyer], section 3.3.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.batch import Data, pair_of
from bayesieve.core.posterior import Factorised, Model, Samples, posterior_of

_LEAST_DRAWS = 4
_WATCHED = 200  # examples whose predictions are compared
MOST_RHAT = 1.2  # of ten draws in each of four halves, independent ones have 1.13 once in a hundred
_LEAST_ESS = 10
_BLOCK = 4096  # weights whose autocovariances are held at a time


def split_rhat(draws: Tensor) -> Tensor:
    """R̂ of every quantity: (m, n, d) to (d,); 1 when the halves of all chains agree.

    A quantity that never moves has no R̂ and gives NaN.

    Example:
        >>> apart = torch.tensor([[0.0, 1.0, 0.0, 1.0], [9.0, 8.0, 9.0, 8.0]])[..., None]
        >>> round(split_rhat(apart).item(), 2)
        6.57
    """
    halves = _halves("split_rhat", draws)
    n = halves.shape[1]
    within = halves.var(1).mean(0)
    between = halves.mean(1).var(0)
    return (((n - 1) / n * within + between) / within).sqrt()


def effective_sample_size(draws: Tensor) -> Tensor:
    """Return how many independent draws are as good for the mean: (m, n, d) to (d,).

    NaN for a quantity that never moves.

    Example:
        >>> independent = torch.randn(4, 500, 1, generator=torch.Generator().manual_seed(0))
        >>> bool(effective_sample_size(independent) > 1500)
        True
    """
    halves = _halves("effective_sample_size", draws)
    blocks = halves.split(_BLOCK, dim=2)
    return torch.cat([_block_ess(block) for block in blocks])


def moves(draws: Tensor) -> Tensor:
    """Which quantities change along at least one chain: (m, n, d) to (d,) bool.

    Chains that stand still at different places do not move, however far apart they are.

    Example:
        >>> apart = torch.tensor([[1.0, 1.0, 1.0, 1.0], [9.0, 9.0, 9.0, 9.0]])
        >>> moves(torch.stack([apart, apart.cumsum(1)], 2)).tolist()
        [False, True]
    """
    return (draws != draws[:, :1]).flatten(0, 1).any(0)


def _halves(who: str, draws: Tensor) -> Tensor:
    """Chains of even length cut in two, (2m, n // 2, d), in float64."""
    if draws.dim() != 3 or draws.shape[1] < _LEAST_DRAWS:
        raise ValueError(
            f"{who}: draws must have shape (chains, n, d) with n >= {_LEAST_DRAWS}, got "
            f"{tuple(draws.shape)}. Keep more draws."
        )
    half = draws.shape[1] // 2
    tail = draws[:, draws.shape[1] - 2 * half :].double()
    return torch.cat([tail[:, :half], tail[:, half:]])


def _block_ess(halves: Tensor) -> Tensor:
    m, n, _ = halves.shape
    centred = halves - halves.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, 2 * n, dim=1)
    covariance = torch.fft.irfft(spectrum.abs().square(), 2 * n, dim=1)[:, :n].mean(0) / n
    within = covariance[0] * n / (n - 1)
    total = (n - 1) / n * within + halves.mean(1).var(0)
    rho = 1 - (within - covariance) / total  # (n, d)
    rho[0] = 1
    pairs = rho[: n // 2 * 2].reshape(n // 2, 2, -1).sum(1)
    pairs = pairs.clamp(min=0).cummin(0).values
    pairs = pairs * (pairs > 0).cumprod(0)
    time = 2 * pairs.sum(0) - 1
    # Anticorrelated draws are worth more than independent ones, at most log10(m n) times: Stan's
    # bound. Without it few draws that happen to alternate would give a negative number.
    return m * n / time.clamp(min=1 / math.log10(m * n))


def traces(posterior: Samples, examples: Data) -> Tensor:
    """Course of a chain, (n, 1 + q): log-likelihood of the examples, then each prediction.

    A prediction is the probability of an example's label, or the mean of a real target. Of many
    examples 200 are taken, evenly spread.
    """
    x, y = pair_of("traces", examples)
    some = torch.linspace(0, len(x) - 1, min(len(x), _WATCHED)).round().long()
    prediction = predict(posterior, x[some], n_samples=len(posterior.draws))
    targets = y[some].to(posterior.draws.device)
    if isinstance(prediction, ClassPrediction):
        rows, labels = prediction.scored(posterior.network.likelihood.labels(targets))
        log_lik = rows.log_densities(labels)
        values = log_lik.exp()
    else:
        means, noise = prediction.sample_means.double(), prediction.noise_std.double()
        values = means.flatten(1)
        log_lik = prediction.likelihood.log_density(targets.reshape(means.shape[1:]), means, noise)
    return torch.cat([log_lik.flatten(1).sum(1, keepdim=True), values], 1)


@dataclass(frozen=True)
class ChainReport:
    """Agreement and movement of a set of chains.

    Args:
        n_chains: m.
        n_draws: kept draws of each.
        rhat: the 0.5, 0.95 and 1.0 quantiles of R̂ over predictions; None if no weight moves.
        ess: the 0.0, 0.05 and 0.5 quantiles of the effective sample size over them.
        log_lik_rhat: R̂ of the log-likelihood.
        log_lik_ess: effective sample size of the log-likelihood.
        still: fraction that no chain ever moves of the weights that are not 0 (pruned) in all
            draws.
    """

    n_chains: int
    n_draws: int
    rhat: tuple[float, float, float] | None
    ess: tuple[float, float, float] | None
    log_lik_rhat: float | None
    log_lik_ess: float | None
    still: float

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on what is wrong, with the flags of the command line; empty if nothing is."""
        problems = []
        if self.rhat is None or self.ess is None or self.still > 0.5:
            # In float32 a weight near 0 moves by steps that others do not feel.
            share = f"{100 * self.still:.1f} % of the weights do not move"
            share = "no weight moves" if self.still == 1 else share
            return (f"{share}: raise the step (`lr`) or the `temperature`",)
        if max(self.rhat[0], self.log_lik_rhat or 0) > MOST_RHAT:
            problems.append(
                f"chains have not mixed: R-hat is {self.rhat[0]:.2f} for half of the predictions "
                f"and {self.log_lik_rhat:.2f} for the log-likelihood, where 1 is agreement and "
                f"{MOST_RHAT} the bound, so the epistemic uncertainty is not yet right; run "
                "longer (`epochs`)"
            )
        if self.ess[2] < _LEAST_ESS:
            problems.append(
                f"chains move slowly: {self.ess[2]:.1f} of {self.n_chains * self.n_draws} draws "
                "are effective for half of the predictions; raise the step (`lr`), or run "
                "longer (`epochs`)"
            )
        return tuple(problems)

    def __str__(self) -> str:
        drawn = f"{self.n_chains} x {self.n_draws} draws"
        if self.rhat is None or self.ess is None:
            return f"{drawn}; no weight moves"
        return (
            f"{drawn}; predictions: R-hat {self.rhat[0]:.2f} (one in twenty above "
            f"{self.rhat[1]:.2f}), {self.ess[2]:.0f} effective draws; log-likelihood: R-hat "
            f"{self.log_lik_rhat:.2f}, {self.log_lik_ess:.0f} effective draws"
        )


def diagnose(posteriors: Sequence[Samples], examples: Data) -> ChainReport:
    """Compare the chains of one run; warns when they have not mixed or do not move.

    Args:
        posteriors: the kept draws of each chain, oldest first, equally many.
        examples: inputs and targets whose predictions are compared, best those of a test set.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.core.network import Network
        >>> network, source = Network.of(torch.nn.Linear(1, 1), Gaussian()), torch.Generator()
        >>> draws = torch.empty(2, 200, 2).normal_(generator=source.manual_seed(0))
        >>> x = torch.linspace(-1, 1, 9)[:, None]
        >>> report = diagnose([Samples(network, kept) for kept in draws], (x, x))
        >>> report.n_chains, report.problems
        (2, ())
    """
    shapes = {tuple(chain.draws.shape) for chain in posteriors}
    if len(shapes) != 1:
        listed = ", ".join(map(str, sorted(shapes))) or "none"
        raise ValueError(
            "diagnose: give chains with equally many draws of the same weights, got draws of "
            f"shape {listed}."
        )
    draws = torch.stack([chain.draws for chain in posteriors])
    moving, alive = moves(draws), (draws != 0).flatten(0, 1).any(0)
    still = 1 - int(moving.sum()) / max(1, int(alive.sum()))
    rhat = ess = log_lik_rhat = log_lik_ess = None
    if moving.any():
        walks = torch.stack([traces(chain, examples) for chain in posteriors])
        # What is the same in all draws has neither (a probability of 1): chains agree on it.
        all_rhat = split_rhat(walks).nan_to_num(1.0, torch.inf)
        all_ess = effective_sample_size(walks).nan_to_num(draws.shape[0] * draws.shape[1])
        log_lik_rhat, log_lik_ess = all_rhat[0].item(), all_ess[0].item()
        rhat = _quantiles(all_rhat[1:], (0.5, 0.95, 1.0))
        ess = _quantiles(all_ess[1:], (0.0, 0.05, 0.5))
    report = ChainReport(len(draws), draws.shape[1], rhat, ess, log_lik_rhat, log_lik_ess, still)
    if report.problems:
        warnings.warn(f"diagnose: {'; '.join(report.problems)}.", stacklevel=2)
    return report


def diagnose_models(models: Sequence[Model], examples: Data) -> ChainReport | None:
    """The report on the chains of a sampler; None where models are no chains of 4 draws or more."""
    chains = [q for q in map(posterior_of, models) if isinstance(q, Samples)]
    if len(chains) < len(models) or any(len(chain.draws) < _LEAST_DRAWS for chain in chains):
        return None
    return diagnose(chains, examples)


def _quantiles(values: Tensor, levels: tuple[float, float, float]) -> tuple[float, float, float]:
    ranked = values.sort().values
    low, middle, high = (ranked[round(level * (len(ranked) - 1))].item() for level in levels)
    return low, middle, high


def differing_buffers(posteriors: Sequence[Samples]) -> list[str]:
    """Names of the module buffers that are not the same in all chains, nor kept with each draw."""
    first = posteriors[0]
    return [
        name
        for name in first.buffers
        if name not in first.draw_buffers
        and not name.endswith("num_batches_tracked")
        and not all(
            torch.equal(other.buffers[name], first.buffers[name]) for other in posteriors[1:]
        )
    ]


def pooled(posteriors: Sequence[Samples]) -> Samples:
    """The draws of several chains as one posterior; inclusion is the mean over chains.

    Each draw keeps its BatchNorm statistics. Other module buffers must be the same in all chains,
    since all draws of a posterior share one set.
    """
    if not posteriors:
        raise ValueError("pooled: give at least one posterior.")
    first = posteriors[0]
    if any(chain.layout != first.layout for chain in posteriors):
        raise ValueError("pooled: the posteriors belong to networks with other tensors.")
    for name in differing_buffers(posteriors):
        raise ValueError(
            f"pooled: the module buffer {name!r} differs between chains. Predict with each chain "
            "and average the probabilities."
        )
    logits = [chain.logit_inclusion for chain in posteriors]
    logit = None
    if all(value is not None for value in logits):
        logit = torch.stack([value.sigmoid() for value in logits if value is not None])
        logit = logit.mean(0).logit()
    draws = torch.cat([chain.draws for chain in posteriors])
    rows = {
        name: torch.cat([chain.draw_buffers[name] for chain in posteriors])
        for name in first.draw_buffers
    }
    buffers = {name: value.clone() for name, value in first.buffers.items()}
    buffers |= {name: value.mean(0) for name, value in rows.items()}
    return Samples(first.network, draws, logit, buffers, rows)


def stuck_in_slab(posterior: Factorised) -> float:
    """Fraction of prunable weights with inclusion > 0.9 but |mean| / std < 0.5.

    Such weights are in the slab because they started there, not because the data want them; start
    with a smaller std or bring the two prior stds closer together.
    """
    part = posterior.layout.sparse
    if posterior.logit_inclusion is None:
        raise ValueError("stuck_in_slab: this posterior has no inclusion probabilities.")
    included = posterior.logit_inclusion[part] > math.log(9)
    weak = posterior.mean[part].abs() < 0.5 * posterior.std[part]
    return (included & weak).double().mean().item()
