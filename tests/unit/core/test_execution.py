"""Training in bfloat16: close to float32, and float32 wherever it shows."""

import pytest
import torch
from torch import Generator, nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem


def small_problem(precision):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 3),
    )  # fmt: skip
    x = torch.rand(8, 2, 4, 4, generator=Generator().manual_seed(0))
    return Problem(model, Categorical(), (x, torch.arange(8) % 3), precision=precision)


@pytest.mark.parametrize("k", [1, 2])
def test_gradients_agree_to_the_precision_of_bfloat16(k):
    results = []
    for precision in ("float32", "bf16"):
        problem = small_problem(precision)
        w = problem.starting_points(k, Generator().manual_seed(0), "he")
        value, grad = problem.value_and_grad(w, Batch(problem.x, problem.y))
        assert value.dtype == grad.dtype == torch.float32
        results.append((value.clone(), grad.clone()))
    (value, grad), (half_value, half_grad) = results
    torch.testing.assert_close(half_value, value, rtol=0.02, atol=0.1)
    error = (half_grad - grad).norm(dim=1) / grad.norm(dim=1)
    assert (error < 0.05).all()
    assert (error > 1e-5).all()  # it is another arithmetic indeed


def test_the_statistics_of_norms_stay_in_float32():
    problem = small_problem("bf16")
    problem.value_and_grad(problem.initial[None], Batch(problem.x, problem.y))
    buffers = problem.workspace(1).buffers(0)
    assert buffers["1.running_mean"].dtype == torch.float32
    assert buffers["1.running_mean"].abs().sum() > 0


def test_copies_keep_the_precision_and_others_are_refused():
    assert small_problem("bf16").to("cpu").workspace(1).precision == "bf16"
    with pytest.raises(ValueError, match="Problem: precision must be one of"):
        small_problem("bf17")
