"""The work of `bayesieve train`: fit, save, evaluate, draw, report."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from bayesieve.assess.diagnostics import diagnose
from bayesieve.assess.evaluate import evaluate
from bayesieve.core.posterior import (
    Factorised,
    Model,
    Posterior,
    Samples,
    SparseModel,
    has_spread,
)
from bayesieve.core.problem import Problem
from bayesieve.core.storage import load_posterior, save
from bayesieve.runs.build import Plan
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.pictures import draw_run
from bayesieve.runs.report import write_report
from bayesieve.runs.results import curve_of, draws_label, draws_of, numbers, together
from bayesieve.runs.text import note
from bayesieve.training.checkpoint import has_checkpoint
from bayesieve.training.distill import soften
from bayesieve.training.fit import Fit, fit
from bayesieve.training.tensorboard import ScalarLog

_TEACHER_SEEDS = 1_000_003  # teachers draw other random numbers than the run


def learn(plan: Plan, folder: RunFolder, *, resume: bool, log: ScalarLog | None = None) -> Fit:
    """Train as planned, with checkpoints in the folder."""
    config = plan.config.training
    assert config.batch_size is not None
    problem = plan.problem.to(plan.device)
    if config.distill is not None:
        problem = soften(problem, _teachers(plan, problem, folder), config.distill_weight)
    if resume and not has_checkpoint(folder.path):
        note("no checkpoint yet: the run begins anew.")
        resume = False
    return fit(
        problem,
        [plan.engine] * config.n_models,
        epochs=config.epochs,
        steps=config.steps,
        batch_size=config.batch_size,
        seed=config.seed,
        schedule=plan.schedule,
        pruning=plan.pruning,
        validation=plan.validation,
        folder=folder.path,
        resume=resume,
        callbacks=() if log is None else (log,),
    )


def _teachers(plan: Plan, problem: Problem, folder: RunFolder) -> list[Posterior]:
    """Dense models of the same network and engine, kept in `teachers/` for a resumed run."""
    config = plan.config.training
    assert config.distill is not None
    assert config.batch_size is not None
    home = folder.path / "teachers"
    files = [home / f"posterior-{i}.safetensors" for i in range(config.distill)]
    if not all(file.exists() for file in files):
        run = fit(
            problem.with_augment(None),
            [plan.engine] * config.distill,
            epochs=config.distill_epochs,
            steps=None if config.distill_epochs else config.steps,
            batch_size=config.batch_size,
            seed=config.seed + _TEACHER_SEEDS,
            schedule=replace(plan.schedule, kl_after=None, checkpoint_every=None),
            folder=home,
            resume=has_checkpoint(home),
        )
        for file, posterior in zip(files, run.posteriors, strict=True):
            save(posterior, file)
    return [load_posterior(file, problem) for file in files]


def complete(plan: Plan, run: Fit, folder: RunFolder, *, figures: bool) -> dict[str, Any]:
    """Save what was learned, test it, draw it; metrics.json comes last and marks the end."""
    models = models_of(run)
    save_models(models, folder)
    data, first = plan.data, models[0]
    result = numbers(evaluate(first, data.test), first)
    rows = {"mean weights": dict(result)}
    if has_spread(first):
        whole = together(models)
        n_draws, n_chains = draws_of(whole), 1 if whole is first else len(models)
        sampled = numbers(evaluate(whole, data.test, n_samples=n_draws), first)
        result["sampled"] = {**sampled, "draws": n_draws, "chains": n_chains}
        rows[draws_label(result["sampled"])] = sampled
    if len(models) > 1 and (chains := _chains(run)) is not None:
        folder.write("chains.json", chains)
        result["chains"] = chains
    if len(models) > 1:
        result["models"] = [numbers(evaluate(m, data.test), m) for m in models]
        rows |= {f"model {i}": own for i, own in enumerate(result["models"])}
    score = plan.config.pruning.score or ("snr" if has_spread(first) else "magnitude")
    curve = curve_of(first, data.test, score)
    folder.write("curve.json", {"score": score, "points": curve})
    pictures = []
    if figures:
        pictures = draw_run(folder.path, first, data, history=run.history, curve=curve)
    title = f"{plan.config.engine.name} on {data.name}"
    report = write_report(title, data, plan.config, rows, pictures, _remarks(plan, run, result))
    folder.write_text("report.md", report)
    result |= {"seconds": round(run.seconds, 3), "epochs": len(run.history)}
    folder.write("metrics.json", result)
    return result


def _chains(run: Fit) -> dict[str, Any] | None:
    """How far the chains of a sampler agree; None if the run has no chains."""
    chains = [own for own in run.posteriors if isinstance(own, Samples) and len(own.draws) > 3]
    if len(chains) < run.n_models:
        return None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        report = diagnose(chains)
    for warning in said:
        note(str(warning.message))
    return asdict(report)


def models_of(run: Fit) -> list[Model]:
    """What each model of a run has become: a sparse model if it was pruned."""
    keep = run.state.controls.keep
    if keep is None:
        return [_without_removed(own) for own in run.posteriors]
    return [SparseModel(own, keep[i].clone()) for i, own in enumerate(run.posteriors)]


def _without_removed(posterior: Posterior) -> Model:
    """A sparse model where the engine itself removed weights: they are 0 without any doubt."""
    if not isinstance(posterior, Factorised):
        return posterior
    keep = torch.ones(posterior.layout.size, dtype=torch.bool, device=posterior.mean.device)
    bayesian = posterior.layout.bayesian
    keep[bayesian] = (posterior.mean != 0)[bayesian] | (posterior.std != 0)[bayesian]
    return posterior if bool(keep.all()) else SparseModel(posterior, keep)


def save_models(models: Sequence[Model], folder: RunFolder) -> None:
    """Write posterior.safetensors, and one file per model for a population."""
    for index, model in enumerate(models):
        extra = {"pruned": isinstance(model, SparseModel)}
        if len(models) > 1:
            save(model, folder.member(index), extra=extra)
        if index == 0:
            save(model, folder.posterior, extra=extra)


def _remarks(plan: Plan, run: Fit, result: dict[str, Any]) -> list[str]:
    remarks = [f"Training took {run.seconds:.1f} s on {plan.device}."]
    if result.get("stuck_in_slab", 0.0) > 0.05:
        remarks.append(
            f"{100 * result['stuck_in_slab']:.0f} % of the weights are counted as included only "
            "because they started in the slab: use a smaller --init-std, or rank by snr."
        )
    if len(run.history) < (plan.config.training.epochs or 0):
        remarks.append(
            f"Stopped early after {len(run.history)} epochs: validation did not improve any more."
        )
    return remarks
