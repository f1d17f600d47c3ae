"""Architectures of the papers, as plain `nn.Module` factories of input shape and output count."""

from bayesieve.nets.convnets import conv2_bn_fc3 as conv2_bn_fc3
from bayesieve.nets.convnets import conv2_fc2 as conv2_fc2
from bayesieve.nets.convnets import lenet5 as lenet5
from bayesieve.nets.convnets import lenet5_caffe as lenet5_caffe
from bayesieve.nets.convnets import lenet5_wide as lenet5_wide
from bayesieve.nets.convnets import lenet_300_100 as lenet_300_100
from bayesieve.nets.convnets import mixer as mixer
from bayesieve.nets.convnets import resnet20 as resnet20
from bayesieve.nets.convnets import resnet32 as resnet32
from bayesieve.nets.convnets import vgg as vgg
from bayesieve.nets.convnets import vit as vit
from bayesieve.nets.embedding import PiecewiseLinear as PiecewiseLinear
from bayesieve.nets.gpt import gpt as gpt
from bayesieve.nets.importing import from_path as from_path
from bayesieve.nets.mlp import Activation as Activation
from bayesieve.nets.mlp import mlp as mlp
