"""Chains that are killed and resumed go on as if nothing had happened, bit for bit."""

import os
import signal
import sys
import threading

import pytest
import torch
from safetensors.torch import load_file

from commands import Forked

PATIENCE_S = 120
N_STEPS = 120
# Four chains on a normalised network, pruned on a schedule, with an adaptive prior and a ring of
# draws; argument 1 is the folder, argument 2 whether to resume.
SCRIPT = f"""
import sys
from pathlib import Path
import torch
from torch import nn
import bayesieve as bs
from bayesieve.core.storage import save
from bayesieve.data.augment import Augment
from bayesieve.sieve.schedule import AnnealedPruning

torch.set_num_threads(1)
folder, resume = Path(sys.argv[1]), sys.argv[2] == "resume"
torch.manual_seed(0)
x, y = torch.rand(60, 1, 6, 6), torch.randint(3, (60,))
net = nn.Sequential(
    nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
)
engine = bs.SGHMC(
    bs.priors.GaussianLaplace(0.3, 0.5, slab_share=1.0), 1e-4, adapt="sa",
    chain=bs.Chain(burn_in=60, thin=5, n_kept=4, cooling=0.999),
)
run = bs.fit(
    bs.Problem(net, bs.likelihoods.Categorical(), (x, y), augment=Augment(shift=1)), [engine] * 4,
    steps={N_STEPS}, batch_size=20, pruning=AnnealedPruning(0.5, periods=100, end=0.4),
    schedule=bs.Schedule(checkpoint_every=7, compile="off"), folder=folder, resume=resume,
)
for i, posterior in enumerate(run.posteriors):
    save(posterior, folder / f"chain-{{i}}.safetensors")
"""


def run_script(folder, how):
    sys.argv = ["script", str(folder), how]
    exec(compile(SCRIPT, "script", "exec"), {"__name__": "__main__"})


def finish(folder, how, monkeypatch):
    """Run the script to its end, in this process; the killed ones have theirs."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    with torch.random.fork_rng(devices=[]):
        run_script(folder, how)
    return {path.name: load_file(path) for path in folder.glob("*.safetensors")}


def wait_for_step(process, folder, step):
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        names = [path.stem for path in (folder / "checkpoints").glob("checkpoint-*.safetensors")]
        if any(int(name.removeprefix("checkpoint-")) >= step for name in names):
            return
        assert process.is_alive, process.errors
        tick.wait(0.01)
    raise AssertionError(f"no checkpoint of step {step} within {PATIENCE_S} s")


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_chains_killed_twice_and_resumed_equal_unbroken_ones(tmp_path, monkeypatch):
    whole = finish(tmp_path / "whole", "anew", monkeypatch)
    assert len(whole) == 4
    folder = tmp_path / "killed"
    for how, step in (("anew", 21), ("resume", 70)):
        process = Forked(tmp_path / "errors.txt", run_script, folder, how)
        wait_for_step(process, folder, step)
        assert process.end(signal.SIGKILL, PATIENCE_S) == -signal.SIGKILL
        assert not list(folder.glob("chain-*"))
    again = finish(folder, "resume", monkeypatch)
    assert again.keys() == whole.keys()
    for name, tensors in whole.items():
        assert tensors.keys() == again[name].keys()
        for key, value in tensors.items():
            assert torch.equal(value, again[name][key]), (name, key)
