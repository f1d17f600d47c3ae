"""The layer scales of the BMR engine: their draw, and one step of them in two coordinates.

With w = γ₀ c ŵ, q(ŵ) = N(μ, σ²), q(c⁻²) = LogNormal(μ_c, σ_c²) and τ = γ₀ E[c], the weight itself
has the moments m = τμ and s = τσ. A step of a scale may hold either pair:

    (m, s) held:  ∂/∂μ_c of the KL of weights is -½ Σ (1 - (m² + s²) / τ²), of log_lik 0,
    (μ, σ) held:  ∂/∂μ_c of the KL of weights is 0, of log_lik -½ Σ g w, and m and s follow τ.

The optimum is one; on the way (m, s) lets a width follow its weights at once. Equations:
docs/theory/bmr.md.
"""

from torch import Tensor

from bayesieve.engines._adabelief import adabelief_

Moments = tuple[Tensor, Tensor, Tensor, Tensor]  # of the mean, then of log_std
Lengths = tuple[Tensor, Tensor, Tensor]  # of a step, correction of the second moment, KL / N


def factors(
    scale_mean: Tensor, scale_log_std: Tensor, base: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A draw of r = c / E[c] (1 without noise) and τ = γ₀ E[c] of each layer, both (k, L).

    Example:
        >>> import torch
        >>> mean, log_std = torch.zeros(1, 2), torch.full((1, 2), -30.0)
        >>> factors(mean, log_std, torch.tensor([[0.1, 1.0]]), None)
        (tensor([[1., 1.]]), tensor([[0.1000, 1.0000]]))
    """
    std = scale_log_std.exp()
    width = base * (-0.5 * scale_mean + std.square() / 8).exp()
    ratio = 0 * width if noise is None else -0.5 * std * noise - std.square() / 8
    return ratio.exp(), width


def step_beside_weights_(
    mean: Tensor, log_std: Tensor, noise: Tensor, terms: Tensor, shape: Tensor, rate: Tensor,
    moments: Moments, lengths: Lengths, n_data: int,
) -> None:  # fmt: skip
    """AdaBelief on (KL - log_lik) / N for μ_c and log σ_c, each (k, L), with (m, s) held."""
    length, second_factor, kl = lengths
    pull, excess = terms[0] / n_data, kl * terms[1]
    std = log_std.exp()
    expected = rate * (mean + 0.5 * std.square()).exp()  # of rate c⁻²
    grad_mean = kl * (expected - shape) - 0.5 * excess
    grad_std = kl * (expected * std - 1 / std) + 0.25 * std * excess
    grad_std = grad_std + pull * (0.5 * noise + 0.25 * std)
    adabelief_(mean, grad_mean, moments[0], moments[1], length, second_factor)
    adabelief_(log_std, grad_std * std, moments[2], moments[3], length, second_factor)


def step_with_weights_(
    mean: Tensor, log_std: Tensor, noise: Tensor, terms: Tensor, shape: Tensor, rate: Tensor,
    moments: Moments, lengths: Lengths, n_data: int,
) -> Tensor:  # fmt: skip
    """The same with (μ, σ) held; returns the factor of τ, which m and s must follow, (k, L)."""
    length, second_factor, kl = lengths
    pull, std = terms[0] / n_data, log_std.exp()
    expected = rate * (mean + 0.5 * std.square()).exp()
    before = -0.5 * mean + std.square() / 8
    grad_mean = kl * (expected - shape) + 0.5 * pull
    grad_std = kl * (expected * std - 1 / std) + 0.5 * noise * pull
    adabelief_(mean, grad_mean, moments[0], moments[1], length, second_factor)
    adabelief_(log_std, grad_std * std, moments[2], moments[3], length, second_factor)
    return (-0.5 * mean + (2 * log_std).exp() / 8 - before).exp()
