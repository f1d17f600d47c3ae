"""A run folder read back: data, network and what was learned, from config.json alone."""

from dataclasses import dataclass
from pathlib import Path

from bayesieve.core.network import Network
from bayesieve.core.posterior import Model, Samples, has_spread, posterior_of
from bayesieve.core.storage import load_posterior, load_sparse, read_header
from bayesieve.data import DataSet, Examples
from bayesieve.errors import DamagedFileError, UsageError
from bayesieve.runs.build import build_data, build_network, choose_device, split_off
from bayesieve.runs.config import RunConfig
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.results import together


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        config: its settings.
        data: the whole data set.
        train: the examples it was trained on.
        held_out: those set aside for validation, if any.
        model: a posterior, or a sparse model if it was pruned.
    """

    config: RunConfig
    data: DataSet
    train: Examples
    held_out: Examples | None
    model: Model


def load_run(folder: RunFolder, *, member: int | None = None, device: str = "auto") -> Run:
    """Rebuild a run.

    Args:
        folder: written by `train` or `prune`.
        member: which model of a population; None is the first.
        device: where to compute.
    """
    config = folder.read_config()
    n_models = config.training.n_models
    if member is not None and not 0 <= member < n_models:
        raise UsageError(
            f"--member must be from 0 to {n_models - 1} for a run of {n_models}, got {member}."
        )
    path = folder.posterior if member is None or n_models == 1 else folder.member(member)
    if not folder.finished and not path.is_file():
        raise UsageError(
            f"{folder.path} is unfinished: it has no {path.name}. Continue it with "
            f"`bayesieve train --out {folder.path} --resume`."
        )
    if not path.is_file():
        raise DamagedFileError(f"{folder.path} is damaged: the file {path.name} is missing.")
    read_header(path)  # complains about a damaged file before data are loaded
    data = build_data(config.data, config.net)
    train, held_out = split_off(config, data.train)
    network = build_network(config, data).to(choose_device(device))
    return Run(config, data, train, held_out, load_model(path, network))


def all_chains(folder: RunFolder, run: Run) -> Model:
    """The draws of all chains of a sampler together; of any other run its first model.

    `prune` leaves one chain of several: its folder has no others to add.
    """
    n = run.config.training.n_models
    if n == 1 or not isinstance(posterior_of(run.model), Samples) or not has_spread(run.model):
        return run.model
    paths = [folder.member(i) for i in range(n)]
    if not all(path.is_file() for path in paths):
        return run.model
    return together([load_model(path, run.model.network) for path in paths])


def load_model(path: Path, network: Network) -> Model:
    """A sparse model if the file holds a mask, else a posterior."""
    pruned = read_header(path)["extra"].get("pruned", False)
    return load_sparse(path, network) if pruned else load_posterior(path, network)
