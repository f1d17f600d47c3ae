"""Predictions under attack and under shifts of the inputs.

With p(y | x) averaged over the posterior, the fast gradient sign attack of strength ζ lowers the
log-probability of the class that the model itself predicts:

    x' = clip(x - ζ sign ∇_x max_y log p(y | x), 0, 1).                [Deng], section 4.2

`pgd` repeats smaller steps inside the same box around x and attacks the true label [Madry]. Shifts
are rotations and Gaussian noise. Each is scored by accuracy, predictive entropy and calibration.

Both take the sign from the log-odds log p - log(1 - p), whose gradient is that of log p divided by
1 - p: the same sign. Where p is nearly 1 the gradient of log p itself is nearly 0 and its sign, in
float32, mostly rounding, which would make the most confident networks look robust.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import Generator, Tensor

from bayesieve.assess.metrics import accuracy, ece, negative_log_likelihood
from bayesieve.assess.predict import predict, single_draws
from bayesieve.checks import check_not_negative, check_positive
from bayesieve.core.likelihoods import ClassLikelihood, ClassPrediction
from bayesieve.core.network import call_with, tied_names
from bayesieve.core.posterior import Model, Posterior, posterior_of
from bayesieve.data.augment import rotate
from bayesieve.data.images import PixelScale

Change = Callable[[Tensor, float], Tensor]  # inputs and a strength to changed inputs


@dataclass(frozen=True)
class Attacked:
    """A model whose inputs are differentiated: the posterior mean, or an average over draws.

    Attack and prediction use the same draws. Strengths are in pixels, which stay between 0 and 1.

    Args:
        model: a posterior or sparse model of class labels.
        n_samples: draws averaged; 0 uses the mean of the weights.
        seed: of the draws.
        batch_size: inputs differentiated at a time.
        scale: how inputs come from pixels; the default says that they are pixels.
    """

    model: Model
    n_samples: int = 0
    seed: int = 0
    batch_size: int = 512
    scale: PixelScale = field(default_factory=PixelScale)

    def __post_init__(self) -> None:
        check_not_negative("Attacked", n_samples=self.n_samples)
        check_positive("Attacked", batch_size=self.batch_size)
        if self.posterior.network.likelihood.task != "classification":
            raise ValueError("Attacked: attacks need class labels; this likelihood is regression.")

    @property
    def posterior(self) -> Posterior:
        """The model under attack."""
        return posterior_of(self.model)

    def fgsm(self, x: Tensor, strength: float) -> Tensor:
        """One step of length `strength` against the predicted class, as in the module's formula."""
        check_not_negative("fgsm", strength=strength)
        return self.moved(x, self.uphill(x), strength)

    def uphill(self, x: Tensor) -> Tensor:
        """Sign of the gradient of the highest log-probability, of the shape of x."""
        return torch.cat([self._slope(part, None).sign() for part in x.split(self.batch_size)])

    def moved(self, x: Tensor, uphill: Tensor, strength: float) -> Tensor:
        """Inputs `strength` pixels further down, between 0 and 1."""
        pixels = self.scale.pixels(x) - strength * uphill
        return self.scale.inputs(pixels.clamp(0, 1))

    def pgd(self, x: Tensor, labels: Tensor, strength: float, n_steps: int = 10) -> Tensor:
        """Steps of 2.5 strength / n_steps against the true labels, kept within ±strength of x."""
        check_not_negative("pgd", strength=strength)
        check_positive("pgd", n_steps=n_steps)
        length, scale = 2.5 * strength / n_steps, self.scale
        done = []
        for part, truth in zip(
            x.split(self.batch_size), labels.split(self.batch_size), strict=True
        ):
            start = scale.pixels(part)
            moved = start
            for _ in range(n_steps):
                moved = moved - length * self._slope(scale.inputs(moved), truth).sign()
                moved = torch.clamp(moved, start - strength, start + strength).clamp(0, 1)
            done.append(scale.inputs(moved))
        return torch.cat(done)

    def rotated(self, x: Tensor, degrees: float) -> Tensor:
        """Images (n, channels, height, width) turned by an angle; black comes in."""
        return self.scale.inputs(rotate(self.scale.pixels(x), degrees))

    def noisy(self, x: Tensor, std: float) -> Tensor:
        """Inputs plus N(0, std²) in pixels, between 0 and 1; the same normals for every std."""
        check_not_negative("noise", std=std)
        pixels = self.scale.pixels(x)
        generator = Generator(pixels.device).manual_seed(self.seed)
        noise = torch.empty_like(pixels).normal_(generator=generator)
        return self.scale.inputs((pixels + std * noise).clamp(0, 1))

    def predict(self, x: Tensor) -> ClassPrediction:
        """Predictions by the same average over draws."""
        prediction = predict(self.posterior, x, n_samples=self.n_samples, seed=self.seed)
        assert isinstance(prediction, ClassPrediction)
        return prediction

    def _slope(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """Gradient for x of the log-odds of the labels, or of the predicted class."""
        with torch.enable_grad():
            leaf = x.detach().to(self.posterior.network.device).requires_grad_()
            values = self._log_probs(leaf)  # (n, classes)
            chosen = values.argmax(-1) if labels is None else labels.to(values.device).long()
            column = chosen[:, None]
            others = values.scatter(-1, column, -torch.inf).logsumexp(-1)
            odds = values.gather(-1, column)[:, 0] - others
            (grad,) = torch.autograd.grad(odds.sum(), leaf)
        return grad.to(x.device)

    @cached_property
    def _log_probs(self) -> Callable[[Tensor], Tensor]:
        """Log of the averaged probabilities, (n, classes), as a differentiable function."""
        network = self.posterior.network
        module = copy.deepcopy(network.skeleton).eval()  # structure only: its weights take no room
        names, likelihood = tied_names(module), cast(ClassLikelihood, network.likelihood)
        draws = single_draws(self.posterior, self.n_samples, self.seed)
        rows = [(network.split(w.detach())[0], buffers) for w, buffers in draws]

        def log_probs(x: Tensor) -> Tensor:
            outputs = torch.stack([call_with(module, names, *row, x) for row in rows])
            return likelihood.log_probs(outputs).logsumexp(0)  # the constant -log S has no gradient

        return log_probs


def curve(
    attacked: Attacked, x: Tensor, labels: Tensor, strengths: Sequence[float], change: Change
) -> list[dict[str, float]]:
    """Scores at each strength of any change of the inputs, such as `attacked.rotated`.

    `entropy` is the mean predictive entropy in nats, `nll` nats per example.
    """
    points = []
    for strength in strengths:
        prediction = attacked.predict(change(x, strength))
        probs, truth = prediction.probs, labels.to(prediction.probs.device)
        points.append(
            {
                "strength": strength,
                "accuracy": accuracy(probs, truth),
                "entropy": prediction.entropy.mean().item(),
                "ece": ece(probs, truth),
                "nll": negative_log_likelihood(prediction.log_probs, truth),
            }
        )
    return points


def fgsm_curve(
    attacked: Attacked, x: Tensor, labels: Tensor, strengths: Sequence[float]
) -> list[dict[str, float]]:
    """Scores under the fast gradient sign attack ([Deng], figure 2: 0.1 to 0.5)."""
    check_not_negative("fgsm", strength=tuple(strengths))
    uphill = attacked.uphill(x)  # the same for every strength

    def change(inputs: Tensor, strength: float) -> Tensor:
        return attacked.moved(inputs, uphill, strength)

    return curve(attacked, x, labels, strengths, change)
