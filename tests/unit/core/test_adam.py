"""The flat Adam against torch.optim."""

import pytest
import torch

from bayesieve.core.adam import Moments, adam_, bias_corrected
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
        lengths = bias_corrected(torch.tensor(0.03, dtype=dtype), count)
        adam_(parameter, grad, moments.first, moments.second, *lengths)
        theirs.grad = grad
        optimizer.step()
    tolerance = 1e-12 if dtype == torch.float64 else 3e-6
    torch.testing.assert_close(parameter, theirs.detach(), rtol=0, atol=tolerance)


def test_the_first_step_has_the_length_of_the_learning_rate():
    parameter = torch.zeros(2, 3)
    moments = Moments.zeros_like(parameter)
    grad = torch.tensor([[1e-4, -5.0, 3.0], [2.0, 1.0, -1.0]])
    lr = torch.tensor([[0.1], [0.2]])
    adam_(parameter, grad, moments.first, moments.second, *bias_corrected(lr, torch.tensor(1.0)))
    torch.testing.assert_close(parameter, -lr * grad.sign(), rtol=2e-4, atol=0)
