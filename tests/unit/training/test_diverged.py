"""A model that diverges is dropped and named; the rest of its population goes on unchanged."""

import numpy as np
import pytest
import torch
from torch import nn

from bayesieve import MAP, SBNN, Problem, fit
from bayesieve.core.batch import Rows
from bayesieve.core.likelihoods import Gaussian, Heteroscedastic
from bayesieve.core.noise import space_of
from bayesieve.data.examples import Examples
from bayesieve.errors import DivergedError
from bayesieve.estimators import SieveRegressor, fit_many
from bayesieve.training.schedule import Schedule
from bayesieve.training.validation import Validation

X = torch.linspace(-1, 1, 32)[:, None]
GOOD, BAD = MAP(optimizer="sgd", lr=1e-3), MAP(optimizer="sgd", lr=1e30)


def problem():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Problem(nn.Linear(1, 1), Gaussian(), (X, 2 * X[:, 0]))


@pytest.mark.parametrize("where", [0, 2])
def test_the_rest_is_as_without_it(where):
    engines = [GOOD, GOOD, GOOD]
    settings = {"epochs": 3, "batch_size": 8, "schedule": Schedule()}
    plain = fit(problem(), engines, **settings)
    engines[where] = BAD
    with pytest.warns(UserWarning, match=f"dropped model {where} of 3, which diverged. MAP: "):
        run = fit(problem(), engines, **settings)
    assert run.diverged == (where,)
    assert run.sound == [i for i in range(3) if i != where]
    assert len(run.posteriors) == len(run.models) == 2
    for i, posterior in zip(run.sound, run.posteriors, strict=True):
        assert torch.equal(posterior.mean, plain.posteriors[i].mean)
    assert all(np.isfinite(row["log_lik"]).all() for row in run.history)
    with pytest.raises(DivergedError, match=f"model {where} of 3 diverged, and none may be"):
        run.complete()
    assert plain.complete() is plain


def test_no_model_left_raises():
    with pytest.raises(DivergedError, match="MAP: log_lik or kl is not finite at step 4, epoch 1"):
        fit(problem(), [BAD, BAD], epochs=2, batch_size=8, schedule=Schedule())


def test_a_resumed_run_still_knows(tmp_path):
    settings = {"batch_size": 8, "schedule": Schedule(), "folder": tmp_path}
    with pytest.warns(UserWarning, match="dropped model 1"):
        fit(problem(), [GOOD, BAD], epochs=2, callbacks=[lambda row: row.epoch == 1], **settings)
    run = fit(problem(), [GOOD, BAD], epochs=2, resume=True, **settings)
    assert run.diverged == (1,)


def test_it_has_no_say_in_when_its_group_stops():
    validation = Validation(Examples(X, 2 * X[:, 0]), patience=5, groups=(0, 0))
    with pytest.warns(UserWarning, match="dropped model 1"):
        run = fit(problem(), [GOOD, BAD], epochs=3, validation=validation, schedule=Schedule())
    assert run.diverged == (1,)
    rows = Rows.of([torch.arange(32)] * 2)
    scores = Validation(Examples(X, X[:, 0]), rows=rows, groups=(0, 1))
    assert scores.by_group([1.0, 3.0], without=[1]) == [1.0, np.inf]


def test_a_table_whose_networks_all_diverged_is_an_error():
    source = np.random.default_rng(0)
    X = source.normal(size=(40, 2))
    settings = {"likelihood": Gaussian(0.3), "hidden": (), "epochs": 5, "folds": 0}
    models = [SieveRegressor(engine=engine, **settings) for engine in (GOOD, BAD)]
    with (
        pytest.warns(UserWarning, match="which diverged"),
        pytest.raises(DivergedError, match="MAP: every network on a table diverged"),
    ):
        fit_many(models, X, X[:, 0])


def test_noise_by_input_starts_with_the_gradient_of_squares():
    """Warmth 1 multiplies the gradient by the variance: that of the mean is the plain residual."""
    likelihood = Heteroscedastic(0.5, 0.05)
    output = torch.tensor([[0.0, -3.0], [0.0, 2.0]], requires_grad=True)
    y = torch.tensor([1.0, 2.0])
    plain = likelihood.log_prob(output, y, {})
    for warmth in (0.0, 1.0):
        warm = likelihood.warm_log_prob(output, y, {}, torch.tensor(warmth))
        torch.testing.assert_close(warm, plain)
        (grad,) = torch.autograd.grad(warm.sum(), output, retain_graph=True)
        if warmth:
            torch.testing.assert_close(grad[:, 0], y)
        else:
            torch.testing.assert_close(grad, torch.autograd.grad(plain.sum(), output)[0])


@pytest.mark.parametrize("n_models", [1, 2])
def test_a_run_is_warm_in_its_first_half(n_models, monkeypatch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Problem(nn.Linear(1, 2), Heteroscedastic(), (X, 2 * X[:, 0]))
    seen, plain = [], Heteroscedastic.warm_log_prob

    def watched(self, output, target, numbers, warmth):
        seen.append(float(warmth))
        return plain(self, output, target, numbers, warmth)

    monkeypatch.setattr(Heteroscedastic, "warm_log_prob", watched)
    run = fit(task, [SBNN()] * n_models, epochs=8, batch_size=32)
    assert seen == [1, 0.75, 0.5, 0.25, 0, 0, 0, 0]
    assert space_of(run.problem, run.engine, n_models).warmth == 0
