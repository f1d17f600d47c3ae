"""Arguments of the commands: each has its name, type, default and help once, here.

The command line makes its flags from these classes and `bayesieve.runs` its functions, so both have
the same words and defaults. The settings of a training run are in `config`; `train` and `sweep`
take them all, by the names of their flags. Nothing here imports torch.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, as `field` does

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from bayesieve.checks import check_fraction, check_not_negative, check_positive, check_threads
from bayesieve.runs.arguments import Options, argument, command_line, option, run_settings
from bayesieve.runs.config import RunConfig, Score, setting

Place = Path | str
# settings as an object, as nested plain data, or as a YAML, TOML or JSON file
Config = RunConfig | Mapping[str, Mapping[str, Any]] | Place
Task = Literal["regression", "classification"]
Missing = Literal["refuse", "impute"]
Noise = Literal["gaussian", "student-t", "heteroscedastic", "poisson", "negative-binomial"]
_RUN = "Run folder of `train` or `prune`."
_DEVICE = "auto, cpu, cuda or cuda:N."
_FIGURES = "Whether to draw pictures."
_TARGET = "Tables: the column to predict."
_REPLACE = "Replace the run in `out`."
_check_share = partial(check_fraction, open_ends=True)
Draws = str | int
_AUTO = "0 uses the mean weights, auto as many draws as bring their standard error below 2 %."


def n_samples_of(samples: Draws) -> int | None:
    """Draws as `predict` takes them: a number, or None for as many as their error asks for.

    Example:
        >>> n_samples_of("auto"), n_samples_of("32")
        (None, 32)
    """
    return None if samples == "auto" else int(samples)


def _check_draws(who: str, **values: Draws) -> None:
    for name, value in values.items():
        if value != "auto" and not str(value).isdecimal():
            raise ValueError(f"{who}: {name} must be a number of draws or auto, got {value}.")


@dataclass(frozen=True)
class _Trusting(Options):
    """Options of all commands that read a run or a configuration, which may name a factory."""

    _: KW_ONLY
    trust: bool = option(
        "Import the factory of a network module:... that a run or file names, if it is unchanged; "
        "a run's stored graph is used unless given.",
        False,
    )


@dataclass(frozen=True)
class Train(_Trusting):
    """Learn a posterior over the weights of a network and write a run folder."""

    work: ClassVar[str] = "learn.train"
    out: Place | None = option("Run folder to write (needed unless `dry_run`).")
    config: Config | None = setting(
        "YAML, TOML or JSON file with these settings; flags override it."
    )
    dry_run: bool = option("Print parameters, memory and steps; write nothing.", False)
    force: bool = option(_REPLACE, False)
    resume: bool = option("Continue the run in `out`.", False)
    resume_with_other_data: bool = option(
        "Continue it although the data are not those it was begun with.", False
    )
    figures: bool = option(_FIGURES, True)
    log: str | Sequence[str] | None = option(
        "Also write the numbers of every epoch to csv, tensorboard, wandb or mlflow; several with "
        "commas.",
        metavar="NAMES",
    )
    tensorboard: bool = option("The same as `log=tensorboard`.", False)
    arguments: str | None = command_line()
    settings: Mapping[str, Any] = run_settings()


@dataclass(frozen=True)
class Sweep(_Trusting):
    """Search for settings: validation error against size, as a Pareto front."""

    work: ClassVar[str] = "clone.sweep"
    out: Place = option("Folder of the search; an old one is continued.", MISSING)
    trials: int = option(
        "Settings to try in this call; 0 only gathers what workers found.",
        20,
        check=check_not_negative,
    )
    config: Config | None = setting("YAML, TOML or JSON file with what stays fixed.")
    search: Sequence[str] | None = option(
        "What varies: section.name=LOW:HIGH[:log] or section.name=A|B|C, repeated. Learning rate, "
        "KL weight and zeros unless given."
    )
    storage: str | None = option(
        "Database URL shared by workers on several machines; a journal file in `out` unless given, "
        "which workers on one machine share.",
        metavar="URL",
    )
    name: str = option("Name of the search in the database, which may hold several.", "bayesieve")
    figures: bool = option(_FIGURES, True)
    settings: Mapping[str, Any] = run_settings()


@dataclass(frozen=True)
class _PruningOptions(Options):
    """Options of all commands that write a pruned run."""

    reestimate_batchnorm: bool = option("Renew BatchNorm statistics afterwards.", False)
    force: bool = option(_REPLACE, False)
    device: str = option(_DEVICE, "auto")
    figures: bool = option(_FIGURES, True)
    arguments: str | None = command_line()


@dataclass(frozen=True)
class Prune(_PruningOptions, _Trusting):
    """Remove weights or whole units from a run, and show what every sparsity would cost."""

    work: ClassVar[str] = "sparse.prune"
    run: Place = argument(_RUN, metavar="RUN")
    out: Place = setting("Run folder to write.", MISSING)
    zeros: float | None = option("Fraction of all parameters to set to 0.")
    threshold: float | None = option("Keep weights whose inclusion probability is this high.")
    n_of_m: str | None = option("Keep N of every M weights, such as 2:4.", metavar="N:M")
    keep_units: float | None = option("Keep this fraction of units, channels and heads, whole.")
    target_macs: float | None = option(
        "Remove whole units until this fraction of multiply-adds is left."
    )
    target_latency: float | None = option(
        "Remove whole units until one example takes this long here, compacted, in torch.",
        metavar="MS",
    )
    score: Score | None = option(
        "What stays; unless given, snr for weights and evidence for units, or magnitude for map. "
        "Units take inclusion, evidence or magnitude."
    )
    scope: Literal["global", "layer"] | None = option(
        "Compare all, or within layers; global for weights, layer for units, unless given."
    )
    allow_empty_layers: bool = option("A layer may lose its last weight.", False)
    finetune: int = option(
        "Epochs of further training with the mask fixed.", 0, check=check_not_negative
    )


@dataclass(frozen=True)
class Sieve(_PruningOptions):
    """Remove from a trained network what the data do not support; nothing is trained again.

    One pass over the data gives every weight a standard deviation (Laplace). Weights with a small
    mean for it go first, until a fifth of the training examples, set apart, lose `max_loss`.
    """

    work: ClassVar[str] = "sparse.sieve"
    model: Place = argument("State dict of the trained network, as .safetensors.")
    net: str = setting("Its network, as `train` takes it.", MISSING)
    data: str = setting("The data it was trained on, as `train` takes it.", MISSING)
    out: Place = setting("Run folder to write.", MISSING)
    target: str | None = option(_TARGET)
    max_loss: float | None = option(
        "Remove weights until examples set apart lose this much, nats per example [0.01].",
        check=check_not_negative,
    )
    zeros: float | None = option(
        "Fraction of all parameters to set to 0, whatever it costs.", check=check_fraction
    )
    threshold: float | None = option(
        "Keep weights needed with at least this probability by the evidence of each alone, "
        "whatever it costs [0.5 with `rule`].",
        check=check_fraction,
    )
    rule: Literal["hierarchical", "savage-dickey"] | None = option(
        "Of the evidence: whether each layer's share of needed weights is learned, or even odds "
        "are taken [savage-dickey with `threshold`]."
    )
    curvature: Literal["unit", "diagonal"] | None = option(
        "Of the weights of each unit together, which lets the rest make up for what goes, or of "
        "each weight alone; by unit unless given, where the network has Linear and Conv2d layers."
    )
    labels: Literal["exact", "sampled"] | None = option(
        "Curvature from ten labels sampled per example, or from all outputs (the choice for up to "
        "ten).",
        None,
    )
    seed: int = option("Seed of the sampled labels.", 0)


@dataclass(frozen=True)
class Evaluate(_Trusting):
    """Test a run: error, likelihood, calibration and size."""

    work: ClassVar[str] = "run.evaluate"
    run: Place = argument(_RUN, metavar="RUN")
    samples: Draws = option(
        f"Posterior draws to average over, of all chains of a sampler; {_AUTO}",
        0,
        check=_check_draws,
        metavar="N|auto",
    )
    seed: int = option("Seed of the draws.", 0)
    temperature: bool = option("Calibrate on the validation split first.", False)
    abstain: float | None = option(
        "Score also without inputs less familiar than this part of held-out ones, e.g. 0.95.",
        None,
        check=partial(check_fraction, open_ends=True),
    )
    split: Literal["test", "train", "val"] = option("What to test on.", "test")
    member: int | None = option("Which model of a run with `n_models`, from 0.")
    device: str = option(_DEVICE, "auto")


@dataclass(frozen=True)
class Pool(_Trusting):
    """Join the chains of several runs: how well all of them agree, and what all draws predict."""

    work: ClassVar[str] = "learn.pool_runs"
    runs: Sequence[Place] = argument("Runs of a sampler that differ in `seed`.", metavar="RUN")
    out: Place | None = option("Run folder to write, with the chains of all runs.", None)
    force: bool = option(_REPLACE, False)
    device: str = option(_DEVICE, "auto")
    figures: bool = option(_FIGURES, True)
    arguments: str | None = command_line()


@dataclass(frozen=True)
class Certify(_Trusting):
    """Compare a sieved run with its dense parent; exit code 1 unless every check passes.

    A check passes when the interval of what the sieved model loses is within the tolerance, fails
    when it is beyond, and is unsure, for want of test examples, when it holds the tolerance.
    """

    work: ClassVar[str] = "certificate.certify"
    run: Place = argument("Run folder of `prune`, `sieve` or `demo`.", metavar="RUN")
    against: Place | None = setting("Dense run; the one it was pruned from unless given.")
    accuracy: float = option("Accuracy may fall by this.", 0.01, check=check_not_negative)
    worst_class: float = option(
        "Accuracy of any class may fall by this.", 0.05, check=check_not_negative
    )
    nll: float = option(
        "Negative log-likelihood may rise by this, nats per example.",
        0.05,
        check=check_not_negative,
    )
    ece: float = option("Calibration error may rise by this.", 0.02, check=check_not_negative)
    risk: float = option(
        "Error of the 80 % most certain may rise by this.", 0.01, check=check_not_negative
    )
    agreement: float = option(
        "Share of examples whose class may change.", 0.05, check=check_not_negative
    )
    rmse: float = option(
        "Regression: RMSE may rise by this fraction, of all and of the 80 % most certain.",
        0.05,
        check=check_not_negative,
    )
    coverage: float = option(
        "Regression: coverage at 50, 90 and 95 % may be this much farther from its level.",
        0.05,
        check=check_not_negative,
    )
    apart: float = option(
        "Regression: distance of the two predictions, in units of the dense RMSE.",
        0.5,
        check=check_not_negative,
    )
    strangers: float = option(
        "Familiarity may rank so many pairs of an OOD and a test input wrongly.",
        0.05,
        check=check_not_negative,
    )
    level: float = option("Of the intervals.", 0.95, check=_check_share)
    allow_unsure: bool = option("Checks without enough data to say do not fail.", False)
    samples: Draws = option(
        f"Posterior draws to average over; {_AUTO}", 0, check=_check_draws, metavar="N|auto"
    )
    resamples: int = option("Bootstrap samples of the examples.", 1000, check=check_positive)
    seed: int = option("Seed of draws and resamples.", 0)
    device: str = option(_DEVICE, "auto")

    def exit_code(self, result: Mapping[str, Any]) -> int:
        """0 for a certificate, 1 for none."""
        return 0 if result["certified"] else 1


@dataclass(frozen=True)
class Attack(_Trusting):
    """Attack a run: accuracy, entropy and calibration against strength on its test images."""

    work: ClassVar[str] = "robustness.attack"
    run: Place = argument(_RUN, metavar="RUN")
    fgsm: str | Sequence[float] | None = option(
        "Fast gradient sign attacks of these strengths, in pixels from 0 to 1 "
        "(0.1,0.2,0.3,0.4,0.5 if nothing is chosen).",
        metavar="LIST",
    )
    pgd: str | Sequence[float] | None = option(
        "Projected gradient attacks on the true labels.", metavar="LIST"
    )
    pgd_steps: int = option("Steps of `pgd`.", 10, check=check_positive)
    shift: Sequence[str] | None = option(
        "rotation[:DEGREES,...] or noise[:STD,...]; may be given twice.", metavar="SHIFT"
    )
    samples: int | None = option(
        "Posterior draws averaged: all that are kept (32 of a variational run); 0 uses the mean "
        "weights, of several chains the first one's.",
        check=check_not_negative,
    )
    examples: int | None = option("Only the first so many test images.", check=check_positive)
    seed: int = option("Seed of draws and noise.", 0)
    member: int | None = option("Which model of a run with `n_models`, from 0; chains go together.")
    device: str = option(_DEVICE, "auto")
    out: Place | None = option("Folder for attack.json and the picture: the run's own.")
    figures: bool = option(_FIGURES, True)


@dataclass(frozen=True)
class Compact(_Trusting):
    """Remove what pruning left without effect, and write a bundle that others can load."""

    work: ClassVar[str] = "bundle.compact"
    run: Place = argument("Run folder of `prune`.", metavar="RUN")
    out: Place = setting("Bundle folder to write.", MISSING)
    posterior: bool = option("Store the posterior too, for predictions with draws.", False)
    force: bool = option("Replace the bundle in `out`.", False)


@dataclass(frozen=True)
class Verify(_Trusting):
    """Check a bundle's files, and its outputs against another model; exit code 1 if they differ."""

    work: ClassVar[str] = "bundle.verify"
    bundle: Place = argument("Bundle folder.", metavar="BUNDLE")
    against: Place | None = setting("Run or bundle that must give the same outputs.")


@dataclass(frozen=True)
class Export(_Trusting):
    """Write a model as ONNX, torch.export, a C header or a bundle, checked against torch."""

    work: ClassVar[str] = "bundle.export"
    source: Place = argument("Bundle of `compact`, or a run.", metavar="BUNDLE")
    to: Literal["onnx", "pt2", "c", "bundle"] = setting("What to write.", MISSING)
    out: Place = setting("File to write; a folder for a bundle.", MISSING)
    samples: int = option(
        "onnx: bake in so many posterior draws, for uncertainties.", 0, check=check_not_negative
    )
    seed: int = option("onnx: seed of the draws.", 0)
    prepared: bool = option(
        "onnx: take prepared numbers; otherwise a model of images takes raw pixels.", False
    )
    int8: bool = option("c: weights of 8 bits.", False)
    masked_ok: bool = option("Export a run as it is: zeros stay, size and speed too.", False)
    force: bool = option("Replace what is at `out`.", False)


@dataclass(frozen=True)
class Predict(Options):
    """Predict new data, with uncertainties, as a CSV file.

    Raw integers (pixels) and tables are prepared as the model's training data were; images of
    floating-point numbers are taken as prepared.
    """

    work: ClassVar[str] = "predictions.predict"
    model: Place = argument("Bundle folder or ONNX file.", metavar="MODEL")
    data: Place = argument(
        "NPZ with an array x, CSV or parquet with named columns, or folder of images.",
        metavar="DATA",
    )
    out: Place = setting("CSV file to write.", MISSING)
    samples: Draws = option(
        f"Posterior draws to average over; {_AUTO}", 0, check=_check_draws, metavar="N|auto"
    )
    seed: int = option("Seed of the draws.", 0)
    prepared: bool = option("x is network input already; do not standardise it.", False)
    abstain: float | None = option(
        "Mark inputs less familiar than this part of held-out ones, such as 0.95.",
        None,
        check=partial(check_fraction, open_ends=True),
    )
    force: bool = option("Replace the file at `out`.", False)


@dataclass(frozen=True)
class Profile(_Trusting):
    """Measure networks: as they are, compacted, in our runtime (also int8) and in onnxruntime."""

    work: ClassVar[str] = "timing.profile"
    folders: Sequence[Place] = argument(
        "Run folders or bundles; the first is compared with.", metavar="PATH"
    )
    rounds: int = option("Timings of each candidate.", 15, check=check_positive)
    threads: int = option("CPU threads of every candidate.", 1, check=check_threads)
    clock: Literal["wall", "cpu"] = option("cpu counts this process alone.", "wall")


@dataclass(frozen=True)
class Report(_Trusting):
    """Write a self-contained HTML page: curves, calibration, examples, and the network to try."""

    work: ClassVar[str] = "page.report"
    runs: Sequence[Place] = argument(
        "Run folders of `train`, `prune`, `sieve` or `demo`.", metavar="RUN..."
    )
    out: Place | None = setting(
        "Page to write; report.html in the only run unless given.", alias="-o"
    )
    before: Place | None = option(
        "Run to compare with, such as a dense one; the run it was pruned from unless given.",
        metavar="RUN",
    )
    points: int = option("Positions of the slider, 2 to 250.", 21)
    test_examples: int | None = option(
        "Test on the first so many examples: for large networks on a CPU.", check=check_positive
    )
    data: Place | None = option("Write the data behind the page as JSON too.")
    check: bool = option("End with exit code 1 if a check of the page fails.", False)
    device: str = option(_DEVICE, "auto")

    def exit_code(self, result: Mapping[str, Any]) -> int:
        """1 if `check` was given and a check failed."""
        verdicts = [row["verdict"] for run in result["runs"] for row in run["checks"]]
        return int(self.check and "fail" in verdicts)


@dataclass(frozen=True)
class Open(_Trusting):
    """Open the page of a run in the browser, and make it first if there is none."""

    work: ClassVar[str] = "page.open_page"
    run: Place = argument("Run folder, or a page of `report`.", metavar="RUN")
    device: str = option(_DEVICE, "auto")


@dataclass(frozen=True)
class Watch(Options):
    """Show how far a run is while it trains, from another terminal; Ctrl-C ends only the view."""

    work: ClassVar[str] = "watching.watch"
    run: Place = argument("Run folder of `train`, under way or finished.", metavar="RUN")
    once: bool = option("Show where it is now, and end.", False)


@dataclass(frozen=True)
class Compare(Options):
    """Train and score every method with the same number of gradients; rank them honestly."""

    work: ClassVar[str] = "clone.compare"
    out: Place = setting("Folder to write.", MISSING)
    parts: Sequence[Place] | None = argument(
        "Comparisons to join, made in parts by `methods` or `seed`.", None
    )
    data: str | None = option("Data set to train on: see `bayesieve data list`.")
    net: str | None = option("Network; the default of `bayesieve train` unless given.")
    methods: str | Sequence[str] | None = option(
        "Comma list; every method that applies unless given."
    )
    changes: Sequence[str] | None = option(
        "A setting of one method, METHOD.SECTION.NAME=VALUE such as sghmc.engine.lr=0.1; repeated.",
        word="set",
        metavar="TEXT",
    )
    epochs: int = option("Passes over the data of each method.", 20, check=check_positive)
    seeds: int = option("Repetitions.", 3, check=check_positive)
    batch_size: int = option("Examples per gradient.", 128, check=check_positive)
    zeros: str | Sequence[float] = option(
        "Fractions of zeros to prune to; empty for none.", "0.9,0.95,0.98,0.99"
    )
    finetune: int = option("Epochs of masked training after pruning.", 5)
    samples: int = option("Weight vectors averaged in a prediction.", 32, check=check_positive)
    outside: str | None = option("Data set whose test inputs should look foreign.")
    attack: float = option("Strength of the FGSM attack on images; 0 for none.", 0.1)
    n_train: int | None = option("Use only this many training examples.")
    n_test: int | None = option("Score on only this many examples.")
    held_out: float | None = option(
        "Score on this fraction of the training examples instead of the test split: for choosing "
        "settings.",
        check=_check_share,
    )
    shift: int = option("Move training images by up to this many pixels at random.", 0)
    flip: bool = option("Mirror training images at random.", False)
    target: str | None = option(_TARGET)
    seed: int = option("Seed of everything.", 0)
    device: str = option(_DEVICE, "auto")
    compile: Literal["auto", "on", "off"] = option(
        "Whether to compile steps: auto does it for long runs.", "auto"
    )
    precision: Literal["float32", "bf16"] = option(
        "Of the network in a training step; bf16 is faster on a GPU.", "float32"
    )
    force: bool = option("Replace what is in `out`.", False)
    figures: bool = option(_FIGURES, True)
    arguments: str | None = command_line()


@dataclass(frozen=True)
class Demo(Options):
    """Train a dense network and a sparse Bayesian one on 8x8 digits, and compare them."""

    work: ClassVar[str] = "showcase.demo"
    out: Place = setting("Run folder to write.", "runs/demo")
    epochs: int = option("Passes over the data.", 200)
    seed: int = option("Seed of both trainings.", 0)
    force: bool = option(_REPLACE, False)


@dataclass(frozen=True)
class _TableOptions(Options):
    """Options of all commands on tables."""

    data: Place = argument("CSV, parquet or NPZ file.", metavar="DATA")
    target: str = setting("The column to predict.", MISSING, metavar="COLUMN")
    task: Task | None = option("Guessed from the target unless given.")
    missing: Missing = option(
        "Refuse missing values, or fill them in and tell the network.", "refuse"
    )
    drop: Sequence[str] = option("A column to leave out; may be repeated.", (), metavar="COLUMN")
    date_parts: bool = option("Turn dates into time, season, weekday and hour.", False)
    seed: int = option("Of splits, starts, noise and batches.", 0)
    force: bool = option("Replace what an earlier call wrote.", False)
    figures: bool = option(_FIGURES, True)


@dataclass(frozen=True)
class FitTable(_TableOptions):
    """Fit a Bayesian network to a table; write a bundle for `predict` and a report."""

    work: ClassVar[str] = "tables.fit_table"
    epochs: int | None = option(
        "Passes over the rows; about 1,100 steps unless given.", check=check_positive
    )
    engine: Literal["sbnn", "flat-vi"] = option("Algorithm.", "sbnn")
    likelihood: Noise | None = option(
        "Noise of a regression, gaussian unless given; for counts poisson or negative-binomial."
    )
    class_weight: Literal["balanced"] | None = option(
        "Classes: balanced counts rows of rare classes more."
    )
    hidden: str | None = option("Hidden layers, as 50,50; by rows and columns unless given.")
    kl: float | None = option(
        "KL weight, 1 is Bayes' rule; inner folds choose it unless given.",
        check=check_positive,
    )
    zeros: float | None = option(
        "Fraction of the parameters to remove while training.", check=_check_share
    )
    test_fraction: float = option("Part set aside for testing.", 0.2, check=_check_share)
    out: Place | None = option("Bundle folder to write; DATA's name and -model unless given.")
    report: Place | None = option("Report folder; DATA's name and -report unless given.")


@dataclass(frozen=True)
class Select(_TableOptions):
    """Say which inputs of a table matter, how sure that is, and what dropping the others costs."""

    work: ClassVar[str] = "tables.select"
    fdr: float | None = option(
        "Expected share of false discoveries among what is kept (0.1).", check=_check_share
    )
    fraction: float | None = option("Keep this share of the inputs instead.", check=_check_share)
    cross_validate: bool = option("Choose the share by 10 folds instead.", False)
    bootstrap: int = option("Samples of the rows on which the choice is repeated; 0 for none.", 20)
    report: Place | None = option("Report folder; DATA's name and -selection unless given.")
