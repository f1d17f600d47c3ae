"""A network as a list of layers: the form that the C export, the runtime and the page share.

`read_layers` traces a module whose layers follow one another and returns one object per layer, in
the order of the calls. Every layer knows the shapes of its input and output and computes the same
as the module in torch, so that each user can check its translation.
"""

from bayesieve.deliver.layers.forms import Activation as Activation
from bayesieve.deliver.layers.forms import Call as Call
from bayesieve.deliver.layers.forms import Conv as Conv
from bayesieve.deliver.layers.forms import Layer as Layer
from bayesieve.deliver.layers.forms import Linear as Linear
from bayesieve.deliver.layers.forms import Pad as Pad
from bayesieve.deliver.layers.forms import Pool as Pool
from bayesieve.deliver.layers.forms import Scale as Scale
from bayesieve.deliver.layers.forms import Select as Select
from bayesieve.deliver.layers.forms import Weighted as Weighted
from bayesieve.deliver.layers.forms import per_row as per_row
from bayesieve.deliver.layers.forms import run_layers as run_layers
from bayesieve.deliver.layers.reading import read_layers as read_layers
