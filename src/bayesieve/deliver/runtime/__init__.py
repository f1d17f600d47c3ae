"""A network as a fast function on one CPU: sparse where sparse is faster, dense where it is not.

Zeros in a weight matrix save time only if something skips them, and skipping costs time too. Which
is faster depends on the network and on the machine. So `as_runtime` measures two candidates at
batch 1 and 64: the module as it is, and the same network in small C kernels that are compiled on
first use: one for Linear layers that follow one another, one for convolutions, pools and residual
sums of images, each a single call. Without a C compiler the module runs as it is. `Runtime.plan`
says what was chosen and how long each candidate took.

The result is checked against the module before it is returned. A weight that is 0 may be skipped:
an input that is infinite or NaN then does not spread through it, as it would in a dense product.

With `precision="int8"` a third candidate has the weights of Linear layers in 8 bits, with one scale
per output and 16-bit inputs whose steps come from calibration examples. It runs where it is the
fastest, and `Runtime.rounding` says what it changes.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from bayesieve.assess.costs import BATCHES, median_times, resized
from bayesieve.checks import check_choice, check_positive
from bayesieve.deliver.layers import Activation, Layer, Linear, Select, read_layers, run_layers
from bayesieve.deliver.runtime.image_kernels import CompiledImages
from bayesieve.deliver.runtime.images import read_images
from bayesieve.deliver.runtime.integers import IntegerLayers
from bayesieve.deliver.runtime.kernels import (
    Affine,
    Compiled,
    CompiledLayers,
    KernelUnavailableError,
    library,
)
from bayesieve.errors import UnsupportedModelError, VerificationError

Floats = NDArray[np.float32]
Stage = Callable[[Tensor], Tensor]

TOLERANCE = 1e-5  # largest difference to the module, as a fraction of its largest output
_FROM_MANY = 16  # examples from which the plan for batch 64 holds
_CHECKED = (1, 3, 7, 16, 17, 64, 83)  # every path through the kernel, and both plans
_ROUNDS = 9
_WEIGHTED = (nn.Conv2d, nn.Linear)
_REASONS = {
    "torch": "faster as plain torch",
    "kernel": "skipping zeros is faster",
    "int8": "skipping zeros with 8-bit weights is faster",
}


@dataclass(frozen=True)
class Plan:
    """The choice of how the network runs at one batch size, with its times.

    Args:
        batch: number of examples.
        choice: "torch" (the module as it is), "kernel" or "int8".
        milliseconds: median of the whole network, by candidate.
        reason: why it runs so, in words.
    """

    batch: int
    choice: str
    milliseconds: dict[str, float]
    reason: str


@dataclass(frozen=True)
class Rounding:
    """Change of the outputs by 8-bit weights, on the calibration examples.

    Args:
        examples: number of them.
        changed: examples whose largest output is another one; None for a single output.
        error: largest difference to the module, as a fraction of its largest output.
        weights: fraction of the weights other than 0 that have 8 bits.
    """

    examples: int
    changed: int | None
    error: float
    weights: float

    def __str__(self) -> str:
        """The same in words."""
        classes = "" if self.changed is None else f", {self.changed} predicted classes change"
        return (
            f"{self.weights:.0%} of the weights have 8 bits; on {self.examples} examples the "
            f"largest error is {self.error:.2%} of the largest output{classes}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Runtime:
    """A network as a function on float32 batches; made by `as_runtime`.

    Called with a NumPy array or a CPU tensor of shape (n, ...), it returns the outputs as the same
    kind. Threads may call it at the same time.

    Args:
        module: the module it replaces.
        plan: a row for each batch size.
        zeros: fraction of weights that are 0, by name of each layer whose zeros can be skipped.
        kernel: "compiled", or why there is no compiled kernel.
        rounding: what 8-bit weights change, where they were asked for and can be compiled.
    """

    module: nn.Module
    plan: tuple[Plan, ...]
    zeros: dict[str, float]
    kernel: str
    rounding: Rounding | None
    _shape: tuple[int, ...]
    _few: "_Network"
    _many: "_Network"

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...

    @overload
    def __call__(self, x: Floats) -> Floats: ...

    def __call__(self, x: Tensor | Floats) -> Tensor | Floats:
        """Outputs, (n, ...), of inputs, (n, ...), float32."""
        if x.shape[1:] != self._shape:
            raise ValueError(
                f"Runtime: inputs must have shape (n, {', '.join(map(str, self._shape))}), "
                f"got {tuple(x.shape)}."
            )
        network = self.network_for(len(x))
        if isinstance(x, np.ndarray):
            if x.dtype != np.float32:
                raise TypeError(f"Runtime: inputs must be float32, got {x.dtype}.")
            return network.on_array(x)
        if x.dtype != torch.float32 or x.device.type != "cpu":
            raise TypeError(
                f"Runtime: inputs must be float32 on the CPU, got {x.dtype} on {x.device}."
            )
        return network.on_tensor(x)

    def network_for(self, n: int) -> "_Network":
        """The candidate that runs batches of n examples."""
        return self._few if n < _FROM_MANY else self._many

    @property
    def nbytes(self) -> int:
        """Bytes of weights as they are stored for speed, and of scratch memory."""
        return max(self._few.nbytes, self._many.nbytes)

    def describe(self) -> str:
        """The plan as text: the kernel, the layers, and a line per batch size."""
        lines = [f"kernel: {self.kernel}"]
        lines += [] if self.rounding is None else [f"int8: {self.rounding}"]
        lines += [f"{name}: {zeros:.1%} zeros" for name, zeros in self.zeros.items()]
        for row in self.plan:
            listed = ", ".join(f"{name} {ms:.4f} ms" for name, ms in row.milliseconds.items())
            lines.append(f"batch {row.batch}: {row.choice} ({row.reason}); {listed}")
        return "\n".join(lines)


def as_runtime(
    module: nn.Module,
    example: Tensor | Floats,
    *,
    threads: int = 1,
    precision: Literal["float32", "int8"] = "float32",
    calibration: Tensor | Floats | None = None,
) -> Runtime:
    """Make the fastest function we know that equals a module, by measurement on this machine.

    Args:
        module: float32 on the CPU, run in eval mode; a copy is taken. Zeros are skipped in Linear
            layers that follow one another (`nn.Sequential`, or what `compact` returns for one) and
            in networks of images with sums and joins of channels, such as a ResNet; any other
            module runs as it is.
        example: inputs, (n, ...), such as real data: what is measured depends on them.
        threads: how many threads the compiled kernel may split a large batch over. Torch's layers
            keep to torch's own setting.
        precision: "int8" also tries Linear layers with 8-bit weights, which change outputs a
            little: see `Runtime.rounding`. Between such layers only a ReLU may stand.
        calibration: inputs, (n, ...), that "int8" takes the sizes of steps from: some 500 of the
            kind the network will meet.

    Raises:
        VerificationError: the function differs from the module by more than 1e-5 of its scale, or,
            where 8-bit weights were chosen, from the same arithmetic in NumPy.
        UnsupportedModelError: "int8" was asked for and has no kernel for a layer.

    Example:
        >>> net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
        >>> with torch.no_grad():
        ...     _ = net[0].weight.mul_(torch.rand(32, 64) < 0.05)
        >>> runtime = as_runtime(net, torch.randn(64, 64))
        >>> runtime(np.ones((2, 64), np.float32)).shape
        (2, 3)
        >>> bool((runtime(torch.ones(2, 64)) - net(torch.ones(2, 64))).abs().max() < 1e-5)
        True
        >>> [row.batch for row in runtime.plan], list(runtime.zeros)
        ([1, 64], ['0', '2'])
    """
    check_positive("as_runtime", threads=threads)
    check_choice("as_runtime", "precision", precision, ("float32", "int8"))
    example = torch.as_tensor(example)
    _check_input(module, example)
    checked = _check_calibration(precision, calibration, example)
    module = copy.deepcopy(module).eval().requires_grad_(False)
    shape, kernel = tuple(example.shape[1:]), "compiled"
    try:
        library()
    except KernelUnavailableError as error:
        kernel = str(error)
    n_bytes = sum(value.nbytes for value in (*module.parameters(), *module.buffers()))
    candidates = {"torch": _Network([module], n_bytes)}
    sparse, refusal = None, ""
    try:
        sparse = _skipping(module, example, threads) if kernel == "compiled" else None
    except UnsupportedModelError as error:
        refusal = str(error).removeprefix("as_runtime: ").rstrip(".")
    if sparse is not None:
        candidates["kernel"] = sparse
    rounding = None
    if checked is not None and kernel == "compiled":
        integers = _skipping(module, example, threads, checked)
        if integers is None or integers.in_integers == 0:
            raise UnsupportedModelError("as_runtime: int8 has a kernel for Linear layers only.")
        candidates["int8"] = integers
        rounding = _rounding(integers, module, checked)
    functions = {name: network.on_tensor for name, network in candidates.items()}
    measured = median_times(functions, example, rounds=_ROUNDS, clock="cpu")
    plan = []
    for batch in BATCHES:
        times = {name: by_batch[batch] for name, by_batch in measured.items()}
        choice = min(times, key=times.__getitem__)
        reason = _REASONS[choice]
        if refusal:
            reason = f"the module runs as it is: {refusal}"
        elif kernel != "compiled":
            reason = f"no compiled kernel: {kernel}"
        elif len(times) == 1:
            reason = "the module has no layer whose zeros can be skipped"
        plan.append(Plan(batch, choice, times, reason))
    few, many = (candidates[row.choice] for row in plan)
    zeros = {} if sparse is None else sparse.zeros
    made = Runtime(module, tuple(plan), zeros, kernel, rounding, shape, few, many)
    _verify(made, module, example)
    return made


# ---------------------------------------------------------------------------------- candidates


class _Network:
    """Stages that run one after another; arrays go straight through stages that are compiled.

    Args:
        stages: functions of tensors.
        nbytes: of weights and scratch memory.
        compiled: the same stages, if the library computes all of them.
        zeros: fraction of zeros by layer.
        twin: the same stages with 8-bit weights in NumPy, if there are any.
        in_integers: number of weights that have 8 bits.
    """

    def __init__(
        self, stages: Sequence[Stage], nbytes: int, compiled: Sequence[Compiled] = (),
        zeros: Mapping[str, float] | None = None, twin: Sequence[Stage] = (), in_integers: int = 0,
    ) -> None:  # fmt: skip
        self.stages, self.nbytes, self.compiled = list(stages), nbytes, tuple(compiled)
        self.zeros, self.twin, self.in_integers = dict(zeros or {}), list(twin), in_integers

    def on_array(self, x: Floats) -> Floats:
        """Outputs, (n, ...), of inputs, (n, ...)."""
        if not self.compiled:
            x = x if x.flags.writeable else x.copy()
            return self.on_tensor(torch.from_numpy(x)).numpy()
        for stage in self.compiled:
            x = stage(x)
        return x

    def on_tensor(self, x: Tensor) -> Tensor:
        """Outputs, (n, ...), of inputs, (n, ...), without gradients."""
        return run_layers(self.stages, x)

    def wanted(self, module: nn.Module, x: Tensor) -> Tensor:
        """Compute the outputs to check against: of the module, or of its twin in 8 bits."""
        return run_layers(self.twin or [module], x)


def _skipping(
    module: nn.Module, example: Tensor, threads: int, calibration: Tensor | None = None
) -> _Network | None:
    """A module with its zeros skipped; None if no layer has zeros that can be.

    With calibration examples its Linear layers have 8-bit weights.
    """
    if any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        with suppress(UnsupportedModelError):
            return _of_images(module, example, threads, calibration)
    layers = read_layers("as_runtime", module, tuple(example.shape[1:]), calls=True)
    if not any(isinstance(layer, Linear) for layer in layers):
        return None
    return _of_layers(layers, threads, calibration)


def _of_images(
    module: nn.Module, example: Tensor, threads: int, calibration: Tensor | None
) -> _Network:
    """Images in one call of their kernel, then the Linear layers after them."""
    images = read_images("as_runtime", module, example)
    first = CompiledImages(images, threads)
    zeros = {
        name: _zeros(layer.weight)
        for name, layer in module.named_modules()
        if isinstance(layer, _WEIGHTED)
    }
    if images.tail is None:
        shape = (len(images.value.planes), *images.value.size)
        return _Network([lambda x: first.on_tensor(x).view(-1, *shape)], first.nbytes, (), zeros)
    layers = read_layers("as_runtime", images.tail, (first.n_outputs,), calls=True)
    rest = _of_layers(
        layers, threads, None if calibration is None else first.on_tensor(calibration)
    )
    compiled = (first, *rest.compiled) if rest.compiled or not layers else ()
    twin = [first.on_tensor, *rest.twin] if rest.twin else []
    return _Network([first.on_tensor, *rest.stages], first.nbytes + rest.nbytes, compiled, zeros,
                    twin, rest.in_integers)  # fmt: skip


def _of_layers(
    layers: Sequence[Layer], threads: int, calibration: Tensor | None = None
) -> _Network:
    """Neighbouring Linear layers in one call of the kernel, everything else in torch."""
    stages, twin, fused, in_integers = list[Stage](), list[Stage](), list[CompiledLayers](), 0
    for group in _groups(layers):
        if not any(isinstance(layer, Linear) for layer in group):
            stages += group
            twin += group
        elif calibration is None:
            fused.append(CompiledLayers(*_fuse(group), threads=threads))
            stages.append(fused[-1].on_tensor)
        else:
            affine, n_features, selected = _fuse(group)
            x = calibration.flatten(1).numpy()
            made = IntegerLayers(affine, n_features, x, selected, threads)
            fused.append(made)
            stages.append(made.on_tensor)
            twin.append(made.plain)
            in_integers += made.n_weights
        calibration = None if calibration is None else run_layers(group, calibration)
    compiled = fused if len(stages) == len(fused) else ()
    nbytes = sum(one.nbytes for one in fused)
    zeros = {layer.name: _zeros(layer.weight) for layer in layers if isinstance(layer, Linear)}
    return _Network(stages, nbytes, compiled, zeros,
                    twin if in_integers else (), in_integers)  # fmt: skip


def _zeros(weight: Tensor) -> float:
    return 1 - int(weight.count_nonzero()) / weight.numel()


def _groups(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Linear layers with their activations, as far as one call goes; other layers alone."""
    groups = list[list[Layer]]()
    for layer in layers:
        last = groups[-1] if groups else [layer]
        selects = isinstance(last[0], Select) and len(last[0].source) == 1
        joins = isinstance(layer, Linear) and (selects or isinstance(last[0], Linear))
        joins = joins or (isinstance(layer, Activation) and isinstance(last[-1], Linear))
        if groups and joins:
            last.append(layer)
        else:
            groups.append([layer])
    return groups


def _fuse(layers: Sequence[Layer]) -> tuple[list[Affine], int, NDArray[np.int64] | None]:
    """A group as layers of the kernel, the number of its features, and those it selects."""
    affine = list[Affine]()
    for layer in layers:
        if isinstance(layer, Linear):
            affine.append(Affine(csr_array(layer.weight.numpy()), layer.bias.numpy()))
        elif isinstance(layer, Activation):
            affine[-1] = affine[-1]._replace(activation=layer.kind, slope=layer.slope)
    first = layers[0]
    return affine, first.source[0], first.index.numpy() if isinstance(first, Select) else None


# -------------------------------------------------------------------------------------- checks


def _check_input(module: nn.Module, example: Tensor) -> None:
    wrong = [
        f"{name!r} is {value.dtype} on {value.device}"
        for name, value in (*module.named_parameters(), *module.named_buffers())
        if value.device.type != "cpu"
        or (value.is_floating_point() and value.dtype != torch.float32)
    ]
    if wrong:
        raise UnsupportedModelError(
            f"as_runtime: the module must be float32 on the CPU, but {wrong[0]}. "
            "Use module.float().cpu()."
        )
    if example.dtype != torch.float32 or example.dim() < 2 or len(example) == 0:
        raise ValueError(
            "as_runtime: the example must be a float32 batch (n, ...), n > 0, got "
            f"{example.dtype} of shape {tuple(example.shape)}."
        )


def _check_calibration(
    precision: str, calibration: Tensor | Floats | None, example: Tensor
) -> Tensor | None:
    if precision == "float32":
        if calibration is not None:
            raise ValueError("as_runtime: calibration is for precision='int8'.")
        return None
    if calibration is None:
        raise ValueError(
            "as_runtime: int8 needs calibration examples. Pass calibration=x, some 500 inputs of "
            "the kind the network will meet."
        )
    x = torch.as_tensor(calibration)
    if x.dtype != torch.float32 or x.shape[1:] != example.shape[1:] or len(x) == 0:
        raise ValueError(
            "as_runtime: calibration must be float32 inputs of shape "
            f"(n, {', '.join(map(str, example.shape[1:]))}), n > 0, got {x.dtype} of shape "
            f"{tuple(x.shape)}."
        )
    if not bool(x.isfinite().all()):
        raise ValueError("as_runtime: calibration holds inf or NaN.")
    return x


def _rounding(integers: _Network, module: nn.Module, x: Tensor) -> Rounding:
    with torch.no_grad():
        wanted = module(x)
    actual = integers.on_tensor(x)
    error = float((wanted - actual).abs().max() / wanted.abs().max().clamp_min(1e-30))
    changed = None
    if wanted.shape[1] > 1:
        changed = int((wanted.argmax(1) != actual.argmax(1)).sum())
    weights = (layer.weight for layer in module.modules() if isinstance(layer, _WEIGHTED))
    n_weights = sum(int(weight.count_nonzero()) for weight in weights)
    return Rounding(len(x), changed, error, integers.in_integers / max(n_weights, 1))


def _verify(runtime: Runtime, module: nn.Module, example: Tensor) -> None:
    """Compare on the example, on noise and on zeros, along every path.

    The standard is the module, or for 8-bit weights their arithmetic in NumPy.
    """
    generator = torch.Generator().manual_seed(0)
    for n in _CHECKED:
        rows = resized(example, n)
        for x in (rows, torch.randn(rows.shape, generator=generator), torch.zeros_like(rows)):
            wanted = runtime.network_for(n).wanted(module, x)
            difference = float((wanted - runtime(x)).abs().max())
            scale = float(wanted.abs().max())
            if not difference <= TOLERANCE * max(scale, 1e-30):
                raise VerificationError(
                    f"as_runtime: {n} outputs differ from the module by {difference:.3g}, more "
                    f"than {TOLERANCE:g} of their scale {scale:.3g}. Please report this."
                )
