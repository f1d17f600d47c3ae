"""How steps are computed: in bfloat16, close to float32, and with memory kept between them."""

import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import Generator, nn

from bayesieve.core.batch import Batch, Rows
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.noise import noise_of
from bayesieve.core.problem import Problem, starting_points
from bayesieve.engines.map import MAP
from bayesieve.runs.memory import memory_need


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
        w = starting_points(problem, k, Generator().manual_seed(0), "he")
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
    assert small_problem("bf16").to("cpu").workspace(1).execution.formats.network == "bf16"
    with pytest.raises(ValueError, match="Problem: precision must be one of"):
        small_problem("bf17")


class Tokens(nn.Module):
    """A small token model: whole numbers in, scores out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))
        self.head = nn.Linear(8, 7)

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))


def token_problem(precision="bf16", **options):
    torch.manual_seed(0)
    tokens = torch.randint(7, (6, 5))
    data = (tokens, tokens.roll(-1, 1))
    return Problem(Tokens(), Categorical(), data, precision=precision, **options)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("local", [False, True])
def test_token_models_train_in_bfloat16(k, local):
    grads = []
    for precision in ("float32", "bf16"):
        problem = token_problem(precision)
        w = starting_points(problem, k, Generator().manual_seed(0), "he")
        space = noise_of(local).workspace(problem, k)
        space.weights.copy_(w)
        found = space.differentiate(Batch(problem.x, problem.y), 1.0).flatten()
        assert found.log_lik.dtype == torch.float32
        grads.append(space.grads.clone())
    error = (grads[1] - grads[0]).norm(dim=1) / grads[0].norm(dim=1)
    assert ((error > 1e-5) & (error < 0.05)).all()


def test_named_modules_stay_in_full_precision():
    full = token_problem("float32")
    all_named = token_problem(full_precision=("embed", "head", nn.Sequential))
    head_named = token_problem(full_precision=("he*",))
    w, batch = full.initial[None], Batch(full.x, full.y)
    grads = [p.value_and_grad(w, batch)[1].clone() for p in (full, all_named, head_named)]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(grads[2], grads[0], rtol=1e-5, atol=1e-5)
    seen = []
    head_named.workspace(1).module.head.register_forward_hook(lambda *io: seen.append(io[2].dtype))
    head_named.value_and_grad(w, batch)
    assert seen == [torch.float32]
    with pytest.raises(ValueError, match=r"'haed' matches no module.*Did you mean 'head'"):
        token_problem(full_precision=("haed",))


def test_memory_of_a_run_in_bfloat16_is_rehearsed():
    problem = token_problem(full_precision=("head",))
    assert memory_need(problem, MAP(lr=0.1), batch_size=4).peak > 0


def test_populations_of_plain_layers_on_own_rows_train_in_bfloat16_too():
    x, y = torch.randn(6, 4, generator=Generator().manual_seed(0)), torch.arange(6) % 3
    rows = Rows(torch.arange(6).expand(2, 6).contiguous())
    values = []
    for precision in ("float32", "bf16"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        problem = Problem(model, Categorical(), (x, y), rows=rows, precision=precision)
        batch = problem.data.batch(torch.arange(6).expand(2, 6))
        values.append(problem.value_and_grad(problem.initial.repeat(2, 1), batch)[0])
    difference = (values[0] - values[1]).abs()
    assert ((difference > 1e-6) & (difference < 0.2)).all()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other bounds")
def test_memory_that_a_step_frees_is_kept_for_the_next():
    script = """
import resource, torch
from bayesieve.core.workspace import keep_freed_memory
keep_freed_memory()
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    gradients = [torch.ones(1 << 20) for _ in range(4)]
    del gradients
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    settings = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "LD_PRE"))}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    assert int(done.stdout) < 100  # of 4096 pages
