"""Settings to try next: Optuna's estimator of Pareto fronts, seeded by the number of the trial.

Trials have their numbers from the storage, so workers that share one never try the same settings
for want of different seeds, and a search that was stopped and continued tries what the unbroken one
would have tried.
"""

from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial

_STRIDE = 100_003  # trials of one seed and those of the next share no seed below this number


class TrialSampler(BaseSampler):
    """One tree-structured Parzen estimator per trial.

    Args:
        seed: of the whole search.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._number = -1
        self._sampler: BaseSampler = TPESampler()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The settings sampled together."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Values of those."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The value of a setting by itself, as in the first trials."""
        return self._of(trial).sample_independent(study, trial, param_name, param_distribution)

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        if trial.number != self._number:
            seed = (self._seed * _STRIDE + trial.number) % 2**32
            self._sampler = TPESampler(seed=seed, multivariate=True, constant_liar=True)
            self._number = trial.number
        return self._sampler
