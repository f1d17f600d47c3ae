"""The LeNets of the pruning literature, for images of shape (channels, height, width).

- `lenet_300_100`: the fully connected one, with ReLU as in the pruning papers.
- `lenet5`: LeCun, Bottou, Bengio and Haffner (1998), "Gradient-based learning applied to document
  recognition", section II.B: tanh and average pooling.
- `lenet5_wide`: the same with three times the maps, for 32x32 colour images: Marković, Friston and
  Kiebel (2024).
- `lenet5_caffe`: the variant shipped with Caffe, wider, with max pooling and ReLUs.

Departures of `lenet5` from 1998: the first convolution is padded by 2, so that 28x28 images take
the place of 32x32 ones; pooling has no trainable coefficients; every map of the second convolution
sees all six maps of the first; tanh is not rescaled; the output is linear. `lenet5_caffe` rounds
pooled sizes down where Caffe rounds up (28x28 images have nothing to round).
"""

from collections import OrderedDict
from itertools import count

from torch import nn

from bayesieve.nets._sizes import check_sizes
from bayesieve.nets.mlp import mlp

_KERNEL = 5  # every convolution of both networks
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
    return _lenet5("lenet5", input_shape, n_outputs, (6, 16, 120, 84), 2, dropout)


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
    return _lenet5("lenet5_wide", input_shape, n_outputs, (18, 48, 360, 256), 0, dropout)


def _lenet5(
    who: str, input_shape: tuple[int, ...], n_outputs: int, sizes: tuple[int, int, int, int],
    padding: int, dropout: float,
) -> nn.Sequential:  # fmt: skip
    # padding of each convolution, and whether pooling follows it
    stages = ((padding, True), (0, True), (0, False))
    height, width = _final_size(who, input_shape, n_outputs, stages)
    first, second, third, hidden = sizes
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(input_shape[0], first, _KERNEL, padding=padding),
        act1=nn.Tanh(),
        pool1=nn.AvgPool2d(_POOL),
        conv2=nn.Conv2d(first, second, _KERNEL),
        act2=nn.Tanh(),
        pool2=nn.AvgPool2d(_POOL),
        conv3=nn.Conv2d(second, third, _KERNEL),
        act3=nn.Tanh(),
        flatten=nn.Flatten(),
    )
    if dropout:
        layers["drop1"] = nn.Dropout(dropout)
    layers["fc1"] = nn.Linear(third * height * width, hidden)
    layers["act4"] = nn.Tanh()
    if dropout:
        layers["drop2"] = nn.Dropout(dropout)
    layers["out"] = nn.Linear(hidden, n_outputs)
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
    stages = ((0, True), (0, True))
    height, width = _final_size("lenet5_caffe", input_shape, n_outputs, stages)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 20, _KERNEL),
            act1=nn.ReLU(),
            pool1=nn.MaxPool2d(_POOL),
            conv2=nn.Conv2d(20, 50, _KERNEL),
            act2=nn.ReLU(),
            pool2=nn.MaxPool2d(_POOL),
            flatten=nn.Flatten(),
            fc1=nn.Linear(50 * height * width, 500),
            act3=nn.ReLU(),
            out=nn.Linear(500, n_outputs),
        )
    )


def _final_size(
    who: str, input_shape: tuple[int, ...], n_outputs: int, stages: tuple[_Stage, ...]
) -> tuple[int, int]:
    """Check the sizes; return height and width after the last convolution or pooling."""
    check_sizes(who, input_shape, n_outputs)
    if len(input_shape) != 3:
        raise ValueError(
            f"{who}: input_shape must be (channels, height, width), got {input_shape}. "
            "Reshape the data to images, or use mlp."
        )
    height, width = (_side_after(side, stages) for side in input_shape[1:])
    if height < 1 or width < 1:
        least = next(side for side in count(1) if _side_after(side, stages) >= 1)
        raise ValueError(
            f"{who}: images must be at least {least}x{least}, "
            f"got {input_shape[1]}x{input_shape[2]}. Pad or enlarge them, or use mlp."
        )
    return height, width


def _side_after(side: int, stages: tuple[_Stage, ...]) -> int:
    for padding, pooled in stages:
        side = max(0, side + 2 * padding - _KERNEL + 1)
        side = side // _POOL if pooled else side
    return side
