"""Branches of a network that are added to their own input, found by symbolic tracing."""

import copy
import operator

import torch
from torch import fx, nn

from bayesieve.core.network import Network

_ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def branches(network: Network) -> list[tuple[str, list[str]]]:
    """Name and parameters of each branch x -> f(x) in x + f(x), from the input to the output.

    f is a chain or graph of calls that only the addition reads, and gives 0 when its parameters
    are 0: its last call is a layer or a BatchNorm.
    """
    module = copy.deepcopy(network.skeleton).eval()
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # the user's forward meets a symbolic input and may raise anything
        return []
    modules = dict(module.named_modules())
    found = []
    for node in graph.nodes:
        if node.target not in _ADDITIONS or len(node.args) != 2 or node.kwargs:
            continue
        for skip, branch in (node.args, node.args[::-1]):
            inside = _inside(skip, branch)
            if inside and _ends_in_zero(branch, modules):
                calls = [own for own in inside if own.op == "call_module"]
                names = [str(own.target) for own in calls]
                parameters = [f"{n}.{leaf}" for n in names for leaf, _ in _own(modules[n])]
                if parameters and not any(own.op == "get_attr" for own in inside):
                    found.append((_common(names), parameters))
                break
    return found


def _inside(skip: object, branch: object) -> list[fx.Node]:
    """The nodes between the skipped value and the branch's end; empty if others read them."""
    if not isinstance(skip, fx.Node) or not isinstance(branch, fx.Node) or skip is branch:
        return []
    inside, waiting = [], [branch]
    while waiting:
        node = waiting.pop()
        if node is skip or node in inside:
            continue
        if node.op in ("placeholder", "output"):
            return []
        inside.append(node)
        waiting += node.all_input_nodes
    outside = [user for own in inside if own is not branch for user in own.users]
    if len(branch.users) != 1 or any(user not in inside for user in outside):
        return []
    return inside


def _ends_in_zero(branch: object, modules: dict[str, nn.Module]) -> bool:
    assert isinstance(branch, fx.Node)
    if branch.op != "call_module":
        return False
    last = modules[str(branch.target)]
    return isinstance(last, _LAYERS) or (isinstance(last, _NORMS) and last.affine)


def _own(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(module.named_parameters())


def _common(names: list[str]) -> str:
    """The longest module path that all names share, or the first name."""
    split = [name.split(".") for name in names]
    shared = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    if len(names) > 1 and shared:
        return ".".join(shared)
    return "+".join(reversed(names))
