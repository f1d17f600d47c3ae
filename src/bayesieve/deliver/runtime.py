"""A network as a fast function on one CPU: dense where dense is faster, sparse where it is not.

Zeros in a weight matrix save time only if something skips them, and skipping has a price of its
own. What is faster depends on the layer and on the machine, so `as_runtime` measures: each layer
on the example's own activations, at batch 1 and 64, as torch's dense product, SciPy's and torch's
compressed rows, and a small C kernel that is compiled on first use and runs neighbouring layers
in one call. Then whole networks are compared, the module itself among them, and the fastest is
taken. `Runtime.plan` says what was chosen, why, and what the others took.

Where no C compiler is found, SciPy and torch remain. The result is checked against the module
before it is returned. A weight that is 0 is skipped: inputs that are infinite or NaN do not spread
through it, as they would in a dense product.
"""

import copy
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import torch
from torch import Tensor, nn

from bayesieve.assess.latency import interleaved, resized
from bayesieve.checks import check_positive
from bayesieve.deliver._chain import Affine2d, Other, Select, Step, read_chain
from bayesieve.deliver._kernels import KernelUnavailableError, library
from bayesieve.deliver._stages import PRODUCTS, Floats, Network, Stage, assembled
from bayesieve.errors import UnsupportedModelError, VerificationError

BATCHES = (1, 64)
TOLERANCE = 1e-5  # largest difference to the module, as a fraction of its largest output
_FROM_MANY = 16  # examples from which the plan for batch 64 holds
_CHECKED = (1, 3, 17, 64, 83)  # every path through the kernel, and both plans
_ROUNDS = 9


@dataclass(frozen=True)
class LayerPlan:
    """How one Linear layer runs at one batch size, and what was measured.

    Args:
        layer: its name in the module.
        batch: number of examples.
        choice: "dense", "kernel", "scipy" or "torch-csr".
        zeros: fraction of its weights that are 0.
        milliseconds: of the layer alone, by candidate.
        reason: why it runs so, in words.
    """

    layer: str
    batch: int
    choice: str
    zeros: float
    milliseconds: dict[str, float]
    reason: str


class Runtime:
    """A network as a function on float32 batches; made by `as_runtime`.

    Called with a NumPy array or a CPU tensor of shape (n, ...), it returns the outputs as the same
    kind. Threads may call it at the same time.

    Attributes:
        module: the module it stands for.
        plan: a row for each Linear layer and batch size.
        network_ms: median milliseconds of whole networks, by batch size and candidate.
        kernel: "compiled", or why there is no compiled kernel.
    """

    def __init__(
        self,
        module: nn.Module,
        example: Tensor,
        few: "Network",
        many: "Network",
        plan: tuple[LayerPlan, ...],
        network_ms: dict[int, dict[str, float]],
        kernel: str,
    ) -> None:
        self.module, self.plan, self.network_ms, self.kernel = module, plan, network_ms, kernel
        self._shape = tuple(example.shape[1:])
        self._few, self._many = few, many

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
        network = self._few if len(x) < _FROM_MANY else self._many
        if isinstance(x, np.ndarray):
            if x.dtype != np.float32:
                raise TypeError(f"Runtime: inputs must be float32, got {x.dtype}.")
            return network.on_array(x)
        if x.dtype != torch.float32 or x.device.type != "cpu":
            raise TypeError(
                f"Runtime: inputs must be float32 on the CPU, got {x.dtype} on {x.device}."
            )
        return network.on_tensor(x)

    @property
    def nbytes(self) -> int:
        """Bytes of weights as they are stored for speed, and of scratch memory."""
        return max(self._few.nbytes, self._many.nbytes)

    def describe(self) -> str:
        """The plan as text, one line per layer and batch size."""
        lines = [f"kernel: {self.kernel}"]
        for row in self.plan:
            lines.append(f"{row.layer}, batch {row.batch}: {row.choice} ({row.reason})")
        for batch, times in self.network_ms.items():
            listed = ", ".join(f"{name} {ms:.4f} ms" for name, ms in times.items())
            lines.append(f"network, batch {batch}: {listed}")
        return "\n".join(lines)


def as_runtime(module: nn.Module, example: Tensor | Floats, *, threads: int = 1) -> Runtime:
    """Make the fastest function we know that equals a module, by measurement on this machine.

    Args:
        module: float32 on the CPU, run in eval mode; a copy is taken. Layers are chosen one by one
            in a chain (`nn.Sequential`, or what `compact` returns for one); any other module runs
            as it is.
        example: inputs, (n, ...), such as real data: what is measured depends on them.
        threads: how many threads the compiled kernel may split a large batch over. Torch's layers
            keep to torch's own setting.

    Raises:
        VerificationError: the function differs from the module by more than 1e-5 of its scale.

    Example:
        >>> net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
        >>> with torch.no_grad():
        ...     _ = net[0].weight.mul_(torch.rand(32, 64) < 0.05)
        >>> runtime = as_runtime(net, torch.randn(64, 64))
        >>> runtime(np.ones((2, 64), np.float32)).shape
        (2, 3)
        >>> bool((runtime(torch.ones(2, 64)) - net(torch.ones(2, 64))).abs().max() < 1e-5)
        True
        >>> [(row.layer, row.batch) for row in runtime.plan]
        [('0', 1), ('2', 1), ('0', 64), ('2', 64)]
    """
    check_positive("as_runtime", threads=threads)
    example = torch.as_tensor(example)
    _check_input(module, example)
    module = copy.deepcopy(module).eval().requires_grad_(False)
    pool = ThreadPoolExecutor(threads) if threads > 1 else None
    kernel = _kernel_status()
    steps = read_chain(module)
    networks, plan, network_ms = [], list[LayerPlan](), {}
    with torch.no_grad():
        for batch in BATCHES:
            x = resized(example, batch).contiguous()
            if isinstance(steps, str):
                rows, candidates = _unread(module, steps, batch), dict[str, Network]()
            else:
                rows, candidates = _candidates(steps, x, kernel == "compiled", threads, pool)
            candidates["module"] = Network([("module", module)], _weight_bytes(module))
            best, times = _fastest(candidates, x)
            plan += [_explained(row, best, kernel) for row in rows]
            networks.append(candidates[best])
            network_ms[batch] = times
        few, many = networks
        made = Runtime(module, example, few, many, tuple(plan), network_ms, kernel)
        _verify(made, module, example)
    return made


# ---------------------------------------------------------------------------------- candidates


def _candidates(
    steps: Sequence[Step], x: Tensor, compiled: bool, threads: int, pool: ThreadPoolExecutor | None
) -> tuple[list[LayerPlan], dict[str, Network]]:
    """A row for each layer, and networks worth comparing: layer by layer, and all in the kernel."""
    rows, choices = list[LayerPlan](), dict[int, str]()
    steps = list(steps)
    for index, step in enumerate(steps):
        if isinstance(step, Select):  # of flat inputs; of images it would take channels
            whole = replace(step, n_features=x.shape[1])
            steps[index] = whole if x.dim() == 2 else Other("select", step.dense)
        elif isinstance(step, Affine2d) and x.dim() == 2:
            rows.append(_measured(step, x, compiled))
            choices[index] = rows[-1].choice
        x = step.dense(x)
    networks = {"layer by layer": assembled(steps, choices, threads, pool)}
    if compiled and set(choices.values()) not in ({"kernel"}, set()):
        every = dict.fromkeys(choices, "kernel")
        networks["all in the kernel"] = assembled(steps, every, threads, pool)
    return rows, networks


def _measured(step: Affine2d, x: Tensor, compiled: bool) -> LayerPlan:
    """Time the candidates for one layer on its own inputs."""
    x = x.contiguous()
    names = [name for name in PRODUCTS if compiled or name != "kernel"]
    cases = {name: _bound(PRODUCTS[name](step), x) for name in names}
    times = interleaved(cases, rounds=_ROUNDS, clock="cpu")
    medians = {name: statistics.median(own) for name, own in times.items()}
    choice = min(medians, key=lambda name: medians[name])
    zeros = 1 - int(step.weight.count_nonzero()) / step.weight.numel()
    return LayerPlan(step.name, len(x), choice, zeros, medians, "")


def _bound(stage: Stage, x: Tensor) -> Callable[[], Tensor]:
    return lambda: stage(x)


def _fastest(networks: dict[str, Network], x: Tensor) -> tuple[str, dict[str, float]]:
    cases = {name: _bound(own.on_tensor, x) for name, own in networks.items()}
    times = interleaved(cases, rounds=_ROUNDS, clock="cpu")
    medians = {name: statistics.median(own) for name, own in times.items()}
    return min(medians, key=lambda name: medians[name]), medians


def _explained(row: LayerPlan, best: str, kernel: str) -> LayerPlan:
    """The row with what the comparison of whole networks made of it, in words."""
    times = row.milliseconds
    if not times:
        return row
    alone = row.choice
    choice = {"module": "dense", "all in the kernel": "kernel"}.get(best, alone)
    others = [name for name in times if name != choice]
    listed = ", ".join(f"{name} {times[name]:.4f}" for name in (choice, *others))
    reason = f"{row.zeros:.1%} zeros; alone, in ms: {listed}"
    if choice != alone and best == "module":
        reason += "; the whole network is faster as plain torch"
    elif choice != alone:
        reason += "; one call for neighbouring layers is faster in all"
    elif choice == "dense":
        reason += "; sparse is slower here"
    if kernel != "compiled":
        reason += f"; no compiled kernel: {kernel}"
    return replace(row, choice=choice, reason=reason)


def _unread(module: nn.Module, why: str, batch: int) -> list[LayerPlan]:
    """Rows of a module that is not a chain."""
    reason = f"the module runs as it is: {why}"
    return [
        LayerPlan(name, batch, "dense", float((own.weight == 0).double().mean()), {}, reason)
        for name, own in module.named_modules()
        if isinstance(own, nn.Linear)
    ]


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


def _kernel_status() -> str:
    try:
        library()
    except KernelUnavailableError as error:
        return str(error)
    return "compiled"


def _weight_bytes(module: nn.Module) -> int:
    return sum(value.nbytes for value in (*module.parameters(), *module.buffers()))


def _verify(runtime: Runtime, module: nn.Module, example: Tensor) -> None:
    """Compare with the module on the example, on noise and on zeros, along every path."""
    generator = torch.Generator().manual_seed(0)
    for n in _CHECKED:
        own = resized(example, n)
        for x in (own, torch.randn(own.shape, generator=generator), torch.zeros_like(own)):
            wanted, found = module(x), runtime(x)
            difference = float((wanted - found).abs().max())
            scale = float(wanted.abs().max())
            if not difference <= TOLERANCE * max(scale, 1e-30):
                raise VerificationError(
                    f"as_runtime: {n} outputs differ from the module by {difference:.3g}, more "
                    f"than {TOLERANCE:g} of their scale {scale:.3g}. Please report this."
                )
