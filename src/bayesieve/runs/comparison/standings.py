"""Which differences between methods mean something, and that in sentences.

Each seed ranks the methods by one metric. Two methods differ at 5 % when their mean ranks are
further apart than CD = q √(k (k + 1) / 6N), with k methods, N seeds and q the studentised range
over √2: Demšar (2006), section 3.2.2. With few seeds CD is large, and that is the truth.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy.stats import rankdata, studentized_range

_LEVEL = 0.05
HIGHER_IS_BETTER = ("out-of-distribution AUROC",)
_PHRASES = {
    "NLL": "the most probable answers (lowest NLL)",
    "ECE": "the best calibration (lowest ECE)",
    "out-of-distribution AUROC": "the best eye for foreign inputs (highest AUROC)",
}
_CHANCE = {"out-of-distribution AUROC": 0.5}
_SLACK = 0.005  # a mask may overshoot by a unit's weights; more than this was not asked for


@dataclass(frozen=True)
class Standing:
    """The order of the methods in one metric, best first.

    Args:
        metric: its name.
        names: methods, by mean.
        means: of each over the seeds.
        errors: standard errors of the means; None with one seed.
        ranks: mean rank of each, 1 the best.
        critical_difference: of mean ranks; None where it is undefined (one seed or method).
    """

    metric: str
    names: tuple[str, ...]
    means: tuple[float, ...]
    errors: tuple[float | None, ...]
    ranks: tuple[float, ...]
    critical_difference: float | None

    def tied(self) -> tuple[str, ...]:
        """Methods whose mean lies within two standard errors of the best one's."""
        best, error = self.means[0], self.errors[0] or 0.0
        return tuple(
            name
            for name, mean, spread in zip(self.names, self.means, self.errors, strict=True)
            if abs(mean - best) <= 2 * math.hypot(error, spread or 0.0)
        )


def critical_difference(n_methods: int, n_seeds: int) -> float:
    """Nemenyi's critical difference of mean ranks at 5 %.

    Example:
        >>> round(critical_difference(4, 14), 2)  # Demšar (2006), example: 2.569 √(4·5 / 6·14)
        1.25
    """
    q = float(studentized_range.ppf(1 - _LEVEL, n_methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(n_methods * (n_methods + 1) / (6 * n_seeds))


def standings(scores: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Standing]:
    """The methods' standing in every metric that all of them have.

    Means are over all seeds of a method; ranks over as many as every method has.

    Args:
        scores: method -> numbers of each seed, metric -> value.

    Example:
        >>> one = standings({"a": [{"error": 0.2}], "b": [{"error": 0.1}]})[0]
        >>> one.names, one.ranks
        (('b', 'a'), (1.0, 2.0))
    """
    each = [numbers for seeds in scores.values() for numbers in seeds]
    if not each:
        return []
    metrics = [metric for metric in each[0] if all(metric in numbers for numbers in each)]
    columns = {
        metric: {name: [numbers[metric] for numbers in seeds] for name, seeds in scores.items()}
        for metric in metrics
    }
    return [_standing(metric, values) for metric, values in columns.items()]


def _standing(metric: str, values: Mapping[str, Sequence[float]]) -> Standing:
    sign = -1.0 if metric in HIGHER_IS_BETTER else 1.0
    names, columns = list(values), list(values.values())
    n_seeds = min(len(column) for column in columns)
    by_seed = [rankdata([sign * column[i] for column in columns]) for i in range(n_seeds)]
    ranks = [statistics.fmean(float(ranked[j]) for ranked in by_seed) for j in range(len(names))]
    means = [statistics.fmean(column) for column in columns]
    errors = [_standard_error(column) for column in columns]
    order = sorted(range(len(names)), key=lambda j: sign * means[j])
    return Standing(
        metric,
        tuple(names[j] for j in order),
        tuple(means[j] for j in order),
        tuple(errors[j] for j in order),
        tuple(ranks[j] for j in order),
        critical_difference(len(names), n_seeds) if n_seeds > 1 and len(names) > 1 else None,
    )


def _standard_error(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def reading(standings: Sequence[Standing]) -> list[str]:
    """One sentence per metric: who leads, who is tied with it, and how far the last is behind.

    Example:
        >>> one = Standing("ECE", ("bmr", "map"), (0.01, 0.05), (0.001, 0.002), (1.0, 2.0), None)
        >>> reading([one])
        ['bmr has the best calibration (lowest ECE), 0.0100; map is last: 0.0500.']
    """
    return [_sentence(one) for one in standings if len(one.names) > 1]


def removed_already(
    name: str, asked: Sequence[float], reached: Sequence[Sequence[float]]
) -> str | None:
    """The remark on a method that had removed more weights than a column asks for.

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


def _sentence(standing: Standing) -> str:
    metric, means = standing.metric, standing.means
    leader, best = standing.names[0], f"{means[0]:.4f}"
    if metric in _CHANCE and means[0] <= _CHANCE[metric]:
        return f"{metric}: no method does better than chance ({leader} {best})."
    if means[0] == means[-1]:
        return f"{metric}: all methods have {best}."
    tied, first, last = standing.tied(), _equal(standing, means[0]), _equal(standing, means[-1])
    if len(tied) == len(standing.names):
        return (
            f"{metric}: no method differs from the best by two standard errors ({leader} {best})."
        )
    what = _PHRASES.get(metric, f"the lowest {metric}")
    sentence = f"{_listed(first)} {'have' if len(first) > 1 else 'has'} {what}, {best}"
    if len(tied) > len(first):
        others = _listed([name for name in tied if name not in first])
        sentence += f", tied within two standard errors with {others}"
    return f"{sentence}; {_listed(last)} {'are' if len(last) > 1 else 'is'} last: {means[-1]:.4f}."


def _equal(standing: Standing, mean: float) -> list[str]:
    pairs = zip(standing.names, standing.means, strict=True)
    return [name for name, other in pairs if other == mean]


def _listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: a, b and c."""
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last
