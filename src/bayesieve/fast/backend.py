"""Choose how the steps of a run are computed: as they stand, compiled, or in C."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor, nn

import bayesieve.fast.native as native
import bayesieve.fast.twins  # noqa: F401 - fills TWINS
from bayesieve.checks import check_choice
from bayesieve.core.execution import Backend, F, Precision, by_twin, in_parts, traits_of
from bayesieve.core.random import fresh_keys
from bayesieve.fast.evaluator import members_of
from bayesieve.fast.layers import fused_layer

CompileMode = Literal["auto", "on", "off", "network"]
COMPILE_MODES = ("auto", "on", "off", "network")
# On a CPU one weight update costs about 2e-8 s more eagerly; compiling costs some 15 s once. On a
# GPU it saves at most the time its bytes take, some 5e-11 s, and compiling takes up to 100 s.
_WORTH_A_LIBRARY = 1e8  # updates: half a second, as long as loading or building it takes
_WORTHWHILE_UPDATES = {"cpu": 3e9, "cuda": 1e12}
_LARGE = 1 << 14  # weights


@dataclass(frozen=True)
class Machine(Backend):
    """Runs definitions by their twins in C, compiled, or as they stand.

    Args:
        device: kind of it.
        compiled: whether definitions are compiled.
        native: whether twins in C are used.
        whole: whether the network of one model is compiled too.
    """

    device: str = "cpu"
    compiled: bool = False
    native: bool = False
    whole: bool = False
    _made: dict[Any, Callable[..., Any]] = field(default_factory=dict, compare=False, repr=False)
    _twins: dict[Any, Callable[..., Any]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def dense(self) -> bool:  # type: ignore[override]
        """Return whether layers with noise on activations need contiguous tensors: C does."""
        return self.native

    def run(self, function: F) -> F:
        """The twin of a function, or the function, compiled or not."""
        if not self.native or not traits_of(function).twin:
            return self._definition(function)
        if function not in self._twins:
            self._twins[function] = by_twin(function, partial(self._definition, function))
        return cast(F, self._twins[function])

    def _definition(self, function: F) -> F:
        traits = traits_of(function)
        if not self.compiled or not traits.compiled or (traits.small and self.native):
            return in_parts(function) if traits.in_parts else function
        if function not in self._made:
            compiled = torch.compile(function, dynamic=traits.any_shape)
            self._made[function] = _on_all(compiled) if traits.in_parts else compiled
        return cast(F, self._made[function])

    def noise(self, like: Tensor, generator: Generator) -> Tensor:
        """Keys of normals where C or a compiled function makes them, on a CPU."""
        if self.device == "cpu" and (self.native or self.compiled):
            return fresh_keys(generator)
        return super().noise(like, generator)

    def in_layers(self, precision: Precision) -> Backend | None:
        """C for float32; on a GPU what is compiled, unless the network is compiled too."""
        in_c = self.native and precision == "float32"
        on_gpu = self.device == "cuda" and not self.whole
        return self if in_c or on_gpu else None

    def fused(self, layer: nn.Module) -> Callable[..., Tensor | None] | None:
        """Return the layer with its way back written out."""
        return fused_layer(layer, self)

    def product_dtype(self, layer: nn.Module) -> torch.dtype:
        """Dtype in which a CPU multiplies the variances of a layer fastest, float32 or bfloat16.

        Small matrices take longer to convert than they save. oneDNN has no fast gradient in
        bfloat16 for the weights of a convolution with few channels on either side, and rarely one
        for those of a convolution in groups.
        """
        weight: Tensor = layer.weight  # type: ignore[assignment]
        faster = native.product_dtype() if self.native else weight.dtype
        if faster != torch.bfloat16:
            return weight.dtype
        if isinstance(layer, nn.Conv2d):
            many = layer.out_channels % 16 == 0 or min(layer.in_channels, layer.out_channels) >= 12
            return faster if many and layer.groups == 1 else weight.dtype
        large = isinstance(layer, nn.Linear) and weight.numel() >= _LARGE
        return faster if large else weight.dtype

    def network(self, module: nn.Module) -> nn.Module:
        """The network, compiled if asked."""
        return cast(nn.Module, torch.compile(module, dynamic=False)) if self.whole else module

    def members(self, skeleton: nn.Module) -> Callable[..., Tensor] | None:
        """Batched products, where the network is a plain sequence of layers."""
        return members_of(skeleton)


def _on_all(function: Callable[..., Any]) -> Callable[..., None]:
    """A compiled definition that takes parts, on the whole."""

    def whole(state: Any, *args: Any) -> None:
        function(state, *args, slice(0, state.mean.shape[1]))

    return whole


def chosen_backend(mode: CompileMode, like: Tensor, n_updates: float) -> Machine:
    """Decide for a run.

    Args:
        mode: "auto" decides by the length of the run.
        like: weights of the model.
        n_updates: updates of weights in all (steps · k · d).
    """
    kind = like.device.type
    return Machine(
        kind,
        compiled=should_compile(mode, like.device, n_updates),
        native=should_run_natively(mode, like, n_updates),
        whole=mode == "network",
    )


def compiler_missing(device: torch.device) -> str | None:
    """Why `torch.compile` cannot work for this device, or None when it can."""
    if device.type == "cuda":
        installed = importlib.util.find_spec("triton") is not None
        return None if installed else "the package 'triton' is not installed"
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "c++", "clang++"]
    if any(shutil.which(name) for name in names):
        return None
    return f"no C++ compiler found (looked for {', '.join(names)})"


def should_compile(mode: CompileMode, device: torch.device, n_updates: float) -> bool:
    """Decide for a run that will update weights `n_updates` times in all (steps · k · d).

    "auto" compiles when the run is long enough to repay it and a compiler is found. Results are
    the same up to rounding, except that on a CPU weight noise is drawn in another way
    (core.random).
    """
    check_choice("fit", "compile", mode, COMPILE_MODES)
    if mode == "off":
        return False
    reason = compiler_missing(device)
    if mode in ("on", "network"):
        if reason is not None:
            raise ValueError(
                f"fit: compile={mode!r} but {reason}. Install it or use compile='off'."
            )
        return True
    return reason is None and n_updates >= _WORTHWHILE_UPDATES.get(device.type, 3e9)


def should_run_natively(mode: CompileMode, like: Tensor, n_updates: float) -> bool:
    """Return whether steps run in C: in float32 on a CPU with a C compiler.

    "auto" leaves out runs that are over before it counts. Results differ by rounding, and weight
    noise is drawn in another way (core.random).
    """
    fits = like.device.type == "cpu" and like.dtype == torch.float32
    wanted = mode == "on" or (mode == "auto" and n_updates >= _WORTH_A_LIBRARY)
    return fits and wanted and native.steps() is not None
