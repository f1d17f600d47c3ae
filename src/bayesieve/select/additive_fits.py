"""The many fits of a cross-validation by additive networks: functions once, errors in closed form.

The functions of the inputs are fixed, so they are computed once and what is trained is a linear
layer on them. Which inputs matter is asked of an engine, as everywhere. What a choice of inputs is
worth needs no engine: with w ~ N(0, σ²/λ) and noise N(0, σ²), G = ΦᵀΦ over n centred examples and
c = Φᵀy,

    w = (G + λI)⁻¹ c,   σ² = (yᵀy - cᵀw) / n,
    log p(y) = -n/2 log σ² - ½ log |G + λI| + d/2 log λ + const

and λ is the one of a grid under which the rows are most probable. Choices that are nested, as the
shares of a ranking are, take their solutions from one Cholesky factor.

Reference: [Bishop], section 3.5, for the evidence.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.core.likelihoods import Gaussian, Likelihood
from bayesieve.core.posterior import Posterior
from bayesieve.engines import Engine
from bayesieve.select.basis import HingeBasis
from bayesieve.select.fits import PopulationFits, Training
from bayesieve.select.importance import normalised, path_importance
from bayesieve.select.weights import matrices_of, weight_probabilities

_PENALTIES = tuple(10.0**i for i in range(-1, 4))  # λ; 1 is a prior as wide as one example's worth


@dataclass(frozen=True, eq=False)
class AdditiveFits:
    """`TableFits` of a regression by additive networks, see `additive_network`.

    Args:
        x: (N, D), standardised inputs.
        y: (N,), targets.
        engine: whose posterior ranks the inputs; its prior must give inclusion probabilities.
        training: how the engine's fits are trained.
        likelihood: of the engine's fits.
        n_hinges: per input.

    Example:
        >>> from bayesieve import SBNN, SpikeSlab
        >>> x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
        >>> fits = AdditiveFits(x, x[:, 0].abs(), SBNN(SpikeSlab(0.4, 0.02), init_std=0.01))
        >>> rows, rest = torch.arange(60), torch.arange(60, 80)
        >>> keep = torch.tensor([[True, False], [False, True]])
        >>> first, second = fits.errors([rows, rows], [rest, rest], keep)
        >>> bool(first < 0.1 * second)
        True
    """

    x: Tensor
    y: Tensor
    engine: Engine[Any]
    training: Training = field(default_factory=Training)
    likelihood: Likelihood = field(default_factory=lambda: Gaussian(0.5, learned=True))
    n_hinges: int = 5

    def __post_init__(self) -> None:
        if self.y.ndim != 1 or not self.y.is_floating_point():
            raise ValueError(
                "AdditiveFits: y must be one floating-point target per row, got "
                f"{self.y.dtype} of shape {tuple(self.y.shape)}. Use PopulationFits for others."
            )

    @cached_property
    def _basis(self) -> HingeBasis:
        return HingeBasis(self.x, self.n_hinges)

    @cached_property
    def _values(self) -> Tensor:
        """All functions of all rows, (N, D · K)."""
        return self._basis(self.x)

    def importance(self, rows: Sequence[Tensor]) -> Tensor:
        """Normalised importance φ, averaged over seeds, from a fit on each set of rows, (k, D)."""
        layer = nn.Linear(self._values.shape[1], 1, dtype=self.x.dtype)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        fits = PopulationFits(
            self._values, self.y, nn.Sequential(OrderedDict(out=layer)), self.likelihood,
            self.engine, self.training,
        )  # fmt: skip
        found = [torch.stack([self._phi(q) for q in own]).mean(0) for own in fits.posteriors(rows)]
        return torch.stack(found)

    def _phi(self, posterior: Posterior) -> Tensor:
        psi = path_importance(matrices_of(posterior, weight_probabilities(posterior))).cpu()
        present = self._basis.present.cpu()
        return normalised((psi.view(present.shape) * present).mean(-1))

    def errors(self, rows: Sequence[Tensor], held_out: Sequence[Tensor], keep: Tensor) -> Tensor:
        """Squared error per held-out row, (k,), with the inputs each line of `keep`, (k, D), has.

        Fits on the same rows (the same tensor) share their matrices.
        """
        groups: dict[int, list[int]] = {}
        for i, own in enumerate(rows):
            groups.setdefault(id(own), []).append(i)
        found = torch.zeros(len(rows))
        for places in groups.values():
            values, target = self._centred(rows[places[0]], rows[places[0]])
            gram, moment = values.T @ values, values.T @ target
            square = float(target.square().sum())
            tests = {id(held_out[i]): held_out[i] for i in places}
            parts = {key: self._centred(own, rows[places[0]]) for key, own in tests.items()}
            for order, lines in _nested(keep[places]):
                columns = self._columns(order)
                sizes = [len(self._columns(order[: int(keep[places[j]].sum())])) for j in lines]
                weights = ridge_path(
                    gram[columns][:, columns], moment[columns], square, len(target), sizes
                )
                for j, w in zip(lines, weights, strict=True):
                    i = places[j]
                    x, y = parts[id(held_out[i])]
                    found[i] = (x[:, columns[: len(w)]] @ w - y).square().mean()
        return found

    def _centred(self, rows: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Functions and targets of rows in double precision, less their means over others."""
        values, target = self._values[rows].double(), self.y[rows].double()
        if rows is reference:
            return values - values.mean(0), target - target.mean()
        known = self._values[reference].double().mean(0), self.y[reference].double().mean()
        return values - known[0], target - known[1]

    def _columns(self, inputs: Tensor) -> Tensor:
        """Places of the functions of these inputs that are not 0 everywhere, in their order."""
        k = self._basis.n_functions
        places = (inputs[:, None] * k + torch.arange(k)).flatten()
        return places[self._basis.present.cpu()[inputs].flatten()]


def _nested(keep: Tensor) -> list[tuple[Tensor, list[int]]]:
    """Orders of the inputs, and the lines of `keep`, (k, D), that are a beginning of each.

    Example:
        >>> _nested(torch.tensor([[True, False, True], [True, False, False]]))
        [(tensor([0, 2]), [0, 1])]
    """
    counts = keep.sum(0)
    order = counts.argsort(descending=True, stable=True)
    order = order[counts[order] > 0]
    found: list[tuple[Tensor, list[int]]] = [(order, [])]
    for i, own in enumerate(keep):
        inputs = own.nonzero()[:, 0]
        if torch.equal(order[: len(inputs)].sort().values, inputs):
            found[0][1].append(i)
        else:
            found.append((inputs, [i]))
    return [pair for pair in found if pair[1]]


def ridge_path(
    gram: Tensor, moment: Tensor, square: float, n: int, sizes: Sequence[int]
) -> list[Tensor]:
    """Weights of the first 0 < size <= d functions for every size, each with its most probable λ.

    Args:
        gram: (d, d), ΦᵀΦ.
        moment: (d,), Φᵀy.
        square: yᵀy.
        n: examples.
        sizes: how many functions are used.

    Example:
        >>> phi = torch.eye(4, 2, dtype=torch.float64)
        >>> (w,) = ridge_path(phi.T @ phi, phi.T @ phi[:, 0], 1.0, 4, [1])
        >>> round(w.item(), 4)  # 1 / (1 + λ), λ = 0.1
        0.9091
    """
    best = [-math.inf] * len(sizes)
    chosen: list[Tensor] = [moment[:0]] * len(sizes)
    for penalty in _PENALTIES:
        factor = torch.linalg.cholesky(gram + penalty * torch.eye(len(gram), dtype=gram.dtype))
        half = torch.linalg.solve_triangular(factor, moment[:, None], upper=False)[:, 0]
        explained, volume = half.square().cumsum(0), 2 * factor.diagonal().log().cumsum(0)
        for j, size in enumerate(sizes):
            if size == 0:
                continue
            rest = max((square - float(explained[size - 1])) / n, torch.finfo(gram.dtype).tiny)
            log_volume = float(volume[size - 1]) - size * math.log(penalty)
            evidence = -0.5 * (n * math.log(rest) + log_volume)
            if evidence > best[j]:
                upper = factor[:size, :size].T
                own = torch.linalg.solve_triangular(upper, half[:size, None], upper=True)[:, 0]
                best[j], chosen[j] = evidence, own
    return chosen
