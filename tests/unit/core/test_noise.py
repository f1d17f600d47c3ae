"""The counter-based normals against the distribution they claim, within 4 standard errors."""

import math

import pytest
import torch
from scipy import stats

from bayesieve.core.random import counter_normals, fresh_keys, mix
from bayesieve.fast.backend import compiler_missing

N = 400_000
SIDES = 4.0  # standard errors allowed


def keys(seed):
    return fresh_keys(torch.Generator().manual_seed(seed))


def normals(seed, n=N, k=1, dtype=torch.float64):
    return counter_normals((k, n), keys(seed), dtype)


def assert_mean(values, expected):
    """The average of independent values is `expected`, judged by their spread."""
    error = values.std() / math.sqrt(values.numel())
    assert abs(values.mean() - expected) < SIDES * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("power", "expected"), [(1, 0), (2, 1), (3, 0), (4, 3), (6, 15)])
def test_moments(dtype, power, expected):
    assert_mean(normals(0, dtype=dtype).double().flatten() ** power, expected)


@pytest.mark.parametrize("seed", range(4))
def test_distribution(seed):
    z = normals(seed, n=200_000, dtype=torch.float32)[0].double().numpy()
    assert stats.kstest(z, "norm").pvalue > 6e-5


@pytest.mark.parametrize("bound", [2.0, 3.0, 4.0, 4.5])
def test_tails(bound):
    z = torch.cat([normals(seed, dtype=torch.float32) for seed in range(6)]).flatten()
    for side in (z > bound, z < -bound):
        assert_mean(side.double(), stats.norm.sf(bound))


def test_tail_reaches_beyond_six():
    # u = 2^-31 needs b = 0 mod 2^31, which one counter in 2^31 gives: undo the mixing to find it.
    inverse = _unmix(torch.zeros(1, dtype=torch.int32))
    three = torch.tensor([0, 0, 0], dtype=torch.int32)
    assert mix(inverse).item() == 0
    three[1] = inverse.item() - mix(three[:1]).item()
    z = counter_normals((1, 2), three, torch.float32)
    assert z.norm().item() == pytest.approx(math.sqrt(62 * math.log(2)), rel=1e-5)


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 16, 64, 1000, N // 2 - 1, N // 2, N // 2 + 1])
@pytest.mark.parametrize("power", [1, 2])
def test_no_serial_correlation(lag, power):
    z = normals(1)[0] ** power
    z = z - z.mean()
    assert_mean(z[lag:] * z[:-lag], 0)


@pytest.mark.parametrize("power", [1, 2])
def test_no_correlation_between_steps(power):
    generator = torch.Generator().manual_seed(2)
    steps = [
        counter_normals((1, N), fresh_keys(generator), torch.float64)[0] ** power for _ in range(4)
    ]
    for i in range(4):
        for j in range(i):
            a, b = steps[i] - steps[i].mean(), steps[j] - steps[j].mean()
            for lag in (0, 1, 5):
                assert_mean(a[lag:] * b[: len(b) - lag], 0)


@pytest.mark.parametrize("change", [0, 1, 1 << 10])
def test_steps_whose_counters_overlap_share_no_sequence(change):
    # Keys 0 this close make both steps pass through the same values a; the later keys part them.
    first, second = keys(4), keys(5)
    second[0] = first[0] ^ change
    a, b = (counter_normals((1, 1 << 18), keys, torch.float64)[0] for keys in (first, second))
    half = 1 << 17
    matched = torch.arange(half) ^ change
    for b_half in (b[:half][matched], b[half:][matched]):
        for a_half in (a[:half], a[half:]):
            assert_mean(a_half * b_half, 0)
            assert_mean((a_half.square() - 1) * (b_half.square() - 1), 0)


def test_the_mean_over_steps_of_one_entry_is_zero():
    generator = torch.Generator().manual_seed(6)
    z = torch.cat(
        [counter_normals((1, 8), fresh_keys(generator), torch.float64) for _ in range(2_000)]
    )
    for column in z.T:
        assert_mean(column, 0)
        assert_mean(column.square(), 1)
    assert_mean(z[1:, 0] * z[:-1, 0], 0)


def test_mix_is_a_bijection_that_spreads_every_bit():
    x = torch.arange(1 << 16, dtype=torch.int32)
    assert torch.equal(_unmix(mix(x)), x)
    for bit in range(31):
        flipped = mix(x) ^ mix(x ^ (1 << bit))
        for out in range(32):
            share = ((flipped >> out) & 1).double().mean().item()
            assert abs(share - 0.5) < 0.02, (bit, out)


def test_equal_keys_give_equal_normals_and_others_do_not():
    assert torch.equal(normals(7, n=999), normals(7, n=999))
    assert not torch.equal(normals(7, n=999), normals(8, n=999))


def test_members_are_distinct_and_uncorrelated():
    z = normals(9, n=200_001, k=3)
    assert z.shape == (3, 200_001)
    for i in range(3):
        for j in range(i):
            assert_mean(z[i] * z[j], 0)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_any_length(n):
    assert normals(10, n=n, k=2).shape == (2, n)


def test_all_randomness_comes_from_the_generator():
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(11)
    saved = generator.get_state()
    first, second = fresh_keys(generator), fresh_keys(generator)
    generator.set_state(saved)
    assert torch.equal(fresh_keys(generator), first)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside torch.compile
@pytest.mark.skipif(
    compiler_missing(torch.device("cpu")) is not None, reason="needs a C++ compiler"
)
def test_compiled_equals_eager():
    shape = (3, 1001)
    compiled = torch.compile(counter_normals, dynamic=False)
    eager = counter_normals(shape, keys(12), torch.float32)
    torch.testing.assert_close(
        compiled(shape, keys(12), torch.float32), eager, rtol=1e-5, atol=1e-5
    )


def _unmix(x):
    """The inverse of `mix`, in 64-bit arithmetic."""
    x = x.long() & 0xFFFFFFFF
    x = x ^ (x >> 16)
    x = (x * pow(0x846CA68B, -1, 2**32)) & 0xFFFFFFFF
    x = x ^ (x >> 15) ^ (x >> 30)
    x = (x * pow(0x7FEB352D, -1, 2**32)) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return x.to(torch.int32)
