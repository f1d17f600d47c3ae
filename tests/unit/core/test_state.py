"""Listing, copying and restoring states."""

from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor

from bayesieve.core.state import Controls, generators, named_tensors, restore_, snapshot
from problems import seeded


@dataclass
class Inner:
    a: Tensor
    nothing: Tensor | None = None


@dataclass
class Outer:
    w: Tensor
    inner: Inner
    absent: Inner | None
    controls: Controls
    generator: Generator
    label: str = "not a tensor"


def outer(fill=1.0):
    w = torch.full((2, 3), fill)
    return Outer(w, Inner(torch.full((2,), fill)), None, Controls.neutral(w), seeded(int(fill)))


NAMES = ["w", "inner.a", "controls.lr_scale", "controls.kl_scale"]


def test_every_tensor_and_generator_is_listed():
    state = outer()
    assert [name for name, _ in named_tensors(state)] == NAMES
    assert generators(state) == {"generator": state.generator}
    state.controls.allow_masks_(state.w)
    assert [name for name, _ in named_tensors(state)] == [
        *NAMES,
        "controls.keep",
        "controls.trained",
    ]


def test_snapshots_are_copies_and_restore_in_place():
    state = outer()
    saved = snapshot(state)
    address, generator = state.w.data_ptr(), state.generator
    draw = torch.rand(3, generator=state.generator)
    state.w.zero_()
    state.inner.a.zero_()
    assert (saved["w"] == 1).all()
    restore_(state, saved)
    assert (state.w == 1).all()
    assert (state.inner.a == 1).all()
    assert state.w.data_ptr() == address
    assert state.generator is generator
    assert torch.equal(torch.rand(3, generator=state.generator), draw)


def test_neutral_controls_scale_nothing():
    controls = Controls.neutral(torch.zeros(2, dtype=torch.float64))
    assert (controls.lr_scale, controls.kl_scale) == (1, 1)
    assert controls.lr_scale.dtype == torch.float64
    assert controls.keep is None
    assert controls.lr_scale is not controls.kl_scale


def test_masks_begin_all_true_and_are_made_once():
    controls = Controls.neutral(torch.zeros(2, 3))
    controls.allow_masks_(torch.zeros(2, 3))
    assert controls.keep.all()
    assert controls.trained.all()
    assert controls.keep.shape == controls.trained.shape == (2, 3)
    controls.keep[0, 0] = False
    controls.allow_masks_(torch.zeros(2, 3))
    assert not controls.keep[0, 0]


def test_masks_as_factors_follow_the_masks():
    controls = Controls.neutral(torch.zeros(1, 2))
    assert controls.factors == (None, None)
    controls.allow_masks_(torch.zeros(1, 2))
    keep, trained = controls.factors
    controls.keep[0, 0] = False
    assert keep.tolist() == [[0, 1]]
    assert trained.tolist() == [[1, 1]]
    for dtype in (torch.float32, torch.float64):
        w = torch.tensor([[3.0, 5.0]], dtype=dtype)
        assert torch.equal(w * keep, w * controls.keep)
        assert (w * keep).dtype == dtype


def damaged(**changes):
    return {k: v for k, v in {**snapshot(outer(2.0)), **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (damaged(w=None), "the checkpoint lacks 'w'"),
        (damaged(**{"generator.rng": None}), r"the checkpoint lacks 'generator\.rng'"),
        (damaged(**{"controls.keep": torch.ones(2, 3)}), r"only the checkpoint holds 'controls\.k"),
        (damaged(w=torch.zeros(3, 3)), r"'w' has shape \(3, 3\) in the checkpoint and \(2, 3\)"),
        (damaged(w=torch.zeros(2, 3).double()), "'w' is torch.float64 .* torch.float32 here"),
    ],
)
def test_snapshots_that_do_not_fit_are_refused_and_nothing_is_written(saved, message):
    state = outer()
    with pytest.raises(ValueError, match=message):
        restore_(state, saved)
    assert (state.w == 1).all()
    assert (state.inner.a == 1).all()
    assert torch.equal(state.generator.get_state(), seeded(1).get_state())
