"""Joint evidence of hidden units against direct evidences of linear models, and what it finds."""

import math

import pytest
import torch

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.data.examples import Examples
from bayesieve.engines.tdamp import TDAMP
from bayesieve.engines.tdamp.channels import Unit, observe
from bayesieve.engines.tdamp.damp import batch_score, readout_gram
from bayesieve.engines.tdamp.groups import Readout, eliminate, removal_gain, spd_inverse, without
from bayesieve.nets import mlp
from bayesieve.training.launch import fit
from bayesieve.training.validation import Validation
from problems import normal, seeded

F64 = torch.float64
NOISE, PRIOR = 0.3, 0.7  # variances


def features(n=40):
    """Three independent columns, a copy of the first, and a constant."""
    columns = normal(n, 3, seed=1)
    copy = columns[:, :1] + 0.01 * normal(n, 1, seed=2)
    return torch.cat([columns, copy, torch.ones(n, 1, dtype=F64)], 1)


def targets(x):
    weights = torch.tensor([[1.0, -0.7, 0.0, 0.3, 0.2], [0.4, 0.9, 0.0, 0.0, 0.0]], dtype=F64)
    return x @ weights.T + NOISE**0.5 * normal(len(x), 2, seed=3)


def readout_of(x, y):
    precision = x.T @ x / NOISE + torch.eye(x.shape[1], dtype=F64) / PRIOR
    cov = torch.linalg.inv(precision)
    return Readout((cov @ x.T @ y / NOISE).T[None], cov[None], numbers(PRIOR), numbers(2))


def log_evidence(x, y):
    cov = NOISE * torch.eye(len(x), dtype=F64) + PRIOR * x @ x.T
    zero = torch.zeros(len(x), dtype=F64)
    return torch.distributions.MultivariateNormal(zero, cov).log_prob(y.T).sum()


def numbers(value, size=1):
    return torch.full((1, size), float(value), dtype=F64)


def test_the_gain_of_a_removal_is_the_change_of_the_log_evidence():
    x = features()
    y = targets(x)
    cost = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=F64)
    gain = removal_gain(readout_of(x, y), cost)[0]
    for j in range(4):
        rest = [i for i in range(5) if i != j]
        change = log_evidence(x[:, rest], y) - log_evidence(x, y)
        assert gain[j].item() == pytest.approx(change.item() + j, rel=1e-9)


def test_what_is_left_takes_over():
    x = features()
    y = targets(x)
    rest = [0, 1, 2, 4]
    found, expected = without(readout_of(x, y), torch.tensor([[3]])), readout_of(x[:, rest], y)
    torch.testing.assert_close(found.mean[..., rest], expected.mean)
    torch.testing.assert_close(found.cov[:, rest][..., rest], expected.cov)
    assert found.mean[..., 3].abs().max() < 1e-12


def test_of_two_copies_one_goes_and_the_rest_is_judged_anew():
    x = features()
    readout = readout_of(x, targets(x))
    alive, cost = numbers(1, 4), numbers(2, 4)
    alone = removal_gain(readout, cost)[0]
    assert (alone[[0, 3]] > 0).all()  # each could go, not both
    left, gain, _ = eliminate(readout, cost, alive, numbers(1), 4)
    left = left[0]
    assert left[0] + left[3] == 1
    assert left[1:3].tolist() == [1, 0]
    kept = left > 0
    assert (gain[0, kept] < 0).all()
    limited, _, _ = eliminate(readout, cost, alive, numbers(4), 4)
    assert limited.sum() == 4


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_the_inverse_by_matrix_products(condition):
    basis = torch.linalg.qr(normal(20, 20, seed=4))[0]
    values = torch.logspace(0, math.log10(condition), 20, dtype=F64)
    matrix = ((basis * values) @ basis.T)[None]
    product = spd_inverse(matrix) @ matrix
    torch.testing.assert_close(product, torch.eye(20, dtype=F64)[None], rtol=0, atol=1e-7)


def test_the_gram_is_the_sum_over_the_batch_of_expected_outer_products():
    unit = Unit(normal(2, 5, 3, seed=5), normal(2, 5, 3, seed=6).square())
    curvature = normal(2, 5, 4, seed=7).square()
    listening = torch.tensor([[1.0, 1, 0, 1], [1, 1, 1, 1]], dtype=F64)
    found = readout_gram(unit, curvature, listening, biased=True)
    for k in range(2):
        expected = torch.zeros(4, 4, dtype=F64)
        for n in range(5):
            u = torch.cat([unit.mean[k, n], torch.ones(1, dtype=F64)])
            spread = torch.diag(torch.cat([unit.var[k, n], torch.zeros(1, dtype=F64)]))
            weight = curvature[k, n][listening[k] > 0].mean()
            expected += weight * (u[:, None] * u + spread)
        torch.testing.assert_close(found[k], expected)
    assert (readout_gram(unit, curvature, listening, biased=False)[:, -1] == 0).all()


def test_grams_of_a_deep_network_have_the_shapes_of_its_hidden_layers():
    problem = Problem(mlp((4,), 3, widths=(6, 5)).to(F64), Categorical(),
                      (normal(20, 4, seed=8), torch.arange(20) % 3))  # fmt: skip
    engine = TDAMP()
    state = engine.init(problem, seeded(0))
    mean, var = (problem.layout.unflatten(normal(1, problem.layout.size, seed=s).abs())
                 for s in (9, 10))  # fmt: skip
    seen = observe(problem.likelihood, problem.y, state.noise, (20, 3))
    sweep = batch_score(state.wiring.layers, mean, var, problem.x, seen, joint=True)
    assert [tuple(gram.shape) for gram in sweep.grams] == [(1, 7, 7), (1, 6, 6)]
    for gram in sweep.grams:
        assert torch.linalg.eigvalsh(gram).min() > -1e-9
    assert state.gram.shape == (1, 7 * 7 + 6 * 6)


def clouds(n):
    centres = 2 * normal(3, 4, seed=11, dtype=torch.float32)
    y = torch.arange(n) % 3
    return centres[y] + normal(n, 4, seed=12 + n, dtype=torch.float32), y


def test_cooling_lowers_the_count_and_widens_the_message():
    problem = Problem(mlp((4,), 3, widths=(8,)), Categorical(), clouds(300))
    spreads, counts = [], []
    for cool in (None, (3, 6)):
        engine = TDAMP(keep=1.0, cool_passes=cool, cool_memory=2.0)
        run = fit(problem, engine, epochs=6, batch_size=50, seed=0)
        spreads.append(-run.state.data_precision.log().mean())
        counts.append(run.state.count.item())
    assert counts[1] < 0.6 * counts[0]
    assert spreads[1] > spreads[0]
    with pytest.raises(ValueError, match=r"^TDAMP: cool_passes must be \(first, last\)"):
        TDAMP(cool_passes=(3, 2))


def test_the_temperature_of_a_pass_falls_geometrically():
    problem = Problem(mlp((4,), 3, widths=(8,)), Categorical(), clouds(30))
    engine = TDAMP(power=8.0, memory=10.0, cool_passes=(2, 4), cool_memory=10.0)
    state = engine.init(problem, seeded(0))
    gained = []
    for _ in range(6):
        before = state.count.item()
        engine.step(problem, state, Batch(problem.x, problem.y))
        gained.append(state.count.item() - 0.9 * before)
    assert gained == pytest.approx([8.0, 4.0, 2.0, 1.0, 1.0, 1.0], rel=1e-5)


def test_it_stops_early_and_ends_in_its_best_pass():
    problem = Problem(mlp((4,), 3, widths=(8,)), Categorical(), clouds(60))
    watch = Validation(Examples(*clouds(61)), patience=2, min_delta=1e-3)
    run = fit(problem, TDAMP(keep=1.0), epochs=60, batch_size=20, seed=0, validation=watch)
    losses = [row["val_nll"] for row in run.history]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) < 60
    assert run.state.passes.item() <= best + 1
