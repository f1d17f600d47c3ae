"""State of EM-TDAMP between batches in natural parameters, and the wiring of the network.

The wiring is index vectors over w: the layer, the group and the slab of each entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.core.layout import Layout
from bayesieve.core.network import Network, sequential_layers
from bayesieve.core.state import Controls
from bayesieve.engines.tdamp.damp import Layer, Window
from bayesieve.errors import UnsupportedModelError

Group = Literal["units", "inputs", "weights"]
GROUPS: tuple[Group, ...] = ("units", "inputs", "weights")
_SUPPORTED = "Linear, Conv2d, ReLU, Flatten"


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


class Wiring:
    """Linear layers or convolutions in sequence with ReLU between, as index vectors over w.

    Attributes:
        layers: tensor names, from input to output.
        n_groups: g; the index g means "no group".
        blocks: the range of groups of each layer, each with its own sparsity.
        group_of: (d,), the group whose indicator switches a weight.
        source_of: (d,), the hidden unit that a weight reads, where units are groups.
        grams: where a layer's (groups + 1)² numbers of eq. T26 sit among all `n_gram`.
        layer_of: (d,), the layer of a weight; the number of layers for point parameters.
    """

    def __init__(self, network: Network, group: Group) -> None:
        layers, layout = tuple(_layers(network)), network.layout
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        grouped = {"units": layers[:-1], "inputs": layers[:1], "weights": layers}[group]
        sizes = [shapes[layer.weight] for layer in grouped]
        counts = [{"units": s[0], "inputs": s[1], "weights": s.numel()}[group] for s in sizes]
        self.blocks, self.n_groups = _consecutive(counts)
        self.grams, self.n_gram = _consecutive([(count + 1) ** 2 for count in counts])
        groups: dict[str, Tensor | int] = {}
        sources: dict[str, Tensor | int] = {}
        for i, (layer, block, count) in enumerate(zip(grouped, self.blocks, counts, strict=True)):
            number = torch.arange(block.start, block.stop)
            if group == "units":
                for name in layer.tensors:
                    groups[name] = number.repeat_interleave(shapes[name].numel() // count)
                above = layers[i + 1].weight
                # behind Flatten a channel of a convolution has one column per position
                columns = number.repeat_interleave(shapes[above][1] // count)
                sources[above] = _across(columns, shapes[above])
            else:
                groups[layer.weight] = _across(number, sizes[i]) if group == "inputs" else number
        numbers = {name: i for i, layer in enumerate(layers) for name in layer.tensors}
        self.layers, self.n_layers = layers, len(layers)
        self.group_of = _index(network, groups, self.n_groups)
        self.source_of = _index(network, sources, self.n_groups)
        self.layer_of = _index(network, numbers, self.n_layers)

    def reach(self, values: Tensor) -> Tensor:
        """The lower of a weight's own group's value and that of the unit it reads, (k, d)."""
        return torch.minimum(values[:, self.group_of], values[:, self.source_of])


def _layers(network: Network) -> list[Layer]:
    """The layers with weights in order; raises unless they alternate with ReLU."""
    layers: list[Layer] = []
    relu_next = flat = False
    for name, module in sequential_layers(network.skeleton):
        if isinstance(module, nn.Flatten) and not relu_next and not flat:
            flat = True
            continue
        linear = isinstance(module, nn.Linear)
        if not relu_next and (linear or (isinstance(module, nn.Conv2d) and not flat)):
            if linear and layers and layers[-1].window is not None and not flat:
                raise UnsupportedModelError(
                    f"TDAMP: layer {name!r} (Linear) follows a convolution; put Flatten before it."
                )
            layers.append(_layer(network.layout, name, module))
            flat = flat or linear
        elif not (isinstance(module, nn.ReLU) and relu_next):
            kind = type(module).__name__
            if kind in _SUPPORTED:
                raise UnsupportedModelError(
                    f"TDAMP: {_called(name)} ({kind}) is out of place; supported is Conv2d layers, "
                    "Flatten, then Linear layers, with one ReLU between each two."
                )
            raise UnsupportedModelError(
                f"TDAMP: {_called(name)} ({kind}) is not supported; supported: {_SUPPORTED}."
            )
        relu_next = not relu_next
    if not relu_next or layers[-1].window is not None:
        raise UnsupportedModelError("TDAMP: the last layer must be Linear; remove what follows it.")
    return layers


def _window(name: str, module: nn.Conv2d) -> Window:
    """Where a convolution looks; raises for what `unfold` cannot do."""
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise UnsupportedModelError(
            f"TDAMP: {_called(name)} (Conv2d) must have groups=1 and its padding given as "
            "numbers of zeros."
        )
    fields = (module.kernel_size, module.stride, module.padding, module.dilation)
    return Window(*((int(high), int(wide)) for high, wide in fields))


def _called(name: str) -> str:
    """A layer in an error; the root, which is a layer when it is no Sequential, has no name."""
    return f"layer {name!r}" if name else "the model itself"


def _layer(layout: Layout, name: str, module: nn.Module) -> Layer:
    prefix = f"{name}." if name else ""
    window = _window(name, module) if isinstance(module, nn.Conv2d) else None
    layer = Layer(f"{prefix}weight", None if module.bias is None else f"{prefix}bias", window)
    for tensor in layer.tensors:
        if tensor not in layout.names:
            raise UnsupportedModelError(
                f"TDAMP: parameter {tensor!r} is frozen or shared with another layer; that is not "
                "supported. Make it a trainable parameter of its own."
            )
    return layer


def _consecutive(lengths: list[int]) -> tuple[list[slice], int]:
    """Ranges of these lengths one after the other, and where the last ends."""
    ends = [0, *accumulate(lengths)]
    return [slice(*pair) for pair in pairwise(ends)], ends[-1]


def _across(values: Tensor, shape: torch.Size) -> Tensor:
    """One value per input of a weight tensor, at each of its entries."""
    return values.view(1, -1, *[1] * (len(shape) - 2)).expand(shape)


def _index(network: Network, values: Mapping[str, Tensor | int], other: int) -> Tensor:
    """Values by tensor name at each entry of w, (d,); `other` at all entries without one."""
    index = torch.full((network.layout.size,), other)
    for name, numbers in values.items():
        index[network.layout.slices[name]] = torch.as_tensor(numbers).reshape(-1)
    return index.to(network.device)


@dataclass
class TDAMPState:
    """State between two steps."""

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
    keep = state.controls.keep
    return state.reached if keep is None else state.reached * keep


def moments(state: TDAMPState) -> tuple[Tensor, Tensor]:
    """Mean, and variance with the data counted once, (k, d); 0 where a weight takes no part."""
    scale, count, weight = state.controls.kl_scale, state.count.clamp(min=1), kept(state)
    prior, linear = scale * state.prior_precision, scale * state.prior_linear + state.data_linear
    mean = linear * (weight / (prior + state.data_precision))  # eq. T1
    return mean, weight / (prior + state.data_precision / count)


def set_(old: Tensor, new: Tensor, now: Tensor) -> None:
    """Overwrite in place where `now`."""
    old.copy_(torch.where(now, new, old))
