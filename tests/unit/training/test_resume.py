"""A run that is stopped and resumed equals an unbroken one bit for bit, wherever it stops."""

import shutil
import signal
from dataclasses import replace

import pytest
import torch

from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.fast import native
from bayesieve.sieve.ranking import magnitude_score
from bayesieve.sieve.schedule import AnnealedPruning, GradualPruning
from bayesieve.training.checkpoint import has_checkpoint
from bayesieve.training.progress import Interrupted
from bayesieve.training.schedule import Schedule, renewal_steps
from bayesieve.training.validation import Validation
from runs import (
    PER_EPOCH,
    Contrary,
    assert_equal_runs,
    fit_toy,
    interrupt_after,
    toy,
    with_batch_norm,
    with_dropout,
    without_clock,
)

PRIOR = SpikeSlab(0.5, 0.1, 0.4)
SBNN_, MAP_ = SBNN(PRIOR, lr=0.02), MAP(lr=0.02)
CHAINS = SGHMC(
    GaussianLaplace(0.3, 1.0), 1e-4, adapt="sa", chain=Chain(burn_in=4, thin=2, n_kept=3)
)
N_STEPS = 4 * PER_EPOCH
EVERY_2 = Schedule(checkpoint_every=2)
IN_C = Schedule(compile="on" if native.steps() is not None else "off")


SCHEDULE = Schedule(lr="cosine", warmup=0.2, kl_warmup_epochs=2, minibatch="geometric")
PRUNING = GradualPruning(0.6, 0.2, 0.7)
CASES = {
    "sbnn": (None, SBNN_, {"schedule": SCHEDULE}),
    "sbnn-local": (None, SBNN(PRIOR, lr=0.02, local=True), {}),
    "sbnn-sgd": (None, SBNN(PRIOR, lr=0.02, optimizer="sgd"), {}),
    "flat_vi": (None, FlatVI(Normal(0.5), lr=0.02), {}),
    "flat_vi-mixture": (None, FlatVI(PRIOR, lr=0.02), {}),
    "map-sgd": (None, MAP(optimizer="sgd", lr=0.05), {}),
    "bmr": (with_batch_norm, BMR(lr=0.3, init_std=0.5, local=True), {"n_models": 2}),
    "bmr-to-a-target": (None, BMR(lr=0.3, init_std=0.5), {"pruning": PRUNING}),
    "horseshoe": (None, HorseshoeVI(lr=0.1), {}),
    "horseshoe-in-c": (None, HorseshoeVI(lr=0.1), {"n_models": 2, "schedule": IN_C}),
    "chains-in-c": (None, CHAINS, {"n_models": 2, "schedule": IN_C}),
    "chains": (with_batch_norm, CHAINS, {"n_models": 2, "pruning": AnnealedPruning(0.5, end=0.5)}),
    "pruning": (None, SBNN_, {"pruning": PRUNING}),
    "soft-pruning": (None, SBNN_, {"pruning": replace(PRUNING, soft=True)}),
    "dropout": (with_dropout, MAP_, {}),
    "batch-norm": (with_batch_norm, SBNN_, {}),
    "population": (None, SBNN_, {"n_models": 2}),
    "population-dropout-norm-local": (
        lambda: torch.nn.Sequential(*with_batch_norm()[:3], *with_dropout()[2:]),
        SBNN(PRIOR, lr=0.02, local=True),
        {"n_models": 2, "schedule": Schedule(clip_norm=1.0)},
    ),
    "watched": (None, MAP_, {"validation": Validation(Contrary)}),
    "early-stopping": (with_batch_norm, MAP_, {"validation": Validation(Contrary, patience=2)}),
    "stopping-after-pruning": (
        None,
        SBNN_,
        {"pruning": replace(PRUNING, end=0.45), "validation": Validation(Contrary, patience=1)},
    ),
}
EACH = pytest.mark.parametrize(("build", "engine", "options"), CASES.values(), ids=CASES.keys())


@pytest.mark.slow
@EACH
def test_a_run_stopped_after_every_step_and_resumed_equals_an_unbroken_one(
    tmp_path, monkeypatch, build, engine, options
):
    unbroken = fit_toy(toy(build), engine, **options)
    taken = unbroken.history[-1]["step"]  # early stopping may have ended it
    for step in range(taken):
        with monkeypatch.context() as patch:
            interrupt_after(patch, 1)
            with pytest.raises(Interrupted, match="stopped by SIGTERM"):
                fit_toy(toy(build), engine, folder=tmp_path, resume=step > 0, **options)
    resumed = fit_toy(toy(build), engine, folder=tmp_path, resume=True, **options)
    assert_equal_runs(resumed, unbroken)
    assert torch.isfinite(unbroken.posterior.mean).all()


@pytest.mark.slow
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("n_models", [1, 2])
def test_a_run_stopped_between_two_renewals_of_its_mask_goes_on_as_if_it_had_not(
    tmp_path, monkeypatch, soft, n_models
):
    options = {"steps": 200, "pruning": replace(PRUNING, soft=soft), "n_models": n_models}
    due = renewal_steps(options["pruning"], 200)
    assert due.step == 2
    unbroken = fit_toy(toy(), SBNN_, **options)
    for more in (due[5] - 1, 1, 1):  # before, at and after a renewal
        with monkeypatch.context() as patch:
            interrupt_after(patch, more)
            with pytest.raises(Interrupted):
                fit_toy(toy(), SBNN_, folder=tmp_path, resume=more == 1, **options)
    assert_equal_runs(fit_toy(toy(), SBNN_, folder=tmp_path, resume=True, **options), unbroken)


def test_a_run_that_died_goes_on_from_its_last_checkpoint(tmp_path):
    unbroken = fit_toy(toy(), SBNN_, folder=tmp_path / "whole", schedule=EVERY_2)
    copies = tmp_path / "copies"

    def die(progress):
        shutil.copytree(tmp_path / "broken", copies / str(progress.epoch))
        return False

    fit_toy(toy(), SBNN_, folder=tmp_path / "broken", schedule=EVERY_2, callbacks=[die])
    for epoch in (1, 2, 3, 4):
        names = sorted(p.name for p in (copies / str(epoch) / "checkpoints").glob("*.safetensors"))
        newest = PER_EPOCH * epoch // 2 * 2
        assert names[-1] == f"checkpoint-{newest:09d}.safetensors"
        resumed = {"folder": copies / str(epoch), "schedule": EVERY_2, "resume": True}
        assert_equal_runs(fit_toy(toy(), SBNN_, **resumed), unbroken)


def test_a_damaged_newest_checkpoint_costs_time_only(tmp_path, logged):
    unbroken = fit_toy(toy(), SBNN_, folder=tmp_path)
    newest = max((tmp_path / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert_equal_runs(fit_toy(toy(), SBNN_, folder=tmp_path, resume=True), unbroken)
    assert "is damaged" in logged.getvalue()


def test_a_finished_run_resumes_to_itself(tmp_path):
    for name, validation in (("plain", None), ("stopped", Validation(Contrary, patience=1))):
        options = {"epochs": 9, "validation": validation}
        whole = fit_toy(toy(), MAP_, folder=tmp_path / name, **options)
        again_in = {"folder": tmp_path / name, "resume": True}
        assert_equal_runs(fit_toy(toy(), MAP_, **again_in, **options), whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_run_with_the_usual_exit_code(tmp_path, monkeypatch, number):
    interrupt_after(monkeypatch, 2, number)
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught:
        fit_toy(toy(), MAP_, folder=tmp_path)
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert has_checkpoint(tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()  # no epoch was finished


def test_metrics_of_a_resumed_run_have_no_gap_and_no_repeat(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 7)
        with pytest.raises(Interrupted):
            fit_toy(toy(), MAP_, folder=tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    run = fit_toy(toy(), MAP_, folder=tmp_path, resume=True)
    assert [row["epoch"] for row in run.history] == [1, 2, 3, 4]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


CHANGES = {
    "engine": (MAP(lr=0.01), {}),
    "n_steps": (MAP_, {"epochs": 9}),
    "batch_size": (MAP_, {"batch_size": 9}),
    "seed": (MAP_, {"seed": 1}),
    "schedule": (MAP_, {"schedule": Schedule(lr="cosine")}),
    "pruning": (MAP_, {"pruning": GradualPruning(0.5, score="magnitude")}),
    "n_models": (MAP_, {"n_models": 2}),
    "patience": (MAP_, {"validation": Validation(Contrary, patience=5)}),
    "clip_norm": (MAP_, {"schedule": Schedule(clip_norm=1.0)}),
}


@pytest.mark.parametrize(("engine", "options"), CHANGES.values(), ids=CHANGES.keys())
def test_other_settings_than_the_first_runs_raise(tmp_path, request, engine, options):
    name = request.node.callspec.id
    fit_toy(toy(), MAP_, folder=tmp_path)
    with pytest.raises(ValueError, match=f"resume: the checkpoint was made with {name} "):
        fit_toy(toy(), engine, folder=tmp_path, resume=True, **options)


def test_a_checkpoint_of_version_02_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5)
        old = "bayesieve.training.fingerprint.printed"
        patch.setattr(old, lambda x: repr(x).replace("local=", "paired=False, local="))
        with pytest.raises(Interrupted):
            fit_toy(toy(), SBNN_, folder=tmp_path)
    assert (
        b", paired=False, local="
        in next((tmp_path / "checkpoints").glob("*.safetensors")).read_bytes()
    )
    assert_equal_runs(fit_toy(toy(), SBNN_, folder=tmp_path, resume=True), fit_toy(toy(), SBNN_))


def test_other_data_or_another_network_raise(tmp_path):
    fit_toy(toy(), MAP_, folder=tmp_path)
    again_in = {"folder": tmp_path, "resume": True}
    with pytest.raises(ValueError, match="made with n_data 22, this run has 24"):
        fit_toy(toy(n=24), MAP_, **again_in)
    with pytest.raises(ValueError, match=r"resume: .* the network or number of models differs"):
        fit_toy(toy(lambda: torch.nn.Linear(4, 3)), MAP_, **again_in)


def test_a_score_given_as_a_function_does_not_hinder_resuming(tmp_path):
    first, again = (
        GradualPruning(0.5, score=lambda q: magnitude_score(q)) for _ in range(2)
    )  # another address, as in another process
    whole = fit_toy(toy(), MAP_, pruning=first, folder=tmp_path)
    again_in = {"folder": tmp_path, "resume": True}
    assert_equal_runs(fit_toy(toy(), MAP_, pruning=again, **again_in), whole)


def test_a_folder_with_checkpoints_is_not_overwritten(tmp_path):
    first = fit_toy(toy(), MAP_, folder=tmp_path)
    with pytest.raises(ValueError, match="holds checkpoints of an earlier run"):
        fit_toy(toy(), MAP_, epochs=1, folder=tmp_path)
    again = fit_toy(toy(), MAP_, folder=tmp_path, resume=True)
    assert without_clock(again.history) == without_clock(first.history)
