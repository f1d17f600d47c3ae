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
        self._kept = torch.ones(edges.shape, dtype=torch.bool, device="cpu")
        if binned is not None:
            self._kept[:, 1:] = binned[:, None].cpu()
        whole = bool(self._kept.all())
        self._index = None if whole else self._kept.flatten().nonzero()[:, 0].tolist()

    @classmethod
    def of(cls, x: Tensor, n_bins: int, binned: Tensor | None = None) -> "PiecewiseLinear":
        """Bins with about equally many of the rows of x, (n, p), in units near 1.

        A column of at most T + 1 values has its edges at them. The columns that have bins are
        `has_more_than_two` of these rows by default.

        Example:
            >>> PiecewiseLinear.of(torch.tensor([[0.0], [1.0], [1.0], [5.0]]), 3).edges
            tensor([[0., 1., 5., 5.]])
        """
        check_positive("PiecewiseLinear", n_bins=n_bins)
        levels = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64, device=x.device)
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
        edges = torch.tensor(rows, dtype=torch.float64, device=x.device).to(x.dtype)
        return cls(edges, has_more_than_two(x) if binned is None else binned)

    @property
    def width(self) -> int:
        """Functions of all columns together: the inputs of the layer that follows."""
        return int(self._kept.sum())

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

    def layers(self) -> nn.Sequential:
        """The same function by frozen Linear layers and ReLUs, which every delivery knows.

        A column z passes as ReLU(z) - ReLU(-z), the part v of a bin of width w below z as
        w - ReLU(w - ReLU(z - e)), which is exact however far out z is.

        Example:
            >>> layer = PiecewiseLinear(torch.tensor([[0.0, 2.0]]))
            >>> layer.layers()(torch.tensor([[-5.0], [0.5], [7.0]]))
            tensor([[-5.0000, -0.5000],
                    [ 0.5000, -0.2500],
                    [ 7.0000,  0.5000]])
        """
        edges, kept = self.edges.detach(), self._kept.to(self.edges.device)
        width = edges.diff(dim=1)
        column, t = ((width > 0) & kept[:, 1:]).nonzero(as_tuple=True)  # of each of m bins
        low, width, place = edges[column, t], width[column, t], kept.flatten().cumsum(0) - 1
        place, p, m = place.view(edges.shape), len(edges), len(column)
        eye, nothing = edges.new_ones(p).diag(), edges.new_zeros(2 * p)
        start = _frozen(torch.cat([eye, -eye, eye[column]]), torch.cat([nothing, -low]))
        sign = torch.cat([nothing + 1, torch.full_like(width, -1)])
        turn = _frozen(sign.diag(), torch.cat([nothing, width]))
        weight, bias = edges.new_zeros(self.width, 2 * p + m), edges.new_zeros(self.width)
        weight[place[:, 0], : 2 * p] = torch.cat([eye, -eye], 1)
        weight[place[column, t + 1], 2 * p + torch.ones_like(t).cumsum(0) - 1] = -1 / width
        bias[place[column, t + 1]] = 0.5
        return nn.Sequential(start, nn.ReLU(), turn, nn.ReLU(), _frozen(weight, bias))


def has_more_than_two(x: Tensor) -> Tensor:
    """Which columns of x, (n, p), have more than two values, (p,) bool.

    Example:
        >>> has_more_than_two(torch.tensor([[0.0, 5.0, 1.0], [1.0, 5.0, 2.0], [0.0, 5.0, 3.0]]))
        tensor([False, False,  True])
    """
    low, high = x.min(0).values, x.max(0).values
    return ((x != low) & (x != high)).any(0)


def _frozen(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = (nn.Parameter(t, requires_grad=False) for t in (weight, bias))
    return layer
