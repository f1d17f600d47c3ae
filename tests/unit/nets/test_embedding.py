"""The piecewise linear embedding of columns: exact values, and the same by linear layers."""

import pytest
import torch

from bayesieve.nets import PiecewiseLinear


def columns(n=200, seed=0):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=source)
    x[:, 1] = (x[:, 1] > 0).float()  # two values
    x[:, 2] = 4.0  # a constant
    return x


def test_a_linear_layer_on_the_bins_is_any_piecewise_linear_function():
    """Least squares on column and bins interpolate the knots exactly."""
    edges = torch.tensor([[0.0, 1.0, 2.0, 4.0]])
    layer = PiecewiseLinear(edges)
    heights = torch.tensor([3.0, -1.0, 5.0, 0.5])
    basis = torch.cat([layer(edges.T), torch.ones(4, 1)], 1)
    weights = torch.linalg.lstsq(basis.double(), heights.double()[:, None], driver="gelsd").solution
    at = torch.tensor([[0.25], [1.5], [3.0]])
    found = torch.cat([layer(at), torch.ones(3, 1)], 1).double() @ weights
    expected = torch.tensor([2.0, 2.0, 2.75]).double()
    torch.testing.assert_close(found[:, 0], expected, atol=1e-5, rtol=0)


def test_bins_hold_about_equally_many_rows_and_follow_few_values():
    layer = PiecewiseLinear.of(columns(), 4)
    inside = torch.bucketize(columns()[:, 0].contiguous(), layer.edges[0, 1:-1].contiguous())
    assert torch.bincount(inside).tolist() == pytest.approx([50] * 4, abs=2)
    assert layer.edges[1].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert layer.present.tolist() == [[True] * 5, [True] + 4 * [False], [True] + 4 * [False]]


def test_columns_of_two_values_pass_and_empty_bins_are_0():
    x = columns()
    layer = PiecewiseLinear.of(x, 4)
    assert layer(x).shape == (200, 5 + 1 + 1)
    torch.testing.assert_close(layer(x)[:, 5:], x[:, 1:], rtol=0, atol=0)
    whole = PiecewiseLinear(layer.edges)(x).reshape(200, 3, 5)
    assert bool((whole[:, 2, 1:] == 0).all())
    assert bool((whole[:, 1, 2:] == 0).all())


@pytest.mark.parametrize("binned", [None, torch.tensor([True, True, True])])
def test_linear_layers_compute_the_same_however_far_out(binned):
    layer = PiecewiseLinear.of(columns(), 6, binned)
    plain = layer.layers()
    x = columns(50, seed=1)
    x[0] = torch.tensor([1e4, -1e4, 1e4])
    torch.testing.assert_close(plain(x), layer(x), rtol=0, atol=2e-7)
    assert not any(p.requires_grad for p in plain.parameters())


def test_edges_must_ascend():
    with pytest.raises(ValueError, match="ascending"):
        PiecewiseLinear(torch.tensor([[1.0, 0.0]]))
