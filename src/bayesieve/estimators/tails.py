"""The density of a real prediction: how wide its noise is, and how heavy its tails.

A network that was trained on some rows knows its residuals on them. On new rows they are larger,
and single ones far larger, than it says. Rows that inner folds have held out say by how much: the
noise is multiplied by the factor, and the density given the tails, under which they are likeliest.

With ν degrees of freedom the density is Student's t around the mean of the prediction, with its
variance; without, the mixture over the draws of the weights. Intervals and quantiles of the mixture
are those of the noise's family with the mixture's mean and variance.

Symbols: S draws, N rows, m targets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy.special import betaln, stdtr, stdtrit
from torch import Generator, Tensor

from bayesieve.assess.predict import RealPrediction
from bayesieve.core.likelihoods import RealLikelihood

DFS = (3, 5, 8)
_FACTORS = (math.log(1e-3), math.log(1e3))
_NORMAL = 1e7  # degrees of freedom of which Student's t is the normal distribution


@dataclass(frozen=True)
class Tails:
    """A correction of the noise of predictions.

    Args:
        factor: on every noise std.
        df: degrees of freedom ν > 2 of Student's t; None keeps the mixture over draws.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> ends = [Tails(df=df).interval(Gaussian(1.0), zero, one, 0.99) for df in (None, 3)]
        >>> [round(high.item(), 2) for _, high in ends]
        [2.58, 3.37]
    """

    factor: float = 1.0
    df: int | None = None

    def noise_of(self, prediction: RealPrediction) -> RealPrediction:
        """The prediction with the noise that the factor makes of its own."""
        if self.factor == 1.0:
            return prediction
        return replace(prediction, noise_std=self.factor * prediction.noise_std)

    def log_density(self, prediction: RealPrediction, targets: Tensor) -> Tensor:
        """Log density of targets, (N, m), all of a row together, (N,)."""
        prediction = self.noise_of(prediction)
        if self.df is None:
            densities = prediction.log_densities(targets)
            return torch.logsumexp(densities, 0) - math.log(len(densities))
        student = torch.distributions.StudentT(
            float(self.df), prediction.mean, self._scale(prediction)
        )
        return student.log_prob(targets.reshape(prediction.mean.shape).double()).sum(-1)

    def interval(
        self, likelihood: RealLikelihood, mean: Tensor, std: Tensor, level: float
    ) -> tuple[Tensor, Tensor]:
        """Ends of the central interval of a probability, for predictive means and stds."""
        if self.df is None:
            return likelihood.interval(mean, std, level)
        half = float(stdtrit(self.df, (1 + level) / 2)) * math.sqrt((self.df - 2) / self.df) * std
        return mean - half, mean + half

    def sample(self, prediction: RealPrediction, n: int, generator: Generator) -> Tensor:
        """Targets drawn from the density, (n, N, m)."""
        prediction = self.noise_of(prediction)
        if self.df is None:
            return prediction.sample(n, generator)
        shape = (n, *prediction.mean.shape)
        half = torch.full(shape, self.df / 2, dtype=torch.float64)
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        student = normal * (self.df / 2 / torch._standard_gamma(half, generator=generator)).sqrt()
        return prediction.mean + self._scale(prediction) * student

    def crps(self, prediction: RealPrediction, targets: Tensor) -> Tensor:
        """Continuous ranked probability score of targets, (N, m), in their unit; lower is better.

        Of the law that intervals and quantiles have; a normal one without ν.
        """
        prediction = self.noise_of(prediction)
        z = (targets.reshape(prediction.mean.shape).double() - prediction.mean) / prediction.std
        df = _NORMAL if self.df is None else float(self.df)
        unit = 1.0 if self.df is None else math.sqrt((df - 2) / df)
        return prediction.std * unit * standard_crps(z / unit, df)

    def _scale(self, prediction: RealPrediction) -> Tensor:
        assert self.df is not None
        return prediction.std * math.sqrt((self.df - 2) / self.df)


def standard_crps(z: Tensor, df: float) -> Tensor:
    """Continuous ranked probability score of Student's t with scale 1 at z.

    Example:
        >>> round(standard_crps(torch.zeros(()).double(), 1e7).item(), 4)  # (√2 - 1) / √π
        0.2337
    """
    below = torch.as_tensor(stdtr(df, z.numpy()))
    student = torch.distributions.StudentT(torch.tensor(df, dtype=torch.float64))
    density = student.log_prob(z).exp()
    # E|x - x'| / 2 of two draws; the beta functions of many degrees of freedom are 0 in themselves.
    log_spread = betaln(0.5, df - 0.5) - 2 * betaln(0.5, df / 2)
    spread = 2 * math.sqrt(df) / (df - 1) * math.exp(log_spread)
    return z * (2 * below - 1) + 2 * density * (df + z.square()) / (df - 1) - spread


def likeliest_tails(
    predictions: Sequence[RealPrediction], targets: Sequence[Tensor], counts: Sequence[Tensor]
) -> tuple[Tails, float]:
    """The correction under which targets not learned from are likeliest, and their log density.

    Normal noise may become heavy-tailed; other families keep their own tails, and counts their
    noise too, which follows from the mean.

    Args:
        predictions: of the held-out rows of each fold.
        targets: theirs, (n, m) each.
        counts: how much each row counts, (n,) each.

    Returns:
        The tails, and the mean log density of the rows under them.
    """
    from scipy.optimize import minimize_scalar  # here: it takes a third of a second to load

    total = sum(float(count.sum()) for count in counts)

    def surprise(log_factor: float, df: int | None) -> float:
        tails = Tails(math.exp(log_factor), df)
        each = zip(predictions, targets, counts, strict=True)
        return -sum(float(tails.log_density(p, y) @ count.double()) for p, y, count in each) / total

    normal = predictions[0].likelihood.normal
    best = (math.inf, Tails())
    for df in (None, *DFS) if normal else (None,):
        found = minimize_scalar(
            surprise, args=(df,), bounds=_FACTORS, method="bounded", options={"xatol": 0.02}
        )
        best = min(best, (float(found.fun), Tails(math.exp(found.x), df)), key=lambda one: one[0])
    return best[1], -best[0]
