"""The work of `bayesieve select`: additive networks on the table, its samples and its folds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesieve.assess.figures.features import error_path, importance_bars
from bayesieve.cli.fitting_table import load_checked
from bayesieve.core.likelihoods import Categorical, Gaussian, Likelihood
from bayesieve.core.posterior import Posterior
from bayesieve.core.priors import SpikeSlab
from bayesieve.data import DataSet
from bayesieve.engines.sbnn import SBNN
from bayesieve.errors import DataError
from bayesieve.estimators.population import AdditiveFits, PopulationFits, Training
from bayesieve.estimators.selector import evidence_schedule
from bayesieve.files import write_atomically
from bayesieve.select import (
    PROPORTIONS,
    ProportionPath,
    TableFits,
    additive_network,
    bootstrap_rows,
    cross_validate_proportion,
    expected_fdr,
    feature_importance,
    feature_inclusion,
    select_fdr,
    select_fraction,
    selection_stability,
)
from bayesieve.text import markdown_table

_STEPS, _BATCH, _HINGES = 1500, 64, 5
_ENGINE = SBNN(SpikeSlab(math.exp(-1), math.exp(-4)), lr=1e-2, init_std=0.01, local=True)


@dataclass(frozen=True)
class Selection:
    """What a call of select asks for; see its help."""

    file: Path
    target: str
    task: str | None
    missing: str
    fdr: float | None
    fraction: float | None
    cross_validate: bool
    bootstrap: int
    epochs: int | None
    seed: int

    @property
    def rule(self) -> str:
        """The rule in words."""
        if self.fraction is not None:
            return f"the best {100 * self.fraction:g} % of the inputs"
        if self.cross_validate:
            return "the share of inputs that cross-validation chose"
        return f"expected share of false discoveries at most {self.level:g}"

    @property
    def ranks(self) -> bool:
        """Whether inputs are kept by their rank, not by their probability."""
        return self.fraction is not None or self.cross_validate

    @property
    def level(self) -> float:
        """The level in force where false discoveries are controlled."""
        return 0.1 if self.fdr is None else self.fdr


@dataclass(frozen=True, eq=False)
class _Found:
    """What one call found out, before it is written."""

    data: DataSet
    phi: Tensor
    probability: Tensor
    keep: Tensor
    path: ProportionPath | None
    frequency: Tensor | None
    stability: float | None


def select_and_report(own: Selection, folder: Path, *, figures: bool) -> dict[str, Any]:
    """Select, then write selection.json, report.md and the pictures."""
    data = _load(own)
    torch.set_num_threads(1)  # the fastest for networks of this size
    fits = _fits(data, own)
    every = torch.arange(len(data.train))
    rows = [every, *_samples(own, len(data.train))]
    posteriors = [q for (q,) in fits.posteriors(rows)]
    path = None
    if own.cross_validate:
        source = torch.Generator().manual_seed(own.seed)
        folds = min(10, len(data.train) // 2)
        tried: TableFits = fits
        if data.task == "regression":  # errors in closed form: many times faster
            tried = AdditiveFits(fits.x, fits.y, _ENGINE, fits.training, n_hinges=_HINGES)
        path = cross_validate_proportion(tried, len(data.train), source, rule="paired",
                                         proportions=_proportions(data), n_folds=folds)  # fmt: skip
    choices = [_choose(own, q, path) for q in posteriors]
    frequency, stability = None, None
    if len(choices) > 2:
        agreement = selection_stability(torch.stack(choices[1:]))
        frequency, stability = agreement.frequency, agreement.index
    q = posteriors[0]
    probability = feature_inclusion(q, source="evidence")
    phi = feature_importance(q).phi
    found = _Found(data, phi, probability, choices[0], path, frequency, stability)
    result = _result(own, found, _errors(fits, data, choices[0]))
    folder.mkdir(parents=True, exist_ok=True)
    _write(own, found, result, folder, figures=figures)
    return {**result, "report": str(folder)}


def _load(own: Selection) -> DataSet:
    data = load_checked(own.file, own.target, own.task, own.missing, own.seed)
    if data.train.x.shape[1] < 2:
        raise DataError(f"{own.file}: one input leaves nothing to select. Add columns.")
    return data


def _fits(data: DataSet, own: Selection) -> PopulationFits:
    x, n = data.train.x, len(data.train)
    likelihood: Likelihood = Gaussian(0.5, learned=True)
    if data.task == "classification":
        likelihood = Categorical()
    model = additive_network(x, data.n_outputs, _HINGES)
    epochs = own.epochs or max(20, round(_STEPS / math.ceil(n / _BATCH)))
    training = Training(epochs, _BATCH, seed=own.seed, at_once=64)
    if not own.ranks:
        training = replace(training, schedule=evidence_schedule(data.task, epochs))
    return PopulationFits(x, data.train.y, model, likelihood, _ENGINE, training)


def _samples(own: Selection, n: int) -> list[Tensor]:
    if not own.bootstrap:
        return []
    return bootstrap_rows(n, own.bootstrap, torch.Generator().manual_seed(own.seed + 1))


def _proportions(data: DataSet) -> tuple[float, ...]:
    """Shares that differ in the number of inputs they keep."""
    d = data.train.x.shape[1]
    counts = {max(1, round(share * d)): share for share in reversed(PROPORTIONS)}
    return tuple(sorted(counts.values()))


def _choose(own: Selection, posterior: Posterior, path: ProportionPath | None) -> Tensor:
    if own.fraction is not None or path is not None:
        share = own.fraction if path is None else path.proportion
        assert share is not None
        return select_fraction(feature_importance(posterior).phi, share)
    return select_fdr(feature_inclusion(posterior, source="evidence"), own.level)


def _errors(fits: PopulationFits, data: DataSet, keep: Tensor) -> tuple[float, float]:
    """Test error of networks on all inputs and on those kept; that of a constant if none is."""
    n, epochs = len(data.train), fits.training.epochs
    whole = PopulationFits(
        torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y]),
        fits.model, fits.likelihood, fits.engine,
        replace(fits.training, schedule=evidence_schedule(data.task, epochs)),
    )  # fmt: skip
    train, test = torch.arange(n), torch.arange(n, n + len(data.test))
    masks = torch.stack([torch.ones_like(keep), keep])
    both = whole.errors([train, train], [test, test], masks)
    unit = float(data.test.target_std.float().mean()) if data.task == "regression" else 1.0
    if data.task == "regression":
        both = both.sqrt() * unit
    return float(both[0]), float(both[1])


def _result(own: Selection, found: _Found, errors: tuple[float, float]) -> dict[str, Any]:
    names = found.data.feature_names or ()
    inputs = [
        {"name": name, "probability": float(found.probability[j]), "phi": float(found.phi[j]),
         "kept": bool(found.keep[j]),
         "frequency": None if found.frequency is None else float(found.frequency[j])}
        for j, name in enumerate(names)
    ]  # fmt: skip
    regression = found.data.task == "regression"
    stability = found.stability
    return {
        "data": str(own.file), "target": own.target, "task": found.data.task,
        "rows": len(found.data.train), "rule": own.rule, "seed": own.seed,
        "kept": [row["name"] for row in inputs if row["kept"]],
        "expected_fdr": expected_fdr(found.probability, found.keep),
        "stability": None if stability is None or math.isnan(stability) else stability,
        "error_name": "RMSE" if regression else "NLL",
        "error_all": errors[0], "error_kept": errors[1], "inputs": inputs,
        "path": None if found.path is None else {
            "proportions": list(found.path.proportions), "mean": found.path.mean.tolist(),
            "standard_error": found.path.standard_error.tolist(),
            "chosen": found.path.proportion,
        },
    }  # fmt: skip


def _write(
    own: Selection, found: _Found, result: dict[str, Any], folder: Path, *, figures: bool
) -> None:
    pictures: list[tuple[str, str]] = []
    names = found.data.feature_names or ()
    if figures:
        importance_bars(
            names, found.probability, folder / "probability.png", kept=found.keep.tolist(),
            title="Probability that an input matters", xlabel="posterior probability",
        )  # fmt: skip
        pictures.append(("probability.png", "Inputs by probability; pale ones are dropped."))
        if found.path is not None:
            error_path(found.path.proportions, found.path.mean, folder / "path.png",
                       standard_error=found.path.standard_error, chosen=found.path.chosen,
                       xlabel="share of inputs kept")  # fmt: skip
            pictures.append(("path.png", "Cross-validated error against the share kept."))
    text = _report(own, result, pictures)
    write_atomically(folder / "report.md", text)
    write_atomically(folder / "selection.json", result)


def _report(own: Selection, result: dict[str, Any], pictures: Sequence[tuple[str, str]]) -> str:
    rows = sorted(result["inputs"], key=lambda row: -row["probability"])
    lines = [
        (row["name"], f"{row['probability']:.3f}", f"{row['phi']:.3f}",
         "" if row["frequency"] is None else f"{row['frequency']:.2f}",
         "yes" if row["kept"] else "no")
        for row in rows
    ]  # fmt: skip
    kept, n = result["kept"], len(rows)
    stability = result["stability"]
    agreement = "" if stability is None else (
        f" Over {own.bootstrap} samples of the rows the choice agrees with index {stability:.2f} "
        "(1 always the same, 0 chance)."
    )  # fmt: skip
    parts = [
        f"# Which inputs matter for {own.target}",
        f"{own.file.name}: {result['rows']:,} rows to learn from, {n} inputs. Rule: {own.rule}.",
        f"Kept {len(kept)} of {n}: {', '.join(kept) or 'none'}. Expected share of false "
        f"discoveries among them: {result['expected_fdr']:.3f}.{agreement}",
        f"Test {result['error_name']} of the network: {result['error_all']:.4g} with all inputs, "
        f"{result['error_kept']:.4g} with those kept.",
        markdown_table(("input", "probability", "φ", "kept in samples", "kept"), lines),
        "**probability**: that the input matters, from the evidence for its weights in an additive "
        "network (each input through five hinges, one linear layer, spike-and-slab posterior). "
        "**φ**: importance from 0 to 1. **kept in samples**: how often the rule keeps it when the "
        "rows are drawn anew. An input that acts only together with others is not seen by an "
        "additive network.",
    ]
    parts += [f"![{caption}]({file})\n\n{caption}" for file, caption in pictures]
    return "\n\n".join(parts) + "\n"
