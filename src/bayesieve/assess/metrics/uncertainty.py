"""Predictive uncertainty of a classifier and its two parts, in nats.

With p_s the probabilities under posterior draw s and p̄ their mean,

    H[p̄]            =  mean_s H[p_s]    +  mean_s KL(p_s || p̄)
    total               aleatoric            epistemic (mutual information of label and weights)

Everything is computed from log-probabilities; zero probability (-inf) contributes zero.
"""

import math

import torch
from torch import Tensor

from bayesieve.assess.metrics.inputs import check_sample_log_probs


def predictive_log_probs(sample_log_probs: Tensor) -> Tensor:
    """Log of the mean probabilities over draws: (S, N, C) to (N, C).

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()
        >>> [round(p, 3) for p in predictive_log_probs(draws).exp()[0].tolist()]
        [0.7, 0.3]
    """
    sample_log_probs = check_sample_log_probs("predictive_log_probs", sample_log_probs)
    return _log_mean(sample_log_probs)


def predictive_entropy(sample_log_probs: Tensor) -> Tensor:
    """Total uncertainty: entropy of the mean probabilities, (S, N, C) to (N,).

    Example:
        >>> draws = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log()
        >>> round(predictive_entropy(draws).item(), 4)  # log 2
        0.6931
    """
    sample_log_probs = check_sample_log_probs("predictive_entropy", sample_log_probs)
    return _entropy(_log_mean(sample_log_probs))


def expected_entropy(sample_log_probs: Tensor) -> Tensor:
    """Aleatoric uncertainty: mean over draws of the entropy, (S, N, C) to (N,).

    Example:
        >>> draws = torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log()
        >>> round(expected_entropy(draws).item(), 4)  # (log 2 + 0) / 2
        0.3466
    """
    return _entropy(check_sample_log_probs("expected_entropy", sample_log_probs)).mean(0)


def mutual_information(sample_log_probs: Tensor) -> Tensor:
    """Epistemic uncertainty: mean over draws of KL(p_s || p̄), (S, N, C) to (N,).

    It equals `predictive_entropy - expected_entropy`, without the cancellation when draws agree.

    Example:
        >>> draws = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log()
        >>> round(mutual_information(draws).item(), 4)  # certain draws that disagree: log 2
        0.6931
    """
    log_p = check_sample_log_probs("mutual_information", sample_log_probs)
    kl = (log_p.exp() * (_finite(log_p) - _finite(_log_mean(log_p)))).sum(-1)
    return kl.mean(0).clamp_min(0)  # rounding only: the exact value is not negative


def _log_mean(sample_log_probs: Tensor) -> Tensor:
    return torch.logsumexp(sample_log_probs, 0) - math.log(sample_log_probs.shape[0])


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * _finite(log_probs)).sum(-1).clamp_max(0)


def _finite(log_probs: Tensor) -> Tensor:
    # exp(-inf) * lowest float is exactly 0, the limit of p log p; exp(-inf) * -inf would be NaN
    return log_probs.clamp_min(torch.finfo(log_probs.dtype).min)
