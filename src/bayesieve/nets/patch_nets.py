"""Networks over the patches of an image: MLP-Mixer and the vision transformer.

`mixer`: two-layer networks over the patches of an image, then over the features of a patch
(Tolstikhin et al., 2021). `vit`: attention between the patches and a class token (Dosovitskiy et
al., 2021). Sizes are those of Marković, Friston and Kiebel (2024): 6 blocks, patches of 4, 256
features, 512 hidden units; the transformer is pre-norm with 8 heads.
"""

import torch
from torch import Tensor, nn

from bayesieve.checks import check_counts
from bayesieve.nets.mlp import check_image


class Patches(nn.Module):
    """Cut images, (n, channels, height, width), into patches, (n, tokens, channels · size²).

    Args:
        input_shape: channels, height and width of an image.
        size: side of a patch.
    """

    def __init__(self, input_shape: tuple[int, ...], size: int) -> None:
        super().__init__()
        self.channels, height, width = input_shape
        self.size, self.rows, self.columns = size, height // size, width // size

    def forward(self, images: Tensor) -> Tensor:
        """The patches row by row."""
        shape = (-1, self.channels, self.rows, self.size, self.columns, self.size)
        cut = images.reshape(shape).permute(0, 2, 4, 1, 3, 5)
        n_numbers = self.channels * self.size**2
        return torch.reshape(cut, (-1, self.rows * self.columns, n_numbers))


def check_patches(
    who: str, input_shape: tuple[int, ...], n_outputs: int, patch: int, **counts: int
) -> tuple[int, int]:
    """Check sizes; return the number of patches of an image and of numbers in each."""
    channels, height, width = check_image(who, input_shape, n_outputs)
    check_counts(who, patch=patch, **counts)
    if height % patch or width % patch:
        raise ValueError(
            f"{who}: height and width must be multiples of patch={patch}, got {height}x{width}. "
            "Pad the images."
        )
    return (height // patch) * (width // patch), channels * patch**2


class MixerBlock(nn.Module):
    """Mix tokens, then features; each with a norm before and a path around it."""

    def __init__(self, n_tokens: int, width: int, token_hidden: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.token_in = nn.Linear(n_tokens, token_hidden)
        self.token_act = nn.GELU()
        self.token_out = nn.Linear(token_hidden, n_tokens)
        self.norm2 = nn.LayerNorm(width)
        self.feature_in = nn.Linear(width, hidden)
        self.feature_act = nn.GELU()
        self.feature_out = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) to the same shape."""
        tokens = self.norm1(x).transpose(1, 2)
        tokens = self.token_out(self.token_act(self.token_in(tokens)))
        x = x + tokens.transpose(1, 2)
        return x + self.feature_out(self.feature_act(self.feature_in(self.norm2(x))))


class Mixer(nn.Module):
    """An MLP-Mixer.

    Args:
        input_shape: (channels, height, width), multiples of `patch`; pad 28x28 images to 32x32.
        n_outputs: number of outputs.
        patch: side of a patch.
        n_blocks: number of blocks.
        width: features of a patch.
        token_hidden: hidden units of the networks over patches.
        hidden: hidden units of the networks over features.

    Example:
        >>> sum(p.numel() for p in mixer((1, 32, 32), 10).parameters())
        1987722
    """

    def __init__(
        self, input_shape: tuple[int, ...], n_outputs: int, *, patch: int = 4, n_blocks: int = 6,
        width: int = 256, token_hidden: int = 512, hidden: int = 512,
    ) -> None:  # fmt: skip
        super().__init__()
        n_tokens, n_numbers = check_patches(
            "mixer", input_shape, n_outputs, patch, n_blocks=n_blocks, width=width,
            token_hidden=token_hidden, hidden=hidden,
        )  # fmt: skip
        self.patches = Patches(input_shape, patch)
        self.embed = nn.Linear(n_numbers, width)
        blocks = (MixerBlock(n_tokens, width, token_hidden, hidden) for _ in range(n_blocks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, n_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, height, width) to (n, n_outputs)."""
        x = self.blocks(self.embed(self.patches(images)))
        return self.out(self.norm(x).mean(1))


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
    """A vision transformer; row 0 of `positions` is the class token, the others are positions.

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

    def __init__(
        self, input_shape: tuple[int, ...], n_outputs: int, *, patch: int = 4, n_blocks: int = 6,
        width: int = 256, n_heads: int = 8, hidden: int = 512, dropout: float = 0.0,
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


mixer = Mixer  # the names that the other factories go with
vit = ViT
