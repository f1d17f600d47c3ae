"""A run of a week: a million checkpoints, one after another, leave two files; memory is flat."""

import os
import sys

import pytest
import torch

from bayesieve.training.checkpoint import read_checkpoint, write_checkpoint
from faults.injectors import contents
from faults.rows import cases

N_PARTS, N_CHECKPOINTS = cases((1, 50), (10, 100_000))
WARM = cases(10, 1000)
# pathlib interns every name. Python makes its table of these anew when the gaps of names that are
# gone fill it, with room for three times the names that are left: 2 MB more once, later 4 MB. So it
# is filled first, and all else must be flat.
NAMES = cases(0, 1_000_000)
ALLOWED = 1.2  # MB, one arena of Python's


def resident():
    """Memory of this process, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.parametrize("part", range(N_PARTS))
def test_checkpoints_rotate_without_growth(tmp_path, tally, part):
    for i in range(NAMES):
        sys.intern(f"name {i}")
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
            if descriptors is not None:
                sizes.append(resident())
    assert descriptors is None or len(os.listdir("/proc/self/fd")) == descriptors
    if sizes and sizes[-1] - sizes[len(sizes) // 10] > ALLOWED:
        tally.found("other failures", f"memory in MB, after every twentieth: {sizes}")
