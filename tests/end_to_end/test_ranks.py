"""`bayesieve train` on two processes, as a launcher starts them. `make ranks` runs these."""

import json
import os
import signal
import sys
import threading

import pytest

from bayesieve import runs
from ranks import free_port, start

pytestmark = pytest.mark.skipif(
    "BAYESIEVE_RANKS" not in os.environ, reason="takes half a minute: `make ranks`"
)
TRAIN = ("-m", "bayesieve", "train", "--data", "digits", "--net", "mlp:8", "--no-figures")
PATIENCE = 60


def pair(*arguments):
    """Two processes of one command."""
    port = free_port()
    return [start([*TRAIN, *arguments], rank, port) for rank in range(2)]


def ended(processes):
    """Exit codes and what was said on standard error."""
    said = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    return [process.returncode for process in processes], said


def checkpoints(folder):
    """Their names."""
    return {path.name for path in folder.glob("checkpoints/*.safetensors")}


def begun(folder, processes, earlier=frozenset()):
    """Wait for a new checkpoint."""
    tick = threading.Event()
    while not checkpoints(folder) - earlier:
        assert all(process.poll() is None for process in processes)
        tick.wait(0.05)


@pytest.mark.parametrize("engine", ["sbnn", "sgld"])
def test_two_processes_write_one_run(tmp_path, engine):
    codes, said = ended(pair("--engine", engine, "--epochs", "2", "--out", tmp_path / "a"))
    assert codes == [0, 0], said
    assert said[1] == ""  # the first process tells what there is to tell
    run = runs.load(tmp_path / "a")
    assert json.loads((tmp_path / "a" / "metrics.json").read_text())["epochs"] == 2
    assert run.posterior.mean.isfinite().all()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_signal_to_one_process_ends_both_and_one_goes_on_alone(tmp_path, victim):
    out = tmp_path / "a"
    processes = pair("--engine", "map", "--epochs", "40000", "--out", out)
    begun(out, processes)
    processes[victim].send_signal(signal.SIGTERM)
    codes, said = ended(processes)
    assert codes == [143, 143], said
    earlier = checkpoints(out)
    alone = start([*TRAIN[:3], "--out", out, "--resume"], 0, free_port(), n=1)
    begun(out, [alone], earlier)
    alone.send_signal(signal.SIGTERM)
    assert ended([alone])[0] == [143]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_is_named_by_the_other(tmp_path, victim):
    out = tmp_path / "a"
    processes = pair("--engine", "map", "--epochs", "40000", "--out", out)
    begun(out, processes)
    processes[victim].kill()
    codes, said = ended(processes)
    assert (codes[victim], codes[1 - victim]) == (-signal.SIGKILL, 1)
    assert f"error: fit: rank {victim} of 2 (process " in said[1 - victim]


def test_other_commands_are_refused(tmp_path):
    command = ["-m", "bayesieve", "prune", tmp_path, "--zeros", "0.5", "--out", tmp_path / "b"]
    processes = [start(command, rank, free_port()) for rank in range(2)]
    codes, said = ended(processes)
    assert codes == [2, 2]
    assert "only `train` divides its work" in said[0]
    assert sys.executable not in said[0]
