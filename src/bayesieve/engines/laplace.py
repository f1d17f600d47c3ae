"""A diagonal Laplace approximation around trained weights: one extra pass over the data.

    q(w) = N(ŵ, (F + 1/τ²)⁻¹),   F = Σ_n Σ_r (Jₙᵀ v_{nr})²                               (L1, L2)

with Jₙ the Jacobian of the outputs and v the columns of a square root of the likelihood's
information, `Likelihood.curvature`: √p_c (e_c - p) for classes, √(p(1-p)) e for yes-or-no outputs,
e / noise_std for normal noise. For these likelihoods F is the diagonal of the generalised
Gauss-Newton matrix. With sampled labels one random v per example, of mean square vvᵀ, takes the
place of the sum.

Reference: MacKay (1992), also for τ from the data. Equations: docs/theory/bmr.md.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesieve.checks import check_choice, check_positive
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.errors import UnsupportedModelError
from bayesieve.nets.importing import modes_kept

_N_UPDATES = 100  # of τ; each is one pass over the weights, not over the data


def laplace(
    problem: Problem,
    posterior: Posterior | None = None,
    *,
    prior: Normal | None = None,
    labels: Literal["exact", "sampled"] = "sampled",
    batch_size: int = 64,
    seed: int = 0,
) -> Factorised:
    """Surround trained weights by a Gaussian as wide as the data allow.

    Args:
        problem: network, likelihood and the data it was trained on.
        posterior: where to expand: its mean; None takes the weights of the problem's model.
        prior: of the Bayesian weights; None finds the width that suits the weights best.
        labels: "sampled" takes one label per example from the network's prediction (one
            backward pass each); "exact" sums over all outputs (one pass per output).
        batch_size: examples per pass; memory is batch_size times the size of the network.
        seed: of the sampled labels.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> x, model = torch.full((4, 1), 2.0), torch.nn.Linear(1, 1, bias=False)
        >>> problem = Problem(model, Gaussian(noise_std=0.5), (x, torch.zeros(4)))
        >>> std = laplace(problem, prior=Normal(1.0), labels="exact").std.item()
        >>> round(std**-2, 3)  # 4 · 2² / ¼ + 1
        65.0
    """
    w, buffers, generator = expansion(problem, posterior, labels, batch_size, seed)
    information = torch.zeros_like(w[: problem.layout.n_bayesian], dtype=torch.float64)
    for squares in _squares(problem, w, buffers, batch_size, generator):
        information += squares[: len(information)]
    fitted = prior or Normal(fitted_width(w[: len(information)].double(), information))
    std = (information + fitted.std**-2).rsqrt().to(w.dtype)  # type: ignore[operator]
    return Factorised(problem.network, w, problem.layout.padded(std, 0.0), fitted, None, buffers)


def expansion(
    problem: Problem, posterior: Posterior | None, labels: str, batch_size: int, seed: int
) -> tuple[Tensor, dict[str, Tensor], Generator | None]:
    """Copies of the weights and buffers to expand around, and the source of sampled labels."""
    check_choice("laplace", "labels", labels, ("exact", "sampled"))
    check_positive("laplace", batch_size=batch_size)
    if problem.weighted or problem.rows is not None:  # the curvature would leave them out
        raise ValueError("laplace: every example counts once; take a problem without weights.")
    w = problem.initial if posterior is None else posterior.mean
    buffers = problem.network.buffers() if posterior is None else posterior.buffers
    copies = {name: value.detach().clone() for name, value in buffers.items()}
    generator = Generator(problem.device).manual_seed(seed) if labels == "sampled" else None
    return w.detach().clone(), copies, generator


def _squares(
    problem: Problem,
    w: Tensor,
    buffers: dict[str, Tensor],
    batch_size: int,
    generator: Generator | None,
) -> Iterator[Tensor]:
    """Σ (Jᵀ v)² over the examples of each batch and one v for each, (d,)."""
    network = problem.network

    def projected(flat: Tensor, x: Tensor, v: Tensor) -> Tensor:
        parameters, _ = network.split(flat)
        return (network.call(parameters, buffers, x[None])[0].flatten() * v).sum()

    single = torch.func.grad(projected)
    per_example: Callable[..., Tensor] | None = None
    # The fused kernels of attention have no rule for `vmap`.
    with modes_kept(network.skeleton), sdpa_kernel(SDPBackend.MATH):
        network.skeleton.eval()
        for x in problem.x.split(batch_size):
            outputs = network.outputs(w[None], x, buffers)[0].flatten(1)
            for v in problem.likelihood.curvature(outputs, network.numbers(w), generator):
                per_example = per_example or _together_if_possible(single, w, x, v)
                yield per_example(w, x, v).double().square().sum(0)


def _together_if_possible(
    single: Callable[..., Tensor], w: Tensor, x: Tensor, v: Tensor
) -> Callable[..., Tensor]:
    """Gradients, (n, d), of n examples: under `vmap`, or in turn where it has no rule.

    Recurrent layers and control flow on values have none.
    """
    together = torch.vmap(single, in_dims=(None, 0, 0))
    try:
        together(w, x[:2], v[:2])
    except RuntimeError:  # of vmap; what fails for another reason fails in turn too, and says so
        return partial(_in_turn, single)
    return together


def _in_turn(single: Callable[..., Tensor], w: Tensor, x: Tensor, v: Tensor) -> Tensor:
    try:
        # In eval mode cuDNN's recurrent layers have no gradient; the plain ones have.
        with torch.backends.cudnn.flags(enabled=False):
            return torch.stack([single(w, *row) for row in zip(x, v, strict=True)])
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedModelError(
            f"laplace: the gradient of a single example failed ({reason}). The network must take "
            "batches of one; use FlatVI or SBNN instead."
        ) from error


def fitted_width(mean: Tensor, information: Tensor) -> float:
    """τ with τ² = mean of m² + s²(τ) over the weights: the evidence's fixed point, (L3)."""
    variance = mean.square().mean()
    for _ in range(_N_UPDATES):
        variance = (mean.square() + 1 / (information + 1 / variance)).mean()
    return max(variance.sqrt().item(), 1e-8)
