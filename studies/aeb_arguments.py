"""What the command lines of the SG-MCMC studies share, and the splits the image studies ask for."""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Generator

from bayesieve.core.precision import PRECISIONS
from bayesieve.data.examples import DataSet

HELD_OUT = 5000


def count(text: str) -> int:
    """A whole number above 0: a study of no step or no data set has nothing to report.

    Example:
        >>> count("20000")
        20000
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number > 0, got {text!r}")
    return int(text)


def numbers(text: str) -> tuple[float, ...]:
    """A comma list of numbers.

    Example:
        >>> numbers("0.03,0.1")
        (0.03, 0.1)
    """
    return tuple(float(part) for part in text.split(","))


def prior_pairs(text: str) -> tuple[tuple[float, float], ...]:
    """A comma list of v0:v1, the Laplace scale and the Gaussian variance.

    Example:
        >>> prior_pairs("1:0.1,0.1:0.01")
        ((1.0, 0.1), (0.1, 0.01))
    """
    pairs = [tuple(float(number) for number in part.split(":")) for part in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"pairs v0:v1 separated by commas, got {text!r}")
    return tuple((pair[0], pair[1]) for pair in pairs)


def study_parser(description: str, *, quick: str, precision: str | None) -> argparse.ArgumentParser:
    """A parser with the options every image study has.

    Args:
        description: of the study.
        quick: what `--quick` does.
        precision: of training on a GPU unless asked otherwise; None leaves it to the study.
    """
    cuda = torch.cuda.is_available()
    own = argparse.ArgumentParser(description=description)
    size = own.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help=f"{quick} (also without --full)")
    size.add_argument("--full", action="store_true", help="all images and the stated epochs")
    own.add_argument("--held-out", action="store_true", help="score 5,000 training images")
    own.add_argument("--budget", type=float, help="seconds after which no run begins")
    own.add_argument("--device", default="cuda" if cuda else "cpu")
    own.add_argument("--precision", choices=PRECISIONS, default=precision if cuda else "float32")
    own.add_argument("--compile", choices=("auto", "on", "off"), default="off",
                     help="elementwise kernels; worth it for runs of many minutes")  # fmt: skip
    own.add_argument("--figures", type=Path, help="folder for figures")
    own.add_argument("--draw", type=Path, nargs="+",
                     help="train nothing: draw these records into --figures")  # fmt: skip
    own.add_argument("--out", type=Path, help="JSON, renewed after every run")
    return own


def scored_on(held_out: bool) -> str:
    """Which images the accuracies are of."""
    return f"{HELD_OUT:,} held-out training images" if held_out else "test images"


def splits(data: DataSet, held_out: bool, n_train: int | None, n_test: int = 500) -> DataSet:
    """The data with held-out training images as its test split, or with few images of each.

    Args:
        data: as loaded.
        held_out: whether the test images are left unread.
        n_train: size of a random part of the training images; None for all, and all test images.
        n_test: size of the part of the test images that goes with it.
    """
    if held_out:
        train, rest = data.train.split(HELD_OUT / len(data.train), seed=0)
        data = replace(data, train=train, test=rest)
    if n_train is None:
        return data
    source = Generator().manual_seed(0)
    order = torch.randperm(len(data.train), generator=source)[:n_train]
    few = torch.randperm(len(data.test), generator=source)[:n_test]
    return replace(data, train=data.train.subset(order), test=data.test.subset(few))
