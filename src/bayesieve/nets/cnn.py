"""The two convolutional networks of [Deng] for 28x28 images, named by their layers.

- `conv2_fc2`: 2-Conv-2-FC, trained without augmentation; the paper rounds its size to 670K.
- `conv2_bn_fc3`: 2-Conv-BN-3-FC, trained with augmentation, 490K.

Layer sizes are those of the authors' public code. The paper's sparse layer is "fc1" in both.
"""

from collections import OrderedDict

from torch import nn

from bayesieve.nets._sizes import check_sizes

_POOL = 2


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
    channels, height, width = _image("conv2_fc2", input_shape, n_outputs)
    height, width = height // _POOL // _POOL, width // _POOL // _POOL
    _check_left("conv2_fc2", input_shape, height, width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 32, 5, padding=2),
        act1=nn.ReLU(),
        pool1=nn.MaxPool2d(_POOL),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        act2=nn.ReLU(),
        pool2=nn.MaxPool2d(_POOL),
        flatten=nn.Flatten(),
    )
    if dropout:
        layers["drop"] = nn.Dropout(dropout)
    layers["fc1"] = nn.Linear(64 * height * width, 200)
    layers["act3"] = nn.ReLU()
    layers["out"] = nn.Linear(200, n_outputs)
    return nn.Sequential(layers)


def conv2_bn_fc3(input_shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Build 4x4 convolutions of 64 maps, then 256 and 64 units, with BatchNorm and Dropout.

    BatchNorm stands before the first convolution and after the 64 units; Dropout of 0.1 and 0.3
    after each pooling.

    Example:
        >>> net = conv2_bn_fc3((1, 28, 28), 10)
        >>> sum(p.numel() for p in net.parameters())
        493772
    """
    channels, height, width = _image("conv2_bn_fc3", input_shape, n_outputs)
    height, width = (((side + 1) // _POOL - 3) // _POOL for side in (height, width))
    _check_left("conv2_bn_fc3", input_shape, height, width)
    return nn.Sequential(
        OrderedDict(
            norm0=nn.BatchNorm2d(channels),
            conv1=nn.Conv2d(channels, 64, 4, padding=2),
            act1=nn.ReLU(),
            pool1=nn.MaxPool2d(_POOL),
            drop1=nn.Dropout(0.1),
            conv2=nn.Conv2d(64, 64, 4),
            act2=nn.ReLU(),
            pool2=nn.MaxPool2d(_POOL),
            drop2=nn.Dropout(0.3),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * height * width, 256),
            act3=nn.ReLU(),
            fc2=nn.Linear(256, 64),
            norm4=nn.BatchNorm1d(64),
            act4=nn.ReLU(),
            out=nn.Linear(64, n_outputs),
        )
    )


def _image(who: str, input_shape: tuple[int, ...], n_outputs: int) -> tuple[int, int, int]:
    check_sizes(who, input_shape, n_outputs)
    if len(input_shape) != 3:
        raise ValueError(
            f"{who}: input_shape must be (channels, height, width), got {input_shape}."
        )
    channels, height, width = input_shape
    return channels, height, width


def _check_left(who: str, input_shape: tuple[int, ...], height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise ValueError(f"{who}: nothing is left of images of {input_shape} after pooling.")
