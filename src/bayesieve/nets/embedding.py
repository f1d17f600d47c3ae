"""Piecewise linear embedding of the columns of a table: a fixed first layer for tabular networks.

A network on plain columns learns smooth functions first and steps late; targets of real tables are
full of steps. Column j is cut at edges e_0 < e_1 < ... < e_T into T bins, and bin t becomes

    clip((x_j - e_{t-1}) / (e_t - e_{t-1}), 0, 1) - 1/2,

how far x_j has come through the bin. A linear layer on the bins is a piecewise linear function of
the column, and one unit can bend anywhere. The column itself stays beside its bins, so that a
network goes on linearly beyond the last edge. A column of two values has no bins: they would say
what the column says. Nothing here is learned by gradients.

Reference: [Gorishniy], section 3.2.
Symbols: n rows, p columns, T bins, K = T + 1 functions of each column.
"""

import torch
from torch import Tensor, nn

from bayesieve.checks import check_positive

_LEAST_WIDTH = 1e-3  # of a bin, in units of the column: narrower ones are one


class PiecewiseLinear(nn.Module):
    """Each column and its bins: (n, p) to (n, p (T + 1)), the functions of a column side by side.

    Args:
        edges: (p, T + 1), ascending in each row. A bin whose edges are equal is empty: it is 0
            everywhere.
        binned: (p,) bool, the columns that have bins; others are one input alone. None is all.

    Example:
        >>> layer = PiecewiseLinear(torch.tensor([[0.0, 1.0, 3.0]]))
        >>> layer(torch.tensor([[-1.0], [0.5], [9.0]]))
        tensor([[-1.0000, -0.5000, -0.5000],
                [ 0.5000,  0.0000, -0.5000],
                [ 9.0000,  0.5000,  0.5000]])
    """

    edges: Tensor

    def __init__(self, edges: Tensor, binned: Tensor | None = None) -> None:
        super().__init__()
        if edges.dim() != 2 or edges.shape[1] < 2 or bool((edges.diff(dim=1) < 0).any()):
            raise ValueError(
                "PiecewiseLinear: edges must be (columns, bins + 1) and ascending in each row."
            )
        self.register_buffer("edges", edges)
        self._kept = torch.ones(edges.shape, dtype=torch.bool)
        if binned is not None:
            self._kept[:, 1:] = binned[:, None].cpu()
        whole = bool(self._kept.all())
        self._index = None if whole else self._kept.flatten().nonzero()[:, 0].tolist()

    @classmethod
    def of(cls, x: Tensor, n_bins: int, binned: Tensor | None = None) -> "PiecewiseLinear":
        """Bins with about equally many of the rows of x, (n, p), in units near 1.

        A column of at most T + 1 values has its edges at them. The columns that have bins are
        `has_more_than_two` of these rows unless told otherwise.

        Example:
            >>> PiecewiseLinear.of(torch.tensor([[0.0], [1.0], [1.0], [5.0]]), 3).edges
            tensor([[0., 1., 5., 5.]])
        """
        check_positive("PiecewiseLinear", n_bins=n_bins)
        levels = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64)
        rows = []
        for column in x.double().T:
            values = column.unique()
            if len(values) > n_bins + 1:
                order = column.sort().values
                values = order[(levels * (len(order) - 1)).round().long()]
            kept = [float(values[0])]
            for value in values.tolist():
                if value - kept[-1] >= _LEAST_WIDTH:
                    kept.append(value)
            rows.append(kept + kept[-1:] * (n_bins + 1 - len(kept)))
        edges = torch.tensor(rows, dtype=torch.float64).to(x.dtype)
        return cls(edges, has_more_than_two(x) if binned is None else binned)

    @property
    def present(self) -> Tensor:
        """Which functions of which columns are not 0 everywhere, (p, T + 1)."""
        filled = self.edges.diff(dim=1) > 0
        return torch.cat([torch.ones_like(filled[:, :1]), filled & self._kept[:, 1:]], 1)

    def forward(self, x: Tensor) -> Tensor:
        """The columns and their bins."""
        column, low = x[..., None], self.edges[:, :-1]
        width = self.edges.diff(dim=1)
        filled = width > 0
        share = ((column - low) / torch.where(filled, width, 1.0)).clamp(0, 1) - 0.5
        functions = torch.cat([column, share * filled], -1).flatten(1)
        return functions if self._index is None else functions[:, self._index]

    def by_column(self, values: Tensor) -> Tensor:
        """Values of the inputs that this layer makes, (..., q), as (..., p, T + 1); 0 elsewhere.

        Example:
            >>> edges = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
            >>> layer = PiecewiseLinear(edges, torch.tensor([False, True]))
            >>> layer.by_column(torch.tensor([1.0, 2.0, 3.0]))
            tensor([[1., 0.],
                    [2., 3.]])
        """
        functions = values.new_zeros(*values.shape[:-1], *self._kept.shape)
        functions[..., self._kept] = values
        return functions

    def as_layers(self, following: nn.Linear) -> list[nn.Module]:
        """Linear layers and ReLUs that compute the same as this layer and the one that follows.

        Every form of delivery knows them. A column z passes as ReLU(z) - ReLU(-z), a bin u as
        1 - ReLU(1 - ReLU(u)), which is exact however far out u is.

        Example:
            >>> layer, linear = PiecewiseLinear(torch.tensor([[0.0, 2.0]])), nn.Linear(2, 3)
            >>> x = torch.tensor([[-5.0], [0.5], [7.0]])
            >>> plain = nn.Sequential(*layer.as_layers(linear))
            >>> bool((plain(x) - linear(layer(x))).abs().max() < 1e-5)
            True
        """
        edges = self.edges.detach().double()
        p, n_bins = len(edges), edges.shape[1] - 1
        width = edges.diff(dim=1)
        filled = width > 0
        slope = torch.where(filled, 1 / torch.where(filled, width, 1.0), 0.0)  # (p, T)
        weight = self.by_column(following.weight.detach().double())
        of_column, of_bin = weight[:, :, 0], weight[:, :, 1:] * filled
        bias = following.bias.detach().double() + 0.5 * of_bin.flatten(1).sum(1)
        eye = torch.eye(p, dtype=torch.float64)
        bins = (eye[:, None] * slope[:, :, None]).flatten(0, 1)  # (p T, p)
        starts = torch.cat([slope.new_zeros(2 * p), (-slope * edges[:, :-1]).flatten()])
        into = _linear(torch.cat([eye, -eye, bins]), starts, following)
        sign = torch.ones(2 * p + p * n_bins, dtype=torch.float64)
        sign[2 * p :] = -1.0
        turn = _linear(sign.diag(), (sign < 0).double(), following)
        out = _linear(torch.cat([of_column, -of_column, -of_bin.flatten(1)], 1), bias, following)
        return [into, nn.ReLU(), turn, nn.ReLU(), out]


def has_more_than_two(x: Tensor) -> Tensor:
    """Which columns of x, (n, p), have more than two values, (p,) bool.

    Example:
        >>> has_more_than_two(torch.tensor([[0.0, 5.0, 1.0], [1.0, 5.0, 2.0], [0.0, 5.0, 3.0]]))
        tensor([False, False,  True])
    """
    low, high = x.min(0).values, x.max(0).values
    return ((x != low) & (x != high)).any(0)


def _linear(weight: Tensor, bias: Tensor, like: nn.Linear) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=like.weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
