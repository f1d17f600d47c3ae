"""Predictions under attack and under shifts of the inputs.

With p(y | x) averaged over the posterior, the fast gradient sign attack of strength ζ lowers the
log-probability of the class that the model itself predicts:

    x' = clip(x - ζ sign ∇_x max_y log p(y | x), low, high).           [Deng], section 4.2

`pgd` repeats smaller steps inside the same box around x and attacks the true label [Madry]. Shifts
are rotations and Gaussian noise. Each is scored by accuracy, predictive entropy and calibration.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bayesieve.assess.metrics import accuracy, ece, negative_log_likelihood
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.checks import check_not_negative, check_positive
from bayesieve.core.likelihoods import Bernoulli
from bayesieve.core.network import Network, call_with, tied_names
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.data.augment import rotate

Model = Posterior | SparseModel
Change = Callable[[Tensor, float], Tensor]  # inputs and a strength to changed inputs
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Attacked:
    """A model whose inputs are differentiated: the posterior mean, or an average over draws.

    Args:
        model: a posterior or sparse model of class labels.
        n_samples: draws averaged; 0 uses the mean of the weights.
        seed: of the draws.
        batch_size: inputs differentiated at a time.
        bounds: lowest and highest value an input may take.
    """

    model: Model
    n_samples: int = 0
    seed: int = 0
    batch_size: int = 512
    bounds: Bounds = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_not_negative("Attacked", n_samples=self.n_samples)
        check_positive("Attacked", batch_size=self.batch_size)
        if self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"Attacked: bounds must be (low, high), got {self.bounds}.")
        if self.posterior.network.likelihood.task != "classification":
            raise ValueError("Attacked: attacks need class labels; this likelihood is regression.")

    @property
    def posterior(self) -> Posterior:
        """What is attacked."""
        model = self.model
        return model.posterior if isinstance(model, SparseModel) else model

    def fgsm(self, x: Tensor, strength: float) -> Tensor:
        """One step of length `strength` against the predicted class, as in the module's formula."""
        check_not_negative("fgsm", strength=strength)
        step = torch.cat([self._slope(part, None).sign() for part in x.split(self.batch_size)])
        return (x - strength * step).clamp(*self.bounds)

    def pgd(self, x: Tensor, labels: Tensor, strength: float, n_steps: int = 10) -> Tensor:
        """Steps of 2.5 strength / n_steps against the true labels, kept within ±strength of x."""
        check_not_negative("pgd", strength=strength)
        check_positive("pgd", n_steps=n_steps)
        length = 2.5 * strength / n_steps
        done = []
        for part, own in zip(x.split(self.batch_size), labels.split(self.batch_size), strict=True):
            moved = part
            for _ in range(n_steps):
                moved = moved - length * self._slope(moved, own).sign()
                moved = torch.clamp(moved, part - strength, part + strength).clamp(*self.bounds)
            done.append(moved)
        return torch.cat(done)

    def predict(self, x: Tensor) -> ClassPrediction:
        """Predictions by the same average over draws."""
        prediction = predict(self.posterior, x, n_samples=self.n_samples, seed=self.seed)
        assert isinstance(prediction, ClassPrediction)
        return prediction

    def _slope(self, x: Tensor, labels: Tensor | None) -> Tensor:
        """Gradient for x of the log-probability of the labels, or of the predicted class."""
        posterior = self.posterior
        network = posterior.network
        weights = posterior.mean[None]
        if self.n_samples:
            generator = Generator(network.device).manual_seed(self.seed)
            weights = posterior.draw(self.n_samples, generator)
        log_probs = _differentiable(network, weights, posterior)
        with torch.enable_grad():
            leaf = x.detach().to(network.device).requires_grad_()
            values = log_probs(leaf)
            if labels is None:
                chosen = values.max(-1).values
            else:
                chosen = values.gather(-1, labels.to(values.device).long()[:, None])[:, 0]
            (grad,) = torch.autograd.grad(chosen.sum(), leaf)
        return grad.to(x.device)


def _differentiable(
    network: Network, weights: Tensor, posterior: Posterior
) -> Callable[[Tensor], Tensor]:
    """Log of the averaged probabilities, (n, classes), as a differentiable function of inputs."""
    module = copy.deepcopy(network.skeleton).eval()  # structure only: its weights hold no memory
    names = tied_names(module)
    rows = [network.split(w)[0] for w in weights.detach()]

    def log_probs(x: Tensor) -> Tensor:
        outputs = torch.stack([call_with(module, names, row, posterior.buffers, x) for row in rows])
        if isinstance(network.likelihood, Bernoulli):
            logit = outputs.reshape(len(rows), len(x), 1)
            each = torch.cat([F.logsigmoid(-logit), F.logsigmoid(logit)], -1)
        else:
            each = F.log_softmax(outputs, -1)
        return each.logsumexp(0)

    return log_probs


def add_noise(x: Tensor, std: float, generator: Generator, bounds: Bounds | None = None) -> Tensor:
    """Inputs plus N(0, std²), clipped to `bounds` if given.

    Example:
        >>> add_noise(torch.ones(1, 2), 0.0, Generator()).tolist()
        [[1.0, 1.0]]
    """
    check_not_negative("add_noise", std=std)
    noise = torch.empty_like(x).normal_(generator=generator)
    noisy = x + std * noise
    return noisy if bounds is None else noisy.clamp(*bounds)


@dataclass(frozen=True)
class Point:
    """Scores at one strength of an attack or shift.

    `entropy` is the mean predictive entropy in nats, `nll` nats per example.
    """

    strength: float
    accuracy: float
    entropy: float
    ece: float
    nll: float


def curve(
    attacked: Attacked, x: Tensor, labels: Tensor, strengths: Sequence[float], change: Change
) -> list[Point]:
    """Scores against strength for any change of the inputs."""
    points = []
    for strength in strengths:
        prediction = attacked.predict(change(x, strength))
        probs, truth = prediction.probs, labels.to(prediction.probs.device)
        points.append(
            Point(
                strength=strength,
                accuracy=accuracy(probs, truth),
                entropy=prediction.entropy.mean().item(),
                ece=ece(probs, truth),
                nll=negative_log_likelihood(prediction.log_probs, truth),
            )
        )
    return points


def fgsm_curve(
    attacked: Attacked, x: Tensor, labels: Tensor, strengths: Sequence[float]
) -> list[Point]:
    """Scores under the fast gradient sign attack ([Deng], figure 2: 0.1 to 0.5)."""
    return curve(attacked, x, labels, strengths, attacked.fgsm)


def pgd_curve(
    attacked: Attacked, x: Tensor, labels: Tensor, strengths: Sequence[float], n_steps: int = 10
) -> list[Point]:
    """Scores under projected gradient descent against the true labels."""

    def change(inputs: Tensor, strength: float) -> Tensor:
        return attacked.pgd(inputs, labels, strength, n_steps)

    return curve(attacked, x, labels, strengths, change)


def rotation_curve(
    attacked: Attacked, x: Tensor, labels: Tensor, degrees: Sequence[float]
) -> list[Point]:
    """Scores on images (n, channels, height, width) turned by each angle."""
    return curve(attacked, x, labels, degrees, rotate)


def noise_curve(
    attacked: Attacked, x: Tensor, labels: Tensor, stds: Sequence[float]
) -> list[Point]:
    """Scores on inputs with Gaussian noise of each std, the same normals for all."""

    def change(inputs: Tensor, std: float) -> Tensor:
        generator = Generator(inputs.device).manual_seed(attacked.seed)
        return add_noise(inputs, std, generator, attacked.bounds)

    return curve(attacked, x, labels, stds, change)
