"""VGG-like networks with BatchNorm for small images.

Reference: [Simonyan], column D; the head is one linear layer, as usual for 32x32 images.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from bayesieve.nets._sizes import check_counts, check_sizes

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
    check_sizes("vgg", input_shape, n_outputs)
    if len(input_shape) != 3:
        raise ValueError(f"vgg: input_shape must be (channels, height, width), got {input_shape}.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    n_inputs, height, width = input_shape
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
