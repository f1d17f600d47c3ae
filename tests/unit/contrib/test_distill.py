import pytest
import torch
from torch.nn import functional as F

from bayesieve.contrib.distill import soften
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior import Samples
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.engines.map import MAP
from problems import normal32
from runs import fit_toy, mlp, toy, with_batch_norm


def teachers_of(problem, n=2):
    draws = normal32(n, problem.layout.size, seed=5)
    buffers = problem.network.buffers()
    return [Samples(problem.network, row[None], buffers=buffers) for row in draws]


def test_labels_are_mixed_with_the_mean_of_the_teachers():
    problem = toy()
    teachers = teachers_of(problem)
    soft = soften(problem, teachers, weight=0.25)
    outputs = [
        problem.network.outputs(teacher.mean[None], problem.x, {})[0] for teacher in teachers
    ]
    probs = sum(F.softmax(output, -1) for output in outputs) / 2
    expected = 0.75 * F.one_hot(problem.y, 3) + 0.25 * probs
    torch.testing.assert_close(soft.y, expected)
    torch.testing.assert_close(soft.y.sum(1), torch.ones(problem.n_data))
    assert torch.equal(soft.x, problem.x)
    assert not problem.y.is_floating_point()


def test_extreme_weights_are_the_labels_and_the_teachers():
    problem = toy()
    teachers = teachers_of(problem, 1)
    assert torch.equal(soften(problem, teachers, weight=0.0).y, F.one_hot(problem.y, 3).float())
    logits = problem.network.outputs(teachers[0].mean[None], problem.x, {})[0]
    torch.testing.assert_close(soften(problem, teachers, weight=1.0).y, F.softmax(logits, -1))


def test_teachers_use_their_own_batch_norm_statistics():
    problem = toy(with_batch_norm)
    teacher = fit_toy(problem, MAP(lr=0.05)).posterior
    logits = problem.network.outputs(teacher.mean[None], problem.x, teacher.buffers)[0]
    torch.testing.assert_close(soften(problem, [teacher], 1.0).y, F.softmax(logits, -1))


def test_a_temperature_divides_the_log_odds():
    problem = toy()
    (teacher,) = teachers_of(problem)[:1]
    logits = problem.network.outputs(teacher.mean[None], problem.x, teacher.buffers)[0]
    soft = soften(problem, [teacher], 1.0, temperature=4.0)
    torch.testing.assert_close(soft.y, F.softmax(logits / 4, -1))
    with pytest.raises(ValueError, match="temperature must be > 0"):
        soften(problem, [teacher], temperature=0.0)


def test_small_labels_are_labels_too():
    problem = toy()
    bytes_ = with_data(problem, (problem.x, problem.y.to(torch.uint8)))
    teachers = teachers_of(problem)
    assert torch.equal(soften(bytes_, teachers).y, soften(problem, teachers).y)


def test_training_goes_on_with_soft_labels():
    problem = toy()
    run = fit_toy(soften(problem, teachers_of(problem)), MAP(lr=0.05), epochs=20)
    assert run.history[-1]["log_lik"] > run.history[0]["log_lik"]


def test_wrong_use_raises():
    problem = toy()
    teachers = teachers_of(problem)
    with pytest.raises(ValueError, match=r"weight must be between 0 and 1, got 1\.5"):
        soften(problem, teachers, weight=1.5)
    with pytest.raises(ValueError, match="at least one teacher"):
        soften(problem, [])
    with pytest.raises(ValueError, match="needs a Categorical likelihood and labels"):
        soften(soften(problem, teachers), teachers)
    regression = Problem(mlp(), Gaussian(), (problem.x, problem.x[:, :3]))
    with pytest.raises(ValueError, match="needs a Categorical likelihood"):
        soften(regression, teachers)
