"""The one module of our own that a compacted network may hold."""

from torch import Tensor, nn
from torch.nn import functional as F


class HeadAttention(nn.Module):
    """Scaled dot-product attention over heads that lie side by side on the last axis.

    `nn.MultiheadAttention` ties the width of a head to the width of the model; once heads or
    single dimensions of a head are gone the two differ. It has no weights of its own: the
    projections around it are plain `nn.Linear` layers.

    Args:
        n_heads: number of heads; their widths follow from the inputs.
        scale: factor of the logits, 1 / √(width of a head before anything was removed).
        dropout: probability of dropping an attention weight in training.
        batch_first: whether inputs are (n, positions, width) or (positions, n, width).

    Example:
        >>> import torch
        >>> x = torch.tensor([[[0.0, 1.0], [0.0, 3.0]]])  # equal logits: the mean over positions
        >>> HeadAttention(1, 1.0)(torch.zeros(1, 2, 2), x, x)[0, 0]
        tensor([0., 2.])
    """

    def __init__(
        self, n_heads: int, scale: float, dropout: float = 0.0, batch_first: bool = True
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.scale = scale
        self.dropout = dropout
        self.batch_first = batch_first

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend: (n, q, h·a), (n, k, h·a), (n, k, h·b) -> (n, q, h·b)."""
        query, key, value = self._split(query), self._split(key), self._split(value)
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(query, key, value, dropout_p=p, scale=self.scale)
        out = out.transpose(1, 2).flatten(2)
        return out if self.batch_first else out.transpose(0, 1)

    def _split(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"n_heads={self.n_heads}, scale={self.scale:.6g}"
