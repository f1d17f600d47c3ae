"""Architectures of the papers, as plain `nn.Module` factories of input shape and output count."""

from bayesieve.nets.importing import from_path
from bayesieve.nets.lenet import lenet5, lenet5_caffe, lenet_300_100
from bayesieve.nets.mlp import Activation, mlp

__all__ = ["Activation", "from_path", "lenet5", "lenet5_caffe", "lenet_300_100", "mlp"]
