"""Populations whose members have their own rows, and are watched in groups."""

import pytest
import torch
from torch import nn

from bayesieve.core.batch import Rows
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.priors import SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.data.examples import Examples
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.estimators.population import stacked
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from bayesieve.training.validation import Validation
from problems import linear_model, normal
from runs import without_clock

X = normal(40, 3, seed=1)
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3 * normal(40, 1, seed=2)
PLAIN = MAP(lr=0.05, weight_decay=0.0)
PARTS = [torch.arange(25), torch.arange(15, 40), torch.arange(0, 40, 3)]


def problem_of(rows=None):
    return Problem(linear_model(3), Gaussian(0.5), (X, Y), rows=rows)


def test_every_member_finds_the_least_squares_of_its_rows():
    run = fit(
        problem_of(Rows.of(PARTS)), PLAIN, epochs=300, batch_size=40, seed=0, schedule=Schedule()
    )
    assert run.n_models == 3
    for posterior, part in zip(run.posteriors, PARTS, strict=True):
        exact = torch.linalg.lstsq(X[part], Y[part]).solution[:, 0]
        torch.testing.assert_close(posterior.mean, exact, atol=1e-3, rtol=1e-3)


def test_an_epoch_shows_every_member_each_of_its_rows_once():
    seen = []
    engine = MAP(lr=1e-3)

    class Spy:
        prior = None

        def __getattr__(self, name):
            return getattr(engine, name)

        def step(self, problem, state, batch):
            seen.append(batch)
            return engine.step(problem, state, batch)

    fit(problem_of(Rows.of(PARTS)), Spy(), epochs=1, batch_size=7)
    assert all(batch.per_member for batch in seen)
    for i, part in enumerate(PARTS):
        rows = torch.cat([batch.x[i][batch.weight[i] > 0] for batch in seen])
        assert sorted(rows[:, 0].tolist()) == sorted(X[part, 0].tolist())


def test_stacked_tables_keep_apart():
    tables = [(X[:10], Y[:10]), (2 * X[10:30], Y[10:30])]
    x, y, rows = stacked(tables)
    run = fit(
        Problem(linear_model(3), Gaussian(0.5), (x, y), rows=rows),
        PLAIN,
        epochs=400,
        batch_size=20,
        schedule=Schedule(),
    )
    for posterior, (own_x, own_y) in zip(run.posteriors, tables, strict=True):
        exact = torch.linalg.lstsq(own_x, own_y).solution[:, 0]
        torch.testing.assert_close(posterior.mean, exact, atol=2e-3, rtol=2e-3)


def test_stacked_tables_must_be_alike():
    with pytest.raises(ValueError, match=r"table 1 has inputs and targets of shape \(2,\)"):
        stacked([(X, Y), (X[:, :2], Y)])


def test_engines_may_differ_in_numbers():
    engines = [MAP(lr=0.05), MAP(lr=0.01), MAP(lr=1e-9)]
    short, long = (
        fit(problem_of(Rows.of(PARTS)), engines, epochs=n, batch_size=40).posteriors
        for n in (1, 100)
    )
    moves = [(a.mean - b.mean).abs().max().item() for a, b in zip(short, long, strict=True)]
    assert moves[0] > 1
    assert 0.1 < moves[1] < moves[0]
    assert moves[2] < 1e-6


def test_the_number_of_models_must_be_that_of_the_rows():
    with pytest.raises(ValueError, match="got 2 engines, but the problem has rows for 3 models"):
        fit(problem_of(Rows.of(PARTS)), [MAP()] * 2, epochs=1)


def watched(**options):
    rows = Rows.of([torch.arange(25, 40), torch.arange(15), torch.arange(1, 40, 3)])
    return Validation(Examples(X, Y), rows=rows, **options)


def trace_of(validation, engine=None, epochs=30, **options):
    """The run, and the posteriors of all members after each epoch."""
    states = []

    def look(progress):
        states.append([progress.posterior(i).mean for i in range(3)])
        return False

    run = fit(
        problem_of(Rows.of(PARTS)),
        engine or MAP(lr=0.3),
        epochs=epochs,
        batch_size=9,
        validation=validation,
        callbacks=[look],
        **options,
    )
    return run, states


@pytest.mark.parametrize("groups", [None, (0, 1, 1), (0, 0, 0)])
def test_every_group_returns_to_its_best_epoch(groups):
    validation = watched(patience=30, groups=groups)
    run, states = trace_of(validation)
    scores = [validation.by_group(row["val_nll"]) for row in run.history]
    best = [min(range(len(scores)), key=lambda t: scores[t][g]) for g in range(len(scores[0]))]
    for i, group in enumerate(validation.group_of(3)):
        assert torch.equal(run.posteriors[i].mean, states[best[group]][i])
    if groups is None:
        assert len(set(best)) > 1  # the members do differ, or the test says nothing


def test_scores_are_those_of_each_member_on_its_own_rows():
    validation = watched()
    run, states = trace_of(validation, epochs=2)
    for i, part in enumerate((torch.arange(25, 40), torch.arange(15), torch.arange(1, 40, 3))):
        residual = Y[part, 0] - X[part] @ states[-1][i]
        assert run.history[-1]["val_rmse"][i] == pytest.approx(residual.square().mean().sqrt())
        nll = -torch.distributions.Normal(0.0, 0.5).log_prob(residual).mean()
        assert run.history[-1]["val_nll"][i] == pytest.approx(nll)


def test_a_member_that_holds_out_nothing_follows_its_group():
    rows = Rows(torch.arange(12).repeat(3, 1), torch.tensor([[0.0], [1.0], [3.0]]).repeat(1, 12))
    validation = Validation(Examples(X, Y), patience=30, rows=rows, groups=(0, 0, 0))
    assert validation.by_group([0.0, 1.0, 2.0]) == [pytest.approx((1 + 3 * 2) / 4)]
    run, states = trace_of(validation)
    scores = [validation.by_group(row["val_nll"])[0] for row in run.history]
    assert torch.equal(run.posteriors[0].mean, states[scores.index(min(scores))][0])


def test_scores_are_taken_every_few_epochs_and_at_the_end():
    run, _ = trace_of(watched(every=4), epochs=10)
    assert [row["epoch"] for row in run.history if "val_nll" in row] == [4, 8, 10]


def test_patience_waits_for_the_slowest_group():
    run, _ = trace_of(watched(patience=3), epochs=200)
    assert 3 < len(run.history) < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [({"groups": (0, 2, 1, 4)}, "without gaps"), ({"every": 0}, "every must be > 0")],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        watched(**options)


def test_validation_must_fit_the_population():
    with pytest.raises(ValueError, match="groups has 2 entries for 3 models"):
        trace_of(watched(groups=(0, 1)))
    nothing = Rows(torch.zeros(3, 1, dtype=torch.int64), torch.tensor([[1.0], [1.0], [0.0]]))
    with pytest.raises(ValueError, match="group 2 hold out no row"):
        trace_of(Validation(Examples(X, Y), rows=nothing))


def test_pruning_works_on_each_member():
    engine = SBNN(SpikeSlab(1.0, 0.1), lr=0.02, init_std=0.05)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    problem = Problem(net, Gaussian(0.5), (X, Y), rows=Rows.of(PARTS))
    run = fit(problem, engine, epochs=20, batch_size=13, pruning=GradualPruning(0.5, 0.1, 0.5))
    kept = [run.sparse(i).keep for i in range(3)]
    assert all(run.sparse(i).zeros == pytest.approx(0.5, abs=0.05) for i in range(3))
    assert not torch.equal(kept[0], kept[1])


def test_a_resumed_run_equals_the_unbroken_one(tmp_path):
    def run(folder, stop_after=None, *, resume=False):
        return fit(
            problem_of(Rows.of(PARTS)),
            SBNN(SpikeSlab(1.0, 0.1), lr=0.1, init_std=0.05),
            epochs=8,
            batch_size=9,
            validation=watched(patience=50, groups=(0, 1, 1)),
            folder=folder,
            resume=resume,
            callbacks=[lambda progress: progress.epoch == stop_after],
        )

    whole = run(tmp_path / "a")
    assert len(run(tmp_path / "b", stop_after=4).history) == 4
    resumed = run(tmp_path / "b", resume=True)
    assert without_clock(resumed.history) == without_clock(whole.history)
    for first, other in zip(resumed.posteriors, whole.posteriors, strict=True):
        assert torch.equal(first.mean, other.mean)
