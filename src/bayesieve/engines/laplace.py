"""Laplace approximations around trained weights, diagonal or by unit: one pass over the data.

    q(w) = N(ŵ, (F + 1/τ²)⁻¹),   F = Σ_n Σ_r (Jₙᵀ v_{nr})²                               (L1, L2)

with Jₙ the Jacobian of the outputs and v the columns of a square root of the likelihood's
information, `Likelihood.curvature`: √p_c (e_c - p) for classes, √(p(1-p)) e for yes-or-no outputs,
e / noise_std for normal noise. For these likelihoods F is the diagonal of the generalised
Gauss-Newton matrix. With sampled labels ten random v per example, each of mean square vvᵀ, are
averaged in place of the sum. Outputs may have positions, (n, t, classes): their labels are
independent given the outputs, so that one draw at every position is one random v, and a long
sequence needs fewer draws.

`laplace_units` is Gaussian jointly over the inputs of each unit. For unit i of a layer with inputs
x (a 1 appended for the bias) and output gradients δ

    q(w_i) = N(ŵ_i, P_i⁻¹),   P_i = (Σ_n δ²_ni) · mean(x xᵀ) + 1/τ²                            (L4)

the Gauss-Newton matrix of the unit with δ² and x xᵀ averaged apart [Martens]. When some weights are
fixed at 0, those that stay follow: with S kept and R removed

    E[w_S | w_R = 0] = ŵ_S + P_SS⁻¹ P_SR ŵ_R,   Var = P_SS⁻¹                                   (L5)

which is (B5) for a row of a layer; nothing is trained again.

Reference: MacKay (1992), also for τ from the data. Equations: docs/theory/bmr.md.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesieve.checks import check_choice, check_positive
from bayesieve.core.inputs import Input
from bayesieve.core.layout import Layout
from bayesieve.core.posterior import Factorised, Posterior, SparseModel
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.core.reading import batches
from bayesieve.errors import UnsupportedModelError

_DIAGONAL = "Use the diagonal one: `laplace`, or `sieve(curvature=diagonal)`."
_N_LABELS = 10  # sampled per example; the sum over as few outputs costs no more
# Examples whose gradients are held at once, and numbers that these may be. A GPU has the memory,
# and calls of few examples would be most of its time.
_HELD = {"cpu": (64, 2**22), "cuda": (512, 2**28)}
_LEAST_VARIANCE = 1e-16  # τ², so that 1/τ² is a number
_N_DOUBLINGS, _N_STEPS = 60, 30  # of τ²; each is one pass over the weights, not over the data
_MOST_INPUTS = 1024  # of a unit whose curvature is held together
_CHUNK = 2**20  # weights whose terms are summed at a time, so that no large copy is made


def laplace(
    problem: Problem,
    posterior: Posterior | None = None,
    *,
    prior: Normal | None = None,
    labels: Literal["exact", "sampled"] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> Factorised:
    """Surround trained weights by a Gaussian as wide as the data allow.

    Args:
        problem: network, likelihood and the data it was trained on.
        posterior: where to expand: its mean; None takes the weights of the problem's model.
        prior: of the Bayesian weights; None finds the width that suits the weights best.
        labels: "exact" sums over all outputs (one backward pass per output), "sampled" averages
            ten labels per example from the network's prediction (ten backward passes; one where
            outputs have ten positions or more); None is exact for up to ten outputs.
        batch_size: examples per pass; memory is batch_size times the size of the network. None
            takes 64, and fewer where their gradients would be more than 2²² numbers (on a GPU 512
            and 2²⁸).
        seed: of the sampled labels.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> x, model = torch.full((4, 1), 2.0), torch.nn.Linear(1, 1, bias=False)
        >>> problem = Problem(model, Gaussian(noise_std=0.5), (x, torch.zeros(4)))
        >>> std = laplace(problem, prior=Normal(1.0), labels="exact").std.item()
        >>> round(std**-2, 3)  # 4 · 2² / ¼ + 1
        65.0
    """
    w, buffers, generator = _expansion(problem, posterior, labels, batch_size, seed)
    n = problem.layout.n_bayesian
    size = batch_size or _held_at_once(problem.device, n)
    information = _information(problem, w, buffers, size, generator)
    fitted = prior or Normal(fitted_width(w[:n], information))
    std = information.add_(float(fitted.std) ** -2).rsqrt_().to(w.dtype)  # type: ignore[arg-type]
    return Factorised(problem.network, w, problem.layout.padded(std, 0.0), fitted, None, buffers)


def _held_at_once(device: torch.device, n: int) -> int:
    """Return how many examples' gradients for n weights are held at once.

    Example:
        >>> [_held_at_once(torch.device(name), 270_000) for name in ("cpu", "cuda")]
        [15, 512]
    """
    examples, numbers = _HELD.get(device.type, _HELD["cpu"])
    return max(min(examples, numbers // max(n, 1)), 1)


def _expansion(
    problem: Problem,
    posterior: Posterior | None,
    labels: str | None,
    batch_size: int | None,
    seed: int,
) -> tuple[Tensor, dict[str, Tensor], Generator | None]:
    """Copies of the weights and buffers to expand around, and the source of sampled labels."""
    if labels is not None:
        check_choice("laplace", "labels", labels, ("exact", "sampled"))
    if batch_size is not None:
        check_positive("laplace", batch_size=batch_size)
    if problem.data.weighted or problem.data.rows is not None:  # the curvature would leave them out
        raise ValueError("laplace: every example counts once; take a problem without weights.")
    w = problem.initial if posterior is None else posterior.mean
    buffers = problem.network.buffers() if posterior is None else posterior.buffers
    copies = {name: value.detach().clone() for name, value in buffers.items()}
    if labels is None:
        few = (
            problem.network.outputs(w[None], problem.data.sample.x[:2], copies)[0, 0].numel()
            <= _N_LABELS
        )
        labels = "exact" if few else "sampled"
    generator = Generator(problem.device).manual_seed(seed) if labels == "sampled" else None
    return w.detach().clone(), copies, generator


def _roots(
    problem: Problem,
    outputs: Tensor,
    targets: Tensor,
    numbers: Mapping[str, Tensor],
    generator: Generator | None,
) -> Iterator[Tensor]:
    """Vectors v, (n, ...) each, whose Σ vvᵀ is the information of the outputs, (n, ...).

    Outputs that do not count have none: their part of v is 0.
    """
    likelihood = problem.likelihood
    positions = max(targets[0].numel(), 1) if outputs.dim() > 2 else 1
    n_labels = 1 if generator is None else max(_N_LABELS // positions, 1)
    counted = likelihood.counted(targets)
    factor = 1 if counted is None else counted.to(outputs.dtype)
    for _ in range(n_labels):
        for v in likelihood.curvature(outputs, numbers, generator):
            yield v * (factor / n_labels**0.5)


def _information(
    problem: Problem,
    w: Tensor,
    buffers: dict[str, Tensor],
    batch_size: int,
    generator: Generator | None,
) -> Tensor:
    """F of (L2): Σ (Jᵀ v)² over examples and v, for every Bayesian weight, (n_bayesian,) float64.

    Gradients are taken by the names of the tensors. Through one flat vector every tensor's
    gradient would be as long as the network.
    """
    network, layout = problem.network, problem.layout
    total = torch.zeros(layout.n_bayesian, dtype=torch.float64, device=w.device)
    parts = {name: part for name, part in layout.slices.items() if part.stop <= len(total)}
    # The fused kernels of attention have no rule for `vmap`.
    with network.borrowed() as module, sdpa_kernel(SDPBackend.MATH):
        call, (values, numbers) = network.call_of(module), network.split(w)
        points = {name: value for name, value in values.items() if name not in parts}
        weights = {name: value for name, value in values.items() if name in parts}

        def projected(weights: dict[str, Tensor], x: Input, v: Tensor) -> Tensor:
            return (call({**points, **weights}, buffers, x[None])[0] * v).sum()

        single, gradients = torch.func.grad(projected), None
        for x, y, *_ in batches(problem, batch_size):
            outputs = network.outputs(w[None], x, buffers)[0]
            for v in _roots(problem, outputs, y, numbers, generator):
                gradients = gradients or _together_if_possible(single, weights, x, v)
                for found in gradients(weights, x, v):
                    for name, part in parts.items():
                        squares = found.pop(name).square_().sum(0, dtype=torch.float64)
                        total[part] += squares.flatten()
    return total


_Single = Callable[..., dict[str, Tensor]]
_PerExample = Callable[..., Iterator[dict[str, Tensor]]]


def _together_if_possible(
    single: _Single, weights: dict[str, Tensor], x: Input, v: Tensor
) -> _PerExample:
    """Gradients by name, (n, *shape) each, of n examples: under `vmap`, or in turn without a rule.

    Recurrent layers and control flow on values have none.
    """
    together = torch.vmap(single, in_dims=(None, 0, 0))
    try:
        together(weights, x[:1], v[:1])
    except RuntimeError:  # of vmap; what fails for another reason fails in turn too, and says so
        return partial(_in_turn, single)
    return lambda *args: iter((together(*args),))


def _in_turn(
    single: _Single, weights: dict[str, Tensor], x: Input, v: Tensor
) -> Iterator[dict[str, Tensor]]:
    try:
        # In eval mode cuDNN's recurrent layers have no gradient; the plain ones have.
        with torch.backends.cudnn.flags(enabled=False):
            for i in range(len(v)):
                yield {name: g[None] for name, g in single(weights, x[i], v[i]).items()}
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedModelError(
            f"laplace: the gradient of a single example failed ({reason}). The network must take "
            "batches of one; use FlatVI or SBNN instead."
        ) from error


def fitted_width(mean: Tensor, information: Tensor) -> float:
    """τ with τ² = mean of m² + s²(τ) over the weights: the evidence's fixed point, (L3).

    The right side minus τ² is concave in τ², so Newton's steps from beyond its zero come down to
    it and never pass it. Without any information there is no such point: τ² is then the mean of m².

    Args:
        mean: m, (n,).
        information: F, (n,) float64.

    Example:
        >>> fitted_width(torch.tensor([3.0, -4.0]), torch.full((2,), 1e12).double()) ** 2
        12.5...
    """
    n, parts = max(len(mean), 1), information.split(_CHUNK)
    least = sum(m.double().square().sum().item() for m in mean.split(_CHUNK)) / n

    def gap(variance: float) -> tuple[float, float]:
        """Right side minus left side at τ² = variance, and its derivative."""
        share = slope = 0.0
        for part in parts:
            known = part * variance  # what the data know of a weight: 1 - s² / τ²
            known /= known + 1
            share += known.sum().item()
            slope -= (known * (2 - known)).sum().item()
        return least - variance * share / n, slope / n

    variance = least
    for _ in range(_N_DOUBLINGS if least > _LEAST_VARIANCE else 0):
        excess, slope = gap(variance)
        if excess <= 0:
            break
        variance *= 2
    else:
        return max(least, _LEAST_VARIANCE) ** 0.5
    for _ in range(_N_STEPS):
        step = excess / slope
        variance -= step
        if step <= 1e-12 * variance:
            break
        excess, slope = gap(variance)
    return variance**0.5


@dataclass(frozen=True)
class Block:
    """Curvature of one layer of `rows` units in p of their inputs, the bias's 1 included.

    A layer has one block; one with more than 1,024 inputs has several, taken as independent, since
    the cost of a block grows as p³.

    Args:
        layer: name of the module.
        weight: name of the matrix; its first axis are the units.
        columns: of the matrix, its other axes flattened, that the block holds.
        bias: name of the trainable bias if the block holds it, or None.
        gram: mean of x xᵀ, (p, p), float64.
        gain: Σ δ² of each unit, (rows,), float64; the blocks of a layer share it.
    """

    layer: str
    weight: str
    columns: slice
    bias: str | None
    gram: Tensor
    gain: Tensor

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs that the block reads, (n, p), of those of the layer, (n, all)."""
        part = x[:, self.columns]
        return part if self.bias is None else torch.cat([part, torch.ones_like(x[:, :1])], 1)

    def read(self, layout: Layout, w: Tensor) -> Tensor:
        """Its entries of w, (d,), as a copy, (rows, p)."""
        rows = len(self.gain)
        part = w[layout.slices[self.weight]].view(rows, -1)[:, self.columns]
        return (
            part if self.bias is None else torch.cat([part, w[layout.slices[self.bias], None]], 1)
        )

    def write_(self, layout: Layout, w: Tensor, values: Tensor, *, bias: bool = True) -> None:
        """Put values, (rows, p), at its entries of w, (d,), in place; at the bias if asked."""
        p = self.columns.stop - self.columns.start
        rows = w[layout.slices[self.weight]].view(len(self.gain), -1)
        rows[:, self.columns] = values[:, :p].to(w.dtype)
        if self.bias is not None and bias:
            w[layout.slices[self.bias]] = values[:, p].to(w.dtype)


@dataclass(frozen=True, eq=False)
class UnitLaplace:
    """Trained weights, their precision unit by unit, and the prior.

    Args:
        posterior: means, and the marginal std of each weight.
        blocks: curvature of every layer.
        precision: 1/τ² of the prior.
    """

    posterior: Factorised
    blocks: tuple[Block, ...]
    precision: float

    def reduced(self, keep: Tensor) -> SparseModel:
        """Fix what is not kept at 0 and let the rest of each unit follow (L5).

        Args:
            keep: (d,) bool; entries outside the blocks stay as they are.
        """
        layout = self.posterior.layout
        mean, std = self.posterior.mean.clone(), self.posterior.std.clone()
        for block in self.blocks:
            before = block.read(layout, self.posterior.mean).double()
            after, spread = self._conditioned(block, before, block.read(layout, keep), mean.dtype)
            block.write_(layout, mean, after)
            block.write_(layout, std, spread)
        whole = replace(self.posterior, mean=mean, std=std)
        return SparseModel(whole.masked(keep), keep)

    def _conditioned(
        self, block: Block, mean: Tensor, keep: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Means and stds of a layer's units, (rows, p), given that the rest is 0.

        Matrices are split in the network's own dtype, half the time of float64, or in float64 where
        rounding makes one indefinite.
        """
        after, std = torch.zeros_like(mean), torch.zeros_like(mean)
        pulls = (mean * ~keep) @ block.gram
        gram = block.gram.to(dtype)
        for i, row in enumerate(keep):
            stays = row.nonzero()[:, 0]
            if not len(stays):
                continue
            factor, failed = _split(gram[stays][:, stays], block.gain[i], self.precision)
            if failed:
                factor, _ = _split(block.gram[stays][:, stays], block.gain[i], self.precision)
            pull = (block.gain[i] * pulls[i, stays]).to(factor.dtype)
            after[i, stays] = mean[i, stays] + torch.cholesky_solve(pull[:, None], factor)[:, 0]
            std[i, stays] = torch.cholesky_inverse(factor).diagonal().double().sqrt()
        return after, std


def _split(gram: Tensor, gain: Tensor, precision: float) -> tuple[Tensor, bool]:
    """Cholesky factor of gain · gram + precision, and whether there is none; overwrites gram."""
    square = gram.mul_(gain)
    square.diagonal().add_(precision)
    factor, info = torch.linalg.cholesky_ex(square)
    return factor, bool(info)


def laplace_units(
    problem: Problem,
    posterior: Posterior | None = None,
    *,
    prior: Normal | None = None,
    labels: Literal["exact", "sampled"] | None = None,
    batch_size: int = 512,
    seed: int = 0,
) -> UnitLaplace:
    """Surround trained weights by one Gaussian per unit; one pass over the data.

    Args:
        problem: network, likelihood and the data it was trained on. All that may be pruned must
            belong to Linear or Conv2d layers that are called once.
        posterior: where to expand: its mean; None takes the weights of the problem's model.
        prior: of the Bayesian weights; None finds the width that suits the weights best.
        labels: "exact", "sampled", or None, as in `laplace`.
        batch_size: examples per pass.
        seed: of the sampled labels.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> problem = Problem(model, Gaussian(noise_std=0.5), (x, torch.zeros(2)))
        >>> units = laplace_units(problem, prior=Normal(1.0), labels="exact")
        >>> units.posterior.std.square().reciprocal().round(decimals=3)  # 2 / 0.25 + 1
        tensor([9., 9.])
    """
    w, buffers, generator = _expansion(problem, posterior, labels, batch_size, seed)
    blocks, n_rows = _empty_blocks(problem), Counter[str]()
    n = problem.layout.n_bayesian
    with problem.network.borrowed() as module:
        for x, y, *_ in batches(problem, batch_size):
            _add_(problem, module, w, buffers, (x, y), blocks, n_rows, generator)
    layout, information = problem.layout, torch.zeros_like(w, dtype=torch.float64)
    for block in blocks:
        block.gram.div_(n_rows[block.layer])
        block.write_(layout, information, block.gain[:, None] * block.gram.diagonal())
    information = information[:n]  # a bias may be a point
    width = prior or Normal(fitted_width(w[:n], information))
    precision = float(width.std) ** -2  # type: ignore[arg-type]
    std = layout.padded((information + precision).rsqrt().to(w.dtype), 0.0)
    for block in blocks:
        values, vectors = torch.linalg.eigh(block.gram)
        inverse = 1 / (block.gain[:, None] * values.clamp_min(0) + precision)
        variance = inverse @ vectors.square().T  # diagonal of P⁻¹, (rows, p)
        bayesian = block.bias is not None and layout.slices[block.bias].start < n
        block.write_(layout, std, variance.sqrt(), bias=bayesian)
    whole = Factorised(problem.network, w, std, width, None, buffers)
    return UnitLaplace(whole, tuple(blocks), precision)


def _empty_blocks(problem: Problem) -> list[Block]:
    """Zeros for the layers of the prunable tensors."""
    layout, blocks = problem.layout, list[Block]()
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if layout.slices[name].start >= layout.n_sparse:
            break
        path, _, leaf = name.rpartition(".")
        layer = problem.network.skeleton.get_submodule(path)
        plain = isinstance(layer, nn.Linear) or (
            isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
        )
        if not plain or leaf != "weight" or isinstance(getattr(layer, "padding", 0), str):
            raise UnsupportedModelError(
                f"laplace: {name!r} belongs to no Linear or plain Conv2d layer, which curvature by "
                f"unit needs. {_DIAGONAL}"
            )
        bias = f"{path}.bias" if path else "bias"  # the model itself may be the layer
        n_inputs, gain = (
            layout.fan_in(name),
            problem.initial.new_zeros(shape[0], dtype=torch.float64),
        )
        n_parts = -(-n_inputs // _MOST_INPUTS)
        ends = [n_inputs * i // n_parts for i in range(n_parts + 1)]
        for start, stop in pairwise(ends):
            held = bias if bias in layout.slices and stop == n_inputs else None
            p = stop - start + (held is not None)
            gram = gain.new_zeros(p, p)
            blocks.append(Block(path, name, slice(start, stop), held, gram, gain))
    return blocks


def _add_(
    problem: Problem, module: nn.Module, w: Tensor, buffers: dict[str, Tensor],
    batch: tuple[Input, Tensor],
    blocks: list[Block], n_rows: Counter[str], generator: Generator | None,
) -> None:  # fmt: skip
    """Add Σ x xᵀ, Σ δ² and the number of x of one batch to those of every layer, in place."""
    network, (x, y) = problem.network, batch
    layers = {block.layer: module.get_submodule(block.layer) for block in blocks}
    gains = {block.layer: block.gain for block in blocks}
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    handles = []
    for name, layer in layers.items():

        def note(_: nn.Module, args: tuple[Tensor, ...], out: Tensor, name: str = name) -> None:
            calls[name].append((args[0].detach(), out))

        handles.append(layer.register_forward_hook(note))
    try:
        with torch.enable_grad():
            parameters, extra = network.split(w.clone().requires_grad_())
            result = network.call_of(module)(parameters, buffers, x)
    finally:
        for handle in handles:
            handle.remove()
    for name, pairs in calls.items():
        if len(pairs) != 1:
            raise UnsupportedModelError(
                f"laplace: layer {name!r} is called {len(pairs)} times, curvature by unit needs "
                f"one call. {_DIAGONAL}"
            )
        rows = _patches(layers[name], pairs[0][0]).double()
        n_rows[name] += len(rows)
        for block in blocks:
            if block.layer == name:
                part = block.inputs(rows)
                block.gram.addmm_(part.T, part)
    ends = [pairs[0][1] for pairs in calls.values()]
    vectors = list(_roots(problem, result.detach(), y, extra, generator))
    for i, v in enumerate(vectors):
        with torch.enable_grad():
            total = (result * v).sum()
        grads = torch.autograd.grad(total, ends, retain_graph=i + 1 < len(vectors))
        for name, grad in zip(layers, grads, strict=True):
            units = grad.movedim(1, -1) if isinstance(layers[name], nn.Conv2d) else grad
            squares = units.reshape(-1, units.shape[-1]).double().square()
            gains[name].add_(squares.sum(0))


def _patches(layer: nn.Module, x: Tensor) -> Tensor:
    """The inputs that one unit reads at a time, one row each."""
    if isinstance(layer, nn.Conv2d):
        padding = layer.padding
        assert not isinstance(padding, str)
        columns = F.unfold(x, layer.kernel_size, layer.dilation, padding, layer.stride)
        return columns.transpose(1, 2).reshape(-1, columns.shape[1])
    return x.reshape(-1, x.shape[-1])
