"""Memory is flat over many predictions and fits."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesieve as bs
from bayesieve.core.likelihoods import Gaussian
from faults.rows import Tally, cases
from zoo import chain

N_PREDICTIONS, N_FITS = cases((80, 4), (2000, 50))
ALLOWED = 4_000_000  # bytes, what an allocator may take and keep
needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")


def resident():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth(call, n):
    """Bytes by which the process grows over the last n of 1.5 n calls."""
    for _ in range(max(2, n // 2)):
        call()
    before = resident()
    Tally.now.injected(n)
    for _ in range(n):
        call()
    return resident() - before


def problem():
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    return bs.Problem(chain(64, 64, 1, act=nn.ReLU), Gaussian(), (x, x[:, 0]))


@needs_proc
def test_predictions_take_no_more_memory_each():
    posterior = bs.fit(problem(), bs.SBNN(), steps=2, batch_size=64).posterior
    x = torch.randn(500, 64)
    # Each holds on to 8 x 500 outputs and 8 draws of 4,225 weights: kept, 80 would be 12 MB.
    assert growth(lambda: bs.predict(posterior, x, n_samples=8), N_PREDICTIONS) < ALLOWED


@needs_proc
def test_predictions_of_an_estimator_take_no_more_memory_each():
    x = np.random.default_rng(0).normal(size=(60, 5))
    model = bs.SieveRegressor(hidden=(8,), epochs=1, folds=0, n_samples=4, random_state=0)
    model.fit(x, x[:, 0])
    assert growth(lambda: model.predict(x), N_PREDICTIONS) < ALLOWED


@needs_proc
@pytest.mark.parametrize("engine", [bs.SBNN(), bs.MAP(), bs.SGHMC()], ids=["sbnn", "map", "sghmc"])
def test_fits_take_no_more_memory_each(engine):
    # The state of one, with Adam's moments, is 100 kB; its data and graph half a megabyte more.
    asked = problem()
    assert growth(lambda: bs.fit(asked, engine, steps=20, batch_size=64), N_FITS) < ALLOWED
