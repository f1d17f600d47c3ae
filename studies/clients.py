"""Join posteriors that clients learned from data which stay where they are.

A Gaussian of every weight is a message (h, λ) = (m / s², 1 / s²), and Bayes' rule adds messages. K
clients that began at the same q₀, the prior or what the server sent, and learned q₁ ... q_K from
disjoint data, together know

    q ∝ q₀ Π (q_k / q₀):   λ = λ₀ + Σ (λ_k - λ₀),   h = h₀ + Σ (h_k - h₀),              (eq. T24)

the product of their posteriors with the prior counted once ("product"). Clients that have not
converged, or whose data overlap, are averaged with caution, by the geometric mean ("average"),

    λ = Σ (n_k / n) λ_k,   h = Σ (n_k / n) h_k.                                        (eq. T25)

Either way a weight follows the clients that know it best. This serves every engine with a mean and
a standard deviation per weight: FlatVI, SBNN, TDAMP, BMR. `flower_client` and `flower_strategy`
carry it over Flower (`pip install flwr`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from bayesieve.checks import check_choice
from bayesieve.core.posterior import Factorised
from bayesieve.core.problem import Problem
from bayesieve.engines import Engine
from bayesieve.engines.tdamp.channels import Message
from bayesieve.training.launch import fit

Rule = Literal["product", "average"]


def combine_clients(prior: Message, clients: Message) -> Message:
    """Product of the clients' posteriors with the prior counted once, eq. T24.

    This is Bayes' rule for disjoint data: the data messages add.

    Args:
        prior: (h₀, λ₀) that every client started from, (d,).
        clients: natural parameters of their posteriors, (clients, d).

    Example:
        >>> prior = Message(torch.zeros(1), torch.ones(1))
        >>> clients = Message(torch.tensor([[2.0], [4.0]]), torch.tensor([[3.0], [5.0]]))
        >>> combine_clients(prior, clients)
        Message(linear=tensor([6.]), precision=tensor([7.]))
    """
    linear = prior.linear + (clients.linear - prior.linear).sum(0)
    return Message(linear, prior.precision + (clients.precision - prior.precision).sum(0))


def average_clients(clients: Message, n_examples: Tensor) -> Message:
    """Geometric average of the posteriors weighted by examples, eq. T25: cautious, for overlap.

    Args:
        clients: natural parameters, (clients, d).
        n_examples: (clients,).
    """
    share = (n_examples / n_examples.sum()).to(clients.linear.dtype)[:, None]
    return Message((share * clients.linear).sum(0), (share * clients.precision).sum(0))


def join_clients(
    start: Factorised,
    clients: Sequence[Factorised],
    n_examples: Sequence[int],
    rule: Rule = "product",
) -> Factorised:
    """The posterior of all clients' data; pure.

    A client that is no surer of a weight than the start has learned nothing of it, and in a product
    says nothing: a product is always a posterior. Parameters without one, weights removed by a
    client, and running statistics are means weighted by examples.

    Args:
        start: what every client began with: the prior, or the posterior that the server sent.
        clients: what they learned.
        n_examples: of each client.
        rule: "product" (T24) or "average" (T25).

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.core.network import Network
        >>> network, one = Network.of(nn.Linear(1, 1, bias=False), Gaussian()), torch.ones(1)
        >>> prior = Factorised(network, 0 * one, one)
        >>> clients = [Factorised(network, one, 0.5 * one)] * 2  # λ 4, h 4
        >>> joined = join_clients(prior, clients, [10, 10])
        >>> round(joined.std.item() ** -2, 4), round(joined.mean.item(), 4)  # λ 1 + 2 · 3, 8 / 7
        (7.0, 1.1429)
    """
    check_choice("join_clients", "rule", rule, ("product", "average"))
    if not clients or len(clients) != len(n_examples):
        raise ValueError(
            f"join_clients: give the number of examples of each client, got {len(clients)} clients "
            f"and {len(n_examples)} numbers."
        )
    if any(client.layout != start.layout for client in clients):
        raise ValueError("join_clients: the clients' networks have other tensors than the start.")
    counts = torch.tensor(n_examples, dtype=torch.float64, device=start.mean.device)
    share = (counts / counts.sum()).to(start.mean.dtype)
    means, stds = (torch.stack([getattr(q, name) for q in clients]) for name in ("mean", "std"))
    known = (stds > 0).all(0) & (start.std > 0)
    each = _natural(means, torch.where(known, stds, 1.0))
    if rule == "average":
        message = average_clients(each, counts)
    else:
        before = _natural(start.mean, torch.where(known, start.std, 1.0))
        told = each.precision > before.precision
        heard = (torch.where(told, *pair) for pair in zip(each, before, strict=True))
        message = combine_clients(before, Message(*heard))
    mean = torch.where(known, message.linear / message.precision, share @ means)
    std = torch.where(known, message.precision.rsqrt(), share @ stds)
    buffers = {
        name: _mean_buffer([client.buffers[name] for client in clients], share)
        for name in start.buffers
    }
    return replace(start, mean=mean, std=std, logit_inclusion=None, buffers=buffers)


def _natural(mean: Tensor, std: Tensor) -> Message:
    precision = std.square().reciprocal()
    return Message(mean * precision, precision)


def _mean_buffer(values: Sequence[Tensor], share: Tensor) -> Tensor:
    if not values[0].is_floating_point():
        return values[0].clone()
    return (torch.stack(list(values)).movedim(0, -1) @ share.to(values[0].dtype)).contiguous()


def _flower() -> Any:
    try:
        import flwr.client
        import flwr.common
        import flwr.server.strategy
    except ImportError as error:
        raise ImportError(
            "Flower is missing: `pip install flwr` (join_clients works without)."
        ) from error
    return flwr


def flower_client(problem: Problem, engine: Engine[Any], start: Factorised, **options: Any) -> Any:
    """A Flower client that learns from its own data, beginning where the server says.

    Args:
        problem: network, likelihood and the client's data.
        engine: with a mean and a std per weight.
        start: of the network; its numbers come from the server.
        options: of `fit`, such as epochs=1.

    Returns:
        A `flwr.client.NumPyClient` whose parameters are [mean, std], (d,) each.
    """
    flower = _flower()

    class Client(flower.client.NumPyClient):  # type: ignore[misc, name-defined]
        """Sends and receives posteriors."""

        def get_parameters(self, config: Any) -> list[Any]:
            return to_arrays(start)

        def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
            sent = from_arrays(start, parameters)
            run = fit(problem, engine, start_from=sent, seed=config.get("round", 0), **options)
            learned = run.posterior
            assert isinstance(learned, Factorised), "flower_client: the engine has no std"
            return to_arrays(learned), problem.n_data, {}

    return Client()


def flower_strategy(start: Factorised, rule: Rule = "average", **options: Any) -> Any:
    """Flower's FedAvg with the clients' posteriors joined by `join_clients`.

    Args:
        start: the posterior, or prior, that the server begins with.
        rule: "product" or "average".
        options: of `flwr.server.strategy.FedAvg`.
    """
    flower = _flower()
    to_flower, of_flower = (
        flower.common.ndarrays_to_parameters, flower.common.parameters_to_ndarrays
    )  # fmt: skip

    class Strategy(flower.server.strategy.FedAvg):  # type: ignore[misc, name-defined]
        """Joins posteriors in place of weights."""

        def __init__(self) -> None:
            self.posterior = start
            super().__init__(
                initial_parameters=to_flower(to_arrays(start)),
                on_fit_config_fn=lambda number: {"round": number},
                **options,
            )

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if not results:
                return None, {}
            clients = [from_arrays(start, of_flower(one.parameters)) for _, one in results]
            counts = [one.num_examples for _, one in results]
            self.posterior = join_clients(self.posterior, clients, counts, rule)
            return to_flower(to_arrays(self.posterior)), {}

    return Strategy()


def to_arrays(posterior: Factorised) -> list[Any]:
    """Mean and std as NumPy arrays, (d,) each, then the module buffers by name."""
    buffers = (posterior.buffers[name] for name in sorted(posterior.buffers))
    return [value.detach().cpu().numpy() for value in (posterior.mean, posterior.std, *buffers)]


def from_arrays(like: Factorised, arrays: Sequence[Any]) -> Factorised:
    """The reverse of `to_arrays` for a posterior of the same network."""
    mean, std, *rest = (torch.as_tensor(array).to(like.mean.device) for array in arrays)
    buffers = dict(zip(sorted(like.buffers), rest, strict=True))
    if mean.shape != like.mean.shape or std.shape != like.std.shape:
        raise ValueError(
            f"from_arrays: mean and std must have {len(like.mean)} numbers each, got "
            f"{tuple(mean.shape)} and {tuple(std.shape)}."
        )
    return replace(like, mean=mean, std=std, logit_inclusion=None, buffers=buffers)
