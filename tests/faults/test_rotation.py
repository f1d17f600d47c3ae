"""A run of a week: a million checkpoints, one after another, leave two files; memory is flat."""

import os
from itertools import pairwise

import pytest
import torch

from bayesieve.training.checkpoint import read_checkpoint, write_checkpoint
from faults.injectors import contents
from faults.rows import cases

N_PARTS, N_CHECKPOINTS = cases((1, 50), (10, 100_000))
WARM = cases(10, 1000)


def resident():
    """Memory of this process, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.parametrize("part", range(N_PARTS))
def test_checkpoints_rotate_without_growth(tmp_path, tally, part):
    begin = part * N_CHECKPOINTS
    tensors = {"mean": torch.arange(8.0), "order": torch.arange(4)}
    descriptors, sizes = None, []
    for step in range(begin + 1, begin + N_CHECKPOINTS + 1):
        tensors["mean"][0] = step % 1024
        write_checkpoint(tmp_path, step, tensors, {"step": step})
        tally.injected()
        if step == begin + WARM and os.path.isdir("/proc/self/fd"):
            descriptors = len(os.listdir("/proc/self/fd"))
        if step % max(1, N_CHECKPOINTS // 20) == 0:
            names = [f"checkpoint-{step - 1:09d}.safetensors", f"checkpoint-{step:09d}.safetensors"]
            if sorted(contents(tmp_path)) != names[-min(step - begin, 2) :]:
                tally.found("other failures", f"step {step}: {sorted(contents(tmp_path))}")
            found, meta = read_checkpoint(tmp_path)
            if meta["step"] != step or found["mean"][0] != step % 1024:
                tally.found("silent wrong answers", f"step {step} reads {meta}")
            sizes.append(resident() if descriptors is not None else 0)
    assert descriptors is None or len(os.listdir("/proc/self/fd")) == descriptors
    # A table of Python's may be made anew once in a while; what leaks grows all the time.
    grown = [after - before > 0.1 for before, after in pairwise(sizes[1:])]
    if sum(grown) > len(grown) // 4:
        tally.found("other failures", f"memory in MB, after every twentieth: {sizes}")
