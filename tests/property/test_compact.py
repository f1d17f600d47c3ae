"""Compaction on random graphs and random masks: same function, never larger, once is enough."""

import copy
import pickle
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Generator, Tensor, nn

from architectures import ARCHITECTURES
from bayesieve.sieve.compact import compact
from bayesieve.sieve.verify import verify
from problems import seeded

N_MASKS = 20  # of each random family, and half as many of each fixed network: 110 in all


def pick(generator: Generator, *choices):
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def activation(generator: Generator) -> nn.Module:
    return pick(generator, nn.ReLU(), nn.Tanh(), nn.GELU(), nn.Sigmoid(), nn.ReLU(inplace=True))


def mlp(g: Generator) -> tuple[nn.Module, tuple[int, ...]]:
    widths = [pick(g, 1, 3, 6), *(pick(g, 1, 2, 5, 8) for _ in range(pick(g, 1, 2, 3)))]
    layers: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in pairwise(widths):
        layers.append(nn.Linear(n_in, n_out, bias=pick(g, True, False)))
        layers += pick(g, [nn.BatchNorm1d(n_out)], [nn.Dropout(0.3)], [])
        layers.append(activation(g))
    return nn.Sequential(*layers, nn.Linear(widths[-1], 3)), (widths[0],)


def conv_net(g: Generator) -> tuple[nn.Module, tuple[int, ...]]:
    layers: list[nn.Module] = []
    n_in = n_input = pick(g, 1, 2, 3)
    for _ in range(pick(g, 1, 2)):
        n_out = pick(g, 2, 4, 5)
        mode, bias = pick(g, "zeros", "zeros", "replicate"), pick(g, True, False)
        padding = pick(g, 0, 1)
        layers.append(nn.Conv2d(n_in, n_out, 3, padding=padding, padding_mode=mode, bias=bias))
        layers += pick(g, [nn.BatchNorm2d(n_out)], [nn.PReLU(n_out)], [])
        layers.append(activation(g))
        n_in = n_out
    pool = pick(g, nn.MaxPool2d(2), nn.AvgPool2d(3, 2, padding=1), nn.AdaptiveAvgPool2d(2))
    layers += [pool, nn.Flatten()]
    net = nn.Sequential(*layers)
    shape = (n_input, 7, 7)
    width = net.eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*net, nn.Linear(width, 3)), shape


class AnyGraph(nn.Module):
    """A random graph of random operations; most of them read one of the last few tensors."""

    def __init__(self, g: Generator) -> None:
        super().__init__()
        self.layers, self.steps, widths = nn.ModuleList(), [], [2]
        for _ in range(pick(g, 4, 7, 10)):
            i = pick(g, *range(max(0, len(widths) - 3), len(widths)))
            n, kind = widths[i], pick(g, "layer", "layer", "layer", "add", "sub", "gate", "cat")
            if kind == "layer":
                layer = self.layer(n, g)
                self.layers.append(layer)
                self.steps.append((kind, i, len(self.layers) - 1))
                widths.append(getattr(layer, "out_channels", n))
            elif kind == "cat":
                j = pick(g, *range(len(widths)))
                self.steps.append((kind, i, j))
                widths.append(n + widths[j])
            else:
                j = pick(g, *(j for j, width in enumerate(widths) if width in (n, 1)))
                self.steps.append((kind, i, j))
                widths.append(n)
        self.head = nn.Linear(widths[-1] * 4, 3)

    def layer(self, n: int, g: Generator) -> nn.Module:
        return pick(
            g,
            nn.Conv2d(n, pick(g, 1, 3, 4), 3, padding=1, bias=pick(g, True, False)),
            nn.Conv2d(n, pick(g, 2, 3), 1),
            nn.Conv2d(n, 2 * n, 3, padding=1, groups=n),
            nn.BatchNorm2d(n),
            activation(g),
            nn.MaxPool2d(3, 1, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = [x]
        for kind, i, j in self.steps:
            match kind:
                case "layer":
                    h.append(self.layers[j](h[i]))
                case "add":
                    h.append(h[i] + h[j])
                case "sub":
                    h.append(h[i] - h[j])
                case "gate":
                    h.append(h[i] * torch.sigmoid(h[j]))
                case "cat":
                    h.append(torch.cat([h[i], h[j]], 1))
        pooled = nn.functional.adaptive_avg_pool2d(h[-1], 2)
        return self.head(pooled.reshape(pooled.shape[0], -1))


FAMILIES = {"mlp": mlp, "conv": conv_net, "any graph": lambda g: (AnyGraph(g), (2, 4, 4))}
FIXED = {  # of `architectures`, under random masks
    "residual": "ResNet-18",
    "concat": "DenseNet",
    "depthwise": "EfficientNet",
    "attention": "ViT",
    "encoder": "nn.TransformerEncoder",
}


def mask_(model: nn.Module, g: Generator) -> None:
    """Zero single weights, whole rows, whole columns, whole tensors and some biases."""
    density = pick(g, 0.1, 0.3, 0.6, 1.0)
    rows, columns = pick(g, 0.0, 0.3, 0.7), pick(g, 0.0, 0.3, 0.7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=p.dtype))
            if p.dim() > 1:
                p *= torch.rand(p.shape, generator=g) < density
                p *= torch.rand(len(p), *[1] * (p.dim() - 1), generator=g) >= rows
                p *= torch.rand(1, p.shape[1], *[1] * (p.dim() - 2), generator=g) >= columns
                p *= float(torch.rand((), generator=g)) > 0.05
            elif "bias" in name or "norm" in name:
                p *= torch.rand(p.shape, generator=g) < 0.7
        for name, b in model.named_buffers():
            if b.is_floating_point():
                b.copy_(torch.rand(b.shape, generator=g, dtype=b.dtype) + 0.5 * ("var" in name))


def network(family: str, seed: int) -> tuple[nn.Module, Tensor]:
    g = seeded(seed)
    if family in FIXED:
        model, x = ARCHITECTURES[FIXED[family]].build()
        shape = x.shape[1:]
    else:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model, shape = FAMILIES[family](g)
    model = model.to(pick(g, torch.float32, torch.float64)).eval()
    mask_(model, g)
    dtype = next(model.parameters()).dtype
    return model, torch.randn(3, *shape, generator=g, dtype=torch.float64).to(dtype)


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@cache
def compacted(family: str, seed: int) -> tuple[nn.Module, Tensor, nn.Module]:
    model, x = network(family, seed)
    return model, x, compact(model, x)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, *FIXED])
def test_same_function_never_larger_and_compacting_twice_changes_nothing(family):
    removed, n_masks = 0, N_MASKS if family in FAMILIES else N_MASKS // 2
    for seed in range(n_masks):
        model, x, small = compacted(family, seed)
        assert verify(small, model, x) == small.compaction.max_difference
        assert small.compaction.parameters == (n_parameters(model), n_parameters(small))
        assert n_parameters(small) <= n_parameters(model)
        removed += n_parameters(small) < n_parameters(model)
        twice = compact(small, x)
        assert n_parameters(twice) == n_parameters(small)
        verify(twice, small, x)
    assert removed > n_masks / 2


@pytest.mark.parametrize("family", [*FAMILIES, *FIXED])
def test_result_is_an_ordinary_module(family):
    _, x, small = compacted(family, 1)
    small = copy.deepcopy(small)
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        torch.testing.assert_close(other(x), small(x), rtol=0, atol=0)
        assert other.compaction == small.compaction
    assert {p.dtype for p in small.to(torch.float64).parameters()} == {torch.float64}
    small.train()
    small(x.double()).square().sum().backward()
    assert all(p.requires_grad for p in small.parameters())


@pytest.mark.parametrize("family", [*FAMILIES, *FIXED])
def test_same_network_same_result(family):
    model, x = network(family, 2)
    one, two = compact(model, x), compact(model, x)
    assert one.compaction == two.compaction
    assert one.code == two.code
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)
