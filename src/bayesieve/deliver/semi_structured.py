"""2:4 networks on a GPU: Linear layers as semi-structured products where these are faster.

A GPU's sparse tensor cores skip two of every four weights, which is what `keep_n_of_m(2, 4)`
leaves. They win on large products only: on an H200 with 4,096 rows or more, and lose below. So
every layer is timed both ways on the rows it will see, then the network as a whole, and what is not
faster stays dense. `Semi.describe` says what was measured.
"""

import copy
import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.sparse import to_sparse_semi_structured

from bayesieve.errors import UnsupportedModelError

Case = Callable[[], object]
Timer = Callable[[Mapping[str, Case]], dict[str, float]]  # milliseconds of each case

_MULTIPLE = 64  # rows and columns of a weight that every kernel of torch takes
_MARGIN = 0.97  # a change must take at most so much of the dense time: less may be chance
_ROUNDS, _REPEATS = 7, 20


@dataclass(frozen=True)
class SemiLayer:
    """One Linear layer with 2:4 weights, and its times.

    Args:
        name: of the layer in the module.
        rows: vectors that it multiplies in one call.
        milliseconds: of "dense" and "sparse".
        sparse: whether it runs as a semi-structured product.
    """

    name: str
    rows: int
    milliseconds: dict[str, float]
    sparse: bool


@dataclass(frozen=True)
class Semi:
    """A module and how it came to be; made by `as_semi_structured`.

    Args:
        module: the copy to call; dense where dense is faster.
        layers: a row for each layer that could have changed.
        milliseconds: of the network, "dense" and "sparse"; empty where no layer changed.
    """

    module: nn.Module
    layers: tuple[SemiLayer, ...]
    milliseconds: dict[str, float]

    def describe(self) -> str:
        """The measurements in words: a line for each layer and one for the network.

        Example:
            >>> layer = SemiLayer("0", 4096, {"dense": 2.0, "sparse": 1.5}, True)
            >>> times = {"dense": 2.1, "sparse": 1.6}
            >>> print(Semi(nn.Identity(), (layer,), times).describe())
            0: 4096 rows, dense 2.0000 ms, sparse 1.5000 ms
            network: dense 2.1000 ms, sparse 1.6000 ms
        """

        def listed(times: Mapping[str, float]) -> str:
            return ", ".join(f"{name} {ms:.4f} ms" for name, ms in times.items())

        lines = [f"{one.name}: {one.rows} rows, {listed(one.milliseconds)}" for one in self.layers]
        network = listed(self.milliseconds) or "dense, since no layer is faster semi-structured"
        return "\n".join([*lines, f"network: {network}"])


def is_two_of_four(weight: Tensor) -> bool:
    """Whether every four consecutive inputs of each output have at most two weights that are not 0.

    Example:
        >>> is_two_of_four(torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 3]]))
        True
        >>> is_two_of_four(torch.ones(2, 4))
        False
    """
    if weight.dim() != 2 or weight.shape[1] % 4:
        return False
    groups = weight.ne(0).unflatten(1, (-1, 4))
    return bool((groups.sum(2) <= 2).all())


def as_semi_structured(
    module: nn.Module, example: Tensor, *, timer: Timer | None = None,
    convert: Callable[[Tensor], Tensor] = to_sparse_semi_structured,
) -> Semi:  # fmt: skip
    """Run 2:4 Linear layers of a module on sparse tensor cores where that is faster here.

    Args:
        module: float16 or bfloat16 on a CUDA device, run in eval mode; a copy is taken.
        example: inputs, (n, ...), as many as a call will have: what wins depends on n.
        timer: milliseconds of each of some functions; None measures on the device.
        convert: makes the semi-structured weight of a dense one.

    Raises:
        UnsupportedModelError: the module is not in half precision on a CUDA device.

    Example:
        >>> as_semi_structured(nn.Linear(64, 64), torch.ones(1, 64))
        Traceback (most recent call last):
        bayesieve.errors.UnsupportedModelError: as_semi_structured: sparse tensor cores take ...
    """
    module = copy.deepcopy(module).eval().requires_grad_(False)
    weights = list(module.parameters())
    on_device = timer is not None or all(w.device.type == "cuda" for w in weights)
    if not on_device or any(w.dtype not in (torch.float16, torch.bfloat16) for w in weights):
        raise UnsupportedModelError(
            "as_semi_structured: sparse tensor cores take float16 or bfloat16 on a CUDA device. "
            "Use module.bfloat16().cuda()."
        )
    timer = timer or _device_times
    inputs = _inputs_of(module, example)
    sparse, layers = dict[str, nn.Parameter](), list[SemiLayer]()
    for name, x in inputs.items():
        layer = module.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        converted = nn.Parameter(convert(layer.weight.detach()), requires_grad=False)
        cases: dict[str, Case] = {
            "dense": functools.partial(F.linear, x, layer.weight, layer.bias),
            "sparse": functools.partial(F.linear, x, converted, layer.bias),
        }
        with torch.no_grad():
            times = timer(cases)
        if wins := _wins(times):
            sparse[name] = converted
        layers.append(SemiLayer(name, x.shape[:-1].numel(), times, wins))
    if not sparse:
        return Semi(module, tuple(layers), {})
    changed = copy.deepcopy(module)
    for name, weight in sparse.items():
        changed.get_submodule(name).weight = weight
    with torch.no_grad():
        whole = {"dense": functools.partial(module, example),
                 "sparse": functools.partial(changed, example)}  # fmt: skip
        times = timer(whole)
    return Semi(changed if _wins(times) else module, tuple(layers), times)


def _wins(times: Mapping[str, float]) -> bool:
    return times["sparse"] <= _MARGIN * times["dense"]


def _inputs_of(module: nn.Module, example: Tensor) -> dict[str, Tensor]:
    """The input of every Linear layer that can be semi-structured and is called once, by name."""
    inputs, calls = dict[str, Tensor](), dict[str, int]()

    def record(name: str, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs[name] = args[0]
        calls[name] = calls.get(name, 0) + 1

    hooks = [
        layer.register_forward_pre_hook(functools.partial(record, name))
        for name, layer in module.named_modules()
        if type(layer) is nn.Linear
        and not any(size % _MULTIPLE for size in layer.weight.shape)
        and is_two_of_four(layer.weight)
    ]
    with torch.no_grad():
        module(example)
    for hook in hooks:
        hook.remove()
    return {name: x for name, x in inputs.items() if calls[name] == 1}


def _device_times(cases: Mapping[str, Case]) -> dict[str, float]:
    """Median milliseconds on the CUDA device, cases taken in turns."""
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(_ROUNDS + 1):  # the first warms up
        for name, case in cases.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(_REPEATS):
                case()
            end.record()
            end.synchronize()
            if turn:
                rounds[name].append(begin.elapsed_time(end) / _REPEATS)
    return {name: statistics.median(times) for name, times in rounds.items()}
