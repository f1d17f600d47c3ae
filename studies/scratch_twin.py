"""The PyTorch twin of a NumPy network: same start, same batches, gradients by autograd."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bayesieve.scratch import FeedForwardNet, Linear, Plan, ReLU, Sigmoid, Tanh

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
_LAYERS = {Sigmoid: nn.Sigmoid, Tanh: nn.Tanh, ReLU: nn.ReLU, Linear: nn.Identity}


class Twin:
    """A copy of a network with softmax and cross-entropy, trained by `torch.optim.SGD`.

    Args:
        net: the network to copy, before it is trained.
        lr: learning rate.
        l2: strength of an L2 penalty on the weights, not on the biases.
    """

    def __init__(self, net: FeedForwardNet, lr: float, l2: float = 0.0) -> None:
        layers: list[nn.Module] = []
        for weight, bias in zip(net.weights, net.biases, strict=True):
            linear = nn.Linear(len(weight), len(bias), dtype=torch.from_numpy(weight).dtype)
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(weight.T))
                linear.bias.copy_(torch.from_numpy(bias))
            layers += [linear, _LAYERS[type(net.hidden)]()]
        self.model = nn.Sequential(*layers[:-1])  # it ends in logits
        weights = [own for own in self.model.parameters() if own.ndim == 2]
        biases = [own for own in self.model.parameters() if own.ndim == 1]
        self.optimiser = torch.optim.SGD(
            [{"params": weights, "weight_decay": l2}, {"params": biases, "weight_decay": 0.0}],
            lr=lr,
        )

    def epochs(
        self, x: Images, y: Labels, plan: Plan, validation: tuple[Images, Labels]
    ) -> Iterator[list[tuple[float, float]]]:
        """Train on the batches of `plan`; hand out (train, validation) losses after each epoch."""
        inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
        held_out = [torch.from_numpy(own) for own in validation]
        rng, losses = np.random.default_rng(plan.seed), list[tuple[float, float]]()
        for _ in range(plan.epochs):
            order = torch.from_numpy(rng.permutation(len(x)))
            total, batches = torch.zeros((), dtype=inputs.dtype), order.split(plan.batch_size)
            for rows in batches:
                self.optimiser.zero_grad()
                loss = nn.functional.cross_entropy(self.model(inputs[rows]), labels[rows])
                loss.backward()
                self.optimiser.step()
                total += loss.detach()
            with torch.no_grad():
                val_loss = nn.functional.cross_entropy(self.model(held_out[0]), held_out[1])
            losses.append((total.item() / len(batches), val_loss.item()))
            yield losses

    def outputs(self, x: Images) -> Images:
        """Class probabilities, shape (N, K)."""
        with torch.no_grad():
            return self.model(torch.from_numpy(x)).softmax(1).numpy()
