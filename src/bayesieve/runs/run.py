"""A run reopened from its folder: settings, data, network and posterior, and its numbers.

`evaluate` and metrics.json, tables and reports all have the numbers of `numbers`.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from bayesieve.assess.diagnostics import (
    ChainReport,
    diagnose_models,
    differing_buffers,
    pooled,
    stuck_in_slab,
)
from bayesieve.assess.evaluate import Evaluation, error_curve
from bayesieve.assess.evaluate import evaluate as score_model
from bayesieve.assess.predict import has_spread, predict
from bayesieve.core.network import Network
from bayesieve.core.posterior import (
    Factorised,
    Model,
    Posterior,
    Samples,
    SparseModel,
    posterior_of,
)
from bayesieve.core.storage import load_posterior, load_sparse, read_header, save
from bayesieve.data import DataSet, Examples
from bayesieve.deliver.bundle import Bundle, read_bundle
from bayesieve.errors import (
    BayesieveError,
    DamagedFileError,
    DataError,
    UsageError,
)
from bayesieve.files import what_works
from bayesieve.runs.arguments import ARGUMENT, Draws, Json, Place, Share, command, n_samples_of
from bayesieve.runs.build import (
    build_data,
    build_module,
    choose_device,
    load_weights,
    split_off,
)
from bayesieve.runs.config import RunConfig
from bayesieve.runs.consent import network_of
from bayesieve.runs.folder import CERTIFICATE, RunFolder, is_bundle_folder
from bayesieve.runs.text import warn
from bayesieve.sieve.prune import sparsity_curve
from bayesieve.sieve.ranking import ScoreName
from bayesieve.sieve.rules import keep_zeros
from bayesieve.text import short
from bayesieve.training.checkpoint import has_checkpoint
from bayesieve.uncertainty.calibration import fit_temperature
from bayesieve.uncertainty.familiarity import FILE, Familiarity

_NAMES = "names"  # in the record of config.json
BEFORE = "posterior-before.safetensors"  # the network a run is compared with
Curve = list[dict[str, float]]
_ZEROS = (
    0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.975, 0.98, 0.985, 0.99, 0.995,
    0.998,
)  # fmt: skip


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

    @property
    def familiarity(self) -> Familiarity | None:
        """The OOD score of the training examples; None for tokens, sequences and old runs."""
        path = None if self.folder is None else self.folder.path / FILE
        return Familiarity.read(path) if path is not None and path.is_file() else None

    @property
    def certificate(self) -> Json | None:
        """The certificate that `certify` wrote into the folder; None without."""
        if self.folder is None or not (self.folder.path / CERTIFICATE).is_file():
            return None
        return self.folder.read(CERTIFICATE)

    def models(self, most: int | None = None) -> list[Model]:
        """Every model of a population, or the first `most`; a pruned run has one.

        Those that diverged have no file.
        """
        n = self.config.training.n_models or 1
        if n == 1 or self.folder is None:
            return [self.model]
        paths = [path for i, path in self.folder.members() if i < n][:most]
        return [load_model(path, self.model.network) for path in paths] or [self.model]

    def pooled(self) -> Model:
        """The draws of all chains of a sampler together; of any other run its first model."""
        if self.posterior.n_kept is None or not has_spread(self.model):
            return self.model
        return pool(self.models())

    def __repr__(self) -> str:
        where = "" if self.folder is None else f"{self.folder.path}: "
        return f"Run({where}{self.config.engine.name} on {self.data.name}, {self.config.net.name})"


def load(
    run: Path | str, *, member: int | None = None, device: str = "auto", trust: bool = False
) -> Run:
    """Reopen a run; no code that its files name is run unless trusted.

    Args:
        run: folder written by `train`, `prune`, `sieve` or `demo`.
        member: which model of a run with several, from 0; None is the first.
        device: auto, cpu, cuda or cuda:N.
        trust: whether to import the factory of a network "module:...", if its file is unchanged;
            the stored graph is used otherwise.
    """
    folder = RunFolder(Path(run))
    config = folder.read_config()
    n_models = config.training.n_models or 1
    if member is not None and not 0 <= member < n_models:
        raise UsageError(
            f"`member` must be from 0 to {n_models - 1} for a run of {n_models}, got {member}."
        )
    path = folder.posterior if member is None or n_models == 1 else folder.member(member)
    if not folder.finished and not path.is_file():
        how = "Make it anew."
        if folder.made_by("train"):
            how = f"Continue it with `train(out={folder.path}, resume=True)`."
        raise UsageError(f"{folder.path} is unfinished: it has no {path.name}. {how}")
    if not path.is_file():
        raise DamagedFileError(f"{folder.path} is damaged: the file {path.name} is missing.")
    with what_works(_remedy(folder, n_models)):
        rows = read_header(path)["layout"]  # complains of a damaged one before data are loaded
    with _settings_of(folder):
        data = build_data(config.data, config.net)
        check_names(folder, data)
        _check_widths(folder, config, data, rows)
        train, held_out = split_off(config, data.train)
        network = network_of(folder, config, data, trust=trust)
    network = network.to(choose_device(device))
    with what_works(_remedy(folder, n_models)):
        model = load_model(path, network)
    return Run(config, data, train, held_out, model, folder)


def _remedy(folder: RunFolder, n_models: int) -> str:
    """Say what to do without a posterior."""
    others = "Other models of the run may be whole (`member`). " if n_models > 1 else ""
    if folder.made_by("train") and has_checkpoint(folder.path):
        return (
            f"{others}Make it anew from its checkpoints: remove {folder.path / 'metrics.json'} and "
            f"run `train(out={folder.path}, resume=True)`."
        )
    return f"{others}Restore it from a copy, or make the run anew."


@contextmanager
def _settings_of(folder: RunFolder) -> Iterator[None]:
    """Name the file of the settings in errors about them, which name only the setting."""
    try:
        yield
    except BayesieveError:
        raise
    except (ValueError, TypeError) as error:
        if str(folder.path) in str(error):
            raise
        raise UsageError(f"{folder.path / 'config.json'}: {error}") from error


def names_of(data: DataSet) -> Json:
    """For the record of a run: classes and columns in the order of its outputs and inputs."""
    return {_NAMES: {"classes": data.classes, "columns": data.feature_names}}


def check_names(folder: RunFolder, data: DataSet) -> None:
    """Raise where the data have other classes or columns, or others first, than the run's had."""
    stored = folder.record.get(_NAMES)
    for what, now in names_of(data)[_NAMES].items():
        then = stored.get(what) if isinstance(stored, dict) else None
        if not isinstance(then, list) or now is None or list(now) == then:
            continue  # an older run, or data without names
        pairs = enumerate(zip_longest(then, now), 1)
        at, (old, new) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        raise DataError(
            f"{folder.path}: the {what} of {data.name} are not those it was trained on: number "
            f"{at} was {short(old)}, now it is {short(new)}. Bring the data back as they were."
        )


def _check_widths(folder: RunFolder, config: RunConfig, data: DataSet, rows: Any) -> None:
    """Raise unless the posterior has the weights of the widths in config.json, before building.

    Every other network has a size that no file chooses.
    """
    if not (config.net.name or "mlp").startswith("mlp"):
        return
    names = {row[0]: row[1] for row in rows} if isinstance(rows, list) else {}
    try:
        with torch.device("meta"):
            module = build_module(config.net, data, 0)
        fits = all(
            names.get(name) == [*p.shape]
            for name, p in module.named_parameters()
            if p.requires_grad  # those of an embedding are not in the posterior
        )
    except (RuntimeError, OverflowError, TypeError):
        fits = False
    if not fits:
        raise ValueError(
            f"load: {folder.posterior} is of another network than {config.net.name}, which "
            f"{folder.path / 'config.json'} names for {data.name}."
        )


def load_finished(folder: RunFolder, device: str = "auto", *, trust: bool = False) -> Run:
    """Reopen a run that came to its end."""
    if not folder.finished:
        raise UsageError(f"{folder.path} is not a finished run: it has no metrics.json.")
    return load(folder.path, device=device, trust=trust)


def parent_of(
    run: Run,
    compared: RunFolder | None = None,
    *,
    device: str = "auto",
    flag: str = "`before`",
    trust: bool = False,
) -> tuple[Model | None, str]:
    """The network a run is compared with, and what to call it; None where none is known.

    It is that of a run that is named, the one kept beside the run, or the one it was pruned from.
    """
    folder, network = run.folder, run.model.network
    assert folder is not None
    if compared is not None:
        other = load_finished(compared, device, trust=trust)
        mine, theirs = run.data.test, other.data.test
        if mine.x.shape != theirs.x.shape or not torch.equal(mine.y, theirs.y):
            raise UsageError(
                f"{flag} {compared.path} is tested on other examples ({other.data.name}) than "
                f"{folder.path} ({run.data.name}); both need the same `data` and `data_seed`."
            )
        return other.model, f"run {compared.path.resolve().name}"
    if (folder.path / BEFORE).is_file():
        return load_model(folder.path / BEFORE, network), "dense"
    record = folder.record
    source = Path(str(record.get("source", "")))
    if record.get("command") == "prune" and (source / "posterior.safetensors").is_file():
        return load_model(source / "posterior.safetensors", network), "before pruning"
    if record.get("command") == "sieve" and source.is_file():
        module = run.posterior.to_module()
        load_weights(module, source)
        weights = network.weights_of(module).to(network.device)
        return Samples(network, weights[None], buffers=dict(module.named_buffers())), "as trained"
    return None, "dense"


def read_folder(path: Path, *, trust: bool = False) -> Run | Bundle:
    """The run or the bundle in a folder, on the CPU."""
    if is_bundle_folder(path):
        return read_bundle(path)
    return load(path, device="cpu", trust=trust)


def load_model(path: Path, network: Network) -> Model:
    """A sparse model if the file holds a mask, else a posterior."""
    pruned = read_header(path)["extra"].get("pruned", False)
    return load_sparse(path, network) if pruned else load_posterior(path, network)


def save_model(model: Model, path: Path) -> None:
    """Write a posterior, or a sparse model with its mask; `load_model` reads it."""
    save(model, path, extra={"pruned": isinstance(model, SparseModel)})


def usual_score(model: Model) -> Literal["snr", "magnitude"]:
    """The score to rank the weights of a model by: signal to noise where there is noise."""
    return "snr" if has_spread(model) else "magnitude"


def pool(models: Sequence[Model]) -> Model:
    """The draws of all chains of a sampler as one posterior; of other models the first one.

    Chains whose module buffers differ (other than BatchNorm's) cannot share a posterior either.
    """
    chains = [q for q in map(posterior_of, models) if isinstance(q, Samples)]
    if len(chains) < 2 or len(chains) < len(models) or not has_spread(chains[0]):
        return models[0]
    return models[0] if differing_buffers(chains) else pooled(chains)


def mixing(models: Sequence[Model], examples: Examples) -> ChainReport | None:
    """Report how well the chains of a sampler agree, with a note if they do not; else None."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = diagnose_models(models, examples)
    for warning in caught:
        warn(str(warning.message))
    return report


@command
def evaluate(
    run: Annotated[Place, ARGUMENT],
    *,
    samples: Draws = 0,
    seed: int = 0,
    temperature: bool = False,
    abstain: Share | None = None,
    split: Literal["test", "train", "val"] = "test",
    member: int | None = None,
    device: str = "auto",
    trust: bool = False,
) -> Json:
    """Test a run: error, likelihood, calibration and size.

    Args:
        run: Run folder of `train` or `prune`.
        samples: Posterior draws to average over, of all chains of a sampler; 0 uses the mean
            weights, auto as many draws as bring their standard error below 2 %.
        seed: Seed of the draws.
        temperature: Calibrate on the validation split first.
        abstain: Score also without inputs less familiar than this part of held-out ones, e.g. 0.95.
        split: What to test on.
        member: Which model of a run with `n_models`, from 0.
        device: auto, cpu, cuda or cuda:N.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    n_samples = n_samples_of(samples)
    opened = load(run, member=member, device=device, trust=trust)
    model = opened.pooled() if n_samples != 0 and member is None else opened.model
    examples = {"test": opened.data.test, "train": opened.train, "val": opened.held_out}[split]
    if examples is None:
        raise UsageError("`split=val`: this run held nothing out; train with `val_fraction`.")
    extra: Json = {"split": split}
    known = opened.familiarity if abstain is not None else None
    if abstain is not None and known is None:
        raise UsageError(
            f"`abstain`: {run} has no {FILE}: its inputs are tokens or sequences, or an "
            "older version wrote it. Train it again."
        )
    if temperature:
        if opened.held_out is None:
            raise UsageError("`temperature` needs held-out examples; train with `val_fraction`.")
        x, y = opened.held_out.x, opened.held_out.y
        prediction = predict(model, x, n_samples=n_samples, seed=seed, targets=y)
        extra["temperature"] = fit_temperature(prediction, y)
    scored = score_model(
        model,
        examples,
        n_samples=n_samples,
        seed=seed,
        temperature=extra.get("temperature", 1.0),
        familiarity=known,
        abstain=abstain,
    )
    extra["samples"] = scored.get("draws", 0) if n_samples is None else n_samples
    extra["kl"] = opened.config.tempering
    return {**numbers(scored, model), **extra}


def storage_bytes(model: Model) -> int:
    """Bytes of the mean weights: all of them, or the kept ones and the cheaper way to place them.

    A place takes one bit per parameter, or a 32-bit index per kept one.
    """
    layout, width = model.layout, posterior_of(model).mean.element_size()
    if not isinstance(model, SparseModel):
        return layout.size * width
    kept = int(model.keep.sum())
    return min(kept * width + min(-(-layout.size // 8), 4 * kept), layout.size * width)


def numbers(evaluation: Evaluation, model: Model) -> Json:
    """Everything `evaluate` reports, with the size of the model."""
    posterior = posterior_of(model)
    result = {**evaluation.to_dict(), "bytes": storage_bytes(model)}
    if isinstance(posterior, Factorised) and posterior.logit_inclusion is not None:
        result["stuck_in_slab"] = stuck_in_slab(posterior)
    return result


def curve_of(model: Model, examples: Examples, score: ScoreName) -> Curve:
    """Error, or RMSE, against zeros when ever more weights go in one shot, from here on."""
    posterior = posterior_of(model)
    priorities = keep_zeros(0.0, score).priorities(posterior)
    d = model.layout.size
    most = 1 - int((priorities > model.layout.n_sparse).sum()) / d
    now = 1 - int((priorities > 0).sum()) / d
    zeros = sorted({now, *(z for z in _ZEROS if now < z <= most)})
    with torch.no_grad():
        masks = sparsity_curve(posterior, zeros, score=score)
    return error_curve(posterior, masks, examples)


def curve_points(curve: Sequence[Mapping[str, float]]) -> list[tuple[float, float, float]]:
    """Points (zeros, error, nll) for the figure; none for regression."""
    return [(row["zeros"], row["error"], row["nll"]) for row in curve if "error" in row]
