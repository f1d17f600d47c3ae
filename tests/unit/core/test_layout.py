"""Where each tensor sits in w and which role it gets."""

import json

import pytest
import torch
from torch import nn

from bayesieve.core.layout import Layout, Role, Roles, default_role, layout_of
from bayesieve.errors import UnsupportedModelError
from zoo import BY_NAME, ZOO


def test_prunable_weights_come_first_then_kept_then_points():
    layout = layout_of(BY_NAME["layer_norm"].model())
    assert layout.names == ("0.weight", "3.weight", "0.bias", "3.bias", "1.weight", "1.bias")
    assert [role.name for role in layout.roles] == ["PRUNE"] * 2 + ["KEEP"] * 2 + ["POINT"] * 2
    assert (layout.n_sparse, layout.n_bayesian, layout.size) == (24, 31, 39)
    assert (layout.sparse, layout.bayesian) == (slice(0, 24), slice(0, 31))
    assert layout.slices["0.bias"] == slice(24, 28)
    assert layout.sizes == (12, 12, 4, 3, 4, 4)


@pytest.mark.parametrize(
    ("owner", "leaf", "role"),
    [
        (nn.Linear(2, 2), "weight", Role.PRUNE),
        (nn.Linear(2, 2), "bias", Role.KEEP),
        (nn.Conv3d(1, 1, 1), "weight", Role.PRUNE),
        (nn.ConvTranspose2d(1, 1, 1), "weight", Role.PRUNE),
        (nn.Bilinear(1, 1, 1), "weight", Role.PRUNE),
        (nn.MultiheadAttention(2, 1), "in_proj_weight", Role.PRUNE),
        (nn.MultiheadAttention(2, 1), "in_proj_bias", Role.KEEP),
        (nn.MultiheadAttention(2, 1, kdim=3), "k_proj_weight", Role.PRUNE),
        (nn.Embedding(2, 2), "weight", Role.POINT),
        (nn.BatchNorm1d(2), "weight", Role.POINT),
        (nn.Module(), "token", Role.POINT),
    ],
)
def test_default_roles(owner, leaf, role):
    assert default_role(f"block.{leaf}", owner) is role
    assert default_role(leaf, owner) is role


class Mapped(nn.Module):
    """A linear map as other libraries write it."""

    def __init__(self, forward, *shape, bias=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))
        if bias is not None:
            self.bias = nn.Parameter(torch.ones(bias))
        self.call = forward

    def forward(self, x):
        return self.call(self, x)


@pytest.mark.parametrize(
    ("owner", "prunable"),
    [
        (Mapped(lambda m, x: torch.addmm(m.bias, x, m.weight), 3, 2, bias=2), True),  # GPT-2's
        (Mapped(lambda m, x: x @ m.weight.T, 3, 2), True),
        (Mapped(lambda m, x: x @ m.weight, 3, 3), True),
        (Mapped(lambda m, x: x @ m.weight + 1, 3, 2), False),
        (Mapped(lambda m, x: torch.relu(x @ m.weight), 3, 2), False),
        (Mapped(lambda m, x: (x @ m.weight, 0), 3, 2), False),
        (Mapped(lambda m, x: 1 / 0, 3, 2), False),
        (Mapped(lambda m, x: x * m.weight, 3), False),
    ],
)
def test_a_layer_is_linear_by_what_it_computes(owner, prunable):
    before = owner.weight.clone()
    assert default_role("h.0.weight", owner) is (Role.PRUNE if prunable else Role.POINT)
    if hasattr(owner, "bias"):
        assert default_role("h.0.bias", owner) is Role.KEEP
    assert torch.equal(owner.weight, before)


def test_attention_projections_are_prunable():
    layout = layout_of(BY_NAME["attention"].model())
    roles = dict(zip(layout.names, layout.roles, strict=True))
    assert roles["attention.in_proj_weight"] is Role.PRUNE
    assert roles["attention.out_proj.weight"] is Role.PRUNE
    assert roles["norm.weight"] is Role.POINT


def test_rules_override_by_name_and_by_type():
    rule = Roles(keep=("2.*",), point=(nn.Linear,), prune=("2.bias",))
    layout = layout_of(BY_NAME["mlp"].model(), rule)
    roles = dict(zip(layout.names, layout.roles, strict=True))
    assert roles == {
        "2.bias": Role.PRUNE,
        "2.weight": Role.KEEP,
        "0.weight": Role.POINT,
        "0.bias": Role.POINT,
    }
    assert hash(rule) == hash(Roles(keep=("2.*",), point=(nn.Linear,), prune=("2.bias",)))


def test_a_name_pattern_that_fits_nothing_is_refused():
    model = BY_NAME["mlp"].model()
    with pytest.raises(ValueError, match=r"pattern '0.wieght' .* Did you mean '0.weight'\?$"):
        layout_of(model, Roles(keep=("2.*", "0.wieght")))
    layout_of(model, Roles(point=(nn.Embedding,)))  # a type speaks of any model


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_flatten_and_unflatten_are_inverse(case):
    model = case.model()
    layout = layout_of(model)
    w = layout.flatten(model)
    named = dict(model.named_parameters())
    assert w.shape == (layout.size,)
    assert layout.size == sum(p.numel() for p in model.parameters() if p.requires_grad)
    for name, view in layout.unflatten(w).items():
        assert torch.equal(view, named[name])
    assert torch.equal(layout.flatten(layout.unflatten(w)), w)


def test_unflatten_gives_views_and_keeps_leading_axes():
    layout = layout_of(BY_NAME["conv2d"].model())
    w = torch.zeros(5, 2, layout.size)
    views = layout.unflatten(w)
    assert views["0.weight"].shape == (5, 2, 2, 1, 3, 3)
    views["3.bias"][4, 1] = 7
    assert (w[4, 1, layout.slices["3.bias"]] == 7).all()
    assert w.sum() == 7 * 3


def test_flatten_copies():
    model = BY_NAME["linear"].model()
    w = layout_of(model).flatten(model)
    w.zero_()
    assert model.weight.abs().min() > 0
    assert not w.requires_grad


def test_scalars_and_wrong_lengths():
    model = nn.Module()
    model.scale = nn.Parameter(torch.tensor(2.0))
    layout = layout_of(model)
    assert layout.unflatten(torch.ones(3, 1))["scale"].shape == (3,)
    assert layout.unflatten(torch.ones(1))["scale"].shape == ()
    with pytest.raises(ValueError, match=r"^Layout: w must have 1 entries, got 2\.$"):
        layout.unflatten(torch.zeros(2))


def test_fan_in():
    layout = layout_of(BY_NAME["conv2d"].model())
    assert layout.fan_in("0.weight") == 9
    assert layout.fan_in("3.weight") == 8
    assert layout.fan_in("3.bias") == 1


def test_tied_parameters_count_once_and_take_the_most_prunable_role():
    layout = layout_of(BY_NAME["tied"].model())
    assert layout.names == ("embed.weight", "mix.weight", "mix.bias")
    assert layout.roles[0] is Role.PRUNE  # an embedding alone would be a point


def test_frozen_parameters_do_not_count():
    assert layout_of(BY_NAME["frozen"].model()).names == ("2.weight", "2.bias")


def test_extra_numbers_are_points_at_the_end():
    layout = layout_of(nn.Linear(2, 1)).extended({"likelihood.a": torch.zeros(())})
    assert layout.names[-1] == "likelihood.a"
    assert layout.roles[-1] is Role.POINT
    assert layout.size == 4


def test_layouts_compare_and_become_json():
    layout = layout_of(nn.Linear(2, 1))
    assert layout == layout_of(nn.Linear(2, 1))
    assert layout != layout_of(nn.Linear(1, 2))
    rows = [["weight", [1, 2], "PRUNE"], ["bias", [1], "KEEP"]]
    assert json.loads(json.dumps(layout.to_json())) == rows


def test_roles_out_of_order_are_refused():
    shapes = (torch.Size([1]), torch.Size([1]))
    with pytest.raises(ValueError, match=r"^Layout: roles must be sorted"):
        Layout(("a", "b"), shapes, (Role.KEEP, Role.PRUNE))


def _mixed() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double())


def _complex() -> nn.Module:
    return nn.Linear(1, 1, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (nn.Flatten, "has no trainable parameter"),
        (lambda: nn.Linear(2, 1).requires_grad_(False), "has no trainable parameter"),
        (lambda: nn.LazyLinear(2), "'weight' is not initialised yet .* Call the model once"),
        (_complex, "must be real floating point, got torch.complex64"),
        (_mixed, "one dtype and device; '0.weight' is torch.float32 .* '1.weight' torch.float64"),
    ],
)
def test_models_that_cannot_be_laid_out_are_refused(build, message):
    with pytest.raises(UnsupportedModelError, match=message):
        layout_of(build())
