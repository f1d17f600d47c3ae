"""`prune` and `sieve`: from a run, or from weights somebody trained, to a run that is sparse.

`prune` removes weights or whole units by a rule and may train what is left. `sieve` takes trained
weights, finds a posterior around them by Laplace, and removes what examples set apart do not miss;
it trains nothing.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from torch import Tensor

from bayesieve.assess.evaluate import evaluate
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.core.workspace import statistics_names
from bayesieve.data.examples import split_index
from bayesieve.engines.recipes import RunSize, build
from bayesieve.errors import DivergedError, UsageError
from bayesieve.files import same_place
from bayesieve.nets.importing import is_factory
from bayesieve.runs.arguments import (
    ARGUMENT,
    COMMAND_LINE,
    Arg,
    Fraction,
    Json,
    NotNegative,
    Place,
    WholeNumber,
    command,
)
from bayesieve.runs.build import build_likelihood, build_module, build_roles, make_plan
from bayesieve.runs.config import Score, from_keywords
from bayesieve.runs.consent import check_trainable, factory_record, keep_network
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.run import (
    Curve,
    Run,
    curve_of,
    load,
    names_of,
    numbers,
    save_model,
    usual_score,
)
from bayesieve.runs.summary import write_summary
from bayesieve.runs.text import note, warn
from bayesieve.sieve.evidence import evidence_report, prune_by_evidence, weight_evidence
from bayesieve.sieve.prune import prune as prune_model
from bayesieve.sieve.prune import reestimate_batchnorm as renew_batchnorm
from bayesieve.sieve.rules import Rule, keep_n_of_m, keep_probable, keep_zeros
from bayesieve.sieve.trained import MAX_LOSS, Sieved, ranked, sieve_trained
from bayesieve.sieve.unit_rules import keep_latency, keep_macs, keep_units
from bayesieve.text import markdown_table
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule

SCORE: Final = "snr"  # which weights go first when `sieve` is asked for a number of zeros
LOST = 0.05  # nats per example: what a user should hear about
_SET_APART = 0.2  # of the training examples, which say what a cut costs
_BATCH = 1024
_LEAST_NOISE = 1e-4  # of standardised targets; a network that repeats its data has a residual of 0


@dataclass(frozen=True)
class _Cut:
    """Rule of `prune`: arguments of it."""

    zeros: float | None
    threshold: float | None
    n_of_m: str | None
    keep_units: float | None
    target_macs: float | None
    target_latency: float | None
    score: Score | None
    scope: Literal["global", "layer"] | None
    allow_empty_layers: bool

    def check(self) -> None:
        """Raise unless exactly one rule is given, with options that fit it."""
        weights = (self.zeros, self.threshold, self.n_of_m)
        units = (self.keep_units, self.target_macs, self.target_latency)
        if self.n_of_m is not None:
            _pair(self.n_of_m)  # complains before anything is loaded
        if sum(rule is not None for rule in (*weights, *units)) != 1:
            raise UsageError(
                "give one of `zeros`, `threshold`, `n_of_m`, `keep_units`, `target_macs` and "
                "`target_latency`."
            )
        if self.allow_empty_layers and any(rule is not None for rule in units):
            raise UsageError("`allow_empty_layers` is for single weights; units leave one.")
        if self.threshold is not None and self.score not in (None, "inclusion"):
            raise UsageError("`threshold` is on inclusion probabilities; leave out `score`.")
        if self.zeros is None and self.keep_units is None and self.scope is not None:
            raise UsageError("`scope` needs `zeros` or `keep_units`.")

    def rule(self, score: Score, example: Tensor) -> Rule:
        """The rule; `score` is of single weights, `example` one input to count or time."""
        unit_score: Any = self.score
        if self.keep_units is not None:
            return keep_units(self.keep_units, unit_score, self.scope or "layer")
        if self.target_macs is not None:
            return keep_macs(self.target_macs, example, unit_score)
        if self.target_latency is not None:
            return keep_latency(self.target_latency, example, unit_score)
        if self.threshold is not None:
            return keep_probable(self.threshold, self.allow_empty_layers)
        if self.n_of_m is not None:
            return keep_n_of_m(*_pair(self.n_of_m), score)
        assert self.zeros is not None
        return keep_zeros(self.zeros, score, self.scope or "global", self.allow_empty_layers)


@dataclass(frozen=True)
class _Search:
    """Limits of `sieve`: arguments of it."""

    max_loss: float | None
    zeros: float | None
    threshold: float | None
    rule: Literal["hierarchical", "savage-dickey"] | None
    curvature: Literal["unit", "diagonal"] | None
    labels: Literal["exact", "sampled"] | None
    seed: int

    @property
    def by_evidence(self) -> bool:
        """Say whether the evidence of each weight alone decides."""
        return self.threshold is not None or self.rule is not None

    def evidence(self) -> tuple[weight_evidence, float]:
        """The evidence asked for, and the probability of being needed that keeps a weight."""
        threshold = 0.5 if self.threshold is None else self.threshold
        return weight_evidence(self.rule or "savage-dickey"), threshold


@dataclass(frozen=True)
class _Target:
    """Where a pruned run goes, and how it is made."""

    command: str
    out: Place
    force: bool
    device: str
    figures: bool
    reestimate_batchnorm: bool
    trust: bool = False


@command
def prune(
    run: Annotated[Place, ARGUMENT],
    out: Place,
    *,
    zeros: float | None = None,
    threshold: float | None = None,
    n_of_m: Annotated[str | None, Arg(metavar="N:M")] = None,
    keep_units: float | None = None,
    target_macs: float | None = None,
    target_latency: Annotated[float | None, Arg(metavar="MS")] = None,
    score: Score | None = None,
    scope: Literal["global", "layer"] | None = None,
    allow_empty_layers: bool = False,
    finetune: WholeNumber = 0,
    trust: bool = False,
    reestimate_batchnorm: bool = False,
    force: bool = False,
    device: str = "auto",
    figures: bool = True,
) -> Json:
    """Remove weights or whole units from a run, and show what every sparsity would cost.

    Args:
        run: Run folder of `train` or `prune`.
        out: Run folder to write.
        zeros: Fraction of all parameters to set to 0.
        threshold: Keep weights whose inclusion probability is this high.
        n_of_m: Keep N of every M weights, such as 2:4.
        keep_units: Keep this fraction of units, channels and heads, whole.
        target_macs: Remove whole units until this fraction of multiply-adds is left.
        target_latency: Remove whole units until one example takes this long here, compacted, in
            torch.
        score: What stays; unless given, snr for weights and evidence for units, or magnitude for
            map. Units take inclusion, evidence or magnitude.
        scope: Compare all, or within layers; global for weights, layer for units, unless given.
        allow_empty_layers: A layer may lose its last weight.
        finetune: Epochs of further training with the mask fixed.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
        reestimate_batchnorm: Renew BatchNorm statistics afterwards.
        force: Replace the run in `out`.
        device: auto, cpu, cuda or cuda:N.
        figures: Whether to draw pictures.
    """
    source, target = RunFolder(Path(run)), RunFolder(Path(out))
    if same_place(target.path, source.path):
        raise UsageError("`out` must differ from the run that is pruned.")
    target.check_free(force=force)
    units = (keep_units, target_macs, target_latency)
    cut = _Cut(zeros, threshold, n_of_m, *units, score, scope, allow_empty_layers)
    cut.check()
    opened = load(run, device=device, trust=trust)
    if finetune and is_factory(opened.config.net.name) and not trust:
        check_trainable(source)
    score = score or usual_score(opened.model)
    sparse = prune_model(opened.model, cut.rule(score, opened.data.test.x[:1]))
    note("testing what every sparsity costs")
    curve = curve_of(opened.model, opened.data.test, score)
    history: list[Json] = []
    if reestimate_batchnorm:
        sparse = renew_batchnorm(sparse, opened.train.x)
    if finetune:
        sparse, history = _finetune(opened, sparse, finetune, trust=trust)
    rule = _in_use({**vars(cut), "reestimate_batchnorm": reestimate_batchnorm})
    rule |= {"finetune": finetune} if finetune else {}
    if n_of_m is not None:
        rule["n_of_m"] = _pair(n_of_m)
    place = _Target("prune", out, force, device, figures, reestimate_batchnorm, trust)
    result = _write(
        place,
        opened,
        sparse,
        {"source": str(source.path.absolute()), "rule": rule},
        name=opened.config.engine.name,
        score=score,
        curve=curve,
        history=history,
    )
    more = f"train what is left longer (`finetune={max(2 * finetune, 5)}`)"
    _tell_loss(place, opened, result, [
        "remove fewer", more,
        f"remove them while it learns (`train(zeros={result['zeros']:.3f})`)",
    ])  # fmt: skip
    return result


@command
def sieve(
    model: Annotated[Place, ARGUMENT],
    net: str,
    data: str,
    out: Place,
    *,
    target: str | None = None,
    max_loss: NotNegative | None = None,
    zeros: Fraction | None = None,
    threshold: Fraction | None = None,
    rule: Literal["hierarchical", "savage-dickey"] | None = None,
    curvature: Literal["unit", "diagonal"] | None = None,
    labels: Literal["exact", "sampled"] | None = None,
    seed: int = 0,
    reestimate_batchnorm: bool = False,
    force: bool = False,
    device: str = "auto",
    figures: bool = True,
) -> Json:
    """Remove from a trained network what the data do not support; nothing is trained again.

    One pass over the data gives every weight a standard deviation (Laplace). Weights with a small
    mean for it go first, until a fifth of the training examples, set apart, lose `max_loss`.

    Args:
        model: State dict of the trained network, as .safetensors.
        net: Its network, as `train` takes it.
        data: The data it was trained on, as `train` takes it.
        out: Run folder to write.
        target: Tables: the column to predict.
        max_loss: Remove weights until examples set apart lose this much, nats per example [0.01].
        zeros: Fraction of all parameters to set to 0, whatever it costs.
        threshold: Keep weights needed with at least this probability by the evidence of each alone,
            whatever it costs [0.5 with `rule`].
        rule: Of the evidence: whether each layer's share of needed weights is learned, or even odds
            are taken [savage-dickey with `threshold`].
        curvature: Of the weights of each unit together, which lets the rest make up for what goes,
            or of each weight alone; by unit unless given, where the network has Linear and Conv2d
            layers.
        labels: Curvature from ten labels sampled per example, or from all outputs (the choice for
            up to ten).
        seed: Seed of the sampled labels.
        reestimate_batchnorm: Renew BatchNorm statistics afterwards.
        force: Replace the run in `out`.
        device: auto, cpu, cuda or cuda:N.
        figures: Whether to draw pictures.
    """
    search = _Search(max_loss, zeros, threshold, rule, curvature, labels, seed)
    if (zeros is not None) + (max_loss is not None) + search.by_evidence > 1:
        raise UsageError("give one of `max_loss`, `zeros`, and `threshold` or `rule`.")
    RunFolder(Path(out)).check_free([Path(model)], force=force)
    settings = {"data": data, "target": target, "net": net, "warm_start": str(model)}
    run, sparse, found = _sieved(
        {**settings, "device": device}, search, reestimate=reestimate_batchnorm
    )
    file = run.config.net.warm_start
    record = _in_use({**vars(search), "reestimate_batchnorm": reestimate_batchnorm})
    if found is not None:
        record |= {"max_loss": found.max_loss, "curvature": found.curvature}
    place = _Target("sieve", out, force, device, figures, reestimate_batchnorm)
    result = _write(
        place,
        run,
        sparse,
        {"source": file, "rule": record},
        name=run.config.net.name,
        score=SCORE,
        curve=curve_of(run.model, run.data.test, SCORE),
        remarks=_walked(found) if found else _remarks(search, run.model),
        origin=f"trained weights of {Path(file or '').name}, not trained again",
        more={"held_out": found.cost._asdict()} if found else {},
    )
    _tell_loss(place, run, result, [
        "leave the number of zeros to `max_loss`",
        f"train what is left (`prune({out}, zeros={result['zeros']:.3f}, finetune=5)`)",
    ])  # fmt: skip
    return result


def _tell_loss(place: _Target, run: Run, result: Mapping[str, Any], remedies: list[str]) -> None:
    """Say so when a network has lost more than a user would expect, and what would help."""
    before, zeros = result["dense"], result["zeros"]
    lost = result["nll"] - before["nll"]
    if lost <= LOST:
        return
    # Each weight, or unit, was judged with all others in place. Where many lean on each other, as
    # before a BatchNorm, they are missed together though none is alone.
    if not place.reestimate_batchnorm and statistics_names(run.model.network):
        remedies = ["renew its BatchNorm statistics (`reestimate_batchnorm`)", *remedies]
    measure = "error" if "error" in result else "rmse"
    change = f"{measure} {before[measure]:.4g} before, {result[measure]:.4g} now"
    safe = [row["zeros"] for row in result["curve"] if row["nll"] <= before["nll"] + LOST]
    until = f" In one cut, {max(safe):.0%} zeros cost less than {LOST:g} nats." if safe else ""
    warn(
        f"{place.command}: the network lost {lost:.3f} nats per example with {zeros:.1%} "
        f"zeros ({change}).{until} What helps: {'; '.join(remedies)}."
    )


def _in_use(options: Mapping[str, Any]) -> Json:
    """The options that are in use, for records."""
    return {name: v for name, v in options.items() if v is not None and v is not False}


def _pair(text: str) -> tuple[int, int]:
    n, colon, m = text.partition(":")
    if not (colon and n.isdecimal() and m.isdecimal()):
        raise UsageError(f"`n_of_m` must read N:M, such as 2:4, got {text!r}.")
    return int(n), int(m)


def _write(
    place: _Target,
    run: Run,
    sparse: SparseModel,
    record: Mapping[str, Any],
    *,
    name: str | None,
    curve: Curve,
    more: Mapping[str, Any] | None = None,
    **about: Any,
) -> Json:
    """Write the folder of a pruned run; returns its metrics, with those before under "dense".

    `name` is in the headline of its report; `more` are further metrics; `about` are arguments of
    `write_summary`.
    """
    folder, data = RunFolder(Path(place.out)), run.data
    note(f"testing on {len(data.test):,} examples")
    before = numbers(evaluate(run.model, data.test), run.model)
    result = numbers(evaluate(sparse, data.test), sparse)
    metrics = {**result, "dense": before, "curve": curve, **(more or {})}
    with folder.locked():
        folder.begin(force=place.force)
        net = run.config.net.name
        record = factory_record(net, run.folder) | names_of(data) | dict(record)
        folder.create(run.config, place.command, COMMAND_LINE.get(), **record)
        if is_factory(net):
            w, x = run.posterior.mean, run.train.x[:8]
            keep_network(folder, run.model.network, w, x, source=run.folder)
        save_model(sparse, folder.place(folder.posterior.name))
        write_summary(
            folder,
            run.config,
            data,
            sparse,
            {"before": before, "sparse": result},
            metrics,
            title=f"{name} on {data.name}, pruned",
            curve=curve,
            figures=place.figures,
            **about,
        )
        if place.figures:
            from bayesieve.runs.page import add_page  # here: it loads all that a page needs

            add_page(folder, place.device, trust=place.trust)
    return metrics


def _finetune(
    run: Run, sparse: SparseModel, epochs: int, *, trust: bool
) -> tuple[SparseModel, list[Json]]:
    """Train the kept weights from where they are, means and stds; the mask does not change."""
    config = run.config
    training = config.training
    if is_factory(config.net.name) and not trust:
        module = run.posterior.to_module()  # of the stored graph
    else:
        module = build_module(config.net, run.data, training.seed)
    problem = Problem(
        module,
        build_likelihood(config.net, run.data),
        run.train,
        roles=build_roles(config.net),
        precision=training.precision,
    )
    assert training.batch_size is not None  # a run folder holds resolved settings
    batch_size = finetune_batch_size(problem.n_data, training.batch_size)
    asked = (epochs, None, batch_size)
    size = RunSize.of(config.engine.name, problem.n_data, *asked, may_prune=False)
    course = config.schedule
    schedule = Schedule(
        lr="cosine",
        kl=course.last_kl,
        minibatch=course.minibatch,
        clip_norm=training.clip_norm,
        compile=training.compile,
    )
    done = fit(
        problem.to(sparse.network.device),
        build(config.engine.name, size, config.engine.asked()),
        epochs=epochs,
        batch_size=batch_size,
        micro_batch=training.micro_batch,
        seed=training.seed,
        schedule=schedule,
        start_from=sparse,
    )
    return SparseModel(done.posterior, sparse.keep), done.history


def _walked(found: Sieved) -> list[str]:
    """A paragraph on what every number of zeros cost on the examples set apart."""
    rows = [(f"{p.zeros:.1%}", f"{p.lost:+.4f}", f"{p.mistakes:.4g}") for p in found.curve]
    words = (
        f"What zeros cost on the training examples that were set apart, curvature by "
        f"{'unit' if found.curvature == 'unit' else 'single weights'}: {found}."
    )
    return [words, markdown_table(("zeros", "nats lost per example", "mistakes"), rows)]


def _remarks(search: _Search, posterior: Posterior | SparseModel) -> list[str]:
    """A paragraph on what the evidence removes in each tensor; none where `zeros` decides."""
    if search.zeros is not None:
        return []
    scoring, threshold = search.evidence()
    with warnings.catch_warnings(action="ignore"):  # what it costs is printed
        tensors = evidence_report(posterior, scoring, threshold=threshold)
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
    asked: Json, search: _Search, *, reestimate: bool
) -> tuple[Run, SparseModel, Sieved | None]:
    """Load trained weights, find their posterior and reduce it.

    Returns:
        The dense run, what is left, and how far held-out examples let it go, if they decided.
    """
    settings: Json = {
        **asked,
        # What `prune --finetune` would go on with: such posteriors around these weights.
        "engine": "flat-vi",
        "start": "module",
        "seed": search.seed,
    }
    plan = make_plan(from_keywords(settings))
    if plan.problem.likelihood.normal_noise is not None:
        # Trained weights come without a noise level, and curvature is in its units.
        settings |= {"noise_std": residual(plan.problem), "learn_noise": True}
        plan = make_plan(from_keywords(settings))
    problem = plan.problem.to(plan.device)
    network, w = problem.network, problem.initial[None]
    if not bool(network.outputs(w, problem.x[:_BATCH], network.buffers()).isfinite().all()):
        raise DivergedError(
            f"sieve: with the weights of {asked['warm_start']} the network returns NaN or infinity "
            f"on {asked['data']}. Are the inputs prepared as in its training?"
        )
    found = None
    if search.zeros is None and not search.by_evidence:
        rest, apart = split_index(problem.n_data, _SET_APART, search.seed, who="sieve")
        found = sieve_trained(
            with_data(problem, (problem.x[rest], problem.y[rest])),
            (problem.x[apart], problem.y[apart]),
            max_loss=MAX_LOSS if search.max_loss is None else search.max_loss,
            curvature=search.curvature,
            labels=search.labels,
            reestimate=reestimate,
            seed=search.seed,
        )
        posterior, sparse = found.posterior, found.model
    else:
        way = ranked(problem, None, search.curvature, search.labels, search.seed)
        posterior = way.posterior
        if search.by_evidence:
            scoring, threshold = search.evidence()
            with warnings.catch_warnings(action="ignore"):  # what it costs is printed
                alone = prune_by_evidence(posterior, scoring, threshold=threshold)
            sparse = way.kept(alone.keep)
        else:
            sparse = way.pruned(search.zeros or 0.0)
        if reestimate:
            sparse = renew_batchnorm(sparse, problem.x)
    assert isinstance(posterior.prior, Normal)
    width = posterior.prior.std
    config = replace(plan.config, engine=replace(plan.config.engine, prior_std=width))
    return Run(config, plan.data, plan.data.train, None, posterior), sparse, found


def residual(problem: Problem) -> float:
    """Root mean square of the training targets minus the outputs at the initial weights."""
    network, w = problem.network, problem.initial[None]
    buffers, total = network.buffers(), 0.0
    for x, y in zip(problem.x.split(_BATCH), problem.y.split(_BATCH), strict=True):
        left = network.outputs(w, x, buffers)[0].reshape(y.shape) - y
        total += left.double().square().sum().item()
    return max((total / problem.y.numel()) ** 0.5, _LEAST_NOISE)


def finetune_batch_size(n_data: int, batch_size: int) -> int:
    """Examples per step while what is left of a pruned network trains on.

    An epoch has 180 steps or more, unless that takes batches of less than 8: few epochs of few
    steps would leave the network less sure than it is right.

    Example:
        >>> [finetune_batch_size(n, 128) for n in (1_437, 9_000, 60_000)]
        [8, 50, 128]
    """
    return min(batch_size, max(8, n_data // 180))
