"""Compaction on random graphs and random masks: same function, never larger, once is enough."""

import copy
import pickle
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Generator, Tensor, nn

from bayesieve.sieve.compact import compact
from bayesieve.sieve.verify import verify

N_MASKS = 14  # for each of the seven families: 98 in all


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


class Residual(nn.Module):
    """Two blocks, the second with a projection on its shortcut."""

    def __init__(self, g: Generator) -> None:
        super().__init__()
        n, m, bias = pick(g, 2, 4), pick(g, 3, 5), pick(g, True, False)
        self.stem = nn.Conv2d(2, n, 3, padding=pick(g, 0, 1))
        self.one = nn.Conv2d(n, m, 3, padding=1, bias=bias)
        self.norm_one = nn.BatchNorm2d(m)
        self.two = nn.Conv2d(m, n, 1)
        self.three = nn.Conv2d(n, m, 1, bias=bias)
        self.norm = nn.BatchNorm2d(m)
        self.shortcut = nn.Conv2d(n, m, 1, bias=False)
        self.act = activation(g)
        self.head = nn.Linear(m, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = self.two(self.act(self.norm_one(self.one(x)))) + x
        out = self.norm(self.three(x))
        out += self.shortcut(x)
        return self.head(self.act(out).mean((2, 3)))


class Joined(nn.Module):
    """A dense block: concatenation along channels, twice, and of examples' halves."""

    def __init__(self, g: Generator) -> None:
        super().__init__()
        n, m = pick(g, 2, 3), pick(g, 1, 4)
        self.one = nn.Conv1d(2, n, 3, padding=1)
        self.two = nn.Conv1d(2 + n, m, 3, padding=pick(g, 0, 1))
        self.three = nn.Conv1d(2 + n, m, 1, bias=False)
        self.act = activation(g)
        self.head = nn.Linear(m, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([x, self.act(self.one(x))], 1)
        h = torch.cat((torch.tanh(self.two(h)), self.act(self.three(h))), dim=-1)
        return self.head(h.amax(2) * 0.5 - 1)


class Separable(nn.Module):
    """Depthwise and grouped convolutions, a gate, and a view."""

    def __init__(self, g: Generator) -> None:
        super().__init__()
        n = pick(g, 2, 4)
        self.first = nn.Conv2d(2, n, 1)
        self.depthwise = nn.Conv2d(n, n * pick(g, 1, 2), 3, padding=pick(g, 0, 1), groups=n)
        m = self.depthwise.out_channels
        self.pointwise = nn.Conv2d(m, 4, 1, bias=pick(g, True, False))
        self.grouped = nn.Conv2d(4, 6, 2, groups=2)
        self.gate = nn.Linear(6, 6)
        self.act = activation(g)
        size = 4 if self.depthwise.padding == (1, 1) else 2
        self.head = nn.Linear(6 * size * size, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.pointwise(self.act(self.depthwise(torch.relu(self.first(x))))))
        x = self.grouped(x)
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.head(x.view(x.size(0), -1))


class Transformer(nn.Module):
    """Patches, a class token, positions, two blocks of different make."""

    def __init__(self, g: Generator) -> None:
        super().__init__()
        d = pick(g, 4, 8)
        self.embed = nn.Conv1d(2, d, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, d))
        self.position = nn.Parameter(torch.randn(1, 4, d))
        self.norm = nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, 2, batch_first=True, bias=pick(g, True, False))
        self.feed = nn.Sequential(nn.Linear(d, 6), activation(g), nn.Linear(6, d))
        first = pick(g, True, False)
        self.block = nn.TransformerEncoderLayer(d, 4, 5, batch_first=True, norm_first=first)
        self.mix = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 4))
        self.head = nn.Linear(d, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        h = self.norm(x)
        x = x + self.attention(h, h, h)[0]
        x = x + self.feed(x)
        x = self.block(x)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x[:, 0])


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


FAMILIES = {
    "mlp": mlp,
    "conv": conv_net,
    "residual": lambda g: (Residual(g), (2, 5, 5)),
    "concat": lambda g: (Joined(g), (2, 6)),
    "depthwise": lambda g: (Separable(g), (2, 5, 5)),
    "attention": lambda g: (Transformer(g), (2, 6)),
    "any graph": lambda g: (AnyGraph(g), (2, 4, 4)),
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
    g = torch.Generator().manual_seed(seed)
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
@pytest.mark.parametrize("family", FAMILIES)
def test_same_function_never_larger_and_compacting_twice_changes_nothing(family):
    removed = 0
    for seed in range(N_MASKS):
        model, x, small = compacted(family, seed)
        assert verify(small, model, x) == small.compaction.max_difference
        assert small.compaction.parameters == (n_parameters(model), n_parameters(small))
        assert n_parameters(small) <= n_parameters(model)
        removed += n_parameters(small) < n_parameters(model)
        twice = compact(small, x)
        assert n_parameters(twice) == n_parameters(small)
        verify(twice, small, x)
    assert removed > N_MASKS / 2


@pytest.mark.parametrize("family", FAMILIES)
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


@pytest.mark.parametrize("family", FAMILIES)
def test_same_network_same_result(family):
    model, x = network(family, 2)
    one, two = compact(model, x), compact(model, x)
    assert one.compaction == two.compaction
    assert one.code == two.code
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)
