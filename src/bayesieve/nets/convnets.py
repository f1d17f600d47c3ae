"""Networks of the pruning literature for images of shape (channels, height, width).

- `lenet_300_100`: the fully connected LeNet, with ReLU as in the pruning papers.
- `lenet5`: LeCun, Bottou, Bengio and Haffner (1998), "Gradient-based learning applied to document
  recognition", section II.B: tanh and average pooling.
- `lenet5_wide`: the same with three times the maps, for 32x32 colour images: Marković, Friston and
  Kiebel (2024).
- `lenet5_caffe`: the variant shipped with Caffe, wider, with max pooling and ReLUs.
- `conv2_fc2`: 2-Conv-2-FC of [Deng], trained without augmentation; the paper rounds its size to
  670K.
- `conv2_bn_fc3`: 2-Conv-BN-3-FC of [Deng], trained with augmentation, 490K.
- `vgg`: VGG-like with BatchNorm for small images: [Simonyan], column D, with one linear layer as
  head, as usual for 32x32 images.
- `resnet20`, `resnet32`: residual networks for small images, 6n + 2 layers in three stages of 16,
  32 and 64 maps: [He], section 4.2. Where the number of maps grows, the shortcut is a 1x1
  convolution with BatchNorm (option B of the paper), as in the public code of [Deng].
- `mixer`: MLP-Mixer, two-layer networks over the patches of an image, then over the features of a
  patch (Tolstikhin et al., 2021).
- `vit`: vision transformer, attention between the patches and a class token (Dosovitskiy et al.,
  2021). It is pre-norm with 8 heads. Sizes of both are those of Marković, Friston and Kiebel
  (2024): 6 blocks, patches of 4, 256 features, 512 hidden units.

Departures of `lenet5` from 1998: the first convolution is padded by 2, so that 28x28 images take
the place of 32x32 ones; pooling has no trainable coefficients; every map of the second convolution
sees all six maps of the first; tanh is not rescaled; the output is linear. `lenet5_caffe` rounds
pooled sizes down where Caffe rounds up (28x28 images have nothing to round). Layer sizes of the
networks of [Deng] are those of the authors' public code; the paper's sparse layer is "fc1".
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor, nn

from bayesieve.checks import check_counts
from bayesieve.nets.mlp import check_image, mlp

_KERNEL = 5  # side of a convolution unless another is given
_POOL = 2
_Stage = tuple[int, bool]  # padding of a convolution, and whether pooling follows it


def lenet_300_100(input_shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Build the fully connected LeNet with 300 and 100 hidden ReLU units.

    Example:
        >>> net = lenet_300_100((1, 28, 28), 10)
        >>> sum(p.numel() for p in net.parameters())
        266610
    """
    return mlp(input_shape, n_outputs, widths=(300, 100), activation="relu")


def lenet5(input_shape: tuple[int, ...], n_outputs: int, *, dropout: float = 0.0) -> nn.Sequential:
    """Build LeNet-5: convolutions of 6, 16 and 120 maps, then 84 units; tanh, average pooling.

    Args:
        input_shape: (channels, height, width); 28x28 images are padded to 32x32.
        n_outputs: number of outputs.
        dropout: probability of dropping an input of a dense layer; for point estimates.

    Example:
        >>> net = lenet5((1, 28, 28), 10)
        >>> sum(p.numel() for p in net.parameters())
        61706
    """
    return _convolutions_then_dense(
        "lenet5", input_shape, n_outputs, (6, 16, 120), 84, (2, 0, 0), nn.Tanh, nn.AvgPool2d,
        [("drop1", dropout), ("drop2", dropout)],
    )  # fmt: skip


def lenet5_wide(
    input_shape: tuple[int, ...], n_outputs: int, *, dropout: float = 0.0
) -> nn.Sequential:
    """Build LeNet-5 with 18, 48 and 360 maps and 256 units, without padding.

    Args:
        input_shape: (channels, height, width), at least 32x32.
        n_outputs: number of outputs.
        dropout: probability of dropping an input of a dense layer; for point estimates.

    Example:
        >>> net = lenet5_wide((3, 32, 32), 10)
        >>> sum(p.numel() for p in net.parameters())
        550362
    """
    return _convolutions_then_dense(
        "lenet5_wide", input_shape, n_outputs, (18, 48, 360), 256, (0, 0, 0), nn.Tanh,
        nn.AvgPool2d, [("drop1", dropout), ("drop2", dropout)],
    )  # fmt: skip


def _convolutions_then_dense(
    who: str, input_shape: tuple[int, ...], n_outputs: int, maps: Sequence[int], hidden: int,
    padding: Sequence[int], activation: type[nn.Module], pool: type[nn.Module],
    drops: Sequence[tuple[str, float]],
) -> nn.Sequential:  # fmt: skip
    """Convolutions of these maps and paddings, the first two pooled, then a hidden layer.

    `drops` are the names and probabilities of dropout before each dense layer.
    """
    stages = tuple((margin, i < 2) for i, margin in enumerate(padding))
    height, width = _final_size(who, input_shape, n_outputs, stages)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    n_inputs = input_shape[0]
    for i, (n_maps, (margin, pooled)) in enumerate(zip(maps, stages, strict=True), start=1):
        layers[f"conv{i}"] = nn.Conv2d(n_inputs, n_maps, _KERNEL, padding=margin)
        layers[f"act{i}"] = activation()
        if pooled:
            layers[f"pool{i}"] = pool(_POOL)
        n_inputs = n_maps
    layers["flatten"] = nn.Flatten()
    dense: tuple[dict[str, nn.Module], ...] = (
        {"fc1": nn.Linear(n_inputs * height * width, hidden), f"act{len(maps) + 1}": activation()},
        {"out": nn.Linear(hidden, n_outputs)},
    )
    for (name, rate), part in zip(drops, dense, strict=True):
        if rate:
            layers[name] = nn.Dropout(rate)
        layers.update(part)
    return nn.Sequential(layers)


def lenet5_caffe(input_shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Build Caffe's LeNet: convolutions of 20 and 50 maps, then 500 units, with max pooling.

    Every hidden layer has a ReLU, as in the sparsity literature that uses this net as a benchmark;
    Caffe's own file has only the one after the 500 units.

    Example:
        >>> net = lenet5_caffe((1, 28, 28), 10)
        >>> sum(p.numel() for p in net.parameters())
        431080
    """
    return _convolutions_then_dense(
        "lenet5_caffe", input_shape, n_outputs, (20, 50), 500, (0, 0), nn.ReLU, nn.MaxPool2d,
        [("drop", 0.0), ("", 0.0)],
    )  # fmt: skip


def _final_size(
    who: str, input_shape: tuple[int, ...], n_outputs: int, stages: tuple[_Stage, ...],
    kernel: int = _KERNEL,
) -> tuple[int, int]:  # fmt: skip
    """Check the sizes; return height and width after the last convolution or pooling."""

    def after(side: int) -> int:
        for padding, pooled in stages:
            side = max(0, side + 2 * padding - kernel + 1)
            side = side // _POOL if pooled else side
        return side

    height, width = map(after, check_image(who, input_shape, n_outputs)[1:])
    if height < 1 or width < 1:
        least = next(side for side in count(1) if after(side) >= 1)
        raise ValueError(
            f"{who}: images must be at least {least}x{least}, "
            f"got {input_shape[1]}x{input_shape[2]}. Pad or enlarge them, or use mlp."
        )
    return height, width


def conv2_fc2(input_shape: tuple[int, ...], n_outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Build two padded 5x5 convolutions of 32 and 64 maps, max pooling, then 200 units.

    Args:
        input_shape: (channels, height, width).
        n_outputs: number of classes.
        dropout: probability of dropping an input of "fc1" (the paper's Dropout baseline: 0.5).

    Example:
        >>> net = conv2_fc2((1, 28, 28), 10)
        >>> sum(p.numel() for p in net.parameters())
        681506
    """
    return _convolutions_then_dense(
        "conv2_fc2", input_shape, n_outputs, (32, 64), 200, (2, 2), nn.ReLU, nn.MaxPool2d,
        [("drop", dropout), ("", 0.0)],
    )  # fmt: skip


def conv2_bn_fc3(
    input_shape: tuple[int, ...], n_outputs: int, dropout: tuple[float, float] = (0.1, 0.3)
) -> nn.Sequential:
    """Build 4x4 convolutions of 64 maps, then 256 and 64 units, with BatchNorm and Dropout.

    BatchNorm stands before the first convolution and after the 64 units.

    Args:
        input_shape: (channels, height, width).
        n_outputs: number of classes.
        dropout: probabilities of dropping a value after the first and the second pooling.

    Example:
        >>> net = conv2_bn_fc3((1, 28, 28), 10)
        >>> sum(p.numel() for p in net.parameters())
        493772
    """
    channels, stages = input_shape[0], ((2, True), (0, True))
    height, width = _final_size("conv2_bn_fc3", input_shape, n_outputs, stages, kernel=4)
    return nn.Sequential(
        OrderedDict(
            norm0=nn.BatchNorm2d(channels),
            conv1=nn.Conv2d(channels, 64, 4, padding=2),
            act1=nn.ReLU(),
            pool1=nn.MaxPool2d(_POOL),
            drop1=nn.Dropout(dropout[0]),
            conv2=nn.Conv2d(64, 64, 4),
            act2=nn.ReLU(),
            pool2=nn.MaxPool2d(_POOL),
            drop2=nn.Dropout(dropout[1]),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * height * width, 256),
            act3=nn.ReLU(),
            fc2=nn.Linear(256, 64),
            norm4=nn.BatchNorm1d(64),
            act4=nn.ReLU(),
            out=nn.Linear(64, n_outputs),
        )
    )


_VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg(
    input_shape: tuple[int, ...], n_outputs: int, stages: Sequence[Sequence[int]] = _VGG16
) -> nn.Sequential:
    """Build stages of 3x3 convolutions with BatchNorm, each followed by max pooling.

    Args:
        input_shape: (channels, height, width); each stage halves height and width.
        n_outputs: number of outputs.
        stages: maps of each convolution, stage by stage.

    Example:
        >>> net = vgg((3, 32, 32), 10)
        >>> sum(p.numel() for p in net.parameters())
        14724042
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    n_inputs, height, width = check_image("vgg", input_shape, n_outputs)
    for i, stage in enumerate(stages, start=1):
        check_counts("vgg", stages=tuple(stage))
        for j, n_maps in enumerate(stage, start=1):
            layers[f"conv{i}_{j}"] = nn.Conv2d(n_inputs, n_maps, 3, padding=1, bias=False)
            layers[f"norm{i}_{j}"] = nn.BatchNorm2d(n_maps)
            layers[f"act{i}_{j}"] = nn.ReLU()
            n_inputs = n_maps
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        height, width = height // 2, width // 2
    if height < 1 or width < 1:
        raise ValueError(
            f"vgg: images of {input_shape} are too small for {len(stages)} stages; give fewer."
        )
    layers["flatten"] = nn.Flatten()
    layers["out"] = nn.Linear(n_inputs * height * width, n_outputs)
    return nn.Sequential(layers)


_RESNET_WIDTHS = (16, 32, 64)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm, added to the input or its 1x1 projection.

    Args:
        n_inputs: maps that come in.
        n_outputs: maps that go out.
        stride: of the first convolution and the projection.
    """

    def __init__(self, n_inputs: int, n_outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_inputs, n_outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_outputs)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(n_outputs, n_outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_outputs)
        self.act2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_inputs != n_outputs:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(n_inputs, n_outputs, 1, stride, bias=False),
                    norm=nn.BatchNorm2d(n_outputs),
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, n_inputs, height, width) to (n, n_outputs, height / stride, width / stride)."""
        hidden = self.act1(self.norm1(self.conv1(x)))
        joined: Tensor = self.act2(self.norm2(self.conv2(hidden)) + self.shortcut(x))
        return joined


def resnet(input_shape: tuple[int, ...], n_outputs: int, n_blocks: int = 3) -> nn.Sequential:
    """Build a residual network with `n_blocks` blocks in each of its three stages.

    Example:
        >>> net = resnet((3, 32, 32), 10, n_blocks=3)
        >>> sum(p.numel() for p in net.parameters())
        272474
    """
    check_image("resnet", input_shape, n_outputs)
    check_counts("resnet", n_blocks=n_blocks)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(input_shape[0], _RESNET_WIDTHS[0], 3, padding=1, bias=False),
        norm1=nn.BatchNorm2d(_RESNET_WIDTHS[0]),
        act1=nn.ReLU(),
    )
    n_inputs = _RESNET_WIDTHS[0]
    for stage, width in enumerate(_RESNET_WIDTHS, start=1):
        for block in range(1, n_blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            layers[f"stage{stage}_{block}"] = ResidualBlock(n_inputs, width, stride)
            n_inputs = width
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["out"] = nn.Linear(n_inputs, n_outputs)
    return nn.Sequential(layers)


def resnet20(input_shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Build ResNet-20: three blocks a stage.

    Example:
        >>> sum(p.numel() for p in resnet20((3, 32, 32), 10).parameters())
        272474
    """
    return resnet(input_shape, n_outputs, 3)


def resnet32(input_shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Build ResNet-32: five blocks a stage.

    Example:
        >>> sum(p.numel() for p in resnet32((3, 32, 32), 10).parameters())
        466906
    """
    return resnet(input_shape, n_outputs, 5)


# ----------------------------------------------------------------------------------------- patches


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
