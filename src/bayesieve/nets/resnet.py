"""Residual networks for small images: 6n + 2 layers in three stages of 16, 32 and 64 maps.

Reference: [He], section 4.2. Departure: where the number of maps grows, the shortcut is a 1x1
convolution with BatchNorm (option B of the paper), as in the public code of [Deng].
"""

from collections import OrderedDict

from torch import Tensor, nn

from bayesieve.nets.mlp import check_counts, check_image

_WIDTHS = (16, 32, 64)


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
    check_counts("resnet", n_blocks=(n_blocks,))
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(input_shape[0], _WIDTHS[0], 3, padding=1, bias=False),
        norm1=nn.BatchNorm2d(_WIDTHS[0]),
        act1=nn.ReLU(),
    )
    n_inputs = _WIDTHS[0]
    for stage, width in enumerate(_WIDTHS, start=1):
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
