"""Activations, losses, penalties, initialisers and optimisers, each against another route."""

import numpy as np
import pytest
import torch

from bayesieve.scratch import (
    L1,
    L2,
    Adam,
    CrossEntropy,
    Gaussian,
    Glorot,
    GradientDescent,
    Linear,
    Random,
    ReLU,
    Sigmoid,
    Softmax,
    SquaredError,
    Tanh,
)

ACTIVATIONS = {
    Sigmoid(): torch.sigmoid,
    Tanh(): torch.tanh,
    ReLU(): torch.relu,
    Linear(): lambda z: z,
    Softmax(): lambda z: torch.softmax(z, dim=1),
}
RNG = np.random.default_rng


def normal(*shape, seed=0):
    return RNG(seed).normal(size=shape)


def probabilities(n, k, seed=0):
    return RNG(seed).dirichlet(np.ones(k), size=n)


def as_tensor(array):
    return torch.tensor(array, requires_grad=True)


@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS.items(), ids=lambda v: str(v)[:10])
def test_activations_are_those_of_torch(ours, theirs):
    z, upstream = 3 * normal(7, 5), normal(7, 5, seed=1)
    leaf = as_tensor(z)
    a = theirs(leaf)
    (a * torch.tensor(upstream)).sum().backward()
    np.testing.assert_allclose(ours(z), a.detach(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(ours.backward(ours(z), upstream), leaf.grad, rtol=0, atol=1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_keep_the_dtype_and_leave_their_arguments_alone(activation, dtype):
    z, upstream = normal(4, 3).astype(dtype), normal(4, 3, seed=1).astype(dtype)
    before = z.copy(), upstream.copy()
    a = activation(z)
    assert a.dtype == activation.backward(a, upstream).dtype == dtype
    np.testing.assert_array_equal((z, upstream), before)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_activations_stay_finite(activation):
    a = activation(np.array([[-1e4, 0.0, 1e4]]))
    assert np.isfinite(a).all()
    assert np.isfinite(activation.backward(a, np.ones_like(a))).all()


def test_relu_has_slope_zero_at_zero():
    assert ReLU().backward(np.zeros((1, 1)), np.ones((1, 1))) == 0


def test_losses_are_those_of_torch():
    z, y = normal(9, 4), probabilities(9, 4)
    leaf = as_tensor(z)
    torch.nn.functional.cross_entropy(leaf, torch.tensor(y)).backward()
    p = Softmax()(z)
    expected = torch.nn.functional.cross_entropy(torch.tensor(z), torch.tensor(y))
    assert CrossEntropy()(p, y) == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(CrossEntropy().gradient_before_softmax(p, y), leaf.grad, atol=1e-15)
    leaf = as_tensor(z)
    squared = torch.nn.functional.mse_loss(leaf, torch.tensor(y))
    squared.backward()
    assert SquaredError()(z, y) == pytest.approx(squared.item(), abs=1e-12)
    np.testing.assert_allclose(SquaredError().gradient(z, y), leaf.grad, atol=1e-15)


@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS.items(), ids=lambda v: str(v)[:10])
def test_cross_entropy_behind_every_activation(ours, theirs):
    """Outputs are positive here, so that the logarithm is defined for each of them."""
    z, y = np.abs(normal(6, 4)) + 0.1, probabilities(6, 4)
    leaf = as_tensor(z)
    (-(torch.tensor(y) * theirs(leaf).log()).sum() / 6).backward()
    a = ours(z)
    np.testing.assert_allclose(ours.backward(a, CrossEntropy().gradient(a, y)), leaf.grad,
                               rtol=1e-12, atol=1e-14)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cross_entropy_of_an_impossible_class_is_finite(dtype):
    p, y = np.array([[1, 0]], dtype), np.array([[0, 1]], dtype)
    least = {np.float32: 87.3365, np.float64: 708.3964}[dtype]
    assert CrossEntropy()(p, y) == pytest.approx(least, abs=1e-4)
    assert np.isfinite(CrossEntropy().gradient(p, y)).all()


def test_glorot_has_the_width_and_variance_of_its_formula():
    weight, bias = np.empty((300, 200)), np.empty(200)
    Glorot().fill(weight, bias, RNG(0))
    assert np.abs(weight).max() <= np.sqrt(6 / 500)
    # the variance of n uniform draws has relative standard error sqrt(0.8 / n)
    assert weight.var() == pytest.approx(2 / 500, rel=4 * np.sqrt(0.8 / weight.size))
    assert not bias.any()


@pytest.mark.parametrize(
    ("initialiser", "std"), [(Random(0.3), 0.3 / np.sqrt(3)), (Gaussian(0.2), 0.2)]
)
def test_random_starts_draw_weights_and_biases(initialiser, std):
    weight, bias = np.empty((300, 200)), np.empty(5000)
    initialiser.fill(weight, bias, RNG(0))
    for drawn in (weight, bias):
        assert drawn.std() == pytest.approx(std, rel=4 * np.sqrt(0.5 / drawn.size))
        assert drawn.mean() == pytest.approx(0, abs=4 * std / np.sqrt(drawn.size))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [7, 40_000])  # one block of Adam, and three
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(GradientDescent(0.1), torch.optim.SGD), (Adam(0.1), torch.optim.Adam)],
    ids=repr,
)
def test_optimisers_are_those_of_torch(ours, theirs, size, dtype):
    params = normal(size).astype(dtype)
    leaf = torch.tensor(params, requires_grad=True)
    rule, state = theirs([leaf], lr=0.1), ours.init(params)
    for step in range(20):
        gradient = normal(size, seed=step).astype(dtype)
        ours.step(params, gradient, state, ours.lr)
        leaf.grad = torch.tensor(gradient)
        rule.step()
    tolerance = 1e-13 if dtype == np.float64 else 2e-5
    np.testing.assert_allclose(params, leaf.detach(), rtol=tolerance, atol=tolerance)


def test_reprs_name_the_settings():
    assert repr(CrossEntropy(L2(1e-4))) == "CrossEntropy(penalty=L2(strength=0.0001))"
    assert repr(ReLU()) == "ReLU()"
    assert repr(Gaussian()) == "Gaussian(std=0.01)"
    assert repr(Adam(0.01)).startswith("Adam(lr=0.01, mean_decay=0.9")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L2(-1), "L2: strength must be >= 0, got -1"),
        (lambda: L1(float("nan")), "L1: strength must be >= 0, got nan"),
        (lambda: GradientDescent(0), "GradientDescent: lr must be > 0, got 0"),
        (lambda: Adam(mean_decay=1), "Adam: mean_decay must be strictly between 0 and 1, got 1"),
        (lambda: Random(0), "Random: half_width must be > 0, got 0"),
        (lambda: Gaussian(-1), "Gaussian: std must be > 0, got -1"),
    ],
)
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
