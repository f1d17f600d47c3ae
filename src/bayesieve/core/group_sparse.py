"""The group Bernoulli-Gaussian prior: a whole group of weights is zero, or all of it is normal."""

from dataclasses import dataclass
from typing import Literal

from bayesieve.checks import check_choice, check_fraction, check_positive

Group = Literal["units", "inputs", "weights"]
GROUPS: tuple[Group, ...] = ("units", "inputs", "weights")


@dataclass(frozen=True)
class GroupSparse:
    """s ~ Bernoulli(active_prob) per group; weights are N(0, ν) where s = 1 and 0 where s = 0.

    The slab variance ν of a layer is the number below divided by the layer's inputs.

    Args:
        group: what is kept or removed as one: "units" (a hidden unit's incoming weights and its
            bias), "inputs" (all weights leaving one input feature) or single "weights".
        active_prob: ρ, prior probability that a group is active; learned from there.
        hidden_variance: ν times fan-in of hidden layers.
        output_variance: ν times fan-in of the last layer.

    Example:
        >>> GroupSparse(hidden_variance=2.0).slab_variance(50, last=False)
        0.04
    """

    group: Group = "units"
    active_prob: float = 0.5
    hidden_variance: float = 1.0
    output_variance: float = 3.0

    def __post_init__(self) -> None:
        check_choice("GroupSparse", "group", self.group, GROUPS)
        check_fraction("GroupSparse", open_ends=True, active_prob=self.active_prob)
        check_positive(
            "GroupSparse",
            hidden_variance=self.hidden_variance,
            output_variance=self.output_variance,
        )

    def slab_variance(self, fan_in: int, *, last: bool) -> float:
        """ν of a layer's weights and biases."""
        return (self.output_variance if last else self.hidden_variance) / fan_in
