"""Standard normals as a function of a counter: noise that fuses into the kernel that uses it.

On a CPU the generator behind `Tensor.normal_` makes one number at a time, and drawing as many
normals as a network has weights costs a third of a training step. Here the i-th pair of normals is
a formula in i and three keys, so a compiled kernel computes many at once and stores none:

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

import torch
from torch import Generator, Tensor

N_KEYS = 3


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
    a = _mix(counter ^ keys[0])
    b, c = _mix(a + keys[1]), _mix(a + keys[2])
    u = ((b & 0x7FFFFFFF).to(dtype) + 1) * 2.0**-31  # in (0, 1], finest near 0: the tails
    angle = c.to(dtype) * (2 * math.pi * 2.0**-32)
    radius = (-2 * u.log()).sqrt()
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :n]


def _mix(x: Tensor) -> Tensor:
    """A fixed pseudo-random permutation of the 32-bit integers, elementwise."""
    x = (x ^ _shift(x, 16)) * 0x7FEB352D
    x = (x ^ _shift(x, 15)) * (0x846CA68B - 2**32)
    return x ^ _shift(x, 16)


def _shift(x: Tensor, places: int) -> Tensor:
    # A signed shift copies the sign bit into the places it frees: clear them.
    return (x >> places) & (2 ** (32 - places) - 1)
