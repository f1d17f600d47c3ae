"""What the studies share: their common flags, the held-out images, and the file they write."""

import argparse
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bayesieve.data.examples import DataSet, Examples
from bayesieve.files import write_atomically

HELD_OUT = 5000
_SPLIT_SEED = 0


def add_common_flags(parser: argparse.ArgumentParser, *, out: str | None = None) -> None:
    """Add --device, --held-out and --out; `out` is the help of the last."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--held-out", action="store_true", help=f"score {HELD_OUT:,} training images"
    )
    parser.add_argument("--out", type=Path, help=out or "JSON file to write")


def splits(data: DataSet, *, held_out: bool) -> tuple[Examples, Examples]:
    """Examples to train on and to score; with `held_out` the test images stay unread."""
    return hold_out(data.train) if held_out else (data.train, data.test)


def hold_out(train: Examples) -> tuple[Examples, Examples]:
    """The same 5,000 training images on every call, as the second part."""
    return train.split(HELD_OUT / len(train), seed=_SPLIT_SEED)


def scored_on(n_test: int | None = None, *, held_out: bool) -> str:
    """What the scores are of, in words.

    Example:
        >>> scored_on(10_000, held_out=False), scored_on(held_out=True)
        ('10,000 test images', '5,000 held-out training images')
    """
    if held_out:
        return f"{HELD_OUT:,} held-out training images"
    return "test images" if n_test is None else f"{n_test:,} test images"


def machine(device: str) -> dict[str, str]:
    """What the numbers were measured on."""
    own = torch.device(device)
    chip = torch.cuda.get_device_name(own) if own.type == "cuda" else platform.processor()
    return {"device": chip or platform.machine(), "torch": torch.__version__,
            "python": platform.python_version()}  # fmt: skip


def today() -> str:
    """The date in UTC, as in 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def command(study: str, arguments: Sequence[str] | None) -> str:
    """The command line of a study; None stands for that of this process.

    Example:
        >>> command("sbnn_mnist", ["--quick"])
        'python -m studies.sbnn_mnist --quick'
    """
    given = sys.argv[1:] if arguments is None else arguments
    return f"python -m studies.{study} {shlex.join(given)}".rstrip()


def record_head(
    study: str, arguments: Sequence[str] | None, options: argparse.Namespace,
    n_test: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The first entries of a result: study, machine, what the scores are of, command and date.

    Args:
        study: name of its module.
        arguments: given to its `main`.
        options: parsed, with the flags of `add_common_flags`.
        n_test: size of the test set, where there is one.
    """
    return {
        "study": study,
        "machine": machine(options.device),
        "scored_on": scored_on(n_test, held_out=options.held_out),
        "command": command(study, arguments),
        "date": today(),
    }


def write_record(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, all or nothing; None writes none."""
    if path is not None:
        write_atomically(path, result)
