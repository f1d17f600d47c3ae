"""Which differences between methods mean something: ranks over seeds, and Nemenyi's difference.

Each seed ranks the methods by one metric. Two methods differ at 5 % when their mean ranks are
further apart than CD = q √(k (k + 1) / 6N), with k methods, N seeds and q the studentised range
over √2: Demšar (2006), section 3.2.2. With few seeds CD is large, and that is the truth.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import rankdata, studentized_range

_LEVEL = 0.05
HIGHER_IS_BETTER = ("out-of-distribution AUROC",)


@dataclass(frozen=True)
class Standing:
    """How the methods stand in one metric, best first.

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
            for name, mean, own in zip(self.names, self.means, self.errors, strict=True)
            if abs(mean - best) <= 2 * math.hypot(error, own or 0.0)
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
        metric: {name: [own[metric] for own in seeds] for name, seeds in scores.items()}
        for metric in metrics
    }
    return [_standing(metric, values) for metric, values in columns.items()]


def _standing(metric: str, values: Mapping[str, Sequence[float]]) -> Standing:
    sign = -1.0 if metric in HIGHER_IS_BETTER else 1.0
    names, own = list(values), list(values.values())
    n_seeds = min(len(column) for column in own)
    by_seed = [rankdata([sign * column[i] for column in own]) for i in range(n_seeds)]
    ranks = [statistics.fmean(float(ranked[j]) for ranked in by_seed) for j in range(len(names))]
    means = [statistics.fmean(column) for column in own]
    errors = [_standard_error(column) for column in own]
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
