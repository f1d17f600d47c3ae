"""`prune` and `sieve`: from a run, or from weights somebody trained, to a run that is sparse.

`prune` removes weights or whole units by a rule and may train what is left. `sieve` takes trained
weights, finds a posterior around them by Laplace, and removes what the evidence would rather see
at 0; it trains nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayesieve.assess.evaluate import evaluate
from bayesieve.checks import check_choice, check_fraction
from bayesieve.core.posterior import Factorised, Posterior, SparseModel, has_spread
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.core.storage import save
from bayesieve.core.workspace import statistics_names
from bayesieve.engines.laplace import laplace
from bayesieve.engines.laplace_units import laplace_units
from bayesieve.engines.recipes import RunSize, build_engine
from bayesieve.errors import UsageError
from bayesieve.runs.build import (
    build_data,
    build_likelihood,
    build_module,
    build_roles,
    make_plan,
)
from bayesieve.runs.config import (
    DataConfig,
    EngineConfig,
    NetConfig,
    RunConfig,
    TrainingConfig,
)
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.results import Curve, curve_of, numbers
from bayesieve.runs.run import Run, load
from bayesieve.runs.summary import draw_run, write_report
from bayesieve.runs.text import warn
from bayesieve.sieve.evidence import (
    evidence_report,
    prune_by_evidence,
    prune_units_by_evidence,
    weight_evidence,
)
from bayesieve.sieve.prune import prune as prune_model
from bayesieve.sieve.prune import reestimate_batchnorm
from bayesieve.sieve.rules import Rule, keep_n_of_m, keep_probable, keep_zeros
from bayesieve.sieve.unit_rules import keep_latency, keep_macs, keep_units
from bayesieve.text import markdown_table
from bayesieve.training.fit import fit
from bayesieve.training.plan import Plan as Length
from bayesieve.training.schedule import Schedule

SCORE: Final = "snr"  # which weights go first when `sieve` is asked for a number of zeros
LOST = 0.05  # nats per example: what a user should hear about
_BATCH = 1024
_LEAST_NOISE = 1e-4  # of standardised targets; a network that repeats its data has a residual of 0
Shapes = Mapping[str, tuple[int, ...]]


def prune(
    run: Path | str,
    out: Path | str,
    *,
    zeros: float | None = None,
    threshold: float | None = None,
    n_of_m: str | None = None,
    keep_units: float | None = None,
    target_macs: float | None = None,
    target_latency: float | None = None,
    score: str | None = None,
    scope: str | None = None,
    allow_empty_layers: bool = False,
    finetune: int = 0,
    reestimate_batchnorm: bool = False,
    force: bool = False,
    device: str = "auto",
    figures: bool = True,
    arguments: str | None = None,
) -> dict[str, Any]:
    """Remove weights or whole units from a run; give exactly one of the first six keywords.

    Args:
        run: folder of the run.
        out: run folder to write.
        zeros: fraction of all parameters to set to 0.
        threshold: keep weights whose inclusion probability is this high.
        n_of_m: keep N of every M weights, such as "2:4".
        keep_units: keep this fraction of units, channels and heads, whole.
        target_macs: remove whole units until this fraction of multiply-adds is left.
        target_latency: remove whole units until one example takes so many ms, compacted, here.
        score: what stays; unless given, snr for weights and evidence for units, or magnitude for
            a point estimate.
        scope: global or layer; global for weights and layer for units unless given.
        allow_empty_layers: whether a layer may lose its last weight.
        finetune: epochs of further training with the mask fixed.
        reestimate_batchnorm: whether to renew BatchNorm statistics afterwards.
        force: replace the run in `out`.
        device: auto, cpu, cuda or cuda:N.
        figures: whether to draw pictures.
        arguments: the command line, for the record in config.json.

    Returns:
        Metrics of the pruned run, those before under "dense" and the cost of every sparsity under
        "curve".
    """
    source, target = RunFolder(Path(run)), RunFolder(Path(out))
    if target.path.resolve() == source.path.resolve():
        raise UsageError("--out must differ from the run that is pruned.")
    target.check_free(force=force)
    choice = Choice(
        zeros, threshold, _pair(n_of_m), keep_units, target_macs, target_latency, score, scope,
        allow_empty_layers, finetune, reestimate_batchnorm,
    )  # fmt: skip
    opened = load(run, device=device)
    pruned = _pruned(opened, choice)
    record = {"source": str(source.path.absolute()), "rule": choice.to_dict()}
    name = opened.config.engine.name
    return _write(opened, pruned, target, "prune", arguments, record, name=name, figures=figures)


def sieve(
    model: Path | str,
    net: str,
    data: str,
    out: Path | str,
    *,
    target: str | None = None,
    zeros: float | None = None,
    threshold: float | None = None,
    rule: str = "savage-dickey",
    curvature: str = "unit",
    labels: str = "sampled",
    seed: int = 0,
    reestimate_batchnorm: bool = False,
    force: bool = False,
    device: str = "auto",
    figures: bool = True,
    arguments: str | None = None,
) -> dict[str, Any]:
    """Remove from a trained network what the data do not support; nothing is trained again.

    Args:
        model: state dict of the trained network, as .safetensors.
        net: its network, as `train` takes it.
        data: the data it was trained on, as `train` takes it.
        out: run folder to write.
        target: the column to predict of a table.
        zeros: fraction of all parameters to set to 0; what the evidence says unless given.
        threshold: keep weights needed with at least this probability, 0.5 unless given.
        rule: hierarchical learns each layer's share of needed weights, savage-dickey takes even
            odds.
        curvature: unit takes the weights of each unit together, diagonal each weight alone.
        labels: sampled or exact, for the curvature.
        seed: of the sampled labels.
        reestimate_batchnorm: whether to renew BatchNorm statistics afterwards.
        force: replace the run in `out`.
        device: auto, cpu, cuda or cuda:N.
        figures: whether to draw pictures.
        arguments: the command line, for the record in config.json.

    Returns:
        Metrics of the sparse network, those of the trained one under "dense" and the cost of every
        sparsity under "curve".
    """
    if zeros is not None and threshold is not None:
        raise UsageError("give either --zeros or --threshold, not both.")
    folder = RunFolder(Path(out))
    folder.check_free(force=force)
    evidence = Evidence(zeros, threshold, rule, curvature, labels, seed, reestimate_batchnorm)
    network = NetConfig(name=net, warm_start=str(model))
    run, pruned = _sieved(DataConfig(name=data, target=target), network, evidence, device)
    file = run.config.net.warm_start
    result = _write(
        run,
        pruned,
        folder,
        "sieve",
        arguments,
        {"source": file, "rule": evidence.to_dict()},
        name=run.config.net.name,
        figures=figures,
        remarks=evidence.remarks(run.model),
        origin=f"trained weights of {Path(file or '').name}, not trained again",
    )
    lost = result["nll"] - result["dense"]["nll"]
    if lost > LOST:
        old = not reestimate_batchnorm and bool(statistics_names(run.model.network))
        warn(loss_warning(lost, result["zeros"], old_statistics=old))
    return result


def _pair(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    n, colon, m = text.partition(":")
    if not (colon and n.isdecimal() and m.isdecimal()):
        raise UsageError(f"--n-of-m must read N:M, such as 2:4, got {text!r}.")
    return int(n), int(m)


@dataclass(frozen=True)
class Choice:
    """What to remove: exactly one of the first six; the last three of these remove whole units."""

    zeros: float | None
    threshold: float | None
    n_of_m: tuple[int, int] | None
    keep_units: float | None
    target_macs: float | None
    target_latency: float | None
    score: str | None
    scope: str | None
    allow_empty_layers: bool
    finetune: int
    reestimate_batchnorm: bool

    def __post_init__(self) -> None:
        weights = (self.zeros, self.threshold, self.n_of_m)
        units = (self.keep_units, self.target_macs, self.target_latency)
        if sum(rule is not None for rule in (*weights, *units)) != 1:
            raise UsageError(
                "give one of --zeros, --threshold, --n-of-m, --keep-units, --target-macs and "
                "--target-latency."
            )
        if self.allow_empty_layers and any(rule is not None for rule in units):
            raise UsageError("--allow-empty-layers is for single weights; units leave one.")
        if self.threshold is not None and self.score not in (None, "inclusion"):
            raise UsageError("--threshold is on inclusion probabilities; leave out --score.")
        if self.zeros is None and self.keep_units is None and self.scope is not None:
            raise UsageError("--scope needs --zeros or --keep-units.")
        if self.finetune < 0:
            raise UsageError(f"--finetune must be >= 0, got {self.finetune}.")

    def to_dict(self) -> dict[str, Any]:
        """The settings in use, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}

    def rule(self, default_score: str, example: Tensor) -> Rule:
        """The rule; library names are checked where it is made.

        Args:
            default_score: for single weights; units have their own.
            example: one input, (1, ...), to count or time.
        """
        unit_score: Any = self.score
        if self.keep_units is not None:
            per: Any = self.scope or "layer"
            return keep_units(self.keep_units, unit_score, per)
        if self.target_macs is not None:
            return keep_macs(self.target_macs, example, unit_score)
        if self.target_latency is not None:
            return keep_latency(self.target_latency, example, unit_score)
        score: Any = self.score or default_score
        if self.threshold is not None:
            return keep_probable(self.threshold, self.allow_empty_layers)
        if self.n_of_m is not None:
            return keep_n_of_m(*self.n_of_m, score)
        assert self.zeros is not None
        scope: Any = self.scope or "global"
        return keep_zeros(
            self.zeros, score=score, scope=scope, allow_empty_layers=self.allow_empty_layers
        )


@dataclass(frozen=True)
class Pruned:
    """A pruned run before it is written."""

    model: SparseModel
    curve: Curve
    score: str
    history: list[dict[str, Any]]


def _pruned(run: Run, choice: Choice) -> Pruned:
    """Prune a run, fine-tune it if asked, and draw up the curve of all sparsities."""
    default: Any = "snr" if has_spread(run.model) else "magnitude"
    sparse = prune_model(run.model, choice.rule(default, run.data.test.x[:1]))
    score: Any = choice.score or default
    curve = curve_of(run.model, run.data.test, score)
    history: list[dict[str, Any]] = []
    if choice.reestimate_batchnorm:
        sparse = reestimate_batchnorm(sparse, run.train.x)
    if choice.finetune:
        sparse, history = _finetune(run, sparse, choice.finetune)
    return Pruned(sparse, curve, score, history)


def _write(
    run: Run,
    pruned: Pruned,
    folder: RunFolder,
    command: str,
    arguments: str | None,
    record: Mapping[str, Any],
    *,
    name: str | None,
    figures: bool,
    remarks: Sequence[str] = (),
    origin: str | None = None,
) -> dict[str, Any]:
    """Write the folder of a pruned run; returns its metrics, with those before under "dense".

    `name` is the headline of its report and `remarks` go into it; `origin` says where weights come
    from that the run did not train.
    """
    data, model = run.data, pruned.model
    before = numbers(evaluate(run.model, data.test), run.model)
    result = numbers(evaluate(model, data.test), model)
    folder.clear()
    folder.create(run.config, command, arguments, **record)
    save(model, folder.posterior, extra={"pruned": True})
    folder.write("curve.json", {"score": pruned.score, "points": pruned.curve})
    pictures = []
    if figures:
        pictures = draw_run(folder.path, model, data, history=pruned.history, curve=pruned.curve)
    rows = {"before": before, "sparse": result}
    title = f"{name} on {data.name}, pruned"
    text = write_report(title, data, run.config, rows, pictures, remarks, origin)
    folder.write_text("report.md", text)
    result = {**result, "dense": before, "curve": pruned.curve}
    folder.write("metrics.json", result)
    return result


def _finetune(
    run: Run, sparse: SparseModel, epochs: int
) -> tuple[SparseModel, list[dict[str, Any]]]:
    """Train the kept weights from where they are, means and stds; the mask does not change."""
    config = run.config
    training = config.training
    problem = Problem(
        build_module(config.net, run.data, training.seed),
        build_likelihood(config.net, run.data),
        run.train,
        roles=build_roles(config.net),
    )
    assert training.batch_size is not None  # a run folder holds resolved settings
    length = Length.of(problem.n_data, epochs, None, training.batch_size)
    size = RunSize(problem.n_data, length.n_steps, length.per_epoch, may_prune=False)
    course = config.schedule
    kl = course.kl if course.kl_after is None else course.kl_after
    schedule = Schedule(
        lr="cosine",
        kl=1.0 if kl is None else kl,
        minibatch=course.minibatch,
        clip_norm=training.clip_norm,
        compile=training.compile,
    )
    done = fit(
        problem.to(sparse.network.device),
        build_engine(config.engine, size),
        epochs=epochs,
        batch_size=training.batch_size,
        seed=training.seed,
        schedule=schedule,
        start_from=sparse,
    )
    return SparseModel(done.posterior, sparse.keep), done.history


@dataclass(frozen=True)
class Evidence:
    """How much goes, and how that is judged; `zeros` and `threshold` exclude each other."""

    zeros: float | None
    threshold: float | None
    rule: str
    curvature: str
    labels: str
    seed: int
    reestimate_batchnorm: bool = False

    def __post_init__(self) -> None:
        check_choice("sieve", "--curvature", self.curvature, ("unit", "diagonal"))
        check_choice("sieve", "--rule", self.rule, ("hierarchical", "savage-dickey"))
        check_choice("sieve", "--labels", self.labels, ("sampled", "exact"))
        if self.threshold is not None:
            check_fraction("sieve", threshold=self.threshold)
        if self.zeros is not None:
            check_fraction("sieve", zeros=self.zeros)

    def to_dict(self) -> dict[str, Any]:
        """The settings in use, ready for JSON."""
        chosen = asdict(self).items()
        return {name: value for name, value in chosen if value is not None and value is not False}

    @property
    def least(self) -> float:
        """Probability of being needed that keeps a weight; 0 keeps all."""
        return 0.5 if self.threshold is None else self.threshold

    def __call__(self, problem: Problem) -> tuple[Factorised, SparseModel]:
        """The posterior around the trained weights, and the same without what goes."""
        posterior, sparse = self._reduced(problem)
        if self.reestimate_batchnorm:
            sparse = reestimate_batchnorm(sparse, problem.x)
        return posterior, sparse

    def _reduced(self, problem: Problem) -> tuple[Factorised, SparseModel]:
        labels: Any = self.labels
        rule: Any = self.rule
        units = None
        if self.curvature == "unit":
            units = laplace_units(problem, labels=labels, seed=self.seed)
        posterior = units.posterior if units else laplace(problem, labels=labels, seed=self.seed)
        if self.zeros is not None:
            if units is not None:
                return posterior, prune_units_by_evidence(units, self.zeros)
            return posterior, prune_model(posterior, keep_zeros(self.zeros, score=SCORE))
        sparse = prune_by_evidence(posterior, weight_evidence(rule), threshold=self.least)
        return posterior, units.reduced(sparse.keep) if units else sparse

    def remarks(self, posterior: Posterior | SparseModel) -> list[str]:
        """A paragraph on what the evidence removes in each tensor; none where --zeros decides."""
        if self.zeros is not None:
            return []
        rule: Any = self.rule
        tensors = evidence_report(posterior, weight_evidence(rule), threshold=self.least)
        rows = [
            (name, f"{kept:,}", f"{total:,}", f"{log_odds:.2f}", f"{gained:.1f}")
            for name, kept, total, log_odds, gained in tensors
        ]
        header = ("tensor", "kept", "of", "prior log-odds", "evidence gained")
        words = (
            "What the evidence removes. **prior log-odds** that a weight is needed; **evidence "
            "gained**: sum over what goes of the log evidence that each gains alone, in nats."
        )
        return [words, markdown_table(header, rows)]


def _sieved(
    data: DataConfig, net: NetConfig, evidence: Evidence, device: str
) -> tuple[Run, Pruned]:
    """Load trained weights, find their posterior and reduce it."""
    check_fits(Path(net.warm_start or ""), shapes_of(data, net))
    # What `prune --finetune` would go on with: the same family of posteriors around these weights.
    engine = EngineConfig(name="flat-vi", start="module")
    training = TrainingConfig(seed=evidence.seed, device=device)
    plan = make_plan(RunConfig(data=data, net=net, engine=engine, training=training))
    if plan.problem.likelihood.normal_noise is not None:
        # Trained weights come without a noise level, and curvature is in its units.
        known = replace(net, noise_std=residual(plan.problem), learn_noise=True)
        plan = make_plan(RunConfig(data=data, net=known, engine=engine, training=training))
    posterior, sparse = evidence(plan.problem.to(plan.device))
    assert isinstance(posterior.prior, Normal)
    width = posterior.prior.std
    config = replace(plan.config, engine=replace(plan.config.engine, prior_std=width))
    run = Run(config, plan.data, plan.data.train, None, posterior)
    curve = curve_of(posterior, plan.data.test, SCORE)
    return run, Pruned(sparse, curve, SCORE, [])


def residual(problem: Problem) -> float:
    """Root mean square of the training targets minus the outputs at the initial weights."""
    network, w = problem.network, problem.initial[None]
    buffers, total = network.buffers(), 0.0
    for x, y in zip(problem.x.split(_BATCH), problem.y.split(_BATCH), strict=True):
        left = network.outputs(w, x, buffers)[0].reshape(y.shape) - y
        total += left.double().square().sum().item()
    return max((total / problem.y.numel()) ** 0.5, _LEAST_NOISE)


def shapes_of(data: DataConfig, net: NetConfig) -> Shapes:
    """Name and shape of every tensor in the state dict of a network."""
    state = build_module(net, build_data(data, net), seed=0).state_dict()
    return {name: tuple(value.shape) for name, value in state.items()}


def check_fits(file: Path, expected: Shapes) -> None:
    """Raise unless a safetensors file holds exactly these tensors; names the first that differs."""
    if not file.is_file():
        raise UsageError(f"sieve: there is no file {file}.")
    try:
        with safe_open(file, framework="pt") as stream:
            shapes = {name: tuple(stream.get_slice(name).get_shape()) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"sieve: {file} cannot be read as safetensors ({error}). Write it with "
            "safetensors.torch.save_file(model.state_dict(), path)."
        ) from error
    for name, shape in expected.items():
        if name not in shapes:
            near = ", ".join(sorted(shapes)[:4])
            raise UsageError(f"sieve: {file} lacks {name!r} of --net; it has {near}, ...")
        if shapes[name] != shape:
            raise UsageError(
                f"sieve: {name!r} has shape {list(shapes[name])} in {file} but {list(shape)} in "
                "--net. Give the network it was trained as."
            )
    for name in shapes:
        if name not in expected:
            raise UsageError(f"sieve: {file} has {name!r}, which --net has not.")


def loss_warning(lost: float, zeros: float, *, old_statistics: bool) -> str:
    """The remark on a sieve that took too much.

    The evidence is that of each weight, or unit, with all others in place; where many lean on each
    other, as before a BatchNorm, they are missed together though none is alone.

    Args:
        lost: nats per example.
        zeros: fraction of all parameters.
        old_statistics: whether BatchNorm statistics are still those of the dense network.

    Example:
        >>> loss_warning(0.3, 0.9, old_statistics=False)[:46]
        'sieve: the network lost 0.300 nats per example'
    """
    renew = "Renew its BatchNorm statistics (--reestimate-batchnorm). " if old_statistics else ""
    return (
        f"sieve: the network lost {lost:.3f} nats per example with {zeros:.1%} zeros. {renew}"
        "Take fewer (--zeros; curve.json has the cost of each), or train what is left: "
        f"`bayesieve prune RUN --zeros {zeros:.3f} --finetune 5`."
    )
