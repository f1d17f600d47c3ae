"""The LeNets of the pruning literature, for images of shape (channels, height, width).

- `lenet_300_100`: the fully connected one, with ReLU as in the pruning papers.
- `lenet5`: LeCun, Bottou, Bengio and Haffner (1998), "Gradient-based learning applied to document
  recognition", section II.B: tanh and average pooling.
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


def lenet5(input_shape: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Build LeNet-5: convolutions of 6, 16 and 120 maps, then 84 units; tanh, average pooling.

    Example:
        >>> net = lenet5((1, 28, 28), 10)
        >>> sum(p.numel() for p in net.parameters())
        61706
    """
    # padding of each convolution, and whether pooling follows it
    height, width = _final_size(
        "lenet5", input_shape, n_outputs, ((2, True), (0, True), (0, False))
    )
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 6, _KERNEL, padding=2),
            act1=nn.Tanh(),
            pool1=nn.AvgPool2d(_POOL),
            conv2=nn.Conv2d(6, 16, _KERNEL),
            act2=nn.Tanh(),
            pool2=nn.AvgPool2d(_POOL),
            conv3=nn.Conv2d(16, 120, _KERNEL),
            act3=nn.Tanh(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(120 * height * width, 84),
            act4=nn.Tanh(),
            out=nn.Linear(84, n_outputs),
        )
    )


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
