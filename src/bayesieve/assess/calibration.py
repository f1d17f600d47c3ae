"""Corrections from held-out data: temperature scaling, and conformal intervals and label sets.

Temperature: T divides the scores before the softmax and minimises the negative log-likelihood on
held-out data [Guo]. In β = 1/T the objective

    J(β) = mean_n [ log Σ_c exp(β l_nc) - β l_ny ]

is convex, with derivative mean_n [ E_β[l_n] - l_ny ], so the minimiser is the root of an
increasing function. For a posterior predictive l is the log of the *mean* probabilities over the
draws (`ClassPrediction.log_probs`), never the mean of the log-probabilities:
the temperature then corrects the distribution that is reported, not the single draws. Of a
regression T multiplies the variance, of the noise and of the draws alike. `evaluate` states the
doubt at the temperature, so that it matches the held-out likelihood.

Departures: T is confined to [0.02, 50]. Where every example is classified right, T = 0 would be
optimal, and where the scores carry no information, T = ∞; the nearer limit is returned.

Conformal: from scores s_i of examples the model has not learned from, q is the
⌈(n + 1)(1 - α)⌉-th smallest. A new score is at or below q with probability at least 1 - α if the
examples are exchangeable [Vovk]. For real targets s = |y - mean| / std, so that the interval
mean ± q · std keeps the shape of the model's uncertainty. For labels s = 1 - p(label), so that the
set contains every label with p ≥ 1 - q.

With scores from inner folds, each by a network that has not seen the example, the rule is
cross-conformal: coverage near 1 - α in practice, at least 1 - 2α in theory [Barber].
"""

import math

import torch
from torch import Tensor

from bayesieve.assess.metrics import check_labels, check_same_shape
from bayesieve.assess.predict import ClassPrediction, Prediction, RealPrediction, labels_of
from bayesieve.checks import check_fraction, check_positive

MIN_TEMPERATURE = 0.02
MAX_TEMPERATURE = 50.0


def fit_temperature(prediction: Tensor | Prediction, targets: Tensor) -> float:
    """Temperature in [0.02, 50] with the least negative log-likelihood of held-out targets.

    Of class scores it is found to 1e-9 relative. If the likelihood does not depend on the
    temperature (all classes tied everywhere), it is 1.

    Args:
        prediction: of held-out examples; or their logits or log-probabilities, shape (N, C), -inf
            for an impossible class.
        targets: labels, whole numbers, shape (N,); or numbers, (N, m).

    Example:
        >>> scores = torch.tensor([[2.0, 0.0]] * 4)  # 88% sure, right 3 times in 4
        >>> round(fit_temperature(scores, torch.tensor([0, 0, 0, 1])), 4)  # 2 / log 3
        1.8205
    """
    if isinstance(prediction, RealPrediction):
        return _variance_factor(prediction, targets)
    logits = prediction.log_probs if isinstance(prediction, ClassPrediction) else prediction
    labels = labels_of(targets) if isinstance(prediction, ClassPrediction) else targets
    check_labels("fit_temperature", "logits", logits, labels)
    logits = logits.detach().double()
    labels = labels.to(logits.device)
    of_label = logits.gather(1, labels.long().unsqueeze(1))
    if bool(logits.isnan().any()) or bool((logits == math.inf).any()):
        raise ValueError("fit_temperature: logits must not be NaN or +inf.")
    if bool((of_label == -math.inf).any()):
        raise ValueError(
            "fit_temperature: a label has probability zero (-inf), so that no temperature has a "
            "finite likelihood. Use float64 log-probabilities, or drop the example."
        )
    logits = logits - logits.amax(-1, keepdim=True)
    finite = logits.clamp_min(torch.finfo(logits.dtype).min)  # 0 * lowest is 0, 0 * inf is NaN
    of_label = finite.gather(1, labels.long().unsqueeze(1)).squeeze(1)

    def slope(log_temperature: float) -> float:
        probs = torch.softmax(logits * math.exp(-log_temperature), -1)
        return float(((probs * finite).sum(-1) - of_label).mean())

    low, high = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)
    coldest, hottest = slope(low), slope(high)
    if coldest == hottest:
        return 1.0
    if coldest <= 0:  # more confidence would still help
        return MIN_TEMPERATURE
    if hottest >= 0:
        return MAX_TEMPERATURE
    from scipy.optimize import brentq  # here: it takes a third of a second to load

    return math.exp(brentq(slope, low, high, xtol=1e-10, rtol=1e-10))


def _variance_factor(prediction: RealPrediction, targets: Tensor) -> float:
    """T of `RealPrediction.tempered` with the highest likelihood, to 1e-6 relative."""
    targets = targets.to(prediction.sample_means.device)

    def nll(log_temperature: float) -> float:
        densities = prediction.tempered(math.exp(log_temperature)).log_densities(targets)
        return -float(densities.logsumexp(0).mean())

    ends = (math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE))
    from scipy.optimize import minimize_scalar  # here: it takes a third of a second to load

    return math.exp(minimize_scalar(nll, bounds=ends, options={"xatol": 1e-7}).x)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Log-probabilities at this temperature: log_softmax(logits / T) over the last axis.

    Args:
        logits: logits or log-probabilities, shape (..., C); for a posterior predictive the log of
            the mean probabilities.
        temperature: above 1 softens, below 1 sharpens.

    Example:
        >>> log_probs = torch.tensor([0.9, 0.1]).log()
        >>> [round(p, 3) for p in apply_temperature(log_probs, 2.0).exp().tolist()]  # 3 : 1
        [0.75, 0.25]
    """
    check_positive("apply_temperature", temperature=temperature)
    return torch.log_softmax(logits / temperature, -1)


def conformal_quantile(scores: Tensor, alpha: float) -> float:
    """The bound q on a new score; infinite where n is too small for the level.

    Args:
        scores: (n,), of held-out examples, larger is stranger.
        alpha: share of new examples that may fall outside.

    Example:
        >>> conformal_quantile(torch.arange(1.0, 10.0), alpha=0.2)  # the 8th of 9
        8.0
        >>> conformal_quantile(torch.arange(1.0, 4.0), alpha=0.2)
        inf
    """
    check_fraction("conformal_quantile", open_ends=True, alpha=alpha)
    if scores.ndim != 1 or not len(scores) or bool(scores.isnan().any()):
        raise ValueError(
            f"conformal_quantile: scores must have shape (n,), n > 0, without NaN, got "
            f"{tuple(scores.shape)}."
        )
    n = len(scores)
    rank = math.ceil(round((n + 1) * (1 - alpha), 9))  # 9.000000000000002 is 9
    return math.inf if rank > n else float(scores.sort().values[rank - 1])


def residual_scores(mean: Tensor, std: Tensor, targets: Tensor) -> Tensor:
    """|y - mean| / std of each entry; all three of one shape, (n,) or (n, m).

    Example:
        >>> residual_scores(torch.zeros(2), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0]))
        tensor([3.0000, 1.5000], dtype=torch.float64)
    """
    mean, std, targets = check_same_shape("residual_scores", mean=mean, std=std, targets=targets)
    check_positive("residual_scores", std=float(std.min()))
    return (targets - mean).abs() / std


def label_scores(probs: Tensor, labels: Tensor) -> Tensor:
    """1 - p(label) of each example; probabilities (n, C), labels (n,).

    Example:
        >>> label_scores(torch.tensor([[0.75, 0.25]]), torch.tensor([1]))
        tensor([0.7500])
    """
    return 1 - probs.gather(1, labels.long()[:, None])[:, 0]


def label_sets(probs: Tensor, quantile: float) -> Tensor:
    """The labels with p ≥ 1 - quantile, (n, C) bool; the likeliest label is always in.

    Example:
        >>> label_sets(torch.tensor([[0.7, 0.2, 0.1]]), quantile=0.85).tolist()
        [[True, True, False]]
    """
    inside = probs >= 1 - quantile
    return inside | (probs >= probs.amax(-1, keepdim=True))
