"""Vision transformer: attention between the patches of an image and a class token.

Reference: Dosovitskiy et al. (2021); sizes of Marković, Friston and Kiebel (2024): 6 pre-norm
blocks, 8 heads, patches of 4, 256 features, 512 hidden units.
"""

import torch
from torch import Tensor, nn

from bayesieve.nets._patches import Patches, check_patches


class ViTBlock(nn.Module):
    """Attention, then a two-layer network; each with a norm before and a path around it."""

    def __init__(self, width: int, n_heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, n_heads, dropout, batch_first=True)
        self.drop1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) to the same shape."""
        h = self.norm1(x)
        x = x + self.drop1(self.attention(h, h, h, need_weights=False)[0])
        return x + self.drop2(self.fc2(self.act(self.fc1(self.norm2(x)))))


class ViT(nn.Module):
    """The network of `vit`; row 0 of `positions` is the class token, the others are positions."""

    def __init__(
        self, input_shape: tuple[int, ...], n_outputs: int, patch: int, n_blocks: int,
        width: int, n_heads: int, hidden: int, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        n_tokens, n_numbers = check_patches(
            "vit", input_shape, n_outputs, patch, n_blocks=n_blocks, width=width,
            n_heads=n_heads, hidden=hidden,
        )  # fmt: skip
        if width % n_heads:
            raise ValueError(f"vit: width must be a multiple of n_heads={n_heads}, got {width}.")
        self.patches = Patches(input_shape, patch)
        self.embed = nn.Linear(n_numbers, width)
        self.positions = nn.Parameter(0.02 * torch.randn(n_tokens + 2, width))
        blocks = (ViTBlock(width, n_heads, hidden, dropout) for _ in range(n_blocks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, n_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, height, width) to (n, n_outputs)."""
        x = self.embed(self.patches(images))
        token = self.positions[:1].expand(x.shape[0], 1, -1)
        x = torch.cat([token, x], 1) + self.positions[1:]
        return self.out(self.norm(self.blocks(x)[:, 0]))


def vit(
    input_shape: tuple[int, ...], n_outputs: int, *, patch: int = 4, n_blocks: int = 6,
    width: int = 256, n_heads: int = 8, hidden: int = 512, dropout: float = 0.0,
) -> ViT:  # fmt: skip
    """Build a vision transformer.

    Args:
        input_shape: (channels, height, width), multiples of `patch`; pad 28x28 images to 32x32.
        n_outputs: number of outputs.
        patch: side of a patch.
        n_blocks: number of blocks.
        width: features of a token.
        n_heads: attention heads.
        hidden: hidden units of the networks over features.
        dropout: for point estimates; Bayesian engines bring their own noise.

    Example:
        >>> sum(p.numel() for p in vit((1, 32, 32), 10).parameters())
        3186954
    """
    return ViT(input_shape, n_outputs, patch, n_blocks, width, n_heads, hidden, dropout)
