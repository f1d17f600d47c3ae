"""`bayesieve demo`: the whole way on a small example, in about a minute."""

from pathlib import Path
from typing import Any

from bayesieve.cli.console import print_quality
from bayesieve.cli.flags import command
from bayesieve.runs.options import Demo

EXAMPLE = "Example: bayesieve demo --out runs/demo"


@command(Demo)
def demo(asked: Demo, result: dict[str, Any]) -> None:
    """Print both networks side by side, and what is delivered."""
    out = Path(asked.out)
    delivered = result.pop("delivered")
    print_quality("digits, test images", result)
    n_images = result["dense"]["n_examples"]
    print(
        "error: wrong answers. NLL: how surprised it is by the truth. ECE: gap between its "
        "confidence\nand its accuracy. Lower is better for all three; one image of "
        f"{n_images} is {100 / n_images:.2f} %."
    )
    print(_in_words(delivered))
    print(f"open in a browser: {out / 'report.html'} (as text: {out / 'report.md'})")


def _in_words(delivered: dict[str, Any]) -> str:
    """The delivered model, in two lines."""
    before, after = ("-".join(str(pair[i]) for pair in delivered["units"]) for i in (0, 1))
    parameters = "{:,} parameters {:,}".format(*delivered["parameters"])
    was, now = delivered["ms_of_64"]
    faster = (
        ""
        if now is None
        else f"64 images take {1000 * now:.0f} µs, not {1000 * was:.0f}, on one core. "
    )
    changed = delivered["changed_predictions"] or "no"
    return (
        f"compacted: {before} hidden units are {after}, {parameters}; {changed} answer changed.\n"
        f"{faster}The model to deliver: {delivered['model']}"
    )
