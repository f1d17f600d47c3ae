"""Laplace around a trained transformer: time and memory against gradients of single examples.

    OMP_NUM_THREADS=1 python benchmarks/laplace.py [--width 256] [--layers 4] [--out FILE]

Both take the same sequences on the same network in one process. Memory is the most at once beyond
the network and its data, in bytes per weight. `reduce` cuts a plain network of about a million
weights to half by curvature of whole units.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesieve.assess.memory import forget_peak, peak_resident_bytes
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.engines.laplace import laplace, laplace_units
from bayesieve.files import write_atomically
from bayesieve.nets import mlp
from bayesieve.sieve.evidence import prune_units_by_evidence

SYMBOLS, POSITIONS, SEQUENCES = 2000, 64, 8


class Block(nn.Module):
    """Attention and a hidden layer, each after a norm and around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.write = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix positions, then each position by itself, (n, t, width)."""
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, -1, 64).transpose(1, 2)
            for part in self.read(self.before(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.write(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


def transformer(width: int, layers: int) -> nn.Module:
    """Symbols to scores of the next symbol, (n, t) to (n, t, symbols)."""
    blocks = [Block(width) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(SYMBOLS, width), *blocks, nn.Linear(width, SYMBOLS))


def single_gradients(model: nn.Module, x: Tensor) -> None:
    """The gradient of every sequence, one after the other, as plain `torch.func` takes it."""
    tensors = {name: p.detach() for name, p in model.named_parameters()}

    def loss(tensors: dict[str, Tensor], row: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, tensors, (row[None],))[0], row)

    gradient = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    with sdpa_kernel(SDPBackend.MATH):
        for row in x.split(1):
            gradient(tensors, row)


def measure(width: int, layers: int) -> dict[str, Any]:
    """All numbers, by name."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randint(SYMBOLS, (SEQUENCES, POSITIONS))
    model = transformer(width, layers)
    problem = Problem(model, Categorical(), (x, x))
    laplace(with_data(problem, (x[:1], x[:1])))  # loads all libraries
    began = time.perf_counter()
    single_gradients(model, x)
    plain = time.perf_counter() - began
    before, began = forget_peak(), time.perf_counter()
    laplace(problem)
    seconds, size = time.perf_counter() - began, problem.layout.size
    row = {
        "parameters": size, "sequences": SEQUENCES, "seconds": round(seconds, 2),
        "to_single_gradients": round(seconds / plain, 2),
        "bytes_per_weight": round((peak_resident_bytes() - before) / size, 1),
    }  # fmt: skip
    images = torch.randn(512, 1, 28, 28)
    plain_net = Problem(
        mlp((1, 28, 28), 10, (800, 400)), Categorical(), (images, torch.arange(512) % 10)
    )
    units = laplace_units(plain_net)
    began = time.perf_counter()
    prune_units_by_evidence(units, 0.5, rounds=1)
    cut = time.perf_counter() - began
    per_million = cut / plain_net.layout.size * 1e6
    return row | {"reduce_seconds_per_million_weights": round(per_million, 2)}


def main() -> None:
    """Print the numbers, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    text = json.dumps(measure(asked.width, asked.layers))
    print(text)
    if asked.out is not None:
        write_atomically(asked.out, json.loads(text))


if __name__ == "__main__":
    main()
