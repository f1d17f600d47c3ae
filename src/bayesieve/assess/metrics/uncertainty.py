"""Predictive uncertainty of a classifier and its two parts, in nats.

With p_s the probabilities under posterior draw s and p̄ their mean,

    H[p̄]            =  mean_s H[p_s]    +  mean_s KL(p_s || p̄)
    total               aleatoric            epistemic (mutual information of label and weights)

Everything is computed from log-probabilities; zero probability (-inf) contributes zero.
"""

from torch import Tensor

from bayesieve.assess.metrics.inputs import check_sample_log_probs
from bayesieve.core.likelihoods.prediction import entropy, information, log_mean_prob


def predictive_log_probs(sample_log_probs: Tensor) -> Tensor:
    """Log of the mean probabilities over draws: (S, N, C) to (N, C).

    Example:
        >>> import torch
        >>> draws = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()
        >>> [round(p, 3) for p in predictive_log_probs(draws).exp()[0].tolist()]
        [0.7, 0.3]
    """
    return log_mean_prob(check_sample_log_probs("predictive_log_probs", sample_log_probs))


def predictive_entropy(sample_log_probs: Tensor) -> Tensor:
    """Total uncertainty: entropy of the mean probabilities, (S, N, C) to (N,).

    Example:
        >>> import torch
        >>> draws = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log()
        >>> round(predictive_entropy(draws).item(), 4)  # log 2
        0.6931
    """
    return entropy(log_mean_prob(check_sample_log_probs("predictive_entropy", sample_log_probs)))


def expected_entropy(sample_log_probs: Tensor) -> Tensor:
    """Aleatoric uncertainty: mean over draws of the entropy, (S, N, C) to (N,).

    Example:
        >>> import torch
        >>> draws = torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log()
        >>> round(expected_entropy(draws).item(), 4)  # (log 2 + 0) / 2
        0.3466
    """
    return entropy(check_sample_log_probs("expected_entropy", sample_log_probs)).mean(0)


def mutual_information(sample_log_probs: Tensor) -> Tensor:
    """Epistemic uncertainty: mean over draws of KL(p_s || p̄), (S, N, C) to (N,).

    It equals `predictive_entropy - expected_entropy`, without the cancellation when draws agree.

    Example:
        >>> import torch
        >>> draws = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).log()
        >>> round(mutual_information(draws).item(), 4)  # certain draws that disagree: log 2
        0.6931
    """
    return information(check_sample_log_probs("mutual_information", sample_log_probs))
