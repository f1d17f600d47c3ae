"""Bayesieve in plain torch: one network, a spike-and-slab posterior, the sieve, compaction.

It does to a perceptron what `bs.fit(problem, bs.SBNN())`, `bs.prune` and `bs.compact` do to any
network. A test shows that it gets the library's numbers: the same loss at every step from the same
noise, the same mask, the same small network. The library adds speed, checks and other engines.

    q(w) = Π N(w; m, s²)  and  q(z) = Π Bern(z; p)  minimize the negative ELBO

    J(m, s, p) = -E_q[log p(D | w)] + Σ KL(m, s, p)                                     (eq. 3.6)

Equations 3.x are those of the paper [Saha], S those of docs/theory/sbnn.md.
Symbols: m mean, s = exp(log_std), p inclusion probability, π slab_prob, τ₀ spike_std, τ₁ slab_std.

python examples/nano.py        # some seconds on a CPU
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy, softmax

# ---- The network: a function of one flat vector w. All weights come first, then all biases. ------

Layers = list[tuple[Tensor, Tensor]]  # weight (outputs, inputs) and bias (outputs,) of each layer


def layers_of(w: Tensor, sizes: list[int]) -> Layers:
    """View the flat vector w as the layers of a perceptron with these widths."""
    pieces, n = w.split([a * b for a, b in pairwise(sizes)] + sizes[1:]), len(sizes) - 1
    return [(pieces[i].view(sizes[i + 1], sizes[i]), pieces[n + i]) for i in range(n)]


def forward(layers: Layers, x: Tensor) -> Tensor:
    """Compute the scores of the classes, (n, classes); ReLU between layers."""
    for i, (weight, bias) in enumerate(layers):
        x = (torch.relu(x) if i else x) @ weight.T + bias
    return x


# ---- The prior: a wide slab for weights that matter, a narrow spike for those that do not. -------


@dataclass(frozen=True)
class SpikeSlab:
    """The prior π N(0, τ₁²) + (1 - π) N(0, τ₀²) of every weight."""

    slab_std: float = 0.3
    spike_std: float = 0.05
    slab_prob: float = 0.5

    def inclusion_logit(self, second_moment: Tensor) -> Tensor:
        """Return the log-odds of the p that minimizes J at fixed (m, s), e = m² + s² (eq. 3.8)."""
        odds = self.slab_prob / (1 - self.slab_prob) * self.spike_std / self.slab_std
        return math.log(odds) + second_moment / 2 * (self.spike_std**-2 - self.slab_std**-2)

    def precision(self, second_moment: Tensor) -> Tensor:
        """Return κ = p/τ₁² + (1 - p)/τ₀²: all that a step needs of the prior (S3)."""
        p = torch.sigmoid(self.inclusion_logit(second_moment))
        return p / self.slab_std**2 + (1 - p) / self.spike_std**2

    def kl(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Return the KL of each weight with p at its minimum (S2)."""
        e = mean.square() + (2 * log_std).exp()
        slab = e / (2 * self.slab_std**2) + math.log(self.slab_std / self.slab_prob)
        spike = e / (2 * self.spike_std**2) + math.log(self.spike_std / (1 - self.slab_prob))
        return -log_std - torch.logaddexp(-slab, -spike) - 0.5


# ---- The posterior and one step on it. -----------------------------------------------------------


@dataclass
class Posterior:
    """Mean and log standard deviation of every weight, (d,), and which weights are left."""

    mean: Tensor
    log_std: Tensor
    keep: Tensor  # (d,) bool

    def sample(self, generator: Generator) -> Tensor:
        """Draw w = m + s ε, 0 where pruned."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return (self.mean + self.log_std.exp() * noise) * self.keep


def train(
    q: Posterior, sizes: list[int], x: Tensor, y: Tensor, prior: SpikeSlab, *, epochs: int,
    batch_size: int = 64, lr: float = 1e-2, kl_weight: float = 0.1, seed: int = 0,
) -> Iterator[tuple[float, float]]:  # fmt: skip
    """Move q by gradient steps on J / N; yield the two terms of J at every step."""
    n_data, noise = len(x), Generator().manual_seed(seed)
    order = Generator().manual_seed(seed + 1)
    adam = torch.optim.Adam([q.mean, q.log_std], lr)
    for _ in range(epochs):
        for index in torch.randperm(n_data, generator=order).split(batch_size):
            w = q.sample(noise).requires_grad_()
            scores = forward(layers_of(w, sizes), x[index])
            log_lik = -n_data * cross_entropy(scores, y[index])  # N/n times the sum over the batch
            (g,) = torch.autograd.grad(log_lik, w)
            variance = (2 * q.log_std).exp()
            kappa = prior.precision(q.mean.square() + variance)
            pull_mean, pull_log_std = q.mean * kappa, variance * kappa - 1  # of the KL (S4)
            data_log_std = g * (w.detach() - q.mean)  # g ε s, the chain rule (S5)
            q.mean.grad = (kl_weight * pull_mean - g) / n_data
            q.log_std.grad = (kl_weight * pull_log_std - data_log_std) / n_data
            adam.step()
            yield log_lik.item(), prior.kl(q.mean, q.log_std)[q.keep].sum().item()


# ---- The sieve: the weights whose mean is smallest beside its standard deviation go. -------------


def sieve(q: Posterior, sizes: list[int], zeros: float) -> Tensor:
    """Choose the weights to keep, (d,) bool, so that a fraction `zeros` of all entries is 0.

    Weights go in the order of their signal-to-noise ratio |m| / s. Biases stay while their unit is
    read: a unit goes with all its weights when no kept weight reads it.
    """
    worth = torch.where(q.keep, q.mean.abs() / q.log_std.exp(), 0.0)
    read = worth.new_full((sizes[-1],), torch.inf)  # the outputs of the network always are
    for weight, bias in reversed(layers_of(worth, sizes)):  # views: `worth` changes
        weight.copy_(torch.minimum(weight, read[:, None]))
        bias.copy_(read)
        read = weight.amax(0)  # a unit is worth what its best reader is worth
    return worth > worth.sort(descending=True).values[round((1 - zeros) * len(worth))]


# ---- Compaction: a constant unit becomes a bias, a unit that nobody reads is not computed. -------


def compact(layers: Layers) -> tuple[Tensor, Layers]:
    """Make a smaller network of the same outputs, and name the inputs that it reads."""
    small: Layers = []
    varies = torch.ones(layers[0][0].shape[1], dtype=torch.bool)
    constant = layers[0][1].new_zeros(len(varies))
    for weight, bias in layers:  # forward: fold what does not vary with the input
        bias = bias + weight[:, ~varies] @ constant[~varies]
        weight = weight[:, varies]
        varies, constant = weight.any(1), torch.relu(bias)
        if len(small) == len(layers) - 1:
            varies[:] = True
        small.append((weight[varies], bias[varies]))
    for i in range(len(small) - 1, 0, -1):  # backward: leave out what is not read
        (weight, bias), (before, its_bias) = small[i], small[i - 1]
        read = weight.any(0)
        small[i], small[i - 1] = (weight[:, read], bias), (before[read], its_bias[read])
    weight, bias = small[0]
    inputs = weight.any(0).nonzero().flatten()
    return inputs, [(weight[:, inputs], bias), *small[1:]]


# ---- All of it on handwritten digits. ------------------------------------------------------------


def averaged(q: Posterior, sizes: list[int], x: Tensor, n_samples: int = 32) -> Tensor:
    """Predict class probabilities, averaged over posterior samples."""
    source = Generator().manual_seed(0)
    samples = [forward(layers_of(q.sample(source), sizes), x) for _ in range(n_samples)]
    return torch.stack([softmax(scores, -1) for scores in samples]).mean(0)


def main() -> None:
    """Train, sieve, train on, compact."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    x, y, x_test, y_test = x[:1200], y[:1200], x[1200:], y[1200:]
    sizes, prior = [64, 100, 50, 10], SpikeSlab()
    torch.manual_seed(0)
    he = [torch.randn(b * a) * math.sqrt(2 / a) for a, b in pairwise(sizes)]
    mean = torch.cat([*he, torch.zeros(sum(sizes[1:]))])
    q = Posterior(mean, torch.full_like(mean, -4.0), torch.ones_like(mean, dtype=torch.bool))

    def report(name: str) -> None:
        p = averaged(q, sizes, x_test)
        error = (p.argmax(1) != y_test).double().mean()
        print(f"{name:<10} error {error:.3f}, {int(q.keep.sum()):>6,} weights and biases")

    *_, (log_lik, kl) = train(q, sizes, x, y, prior, epochs=40)
    print(f"log-likelihood of the training data {log_lik:.1f}, KL {kl:.0f} nats")
    report("dense")
    q.keep = sieve(q, sizes, zeros=0.9)
    report("sieved")
    list(train(q, sizes, x, y, prior, epochs=40, seed=1))
    report("trained on")

    whole = layers_of(q.mean * q.keep, sizes)
    inputs, small = compact(whole)
    widths = [len(inputs), *(len(bias) for _, bias in small)]
    difference = (forward(small, x_test[:, inputs]) - forward(whole, x_test)).abs().max()
    print(f"compacted  {sizes} to {widths}; outputs differ by at most {difference:.0e}")


if __name__ == "__main__":
    main()
