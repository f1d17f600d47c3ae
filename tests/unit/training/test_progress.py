"""Scalars for TensorBoard."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.problem import Problem
from bayesieve.engines.map import MAP
from bayesieve.training import progress
from bayesieve.training.fit import fit
from bayesieve.training.progress import ScalarLog

pytest.importorskip("tensorboard")


@pytest.mark.parametrize("n_models", [1, 2])
def test_every_number_of_every_epoch_is_there(tmp_path, n_models):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    problem = Problem(nn.Linear(2, 1), Gaussian(), (torch.randn(8, 2), torch.randn(8, 1)))
    log = ScalarLog(tmp_path)
    run = fit(problem, [MAP()] * n_models, epochs=3, batch_size=4, callbacks=[log])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    name = "log_lik" if n_models == 1 else "log_lik/1"
    points = events.Scalars(name)
    assert [point.step for point in points] == [2, 4, 6]
    last = run.history[-1]["log_lik"]
    assert points[-1].value == pytest.approx(last if n_models == 1 else last[1])


def test_it_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'bayesieve\[tensorboard\]'"):
        ScalarLog(tmp_path)
