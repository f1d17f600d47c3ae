"""Model-X knockoffs of Gaussian inputs: false-discovery control that trusts no posterior.

A knockoff copy x̃ of inputs x ~ N(μ, Σ) has the joint covariance

    Cov(x, x̃) = [[Σ, Σ - S], [Σ - S, Σ]],   S = diag(s),

so that swapping an input that does not matter with its copy changes no distribution. Given x,

    x̃ ~ N(x - (x - μ) Σ⁻¹ S, 2 S - S Σ⁻¹ S).

A network is trained on both halves. W_j = importance of x_j minus importance of x̃_j has a random
sign for inputs that do not matter, which makes the negative ones count the false discoveries:

    T = min { t : (1 + #{W_j <= -t}) / max(#{W_j >= t}, 1) <= level },   keep {W_j >= T}.

The expected share of false discoveries is then at most `level`, if the inputs are Gaussian with
the given (or well estimated) moments.

Reference: [Candes], equicorrelated construction.
"""

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_fraction


def gaussian_knockoffs(
    x: Tensor, generator: Generator, *, covariance: Tensor | None = None, ridge: float = 1e-3
) -> Tensor:
    """A knockoff copy of Gaussian inputs, (n, D).

    Args:
        x: (n, D), n > 1.
        generator: source of the copy's noise.
        covariance: Σ, (D, D), where it is known; else that of x, its correlations drawn towards 0
            by `ridge`.
        ridge: share of the unit matrix in an estimated correlation matrix; keeps it invertible.

    Example:
        >>> source = torch.Generator().manual_seed(0)
        >>> x = torch.randn(2000, 2, generator=source)
        >>> copy = gaussian_knockoffs(x, source)
        >>> copy.shape, bool(torch.corrcoef(torch.cat([x, copy], 1).T)[0, 2].abs() < 0.1)
        (torch.Size([2000, 2]), True)
    """
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"gaussian_knockoffs: x must be (n > 1, D), got {tuple(x.shape)}.")
    check_fraction("gaussian_knockoffs", ridge=ridge)
    exact = x.double()
    mean, shape = exact.mean(0), (x.shape[1], x.shape[1])
    if covariance is None:
        sigma = torch.cov(exact.T).reshape(shape)
        sigma = (1 - ridge) * sigma + ridge * sigma.diagonal().diag()
    elif covariance.shape != shape:
        raise ValueError(
            f"gaussian_knockoffs: covariance must have shape {shape}, got "
            f"{tuple(covariance.shape)}."
        )
    else:
        sigma = covariance.double()
    scale = sigma.diagonal().sqrt()
    if not bool((scale > 0).all()):
        column = int((scale == 0).nonzero()[0])
        raise ValueError(f"gaussian_knockoffs: column {column} is constant. Drop it first.")
    correlation = sigma / scale / scale[:, None]
    # S on the correlation scale; a little inside the bound, where the conditional is regular.
    smallest = torch.linalg.eigvalsh(correlation)[0]
    s = (2 * smallest).clamp(max=1.0) * (1 - 1e-6)
    if not bool(s > 0):
        raise ValueError(
            "gaussian_knockoffs: the inputs are linearly dependent. Drop some, or raise ridge."
        )
    eye = torch.eye(len(scale), dtype=torch.float64)
    standard = (exact - mean) / scale
    pull = s * torch.linalg.inv(correlation)
    root = torch.linalg.cholesky(2 * s * eye - s * pull + 1e-12 * eye)
    noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64) @ root.T
    copy = standard - standard @ pull + noise
    return (copy * scale + mean).to(x.dtype)


def knockoff_statistic(importance: Tensor) -> Tensor:
    """W, (..., D), from importances of the D inputs followed by their D copies, (..., 2 D).

    Example:
        >>> knockoff_statistic(torch.tensor([3.0, 1.0, 0.5, 2.0]))
        tensor([ 2.5000, -1.0000])
    """
    if importance.shape[-1] % 2:
        raise ValueError(
            f"knockoff_statistic: importance must have shape (..., 2 D), got "
            f"{tuple(importance.shape)}."
        )
    inputs, copies = importance.chunk(2, -1)
    return inputs - copies


def knockoff_select(statistic: Tensor, level: float) -> Tensor:
    """Inputs kept by the knockoff filter with offset 1, (D,) bool; maybe none.

    Example:
        >>> knockoff_select(torch.tensor([5.0, 4.0, 3.0, -2.0, 1.0]), level=0.34)
        tensor([ True,  True,  True, False, False])
    """
    check_fraction("knockoff_select", open_ends=True, level=level)
    if statistic.ndim != 1 or bool(statistic.isnan().any()):
        raise ValueError("knockoff_select: statistic must have shape (D,) and no NaN.")
    for threshold in statistic[statistic != 0].abs().unique():  # ascending
        n_below, n_kept = int((statistic <= -threshold).sum()), int((statistic >= threshold).sum())
        if (1 + n_below) / max(n_kept, 1) <= level:
            return statistic >= threshold
    return torch.zeros_like(statistic, dtype=torch.bool)
