"""Many networks at once: many draws on the same inputs, or models on inputs of their own.

Models on their own examples are one batched product per layer: `vmap` costs twice as much for small
networks, where most of the time goes into dispatch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import bayesieve.fast.twins  # noqa: F401 - draws are made in C
from bayesieve.core.inputs import Input, call, tensors_of
from bayesieve.core.network import (
    Buffers,
    Network,
    is_hooked,
    plain_attention,
    sequential_layers,
)
from bayesieve.core.noise import LocalLayer, perturbed

_Table = dict[str, Any]  # the parameters or buffers of a module
_MOST_KEPT = 1 << 23  # outputs of a layer with the centre, over all batches
_WORTH_SAVING = 1 << 20  # multiplications: as long as what replaces them


@contextmanager
def evaluator(
    network: Network, batches: Sequence[Input], buffers: Buffers, centre: Tensor | None = None
) -> Iterator["Evaluator"]:
    """A function of weight vectors, (k, d), to outputs, for many draws on the same inputs.

    Args:
        network: whose outputs they are.
        batches: the inputs, (n, ...) each, on any device.
        buffers: module buffers, shared by all vectors.
        centre: (d,), if each second vector, over all calls, is the one before it mirrored there:
            w, 2 centre - w, v, 2 centre - v, ...

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Linear(2, 1, bias=False), Gaussian())
        >>> with evaluator(network, [torch.ones(1, 2), torch.ones(3, 2)], {}) as evaluate:
        ...     evaluate(torch.eye(2)).shape, evaluate(torch.ones(1, 2)).flatten().tolist()
        (torch.Size([2, 4, 1]), [2.0, 2.0, 2.0, 2.0])
    """
    with network.borrowed() as module, plain_attention:
        evaluate = Evaluator(network, module, batches, buffers, centre)
        try:
            yield evaluate
        finally:
            evaluate.restore()


class Evaluator:
    """Evaluates weight vectors one after another on the same inputs; see `evaluator`.

    On a GPU the vectors of a call go through the network together. On a CPU one matrix product per
    vector beats a batched product: there each vector is put into a module that is borrowed once.

    Of two mirrored vectors, m + e and m - e, a Linear or Conv layer that reads the inputs of the
    network makes A + B and A - B, where A is its output with m. The second output is 2 A less the
    first, which takes no product. In most networks this is the first layer.
    """

    def __init__(
        self,
        network: Network,
        module: nn.Module,
        batches: Sequence[Input],
        buffers: Buffers,
        centre: Tensor | None,
    ) -> None:
        self._network, self._module = network, module
        on_cpu = network.device.type == "cpu"  # a GPU may have no room for all of them
        self._batches = [x.to(network.device) for x in batches] if on_cpu else batches
        tables = [table for one in module.modules() for table in (one._parameters, one._buffers)]
        self._before: list[tuple[_Table, _Table]] = [(table, dict(table)) for table in tables]
        self._places: dict[str, list[tuple[_Table, str]]] = {}
        for name, first in network._names.items():
            owner, leaf = _owner(module, name)
            self._places.setdefault(first, []).append((owner._parameters, leaf))
        for name, _ in module.named_buffers():
            owner, leaf = _owner(module, name)
            self._places[name] = [(owner._buffers, leaf)]
        self._buffers = buffers
        self._layers: list[_MirroredLayer] = []
        if centre is not None and on_cpu:
            self._layers = self._mirrored_layers(centre)
        self._n_done = 0

    def __call__(self, w: Tensor, row_buffers: Buffers | None = None) -> Tensor:
        """Outputs of all inputs, (k, n, ...), without gradients, in eval mode.

        Args:
            w: weight vectors, shape (k, d).
            row_buffers: buffers that differ, (k, ...) each; they come before the shared ones.
        """
        network, differing = self._network, dict(row_buffers or {})
        kind = network.stands_for if network.device.type == "meta" else network.device.type
        with torch.no_grad():
            if (
                len(w) > 1
                and kind != "cpu"
                and network.is_batchable(self._batches[0][:2].to(network.device))
            ):
                return torch.cat([self._together(w, differing, x) for x in self._batches], 1)
            rows = []
            for i, row in enumerate(w):
                of_row = {name: value[i] for name, value in differing.items()}
                outputs = [self._output(row, of_row, j) for j in range(len(self._batches))]
                rows.append(torch.cat(outputs) if len(outputs) > 1 else outputs[0])
                if self._n_done == 0:
                    self._leave_layers(lambda layer: not layer.saves)
                self._n_done += 1
            return torch.stack(rows) if len(rows) > 1 else rows[0][None]

    def restore(self) -> None:
        """Put back what the module had."""
        self._leave_layers(lambda _: True)
        for table, before in self._before:
            table.clear()
            table.update(before)

    def _leave_layers(self, which: "Callable[[_MirroredLayer], bool]") -> None:
        """Give some layers their forward back."""
        for layer in filter(which, self._layers):
            layer.restore()
        self._layers = [layer for layer in self._layers if not which(layer)]

    def _together(self, w: Tensor, differing: dict[str, Tensor], x: Input) -> Tensor:
        """Outputs of all vectors for one batch, (k, n, ...), by one batched call."""
        shared = {name: v for name, v in self._buffers.items() if name not in differing}
        x, run = x.to(self._network.device), self._network.call_of(self._module)
        return torch.vmap(lambda row, other: run(row, {**shared, **other}, x))(
            self._network.split(w)[0], differing
        )

    def _output(self, row: Tensor, differing: Buffers, batch: int) -> Tensor:
        """The output of one vector, (d,), for one batch, (n, ...)."""
        x = self._batches[batch].to(self._network.device)
        self._put(row, {**self._buffers, **differing})  # for each batch: a forward may change them
        for layer in self._layers:
            layer.expect(batch, x, mirrored=self._n_done % 2 == 1)
        return call(self._module, x)

    def _put(self, row: Tensor, buffers: Buffers) -> None:
        """Put a weight vector, (d,), and its buffers into the module."""
        layout = self._network.layout
        pieces = zip(layout.names, layout.shapes, row.split_with_sizes(layout.sizes), strict=True)
        for name, shape, piece in pieces:
            for table, leaf in self._places.get(name, ()):  # none of the likelihood's numbers
                table[leaf] = piece.view(shape)
        for name, buffer in buffers.items():
            for table, leaf in self._places[name]:
                table[leaf] = buffer

    def _mirrored_layers(self, centre: Tensor) -> "list[_MirroredLayer]":
        """Linear and Conv layers whose output is linear in their entries of w."""
        self._put(centre, {})
        return [
            _MirroredLayer(layer)
            for layer in self._module.modules()
            if type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
            and "weight" in layer._parameters  # and not made of others by a hook
            and "forward" not in vars(layer)
            and not layer._forward_pre_hooks
        ]


class _MirroredLayer:
    """A layer that saves the product of the second of two mirrored weight vectors.

    Args:
        layer: holds the weights of the centre now; its forward is replaced until `restore`.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._layer, self._plain = layer, layer.forward
        self._centre: _Table = dict(layer._parameters)
        self._input: Input | None = None
        self._mirrored, self._batch = False, 0
        self._twice: dict[Any, Tensor] = {}  # 2 A by batch and place of the input in memory
        self._next: dict[Any, Tensor] = {}  # outputs with the mirrored weights
        layer.forward = self._forward

    def expect(self, batch: int, x: Input, *, mirrored: bool) -> None:
        """Say which inputs the network is about to be given."""
        self._batch, self._input, self._mirrored = batch, x, mirrored

    @property
    def saves(self) -> bool:
        """Return whether there was a product worth saving."""
        return bool(self._twice)

    def restore(self) -> None:
        """Give the layer its forward back."""
        del self._layer.forward

    def _forward(self, input: Tensor) -> Tensor:
        assert self._input is not None
        storages = [tensor.untyped_storage().data_ptr() for tensor in tensors_of(self._input)]
        if input.untyped_storage().data_ptr() not in storages:
            return self._plain(input)
        key = (self._batch, input.data_ptr(), input.shape, input.stride())
        if self._mirrored:
            made = self._next.pop(key, None)
            return self._plain(input) if made is None else made
        output: Tensor = self._plain(input)
        if key not in self._twice:
            products = output.numel() * self._centre["weight"][0].numel()
            if products < _WORTH_SAVING or (len(self._twice) + 1) * output.numel() > _MOST_KEPT:
                return output
            self._twice[key] = 2 * self._at_centre(input)
        self._next[key] = self._twice[key] - output
        return output

    def _at_centre(self, x: Tensor) -> Tensor:
        table = self._layer._parameters
        now = dict(table)
        table.update(self._centre)
        try:
            return self._plain(x)
        finally:
            table.update(now)


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that a named tensor is registered in, and its name there."""
    prefix, _, leaf = name.rpartition(".")
    return module.get_submodule(prefix), leaf


Layers = Sequence[tuple[str, nn.Module]]
ENTRYWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU,
    nn.Mish, nn.Tanh, nn.Tanhshrink, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid,
    nn.Hardswish, nn.Hardshrink, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Threshold,
)  # fmt: skip


def members_of(skeleton: nn.Module) -> Callable[..., Tensor] | None:
    """Outputs of k models as a function of parameters, (k, ...) each, and inputs, (k, n, ...).

    None for networks that are no plain sequence of layers.
    """
    layers = plain_layers(skeleton)
    return None if layers is None else partial(_run_layers, layers)


def plain_layers(module: nn.Module) -> Layers | None:
    """Names and layers of a `Sequential` of Flatten, Linear and activations; None for others.

    Linear layers may be those of `core.noise`, with noise on their outputs.

    Example:
        >>> [name for name, _ in plain_layers(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))]
        ['0', '1']
        >>> plain_layers(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))) is None
        True
    """
    layers = sequential_layers(module)
    distinct = len({id(layer) for _, layer in layers}) == len(layers)
    is_plain = type(module) is nn.Sequential and all(_is_plain(layer) for _, layer in layers)
    return layers if distinct and is_plain else None


def _is_plain(layer: nn.Module) -> bool:
    if is_hooked(layer):
        return False
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1 and layer.end_dim == -1
    if type(layer) is nn.Linear:
        return all(p is None or p.requires_grad for p in (layer.weight, layer.bias))
    if type(layer) is LocalLayer:
        return layer.is_linear
    return type(layer) in ENTRYWISE


def _run_layers(layers: Layers, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs of `plain_layers` of k models on their own inputs, (k, n, ...) -> (k, n, outputs)."""
    for name, layer in layers:
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif isinstance(layer, LocalLayer):
            mean = _product(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
            var, bias_var = parameters[f"{name}.weight_var"], parameters.get(f"{name}.bias_var")
            x = perturbed(mean, _product(x * x, var, bias_var), layer.source())
        elif isinstance(layer, nn.Linear):
            x = _product(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
        else:
            x = layer(x)
    return x


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(k, n, in) by (k, out, in), and (k, out) added."""
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
