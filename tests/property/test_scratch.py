"""Hand-written gradients of whole networks against autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesieve.scratch import (
    L1,
    L2,
    CrossEntropy,
    FeedForwardNet,
    Gaussian,
    Linear,
    ReLU,
    Sigmoid,
    Softmax,
    SquaredError,
    Tanh,
    classification_report,
)

ACTIVATIONS = {
    "sigmoid": (Sigmoid(), torch.sigmoid),
    "tanh": (Tanh(), torch.tanh),
    "relu": (ReLU(), torch.relu),
    "linear": (Linear(), lambda z: z),
    "softmax": (Softmax(), lambda z: z.softmax(1)),
}
PENALTIES = {"none": None, "l1": L1(0.03), "l2": L2(0.03)}
OUTPUTS = [("cross-entropy", "softmax"), *(("squared", name) for name in ACTIVATIONS)]
SHAPES = st.tuples(
    st.integers(1, 5),  # rows
    st.integers(1, 4),  # inputs
    st.lists(st.integers(1, 4), max_size=3),  # hidden units
    st.integers(1, 4),  # outputs
    st.integers(0, 1000),  # seed
)


def problem(shape, hidden, loss, output, penalty):
    """A float64 net of unit-sized weights, inputs and targets."""
    rows, inputs, units, outputs, seed = shape
    rng = np.random.default_rng(seed)
    kind = CrossEntropy if loss == "cross-entropy" else SquaredError
    net = FeedForwardNet(
        inputs, units, outputs,
        hidden=ACTIVATIONS[hidden][0], output=ACTIVATIONS[output][0],
        loss=kind(PENALTIES[penalty]), initialiser=Gaussian(1.0), dtype="float64", seed=seed,
    )  # fmt: skip
    return net, rng.normal(size=(rows, inputs)), rng.dirichlet(np.ones(outputs), size=rows)


def by_autograd(net, x, y, hidden, loss, output, penalty):
    weights = [torch.tensor(tensor, requires_grad=True) for tensor in net.weights]
    biases = [torch.tensor(tensor, requires_grad=True) for tensor in net.biases]
    a, target = torch.tensor(x), torch.tensor(y)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        a = a @ weight + bias
        if layer < len(weights) - 1:
            a = ACTIVATIONS[hidden][1](a)
    if loss == "cross-entropy":
        value = torch.nn.functional.cross_entropy(a, target)
    else:
        value = torch.nn.functional.mse_loss(ACTIVATIONS[output][1](a), target)
    if penalty == "l1":
        value = value + 0.03 * sum(weight.abs().sum() for weight in weights)
    elif penalty == "l2":
        value = value + 0.03 / 2 * sum(weight.square().sum() for weight in weights)
    value.backward()
    return value.item(), np.concatenate(
        [tensor.grad.numpy().ravel() for tensor in (*weights, *biases)]
    )


@pytest.mark.parametrize("hidden", ACTIVATIONS)
@pytest.mark.parametrize(("loss", "output"), OUTPUTS)
@pytest.mark.parametrize("penalty", PENALTIES)
@settings(max_examples=8)
@given(shape=SHAPES)
def test_gradients_are_those_of_autograd(hidden, loss, output, penalty, shape):
    net, x, y = problem(shape, hidden, loss, output, penalty)
    value, gradient = net.value_and_grad(x, y)
    expected, expected_gradient = by_autograd(net, x, y, hidden, loss, output, penalty)
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-10)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10, atol=1e-10)


@given(SHAPES)
def test_softmax_rows_are_distributions_and_its_jacobian_sums_to_zero(shape):
    rows, _, _, outputs, seed = shape
    z = 30 * np.random.default_rng(seed).normal(size=(rows, outputs))
    a = Softmax()(z)
    np.testing.assert_allclose(a.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(Softmax().backward(a, np.ones_like(a)), 0, atol=1e-12)


@given(SHAPES)
def test_a_mean_over_batches_of_equal_size_is_the_gradient_of_all(shape):
    rows, *_ = shape
    net, x, y = problem(shape, "tanh", "cross-entropy", "softmax", "l2")
    twice = np.concatenate([x, x[::-1]]), np.concatenate([y, y[::-1]])
    _, whole = net.value_and_grad(*twice)
    halves = [net.value_and_grad(twice[0][part], twice[1][part])[1]
              for part in (slice(0, rows), slice(rows, None))]  # fmt: skip
    np.testing.assert_allclose(whole, sum(halves) / 2, rtol=1e-10, atol=1e-13)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_report_averages_lie_between_the_classes(pairs):
    labels, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    report = classification_report(labels, predicted, 4)
    f1 = [scores.f1 for scores in report.classes]
    assert sum(scores.support for scores in report.classes) == len(pairs)
    for average in (report.macro.f1, report.weighted.f1):
        assert min(f1) - 1e-12 <= average <= max(f1) + 1e-12
    assert report.weighted.recall == pytest.approx(report.accuracy)
