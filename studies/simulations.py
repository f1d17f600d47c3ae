"""Simulated regressions with known relevant inputs.

    y = Σ_j β_j Z_j f(x_j) + ε,   x_j, ε ~ N(0, 1),   Z_j ~ Bern(active_prob),   β_j = j / alpha

with f(x) = x or f(x) = exp|x| - 2x + sin 2πx.

Reference: [Saha], experiments 1 to 4.
Symbols: Z active, β coefficients, π active_prob.
Departures: the paper does not say how x is drawn in experiments 2 to 4; N(0, 1) as in 1.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_fraction, check_positive
from bayesieve.data.examples import DataSet, Examples, split_index


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated data set and the truth behind it.

    Args:
        data: 80 % training and 20 % test examples; y is standardised on the training part.
        active: Z, shape (d,), True where an input enters y.
        coefficients: β, shape (d,), also of the inputs that do not enter.
    """

    data: DataSet
    active: Tensor
    coefficients: Tensor


def additive(
    n: int = 2000,
    d: int = 100,
    active_prob: float = 0.2,
    alpha: float = 2.0,
    nonlinear: bool = True,
    seed: int = 0,
) -> Simulation:
    """Draw a sum of (non-)linear effects of some of d inputs; experiments 2, 3 and 4.

    Args:
        n: number of examples, training and test together.
        d: number of inputs.
        active_prob: chance of each input to enter y; 1 gives experiment 2.
        alpha: effect sizes are β_j = j / alpha for j = 1..d.
        nonlinear: f(x) = exp|x| - 2x + sin 2πx, else f(x) = x.
        seed: of this function's own generator.

    Example:
        >>> simulation = additive(n=500, d=20, active_prob=0.2, seed=0)
        >>> simulation.data.train.x.shape, simulation.coefficients[:3].tolist()
        (torch.Size([400, 20]), [0.5, 1.0, 1.5])
    """
    check_positive("additive", n=n, d=d, alpha=alpha)
    check_fraction("additive", active_prob=active_prob)
    generator = torch.Generator().manual_seed(seed)
    active = torch.rand(d, generator=generator) < active_prob
    coefficients = torch.arange(1, d + 1, dtype=torch.float32) / alpha
    x = torch.randn(n, d, generator=generator)
    effects = additive_effect(x) if nonlinear else x
    y = effects @ (coefficients * active) + torch.randn(n, generator=generator)
    name = f"additive (d={d}, active_prob={active_prob:g}, alpha={alpha:g})"
    return Simulation(_split(name, x, y, generator), active, coefficients)


def two_inputs(n: int = 2000, mix: float = 0.5, seed: int = 0) -> Simulation:
    """Draw y = (1 - mix) x_1 + mix x_2 + ε; experiment 1.

    Example:
        >>> two_inputs(mix=0.25).coefficients.tolist()
        [0.75, 0.25]
    """
    check_positive("two_inputs", n=n)
    check_fraction("two_inputs", mix=mix)
    generator = torch.Generator().manual_seed(seed)
    coefficients = torch.tensor([1 - mix, mix])
    x = torch.randn(n, 2, generator=generator)
    y = x @ coefficients + torch.randn(n, generator=generator)
    data = _split(f"two inputs (mix={mix:g})", x, y, generator)
    return Simulation(data, coefficients != 0, coefficients)


def additive_effect(x: Tensor) -> Tensor:
    """Return f(x) = exp|x| - 2x + sin 2πx, elementwise.

    Example:
        >>> round(additive_effect(torch.tensor(1.0)).item(), 4)
        0.7183
    """
    return x.abs().exp() - 2 * x + torch.sin(2 * math.pi * x)


def _split(name: str, x: Tensor, y: Tensor, generator: Generator) -> DataSet:
    seed = int(torch.randint(2**31, (), generator=generator))
    train, test = split_index(len(x), 0.2, seed, who="synthetic")
    mean, std = y[train].mean(), y[train].std(correction=0)
    first, second = (Examples(x[i], (y[i] - mean) / std, mean, std) for i in (train, test))
    names = tuple(f"x{j}" for j in range(1, x.shape[1] + 1))
    plain = {"kind": "numeric", "mean": 0.0, "std": 1.0, "fill": None}
    target = {"name": "y", "mean": mean.item(), "std": std.item()}
    columns = [{"name": input_name, **plain} for input_name in names]
    recipe = {"kind": "table", "columns": columns, "target": target}
    return DataSet(name, first, second, "regression", None, names, recipe)
