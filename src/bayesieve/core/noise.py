"""Noise of a draw, as a function of a counter (noise on activations is in core/local.py).

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
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from bayesieve.core import native

if TYPE_CHECKING:
    from bayesieve.core.problem import Problem
    from bayesieve.core.workspace import Draw

N_KEYS = 3
_MANY = 1 << 15  # weights


def generator_on(device: torch.device) -> Generator:
    """A generator for tensors on a device; meta tensors, which have no numbers, take the CPU's."""
    return Generator("cpu" if device.type == "meta" else device)


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
    problem: "Problem", state: Any, *, local: bool, ratio: Tensor | None = None, own: bool = True
) -> "Draw":
    """Draw w = r (m + s ε), 0 where pruned; r m and (r s)² themselves for noise on activations.

    Args:
        problem: whose workspace receives the draw.
        state: m, (k, d), is its `mean`, and log s, (k, n), its `log_std`.
        local: whether layers add the noise to their activations.
        ratio: r of each group of the state's `groups`, (k, G); None for 1.
        own: whether each of the processes that share a step may draw its own weights; the means of
            their gradients must then be all that the engine needs.
    """
    space, masks = problem.workspace(len(state.mean), local=local), state.controls.factors
    drawn = space.draw
    in_float32 = problem.execution.moments_dtype is None  # others move in Python
    drawn.in_pieces = problem.execution.native and in_float32 and own
    if local and problem.execution.native:
        if ratio is not None or not space.are_unchanged(*spread_tensors(state, drawn)):
            space.remember()
            _spread_natively_(state, drawn, ratio, masks[0])
    elif local:
        problem.kernel(spread_)(state, drawn, ratio, masks[0])
    else:
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


def _centre(state: Any, ratio: Tensor | None, keep: Tensor | None) -> Tensor:
    """Centre of the draws: r m of the weights with a posterior, (k, n), 0 where not kept."""
    n = state.log_std.shape[1]
    centre: Tensor = state.mean[:, :n]
    if ratio is not None:
        centre = centre * state.groups.to_entries(ratio)
    return centre if keep is None else centre * keep[:, :n]


def spread_tensors(state: Any, drawn: "Draw") -> list[Tensor]:
    """Tensors that means and variances for noise on activations are read from and written to."""
    tensors = (state.mean, state.log_std, state.controls.keep, drawn.weights, drawn.variances,
               drawn.brief_variances)  # fmt: skip
    return [tensor for tensor in tensors if tensor is not None]


def _spread_natively_(state: Any, drawn: "Draw", ratio: Tensor | None, keep: Tensor | None) -> None:
    """`spread_` in C."""
    library, (k, d), n = native.steps(), state.mean.shape, state.log_std.shape[1]
    assert library is not None
    assert drawn.variances is not None
    brief = drawn.brief_variances if ratio is None else None
    tensors = (state.mean, state.log_std, keep, drawn.weights, drawn.variances, brief)
    library.bayesieve_spread(k, n, d, *map(native.address, tensors))
    if ratio is None:
        return
    sizes = (len(state.groups.runs), ratio.shape[1])
    for buffer, factor in ((drawn.weights, ratio), (drawn.variances, ratio.square())):
        scaled = (state.groups.runs, factor.contiguous(), None, buffer)
        library.bayesieve_scale(k, n, d, *sizes, *map(native.address, scaled))
    if drawn.brief_variances is not None:
        drawn.brief_variances.copy_(drawn.variances)


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
    if drawn.brief_variances is not None:
        drawn.brief_variances.copy_(drawn.variances)
