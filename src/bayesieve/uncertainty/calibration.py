"""Temperature scaling: a correction of probabilities from held-out data.

T divides the scores before the softmax and minimises the negative log-likelihood on
held-out data [Guo]. In β = 1/T the objective

    J(β) = mean_n [ log Σ_c exp(β l_nc) - β l_ny ]

is convex, with derivative mean_n [ E_β[l_n] - l_ny ], so the minimiser is the root of an
increasing function. For a posterior predictive l is the log of the *mean* probabilities over the
draws (`ClassPrediction.log_probs`), never the mean of the log-probabilities:
the temperature then corrects the distribution that is reported, not the single draws. Of a
regression T multiplies the variance, of the noise and of the draws alike. `evaluate` states the
uncertainty at the temperature, so that it matches the held-out likelihood.

Departures: T is confined to [0.02, 50]. Where every example is classified right, T = 0 would be
optimal, and where the scores carry no information, T = ∞; the nearer limit is returned.
"""

import math

import torch
from torch import Tensor

from bayesieve.assess.metrics import check_labels
from bayesieve.assess.predict import ClassPrediction, Prediction, RealPrediction

MIN_TEMPERATURE = 0.02
MAX_TEMPERATURE = 50.0


def fit_temperature(prediction: Tensor | Prediction, targets: Tensor) -> float:
    """Temperature in [0.02, 50] with the least negative log-likelihood of held-out targets.

    Of class scores it is found to 1e-9 relative. If the likelihood does not depend on the
    temperature (all classes tied everywhere), it is 1.

    Args:
        prediction: of held-out examples; or their logits or log-probabilities, shape (N, C), -inf
            for an impossible class.
        targets: labels, whole numbers, shape (N,), or one for each position of a prediction, as
            `likelihood.labels(y)` gives them; or numbers, (N, m).

    Example:
        >>> scores = torch.tensor([[2.0, 0.0]] * 4)  # 88% sure, right 3 times in 4
        >>> round(fit_temperature(scores, torch.tensor([0, 0, 0, 1])), 4)  # 2 / log 3
        1.8205
    """
    if isinstance(prediction, RealPrediction):
        return _variance_factor(prediction, targets)
    logits, labels = prediction, targets
    if isinstance(prediction, ClassPrediction):
        rows, labels = prediction.scored(targets)
        logits = rows.log_probs
    assert isinstance(logits, Tensor)
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
