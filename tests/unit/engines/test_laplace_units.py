"""The Laplace approximation by unit: exact in linear regression, conditioning by brute force."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.posterior import Factorised
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.engines import laplace as laplace_module
from bayesieve.engines.laplace import laplace, laplace_units
from bayesieve.errors import UnsupportedModelError
from bayesieve.sieve.evidence import prune_units_by_evidence
from problems import conjugate, normal, seeded
from zoo import BY_NAME, REPEATED, chain


def around(known):
    """The approximation around the exact mean of a conjugate regression."""
    problem = known.problem
    point = Factorised(problem.network, known.mean, known.std)
    return laplace_units(problem, point, prior=Normal(known.prior_std), labels="exact")


@pytest.mark.parametrize("orthogonal", [True, False])
def test_marginal_stds_are_exact_for_linear_regression(orthogonal):
    known = conjugate(orthogonal=orthogonal)
    torch.testing.assert_close(around(known).posterior.std, known.std)


def test_the_rest_follows_as_in_the_exact_posterior_of_the_smaller_model():
    known = conjugate(d=5, orthogonal=False)
    keep = torch.tensor([True, False, True, True, False])
    found = around(known).reduced(keep)
    precision = known.precision[keep][:, keep]
    moment = known.x[:, keep].T @ known.y[:, 0] / known.noise_std**2
    torch.testing.assert_close(found.posterior.mean[keep], torch.linalg.solve(precision, moment))
    exact_std = torch.linalg.inv(precision).diagonal().sqrt()
    torch.testing.assert_close(found.posterior.std[keep], exact_std)
    assert (found.posterior.mean[~keep] == 0).all()


def classifier(dtype=torch.float64):
    model = chain(4, 6, 3, dtype=dtype)
    x = normal(40, 4, seed=1, dtype=dtype)
    return Problem(model, Categorical(), (x, torch.arange(40) % 3))


def test_the_mean_of_the_diagonal_over_examples_is_that_of_the_gauss_newton_matrix():
    # With one example nothing is averaged apart: the diagonal of P is the Gauss-Newton diagonal.
    problem = classifier()
    one = with_data(problem, (problem.x[:1], problem.y[:1]))
    found = laplace_units(one, prior=Normal(0.5), labels="exact")
    layout = one.layout
    expected = laplace(one, prior=Normal(0.5), labels="exact").std ** -2
    for block in found.blocks:
        diagonal = block.gain[:, None] * block.gram.diagonal() + found.precision
        diagonal_of_weights = expected[layout.slices[block.weight]].view(len(block.gain), -1)
        torch.testing.assert_close(diagonal[:, :-1], diagonal_of_weights)
        torch.testing.assert_close(diagonal[:, -1], expected[layout.slices[block.bias]])


def test_batches_do_not_matter():
    problem = classifier()
    whole, parts = (laplace_units(problem, labels="exact", batch_size=n) for n in (64, 7))
    torch.testing.assert_close(whole.posterior.std, parts.posterior.std)
    assert whole.precision == pytest.approx(parts.precision)


def test_sampled_labels_are_seeded_and_near_the_exact_ones():
    problem = classifier()
    exact = laplace_units(problem, prior=Normal(1.0), labels="exact")
    usual = laplace_units(problem, prior=Normal(1.0))
    assert torch.equal(usual.posterior.std, exact.posterior.std)  # of few outputs
    first, again = (
        laplace_units(problem, prior=Normal(1.0), labels="sampled", seed=3) for _ in range(2)
    )
    assert torch.equal(first.posterior.std, again.posterior.std)
    torch.testing.assert_close(first.blocks[1].gain, exact.blocks[1].gain, rtol=0.2, atol=0)


def test_patches_of_a_convolution_give_its_output():
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Flatten()).double()
    x = normal(5, 2, 6, 6, seed=0)
    problem = Problem(model, Gaussian(1.0), (x, torch.zeros(5, 27, dtype=torch.float64)))
    block = laplace_units(problem, prior=Normal(1.0), labels="exact").blocks[0]
    columns = torch.nn.functional.unfold(x, 3, padding=1, stride=2).transpose(1, 2).reshape(-1, 18)
    rows = torch.cat([columns, torch.ones(len(columns), 1, dtype=torch.float64)], 1)
    torch.testing.assert_close(block.gram, rows.T @ rows / len(rows))
    torch.testing.assert_close(block.gain, torch.full((3,), 5.0 * 9, dtype=torch.float64))


@pytest.mark.parametrize("orthogonal", [True, False])
def test_many_inputs_are_taken_in_blocks(orthogonal, monkeypatch):
    """Blocks are exact where inputs of different blocks are orthogonal, else independent."""
    known = conjugate(d=5, orthogonal=orthogonal)
    keep = torch.tensor([True, False, True, True, False])
    whole = around(known)
    monkeypatch.setattr(laplace_module, "_MOST_INPUTS", 2)
    parts = around(known)
    assert [block.columns for block in parts.blocks] == [slice(0, 1), slice(1, 3), slice(3, 5)]
    for block in parts.blocks:  # a part of the whole matrix
        expected = whole.blocks[0].gram[block.columns, block.columns]
        torch.testing.assert_close(block.gram, expected)
    found, expected = parts.reduced(keep).posterior, whole.reduced(keep).posterior
    if orthogonal:
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.std, expected.std)
    else:
        assert found.mean[0] == known.mean[0]  # nothing goes from its block
        assert not torch.allclose(found.mean[2], known.mean[2])


def test_the_bias_belongs_to_the_last_block(monkeypatch):
    monkeypatch.setattr(laplace_module, "_MOST_INPUTS", 3)
    found = laplace_units(classifier(), prior=Normal(1.0), labels="exact")
    assert [block.bias for block in found.blocks] == [None, "0.bias", None, "2.bias"]
    assert found.blocks[0].gain is found.blocks[1].gain
    assert (found.posterior.std > 0).all()
    keep = torch.ones_like(found.posterior.mean, dtype=torch.bool)
    torch.testing.assert_close(found.reduced(keep).posterior.mean, found.posterior.mean)


def test_a_frozen_bias_has_no_part_and_a_bare_layer_is_a_network():
    x, y = normal(20, 3, seed=4), normal(20, 1, seed=5)
    layer = nn.Linear(3, 1).double()
    frozen, plain = nn.Linear(3, 1).double(), nn.Linear(3, 1, bias=False).double()
    for other in (frozen, plain):
        other.weight.data.copy_(layer.weight)
    frozen.bias.requires_grad_(False)

    def approximation(model):
        return laplace_units(
            Problem(model, Gaussian(0.5), (x, y)), prior=Normal(1.0), labels="exact"
        )

    bare, wrapped = approximation(layer), approximation(nn.Sequential(layer))
    assert torch.equal(bare.posterior.std, wrapped.posterior.std)
    assert (bare.blocks[0].weight, bare.blocks[0].bias) == ("weight", "bias")
    without, fixed = approximation(plain), approximation(frozen)
    torch.testing.assert_close(fixed.posterior.std, without.posterior.std)
    keep = torch.tensor([True, False, True])
    torch.testing.assert_close(
        fixed.reduced(keep).posterior.mean, without.reduced(keep).posterior.mean
    )


def test_reducing_reaches_the_zeros_and_leaves_what_was_removed():
    problem = classifier(torch.float32)
    units = laplace_units(problem, labels="exact")
    sparse = prune_units_by_evidence(units, 0.5, rounds=3)
    assert sparse.zeros == pytest.approx(0.5, abs=0.05)
    assert (sparse.posterior.mean[~sparse.keep] == 0).all()
    assert (sparse.posterior.std[sparse.keep] > 0).all()
    assert sparse.posterior.draw(2, seeded(0)).shape == (2, problem.layout.size)
    with pytest.raises(ValueError, match=r"^prune_units_by_evidence: rounds must be > 0"):
        prune_units_by_evidence(units, 0.5, rounds=0)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (BY_NAME["attention"], r"no Linear or plain Conv2d.* `sieve\(curvature=diagonal\)`"),
        (BY_NAME["conv1d"], "no Linear"),
        (REPEATED, r"2 times.* `sieve\(curvature=diagonal\)`"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_other_layers_are_refused(case, message):
    with pytest.raises(UnsupportedModelError, match=message):
        laplace_units(case.problem(11, dtype=torch.float32))
