"""Convolutions in EM-TDAMP: the same messages as the linear layer they unroll to."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import SparseModel
from bayesieve.core.problem import Problem
from bayesieve.engines.tdamp import TDAMP
from bayesieve.engines.tdamp.channels import observe
from bayesieve.engines.tdamp.damp import Layer, Window, as_images, as_rows, batch_score
from bayesieve.engines.tdamp.state import GroupSparse
from bayesieve.errors import UnsupportedModelError
from bayesieve.sieve.compact import compact
from problems import normal, normal32, seeded

F64 = torch.float64
WINDOWS = [Window((3, 3), (1, 1), (1, 1), (1, 1)), Window((2, 3), (2, 1), (0, 1), (1, 2))]


def unrolled(weight, window, height, width):
    """The matrix that a convolution multiplies flat images with, (o * positions, c * h * w)."""
    size = weight.shape[1] * height * width
    images = torch.eye(size, dtype=weight.dtype).view(size, weight.shape[1], height, width)
    geometry = {"stride": window.stride, "padding": window.padding, "dilation": window.dilation}
    return conv2d(images, weight, **geometry).flatten(1).T


@pytest.mark.parametrize("window", WINDOWS)
def test_rows_times_weights_are_the_convolution(window):
    images, weight = normal(2, 4, 3, 6, 5, seed=1), normal(7, 3, *window.kernel, seed=2)
    expected = (images.flatten(2) @ unrolled(weight, window, 6, 5).T).unflatten(-1, (7, -1))
    found = as_images(window.rows(images) @ weight.flatten(1).T, window.size(6, 5))
    torch.testing.assert_close(found.flatten(-2), expected)
    assert torch.equal(as_images(as_rows(found), window.size(6, 5)), found)


@pytest.mark.parametrize("window", WINDOWS)
def test_summing_back_is_the_transpose_of_cutting(window):
    images = normal(2, 4, 3, 6, 5, seed=1)
    rows = window.rows(images)
    message = normal(*rows.shape, seed=2)
    whole = (images * window.sums(message, 6, 5)).sum()
    torch.testing.assert_close((rows * message).sum(), whole)


def scores_of(layers, shapes, x, y):
    """Scores of a network with fixed random moments, and those moments."""
    mean, var = {}, {}
    for i, (name, shape) in enumerate(shapes.items()):
        mean[name] = 0.4 * normal(1, *shape, seed=10 + i)
        var[name] = 0.05 * normal(1, *shape, seed=20 + i).square()
    seen = observe(Categorical(), y, torch.ones(1, 1, dtype=F64), (len(y), 3))
    return batch_score(layers, mean, var, x, seen), mean, var


def test_two_convolutions_send_what_their_unrolled_layers_send():
    """Scores of the tied entries of a dense layer add up to the score of the shared weight."""
    first, second = WINDOWS[0], Window((3, 2), (2, 2), (1, 0), (1, 1))
    x, y = normal(4, 2, 5, 4, seed=3), torch.tensor([0, 2, 1, 1])
    shapes = {"a": (3, 2, 3, 3), "a0": (3,), "b": (2, 3, 3, 2), "c": (3, 2 * 3 * 2), "c0": (3,)}
    layers = [Layer("a", "a0", first), Layer("b", None, second), Layer("c", "c0")]
    found, mean, var = scores_of(layers, shapes, x, y)
    plain = [Layer("a", "a0"), Layer("b", None), Layer("c", "c0")]
    sizes = {"a": (first, 5, 4), "b": (second, 5, 4)}
    dense = [{name: unrolled(values[name][0], *sizes[name])[None] for name in sizes}
             for values in (mean, var)]  # fmt: skip
    for layer, values in zip(dense, (mean, var), strict=True):
        layer["a0"] = values["a0"].repeat_interleave(20, 1)  # one bias at 20 positions
        layer |= {name: values[name] for name in ("c", "c0")}
    seen = observe(Categorical(), y, torch.ones(1, 1, dtype=F64), (4, 3))
    expected = batch_score(plain, *dense, x.flatten(1), seen)
    torch.testing.assert_close(found.output.mean, expected.output.mean)
    torch.testing.assert_close(found.output.var, expected.output.var)
    for name in ("c", "c0"):
        torch.testing.assert_close(found.score[name], expected.score[name])
    for name in ("a", "b"):
        numbers = torch.arange(1, mean[name].numel() + 1, dtype=F64).view_as(mean[name])[0]
        index = unrolled(numbers, *sizes[name]).round().long().flatten()
        total = torch.zeros(mean[name].numel() + 1, dtype=F64)
        total.index_add_(0, index, expected.score[name].flatten())
        torch.testing.assert_close(found.score[name].flatten(), total[1:])
    bias = expected.score["a0"].unflatten(1, (3, 20)).sum(2)
    torch.testing.assert_close(found.score["a0"], bias)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(16, 3),
        )  # fmt: skip


def stripes(n=90):
    """Images of 6 by 6 pixels with a horizontal, a vertical or a diagonal bar, in noise."""
    y = torch.arange(n) % 3
    places = torch.randint(6, (n,), generator=seeded(1))
    x = 0.3 * normal32(n, 1, 6, 6, seed=2)
    line = torch.arange(6)
    for i, (kind, place) in enumerate(zip(y, places, strict=True)):
        rows = (place.expand(6), line, (line + place) % 6)[kind]
        columns = (line, place.expand(6), line)[kind]
        x[i, 0, rows, columns] += 2
    return x - x.mean(0), y


@pytest.mark.parametrize("k", [1, 2])
def test_a_convolution_learns_and_loses_half_of_its_channels(k):
    x, y = stripes()
    problem = Problem(network(), Categorical(), (x, y))
    engine = TDAMP(keep=0.5, prune_passes=(6, 9))
    state = engine.init(problem, seeded(0), k)
    for step in range(45):
        part = slice(30 * (step % 3), 30 * (step % 3) + 30)
        engine.step(problem, state, Batch(x[part], y[part]))
    for member in range(k):
        posterior = engine.posterior(problem, state, member)
        named = problem.layout.unflatten(posterior.mean)
        first, second = ((named[f"{i}.weight"] != 0).flatten(1).any(1) for i in (0, 2))
        assert (first.sum(), second.sum()) == (3, 2)
        assert torch.equal((named["2.weight"] != 0).any((0, 2, 3)), first)
        assert torch.equal((named["5.weight"] != 0).any(0), second.repeat_interleave(4))
        outputs = posterior.network.outputs(posterior.mean[None], x, {})[0]
        assert (outputs.argmax(1) == y).double().mean() > 0.9
    small = compact(SparseModel(posterior, posterior.inclusion > 0.5), x[:1])
    assert dict(small.named_parameters())["0.weight"].shape == (3, 1, 3, 3)
    torch.testing.assert_close(small(x), outputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group", ["inputs", "weights"])
def test_channels_and_single_weights_may_be_groups(group):
    problem = Problem(network(), Categorical(), stripes())
    state = TDAMP(GroupSparse(group), keep=1.0).init(problem, seeded(0))
    weights = 6 * 9 + 4 * 6 * 9 + 3 * 16
    assert state.wiring.n_groups == {"inputs": 1, "weights": weights}[group]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()], r"put Flatten before it"),
        ([nn.Conv2d(1, 2, 3, padding="same"), nn.ReLU()], r"its padding given as numbers"),
        ([nn.Conv2d(1, 2, 3, padding_mode="circular", padding=1)], r"its padding given as numbers"),
        ([nn.ReLU(), nn.Conv2d(1, 2, 3)], r"'0' \(ReLU\) is out of place; supported is Conv2d"),
        ([nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3)], r"'1' \(Conv2d\) is out of place"),
        ([nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)], r"'1' \(MaxPool2d\) is not supported; supported"),
    ],
)
def test_other_networks_are_refused(layers, message):
    x, y = stripes()
    size = nn.Sequential(*layers)(x[:1]).numel()
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, 3))
    problem = Problem(model, Categorical(), (x, y))
    with pytest.raises(UnsupportedModelError, match=message):
        TDAMP(keep=1.0).init(problem, seeded(0))


def test_a_target_is_needed():
    problem = Problem(network(), Categorical(), stripes())
    with pytest.raises(ValueError, match=r"^TDAMP: without keep, .* give keep for a network with"):
        TDAMP().init(problem, seeded(0))
