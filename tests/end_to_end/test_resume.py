"""A run that was killed or stopped goes on as if nothing had happened, bit for bit."""

import os
import random
import signal
import threading

import pytest
import torch
from safetensors.torch import load_file

from commands import forked_command, ok, refused

N_STEPS = 400
RUN = [
    "train", "--data", "digits", "--net", "mlp:8", "--zeros", "0.5", "--steps", str(N_STEPS),
    "--checkpoint-every", "5", "--device", "cpu", "--threads", "1", "--no-figures",
]  # fmt: skip
PATIENCE_S = 120


def start(out):
    return forked_command(out.with_suffix(".txt"), *RUN, "--out", out)


def wait_for_step(process, out, step):
    """Return once a checkpoint of `step` or later exists."""
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        names = [path.stem for path in (out / "checkpoints").glob("checkpoint-*.safetensors")]
        if any(int(name.removeprefix("checkpoint-")) >= step for name in names):
            return
        assert process.is_alive, process.errors
        tick.wait(0.02)
    raise AssertionError(f"no checkpoint of step {step} within {PATIENCE_S} s")


def finish(out, *arguments):
    ok(*arguments, "--out", out)
    return load_file(out / "posterior.safetensors")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "unbroken"
    return finish(out, *RUN), (out / "metrics.jsonl").read_text()


def without_seconds(text):
    return [line.split(", ")[:2] + line.split(", ")[3:] for line in text.splitlines()]


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_killed_and_resumed_equals_unbroken(tmp_path, unbroken):
    out = tmp_path / "killed"
    process = start(out)
    wait_for_step(process, out, random.Random(0).randrange(5, N_STEPS // 3))
    assert process.end(signal.SIGKILL, PATIENCE_S) == -signal.SIGKILL
    assert not (out / "posterior.safetensors").exists()
    weights = finish(out, "train", "--resume", "--no-figures")
    assert weights.keys() == unbroken[0].keys()
    assert all(torch.equal(weights[name], unbroken[0][name]) for name in weights)
    metrics = (out / "metrics.jsonl").read_text()
    assert without_seconds(metrics) == without_seconds(unbroken[1])


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_exit(tmp_path, unbroken, number, code):
    out = tmp_path / "stopped"
    process = start(out)
    wait_for_step(process, out, 5)
    assert process.end(number, PATIENCE_S) == code
    assert "--resume" in process.errors
    assert "Traceback" not in process.errors
    assert list((out / "checkpoints").glob("checkpoint-*.safetensors"))
    if number == signal.SIGTERM:
        weights = finish(out, "train", "--resume", "--no-figures")
        assert all(torch.equal(weights[name], unbroken[0][name]) for name in weights)
    else:
        other = refused(2, "train", "--resume", "--lr", "0.5", "--out", out)
        assert "begun with --lr 0.01, this command has 0.5" in other
        line = refused(2, *RUN, "--out", out)
        assert "holds an unfinished run; use `bayesieve train --resume`" in line
