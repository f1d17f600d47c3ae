"""Temperature scaling, rankings by uncertainty and ranks of targets, all from held-out data.

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

Rankings serve selective prediction and OOD detection. Tied scores have no order: a result is the
expectation over a random order of the ties, so that the order of the examples does not matter.
"""

import math

import torch
from torch import Generator, Tensor

from bayesieve.assess.metrics import check_labels, check_same_shape
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


# --------------------------------------------------------------------------------------- rankings


def risk_coverage(uncertainty: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    """Coverage k/N and mean loss of the k least uncertain examples, k = 1..N; both (N,).

    Args:
        uncertainty: the higher, the sooner an example is refused, shape (N,).
        losses: loss of each example, 0 or 1 for right or wrong, shape (N,).

    Example:
        >>> coverage, risk = risk_coverage(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0]))
        >>> coverage.tolist(), risk.tolist()
        ([0.5, 1.0], [0.0, 0.5])
    """
    uncertainty, losses = check_same_shape("risk_coverage", uncertainty=uncertainty, losses=losses)
    _check_vector("risk_coverage", uncertainty=uncertainty)
    _, group, size = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    mean_loss = torch.bincount(group, losses, len(size)) / size
    in_order = mean_loss.repeat_interleave(size)  # each tied example carries its group's mean
    kept = torch.arange(1, len(losses) + 1, dtype=losses.dtype, device=losses.device)
    return kept / len(losses), in_order.cumsum(0) / kept


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Probability that an outside score exceeds an inside score, ties counting one half.

    Args:
        inside: scores of in-distribution examples, shape (N,).
        outside: scores of out-of-distribution examples, shape (M,); higher means less familiar.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))  # (1 + 1 + 1 + ½) / 4
        0.875
    """
    (first,) = check_same_shape("auroc", inside=inside)
    (second,) = check_same_shape("auroc", outside=outside)
    _check_vector("auroc", inside=inside, outside=outside)
    scores = torch.cat([first, second])
    _, group, size = torch.unique(scores, return_inverse=True, return_counts=True)
    # ranks from 1; ties share their mean
    mid_rank = size.cumsum(0).double() - (size.double() - 1) / 2
    n_inside, n_outside = len(inside), len(outside)
    rank_sum = float(mid_rank[group[n_inside:]].sum())
    return (rank_sum - n_outside * (n_outside + 1) / 2) / (n_inside * n_outside)


def _check_vector(who: str, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim != 1:
            raise ValueError(f"{who}: {name} must have one axis, got shape {tuple(tensor.shape)}.")


def rank_histogram(samples: Tensor, targets: Tensor, n_bins: int, generator: Generator) -> Tensor:
    """Count targets by their rank among draws from their predictive distribution, (n_bins,).

    The probability integral transform by ranks: flat for a calibrated model, a hill where its
    distributions are too wide, a valley where they are too narrow. A target that ties with draws,
    as counts do, gets one of their ranks at random.

    Args:
        samples: draws, (n, N, m).
        targets: (N, m).
        n_bins: n + 1 must be a multiple of it, so that every bin has as many ranks.
        generator: of the ranks of ties.

    Example:
        >>> samples = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1).expand(3, 4, 1)
        >>> targets = torch.tensor([[0.0], [1.5], [2.5], [9.0]])
        >>> rank_histogram(samples, targets, 2, torch.Generator())
        tensor([2, 2])
    """
    if (len(samples) + 1) % n_bins:
        raise ValueError(
            f"rank_histogram: n_bins must divide {len(samples) + 1}, one more than the draws, got "
            f"{n_bins}."
        )
    below = (samples < targets).sum(0)
    ties = (samples == targets).sum(0)
    place = torch.rand(targets.shape, generator=generator, device=targets.device)
    rank = below + (place * (ties + 1)).floor().long()
    return torch.bincount((rank * n_bins // (len(samples) + 1)).flatten(), minlength=n_bins)
