"""Adam against torch.optim, AdaBelief against a trajectory worked out by hand."""

import pytest
import torch

from bayesieve.engines.optimisers import Moments, adabelief_, adam_, pace_of
from problems import normal


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_path_equals_torch_adam(dtype):
    parameter = normal(7, seed=0, dtype=dtype)
    theirs = parameter.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.03)
    moments = Moments.zeros_like(parameter)
    for step in range(1, 51):
        grad = normal(7, seed=step, dtype=dtype)
        count = torch.tensor(float(step), dtype=dtype)
        pace = pace_of(torch.tensor(0.03, dtype=dtype), count)
        adam_(parameter, grad, moments, pace)
        theirs.grad = grad
        optimizer.step()
    tolerance = 1e-12 if dtype == torch.float64 else 3e-6
    torch.testing.assert_close(parameter, theirs.detach(), rtol=0, atol=tolerance)


def test_the_first_step_has_the_length_of_the_learning_rate():
    parameter = torch.zeros(2, 3)
    moments = Moments.zeros_like(parameter)
    grad = torch.tensor([[1e-4, -5.0, 3.0], [2.0, 1.0, -1.0]])
    lr = torch.tensor([[0.1], [0.2]])
    adam_(parameter, grad, moments, pace_of(lr, torch.tensor(1.0)))
    torch.testing.assert_close(parameter, -lr * grad.sign(), rtol=2e-4, atol=0)


def path(grads, lr=0.1, scale=1.0):
    parameter = torch.zeros_like(grads[0])
    moments = Moments.zeros_like(parameter)
    points = []
    for step, grad in enumerate(grads, start=1):
        count = torch.tensor(float(step), dtype=parameter.dtype)
        pace = pace_of(torch.tensor(lr, dtype=parameter.dtype), count)
        adabelief_(parameter, scale * grad, moments, pace)
        points.append(parameter.clone())
    return torch.stack(points)


def test_three_steps_by_hand():
    # g = 1, 2, -1:
    # m = 0.1, 0.29, 0.161;  g - m = 0.9, 1.71, -1.161
    # s = 0.00081, 0.00373329, 0.00507747771;  corrections 0.1, 0.19, 0.271 and
    # 0.001, 0.001999, 0.002997001
    steps = [
        (0.1 / 0.1) / (0.00081 / 0.001) ** 0.5,
        (0.29 / 0.19) / (0.00373329 / 0.001999) ** 0.5,
        (0.161 / 0.271) / (0.00507747771 / 0.002997001) ** 0.5,
    ]
    expected = [-0.1 * sum(steps[:n]) for n in (1, 2, 3)]
    grads = [torch.tensor(g, dtype=torch.float64) for g in (1.0, 2.0, -1.0)]
    assert path(grads).tolist() == pytest.approx(expected, abs=1e-9)


def test_the_small_number_counts_beside_gradients_as_small():
    # g = 1e-8: m = 1e-9, g - m = 9e-9, s = 0.001 · 81e-18 + 1e-16; then m = 1.9e-9, g - m = 8.1e-9,
    # s = 0.999 · s + 0.001 · 65.61e-18 + 1e-16
    first = 81e-21 + 1e-16
    second = 0.999 * first + 65.61e-21 + 1e-16
    steps = [
        (1e-9 / 0.1) / ((first / 0.001) ** 0.5 + 1e-16),
        (1.9e-9 / 0.19) / ((second / 0.001999) ** 0.5 + 1e-16),
    ]
    grads = [torch.tensor(1e-8, dtype=torch.float64)] * 2
    expected = [-0.1 * steps[0], -0.1 * sum(steps)]
    assert path(grads).tolist() == pytest.approx(expected, rel=1e-6)
    still = path([torch.zeros((), dtype=torch.float64)])
    assert still.tolist() == [0.0]


@pytest.mark.parametrize("scale", [1 / 60_000, 1e-3, 50.0])
def test_the_unit_of_the_loss_does_not_matter(scale):
    grads = list(normal(20, 5, seed=0))
    torch.testing.assert_close(path(grads, scale=scale), path(grads), rtol=2e-3, atol=1e-4)


def test_what_is_not_trained_stays():
    parameter = torch.zeros(2, dtype=torch.float64)
    moments = Moments.zeros_like(parameter)
    pace = pace_of(torch.tensor(0.1).double(), torch.tensor(1.0).double())
    trained = torch.tensor([True, False])
    adabelief_(parameter, torch.ones(2).double(), moments, pace, trained)
    assert parameter.tolist() == pytest.approx([-0.1 / 0.9, 0.0], abs=1e-8)
