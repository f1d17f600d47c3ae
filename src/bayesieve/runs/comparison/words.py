"""What a comparison says, in sentences made from its numbers."""

from collections.abc import Sequence
from statistics import fmean

from bayesieve.runs.comparison.rank import Standing

_PHRASES = {
    "NLL": "the most probable answers (lowest NLL)",
    "ECE": "the best calibration (lowest ECE)",
    "out-of-distribution AUROC": "the best eye for foreign inputs (highest AUROC)",
}
_CHANCE = {"out-of-distribution AUROC": 0.5}
_SLACK = 0.005  # a mask may overshoot by a unit's weights; more than this was not asked for


def reading(found: Sequence[Standing]) -> list[str]:
    """One sentence per metric: who leads, who is tied with it, and how far the last is behind.

    Example:
        >>> own = Standing("ECE", ("bmr", "map"), (0.01, 0.05), (0.001, 0.002), (1.0, 2.0), None)
        >>> reading([own])
        ['bmr has the best calibration (lowest ECE), 0.0100; map is last: 0.0500.']
    """
    return [_sentence(own) for own in found if len(own.names) > 1]


def removed_already(
    name: str, asked: Sequence[float], reached: Sequence[Sequence[float]]
) -> str | None:
    """What to know of a method that had removed more weights than a column asks for.

    Args:
        name: the method.
        asked: fractions of zeros.
        reached: of each repetition, the fraction in place of each that was asked for.

    Example:
        >>> removed_already("bmr", [0.5, 0.9], [[0.62, 0.9], [0.64, 0.9]])
        'bmr had itself removed 63.0 % of its weights: its error at 50 % zeros is taken there.'
    """
    means = [fmean(column) for column in zip(*reached, strict=True)]
    over = [(a, m) for a, m in zip(asked, means, strict=True) if m > a + _SLACK]
    if not over:
        return None
    levels = _listed([f"{100 * a:g}" for a, _ in over])
    was = "errors" if len(over) > 1 else "error"
    verb = "are" if len(over) > 1 else "is"
    return (
        f"{name} had itself removed {100 * over[0][1]:.1f} % of its weights: its {was} at {levels} "
        f"% zeros {verb} taken there."
    )


def _sentence(own: Standing) -> str:
    best, what = f"{own.means[0]:.4f}", _PHRASES.get(own.metric, f"the lowest {own.metric}")
    chance = _CHANCE.get(own.metric)
    if chance is not None and own.means[0] <= chance:
        return f"{own.metric}: no method does better than chance ({own.names[0]} {best})."
    if own.means[0] == own.means[-1]:
        return f"{own.metric}: all methods have {best}."
    tied, equal = own.tied(), _equal(own, own.means[0])
    if len(tied) == len(own.names):
        return (
            f"{own.metric}: no method differs from the best by two standard errors "
            f"({own.names[0]} {best})."
        )
    first = f"{_listed(equal)} {'have' if len(equal) > 1 else 'has'} {what}, {best}"
    if len(tied) > len(equal):
        others = _listed([name for name in tied if name not in equal])
        first += f", tied within two standard errors with {others}"
    last = _equal(own, own.means[-1])
    return f"{first}; {_listed(last)} {'are' if len(last) > 1 else 'is'} last: {own.means[-1]:.4f}."


def _equal(own: Standing, mean: float) -> list[str]:
    return [name for name, other in zip(own.names, own.means, strict=True) if other == mean]


def _listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: a, b and c."""
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last
