"""Examples and DataSet."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayesieve.data import DataSet, Examples, gather
from bayesieve.errors import DataError


def _examples(n=10):
    return Examples(torch.arange(float(n))[:, None], torch.arange(n))


@settings(max_examples=25, deadline=None)
@given(n=st.integers(4, 60), fraction=st.floats(0.2, 0.8), seed=st.integers(0, 2**31))
def test_split_is_a_partition(n, fraction, seed):
    rest, held_out = _examples(n).split(fraction, seed)
    assert len(held_out) == round(fraction * n)
    assert sorted(rest.y.tolist() + held_out.y.tolist()) == list(range(n))


def test_split_repeats_and_leaves_global_random_state():
    before = torch.get_rng_state()
    first, second = _examples().split(0.3, 1)[1].y, _examples().split(0.3, 1)[1].y
    assert first.equal(second)
    assert torch.get_rng_state().equal(before)
    assert not first.equal(_examples().split(0.3, 2)[1].y)


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.01])
def test_split_refuses_empty_parts(fraction):
    with pytest.raises(ValueError, match=r"Examples.split: "):
        _examples().split(fraction, 0)


def test_examples_refuse_mismatch_and_dtypes():
    with pytest.raises(ValueError, match="one entry per example"):
        Examples(torch.zeros(3, 1), torch.zeros(2))
    with pytest.raises(TypeError, match="x must be floating"):
        Examples(torch.zeros(3, 1, dtype=torch.uint8), torch.zeros(3))
    with pytest.raises(TypeError, match="y must be int64"):
        Examples(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int32))


def test_tokens_are_inputs_too():
    data = Examples(torch.arange(6).view(3, 2), torch.arange(3))
    assert data.to(dtype=torch.float64).x.dtype == torch.int64
    assert data.subset(torch.tensor([2])).x.tolist() == [[4, 5]]


class _Squares(Dataset):
    """Items as plain Python makes them: an array and a number."""

    def __len__(self):
        return 300

    def __getitem__(self, index):
        return np.full((2,), index, dtype=np.float32), index * index


def test_a_dataset_is_read_in_order_and_a_loader_as_it_comes():
    data = gather(_Squares())
    assert data.x[:, 1].tolist() == list(range(300))
    assert data.y.tolist() == [i * i for i in range(300)]
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0)).tolist()
    loader = DataLoader(_Squares(), batch_size=7, sampler=order)
    assert gather(loader).x[:, 0].tolist() == order
    assert gather(loader, limit=10).y.tolist() == [i * i for i in order[:10]]


def test_what_cannot_be_gathered_is_named():
    with pytest.raises(TypeError, match=r"got list\. Tensors can be used as they are"):
        gather([1, 2])
    with pytest.raises(TypeError, match=r"a pair of tensors .* got Tensor"):
        gather(DataLoader([torch.ones(2), torch.ones(2)]))
    with pytest.raises(TypeError, match=r"a pair of tensors .* got Tensor, tuple"):
        gather(DataLoader([(torch.ones(2), "a")]))
    with pytest.raises(DataError, match="no example"):
        gather(DataLoader(TensorDataset(torch.ones(0, 2), torch.ones(0))))
    with pytest.raises(ValueError, match="limit must be > 0"):
        gather(_Squares(), limit=0)


def test_to_moves_floats_and_keeps_classes():
    moved = _examples().to("cpu", torch.float64)
    assert moved.x.dtype == moved.target_mean.dtype == torch.float64
    assert moved.y.dtype == torch.int64


def test_data_set_properties_and_checks():
    part = Examples(torch.zeros(3, 4), torch.zeros(3, 2))
    data = DataSet("d", part, part, "regression")
    assert (data.input_shape, data.n_outputs, data.n_splits) == ((4,), 2, 1)
    with pytest.raises(ValueError, match="classes must be given"):
        DataSet("d", part, part, "classification")
    with pytest.raises(ValueError, match="one shape"):
        DataSet("d", part, Examples(torch.zeros(3, 5), torch.zeros(3)), "regression")
