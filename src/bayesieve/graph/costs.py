"""Costs of a network: the weights that an example passes through, and the time of a call.

Times of several candidates are taken in turns: round after round, each one runs for a few
milliseconds, so that a machine that slows down for a while slows all of them alike.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from bayesieve.checks import check_choice, check_positive
from bayesieve.core.inputs import Input, arguments
from bayesieve.core.layout import Layout

Case = Callable[[], object]
ClockName = Literal["wall", "cpu"]
_CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
_BURST = 2e-3  # seconds a candidate runs before the next one's turn
_MOST_REPEATS = 1000
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class WeightUse(NamedTuple):
    """A weight tensor, or some rows of it, and how often one example passes through it."""

    name: str
    weight: Tensor
    positions: int


def weight_uses(module: nn.Module, example: Input) -> tuple[list[WeightUse], int]:
    """The weights that one example passes through, and the multiply-adds that need no weight.

    Seen are calls of Linear, convolution and attention modules; attention also multiplies
    queries, keys and values with each other. What a module computes with bare functions is not
    seen, and biases, norms and activations are free.

    Args:
        module: in eval mode.
        example: one input, (1, ...).
    """
    names = {layer: f"{name}." if name else "" for name, layer in module.named_modules()}
    uses: list[WeightUse] = []
    free = 0

    def layer_call(layer: nn.Module, _: Any, output: Tensor) -> None:
        weight = layer.get_parameter("weight")
        uses.append(WeightUse(f"{names[layer]}weight", weight, output.numel() // len(weight)))

    def attention_call(layer: nn.Module, inputs: Any, _: Any) -> None:
        nonlocal free
        assert isinstance(layer, nn.MultiheadAttention)
        axis = 1 if layer.batch_first and inputs[0].dim() == 3 else 0
        queries, keys = (int(tensor.shape[axis]) for tensor in inputs[:2])
        if layer.in_proj_weight is not None:
            leaves = ["in_proj_weight"] * 3
            weights = layer.in_proj_weight.chunk(3)
        else:
            leaves = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
            weights = tuple(layer.get_parameter(leaf) for leaf in leaves)
        for leaf, weight, n in zip(leaves, weights, (queries, keys, keys), strict=True):
            uses.append(WeightUse(names[layer] + leaf, weight, n))
        uses.append(WeightUse(f"{names[layer]}out_proj.weight", layer.out_proj.weight, queries))
        free += 2 * queries * keys * layer.embed_dim  # scores, and the mixture of values

    hooks = []
    for layer in names:
        if isinstance(layer, (nn.Linear, *CONVS)):
            hooks.append(layer.register_forward_hook(layer_call))
        elif isinstance(layer, nn.MultiheadAttention):
            hooks.append(layer.register_forward_hook(attention_call))
    try:
        args, kwargs = arguments(module, example)
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return uses, free


def live_macs(layout: Layout, keep: Tensor, positions: Mapping[str, int]) -> int:
    """Multiply-adds of one example once rows and columns without a kept weight are gone."""
    total = 0
    for name, mask in layout.pieces(keep):
        if name in positions:
            by_channel = mask.flatten(2).any(2) if mask.dim() > 2 else mask
            kernel = mask[0, 0].numel() if mask.dim() > 2 else 1
            live = int(by_channel.any(1).sum()) * int(by_channel.any(0).sum())
            total += live * kernel * positions[name]
    return total


def interleaved(
    cases: Mapping[str, Case], *, rounds: int = 15, clock: ClockName = "wall"
) -> dict[str, list[float]]:
    """Milliseconds per call of every case, one number per round, cases taking turns.

    Args:
        cases: what to call, by name; each is called a few times first.
        rounds: turns of each case.
        clock: "wall", or "cpu" for the processor time of this process.

    Example:
        >>> times = interleaved({"short": lambda: sum(range(9)), "long": lambda: sum(range(9999))})
        >>> min(times["long"]) > 5 * min(times["short"])
        True
    """
    check_positive("interleaved", rounds=rounds)
    check_choice("interleaved", "clock", clock, _CLOCKS)
    now = _CLOCKS[clock]
    repeats = {name: _repeats(case) for name, case in cases.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            n = repeats[name]
            case()  # refill the caches
            start = now()
            for _ in range(n):
                case()
            times[name].append((now() - start) / n * 1e3)
    return times


def _repeats(case: Case) -> int:
    """Calls that fill a burst, from the quickest of a few."""
    case()
    quickest = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        case()
        quickest = min(quickest, time.perf_counter() - start)
    return max(1, min(_MOST_REPEATS, round(_BURST / max(quickest, 1e-9))))
