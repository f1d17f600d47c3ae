"""Architectures of the papers, as plain `nn.Module` factories of input shape and output count."""

from bayesieve.nets.cnn import conv2_bn_fc3, conv2_fc2
from bayesieve.nets.importing import from_path
from bayesieve.nets.lenet import lenet5, lenet5_caffe, lenet5_wide, lenet_300_100
from bayesieve.nets.mixer import mixer
from bayesieve.nets.mlp import Activation, mlp
from bayesieve.nets.resnet import resnet20, resnet32
from bayesieve.nets.vgg import vgg
from bayesieve.nets.vit import vit

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
