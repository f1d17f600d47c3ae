"""A transformer that predicts the next symbol of a text from those before it.

The blocks are those of GPT-2 (Radford et al., 2019) without biases, as in Karpathy's nanoGPT: norm,
causal attention, norm, a two-layer network; each with a path around it. Symbols and outputs share
one matrix. Sizes are those of nanoGPT's character model.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesieve.checks import check_counts, check_fraction


class CausalAttention(nn.Module):
    """Attention of each place to itself and the places before it.

    Args:
        width: features of a place.
        n_heads: a divisor of `width`.
        dropout: of the attention weights, and of the result.
    """

    def __init__(self, width: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.head_width = n_heads, width // n_heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.dropout, self.drop = dropout, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(n, places, width) to the same shape."""
        shape = (x.shape[0], x.shape[1], -1, self.head_width)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        rate = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return self.drop(self.out(mixed.transpose(1, 2).flatten(2)))


class GPTBlock(nn.Module):
    """Attention, then a two-layer network; each with a norm before and a path around it."""

    def __init__(self, width: int, n_heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attention = CausalAttention(width, n_heads, dropout)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.fc1 = nn.Linear(width, hidden, bias=False)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(n, places, width) to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.fc2(self.act(self.fc1(self.norm2(x)))))


class GPT(nn.Module):
    """A causal transformer over symbols.

    Args:
        n_symbols: symbols are 0 to n_symbols - 1.
        context: places of the longest input.
        n_blocks: number of blocks.
        width: features of a place.
        n_heads: attention heads, a divisor of `width`.
        hidden: hidden units of the networks over features; None has 4 times the width.
        dropout: of attention weights, sums and symbols.

    Example:
        >>> net = gpt(65)
        >>> sum(p.numel() for p in net.parameters())
        10745088
        >>> gpt(5, 8, n_blocks=1, width=4, n_heads=2)(torch.zeros(3, 8, dtype=torch.int64)).shape
        torch.Size([3, 8, 5])
    """

    def __init__(
        self, n_symbols: int, context: int = 256, *, n_blocks: int = 6, width: int = 384,
        n_heads: int = 6, hidden: int | None = None, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        check_counts("gpt", n_symbols=n_symbols, context=context, n_blocks=n_blocks, width=width,
                     n_heads=n_heads, hidden=hidden)  # fmt: skip
        check_fraction("gpt", dropout=dropout)
        if width % n_heads:
            raise ValueError(f"gpt: width must be a multiple of n_heads={n_heads}, got {width}.")
        self.context = context
        self.symbols = nn.Embedding(n_symbols, width)
        self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        blocks = (GPTBlock(width, n_heads, hidden, dropout) for _ in range(n_blocks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, bias=False)
        self.out = nn.Linear(width, n_symbols, bias=False)
        self.out.weight = self.symbols.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # sums along the residual path stay of one size at any depth
                last = name.endswith(("attention.out.weight", "fc2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_blocks) if last else 0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        """Symbols (n, places) to logits of the symbol after each, (n, places, n_symbols)."""
        places = torch.arange(symbols.shape[1], device=symbols.device)
        x = self.drop(self.symbols(symbols) + self.positions(places))
        return self.out(self.norm(self.blocks(x)))


gpt = GPT  # the name that the other factories go with
