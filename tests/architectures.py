"""Tiny forms of the architectures people use, each with an example input: one table."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE, TOKENS = (2, 3, 16, 16), (2, 7)


def conv(a: int, b: int, k: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(a, b, k, stride, k // 2, groups=groups, bias=False)


def pooled(width: int, *body: nn.Module) -> nn.Sequential:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))


# ---------------------------------------------------------------------------------- convolutions


class Padded(nn.Module):
    """A plain chain of one-dimensional convolutions with `F.pad` between, as CREPE has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(1, 8, 8, 2), nn.BatchNorm1d(8)
        self.conv2, self.norm2 = nn.Conv1d(8, 6, 4), nn.BatchNorm1d(6)
        self.out = nn.Linear(6 * 7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool1d(self.norm1(F.relu(self.conv1(F.pad(x, (3, 3))))), 2)
        x = F.max_pool1d(self.norm2(F.relu(self.conv2(F.pad(x, (1, 2))))), 2)
        return self.out(x.transpose(1, 2).reshape(x.shape[0], -1))


class TwoReaders(nn.Module):
    """One layer that two others read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.left, self.right, self.out = nn.Linear(8, 6), nn.Linear(8, 4), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.out(torch.cat([F.relu(self.left(x)), torch.tanh(self.right(x))], 1))


class Basic(nn.Module):
    """The basic block of ResNet."""

    def __init__(self, a: int, b: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(a, b, 3, stride), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = conv(b, b), nn.BatchNorm2d(b)
        self.relu = nn.ReLU(inplace=True)
        short = nn.Sequential(conv(a, b, 1, stride), nn.BatchNorm2d(b))
        self.downsample = None if (a, stride) == (b, 1) else short

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """The bottleneck block of ResNet, or with groups of ResNeXt."""

    def __init__(self, a: int, b: int, inner: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(a, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, groups=groups), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, b, 1), nn.BatchNorm2d(b)
        self.short = nn.Identity() if a == b else nn.Sequential(conv(a, b, 1), nn.BatchNorm2d(b))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.short(x))


def stem(width: int) -> nn.Sequential:
    return nn.Sequential(conv(3, width), nn.BatchNorm2d(width), nn.ReLU())


def resnet18() -> nn.Module:
    blocks = [Basic(8, 8), Basic(8, 8), Basic(8, 12, 2), Basic(12, 12)]
    return pooled(12, stem(8), nn.MaxPool2d(3, 2, 1), *blocks)


def resnet50() -> nn.Module:
    return pooled(16, stem(8), Bottleneck(8, 16, 6), Bottleneck(16, 16, 6))


def resnext(groups: int = 4, inner: int = 8) -> nn.Module:
    return pooled(16, stem(8), Bottleneck(8, 16, inner, groups), Bottleneck(16, 16, inner, groups))


class SqueezeExcite(nn.Module):
    """Channels scaled by what a small network says of their means."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * F.hardsigmoid(scale)


class Inverted(nn.Module):
    """The inverted residual of MobileNet and EfficientNet, with a depthwise convolution."""

    def __init__(self, a: int, b: int, inner: int, act: nn.Module, stride: int = 1) -> None:
        super().__init__()
        self.expand = nn.Sequential(conv(a, inner, 1), nn.BatchNorm2d(inner), act)
        depth = conv(inner, inner, 3, stride, groups=inner)
        self.depth = nn.Sequential(depth, nn.BatchNorm2d(inner), act)
        self.excite = SqueezeExcite(inner, 4)
        self.project = nn.Sequential(conv(inner, b, 1), nn.BatchNorm2d(b))
        self.residual = (a, stride) == (b, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.excite(self.depth(self.expand(x))))
        return x + out if self.residual else out


def mobilenet(act: nn.Module) -> nn.Module:
    blocks = [Inverted(8, 8, 12, act), Inverted(8, 6, 16, act, 2), Inverted(6, 6, 12, act)]
    return pooled(10, stem(8), *blocks, conv(6, 10, 1), nn.BatchNorm2d(10), act)


class DenseLayer(nn.Module):
    """Adds channels to those it reads."""

    def __init__(self, a: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(a), conv(a, 6, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(6), conv(6, growth)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(out)))], 1)


def densenet() -> nn.Module:
    transition = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), conv(16, 8, 1), nn.AvgPool2d(2))
    first, second = [DenseLayer(8, 4), DenseLayer(12, 4)], [DenseLayer(8, 4), DenseLayer(12, 4)]
    return pooled(16, stem(8), *first, transition, *second, nn.BatchNorm2d(16), nn.ReLU())


class RepVGG(nn.Module):
    """Three branches that are summed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.big = nn.Sequential(conv(width, width), nn.BatchNorm2d(width))
        self.small = nn.Sequential(conv(width, width, 1), nn.BatchNorm2d(width))
        self.same = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.big(x) + self.small(x) + self.same(x))


class Ghost(nn.Module):
    """Half the channels by a convolution, half by a cheap one from these."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.primary = nn.Sequential(conv(a, b // 2, 1), nn.BatchNorm2d(b // 2), nn.ReLU())
        cheap = conv(b // 2, b // 2, groups=b // 2)
        self.cheap = nn.Sequential(cheap, nn.BatchNorm2d(b // 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary(x)
        return torch.cat([x, self.cheap(x)], 1)


class Shuffle(nn.Module):
    """A unit of ShuffleNet: half the channels pass, then both halves are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            conv(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(),
            conv(half, half, groups=half), nn.BatchNorm2d(half),
            conv(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        x = torch.cat((left, self.branch(right)), dim=1)
        n, c, h, w = x.size()
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)


class NormAct(nn.BatchNorm2d):
    """Batch normalisation, called by function, and a layer inside it, as timm's BatchNormAct2d."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias,
            self.training, self.momentum, self.eps,
        )  # fmt: skip
        return self.act(x)


class UNet(nn.Module):
    """Down and up again, with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = stem(6), nn.Sequential(conv(6, 8), nn.BatchNorm2d(8), nn.ReLU())
        self.up, self.join = nn.ConvTranspose2d(8, 6, 2, 2), conv(12, 6)
        self.out = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        up = self.up(self.down2(F.max_pool2d(first, 2)))
        return self.out(F.relu(self.join(torch.cat([first, up], 1)))).mean((2, 3))


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, layer norm over channels, two linear layers, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.depth(x).permute(0, 2, 3, 1))
        out = self.gamma * self.narrow(F.gelu(self.wide(out)))
        return x + out.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Two blocks after a stem of patches."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        self.blocks = nn.Sequential(ConvNeXtBlock(width), ConvNeXtBlock(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(self.norm(self.blocks(x).mean((-2, -1))))


# ------------------------------------------------------------------------------------- sequences


class MixerBlock(nn.Module):
    """A network over tokens and one over channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 6), nn.GELU(), nn.Linear(6, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Two blocks over 16 patches."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(MixerBlock(16, width), MixerBlock(16, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class FusedAttention(nn.Module):
    """Attention by hand: one layer makes query, key and value."""

    def __init__(self, width: int, heads: int, causal: bool, fused: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.fused = heads, causal, fused
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(1, 1, 32, 32)))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
            if self.causal:
                scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            x = scores.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(b, t, c))


class PreNorm(nn.Module):
    """The block of ViT and GPT."""

    def __init__(self, width: int, heads: int, causal: bool, fused: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = FusedAttention(width, heads, causal, fused)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """Patches, a class token, positions, two blocks."""

    def __init__(self, width: int = 12, heads: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*(PreNorm(width, heads, False, True) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class GPT(nn.Module):
    """Tokens and positions, two causal blocks, logits of every next token."""

    def __init__(self, width: int = 12, heads: int = 4, tied: bool = False) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(11, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList([PreNorm(width, heads, True, False) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 11, bias=False)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.tok(x) + self.pos(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PostNorm(nn.Module):
    """The layer of BERT: three projections, normalisation after each sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.norm1, self.norm2 = nn.Linear(width, width), *_norms(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size()[:-1] + (self.heads, -1)).permute(0, 2, 1, 3)  # noqa: RUF005

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(3)
        mixed = torch.matmul(nn.functional.softmax(scores, dim=-1), v).permute(0, 2, 1, 3)
        mixed = mixed.contiguous()
        mixed = mixed.view(mixed.size()[:-2] + (-1,))  # noqa: RUF005
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.narrow(F.gelu(self.wide(x))))


def _norms(width: int) -> tuple[nn.LayerNorm, nn.LayerNorm]:
    return nn.LayerNorm(width), nn.LayerNorm(width)


class BERT(nn.Module):
    """Tokens and positions, two layers, the first token decides."""

    def __init__(self, width: int = 12, heads: int = 4) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(11, width), nn.Parameter(torch.randn(7, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList([PostNorm(width, heads) for _ in range(2)])
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.tok(x) + self.pos)
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, by hand as Llama has it."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)).to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class GroupedQuery(nn.Module):
    """Attention with rotary positions in which several heads share key and value."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        angle = torch.outer(torch.arange(32.0), 0.1 ** torch.arange(self.dim // 2))
        self.register_buffer("cos", torch.cat([angle, angle], 1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], 1).sin())

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        cos, sin = self.cos[:t], self.sin[:t]
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = self.repeated(k), self.repeated(v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).contiguous().view(b, t, -1))

    def repeated(self, x: Tensor) -> Tensor:
        b, h, t, d = x.shape
        n = self.heads // self.kv_heads
        return x[:, :, None].expand(b, h, n, t, d).reshape(b, h * n, t, d)


class LlamaBlock(nn.Module):
    """RMS norm, grouped-query attention, gated linear units."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.attn = GroupedQuery(width, 8, 4)
        self.gate_proj = nn.Linear(width, 20, bias=False)
        self.up_proj = nn.Linear(width, 20, bias=False)
        self.down_proj = nn.Linear(20, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        h = self.norm2(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(nn.Module):
    """Tokens, two blocks, logits of every next token."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tok, self.norm = nn.Embedding(11, width), RMSNorm(width)
        self.layers = nn.ModuleList([LlamaBlock(width) for _ in range(2)])
        self.head = nn.Linear(width, 11, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tok(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Branching(nn.Module):
    """Python branches on sizes, which `torch.fx` cannot trace and `torch.export` can."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(5, width), RMSNorm(width)
        self.wide, self.narrow = nn.Linear(width, 12), nn.Linear(12, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        if x.shape[-1] > 4:
            x = x + self.narrow(F.gelu(self.wide(self.norm(x))))
        x += 1  # in place: what follows reads the sum
        return self.head(x)


class Encoder(nn.Module):
    """Torch's own transformer encoder."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.into = nn.Linear(5, width)
        layer = nn.TransformerEncoderLayer(width, 4, 20, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.into(x)).mean(1))


class WindowAttention(nn.Module):
    """Attention inside windows of 4 x 4, shifted or not, with a bias for each pair of places."""

    def __init__(self, width: int, heads: int, shift: int) -> None:
        super().__init__()
        self.heads, self.shift, self.scale = heads, shift, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(49, heads))
        self.drop = 0.1
        at = torch.cartesian_prod(torch.arange(4), torch.arange(4))
        apart = at[:, None] - at[None] + 3
        self.register_buffer("pairs", apart[..., 0] * 7 + apart[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        x = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(x).reshape(-1, 16, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q * torch.tensor(self.scale) @ k.transpose(-2, -1)
        bias = self.bias[self.pairs.view(-1)].view(16, 16, -1).permute(2, 0, 1)
        weights = F.dropout((scores + bias[None]).softmax(-1), self.drop, training=self.training)
        x = self.proj((weights @ v).transpose(1, 2).reshape(-1, 16, c))
        x = x.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


class SwinBlock(nn.Module):
    """Windows, then a hidden layer."""

    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = WindowAttention(width, 4, shift)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Swin(nn.Module):
    """Two blocks on patches, four neighbours merged, one block."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 2, 2)
        self.first = nn.Sequential(SwinBlock(width, 0), SwinBlock(width, 2))
        self.norm, self.merge = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width)
        self.last, self.head = SwinBlock(2 * width, 0), nn.Linear(2 * width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.patches(x).permute(0, 2, 3, 1))
        b, h, w, c = x.shape
        x = x.reshape(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.head(self.last(self.merge(self.norm(x))).mean((1, 2)))


def lenet() -> nn.Module:
    """A plain sequence."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.Conv2d(6, 8, 5, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 12), nn.ReLU(), nn.Linear(12, 3),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Architecture:
    """A network, an input, and the fraction of parameters that half the units may leave."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = IMAGE
    left: float = 0.4

    def build(self) -> tuple[nn.Module, Tensor]:
        """The network with numbers that matter everywhere, in eval mode, and an example."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.make()
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # scales about 1, shifts about 0
                    offset = 0.0 if name.endswith("bias") else 1.0
                    nn.init.normal_(parameter, offset, 0.2)
            for norm in model.modules():
                if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                    nn.init.normal_(norm.running_mean, 0.0, 0.3)
                    nn.init.uniform_(norm.running_var, 0.5, 2.0)
            tokens = len(self.shape) == 2 and self.shape == TOKENS
            x = torch.randint(0, 11, self.shape) if tokens else torch.randn(self.shape)
        return model.eval(), x


ARCHITECTURES: dict[str, Architecture] = {
    "chain with F.pad": Architecture(Padded, (2, 1, 60)),
    "two readers": Architecture(TwoReaders, (2, 5), 0.6),
    "LeNet": Architecture(lenet),
    "ResNet-18": Architecture(resnet18),
    "ResNet-50": Architecture(resnet50),
    "ResNeXt": Architecture(resnext),
    "ResNeXt, few groups": Architecture(lambda: resnext(2)),
    "MobileNetV3": Architecture(lambda: mobilenet(nn.Hardswish()), left=0.5),
    "EfficientNet": Architecture(lambda: mobilenet(nn.SiLU()), left=0.5),
    "DenseNet": Architecture(densenet),
    "RepVGG": Architecture(lambda: pooled(8, stem(8), RepVGG(8), RepVGG(8))),
    "GhostNet": Architecture(lambda: pooled(12, stem(8), Ghost(8, 16), Ghost(16, 12)), left=0.5),
    "ShuffleNet": Architecture(lambda: pooled(12, stem(12), Shuffle(12), Shuffle(12)), left=0.55),
    "norm and activation in one": Architecture(
        lambda: pooled(6, conv(3, 8), NormAct(8), conv(8, 6), NormAct(6))
    ),
    "group norm": Architecture(
        lambda: pooled(8, conv(3, 8), nn.GroupNorm(2, 8), nn.ReLU(), conv(8, 8), nn.GroupNorm(4, 8))
    ),
    "U-Net": Architecture(UNet),
    "ConvNeXt": Architecture(ConvNeXt),
    "MLP-Mixer": Architecture(Mixer, left=0.8),
    "ViT": Architecture(ViT),
    "Swin": Architecture(Swin),
    "GPT": Architecture(GPT, TOKENS),
    "GPT, tied embedding": Architecture(lambda: GPT(tied=True), TOKENS),
    "BERT": Architecture(BERT, TOKENS),
    "Llama": Architecture(Llama, TOKENS),
    "branches on sizes": Architecture(Branching, (2, 5), 0.45),
    "nn.TransformerEncoder": Architecture(Encoder, (2, 7, 5)),
}  # fmt: skip
