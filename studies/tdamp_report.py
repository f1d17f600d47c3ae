"""The program that the EM-TDAMP report prints, as a baseline of `tdamp_mnist`.

    python -m studies.tdamp_report --seeds 10 --out results/tdamp_report.json
    python -m studies.tdamp_report --quick          # seconds on one CPU core

The report derives message passing and prints a program that imitates it: weights are drawn around
their means, one gradient of a probit-product likelihood moves the means by Adam, variances shrink
by 5 % a step, and a unit's ρ is a sigmoid of its mean absolute weight. Each step hands Adam new
variables, so its moments begin anew while its counter runs on: a step has one length for all
weights, 0.01 at first and 0.03 later, and the sign of the gradient.

Protocol: the report's. First 10,000 training images of MNIST divided by 255, 784-128-10, Glorot
weights, batches of 100, ten passes, test images read once per finished run. Rows: "report-128"
evaluates all units, as the program does; "report-64" only those whose ρ the program keeps.

Departure: no early stopping, which ends some of its runs after six to eight passes.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor

from bayesieve import load_data
from bayesieve.assess.metrics import classification_report
from bayesieve.data.examples import Examples
from studies.harness import Run, make_row, study_parser

WIDTHS = (784, 128, 10)
_LR, _BETA_1, _BETA_2, _EPS = 0.01, 0.9, 0.999, 1e-7  # of the legacy Adam of Keras
_START_VARIANCE, _SHRINK, _NOISE_DECAY = 0.1, 0.95, 0.99
_SHARPNESS = 10.0  # ρ = sigmoid(10 · mean absolute weight)
_BATCH = 100


@dataclass
class State:
    """Means and variances of weights and biases, the variance of the likelihood, and ρ."""

    means: list[Tensor]
    variances: list[Tensor]
    noise: float
    rho: Tensor
    calls: int = 0  # of Adam, one for each tensor of a step


def start(generator: Generator) -> State:
    """Draw the weights as Keras does: Glorot's uniform; biases are 0."""
    means = []
    for n_in, n_out in pairwise(WIDTHS):
        bound = math.sqrt(6 / (n_in + n_out))
        means.append(torch.empty(n_in, n_out).uniform_(-bound, bound, generator=generator))
        means.append(torch.zeros(n_out))
    variances = [torch.full_like(mean, _START_VARIANCE) for mean in means]
    return State(means, variances, 1.0, torch.full((WIDTHS[1],), 0.5))


def logits(weights: list[Tensor], x: Tensor) -> Tensor:
    """Evaluate the network: x (n, 784) to (n, 10)."""
    w1, b1, w2, b2 = weights
    return torch.relu(x @ w1 + b1) @ w2 + b2


def log_likelihood(values: Tensor, y: Tensor, noise: float) -> Tensor:
    """Sum log Q((z_c - z_y) / √v) over the other classes c, (n,).

    Example:
        >>> log_likelihood(torch.zeros(1, 2), torch.tensor([0]), 1.0)  # log 1/2
        tensor([-0.6931])
    """
    gap = (values - values.gather(1, y[:, None])) / math.sqrt(noise)
    each = torch.log(0.5 * torch.special.erfc(gap / math.sqrt(2)) + 1e-10)
    return each.sum(1) - each.gather(1, y[:, None])[:, 0]


def adam_with_new_moments(grad: Tensor, call: int) -> Tensor:
    """The step of Adam at its call number `call` for a variable that it has not seen before.

    Example:
        >>> grad = torch.tensor([2.0, -5.0])
        >>> adam_with_new_moments(grad, 1), adam_with_new_moments(grad, 10_000)
        (tensor([ 0.0100, -0.0100]), tensor([ 0.0316, -0.0316]))
    """
    length = _LR * math.sqrt(1 - _BETA_2**call) / (1 - _BETA_1**call)
    mean, square = (1 - _BETA_1) * grad, (1 - _BETA_2) * grad.square()
    return length * mean / (square.sqrt() + _EPS)


def step_(state: State, x: Tensor, y: Tensor, generator: Generator) -> None:
    """Draw weights, move their means along the gradient there, shrink variances, renew ρ."""
    drawn = [
        torch.normal(mean, variance.sqrt(), generator=generator).requires_grad_()
        for mean, variance in zip(state.means, state.variances, strict=True)
    ]
    loss = -log_likelihood(logits(drawn, x), y, state.noise).mean()
    for mean, variance, grad in zip(
        state.means, state.variances, torch.autograd.grad(loss, drawn), strict=True
    ):
        state.calls += 1
        mean.sub_(adam_with_new_moments(grad, state.calls))
        variance.mul_(_SHRINK)
    state.rho = torch.sigmoid(_SHARPNESS * state.means[0].abs().mean(0))


def kept_units(rho: Tensor) -> Tensor:
    """The units whose ρ is above the median, (128,) bool."""
    return rho > rho.double().quantile(0.5)


def scores(state: State, test: Examples, *, kept_only: bool) -> dict[str, Any]:
    """Test scores at the means, of all units or of those that are kept."""
    keep = kept_units(state.rho) if kept_only else torch.ones_like(state.rho, dtype=torch.bool)
    w1, b1, w2, b2 = state.means
    values = logits([w1, b1, w2 * keep[:, None], b2], test.x.flatten(1))
    found = classification_report(values.log_softmax(-1)[None], test.y)
    entropy = -(values.softmax(-1) * values.log_softmax(-1)).sum(1).mean().item()
    names = ("accuracy", "precision", "recall", "f1", "nll", "ece")
    return {name: found[name] for name in names} | {"entropy": entropy, "units": int(keep.sum())}


def run_once(train: Examples, test: Examples, seed: int, passes: int) -> list[dict[str, Any]]:
    """Train one seed; scores of all units, and of those that are kept."""
    generator = Generator().manual_seed(seed)
    state, x = start(generator), train.x.flatten(1)
    for _ in range(passes):
        for index in torch.randperm(len(x), generator=generator).split(_BATCH):
            step_(state, x[index], train.y[index], generator)
        state.noise = max(_NOISE_DECAY * state.noise, 1e-6)
    return [scores(state, test, kept_only=kept_only) for kept_only in (False, True)]


def pixels(images: Examples, scale: tuple[float, float]) -> Examples:
    """Images as pixels in [0, 1], from standardised ones."""
    mean, std = scale
    return Examples(images.x * std + mean, images.y)


def main(arguments: list[str] | None = None) -> int:
    """Run both rows and write one record."""
    parser = study_parser(__doc__, quick="one seed, one pass", seeds=10, device=False)
    parser.add_argument("--passes", type=int, default=10)
    options = parser.parse_args(arguments)
    data = load_data("mnist")
    lowest, highest = data.train.x.min().item(), data.train.x.max().item()
    std = 1 / (highest - lowest)  # black is 0 and white is 1
    train, test = (pixels(part, (-lowest * std, std)) for part in (data.train, data.test))
    train = train.subset(torch.arange(min(10_000, len(train))))
    passes, seeds = (1, [0]) if options.quick else (options.passes, list(range(options.seeds)))
    run = Run("tdamp_report", arguments, options, data="MNIST",
              settings={"n_train": len(train), "passes": passes})  # fmt: skip
    each = [run_once(train, test, seed, passes) for seed in seeds]
    for i, name in enumerate(("report-128", "report-64")):
        row = make_row(name, {"passes": passes, "units": (128, 64)[i]},
                       [found[i] for found in each], seeds=seeds, spread=["accuracy"])  # fmt: skip
        run.add(row, ("accuracy", "entropy", "units"))
    return run.finish(("accuracy", "precision", "recall", "f1", "entropy", "units"))


if __name__ == "__main__":
    raise SystemExit(main())
