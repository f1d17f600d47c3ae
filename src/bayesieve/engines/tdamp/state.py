"""What EM-TDAMP remembers between batches, in natural parameters."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from bayesieve.core.state import Controls
from bayesieve.engines.tdamp.wiring import Wiring


class PassSettings(NamedTuple):
    """The engine's settings of the same names; `joint`: units are judged by joint evidence."""

    keep: float | None
    prune_passes: tuple[int, int]
    learn_slab: bool
    joint: bool


@dataclass
class TDAMPState:
    """What must survive a step."""

    prior_linear: Tensor  # H₀, (k, d)
    prior_precision: Tensor  # P₀
    data_linear: Tensor  # H
    data_precision: Tensor  # G
    slab_var: Tensor  # ν per layer, (k, layers + 1); 1 for point parameters
    log_odds: Tensor  # of a group being active given the data, (k, g + 1); +inf without a group
    prior_log_odds: Tensor  # logit ρ, (k, g + 1)
    alive: Tensor  # 1 or 0, (k, g + 1)
    reached: Tensor  # 1 where a weight's own group and the unit it listens to are alive, (k, d)
    noise: Tensor  # v, (k, 1)
    residual: Tensor  # Σ of eq. T23 in this pass, (k, 1)
    gram: Tensor  # eq. T26 summed over this pass, one layer after the other, (k, Σ (units + 1)²)
    count: Tensor  # how often the data are counted in (H, G), scalar
    seen: Tensor  # examples of this pass so far, scalar
    passes: Tensor  # completed, scalar
    controls: Controls
    generator: Generator
    wiring: Wiring
    n_bayesian: int


def kept(state: TDAMPState) -> Tensor:
    """1 where a weight takes part, (k, d): its groups are alive and no mask forbids it."""
    own = state.reached
    return own if state.controls.keep is None else own * state.controls.keep


def moments(state: TDAMPState) -> tuple[Tensor, Tensor]:
    """Mean and variance of every weight, (k, d); both 0 where it takes no part, eq. T1."""
    prior = state.controls.kl_scale
    own = kept(state)
    var = 1 / (prior * state.prior_precision + state.data_precision)
    return (prior * state.prior_linear + state.data_linear) * var * own, var * own


def set_(old: Tensor, new: Tensor, now: Tensor) -> None:
    """Overwrite in place where `now`."""
    old.copy_(torch.where(now, new, old))
