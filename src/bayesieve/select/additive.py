"""Additive networks: hinges of every input, then one linear layer; and their closed form.

    f(x) = b + Σ_j [ w_j0 x_j + Σ_k w_jk max(x_j - t_jk, 0) ]

The hinges are fixed, so every trained weight belongs to one input and f is a sum of piecewise
linear effects. Where effects are additive it needs far fewer examples than hidden layers to tell
the inputs that matter from those that do not; interactions are beyond it.

The error of a regression on some of the inputs needs no training (`additive_errors`). With
w ~ N(0, σ²/λ) and noise N(0, σ²), G = ΦᵀΦ over n centred examples and c = Φᵀy,

    w = (G + λI)⁻¹ c,   σ² = (yᵀy - cᵀw) / n,
    log p(y) = -n/2 log σ² - ½ log |G + λI| + d/2 log λ + const

and λ is the one of a grid under which the rows are most probable. Choices that are nested, as the
shares of a ranking are, take their solutions from one Cholesky factor.

References: [Hastie]; [Agarwal] for the neural form; [Bishop], section 3.5, for the evidence.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesieve.checks import check_positive

_MOST_ROWS = 5000
_PENALTIES = tuple(10.0**i for i in range(-1, 4))  # λ; 1 is a prior as wide as one example's worth


class HingeBasis(nn.Module):
    """Maps (n, D) to (n, D · K): each input, and K - 1 hinges of it, made orthogonal.

    The functions of one input are orthonormal over the examples (Gram and Schmidt, the input itself
    first), so that a posterior that takes weights as independent is right about their spread;
    a function that adds nothing to those before it is 0.

    Args:
        x: (N, D), inputs whose quantiles become the places of the hinges; of more than 5,000 rows
            about that many, evenly spaced, are looked at.
        n_hinges: K - 1.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> basis = HingeBasis(x, n_hinges=1)
        >>> basis(x).shape, basis.places.tolist()
        (torch.Size([3, 2]), [[1.0]])
    """

    places: Tensor
    center: Tensor
    transform: Tensor

    def __init__(self, x: Tensor, n_hinges: int = 5) -> None:
        super().__init__()
        check_positive("HingeBasis", n_hinges=n_hinges)
        x = x[:: max(1, len(x) // _MOST_ROWS)]
        levels = torch.arange(1, n_hinges + 1, dtype=x.dtype, device=x.device) / (n_hinges + 1)
        self.n_inputs, self.n_functions = x.shape[1], n_hinges + 1
        self.register_buffer("places", x.quantile(levels, dim=0).T.contiguous())  # (D, K - 1)
        raw = self._functions(x).double()
        center = raw.mean(0)
        self.register_buffer("center", center.to(x.dtype))  # (D, K)
        self.register_buffer("transform", _orthonormal(raw - center).to(x.dtype))  # (D, K, K)

    def forward(self, x: Tensor) -> Tensor:
        """Compute all functions of all inputs; functions of one input are side by side."""
        centred = self._functions(x) - self.center
        return torch.einsum("ndk,dkm->ndm", centred, self.transform).flatten(1)

    @property
    def present(self) -> Tensor:
        """Mark functions that are not 0 everywhere, (D, K)."""
        return (self.transform != 0).any(1)

    def _functions(self, x: Tensor) -> Tensor:
        column = x[:, :, None]
        return torch.cat([column, (column - self.places).clamp_min(0)], 2)


def _orthonormal(values: Tensor) -> Tensor:
    """Upper triangles T, (D, K, K), that make centred functions, (N, D, K), orthonormal."""
    _, d, k = values.shape
    transform = torch.eye(k, dtype=values.dtype, device=values.device).repeat(d, 1, 1)
    rest = values.clone()
    for i in range(k):
        size = rest[:, :, i].square().mean(0).sqrt()
        original = values[:, :, i].square().mean(0).sqrt()
        # 1e-3: what is left of a function that the earlier ones nearly give is rounding.
        factor = torch.where(size > 1e-3 * original, 1 / size.clamp_min(1e-300), 0.0)
        rest[:, :, i] *= factor
        transform[:, :, i] *= factor[:, None]
        for j in range(i + 1, k):
            overlap = (rest[:, :, i] * rest[:, :, j]).mean(0)
            rest[:, :, j] -= overlap * rest[:, :, i]
            transform[:, :, j] -= overlap[:, None] * transform[:, :, i]
    return transform


def additive_network(x: Tensor, n_outputs: int = 1, n_hinges: int = 5) -> nn.Sequential:
    """A linear layer on the hinges of every input, with weights 0 to begin with.

    Args:
        x: (N, D), training inputs.
        n_outputs: of the network.
        n_hinges: per input.

    Example:
        >>> [name for name, _ in additive_network(torch.randn(10, 3)).named_children()]
        ['basis', 'out']
    """
    basis = HingeBasis(x, n_hinges)
    out = nn.Linear(basis.n_inputs * basis.n_functions, n_outputs, dtype=x.dtype, device=x.device)
    nn.init.zeros_(out.weight)
    nn.init.zeros_(out.bias)
    return nn.Sequential(OrderedDict(basis=basis, out=out))


def additive_errors(
    basis: HingeBasis,
    values: Tensor,
    y: Tensor,
    rows: Sequence[Tensor],
    held_out: Sequence[Tensor],
    keep: Tensor,
    weight: Tensor | None = None,
) -> Tensor:
    """Squared error per held-out row and target, (k,), of additive regressions on some inputs.

    Fits on the same rows (the same tensor) share their matrices.

    Args:
        basis: functions of the D inputs.
        values: (N, D · K), these functions of every row.
        y: (N, o), targets.
        rows: training rows of each fit.
        held_out: test rows of each fit.
        keep: (k, D) bool, the inputs each fit sees.
        weight: (N,), what each training row counts; None counts all once.
    """
    counts = torch.ones(len(y)) if weight is None else weight
    counts = counts.double()[:, None]
    same_rows: dict[int, list[int]] = {}
    for i, train in enumerate(rows):
        same_rows.setdefault(id(train), []).append(i)
    errors = torch.zeros(len(rows))
    for fits in same_rows.values():
        train = rows[fits[0]]
        count, n = counts[train], float(counts[train].sum())
        inputs, target = values[train].double(), y[train].double()
        center, mean = (count * inputs).sum(0) / n, (count * target).sum(0) / n
        inputs, target = count.sqrt() * (inputs - center), count.sqrt() * (target - mean)
        gram, moment, square = inputs.T @ inputs, inputs.T @ target, float(target.square().sum())
        for order, lines in _nested(keep[fits]):
            columns = _columns(basis, order)
            sizes = [len(_columns(basis, order[: int(keep[fits[j]].sum())])) for j in lines]
            solutions = ridge_path(gram[columns][:, columns], moment[columns], square, n, sizes)
            for j, w in zip(lines, solutions, strict=True):
                test = held_out[fits[j]]
                inputs = (values[test].double() - center)[:, columns[: len(w)]]
                errors[fits[j]] = (inputs @ w + mean - y[test]).square().mean()
    return errors


def _columns(basis: HingeBasis, inputs: Tensor) -> Tensor:
    """Indices of the functions of these inputs that are not 0 everywhere, in their order."""
    k = basis.n_functions
    indices = (inputs[:, None] * k + torch.arange(k)).flatten()
    return indices[basis.present.cpu()[inputs].flatten()]


def _nested(keep: Tensor) -> list[tuple[Tensor, list[int]]]:
    """Orders of the inputs, and the lines of `keep`, (k, D), that are a beginning of each.

    Example:
        >>> _nested(torch.tensor([[True, False, True], [True, False, False]]))
        [(tensor([0, 2]), [0, 1])]
    """
    counts = keep.sum(0)
    order = counts.argsort(descending=True, stable=True)
    order = order[counts[order] > 0]
    orders: list[tuple[Tensor, list[int]]] = [(order, [])]
    for i, line in enumerate(keep):
        inputs = line.nonzero()[:, 0]
        if torch.equal(order[: len(inputs)].sort().values, inputs):
            orders[0][1].append(i)
        else:
            orders.append((inputs, [i]))
    return [pair for pair in orders if pair[1]]


def ridge_path(
    gram: Tensor, moment: Tensor, square: float, n: float, sizes: Sequence[int]
) -> list[Tensor]:
    """Weights, (size, o), of the first 0 <= size <= d functions, each with its most probable λ.

    Args:
        gram: (d, d), ΦᵀΦ.
        moment: (d, o), Φᵀy.
        square: sum of the squares of y, over all o targets.
        n: examples.
        sizes: how many functions are used.

    Example:
        >>> phi = torch.eye(4, 2, dtype=torch.float64)
        >>> (w,) = ridge_path(phi.T @ phi, phi.T @ phi[:, :1], 1.0, 4, [1])
        >>> round(w.item(), 4)  # 1 / (1 + λ), λ = 0.1
        0.9091
    """
    best, o = [-math.inf] * len(sizes), moment.shape[1]
    chosen: list[Tensor] = [moment[:0]] * len(sizes)
    for penalty in _PENALTIES:
        factor = torch.linalg.cholesky(gram + penalty * torch.eye(len(gram), dtype=gram.dtype))
        half = torch.linalg.solve_triangular(factor, moment, upper=False)
        explained = half.square().sum(1).cumsum(0)
        volume = 2 * factor.diagonal().log().cumsum(0)
        for j, size in enumerate(sizes):
            if size == 0:
                continue
            rest = (square - float(explained[size - 1])) / (n * o)
            rest = max(rest, torch.finfo(gram.dtype).tiny)
            log_volume = float(volume[size - 1]) - size * math.log(penalty)
            evidence = -0.5 * o * (n * math.log(rest) + log_volume)
            if evidence > best[j]:
                upper = factor[:size, :size].T
                best[j] = evidence
                chosen[j] = torch.linalg.solve_triangular(upper, half[:size], upper=True)
    return chosen
