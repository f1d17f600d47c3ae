"""An additive network: each input through hinges of its own, then one linear layer.

    f(x) = b + Σ_j [ w_j0 x_j + Σ_k w_jk max(x_j - t_jk, 0) ]

The hinges are fixed, so every trained weight belongs to one input and f is a sum of piecewise
linear effects. Where effects are additive it needs far fewer examples than hidden layers to tell
the inputs that matter from those that do not; interactions are beyond it.

References: [Hastie]; [Agarwal] for the neural form.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from bayesieve.checks import check_positive

_MOST_ROWS = 5000


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
        """All functions of all inputs, those of one input side by side."""
        centred = self._functions(x) - self.center
        return torch.einsum("ndk,dkm->ndm", centred, self.transform).flatten(1)

    @property
    def present(self) -> Tensor:
        """Which functions of which inputs are not 0 everywhere, (D, K)."""
        return (self.transform != 0).any(1)

    def _functions(self, x: Tensor) -> Tensor:
        column = x[:, :, None]
        return torch.cat([column, (column - self.places).clamp_min(0)], 2)


def _orthonormal(values: Tensor) -> Tensor:
    """Upper triangles T, (D, K, K), that make centred functions, (N, D, K), orthonormal."""
    _, d, k = values.shape
    transform = torch.eye(k, dtype=values.dtype, device=values.device).repeat(d, 1, 1)
    own = values.clone()
    for i in range(k):
        size = own[:, :, i].square().mean(0).sqrt()
        original = values[:, :, i].square().mean(0).sqrt()
        # 1e-3: what is left of a function that the earlier ones nearly give is rounding.
        factor = torch.where(size > 1e-3 * original, 1 / size.clamp_min(1e-300), 0.0)
        own[:, :, i] *= factor
        transform[:, :, i] *= factor[:, None]
        for j in range(i + 1, k):
            overlap = (own[:, :, i] * own[:, :, j]).mean(0)
            own[:, :, j] -= overlap * own[:, :, i]
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
