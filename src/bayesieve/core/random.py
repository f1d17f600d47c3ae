"""Random numbers: normals from a counter, and turns at the generator that torch has once.

**Normals.** On a CPU the generator behind `Tensor.normal_` makes one number at a time, and
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

**Turns.** A module's dropout draws from the global generator, and initial weights do. Tracing a
module replaces methods of all modules meanwhile. Threads take turns at both. Predictions need
neither: they never wait.
"""

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from bayesieve.core.execution import by_twin, kernel

N_KEYS = 3
_MANY = 1 << 15  # weights
_log = logging.getLogger(__name__)
_turn = threading.RLock()


@contextmanager
def own_turn(who: str) -> Iterator[None]:
    """Wait until no other thread is inside, and say so in the log."""
    if not _turn.acquire(blocking=False):
        _log.info("%s: waits for a fit or a trace in another thread", who)
        _turn.acquire()
    try:
        yield
    finally:
        _turn.release()


@contextmanager
def turn_if_free() -> Iterator[bool]:
    """Take the turn, or go on without it: whether it is taken."""
    taken = _turn.acquire(blocking=False)
    try:
        yield taken
    finally:
        if taken:
            _turn.release()


@contextmanager
def own_stream(who: str, seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators of the CPU and of a device inside the block; restore them after.

    Example:
        >>> with own_stream("example", 3):
        ...     first = torch.rand(1)
        >>> with own_stream("example", 3):
        ...     print(torch.equal(torch.rand(1), first))
        True
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with own_turn(who), torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for one in devices:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(seed)
        yield


def generator_on(device: torch.device) -> Generator:
    """A generator for tensors on a device; meta tensors, which have no numbers, take the CPU's."""
    return Generator("cpu" if device.type == "meta" else device)


def as_normals(noise: Tensor, like: Tensor) -> Tensor:
    """Standard normals of the shape of `like`, (k, n), from `Backend.noise`; inside a kernel."""
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

    In float32 on a CPU the noise of many weights is that of `counter_normals`, for which there is
    C: torch's generator takes four times as long. All else is drawn by torch.

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
        by_twin(draw_some_)(part, mean, std, fresh_keys(generator), n)
    return draws


@kernel("bayesieve_draws")
def draw_some_(out: Tensor, mean: Tensor, std: Tensor, keys: Tensor, n: int) -> None:
    """Fill rows, (s, d), with mean + std ε of the first n weights and the mean of the others."""
    out.copy_(mean)
    out[:, :n].addcmul_(std[:n], counter_normals((len(out), n), keys, mean.dtype))


def mix(x: Tensor) -> Tensor:
    """A fixed pseudo-random permutation of the 32-bit integers, elementwise."""
    x = (x ^ _shift(x, 16)) * 0x7FEB352D
    x = (x ^ _shift(x, 15)) * (0x846CA68B - 2**32)
    return x ^ _shift(x, 16)


def _shift(x: Tensor, places: int) -> Tensor:
    # A signed shift copies the sign bit into the places it frees: clear them.
    return (x >> places) & (2 ** (32 - places) - 1)
