"""MLP-Mixer: two-layer networks over the patches of an image, then over the features of a patch.

Reference: Tolstikhin et al. (2021); sizes of Marković, Friston and Kiebel (2024): 6 blocks, patches
of 4, 256 features, 512 hidden units in both networks.
"""

from torch import Tensor, nn

from bayesieve.nets._patches import Patches, check_patches


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
    """The network of `mixer`."""

    def __init__(
        self, input_shape: tuple[int, ...], n_outputs: int, patch: int, n_blocks: int,
        width: int, token_hidden: int, hidden: int,
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


def mixer(
    input_shape: tuple[int, ...], n_outputs: int, *, patch: int = 4, n_blocks: int = 6,
    width: int = 256, token_hidden: int = 512, hidden: int = 512,
) -> Mixer:  # fmt: skip
    """Build an MLP-Mixer.

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
    return Mixer(input_shape, n_outputs, patch, n_blocks, width, token_hidden, hidden)
