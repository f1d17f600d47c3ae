"""Sieve a network that another loop trains: our masks and learning rates, its steps.

The loop calls `begin`, then for each step `before_step`, `after_backward` and `after_step`;
`contrib.lightning` and `contrib.transformers` do so by the hooks of those libraries. The weights
are the loop's. Around them stands a diagonal Laplace posterior,

    precision = 1 / prior_std² + N s,    s = running mean of n g² (N - 1) / (N - n),

with g the gradient of the mean loss of a random batch of n of the N examples. Where the gradients
of all examples sum to 0, s has the mean of their squares: the empirical Fisher information.
"""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bayesieve.checks import check_counts, check_fraction, check_positive
from bayesieve.core.inputs import as_inputs
from bayesieve.core.layout import RoleRule, default_role
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, SparseModel
from bayesieve.training.schedule import Pruning, Schedule, renewal_steps


class Sieving:
    """Masks of a network in training elsewhere, and the posterior around its weights.

    Args:
        module: the network; its parameters are those that the loop trains.
        likelihood: what its outputs mean. The loop's loss is its mean negative logarithm.
        pruning: our schedule, such as `GradualPruning(zeros=0.9)`; hard, not soft.
        schedule: factors on the learning rates of the loop's optimiser; None leaves them alone.
        roles: what may be pruned; None as in `Problem`.
        prior_std: of each weight, for the posterior.
        decay: of the running mean, per step.
        example: an input, where the network has several or a mask among them.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.sieve.schedule import GradualPruning
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(64, 4)
        >>> y = x[:, :2].sum(1, keepdim=True)  # the last two inputs do not matter
        >>> net = nn.Linear(4, 1)
        >>> sieving = Sieving(net, Gaussian(), GradualPruning(zeros=0.4))
        >>> optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
        >>> sieving.begin(200, n_data=64, batch_size=8)
        >>> for step in range(200):
        ...     sieving.before_step(step, optimizer)
        ...     rows = torch.randperm(64)[:8]
        ...     loss = (net(x[rows]) - y[rows]).square().mean() / 2
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     sieving.after_backward()
        ...     _ = optimizer.step()
        ...     sieving.after_step(step + 1)
        >>> net.weight[0, 2:].tolist(), sieving.sparse()
        ([0.0, 0.0], SparseModel(3 of 5 weights, 40.00% zeros))
    """

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        pruning: Pruning,
        *,
        schedule: Schedule | None = None,
        roles: RoleRule | None = None,
        prior_std: float = 1.0,
        decay: float = 0.99,
        example: object = None,
    ) -> None:
        check_positive("Sieving", prior_std=prior_std)
        check_fraction("Sieving", open_ends=True, decay=decay)
        if pruning.soft:
            raise ValueError("Sieving: pruning must have soft=False: masked weights cannot learn.")
        self.module, self.likelihood, self.pruning = module, likelihood, pruning
        self.schedule, self.roles = schedule, roles or default_role
        self.prior_std, self.decay, self.example = prior_std, decay, example
        self._started: dict[str, Any] = {}
        self._rates: list[float] = []

    def begin(self, n_steps: int, *, n_data: int, batch_size: int) -> None:
        """Begin a run of so many optimiser steps, once the module is on its device."""
        check_counts("Sieving", n_steps=n_steps, n_data=n_data, batch_size=batch_size)
        if batch_size >= n_data:
            raise ValueError(
                f"Sieving: batches of {batch_size} of {n_data} examples do not differ, and their "
                "differences measure the curvature of each weight. Take smaller batches."
            )
        self.n_steps, self.n_data, self.batch_size = n_steps, n_data, batch_size
        network = Network.of(self.module, self.likelihood, self.roles)
        self.network = (
            network if self.example is None else network.seeing(as_inputs("Sieving", self.example))
        )
        self.renewals = renewal_steps(self.pruning, n_steps)
        d, device = self.network.layout.size, self.network.device
        self.keep = torch.ones(d, dtype=torch.bool, device=device)
        self.fisher, self.weight = torch.zeros(d, device=device), 0.0
        if self._started:
            self.load_state_dict(self._started)
        self.pruning.check(self.posterior)

    def before_step(self, step: int, optimizer: Optimizer) -> None:
        """Set the learning rates of step number `step`, from 0."""
        if self.schedule is None:
            return
        if not self._rates:
            self._rates = [group["lr"] for group in optimizer.param_groups]
        factor = self.schedule.lr_scale(min(step / self.n_steps, 1.0), self.pruning.end)
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    @torch.no_grad()
    def after_backward(self) -> None:
        """Read the gradients, and stop those of weights that are gone."""
        parameters = dict(self.module.named_parameters())
        n_data, n = self.n_data, self.batch_size
        factor = n * (n_data - 1) / (n_data - n)
        for name, part in self.network.layout.slices.items():
            gradient = parameters[name].grad
            if gradient is None:
                continue
            gradient.masked_fill_(~self.keep[part].view_as(gradient), 0)
            squares = factor * gradient.float().square().flatten()
            self.fisher[part].mul_(self.decay).add_(squares, alpha=1 - self.decay)
        self.weight = self.decay * self.weight + 1 - self.decay

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Renew the mask if it is time after `step` steps, and set what is gone to 0."""
        if step in self.renewals:
            self.keep &= self.pruning.keep(self.posterior, step / self.n_steps, self.keep)
        parameters = dict(self.module.named_parameters())
        for name, part in self.network.layout.slices.items():
            parameters[name].masked_fill_(~self.keep[part].view_as(parameters[name]), 0)

    @property
    def posterior(self) -> Factorised:
        """The weights of now, each with its standard deviation; 0 for point parameters."""
        layout = self.network.layout
        mean = self.network.weights_of(self.module).detach().clone()
        precision = 1 / self.prior_std**2 + self.n_data * self.fisher / max(self.weight, 1e-12)
        std = torch.zeros_like(mean)
        std[layout.bayesian] = precision[layout.bayesian].rsqrt().to(mean.dtype)
        buffers = {name: value.clone() for name, value in self.module.named_buffers()}
        return Factorised(self.network, mean, std, buffers=buffers).masked(self.keep)

    def sparse(self) -> SparseModel:
        """Return the sparse model, ready for `evaluate`, `compact` and `save`."""
        return SparseModel(self.posterior, self.keep.clone())

    def state_dict(self) -> dict[str, Any]:
        """Mask, running mean and learning rates, for checkpoints; empty before `begin`."""
        if not hasattr(self, "keep"):
            return {}
        return {
            "keep": self.keep,
            "fisher": self.fisher,
            "weight": self.weight,
            "rates": self._rates,  # a stored optimiser has those of its last step
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; before `begin`, when it begins."""
        self._started = dict(state)
        if state and hasattr(self, "keep"):
            self.keep.copy_(state["keep"])
            self.fisher.copy_(state["fisher"])
            self.weight, self._rates = float(state["weight"]), list(state["rates"])
