"""Arrays inside JSON come back as they went in."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bayesieve.report.packing import pack, rounded, unpack

KINDS = {"u1": np.uint8, "u2": np.uint16, "u4": np.uint32, "i2": np.int16, "f4": np.float32}


@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_round_trip(data, kind):
    shape = arrays.array_shapes(min_dims=1, max_dims=3, max_side=4)
    elements = {"allow_nan": False, "allow_infinity": False} if kind == "f4" else None
    values = data.draw(arrays.arrays(KINDS[kind], shape, elements=elements))
    packed = pack(values, kind)
    actual = unpack(packed)
    assert packed["shape"] == list(values.shape)
    np.testing.assert_array_equal(actual.numpy(), values)


@pytest.mark.parametrize(("value", "kind"), [(256, "u1"), (-1, "u2"), (40_000, "i2"), (0.5, "u4")])
def test_numbers_that_do_not_fit_are_refused(value, kind):
    with pytest.raises(ValueError, match=f"do not fit the type {kind}"):
        pack(torch.tensor([value]), kind)


def test_damaged_arrays_are_refused():
    packed = pack(torch.arange(6).reshape(2, 3), "u1")
    with pytest.raises(ValueError, match="must hold 8 numbers, got 6"):
        unpack({**packed, "shape": [2, 4]})
    with pytest.raises(ValueError, match="must have a type of"):
        unpack({**packed, "type": "O"})


def test_rounding_keeps_significant_digits():
    assert rounded(torch.tensor([[123456.789, 0.000123456]]), 3) == [[123000.0, 0.000123]]
    assert rounded(torch.tensor([1.0, float("inf"), float("nan")])) == [1.0, None, None]
