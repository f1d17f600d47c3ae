"""Joining posteriors that clients learned from disjoint data under one prior."""

from torch import Tensor

from bayesieve.engines.tdamp.channels import Message


def combine_clients(prior: Message, clients: Message) -> Message:
    """Product of the clients' posteriors with the prior counted once, eq. T24.

    This is Bayes' rule for disjoint data: the data messages add.

    Args:
        prior: (H₀, P₀) that every client started from, (d,).
        clients: natural parameters of their posteriors, (clients, d).

    Example:
        >>> import torch
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
