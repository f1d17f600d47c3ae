"""Small inference problems whose answers are known by another route than the library's."""

import torch
from torch import Generator, Tensor, nn

from bayesieve.core.likelihoods import Categorical, Likelihood
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.data.examples import DataSet, Examples

# parameters of an estimator that is trained in no time, for all that needs no quality
QUICK = {"hidden": (6,), "epochs": 3, "folds": 0, "n_samples": 4, "random_state": 0}


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(shape, dtype=dtype).normal_(generator=seeded(seed))


def normal32(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in single precision, as networks are fed by default."""
    return normal(*shape, seed=seed, dtype=torch.float32)


def posterior_around(
    module: nn.Module, likelihood: Likelihood | None = None, std: float = 0.3
) -> Factorised:
    """Normal posterior around the weights of a module; labels are classes unless told otherwise."""
    network = Network.of(module, likelihood or Categorical())
    mean = network.weights_of(module)
    spread = torch.full_like(mean, std)
    spread[network.layout.n_bayesian :] = 0
    return Factorised(network, mean, spread, buffers=network.buffers())


def few_images(
    n_train: int = 300,
    n_test: int = 100,
    shape: tuple[int, ...] = (1, 28, 28),
    *,
    noise: float = 0.3,
    offset: float = 0.0,
    name: str = "toy",
) -> DataSet:
    """Images of ten classes, each a prototype of pixels with noise; easy to tell apart."""

    def some(n: int, seed: int) -> Examples:
        y = torch.randint(10, (n,), generator=seeded(seed))
        return Examples(prototypes[y] + noise * normal32(n, *shape, seed=seed) + offset, y)

    prototypes = normal32(10, *shape, seed=0)
    recipe = {"kind": "image", "shape": list(shape), "scale": 255.0,
              "mean": [0.5] * shape[0], "std": [0.25] * shape[0]}  # fmt: skip
    train, test = some(n_train, 1), some(n_test, 2)
    return DataSet(name, train, test, "classification", tuple("0123456789"), preprocessing=recipe)
