"""A run reopened: settings, data, network and what was learned, from its folder alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesieve.assess.diagnostics import differing_buffers, pooled
from bayesieve.core.network import Network
from bayesieve.core.posterior import Model, Posterior, Samples, has_spread, posterior_of
from bayesieve.core.storage import load_posterior, load_sparse, read_header
from bayesieve.data import DataSet, Examples
from bayesieve.deliver.bundle import Bundle, read_bundle
from bayesieve.errors import DamagedFileError, UsageError
from bayesieve.runs.build import build_data, build_network, choose_device, split_off
from bayesieve.runs.config import RunConfig
from bayesieve.runs.folder import RunFolder, is_bundle_folder

DRAWS = 32  # posterior draws behind uncertainties, next to predictions with the mean weights


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run.

    Args:
        config: its settings.
        data: the whole data set.
        train: the examples it was trained on.
        held_out: those set aside for validation, if any.
        model: a posterior, or a sparse model if it was pruned.
        folder: where it was read from; None for a run that is not written yet.
    """

    config: RunConfig
    data: DataSet
    train: Examples
    held_out: Examples | None
    model: Model
    folder: RunFolder | None = None

    @property
    def posterior(self) -> Posterior:
        """The posterior over the weights."""
        return posterior_of(self.model)

    def models(self, most: int | None = None) -> list[Model]:
        """Every model of a population, or the first `most`; a pruned run has one."""
        n = self.config.training.n_models
        if n == 1 or self.folder is None:
            return [self.model]
        paths = [self.folder.member(i) for i in range(n)][:most]
        if not all(path.is_file() for path in paths):
            return [self.model]
        return [load_model(path, self.model.network) for path in paths]

    def pooled(self) -> Model:
        """The draws of all chains of a sampler together; of any other run its first model."""
        if not isinstance(self.posterior, Samples) or not has_spread(self.model):
            return self.model
        return pool(self.models())

    def __repr__(self) -> str:
        where = "" if self.folder is None else f"{self.folder.path}: "
        return f"Run({where}{self.config.engine.name} on {self.data.name}, {self.config.net.name})"


def load(run: Path | str, *, member: int | None = None, device: str = "auto") -> Run:
    """Reopen a run.

    Args:
        run: folder written by `train`, `prune`, `sieve` or `demo`.
        member: which model of a run with several, from 0; None is the first.
        device: auto, cpu, cuda or cuda:N.
    """
    folder = RunFolder(Path(run))
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
    return Run(config, data, train, held_out, load_model(path, network), folder)


def read_folder(path: Path) -> Run | Bundle:
    """The run or the bundle in a folder, on the CPU."""
    return read_bundle(path) if is_bundle_folder(path) else load(path, device="cpu")


def load_model(path: Path, network: Network) -> Model:
    """A sparse model if the file holds a mask, else a posterior."""
    pruned = read_header(path)["extra"].get("pruned", False)
    return load_sparse(path, network) if pruned else load_posterior(path, network)


def pool(models: Sequence[Model]) -> Model:
    """The draws of all chains of a sampler as one posterior; of other models the first one.

    Chains whose module buffers differ (other than BatchNorm's) cannot share a posterior either.
    """
    chains = [q for q in map(posterior_of, models) if isinstance(q, Samples)]
    if len(chains) < 2 or len(chains) < len(models) or draws_of(chains[0]) == 0:
        return models[0]
    return models[0] if differing_buffers(chains) else pooled(chains)


def draws_of(model: Model) -> int:
    """How many draws to average: all of a chain, some of a variational posterior, none of a point.

    Example:
        >>> from bayesieve.sieve.scores import small_posterior
        >>> draws_of(small_posterior())
        32
    """
    posterior = posterior_of(model)
    if isinstance(posterior, Samples):
        return len(posterior.draws) if len(posterior.draws) > 1 else 0
    return DRAWS if has_spread(model) else 0
