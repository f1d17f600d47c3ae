"""Pairs of consecutive layers of a network, found by symbolic tracing."""

import copy
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from bayesieve.core.layout import Role
from bayesieve.core.network import Network

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SEPARATE = {
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU,
    nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Tanhshrink, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh,
    nn.Hardsigmoid, nn.Hardswish, nn.Hardshrink, nn.Softplus, nn.Softshrink, nn.Softsign,
    nn.Threshold, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.FeatureAlphaDropout, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d,
}  # fmt: skip
_SEPARATE_CALLS = {
    F.relu, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu, F.mish, F.tanh,
    F.sigmoid, F.logsigmoid, F.hardtanh, F.hardsigmoid, F.hardswish, F.softplus, F.softsign,
    F.dropout, torch.relu, torch.tanh, torch.sigmoid, torch.sin, torch.relu_,
}  # fmt: skip
_SEPARATE_METHODS = {"relu", "relu_", "tanh", "tanh_", "sigmoid", "sigmoid_", "contiguous", "sin"}
_POOLS: dict[type[nn.Module], set[Any]] = {
    nn.Conv1d: {
        nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d,
        F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d, torch.max_pool1d, torch.avg_pool1d,
    },
    nn.Conv2d: {
        nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d,
        F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, torch.max_pool2d,
    },
    nn.Conv3d: {
        nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveMaxPool3d, nn.AdaptiveAvgPool3d,
        F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d, torch.max_pool3d,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Link:
    """Units that one layer makes and only one other layer reads.

    Args:
        producer: name of the weight whose rows lead into the units.
        bias: name of the producer's trainable bias, or None.
        consumer: name of the weight whose columns leave the units, in blocks of equal length.
        n_units: number of units (channels of a convolution).
        n_outputs: number of rows of the consumer.
    """

    producer: str
    bias: str | None
    consumer: str
    n_units: int
    n_outputs: int


def trace_links(network: Network) -> tuple[Link, ...]:
    """The links that hold in training and in evaluation mode, from the output to the input."""
    in_training = _links_in_mode(network, training=True)
    in_evaluation = _links_in_mode(network, training=False)
    return tuple(link for link in in_training if link in in_evaluation)


def _links_in_mode(network: Network, *, training: bool) -> list[Link]:
    module = copy.deepcopy(network.skeleton).train(training)  # forward may change the module
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # the user's forward meets a symbolic input and may raise anything
        return []
    modules = dict(module.named_modules())
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    shared = _shared_layers(module, graph)
    links = []
    for node in reversed(graph.nodes):
        if node.op != "call_module" or not _is_layer(modules[node.target]):
            continue
        found = _consumer(node, modules)
        if found is None:
            continue
        pair = {node.target, found[0].target}
        if any(calls[name] > 1 for name in pair) or pair & shared:
            continue
        link = _link(network, node, found[0], modules, flat=found[1])
        if link is not None:
            links.append(link)
    return links


def _link(
    network: Network, node: fx.Node, user: fx.Node, modules: dict[str, nn.Module], *, flat: bool
) -> Link | None:
    """The link between two layers, unless shapes or roles speak against it."""
    producer, consumer = modules[str(node.target)], modules[str(user.target)]
    roles = dict(zip(network.layout.names, network.layout.roles, strict=True))
    weight, bias, reader = f"{node.target}.weight", f"{node.target}.bias", f"{user.target}.weight"
    if roles.get(weight) != Role.PRUNE or reader not in roles:
        return None
    n_units, n_inputs = _outputs(producer), _inputs(consumer)
    if isinstance(producer, nn.Linear):
        fits = isinstance(consumer, nn.Linear) and n_inputs == n_units
    elif flat:
        fits = isinstance(consumer, nn.Linear) and n_inputs % n_units == 0
    else:
        fits = type(consumer) is type(producer) and n_inputs == n_units
    if not fits:
        return None
    return Link(weight, bias if bias in roles else None, reader, n_units, _outputs(consumer))


def _consumer(node: fx.Node, modules: dict[str, nn.Module]) -> tuple[fx.Node, bool] | None:
    """The one layer that reads a layer's output, and whether it was flattened on the way."""
    kind, flat = type(modules[str(node.target)]), False
    while True:
        users = [user for user in node.users if not _reads_shape(user)]
        if len(users) != 1 or not users[0].args or users[0].args[0] is not node:
            return None
        user = users[0]
        if _flattens(user, modules):
            flat = True
        elif user.op == "call_module" and _is_layer(modules[str(user.target)]):
            return user, flat
        elif not _is_separate(user, modules, set() if flat else _POOLS.get(kind, set())):
            return None
        node = user


def _is_separate(user: fx.Node, modules: dict[str, nn.Module], pools: set[Any]) -> bool:
    """Whether a call treats units separately."""
    if user.op == "call_module":
        module = modules[str(user.target)]
        return type(module) in _SEPARATE | pools and not _hooked(module)
    if user.op == "call_function":
        return user.target in _SEPARATE_CALLS | pools
    return user.op == "call_method" and user.target in _SEPARATE_METHODS


def _flattens(user: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a call merges all axes after the first and keeps the first."""
    if user.op == "call_module":
        module = modules[str(user.target)]
        is_whole = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
        return is_whole and type(module) is nn.Flatten and not _hooked(module)
    if user.target in (torch.flatten, "flatten"):
        return (user.args[1:], dict(user.kwargs)) in (((1,), {}), ((1, -1), {}), ((), _START))
    if user.op == "call_method" and user.target in ("view", "reshape") and len(user.args) == 3:
        return _is_batch_size(user.args[1]) and user.args[2:] == (-1,)
    return False


_START = {"start_dim": 1}


def _is_batch_size(argument: object) -> bool:
    if not isinstance(argument, fx.Node):
        return False
    if argument.op == "call_method":
        return argument.target == "size" and argument.args[1:] == (0,)
    is_item = argument.target is operator.getitem and argument.args[1:] == (0,)
    return is_item and isinstance(argument.args[0], fx.Node) and _reads_shape(argument.args[0])


def _reads_shape(user: fx.Node) -> bool:
    if user.op == "call_method":
        return user.target in ("size", "dim")
    return user.target is getattr and user.args[1:] in (("shape",), ("ndim",))


def _is_layer(module: nn.Module) -> bool:
    if _hooked(module):
        return False
    if isinstance(module, _CONVS):
        return type(module) in _CONVS and module.groups == 1
    return type(module) is nn.Linear


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _inputs(module: nn.Module) -> int:
    return int(module.in_features if isinstance(module, nn.Linear) else module.in_channels)  # type: ignore[arg-type]


def _outputs(module: nn.Module) -> int:
    return int(module.out_features if isinstance(module, nn.Linear) else module.out_channels)  # type: ignore[arg-type]


def _shared_layers(module: nn.Module, graph: fx.Graph) -> set[str]:
    """Modules whose parameters are used outside their own call or belong to several owners."""
    uses: Counter[nn.Parameter] = Counter()
    owners: dict[str, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        uses[parameter] += 1
        owners.setdefault(name.rpartition(".")[0], []).append(parameter)
    read = {str(n.target).rpartition(".")[0] for n in graph.nodes if n.op == "get_attr"}
    return read | {name for name, own in owners.items() if any(uses[p] > 1 for p in own)}
