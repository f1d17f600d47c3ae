"""NaN and infinity go through every delivered form of a network as they go through torch."""

import math

import pytest
import torch
from torch import nn

from bayesieve.deliver.c import export_c
from bayesieve.deliver.runtime.kernels import ACTIVATIONS, Affine, CompiledLayers
from bayesieve.uncertainty.familiarity import Familiarity
from compiled import needs_compiler, run_c
from problems import seeded
from reports import node

BAD = (math.nan, math.inf, -math.inf)


def with_faults(x):
    """A copy of x for each place in the first rows and each fault."""
    rows = [x.clone()]
    for i, bad in enumerate(BAD * 4):
        rows.append(x[i % len(x)][None].clone())
        rows[-1].view(-1)[5 * i % rows[-1].numel()] = bad
    rows.append(torch.full_like(x[:1], -math.inf))  # a window of these alone
    return torch.cat(rows)


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@needs_compiler
@pytest.mark.parametrize(
    "layers",
    [
        [nn.MaxPool2d(2), nn.ReLU()],
        [nn.MaxPool2d(3, stride=1, padding=1), nn.Sigmoid()],
        [nn.AvgPool2d(2), nn.Tanh()],
        [nn.SiLU()],
    ],
    ids=["max", "padded", "average", "swish"],
)
def test_c(tmp_path, layers):
    x = torch.randn(3, 2, 4, 4, generator=seeded())
    module = nn.Sequential(*layers)
    path = export_c(module, tmp_path / "net.h", x)
    inputs = with_faults(x)
    assert_same(run_c(path, inputs), module(inputs).flatten(1))


@needs_compiler
def test_familiarity_in_c(tmp_path):
    x = torch.randn(60, 3, generator=seeded())
    known = Familiarity.of(x)
    path = export_c(nn.Linear(3, 1), tmp_path / "net.h", x, familiarity=known)
    inputs = with_faults(x[:3])
    score = run_c(path, inputs, "y[0] = net_familiarity(x); fwrite(y, sizeof y[0], 1, stdout);")
    assert_same(score[:, 1], known.score(inputs))


TORCH = {
    "none": nn.Identity(), "ReLU": nn.ReLU(), "LeakyReLU": nn.LeakyReLU(0.1), "Tanh": nn.Tanh(),
    "Sigmoid": nn.Sigmoid(), "SiLU": nn.SiLU(),
    # torch's own, of oneDNN, says NaN at infinity for several numbers, and infinity for one.
    "GELU": lambda x: x * torch.special.ndtr(x),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("n", [1, 3, 17, 83])
def test_the_kernel_of_the_runtime(name, n):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    weight = torch.eye(4) * 2
    layer = Affine(scipy_sparse.csr_array(weight.numpy()), torch.zeros(4).numpy(), name, 0.1)
    x = with_faults(torch.randn(3, 4, generator=seeded())).repeat(6, 1)[:n]
    actual = torch.from_numpy(CompiledLayers([layer], 4)(x.numpy()))
    assert_same(actual, TORCH[name](2 * x))


def test_the_page():
    """ReLU, pooling, softmax and entropy in JavaScript; JSON writes NaN as null."""
    code = """
        const window = { kernel: [1, 2], stride: [1, 2], padding: [0, 0] };
        const pool = { kind: "max", source: [1, 1, 2], ...window };
        const image = Float64Array.from([NaN, 1]);
        return [
          ...Object.values(ACTIVATIONS).map((f) => f(NaN)),
          ...STEPS.pool(pool, image), ...STEPS.pool({ ...pool, kind: "mean", divisor: 2 }, image),
          ...probabilities([NaN, 1], "categorical"), ...probabilities([NaN], "bernoulli"),
          entropy([NaN, 0.5]),
        ].map(Number.isNaN);
    """
    assert all(node(code))
    assert node("return [entropy([1, 0]), ACTIVATIONS.ReLU(-1), ACTIVATIONS.ReLU(2)];") == [0, 0, 2]
