"""The commands of the quickstart, the tutorial and the command line's page do run.

Each page is run from top to bottom in a folder of its own, on small data, with a small network, one
pass and no pictures: what is tested is that a reader who types these lines meets no error.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from bayesieve.nets import mlp
from commands import call
from unit.test_docs import ROOT, commands

SMALLER = {
    "--epochs": "1", "--em-iters": "1", "--finetune": "1", "--samples": "2", "--pgd-steps": "1",
    "--fgsm": "0.1", "--pgd": "0.1", "--points": "3",
    "--report": "runs/report", "--trials": "1",
}  # fmt: skip
ADDED = {
    "train": ("--epochs", "1", "--no-figures"),
    "fit-table": ("--epochs", "1", "--no-figures"),
    "prune": ("--no-figures",),
    "sieve": ("--no-figures",),
    "profile": ("--rounds", "1"),
    "attack": ("--examples", "10"),
    "report": ("--points", "3"),
}
# Shown by tests of their own: the network is needed, the smallest call still takes seconds, or
# the exit code depends on the run.
ELSEWHERE = (
    "data fetch", "scratch", "reproduce sbnn-mnist", "reproduce verify", "compare", "sweep ...",
    "certify", "select", "demo", "report runs/a runs/b",
)  # fmt: skip


def smaller(line: str) -> list[str]:
    """The words of a command with its numbers, data and network made small."""
    words = line.split()[1:]
    for i, (flag, value) in enumerate(pairwise(words)):
        words[i + 1] = SMALLER.get(flag, value)
        if flag == "--data" and value in ("mnist", "cifar10"):
            words[i + 1] = "digits"
        if flag == "--net" and not value.startswith("module:"):
            words[i + 1] = "mlp:8"
        if flag == "--zeros":  # a small network has less to lose
            words[i + 1] = str(min(0.9, float(value)))
    added = ADDED.get(words[0], ())
    given = {"--em-iters", "--epochs", "--resume"} & set(words)
    return [*words, *(added[2:] if given and added[:1] == ("--epochs",) else added)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the pages take for granted: a table, images, a network and trained weights."""
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(0)
    rows = [f"{a:.1f},{'north' if a > 0 else 'south'},{2 * a + b:.2f}"
            for a, b in numbers.normal(size=(60, 2))]  # fmt: skip
    Path("house.csv").write_text("\n".join(["area,town,price", *rows]))
    Path("new.csv").write_text("\n".join(["area,town", *(row.rpartition(",")[0] for row in rows)]))
    np.savez("new.npz", x=numbers.integers(0, 17, (5, 8, 8, 1)).astype(np.uint8))
    for label in ("cat", "dog"):
        place = Path("photos") / "train" / label
        place.mkdir(parents=True)
        for i in range(12):
            pixels = numbers.integers(0, 256, (28, 28), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{i}.png")
    Path("my_nets.py").write_text(
        "from torch import nn\n\n\ndef small(input_shape, n_outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(),"
        " nn.Linear(8, n_outputs))\n"
    )
    Path("run.yaml").write_text("data: {name: digits}\nnet: {name: 'mlp:8'}\n"
                                "training: {epochs: 1, val_fraction: 0.1}\n")  # fmt: skip
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    save_file(net.state_dict(), "own.safetensors")
    for name in ("trained", "model"):
        save_file(mlp((1, 8, 8), 10, widths=(8,)).state_dict(), f"{name}.safetensors")
    return tmp_path


PAGES = ("docs/quickstart.md", "docs/tutorial.md", "docs/cli.md")


@pytest.mark.parametrize("page", PAGES)
def test_a_reader_meets_no_error(folder, page):
    lines = [line for line in commands(ROOT / page)
             if not line.removeprefix("bayesieve ").startswith(ELSEWHERE)]  # fmt: skip
    assert len(lines) >= 6
    for line in lines:
        result = call(*smaller(line))
        assert result.exit_code == 0, (line, result.stderr, result.exception)
