"""Noise models and class weights against torch.distributions and the losses of torch."""

import json
import math

import pytest
import torch
from torch.nn import functional as F

from bayesieve.core.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    RealLikelihood,
    StudentT,
    from_dict,
    likelihood_class,
    name_of,
)
from problems import normal

OUTPUT, TARGET = normal(7, 2, seed=1), normal(7, 2, seed=2)


def test_student_t_is_torchs():
    exact = torch.distributions.StudentT(5.0, OUTPUT, 0.4).log_prob(TARGET).sum(1)
    torch.testing.assert_close(StudentT(0.4, df=5.0).log_prob(OUTPUT, TARGET, {}), exact)
    extra = {"log_scale": torch.tensor(math.log(0.4), dtype=torch.float64)}
    torch.testing.assert_close(
        StudentT(9.0, df=5.0, learned=True).log_prob(OUTPUT, TARGET, extra), exact
    )


def test_student_t_reports_its_standard_deviation():
    means, std = StudentT(0.4, df=5.0).moments(OUTPUT[None], {})
    assert torch.equal(means, OUTPUT[None])
    assert std.item() == pytest.approx(torch.distributions.StudentT(5.0, 0.0, 0.4).stddev.item())


def test_heteroscedastic_is_a_normal_of_the_predicted_width():
    both = torch.cat([OUTPUT, normal(7, 2, seed=3)], 1)
    likelihood = Heteroscedastic(0.5, min_noise_std=0.1)
    std = (0.25 * (2 * both[:, 2:]).exp() + 0.01).sqrt()
    exact = torch.distributions.Normal(OUTPUT, std).log_prob(TARGET).sum(1)
    torch.testing.assert_close(likelihood.log_prob(both, TARGET, {}), exact)
    means, stds = likelihood.moments(both[None], {})
    torch.testing.assert_close(means[0], OUTPUT)
    torch.testing.assert_close(stds[0], std)


def test_no_output_makes_the_density_infinite():
    output = torch.tensor([[1.0, -1e4]])
    assert torch.isfinite(Heteroscedastic().log_prob(output, torch.ones(1, 1), {})).all()


def test_class_weights_are_torchs():
    output, target, weight = normal(9, 3, seed=4), torch.arange(9) % 3, (0.5, 2.0, 1.0)
    exact = -F.cross_entropy(output, target, torch.tensor(weight).double(), reduction="none")
    likelihood = Categorical(weight)
    torch.testing.assert_close(likelihood.log_prob(output, target, {}), exact)
    hard = F.one_hot(target).double()
    torch.testing.assert_close(likelihood.log_prob(output, hard, {}), exact)


def test_pos_weight_is_torchs():
    target = torch.arange(14).reshape(7, 2) % 2
    exact = -F.binary_cross_entropy_with_logits(
        OUTPUT, target.double(), pos_weight=torch.tensor(3.0), reduction="none"
    ).sum(1)
    torch.testing.assert_close(Bernoulli(3.0).log_prob(OUTPUT, target, {}), exact)


def test_real_likelihoods_are_known_by_their_moments():
    real = (Gaussian(), StudentT(), Heteroscedastic())
    assert all(isinstance(likelihood, RealLikelihood) for likelihood in real)
    assert not isinstance(Categorical(), RealLikelihood)
    assert not isinstance(Bernoulli(), RealLikelihood)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StudentT(df=2.0), "df must be > 2"),
        (lambda: StudentT(0.0), "scale must be > 0"),
        (lambda: Heteroscedastic(-1.0), "noise_std must be > 0"),
        (lambda: Categorical((1.0, 0.0)), "class_weight must be > 0"),
        (lambda: Bernoulli(0.0), "pos_weight must be > 0"),
    ],
)
def test_bad_numbers_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_outputs_must_fit():
    with pytest.raises(ValueError, match="a mean and a log std for each of the 2"):
        Heteroscedastic().check(OUTPUT, TARGET)
    with pytest.raises(ValueError, match="2 outputs per example but"):
        StudentT().check(OUTPUT, TARGET[:, :1])
    with pytest.raises(ValueError, match="2 numbers for 3 classes"):
        Categorical((1.0, 2.0)).check(torch.zeros(2, 3), torch.tensor([0, 1]))


ALL = [
    (Categorical(), 3),
    (Bernoulli(), 2),
    (Gaussian(0.7), 2),
    (StudentT(0.7, df=5.0), 2),
    (Heteroscedastic(0.7, min_noise_std=0.3), 4),
]


def drawn(likelihood, output, n):
    """Targets of one output, at random, (n, ...)."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(likelihood, RealLikelihood):
        means, stds = likelihood.moments(output[None, None].expand(1, n, -1), {})
        return likelihood.draw(means[0], stds.expand_as(means)[0], generator)
    if isinstance(likelihood, Categorical):
        return torch.multinomial(output.softmax(0), n, replacement=True, generator=generator)
    return torch.bernoulli(output.sigmoid().expand(n, -1), generator=generator)


@pytest.mark.parametrize(("likelihood", "m"), ALL, ids=str)
def test_curvature_is_the_mean_square_of_the_score(likelihood, m):
    output, n = normal(m, seed=5), 200_000
    rows = output.expand(n, m).clone().requires_grad_()
    likelihood.log_prob(rows, drawn(likelihood, output, n), {}).sum().backward()
    expected = rows.grad.T @ rows.grad / n
    exact = sum(v.T @ v for v in likelihood.curvature(output[None], {}))
    torch.testing.assert_close(exact, expected, rtol=0.03, atol=0.01)
    repeated = output.expand(n, m)
    (v,) = likelihood.curvature(repeated, {}, torch.Generator().manual_seed(1))
    torch.testing.assert_close(v.T @ v / n, exact, rtol=0.03, atol=0.01)


@pytest.mark.parametrize("likelihood", [Gaussian(0.7), StudentT(0.7, df=5.0)], ids=str)
def test_density_and_moments_agree_with_log_prob(likelihood):
    means, stds = likelihood.moments(OUTPUT[None], {})
    density = likelihood.log_density(TARGET, means[0], stds[0]).sum(1)
    torch.testing.assert_close(density, likelihood.log_prob(OUTPUT, TARGET, {}))


@pytest.mark.parametrize(("likelihood", "m"), ALL, ids=str)
def test_a_likelihood_comes_back_from_its_words(likelihood, m):
    row = json.loads(json.dumps(likelihood.to_dict()))
    assert from_dict(row) == likelihood
    assert likelihood_class(name_of(likelihood)) is type(likelihood)


def test_learned_numbers_are_fixed_for_delivery():
    learned = StudentT(1.0, df=5.0, learned=True)
    numbers = {"log_scale": torch.tensor(math.log(0.25))}
    fixed = learned.frozen(numbers)
    assert fixed.scale == pytest.approx(0.25)
    assert not fixed.parameters()
    row = learned.to_dict(numbers)
    assert row["scale"] == pytest.approx(0.25)
    assert row["learned"]
    assert fixed.scaled(2.0).scale == pytest.approx(0.5)
