"""`prune` and `sieve`: from a run, or from weights somebody trained, to a run that is sparse.

`prune` removes weights or whole units by a rule and may train what is left. `sieve` takes trained
weights, finds a posterior around them by Laplace, and removes what examples set apart do not miss;
it trains nothing.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from bayesieve.assess.evaluate import evaluate
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.core.workspace import statistics_names
from bayesieve.data.examples import split_index
from bayesieve.engines.recipes import RunSize, build, finetune_batch_size
from bayesieve.errors import DivergedError, UsageError
from bayesieve.files import same_place
from bayesieve.nets.importing import is_factory
from bayesieve.runs.build import build_likelihood, build_module, build_roles, make_plan
from bayesieve.runs.config import Score, from_keywords
from bayesieve.runs.consent import check_trainable, factory_record, keep_network
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.options import Prune, Sieve
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
from bayesieve.sieve.prune import reestimate_batchnorm
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
# Options of prune and sieve that are not the rule of pruning.
_NOT_RULE = {
    "run", "out", "model", "net", "data", "target", "force", "device", "figures", "arguments",
    "trust",
}  # fmt: skip


def prune(asked: Prune) -> dict[str, Any]:
    """Write a pruned run; returns its metrics, those before, and the cost of every sparsity."""
    source, target = RunFolder(Path(asked.run)), RunFolder(Path(asked.out))
    if same_place(target.path, source.path):
        raise UsageError("`out` must differ from the run that is pruned.")
    target.check_free(force=asked.force)
    _check(asked)
    run = load(asked.run, device=asked.device, trust=asked.trust)
    if asked.finetune and is_factory(run.config.net.name) and not asked.trust:
        check_trainable(source)
    score = asked.score or usual_score(run.model)
    sparse = prune_model(run.model, _rule(asked, score, run.data.test.x[:1]))
    note("testing what every sparsity costs")
    curve = curve_of(run.model, run.data.test, score)
    history: list[dict[str, Any]] = []
    if asked.reestimate_batchnorm:
        sparse = reestimate_batchnorm(sparse, run.train.x)
    if asked.finetune:
        sparse, history = _finetune(run, sparse, asked.finetune, trust=asked.trust)
    rule = _rule_record(asked)
    if not asked.finetune:
        del rule["finetune"]
    if asked.n_of_m is not None:
        rule["n_of_m"] = _pair(asked.n_of_m)
    result = _write(
        asked,
        run,
        sparse,
        {"source": str(source.path.absolute()), "rule": rule},
        name=run.config.engine.name,
        score=score,
        curve=curve,
        history=history,
    )
    more = f"train what is left longer (`finetune={max(2 * asked.finetune, 5)}`)"
    _tell_loss(asked, run, result, [
        "remove fewer", more,
        f"remove them while it learns (`train(zeros={result['zeros']:.3f})`)",
    ])  # fmt: skip
    return result


def sieve(asked: Sieve) -> dict[str, Any]:
    """Write the run of a trained network without what the data do not support."""
    by_evidence = asked.threshold is not None or asked.rule is not None
    if (asked.zeros is not None) + (asked.max_loss is not None) + by_evidence > 1:
        raise UsageError("give one of `max_loss`, `zeros`, and `threshold` or `rule`.")
    RunFolder(Path(asked.out)).check_free([Path(asked.model)], force=asked.force)
    run, sparse, found = _sieved(asked)
    file = run.config.net.warm_start
    rule = _rule_record(asked)
    if found is not None:
        rule |= {"max_loss": found.max_loss, "curvature": found.curvature}
    result = _write(
        asked,
        run,
        sparse,
        {"source": file, "rule": rule},
        name=run.config.net.name,
        score=SCORE,
        curve=curve_of(run.model, run.data.test, SCORE),
        remarks=_walked(found) if found else _remarks(asked, run.model),
        origin=f"trained weights of {Path(file or '').name}, not trained again",
        more={"held_out": found.cost._asdict()} if found else {},
    )
    zeros = result["zeros"]
    _tell_loss(asked, run, result, [
        "leave the number of zeros to `max_loss`",
        f"train what is left (`prune({asked.out}, zeros={zeros:.3f}, finetune=5)`)",
    ])  # fmt: skip
    return result


def _tell_loss(
    asked: Prune | Sieve, run: Run, result: Mapping[str, Any], remedies: list[str]
) -> None:
    """Say so when a network has lost more than a user would expect, and what would help."""
    before, zeros = result["dense"], result["zeros"]
    lost = result["nll"] - before["nll"]
    if lost <= LOST:
        return
    # Each weight, or unit, was judged with all others in place. Where many lean on each other, as
    # before a BatchNorm, they are missed together though none is alone.
    if not asked.reestimate_batchnorm and statistics_names(run.model.network):
        remedies = ["renew its BatchNorm statistics (`reestimate_batchnorm`)", *remedies]
    measure = "error" if "error" in result else "rmse"
    change = f"{measure} {before[measure]:.4g} before, {result[measure]:.4g} now"
    safe = [row["zeros"] for row in result["curve"] if row["nll"] <= before["nll"] + LOST]
    until = f" In one cut, {max(safe):.0%} zeros cost less than {LOST:g} nats." if safe else ""
    warn(
        f"{asked.command_name()}: the network lost {lost:.3f} nats per example with {zeros:.1%} "
        f"zeros ({change}).{until} What helps: {'; '.join(remedies)}."
    )


def _rule_record(asked: Prune | Sieve) -> dict[str, Any]:
    """The options of the rule that are in use, ready for JSON."""
    values = {name: value for name, value in vars(asked).items() if name not in _NOT_RULE}
    return {name: v for name, v in values.items() if v is not None and v is not False}


def _pair(text: str) -> tuple[int, int]:
    n, colon, m = text.partition(":")
    if not (colon and n.isdecimal() and m.isdecimal()):
        raise UsageError(f"`n_of_m` must read N:M, such as 2:4, got {text!r}.")
    return int(n), int(m)


def _check(asked: Prune) -> None:
    """Raise unless exactly one rule is given, with options that fit it."""
    weights = (asked.zeros, asked.threshold, asked.n_of_m)
    units = (asked.keep_units, asked.target_macs, asked.target_latency)
    if asked.n_of_m is not None:
        _pair(asked.n_of_m)  # complains before anything is loaded
    if sum(rule is not None for rule in (*weights, *units)) != 1:
        raise UsageError(
            "give one of `zeros`, `threshold`, `n_of_m`, `keep_units`, `target_macs` and "
            "`target_latency`."
        )
    if asked.allow_empty_layers and any(rule is not None for rule in units):
        raise UsageError("`allow_empty_layers` is for single weights; units leave one.")
    if asked.threshold is not None and asked.score not in (None, "inclusion"):
        raise UsageError("`threshold` is on inclusion probabilities; leave out `score`.")
    if asked.zeros is None and asked.keep_units is None and asked.scope is not None:
        raise UsageError("`scope` needs `zeros` or `keep_units`.")


def _rule(asked: Prune, score: Score, example: Tensor) -> Rule:
    """The rule asked for; `score` is of single weights, `example` one input to count or time."""
    unit_score: Any = asked.score
    if asked.keep_units is not None:
        return keep_units(asked.keep_units, unit_score, asked.scope or "layer")
    if asked.target_macs is not None:
        return keep_macs(asked.target_macs, example, unit_score)
    if asked.target_latency is not None:
        return keep_latency(asked.target_latency, example, unit_score)
    if asked.threshold is not None:
        return keep_probable(asked.threshold, asked.allow_empty_layers)
    if asked.n_of_m is not None:
        return keep_n_of_m(*_pair(asked.n_of_m), score)
    assert asked.zeros is not None
    return keep_zeros(asked.zeros, score, asked.scope or "global", asked.allow_empty_layers)


def _write(
    asked: Prune | Sieve,
    run: Run,
    sparse: SparseModel,
    record: Mapping[str, Any],
    *,
    name: str | None,
    curve: Curve,
    more: Mapping[str, Any] | None = None,
    **about: Any,
) -> dict[str, Any]:
    """Write the folder of a pruned run; returns its metrics, with those before under "dense".

    `name` is in the headline of its report; `more` are further metrics; `about` are arguments of
    `write_summary`.
    """
    folder, data = RunFolder(Path(asked.out)), run.data
    note(f"testing on {len(data.test):,} examples")
    before = numbers(evaluate(run.model, data.test), run.model)
    result = numbers(evaluate(sparse, data.test), sparse)
    metrics = {**result, "dense": before, "curve": curve, **(more or {})}
    with folder.locked():
        folder.begin(force=asked.force)
        net = run.config.net.name
        record = factory_record(net, run.folder) | names_of(data) | dict(record)
        folder.create(run.config, asked.command_name(), asked.arguments, **record)
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
            figures=asked.figures,
            **about,
        )
        if asked.figures:
            from bayesieve.runs.page import add_page  # here: it loads all that a page needs

            add_page(folder, asked.device, trust=getattr(asked, "trust", False))
    return metrics


def _finetune(
    run: Run, sparse: SparseModel, epochs: int, *, trust: bool
) -> tuple[SparseModel, list[dict[str, Any]]]:
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


def _evidence(asked: Sieve) -> tuple[weight_evidence, float]:
    """The evidence asked for, and the probability of being needed that keeps a weight."""
    threshold = 0.5 if asked.threshold is None else asked.threshold
    return weight_evidence(asked.rule or "savage-dickey"), threshold


def _walked(found: Sieved) -> list[str]:
    """A paragraph on what every number of zeros cost on the examples set apart."""
    rows = [(f"{p.zeros:.1%}", f"{p.lost:+.4f}", f"{p.mistakes:.4g}") for p in found.curve]
    words = (
        f"What zeros cost on the training examples that were set apart, curvature by "
        f"{'unit' if found.curvature == 'unit' else 'single weights'}: {found}."
    )
    return [words, markdown_table(("zeros", "nats lost per example", "mistakes"), rows)]


def _remarks(asked: Sieve, posterior: Posterior | SparseModel) -> list[str]:
    """A paragraph on what the evidence removes in each tensor; none where `zeros` decides."""
    if asked.zeros is not None:
        return []
    scoring, threshold = _evidence(asked)
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


def _sieved(asked: Sieve) -> tuple[Run, SparseModel, Sieved | None]:
    """Load trained weights, find their posterior and reduce it.

    Returns:
        The dense run, what is left, and how far held-out examples let it go, if they decided.
    """
    settings: dict[str, Any] = {
        "data": asked.data,
        "target": asked.target,
        "net": asked.net,
        "warm_start": str(asked.model),
        # What `prune --finetune` would go on with: such posteriors around these weights.
        "engine": "flat-vi",
        "start": "module",
        "seed": asked.seed,
        "device": asked.device,
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
            f"sieve: with the weights of {asked.model} the network returns NaN or infinity on "
            f"{asked.data}. Are the inputs prepared as in its training?"
        )
    by_evidence = asked.threshold is not None or asked.rule is not None
    found = None
    if asked.zeros is None and not by_evidence:
        rest, apart = split_index(problem.n_data, _SET_APART, asked.seed, who="sieve")
        found = sieve_trained(
            problem.with_data((problem.x[rest], problem.y[rest])),
            (problem.x[apart], problem.y[apart]),
            max_loss=MAX_LOSS if asked.max_loss is None else asked.max_loss,
            curvature=asked.curvature,
            labels=asked.labels,
            reestimate=asked.reestimate_batchnorm,
            seed=asked.seed,
        )
        posterior, sparse = found.posterior, found.model
    else:
        way = ranked(problem, None, asked.curvature, asked.labels, asked.seed)
        posterior = way.posterior
        if by_evidence:
            scoring, threshold = _evidence(asked)
            with warnings.catch_warnings(action="ignore"):  # what it costs is printed
                alone = prune_by_evidence(posterior, scoring, threshold=threshold)
            sparse = way.kept(alone.keep)
        else:
            sparse = way.pruned(asked.zeros or 0.0)
        if asked.reestimate_batchnorm:
            sparse = reestimate_batchnorm(sparse, problem.x)
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
