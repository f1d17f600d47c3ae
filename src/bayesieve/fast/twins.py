"""Twins in C of the definitions of `core` and `engines`, by name; importing this registers them.

A twin takes the arguments of its definition, hands their addresses to C, and leaves the same
numbers behind up to rounding; where it does not cover a case it returns NotImplemented, and the
definition runs. One test compares each with its definition (tests/unit/fast/test_twins.py).
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

import bayesieve.fast.native as native
from bayesieve.core.execution import TWINS
from bayesieve.core.noise import AtDraw, AtMeans, Gradients, Spread
from bayesieve.core.workspace import Found

if TYPE_CHECKING:
    from bayesieve.core.problem import Problem

BETA_1, BETA_2 = 0.9, 0.999  # as in engines/optimisers.py
Twin = Callable[..., Any]


def twin(function: Twin) -> Twin:
    """Register a function as the twin of its name; without a compiler it is NotImplemented."""

    def run(*args: Any) -> Any:
        library = native.steps()
        return NotImplemented if library is None else function(library, *args)

    TWINS[function.__name__] = run
    return run


# ----------------------------------------------------------------------- draws and their noise


@twin
def bayesieve_draws(
    library: Any, out: Tensor, mean: Tensor, std: Tensor, keys: Tensor, n: int
) -> None:
    """`random.draw_some_`."""
    tensors = (mean.contiguous(), std.contiguous(), keys, out)
    library.bayesieve_draws(len(out), n, out.shape[1], *map(native.address, tensors))


@twin
def bayesieve_draw(
    library: Any, state: Spread, weights: Tensor, keys: Tensor, keep: Tensor | None
) -> None:
    """`noise.draw_` of all weights."""
    (k, d), n = state.mean.shape, state.log_std.shape[1]
    tensors = (state.mean, state.log_std, keep, keys, weights)
    library.bayesieve_draw(k, n, d, *map(native.address, tensors))


@twin
def bayesieve_scale(
    library: Any, groups: Any, weights: Tensor, ratio: Tensor, keep: Tensor | None
) -> None:
    """`noise.scale_`."""
    (k, d), runs = weights.shape, groups.runs
    tensors = (runs, ratio.contiguous(), keep, weights)
    n = int(runs[-1, 1]) if len(runs) else 0
    sizes = (k, n, d, len(runs), ratio.shape[1])
    library.bayesieve_scale(*sizes, *map(native.address, tensors))


# What means and variances for noise on activations were written from and to, with the versions of
# the tensors then: a step that wrote them for the next one spares it the pass.
_WRITTEN: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _remember(variances: Tensor, *tensors: Tensor | None) -> None:
    """Remember tensors as they are now, without keeping them alive, and no others.

    Torch does not notice what C writes: who writes one of them must call this too.
    """
    _WRITTEN[variances] = [(weakref.ref(x), x._version) for x in tensors if x is not None]


def _is_written(variances: Tensor, *tensors: Tensor | None) -> bool:
    """Return whether these tensors are remembered, and torch has not changed them since."""
    seen, now = _WRITTEN.get(variances, []), [x for x in tensors if x is not None]
    return len(seen) == len(now) and all(
        one() is other and version == other._version
        for (one, version), other in zip(seen, now, strict=True)
    )


@twin
def bayesieve_spread(
    library: Any, state: Spread, means: Tensor, variances: Tensor, brief: Tensor | None,
    keep: Tensor | None,
) -> None:  # fmt: skip
    """`noise.spread_`, unless the step before has done it."""
    involved = (state.mean, state.log_std, state.controls.keep, means, variances, brief)
    if _is_written(variances, *involved):
        return
    _remember(variances)
    (k, d), n = state.mean.shape, state.log_std.shape[1]
    tensors = (state.mean, state.log_std, keep, means, variances, brief)
    library.bayesieve_spread(k, n, d, *map(native.address, tensors))


# ----------------------------------------------------------------------- passes over activations


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Examples, units and positions of activations; any other shape is one long row."""
    n, m = (1, x.numel()) if x.dim() < 2 else x.shape[:2]
    return n, m, x.numel() // max(n * m, 1)


@twin
def bayesieve_square(library: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`layers.square`."""
    if dtype == x.dtype:
        return x * x
    result = torch.empty_like(x, dtype=dtype)
    library.bayesieve_square(x.numel(), native.address(x), native.address(result))
    return result


@twin
def bayesieve_perturb(
    library: Any, mean: Tensor, var: Tensor, bias_var: Tensor | None, keys: Tensor, in_place: bool
) -> Any:
    """`noise.perturb_`, with the normals of keys."""
    wide = var.dtype == mean.dtype
    if keys.is_floating_point() or (bias_var is not None and wide):
        return NotImplemented  # a product in the dtype of the means has added the bias
    output = mean if in_place else torch.empty_like(mean)
    slope = var if in_place and wide else torch.empty_like(mean)
    variances = (var, None) if wide else (None, var)
    tensors = (mean, *variances, bias_var, keys, output, slope)
    library.bayesieve_perturb(*_sizes(mean), *map(native.address, tensors))
    return output, slope


@twin
def bayesieve_perturb_back(
    library: Any, grad: Tensor, slope: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """`layers.perturb_back`."""
    sizes, for_var = _sizes(grad), torch.empty_like(grad, dtype=dtype)
    of_grad, of_var = grad.new_empty(2, sizes[1])
    outputs = (for_var, None) if dtype == grad.dtype else (None, for_var)
    tensors = (grad, slope, *outputs, of_grad, of_var)
    library.bayesieve_perturb_back(*sizes, *map(native.address, tensors))
    return for_var, of_grad, of_var


@twin
def bayesieve_join(library: Any, total: Tensor, x: Tensor, for_square: Tensor) -> Any:
    """`layers.join_`."""
    if for_square.dtype == x.dtype:
        return NotImplemented
    library.bayesieve_join(x.numel(), *map(native.address, (x, for_square, total)))
    return total


# ------------------------------------------------------------------------------- optimisers


def _corrections(step: float) -> tuple[float, float]:
    """1 / (1 - β₁ᵗ) and 1 / √(1 - β₂ᵗ), the factors of a `Pace`, as numbers.

    Example:
        >>> [round(factor, 3) for factor in _corrections(1)]
        [10.0, 31.623]
    """
    return 1 / (1 - BETA_1**step), (1 - BETA_2**step) ** -0.5


def _of_draw(found: Gradients) -> Tensor | None:
    """Where the gradient was taken; None with noise on activations."""
    return None if isinstance(found, AtMeans) else found.weights


def _is_summed(found: Gradients) -> bool:
    return isinstance(found, AtDraw) and found.spread is not None


@twin
def bayesieve_adam(
    library: Any, problem: "Problem", state: Any, found: Gradients, precision: Any,
    at_draw: bool = False,
) -> Any:  # fmt: skip
    """`variational.adam_step_`; κ is that of the numbers in `state.prior`.

    With noise on activations it also writes what the next step reads, where the gradients are in
    pieces, which say what form the variances of each tensor have.
    """
    mean, std = state.mean_moments, state.log_std_moments
    if at_draw or _is_summed(found) or mean.first.dtype != state.mean.dtype:
        return NotImplemented
    state.step += 1
    (k, d), n = state.mean.shape, state.log_std.shape[1]
    controls, n_data, following = state.controls, problem.n_data, None
    if isinstance(found, AtMeans):
        assert found.variances is not None
        _remember(found.variances)  # C leaves no trace in the versions of tensors
        if not found.is_flat:
            following = native.addresses(found.weights, found.variances, found.brief)
            involved = (state.mean, state.log_std, controls.keep, found.weights, found.variances)
            _remember(found.variances, *involved, found.brief)
    kl, corrections = controls.kl_scale.item() / n_data, _corrections(state.step.item())
    length = state.lr * (controls.lr_scale.item() * corrections[0])
    numbers = native.columns(k, *state.prior.all(), kl, length, corrections[1])
    gradients = native.table(found.pieces)
    tensors = (_of_draw(found), state.mean, mean.first, mean.second, state.log_std, std.first,
               std.second, *controls.factors, numbers)  # fmt: skip
    sizes, described = (len(found.pieces), k, n, d), native.addresses(gradients, *tensors)
    library.bayesieve_adam(described, *sizes, 1 / n_data, native.address(following))


@twin
def bayesieve_adam_points(
    library: Any, problem: "Problem", engine: Any, state: Any, found: Found
) -> Any:
    """`map.descend_` of Adam without a prior."""
    moments, decay = state.moments, engine.weight_decay
    if moments is None or moments.first.dtype != state.w.dtype or engine.prior is not None:
        return NotImplemented
    if decay and engine.optimizer != "adamw":
        return NotImplemented  # it changes the gradient
    state.step += 1
    trained, lr = state.controls.factors[1], state.lr * state.controls.lr_scale
    if trained is not None:
        found.flatten().grad.mul_(trained)
    if decay:
        n = state.n_bayesian
        share = lr * decay if trained is None else lr * decay * trained[:, :n]
        state.w[:, :n].mul_(1 - share)
    (k, d), corrections = state.w.shape, _corrections(state.step.item())
    of_prior = [0.0] * 4  # no entry has a posterior
    numbers = native.columns(k, *of_prior, lr * corrections[0], corrections[1])
    gradients = native.table(found.pieces)
    tensors = (gradients, None, state.w, moments.first, moments.second, None, None, None, None,
               trained, numbers)  # fmt: skip
    sizes = (len(found.pieces), k, 0, d)
    library.bayesieve_adam(native.addresses(*tensors), *sizes, 1 / problem.n_data, None)


@twin
def bayesieve_adabelief(
    library: Any, problem: "Problem", state: Any, found: Gradients, ratio: Tensor, width: Tensor,
    rates: Any,
) -> Any:  # fmt: skip
    """`scaled.descend_`."""
    if _is_summed(found):
        return NotImplemented
    (k, d), n = state.mean.shape, state.log_std.shape[1]
    mean, std, runs = state.mean_moments, state.log_std_moments, state.groups.runs
    numbers = _rows(k, rates.kl, rates.pace.length, rates.pace.second_factor)
    ratio, width, pulls = ratio.contiguous(), width.contiguous(), torch.empty(2, *ratio.shape)
    gradients = native.table(found.pieces)
    tensors = (_of_draw(found), state.mean, mean.first, mean.second, state.log_std, std.first,
               std.second, *state.controls.factors, numbers, ratio, width, runs,
               pulls)  # fmt: skip
    sizes = (len(found.pieces), k, n, d, len(runs), ratio.shape[1])
    described = native.addresses(gradients, *tensors)
    library.bayesieve_adabelief(described, *sizes, 1 / rates.n_data)
    return pulls


def _rows(k: int, *numbers: Tensor) -> Tensor:
    """Numbers, scalar or (k, 1) each, as one tensor (k, columns)."""
    return torch.cat([number.expand(k, 1) for number in numbers], 1).contiguous()


# ---------------------------------------------------------------- scales of layers and of units


@twin
def bayesieve_layer_scales(
    library: Any, state: Any, noise: Tensor, pulls: Tensor, rates: Any, held: bool
) -> None:
    """`bmr._move_scales_`: fifty operations on a few numbers take a twentieth of a step."""
    k, n_layers = state.scale_mean.shape
    mean, std = state.scale_mean_moments, state.scale_log_std_moments
    numbers = _rows(k, rates.kl, *rates.pace[:2], state.prior.shape, state.prior.rate)
    described = native.addresses(
        state.scale_mean, mean.first, mean.second, state.scale_log_std, std.first, std.second,
        noise, pulls.contiguous(), numbers,
    )  # fmt: skip
    library.bayesieve_layer_scales(described, k, n_layers, held, 1 / rates.n_data)


@twin
def bayesieve_unit_factors(library: Any, state: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
    """`horseshoe._factors`."""
    k, units = len(state.mean), state.groups
    ratio, width = torch.empty(2, k, units.n_groups)
    tensors = (*_unit_scales(state, noise, (0.0,) * 3), None, ratio, width)
    sizes = (k, units.n_groups, units.n_layers, state.prior.held)
    library.bayesieve_unit_factors(native.addresses(*tensors), *sizes)
    return ratio, width


@twin
def bayesieve_unit_scales(
    library: Any, state: Any, noise: Tensor, pulls: Tensor, rates: Any
) -> None:
    """`horseshoe._move_scales_`, its gradient by hand."""
    units, numbers = state.groups, (rates.kl, *rates.pace[:2])
    tensors = (*_unit_scales(state, noise, numbers), pulls.contiguous(), None, None)
    sizes = (len(state.mean), units.n_groups, units.n_layers, state.prior.held)
    library.bayesieve_unit_scales(native.addresses(*tensors), *sizes, 1 / rates.n_data)


def _unit_scales(
    state: Any, noise: Tensor, numbers: tuple[Tensor | float, ...]
) -> tuple[Tensor | native.Array | None, ...]:
    """The tensors of `unit_scales` in C up to its numbers: those of AdaBelief and log τ₀."""
    units, prior, k = state.groups, state.prior, len(state.mean)
    mean, std = state.scale_mean_moments, state.scale_log_std_moments
    shape, rate = (x.expand(k, -1).contiguous() for x in (prior.shape, prior.rate))
    return (
        state.scale_mean, mean.first, mean.second, state.scale_log_std, std.first, std.second,
        noise, shape, rate, units.slab, units.common, units.nodes, units.weights, units.ends,
        native.columns(k, prior.log_std, *numbers),
    )  # fmt: skip


# ---------------------------------------------------------------------------------- chains


@twin
def bayesieve_move_chains(
    library: Any, engine: Any, state: Any, at: Any, keys: Tensor, size: Tensor, std: Tensor,
    momentum: float,
) -> None:  # fmt: skip
    """`sampling.move_`. The velocity of a chain without momentum is its last move, not kept."""
    (k, d), latents = state.w.shape, state.latents
    weight, inverse = state.controls.kl_scale, 1.0 if latents is None else 1 / latents.scale
    decay = 0.0 if latents is None else engine.prior.decay
    pull = (weight * inverse, weight * inverse * inverse, weight * decay, weight * state.precision)
    penalties = (None, None) if latents is None else (latents.laplace, latents.gauss)
    tensors = (at.grad, state.w, state.velocity, state.square, *penalties,
               state.controls.factors[1], keys,
               native.columns(k, *pull, size, std, momentum))  # fmt: skip
    n_penalised = 0 if latents is None else latents.rho.shape[1]
    sizes = (k, n_penalised, state.n_bayesian, d)
    library.bayesieve_move_chains(native.addresses(*tensors), *sizes, 1 / at.n_data)


@twin
def bayesieve_follow(
    library: Any, latents: Any, w: Tensor, keep: Tensor | None, omega: Tensor, odds: Tensor
) -> Any:
    """`sampling.follow_`."""
    (k, d), n_layers = w.shape, len(latents.sizes)
    settings = (1 / latents.scale, 1 / latents.spike_scale, 1 / latents.slab_std, omega)
    sums = torch.empty(4, k, n_layers)
    mask = None if keep is None else keep.view(torch.uint8)
    tensors = (latents.rho, latents.laplace, latents.gauss, w, mask,
               native.table([latents.sizes]), odds, native.columns(k, *settings), sums)  # fmt: skip
    sizes = (k, latents.rho.shape[1], d, n_layers)
    library.bayesieve_follow(native.addresses(*tensors), *sizes)
    return sums
