"""Markdown tables of the one-shot and the VGG study, from their records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studies.sbnn_published import CIFAR10, LENET5, MNIST, VGG, WIDTHS, Pairs

Record = Mapping[str, Any]

_SHOWN = (50, 75, 90, 95, 98, 99, 99.5)
_NAMES = {
    "m400": "MNIST, 2 x 400", "m800": "MNIST, 2 x 800", "m1200": "MNIST, 2 x 1200",
    "m1200-bbb": "MNIST, 2 x 1200", "cifar10": "CIFAR-10, 2 x 1200",
    "cifar10-bbb": "CIFAR-10, 2 x 1200", "l300-set1": "LeNet-300-100, prior set 1",
    "l300-set2": "LeNet-300-100, prior set 2", "l5-set1": "LeNet-5-Caffe, prior set 1",
    "l5-set2": "LeNet-5-Caffe, prior set 2",
}  # fmt: skip
_PAPER: Mapping[str, tuple[Pairs, int]] = {
    "m1200": (MNIST, 0), "m1200-bbb": (MNIST, 1), "cifar10": (CIFAR10, 0),
    "cifar10-bbb": (CIFAR10, 1), "l5-set1": (LENET5, 0), "l5-set2": (LENET5, 1),
}  # fmt: skip
_RANKED = {"snr": "sBNN, signal to noise", "inclusion": "sBNN, inclusion"}


def one_shot_table(records: Iterable[Record]) -> str:
    """Test error in % at each droprate, ours by every ranking, then the paper's.

    Args:
        records: of `sbnn_droprate`, in any order; none give no table.
    """
    by_name = {own["name"]: own for own in records}
    if not by_name:
        return ""
    lines = [_line(["network", "method", "all", *(f"{rate:g} %" for rate in _SHOWN)]),
             _line(["---", "---", *["---:"] * (1 + len(_SHOWN))])]  # fmt: skip
    for name, title in _NAMES.items():
        if name in by_name:
            own = by_name[name]
            for score, curve in own["curves"].items():
                method = "Bayes by backprop" if name.endswith("-bbb") else _RANKED[score]
                found = {round(100 * point["droprate"], 6): point["error"] for point in curve}
                cells = [f"{100 * error:.2f}" for error in
                         (own["error_mean"], *(found[rate] for rate in _SHOWN))]  # fmt: skip
                lines.append(_line([title, method, *cells]))
            lines += _published(name, title)
    return "\n".join(lines)


def _published(name: str, title: str) -> list[str]:
    """The paper's line of a network, if it prints one."""
    if name in _PAPER:
        pairs, which = _PAPER[name]
        errors = {rate: own[which] for rate, own in pairs.items()}
    elif name.removeprefix("m").isdigit():
        errors = {0: WIDTHS[int(name.removeprefix("m"))]}
    else:
        return []
    cells = [f"{errors[rate]:.2f}" if rate in errors else "" for rate in (0, *_SHOWN)]
    return [_line([title, "*the paper*", *cells])]


def vgg_table(rows: Sequence[Record]) -> str:
    """Error in %, likelihood and time of every network of `sbnn_vgg`, beside the paper's error.

    Args:
        rows: of its records; none give no table.
    """
    if not rows:
        return ""
    lines = [_line(["zeros", "parameters left", "epochs", "error", "BatchNorm renewed", "NLL",
                    "ECE", "the paper's error", "seconds"]),
             _line(["---:"] * 9)]  # fmt: skip
    for row in rows:
        own = row["setting"]
        paper = VGG.get(own["zeros"])
        lines.append(
            _line(
                [
                    f"{100 * row['zeros']:.1f} %", f"{row['weights']:,}", str(own["epochs"]),
                    f"{row['error']:.2f} %", f"{row['renewed_error']:.2f} %", f"{row['nll']:.3f}",
                    f"{row['ece']:.3f}", "" if paper is None else f"{paper:g} %",
                    f"{row['seconds']:.0f}",
                ]
            )
        )  # fmt: skip
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
