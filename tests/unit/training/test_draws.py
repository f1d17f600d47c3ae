"""Draws that go to a file while `fit` runs: those of the engine's own ring, also when resumed."""

import pytest
import torch

from bayesieve.assess.diagnostics import pooled
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.sieve.schedule import AnnealedPruning
from bayesieve.training.draws import DrawsTo, read_draws
from bayesieve.training.interrupts import Interrupted
from bayesieve.training.options import Saving
from runs import PER_EPOCH, fit_toy, interrupt_after, toy, with_batch_norm

# 8 epochs of 3 steps; the ring ends with the positions after 10, 12, ..., 24
ENGINE = SGHMC(step_size=1e-3, chain=Chain(burn_in=8, thin=2, n_kept=8))
EPOCHS = 8


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def run(folder, build=None, **options):
    draws = DrawsTo(folder / "draws.safetensors", burn_in=8, thin=2, n_kept=8)
    options = {"draws": draws, "n_models": 2, **options}
    return fit_toy(toy(build), ENGINE, epochs=EPOCHS, **options)


@pytest.mark.parametrize("build", [None, with_batch_norm], ids=["plain", "norm"])
def test_the_file_holds_what_the_ring_holds(tmp_path, build):
    finished = run(tmp_path, build)
    chains = read_draws(tmp_path / "draws.safetensors", toy(build))
    assert len(chains) == 2
    for own, posterior in zip(chains, finished.posteriors, strict=True):
        assert torch.equal(own.draws, posterior.draws)
        assert own.draw_buffers.keys() == posterior.draw_buffers.keys()
        for name, value in posterior.draw_buffers.items():
            assert torch.equal(own.draw_buffers[name], value)
    assert len(pooled(chains).draws) == 16


def test_after_the_masks_are_final_only_kept_weights_are_stored(tmp_path):
    pruning = AnnealedPruning(zeros=0.6, periods=50, end=0.3)
    finished = run(tmp_path, pruning=pruning)
    chains = read_draws(tmp_path / "draws.safetensors", toy())
    for i, own in enumerate(chains):
        assert torch.equal(own.draws, finished.posteriors[i].draws)
        assert torch.equal((own.draws != 0).all(0), finished.state.controls.keep[i])
    dense = tmp_path / "dense"
    run(dense)
    folders = (tmp_path, dense)
    small, large = ((own / "draws.safetensors").stat().st_size for own in folders)
    assert small < 0.7 * large


@pytest.mark.parametrize("stop", [4, 11, 12, 17, 23])
def test_a_run_stopped_anywhere_and_resumed_has_the_same_draws(tmp_path, monkeypatch, stop):
    run(tmp_path / "whole")
    saving = Saving(tmp_path / "broken", every=5)
    with monkeypatch.context() as patch:
        interrupt_after(patch, stop)
        with pytest.raises(Interrupted):
            run(tmp_path / "broken", saving=saving)
    run(tmp_path / "broken", saving=Saving(tmp_path / "broken", every=5, resume=True))
    whole, again = (
        read_draws(tmp_path / name / "draws.safetensors", toy()) for name in ("whole", "broken")
    )
    for own, other in zip(whole, again, strict=True):
        assert torch.equal(own.draws, other.draws)


def test_draws_that_cannot_be_kept_are_refused(tmp_path):
    path = tmp_path / "draws.safetensors"
    with pytest.raises(ValueError, match="draws are kept of chains only; use SGLD or SGHMC"):
        fit_toy(toy(), MAP(), draws=DrawsTo(path))
    run(tmp_path)
    with pytest.raises(ValueError, match="holds draws of an earlier run"):
        run(tmp_path)
    with pytest.raises(ValueError, match="thin must be > 0"):
        DrawsTo(path, thin=0)


def test_a_resumed_run_needs_its_own_file_and_rhythm(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5 * PER_EPOCH)
        with pytest.raises(Interrupted):
            run(tmp_path, saving=Saving(tmp_path))
    resume = Saving(tmp_path, resume=True)
    other = DrawsTo(tmp_path / "draws.safetensors", burn_in=8, thin=3, n_kept=8)
    with pytest.raises(ValueError, match="the checkpoint was made with draws"):
        run(tmp_path, draws=other, saving=resume)
    (tmp_path / "draws.safetensors").unlink()
    with pytest.raises(ValueError, match=r"should be in .* does not exist"):
        run(tmp_path, saving=resume)
