"""Logs write the same numbers everywhere; callbacks are called by epoch and by step."""

import csv
import importlib.machinery
import sys
import types

import pytest
import torch
from torch import nn

from bayesieve.contrib import logs
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.problem import Problem
from bayesieve.engines.map import MAP
from bayesieve.errors import UsageError
from bayesieve.runs import train
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.launch import fit
from bayesieve.training.progress import EverySteps


@pytest.fixture
def problem():
    numbers = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 2, generator=numbers), torch.randn(8, 1, generator=numbers)
    return Problem(nn.Linear(2, 1), Gaussian(), (x, y))


def rows_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("n_models", [1, 2])
def test_csv_has_every_number_of_every_epoch(problem, tmp_path, n_models):
    run = fit(
        problem, [MAP()] * n_models, epochs=3, batch_size=4, callbacks=[logs.CsvLog(tmp_path)]
    )
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows] == [2, 4, 6]
    for row, known in zip(rows, run.history, strict=True):
        assert {k: float(v) for k, v in row.items()} == logs.scalars(known)


def test_csv_of_a_resumed_run_has_each_step_once(problem, tmp_path):
    for last in (6, 8):  # the second log begins again at step 4
        log = logs.CsvLog(tmp_path)
        for step in range(2 if last == 6 else 4, last + 1, 2):
            log.write(step, {"step": step, "elbo": float(last)})
    assert [(row["step"], row["elbo"]) for row in rows_of(tmp_path)] == [
        ("2", "6.0"), ("4", "8.0"), ("6", "8.0"), ("8", "8.0"),
    ]  # fmt: skip


@pytest.mark.parametrize("n_models", [1, 2])
def test_tensorboard_has_every_number_of_every_epoch(problem, tmp_path, n_models):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with logs.TensorBoardLog(tmp_path) as log:
        run = fit(problem, [MAP()] * n_models, epochs=3, batch_size=4, callbacks=[log])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = events.Scalars("log_lik" if n_models == 1 else "log_lik/1")
    assert [point.step for point in points] == [2, 4, 6]
    last = run.history[-1]["log_lik"]
    assert points[-1].value == pytest.approx(last if n_models == 1 else last[1])


class Stand:
    """Stands for a package: remembers what is called with what."""

    def __init__(self, calls, name=""):
        self.calls, self.name = calls, name
        self.info = types.SimpleNamespace(run_id="r") if name.endswith("create_run") else None
        self.experiment_id = "7"

    def __getattr__(self, name):
        return Stand(self.calls, f"{self.name}.{name}")

    def __call__(self, *args, **options):
        self.calls.append((self.name.lstrip("."), args, options))
        return self


@pytest.fixture
def stand_in(monkeypatch):
    def install(name):
        calls, module = [], types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__getattr__ = lambda attribute: Stand(calls, attribute)
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return install


def test_wandb_gets_the_same_numbers(problem, tmp_path, stand_in):
    calls = stand_in("wandb")
    with logs.WandbLog(tmp_path / "a", {"seed": 3}) as log:
        run = fit(problem, MAP(), epochs=2, batch_size=4, callbacks=[log])
    (init, _, options), *written, (finish, _, _) = calls
    assert (init, options["name"], options["config"]) == ("init", "a", {"seed": 3})
    assert finish.endswith("finish")
    sent = [(args[0], more["step"]) for _, args, more in written]
    assert sent == [(logs.scalars(row), row["step"]) for row in run.history]


def test_mlflow_gets_the_same_numbers(problem, tmp_path, stand_in):
    calls = stand_in("mlflow")
    with logs.MlflowLog(tmp_path / "a", {"engine": {"lr": 0.1}}) as log:
        run = fit(problem, MAP(), epochs=2, batch_size=4, callbacks=[log])
    named = {kind: [call for call in calls if call[0].endswith(kind)] for kind in
             ("create_run", "log_param", "log_metric", "set_terminated")}  # fmt: skip
    assert named["create_run"][0][1:] == (("7",), {"run_name": "a"})
    assert named["log_param"][0][1] == ("r", "engine.lr", 0.1)
    assert named["set_terminated"][0][1] == ("r",)
    sent = {(args[1], more["step"]): args[2] for _, args, more in named["log_metric"]}
    wanted = {
        (name, row["step"]): value
        for row in run.history
        for name, value in logs.scalars(row).items()
    }
    assert sent == wanted


def test_a_missing_package_and_an_unknown_name_are_told_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setattr(logs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'bayesieve\[tensorboard\]'"):
        logs.TensorBoardLog(tmp_path)
    with pytest.raises(ImportError, match=r"pip install wandb"):
        train(data="digits", out=tmp_path / "a", log="csv,wandb")
    with pytest.raises(UsageError, match="`log` must be one of csv, tensorboard, wandb, mlflow"):
        train(data="digits", out=tmp_path / "a", log="cvs")
    assert not (tmp_path / "a").exists()


def test_train_writes_the_log_beside_metrics(tmp_path):
    train(data="digits", net="mlp:4", steps=40, out=tmp_path / "a", log=["csv"], figures=False)
    assert int(rows_of(tmp_path / "a")[-1]["step"]) == 40


def test_callbacks_by_step_see_every_nth(problem):
    seen, after = [], []
    callbacks = [
        EverySteps(2, lambda p: seen.append(p) or False),
        lambda p: after.append(p.epoch) or False,
    ]
    pruning = GradualPruning(zeros=0.5, score="magnitude")
    fit(problem, MAP(), epochs=3, batch_size=4, pruning=pruning, callbacks=callbacks)
    assert [(p.epoch, p.step) for p in seen] == [(1, 2), (2, 4), (3, 6)]
    assert after == [1, 2, 3]
    assert {"log_lik", "lr_scale", "zeros"} <= seen[-1].row.keys()
    assert seen[-1].row["zeros"] == pytest.approx(1 / 3)


def test_callbacks_by_step_change_nothing(problem):
    plain = fit(problem, MAP(), epochs=2, batch_size=4)
    watched = fit(
        problem, MAP(), epochs=2, batch_size=4, callbacks=[EverySteps(1, lambda p: False)]
    )
    assert torch.equal(plain.posterior.mean, watched.posterior.mean)
    assert [r["log_lik"] for r in plain.history] == [r["log_lik"] for r in watched.history]


def test_one_that_returns_true_ends_the_run_there_and_resume_goes_on(problem, tmp_path):
    whole = fit(problem, MAP(), epochs=4, batch_size=2)
    settings = {"epochs": 4, "batch_size": 2, "folder": tmp_path}
    ended = fit(problem, MAP(), callbacks=[EverySteps(6, lambda p: True)], **settings)
    assert [row["step"] for row in ended.history] == [4]
    resumed = fit(problem, MAP(), resume=True, **settings)
    assert torch.equal(resumed.posterior.mean, whole.posterior.mean)


@pytest.mark.parametrize(("n", "callback"), [(0, print), (2, "print")])
def test_wrong_ones_are_refused(n, callback):
    with pytest.raises((ValueError, TypeError), match=r"EverySteps: (n|callback) must be"):
        EverySteps(n, callback)
