"""What a masked network costs once it is compacted: multiply-adds and time."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from bayesieve.core.layout import Layout
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Posterior
from bayesieve.sieve._grouping import GroupSet


def layer_positions(posterior: Posterior, example: Tensor) -> dict[str, int]:
    """How often one example passes through each weight tensor of a Linear or convolution layer."""
    module = materialise(posterior.network, posterior.mean, posterior.buffers)
    positions: dict[str, int] = {}
    hooks = []
    for name, own in module.named_modules():
        if isinstance(own, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            hooks.append(own.register_forward_hook(_counter(positions, f"{name}.weight")))
        elif isinstance(own, nn.MultiheadAttention):
            names = [f"{name}.in_proj_weight", f"{name}.out_proj.weight"]
            hooks += [own.register_forward_hook(_token_counter(positions, n)) for n in names]
    with torch.no_grad():
        module(example[:1].to(posterior.network.device))
    for hook in hooks:
        hook.remove()
    return positions


def _counter(positions: dict[str, int], name: str) -> Callable[[nn.Module, object, Tensor], None]:
    def count(own: nn.Module, _inputs: object, output: Tensor) -> None:
        n_out = int(own.get_parameter("weight").shape[0])
        positions[name] = positions.get(name, 0) + output.numel() // n_out

    return count


def _token_counter(
    positions: dict[str, int], name: str
) -> Callable[[nn.Module, tuple[Tensor, ...], object], None]:
    def count(_own: nn.Module, inputs: tuple[Tensor, ...], _output: object) -> None:
        query = inputs[0]
        positions[name] = positions.get(name, 0) + query.numel() // query.shape[-1]

    return count


def count_macs(layout: Layout, keep: Tensor, positions: Mapping[str, int]) -> int:
    """Multiply-adds of one example once rows and columns without a kept weight are gone."""
    total = 0
    for name, mask in layout.pieces(keep):
        if name in positions:
            by_channel = mask.flatten(2).any(2) if mask.dim() > 2 else mask
            kernel = mask[0, 0].numel() if mask.dim() > 2 else 1
            live = int(by_channel.any(1).sum()) * int(by_channel.any(0).sum())
            total += live * kernel * positions[name]
    return total


def group_cost(own: GroupSet, layout: Layout, positions: Mapping[str, int]) -> float:
    """Multiply-adds that one group of a set costs in the whole network, at least 1."""
    per_entry = torch.zeros(layout.size, dtype=torch.float64, device=own.entries.device)
    for name, part in layout.slices.items():
        per_entry[part] = positions.get(name, 0)
    return max(float(per_entry[own.entries].sum()) / own.n, 1.0)


def median_ms(module: nn.Module, example: Tensor, rounds: int) -> float:
    """Median processor time of a call, in milliseconds."""
    times = []
    with torch.no_grad():
        for _ in range(3):
            module(example)
        for _ in range(rounds):
            start, n = time.process_time(), 0
            while n < 200 and time.process_time() - start < 2e-3:
                module(example)
                n += 1
            times.append((time.process_time() - start) / n * 1e3)
    return statistics.median(times)
