"""Which 2:4 layers become semi-structured products, with made-up times and products on a CPU."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from bayesieve.deliver.semi_structured import as_semi_structured, is_two_of_four
from bayesieve.errors import UnsupportedModelError


def pruned(*sizes):
    """A network of Linear layers in bfloat16 whose weights are 2:4."""
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    for layer in layers:
        layer.weight.data *= torch.tensor([1.0, 0.0, 0.0, 1.0]).repeat(layer.in_features // 4)
    return nn.Sequential(*layers).bfloat16()


def timer_of(*pairs):
    """A timer that returns these (dense, sparse) times call by call."""
    left = iter(pairs)

    def timer(cases):
        for case in cases.values():
            case()
        return dict(zip(cases, next(left), strict=True))

    return timer


def halved(weight):
    """Stand in for a semi-structured weight; half as large, so that its use shows."""
    return weight / 2


def taken(semi, net):
    return [not torch.equal(a.weight, b.weight) for a, b in zip(semi.module, net, strict=True)]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([(2.0, 1.0), (2.0, 1.0), (4.0, 2.0)], [True, True]),
        ([(2.0, 1.0), (1.0, 2.0), (3.0, 2.0)], [True, False]),  # each layer by itself
        ([(2.0, 1.0), (1.0, 2.0), (3.0, 3.0)], [False, False]),  # the network has gained nothing
        ([(1.0, 0.99), (1.0, 1.0)], [False, False]),  # within chance: nothing to measure as a whole
    ],
)
def test_only_what_is_faster_changes(times, wanted):
    net = pruned(64, 128, 64)
    semi = as_semi_structured(net, torch.ones(3, 64).bfloat16(), timer=timer_of(*times),
                              convert=halved)  # fmt: skip
    assert taken(semi, net) == wanted
    assert [layer.milliseconds for layer in semi.layers] == [
        dict(zip(("dense", "sparse"), pair, strict=True)) for pair in times[:2]
    ]
    assert [(layer.name, layer.rows) for layer in semi.layers] == [("0", 3), ("1", 3)]


def test_layers_that_cannot_change_are_left_out():
    net = pruned(64, 128, 64, 96)  # 96 is no multiple of 64
    net[1].weight.data[0, 2] = 1.0  # three of four
    x, timer = torch.ones(2, 5, 64).bfloat16(), timer_of((2.0, 1.0), (2.0, 1.0))
    semi = as_semi_structured(net, x, timer=timer, convert=halved)
    assert [(layer.name, layer.rows) for layer in semi.layers] == [("0", 10)]
    assert taken(semi, net) == [True, False, False]
    assert torch.equal(
        net[0].weight, pruned(64, 128, 64, 96)[0].weight
    )  # the caller's is as it was


def test_pattern_and_precision():
    assert not is_two_of_four(torch.zeros(2, 6))
    assert not is_two_of_four(torch.zeros(4))
    with pytest.raises(UnsupportedModelError, match="bfloat16 on a CUDA device"):
        as_semi_structured(pruned(64, 64).float(), torch.ones(1, 64), timer=timer_of())
