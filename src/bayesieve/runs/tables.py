"""The work of `bayesieve fit-table` and `select`: call the estimators, write a folder of results.

`fit_table` fits a `SieveRegressor` or `SieveClassifier` and writes a run folder and a bundle.
`select` fits a `SieveSelector` and writes a report. Both take the settings of the
estimators, so that the command line and Python give the same results for the same data and seed.
"""

import json
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch

from bayesieve.assess.figures.features import error_path, importance_bars
from bayesieve.core.likelihoods import likelihood_class
from bayesieve.core.posterior import Factorised, SparseModel
from bayesieve.core.priors import SpikeSlab
from bayesieve.data import DataSet
from bayesieve.data.encoding import column_of_input, raw_columns
from bayesieve.data.tables import RawTable, encode_table, read_table
from bayesieve.errors import DataError, UsageError
from bayesieve.estimators import SieveClassifier, SieveRegressor, SieveSelector
from bayesieve.estimators.defaults import TableSettings
from bayesieve.estimators.importance import shuffled_change, shuffled_changes
from bayesieve.files import same_place, write_atomically
from bayesieve.runs.arguments import (
    ARGUMENT,
    COLUMN,
    Count,
    Json,
    Missing,
    Noise,
    Place,
    Positive,
    Share,
    Task,
    command,
)
from bayesieve.runs.build import absolute_paths, build_network, check_varied, described_net
from bayesieve.runs.bundle import compact, write_form
from bayesieve.runs.config import DataConfig, RunConfig, from_keywords
from bayesieve.runs.folder import RunFolder, check_out
from bayesieve.runs.learn import write_results
from bayesieve.runs.owned import OwnedFolder
from bayesieve.runs.run import load
from bayesieve.runs.summary import Picture, embedded
from bayesieve.text import markdown_table

LEAST_ROWS = 20
_DRAWS = 32  # that say how sure an importance is
_FOLDS = 10


def _read(table: DataConfig, *, counts: bool = False) -> RawTable:
    """Read a table as its file has it."""
    kind, _, file = (table.name or "").partition(":")
    task = table.task or ("regression" if counts else None)
    return read_table(
        kind, Path(file), target=table.target, task=task, drop=table.drop,
        test_fraction=table.test_fraction, seed=table.seed,
    )  # fmt: skip


def _encoded(table: DataConfig, raw: RawTable, *, counts: bool = False) -> DataSet:
    """The standardised table, or one line on why nothing can be learned from it."""
    data = encode_table(raw, missing=table.missing, dates=table.date_parts, counts=counts)
    n = len(data.train) + len(data.test)
    if n < LEAST_ROWS:
        raise DataError(f"{raw.who}: at least {LEAST_ROWS} rows are needed, got {n}. Add some.")
    check_varied(data, data.train)
    return data


def _name(file: Path) -> str:
    """The name under which `load_data` reads a table."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}.")
    if file.suffix.lower() not in (".csv", ".parquet", ".npz"):
        raise UsageError(f"{file} must be a .csv, .parquet or .npz file.")
    return f"{file.suffix.lower().lstrip('.')}:{file}"


@command
def fit_table(
    data: Annotated[Place, ARGUMENT],
    target: Annotated[str, COLUMN],
    *,
    epochs: Count | None = None,
    engine: Literal["sbnn", "flat-vi"] = "sbnn",
    likelihood: Noise | None = None,
    class_weight: Literal["balanced"] | None = None,
    hidden: str | None = None,
    kl: Positive | None = None,
    zeros: Share | None = None,
    test_fraction: Share = 0.2,
    out: Place | None = None,
    report: Place | None = None,
    task: Task | None = None,
    missing: Missing = "refuse",
    drop: Annotated[Sequence[str], COLUMN] = (),
    date_parts: bool = False,
    seed: int = 0,
    force: bool = False,
    figures: bool = True,
) -> Json:
    """Fit a Bayesian network to a table; write a bundle for `predict` and a report.

    Args:
        data: CSV, parquet or NPZ file.
        target: The column to predict.
        epochs: Passes over the rows; about 1,100 steps unless given.
        engine: Algorithm.
        likelihood: Noise of a regression, gaussian unless given; for counts poisson or
            negative-binomial.
        class_weight: Classes: balanced counts rows of rare classes more.
        hidden: Hidden layers, as 50,50; by rows and columns unless given.
        kl: KL weight, 1 is Bayes' rule; inner folds choose it unless given.
        zeros: Fraction of the parameters to remove while training.
        test_fraction: Part set aside for testing.
        out: Bundle folder to write; DATA's name and -model unless given.
        report: Report folder; DATA's name and -report unless given.
        task: Guessed from the target unless given.
        missing: Refuse missing values, or fill them in and tell the network.
        drop: A column to leave out; may be repeated.
        date_parts: Turn dates into time, season, weekday and hour.
        seed: Of splits, starts, noise and batches.
        force: Replace what an earlier call wrote.
        figures: Whether to draw pictures.

    Returns:
        Where things are, the rows, the metrics of the test rows and the importance φ by column.
    """
    file = Path(data)
    words = None if hidden is None else hidden.split(",")
    if not all(word.isdigit() for word in words or ()):
        raise UsageError(f"`hidden` must be widths with commas between, as 50,50; got {hidden!r}.")
    widths = None if words is None else tuple(map(int, words))
    bundle = Path(out or f"{file.stem}-model")
    folder = RunFolder(Path(report or f"{file.stem}-report"))
    if same_place(bundle, folder.path):
        raise UsageError("`out` and `report` must be different folders.")
    counts = likelihood is not None and not likelihood_class(likelihood).standardised
    table = DataConfig(
        _name(file), target, task, missing=missing, drop=tuple(drop), date_parts=date_parts,
        test_fraction=test_fraction, seed=seed, center=False,
    )  # fmt: skip
    read = _encoded(table, _read(table, counts=counts), counts=counts)
    settings: Json = {}
    for word, value, kind in (
        ("likelihood", likelihood, "regression"),
        ("class_weight", class_weight, "classification"),
    ):
        if value is not None and read.task != kind:
            raise UsageError(
                f"`{word}` is for a {kind}, but {target!r} is read as a {read.task}. Leave it "
                f"out, or give `task={kind}`."
            )
        settings |= {} if value is None else {word: value}
    folder.check_free(force=force, flag="`report`")
    check_out(bundle, force=force)
    torch.set_num_threads(1)  # the fastest for networks of this size
    started = time.perf_counter()
    model = fit_estimator(
        read, seed, engine=engine, hidden=widths, epochs=epochs, kl=kl,
        zeros=zeros, **settings,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    with folder.locked():
        folder.begin(force=force, flag="`report`")
        config = _run_config(table, engine, model)
        folder.create(config, "fit-table", file=file.name)
        lines = [json.dumps(row) + "\n" for row in model.history_]
        folder.write("metrics.jsonl", "".join(lines))
        network = build_network(config, read)  # whose embedding, if any, is frozen layers
        posterior = replace(cast(Factorised, model.posterior_), network=network, buffers={})
        learned = posterior if zeros is None else SparseModel(posterior, model.sparse_.keep)
        metrics = write_results(
            folder, config, read, [learned], model.history_, seconds, figures=figures
        )
        importance = _importance(read, model, folder, figures=figures)
        folder.seal()
        if zeros is None:
            write_form(load(folder.path, device="cpu"), "bundle", bundle, force=force)
        else:
            compact(folder.path, bundle, posterior=True, force=force)
    return {
        "data": str(file), "target": target, "task": read.task,
        "rows": {"train": len(read.train), "test": len(read.test)},
        "bundle": str(bundle), "report": str(folder.path), "metrics": metrics,
        "importance": importance,
    }  # fmt: skip


def fit_estimator(data: DataSet, seed: int, **settings: Any) -> SieveRegressor | SieveClassifier:
    """The estimator of a data set's task, fitted to its training rows, which are standardised."""
    settings |= {"random_state": seed, "standardise": False}
    x, y = data.train.x.numpy(), data.train.y.numpy()
    if data.task == "regression":
        return SieveRegressor(**settings).fit(x, y)
    classes = np.arange(data.n_outputs)  # the first partial_fit is a fit that knows all classes
    return SieveClassifier(**settings).partial_fit(x, y, classes=classes)


def _run_config(table: DataConfig, name: str, model: SieveRegressor | SieveClassifier) -> RunConfig:
    """The settings an estimator was fitted with, in the words of config.json."""
    fitted = model.settings_
    engine: Any = fitted.engine
    schedule, pruning = fitted.schedule, fitted.pruning
    values = {
        "net": _net_name(fitted),
        "engine": name,
        "lr": engine.lr,
        "init_std": engine.init_std,
        "start": engine.start,
        "lr_schedule": schedule.lr,
        "warmup": schedule.warmup,
        "kl": model.kl_,
        "kl_warmup_epochs": schedule.kl_warmup_epochs,
        "epochs": fitted.epochs,
        "batch_size": fitted.batch_size,
        "seed": table.seed,
        "device": "cpu",
        "threads": 1,
    }
    prior = engine.prior
    if isinstance(prior, SpikeSlab):
        values |= {"prior": "spike-slab", **asdict(prior)}
    else:
        values |= {"prior": "normal", "prior_std": prior.std}
    if pruning is not None:
        values |= {"zeros": pruning.zeros, "score": pruning.score}
        values |= {"prune_start": pruning.start, "prune_end": pruning.end}
    config = from_keywords(values, RunConfig(table))
    net = described_net(config.net, model.posterior_.network.likelihood)
    return absolute_paths(replace(config, net=net))


def _net_name(fitted: TableSettings) -> str:
    """The name under which `net` of `train` builds the network of an estimator."""
    widths = ",".join(str(width) for width in fitted.widths[0 if fitted.bins else 1])
    return f"mlp:{widths}:relu:{fitted.bins}" if fitted.bins else f"mlp:{widths}"


def _importance(
    data: DataSet, model: SieveRegressor | SieveClassifier, folder: RunFolder, *, figures: bool
) -> dict[str, float]:
    """Write importance.json, its picture and a section of the report; returns φ by name."""
    entries, x, models = data.preprocessing["columns"], data.train.x, model.sparse_models_
    names, groups = raw_columns(entries), torch.tensor(column_of_input(entries))
    phi = torch.as_tensor(shuffled_change(models, x, groups))
    draws = shuffled_changes(models, x, groups, n_samples=_DRAWS)
    draws = draws / draws.square().mean(0).sqrt().max().clamp_min(1e-300)
    numbers = {"phi": phi, "low": draws.quantile(0.05, 0), "high": draws.quantile(0.95, 0)}
    columns = {key: [float(f"{v:.6g}") for v in value.tolist()] for key, value in numbers.items()}
    folder.write("importance.json", {"names": names, **columns})
    by_name = dict(zip(names, phi.tolist(), strict=True))
    best = sorted(by_name.items(), key=lambda item: -item[1])[:10]
    listed = ", ".join(f"{name} ({value:.2f})" for name, value in best)
    text = (folder.path / "report.md").read_text(encoding="utf-8")
    text += (
        "\n## Which inputs matter\n\nφ is how much predictions change when the values of a column "
        f"are shuffled, 1 for the column with the most: {listed}. `bayesieve select` says which "
        "of them are worth keeping.\n"
    )
    if figures:
        at = folder.place("figures/importance.png")
        importance_bars(names, phi, at, low=numbers["low"], high=numbers["high"])
        picture = ("figures/importance.png", "Importance of the inputs with 90 % intervals.")
        text += "\n".join(["", *embedded([picture]), ""])
    folder.write("report.md", text)
    return by_name


class SelectionFolder(OwnedFolder):
    """Where a selection of inputs is kept."""

    kind = "selection"
    layout = ("selection.json", "report.md", "probability.png", "path.png")


@command
def select(
    data: Annotated[Place, ARGUMENT],
    target: Annotated[str, COLUMN],
    *,
    fdr: Share | None = None,
    fraction: Share | None = None,
    cross_validate: bool = False,
    bootstrap: int = 20,
    report: Place | None = None,
    task: Task | None = None,
    missing: Missing = "refuse",
    drop: Annotated[Sequence[str], COLUMN] = (),
    date_parts: bool = False,
    seed: int = 0,
    force: bool = False,
    figures: bool = True,
) -> Json:
    """Find the inputs that matter, with their probability and the cost of dropping the others.

    Args:
        data: CSV, parquet or NPZ file.
        target: The column to predict.
        fdr: Expected share of false discoveries among what is kept (0.1).
        fraction: Keep this share of the inputs instead.
        cross_validate: Choose the share by 10 folds instead.
        bootstrap: Samples of the rows on which the choice is repeated; 0 for none.
        report: Report folder; DATA's name and -selection unless given.
        task: Guessed from the target unless given.
        missing: Refuse missing values, or fill them in and tell the network.
        drop: A column to leave out; may be repeated.
        date_parts: Turn dates into time, season, weekday and hour.
        seed: Of splits, starts, noise and batches.
        force: Replace what an earlier call wrote.
        figures: Whether to draw pictures.

    Returns:
        The content of selection.json, and where the report is.
    """
    file = Path(data)
    rule, words = _rule(fdr, fraction, cross_validate=cross_validate)
    if bootstrap < 0 or bootstrap == 1:
        raise UsageError(f"`bootstrap` must be 0, or 2 or more, got {bootstrap}.")
    folder = SelectionFolder(Path(report or f"{file.stem}-selection"))
    folder.check_free(force=force, flag="`report`")
    table = DataConfig(
        _name(file), target, task, missing=missing, drop=tuple(drop), date_parts=date_parts,
        seed=seed,
    )  # fmt: skip
    raw = _read(table)
    with warnings.catch_warnings():  # the selector makes the same remarks
        warnings.simplefilter("ignore", UserWarning)
        read = _encoded(table, raw)
    if len(raw.frame.columns) < 2:
        raise DataError(f"{file}: one input leaves nothing to select. Add columns.")
    torch.set_num_threads(1)  # the fastest for networks of this size
    kind = SieveRegressor if read.task == "regression" else SieveClassifier
    selector = SieveSelector(
        estimator=kind(random_state=seed),
        network="additive",
        folds=min(_FOLDS, len(read.train) // 2),
        bootstrap=bootstrap,
        random_state=seed,
        **rule,
    )
    result = {
        "data": str(file), "target": target, "task": read.task, "rows": len(read.train),
        "rule": words, "seed": seed, **_selection(raw, read, selector),
    }  # fmt: skip
    with folder.locked():
        folder.begin(force=force, flag="`report`")
        names = list(raw.frame.columns)
        pictures = _draw_selection(selector, names, folder) if figures else []
        text = _selection_report(file, result, bootstrap, pictures)
        write_atomically(folder.place("report.md"), text)
        write_atomically(folder.place("selection.json"), result)
        folder.seal()
    return {**result, "report": str(folder.path)}


def _rule(fdr: float | None, fraction: float | None, *, cross_validate: bool) -> tuple[Json, str]:
    """The rule as parameters of `SieveSelector`, and in words."""
    rules = [name for name, value in (("`fdr`", fdr), ("`fraction`", fraction),
                                      ("`cross_validate`", cross_validate or None))
             if value is not None]  # fmt: skip
    if len(rules) > 1:
        raise UsageError(
            f"give one of `fdr`, `fraction` and `cross_validate`, not {' and '.join(rules)}."
        )
    if fraction is not None:
        words = f"the best {100 * fraction:g} % of the inputs"
        return {"rule": "fraction", "fraction": fraction}, words
    if cross_validate:
        return {"rule": "cross-validated"}, "the share of inputs that cross-validation chose"
    level = 0.1 if fdr is None else fdr
    words = f"expected share of false discoveries at most {level:g}"
    return {"rule": "fdr", "level": level}, words


def _selection(raw: RawTable, data: DataSet, selector: SieveSelector) -> Json:
    """Fit the selector; returns what selection.json says of it."""
    regression = data.task == "regression"
    both = [raw.y[raw.train], raw.y[raw.test]] if regression else [
        data.train.y.numpy(), data.test.y.numpy()
    ]  # fmt: skip
    train, test = raw.frame.take(raw.train), raw.frame.take(raw.test)
    selector.fit(train, both[0])
    frequency = getattr(selector, "frequency_", None)
    stability = getattr(selector, "stability_", math.nan)
    path = getattr(selector, "path_", None)
    inputs = [
        {"name": name, "probability": float(selector.inclusion_[j]),
         "phi": float(selector.feature_importances_[j]), "kept": bool(selector.support_[j]),
         "frequency": None if frequency is None else float(frequency[j])}
        for j, name in enumerate(raw.frame.columns)
    ]  # fmt: skip
    # without rows of a class that no training row has
    known = np.arange(len(both[1])) if regression else np.flatnonzero(np.isin(both[1], both[0]))
    errors = selector.held_out_errors(train, both[0], test.take(known), both[1][known])
    return {
        "kept": [row["name"] for row in inputs if row["kept"]],
        "expected_fdr": selector.expected_fdr_,
        "stability": None if math.isnan(stability) else stability,
        "error_name": "RMSE" if regression else "Brier score",
        "error_all": errors[0], "error_kept": errors[1], "inputs": inputs,
        "path": None if path is None else {
            "proportions": list(path.proportions), "mean": path.mean.tolist(),
            "standard_error": path.standard_error.tolist(), "chosen": path.proportion,
        },
    }  # fmt: skip


def _draw_selection(
    selector: SieveSelector, names: Sequence[str], folder: OwnedFolder
) -> list[Picture]:
    """Draw the pictures; returns files and captions."""
    importance_bars(
        names, torch.as_tensor(selector.inclusion_), folder.place("probability.png"),
        kept=selector.support_.tolist(), title="Probability that an input matters",
        xlabel="posterior probability",
    )  # fmt: skip
    pictures = [("probability.png", "Inputs by probability; pale ones are dropped.")]
    if hasattr(selector, "path_"):
        path = selector.path_
        error_path(path.proportions, path.mean, folder.place("path.png"),
                   standard_error=path.standard_error, chosen=path.chosen)  # fmt: skip
        pictures.append(("path.png", "Cross-validated error against the share kept."))
    return pictures


def _selection_report(
    file: Path,
    result: Json,
    bootstrap: int,
    pictures: Sequence[Picture],
) -> str:
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
        f" Over {bootstrap} samples of the rows the choice agrees with index {stability:.2f} "
        "(1 always the same, 0 chance)."
    )  # fmt: skip
    paragraphs = [
        f"# Which inputs matter for {result['target']}",
        f"{file.name}: {result['rows']:,} rows to learn from, {n} inputs. Rule: {result['rule']}.",
        f"Kept {len(kept)} of {n}: {', '.join(kept) or 'none'}. Expected share of false "
        f"discoveries among them: {result['expected_fdr']:.3f}.{agreement}",
        f"Test {result['error_name']} of an additive model: {result['error_all']:.4g} with all "
        f"inputs, {result['error_kept']:.4g} with those kept.",
        markdown_table(("input", "probability", "φ", "kept in samples", "kept"), lines),
        "**probability**: that the input matters, from the joint posterior of an additive model "
        "(a line and three hinges of each input, spike-and-slab prior). **φ**: size of its effect, "
        "from 0 to 1. **kept in samples**: how often the rule keeps it when the rows are drawn "
        "anew. An input that acts only together with others is not seen by an additive model.",
    ]
    return "\n\n".join([*paragraphs, *embedded(pictures)]) + "\n"
