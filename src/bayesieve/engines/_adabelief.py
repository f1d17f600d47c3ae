"""AdaBelief on flat tensors: Adam that divides by how far a gradient is from its own forecast.

    m ← β₁m + (1-β₁)g,   s ← β₂s + (1-β₂)(g - m)² + ε,   step = lr · m̂ / (√ŝ + ε)

Reference: Zhuang et al. (2020), algorithm 2, with ε = 1e-16 in both places. The moments are the
`Moments` of Adam, and so is the correction of their bias.
"""

from torch import Tensor

from bayesieve.core.adam import BETA_1, BETA_2

EPS = 1e-16


def adabelief_(
    parameter: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    step_length: Tensor,
    second_factor: Tensor,
    trained: Tensor | None = None,
) -> None:
    """One AdaBelief step in place where `trained`; lengths as `bias_corrected` returns them."""
    first.mul_(BETA_1).add_(grad, alpha=1 - BETA_1)
    surprise = grad - first
    second.mul_(BETA_2).addcmul_(surprise, surprise, value=1 - BETA_2).add_(EPS)
    step = step_length * first / (second.sqrt() * second_factor + EPS)
    parameter.sub_(step if trained is None else step * trained)
