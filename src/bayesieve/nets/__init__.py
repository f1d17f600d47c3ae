"""Architectures of the papers, as plain `nn.Module` factories of input shape and output count."""

from bayesieve.nets.convnets import (
    conv2_bn_fc3,
    conv2_fc2,
    lenet5,
    lenet5_caffe,
    lenet5_wide,
    lenet_300_100,
    resnet20,
    resnet32,
    vgg,
)
from bayesieve.nets.importing import from_path
from bayesieve.nets.mlp import Activation, mlp
from bayesieve.nets.patch_nets import mixer, vit

__all__ = [
    "Activation",
    "conv2_bn_fc3",
    "conv2_fc2",
    "from_path",
    "lenet5",
    "lenet5_caffe",
    "lenet5_wide",
    "lenet_300_100",
    "mixer",
    "mlp",
    "resnet20",
    "resnet32",
    "vgg",
    "vit",
]
