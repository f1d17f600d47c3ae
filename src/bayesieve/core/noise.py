"""Noise of a draw: on the weights as a function of a counter, or on the activations of a layer.

**On weights.** On a CPU the generator behind `Tensor.normal_` makes one number at a time, and
drawing as many normals as a network has weights costs a third of a training step. Here the i-th
pair of normals is a formula in i and three keys, so a compiled kernel computes many at once and
stores none:

    a = mix(i ⊕ key₀),  b = mix(a + key₁),  c = mix(a + key₂)      32-bit integers, wrapping
    u = (b mod 2³¹ + 1) / 2³¹,  v = c / 2³²
    √(-2 log u) · (cos 2πv, sin 2πv)                               Box and Muller (1958)

`mix` is a bijection of the 32-bit integers in which every input bit flips every output bit with
probability near 1/2 (xor-shift-multiply with the constants of Wellons's "lowbias32"). The keys
are fresh from the caller's generator at each use, so all randomness still comes from there. They
enter before and between two rounds: streams of two steps may visit common values of a, but the
numbers made from them differ. |normal| is at most √(62 log 2) = 6.6.

**On weights, in pairs.** One half of a batch sees m + s ε, the other m - s ε. In first order the
noise adds opposite terms to their gradients of m, and these cancel up to the noise of the examples.
Two half batches cost about as much as one whole.

**On activations**, local reparameterisation (Kingma et al., 2015). For a layer that is linear in
independent Gaussian weights, the pre-activation is Gaussian with mean layer(x; m) and variance
layer(x²; s²). Drawing it directly gives lower-variance gradients. For Linear this is exact per
example; for Conv the noise is independent at each position, a different estimator with the same
marginal means and variances.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bayesieve.core import native
from bayesieve.core.layout import Role
from bayesieve.core.network import Network
from bayesieve.errors import UnsupportedModelError

if TYPE_CHECKING:
    from bayesieve.core.problem import Problem
    from bayesieve.core.workspace import Draw

N_KEYS = 3
_MANY = 1 << 15  # weights
_LOCAL_TENSORS = ("weight", "bias", "weight_var", "bias_var")
LOCAL_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def generator_on(device: torch.device) -> Generator:
    """A generator for tensors on a device; meta tensors, which have no numbers, take the CPU's."""
    return Generator("cpu" if device.type == "meta" else device)


def check_noise(who: str, local: bool | None, paired: bool | None) -> None:
    """Raise where noise is asked for on activations and in pairs of weights."""
    if local and paired:
        raise ValueError(
            f"{who}: noise is added to activations (local=True) or to weights in pairs "
            "(paired=True), not both; set one of them to False."
        )


def fresh_noise(problem: "Problem", like: Tensor, generator: Generator) -> Tensor:
    """Noise for a draw of the shape of `like`, (k, n): normals; keys in compiled steps on a CPU."""
    if problem.execution.compiled and problem.device.type == "cpu":
        return fresh_keys(generator)
    return torch.empty_like(like).normal_(generator=generator)


def as_normals(noise: Tensor, like: Tensor) -> Tensor:
    """Standard normals of the shape of `like`, (k, n), from `fresh_noise`; inside a kernel."""
    if noise.is_floating_point():
        return noise
    k, n = like.shape
    return counter_normals((k, n), noise, like.dtype)


def fresh_keys(generator: Generator) -> Tensor:
    """Three random 32-bit integers for one use of `counter_normals`, on the generator's device."""
    return torch.randint(
        -(2**31), 2**31, (N_KEYS,), dtype=torch.int32, generator=generator, device=generator.device
    )


def counter_normals(shape: tuple[int, int], keys: Tensor, dtype: torch.dtype) -> Tensor:
    """Independent standard normals, shape (k, n), k · n < 2³².

    Args:
        shape: k and n; rows are independent of each other.
        keys: as `fresh_keys` returns them; equal keys and shapes give equal normals.
        dtype: of the result; the resolution of u and v is 32 bits whatever it is.

    Example:
        >>> counter_normals((1, 4), torch.tensor([1, 2, 3], dtype=torch.int32), torch.float32)
        tensor([[ 0.8053, -0.4494, -0.6485,  0.8434]])
    """
    k, n = shape
    n_pairs = (n + 1) // 2
    counter = torch.arange(k * n_pairs, dtype=torch.int32, device=keys.device).view(k, n_pairs)
    a = mix(counter ^ keys[0])
    b, c = mix(a + keys[1]), mix(a + keys[2])
    u = ((b & 0x7FFFFFFF).to(dtype) + 1) * 2.0**-31  # in (0, 1], finest near 0: the tails
    angle = c.to(dtype) * (2 * math.pi * 2.0**-32)
    radius = (-2 * u.log()).sqrt()
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :n]


def gaussian_draws(
    mean: Tensor,
    std: Tensor,
    n_draws: int,
    n_bayesian: int,
    generator: Generator,
    out: Tensor | None = None,
) -> Tensor:
    """Independent draws of one Gaussian per weight, (n_draws, d).

    In float32 on a CPU the noise of many weights is that of `counter_normals`, made in C where
    there is a compiler: torch's generator takes four times as long. All else is drawn by torch.

    Args:
        mean: (d,).
        std: (d,).
        n_draws: rows of the result.
        n_bayesian: only so many of the first weights are drawn; the others are their mean.
        generator: of the keys, or of the noise.
        out: contiguous, (n_draws, d), to take the draws; None makes one.

    Example:
        >>> mean, source = torch.ones(3), torch.Generator().manual_seed(0)
        >>> gaussian_draws(mean, torch.tensor([1.0, 0.0, 5.0]), 2, 2, source)[:, 1:]
        tensor([[1., 1.],
                [1., 1.]])
    """
    d, n = len(mean), n_bayesian
    draws = mean.new_empty(n_draws, d) if out is None else out
    if mean.device.type != "cpu" or mean.dtype != torch.float32 or n < _MANY:
        noise = draws if n == d else draws[:, :n]
        noise.normal_(generator=generator).mul_(std[:n])
        draws[:, n:] = 0
        return draws.add_(mean)
    for part in draws.split((2**32 - 1) // (n + 1)):  # counters have 32 bits
        keys, library = fresh_keys(generator), native.steps()
        if library is not None:
            tensors = (mean.contiguous(), std.contiguous(), keys, part)
            library.bayesieve_draws(len(part), n, d, *map(native.address, tensors))
        else:
            part.copy_(mean)
            part[:, :n].addcmul_(std[:n], counter_normals((len(part), n), keys, mean.dtype))
    return draws


def mix(x: Tensor) -> Tensor:
    """A fixed pseudo-random permutation of the 32-bit integers, elementwise."""
    x = (x ^ _shift(x, 16)) * 0x7FEB352D
    x = (x ^ _shift(x, 15)) * (0x846CA68B - 2**32)
    return x ^ _shift(x, 16)


def _shift(x: Tensor, places: int) -> Tensor:
    # A signed shift copies the sign bit into the places it frees: clear them.
    return (x >> places) & (2 ** (32 - places) - 1)


def draw_weights(
    problem: "Problem", state: Any, *, local: bool, paired: bool = False,
    ratio: Tensor | None = None, own: bool = True,
) -> "Draw":  # fmt: skip
    """Draw w = r (m + s ε), 0 where pruned; r m and (r s)² themselves for noise on activations.

    Args:
        problem: whose workspace receives the draw.
        state: m, (k, d), is its `mean`, and log s, (k, n), its `log_std`.
        local: whether layers add the noise to their activations.
        paired: whether the noise changes its sign in the middle of the batch.
        ratio: r of each group of the state's `groups`, (k, G); None for 1.
        own: whether each of the processes that share a step may draw its own weights; the means of
            their gradients must then be all that the engine needs.
    """
    drawn, masks = problem.workspace(len(state.mean), local=local).draw, state.controls.factors
    in_float32 = problem.execution.moments_dtype is None  # others move in Python
    drawn.in_pieces = problem.execution.native and in_float32 and own and not paired
    if local and problem.execution.native:
        _spread_natively_(state, drawn, ratio, masks[0])
    elif local:
        problem.kernel(spread_)(state, drawn, ratio, masks[0])
    else:
        if paired:
            drawn.turn = partial(_turn, problem, state, drawn, ratio, masks[0])
        source, sharing = state.generator, problem.execution.sharing
        if sharing is not None and sharing.own_noise and own:
            source, drawn.centre = sharing.noise, _centre(state, ratio, masks[0])
        if problem.execution.native:
            _draw_natively_(state, drawn, fresh_keys(source), ratio, masks[0])
            return drawn
        noise = fresh_noise(problem, state.log_std, source)
        parts = problem.execution.parts(state.mean, state.log_std.shape[1])
        if ratio is not None:  # of groups, which parts would cut
            parts = [slice(0, state.mean.shape[1])]
        for part in parts:
            problem.kernel(draw_weights_)(state, drawn, noise, ratio, masks[0], part)
    return drawn


def draw_weights_(
    state: Any, drawn: "Draw", noise: Tensor, ratio: Tensor | None, keep: Tensor | None, part: slice
) -> None:
    """Write r (m + s ε) into a part of the weights, (k, d); 0 where not kept."""
    weights, mean = drawn.weights[:, part], state.mean[:, part]
    bayesian = slice(part.start, min(part.stop, state.log_std.shape[1]))  # those with a posterior
    n = max(bayesian.stop - bayesian.start, 0)
    if n > 0:
        log_std = state.log_std[:, bayesian]
        some_noise = noise[:, bayesian] if noise.is_floating_point() else noise  # keys are of all
        values = torch.addcmul(mean[:, :n], log_std.exp(), as_normals(some_noise, log_std))
        weights[:, :n] = values if ratio is None else state.groups.to_entries(ratio) * values
    if n < mean.shape[1]:
        weights[:, n:] = mean[:, n:]
    if keep is not None:
        weights.mul_(keep[:, part])


def _draw_natively_(
    state: Any, drawn: "Draw", keys: Tensor, ratio: Tensor | None, keep: Tensor | None
) -> None:
    """`draw_weights_` of all weights with the normals of these keys, in C."""
    library = native.steps()
    assert library is not None
    (k, d), n = state.mean.shape, state.log_std.shape[1]
    masked = keep if ratio is None else None
    tensors = (state.mean, state.log_std, masked, keys, drawn.weights)
    library.bayesieve_draw(k, n, d, *map(native.address, tensors))
    if ratio is not None:
        runs, sizes = state.groups.runs, (len(state.groups.runs), ratio.shape[1])
        scaled = (runs, ratio.contiguous(), keep, drawn.weights)
        library.bayesieve_scale(k, n, d, *sizes, *map(native.address, scaled))


def _turn(
    problem: "Problem", state: Any, drawn: "Draw", ratio: Tensor | None, keep: Tensor | None
) -> None:
    """Mirror a draw at its centre, after the first half of a batch, and fill `turned`."""
    (k, d), n = state.mean.shape, state.log_std.shape[1]
    drawn.turned = torch.empty_like(state.log_std)
    if problem.execution.native and ratio is None:
        library = native.steps()
        assert library is not None
        tensors = (state.mean, keep, drawn.grads, drawn.weights, drawn.turned)
        library.bayesieve_turn(k, n, d, *map(native.address, tensors))
    else:
        problem.kernel(turn_)(state, drawn, ratio, keep)


def turn_(state: Any, drawn: "Draw", ratio: Tensor | None, keep: Tensor | None) -> None:
    """Write g (w - centre), (k, n), into `turned`, and mirror w at its centre."""
    assert drawn.turned is not None
    assert drawn.grads is not None
    n = state.log_std.shape[1]
    shift = drawn.weights[:, :n] - _centre(state, ratio, keep)
    drawn.turned.copy_(drawn.grads[:, :n] * shift)
    drawn.weights[:, :n].sub_(shift, alpha=2)


def _centre(state: Any, ratio: Tensor | None, keep: Tensor | None) -> Tensor:
    """Centre of the draws: r m of the weights with a posterior, (k, n), 0 where not kept."""
    n = state.log_std.shape[1]
    centre: Tensor = state.mean[:, :n]
    if ratio is not None:
        centre = centre * state.groups.to_entries(ratio)
    return centre if keep is None else centre * keep[:, :n]


def _spread_natively_(state: Any, drawn: "Draw", ratio: Tensor | None, keep: Tensor | None) -> None:
    """`spread_` in C."""
    library, (k, d), n = native.steps(), state.mean.shape, state.log_std.shape[1]
    assert library is not None
    assert drawn.variances is not None
    tensors = (state.mean, state.log_std, keep, drawn.weights, drawn.variances)
    library.bayesieve_spread(k, n, d, *map(native.address, tensors))
    if ratio is None:
        return
    sizes = (len(state.groups.runs), ratio.shape[1])
    for buffer, factor in ((drawn.weights, ratio), (drawn.variances, ratio.square())):
        scaled = (state.groups.runs, factor.contiguous(), None, buffer)
        library.bayesieve_scale(k, n, d, *sizes, *map(native.address, scaled))


def spread_(state: Any, drawn: "Draw", ratio: Tensor | None, keep: Tensor | None) -> None:
    """Write r m and (r s)² for layers with noise on activations; 0 where not kept."""
    assert drawn.variances is not None
    n = state.log_std.shape[1]
    drawn.weights.copy_(state.mean)
    drawn.variances[:, :n] = (2 * state.log_std).exp()
    if ratio is not None:
        factors = state.groups.to_entries(ratio)
        drawn.weights[:, :n].mul_(factors)
        drawn.variances[:, :n].mul_(factors).mul_(factors)
    if keep is not None:
        drawn.weights.mul_(keep)
        drawn.variances.mul_(keep)


def _perturb_into(
    output: Tensor, slope: Tensor, mean: Tensor, var: Tensor, generator: Generator
) -> None:
    """Write mean + sqrt(var) · ε, ε of `counter_normals`, and its slope in var, in C.

    The output may be `mean` itself, and the slope `var`.
    """
    library = native.steps()
    assert library is not None
    tensors = (mean, var, fresh_keys(generator), output, slope)
    library.bayesieve_perturb(mean.numel(), *map(native.address, tensors))


def _perturb_back(grad: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient for var from that of the output, (n, m), and sums over n, (m,), of both, in C.

    Sums are first that of the output's gradient, then that of the gradient for var.
    """
    library, (n, m) = native.steps(), grad.shape
    assert library is not None
    for_var, of_grad, of_var = torch.empty_like(grad), grad.new_empty(m), grad.new_empty(m)
    tensors = (grad, slope, for_var, of_grad, of_var)
    library.bayesieve_perturb_back(n, m, *map(native.address, tensors))
    return for_var, of_grad, of_var


class _Perturb(torch.autograd.Function):
    """mean + sqrt(var) · ε with an explicit generator; the gradient at var = 0 is taken as 0."""

    @staticmethod
    def forward(
        mean: Tensor, var: Tensor, generator: Generator, in_c: bool
    ) -> tuple[Tensor, Tensor]:
        if in_c:
            drawn, slope = torch.empty_like(mean), torch.empty_like(mean)
            _perturb_into(drawn, slope, mean, var, generator)
            return drawn, slope
        noise = torch.empty_like(mean).normal_(generator=generator)
        std = var.clamp_min(0).sqrt_()
        output = torch.addcmul(mean, std, noise)
        # In place, since these tensors are as large as all activations: ε / 2s, and 0 where s = 0.
        slope = noise.div_(std.add_(std)).nan_to_num_(0.0, 0.0, 0.0)
        return output, slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grad, grad * slope, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        mean: Tensor,
        var: Tensor,
        generator: Generator,
        in_c: bool,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        k = info.batch_size
        mean = mean.expand(k, *mean.shape) if in_dims[0] is None else mean.movedim(in_dims[0], 0)
        var = var.expand(k, *var.shape) if in_dims[1] is None else var.movedim(in_dims[1], 0)
        return _Perturb.apply(mean, var, generator, in_c), (0, 0)


def perturbed(mean: Tensor, var: Tensor, generator: Generator, *, in_c: bool = False) -> Tensor:
    """A draw from N(mean, var), both of one shape, with the gradients of mean + sqrt(var) · ε.

    In C, for float32 on a CPU, ε is that of `counter_normals`.
    """
    output: Tensor = _Perturb.apply(mean, var, generator, in_c)[0]
    return output


class _LocalLinear(torch.autograd.Function):
    """A draw of x Wᵀ + b with x (n, in) and normal W and b, one step of autograd for all of it.

    The products of variances are in a dtype of fewer digits where that is faster. Gradients for
    tensors as large as the weights are one product each, and no other tensor is as large.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weight_var: Tensor,
        bias_var: Tensor | None, generator: Generator, dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        square, mean = x * x, F.linear(x, weight, bias)
        if dtype == x.dtype:
            var = F.linear(square, weight_var, bias_var)
        else:
            square, weight_var = square.to(dtype), weight_var.to(dtype)
            var = F.linear(square, weight_var).to(x.dtype)
            var = var if bias_var is None else var.add_(bias_var)
        _perturb_into(mean, var, mean, var, generator)
        ctx.save_for_backward(x, square, weight, weight_var, var)
        ctx.biased = bias is not None
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, square, weight, weight_var, slope = ctx.saved_tensors
        grad, for_x, shorter = grad.contiguous(), None, weight_var.dtype != x.dtype
        for_var, for_bias, for_bias_var = _perturb_back(grad, slope)
        if shorter:
            for_var = for_var.to(weight_var.dtype)
        if ctx.needs_input_grad[0]:
            twice = for_var @ weight_var
            twice = (twice.to(x.dtype) if shorter else twice).mul_(x)
            for_x = twice.addmm_(grad, weight, beta=2)
        for_weight, for_weight_var = grad.t() @ x, for_var.t() @ square
        if shorter:
            for_weight_var = for_weight_var.to(x.dtype)
        if not ctx.biased:
            return for_x, for_weight, None, for_weight_var, None, None, None
        return for_x, for_weight, for_bias, for_weight_var, for_bias_var, None, None


def local_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, weight_var: Tensor, bias_var: Tensor | None,
    generator: Generator, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Draw the outputs of a Linear layer at x, (..., in) -> (..., out), in float32 on a CPU.

    Args:
        x: inputs.
        weight: means of the weights, (out, in).
        bias: means of the biases, (out,).
        weight_var: variances of the weights, (out, in).
        bias_var: variances of the biases, (out,).
        generator: of the keys of `counter_normals`.
        dtype: of the products of variances (`native.product_dtype`).
    """
    rows = x if x.dim() == 2 else x.flatten(0, -2)
    tensors = (rows, weight, bias, weight_var, bias_var)
    output: Tensor = _LocalLinear.apply(*tensors, generator, dtype)
    return output if x.dim() == 2 else output.view(*x.shape[:-1], len(weight))


class LocalLayer(nn.Module):
    """A Linear or Conv layer with a mean and a variance per weight."""

    def __init__(
        self, layer: nn.Module, source: Callable[[], Generator], *, in_c: bool = False
    ) -> None:
        super().__init__()
        self.in_c = in_c
        self._is_one_node = in_c and type(layer) is nn.Linear
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self.weight_var = _meta_like(self.weight)
        self.bias_var = None if self.bias is None else _meta_like(self.bias)
        self.source = source
        self._layer = [layer]  # in a list: not a submodule, only its forward settings are used

    def forward(self, x: Tensor) -> Tensor:
        """Draw the output at x."""
        if torch._C._current_graph_task_id() >= 0:  # inside a backward pass
            raise UnsupportedModelError(
                "noise on activations (local=True) cannot be drawn again by activation "
                "checkpointing: the way back would see other noise. Use local=False."
            )
        if self._is_one_node:
            weight, bias, weight_var, bias_var = map(self._parameters.get, _LOCAL_TENSORS)
            assert weight is not None
            assert weight_var is not None
            tensors = (weight, bias, weight_var, bias_var)
            return local_linear(x, *tensors, self.source(), native.product_dtype())
        mean = self._linear(x, self.weight, self.bias)
        # x * x, not x.square(): autocast on a GPU would take that, as a power, to float32.
        var = self._linear(x * x, self.weight_var, self.bias_var)
        plain = self.in_c and mean.is_contiguous() and var.is_contiguous()
        return perturbed(mean, var, self.source(), in_c=plain)

    def __getattr__(self, name: str) -> Any:
        """Take other settings from the original: a forward may read its stride or padding."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_layer":  # while a copy is made
                raise
            return getattr(self._layer[0], name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # a forward may ask which layer it has
        held = vars(self).get("_layer")
        return LocalLayer if held is None else type(held[0])

    @property
    def is_linear(self) -> bool:
        """Whether the layer is a plain matrix."""
        return type(self._layer[0]) is nn.Linear

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer = self._layer[0]
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, bias)
        return layer._conv_forward(x, weight, bias)  # type: ignore[operator]


def _meta_like(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to("meta"))  # empty_like would load SymPy for it


def localise(
    network: Network, source: Callable[[], Generator], *, in_c: bool = False
) -> tuple[nn.Module, dict[str, str]]:
    """Swap Linear and Conv layers of a copy of the skeleton for local ones.

    Only plain layers whose parameters are Bayesian, trainable and not shared are swapped; other
    Bayesian tensors keep being drawn in weight space.

    Returns:
        The module, and for each new variance the name of the weight it belongs to.
    """
    roles = dict(zip(network.layout.names, network.layout.roles, strict=True))
    skeleton = copy.deepcopy(network.skeleton)
    owners: dict[nn.Parameter, int] = {}
    for _, module in skeleton.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owners[parameter] = owners.get(parameter, 0) + 1
    names: dict[str, str] = {}
    for path, layer in list(skeleton.named_modules()):
        if type(layer) not in LOCAL_TYPES or not path:
            continue
        tensors = [(f"{path}.{leaf}", p) for leaf, p in layer.named_parameters(recurse=False)]
        if all(roles.get(name, Role.POINT) < Role.POINT and owners[p] == 1 for name, p in tensors):
            parent, _, leaf = path.rpartition(".")
            setattr(skeleton.get_submodule(parent), leaf, LocalLayer(layer, source, in_c=in_c))
            names |= {f"{name}_var": name for name, _ in tensors}
    return skeleton, names
