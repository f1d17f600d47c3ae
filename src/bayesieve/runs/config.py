"""What a training run is made of: one frozen tree of settings, each described once, here.

A configuration file, the command line's flags and `config.json` in a run folder all speak of these
fields. A field left at None takes the recommended value of `cli.registry`; `config.json` records
the values that were used. Nothing here imports torch.
"""

# ruff: noqa: RUF009 - `setting` makes a dataclass field, as `field` does

from dataclasses import dataclass, field
from typing import Any, Literal

Numbers = float | tuple[float, ...]  # one number, or one per model of a population
Score = Literal["snr", "inclusion", "evidence", "magnitude", "second-moment"]
EngineName = Literal["map", "flat-vi", "sbnn", "bmr", "horseshoe", "sgld", "sghmc", "tdamp"]
LikelihoodName = Literal["categorical", "bernoulli", "gaussian", "student-t", "heteroscedastic"]
PriorName = Literal[
    "none", "normal", "spike-slab", "layer-scaled", "horseshoe", "gaussian-laplace", "group-sparse"
]


def setting(
    default: Any, flag: str, help: str, metavar: str | None = None, alias: str | None = None
) -> Any:
    """A dataclass field with the flag that sets it (and its other name) and one line of help."""
    about = {"flag": flag, "help": help, "metavar": metavar, "alias": alias}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class DataConfig:
    """What is learned from."""

    name: str | None = setting(
        None, "--data", "Data set: a name of `bayesieve data list`, csv:PATH, images:FOLDER, ..."
    )
    target: str | None = setting(None, "--target", "Tables: the column to predict.", "COLUMN")
    task: Literal["classification", "regression"] | None = setting(
        None, "--task", "Tables: guessed from the target unless given."
    )
    split: int = setting(0, "--split", "UCI sets: which of the published splits, from 0.")
    missing: Literal["refuse", "impute"] = setting(
        "refuse", "--missing", "Tables: what to do with missing values."
    )
    test_fraction: float = setting(0.2, "--test-fraction", "Own data: part set aside for testing.")
    image_size: int | None = setting(
        None, "--image-size", "Image folders: resize to this many pixels each way."
    )
    seed: int = setting(0, "--data-seed", "Seed of the test and validation splits.")
    center: bool | None = setting(
        None, "--center", "Images: bring each channel to mean 0 and variance 1 (default: tdamp)."
    )


@dataclass(frozen=True)
class NetConfig:
    """The network, what its outputs mean, and the part each parameter plays."""

    name: str | None = setting(
        None,
        "--net",
        "lenet-300-100, lenet5[-wide|-caffe], mixer, vit, conv2-fc2, conv2-bn-fc3, resnet20, "
        "resnet32, vgg, mlp:WIDTHS[:relu|tanh|swish], or module:package.file.factory; mlp:400,400 "
        "for images and mlp:50 for tables unless given.",
    )
    likelihood: LikelihoodName | None = setting(
        None,
        "--likelihood",
        "From the task unless given. For regression also student-t (wild targets) and "
        "heteroscedastic (the network gives the noise too).",
    )
    noise_std: float | None = setting(
        None, "--noise-std", "Noise in units of the standardised target; fixed when given."
    )
    learn_noise: bool | None = setting(
        None, "--learn-noise", "Learn the noise, starting at --noise-std or 1."
    )
    prune_params: tuple[str, ...] = setting(
        (), "--prune-params", "Parameters that may be pruned, for example 'fc*.weight'.", "PATTERN"
    )
    keep_params: tuple[str, ...] = setting(
        (), "--keep-params", "Parameters with a posterior that are never pruned.", "PATTERN"
    )
    point_params: tuple[str, ...] = setting(
        (), "--point-params", "Parameters trained as plain numbers, without a prior.", "PATTERN"
    )
    warm_start: str | None = setting(
        None, "--warm-start", "Trained weights to start from: a state dict as .safetensors.", "FILE"
    )
    dtype: Literal["float32", "float64"] = setting("float32", "--dtype", "Number format.")


@dataclass(frozen=True)
class EngineConfig:
    """The algorithm and its numbers; an engine refuses those it has no use for."""

    name: EngineName = setting("sbnn", "--engine", "Algorithm.")
    preset: Literal["default", "paper"] | None = setting(
        None, "--preset", "Recommended numbers, or those of the engine's paper."
    )
    prior: PriorName | None = setting(
        None, "--prior", "Prior on the weights: the engine's own unless given."
    )
    prior_std: Numbers | None = setting(
        None, "--prior-std", "Standard deviation of a normal prior.", "FLOAT"
    )
    slab_std: Numbers | None = setting(
        None, "--slab-std", "Spike and slab: standard deviation of weights that matter.", "FLOAT"
    )
    spike_std: Numbers | None = setting(
        None, "--spike-std", "Spike and slab: standard deviation of those that do not.", "FLOAT"
    )
    slab_prob: Numbers | None = setting(
        None, "--slab-prob", "Spike and slab: prior probability that a weight matters.", "FLOAT"
    )
    lr: Numbers | None = setting(
        None, "--lr", "Learning rate; A,B,... gives each of --n-models its own.", "FLOAT"
    )
    init_std: Numbers | None = setting(
        None, "--init-std", "Starting posterior standard deviation.", "FLOAT"
    )
    start: Literal["module", "he", "uniform"] | None = setting(
        None, "--start", "Starting means: the network's own, uniform by fan-in, or (bmr) by width."
    )
    optimizer: Literal["adam", "adamw", "sgd"] | None = setting(
        None, "--optimizer", "Optimiser of the engine."
    )
    local: bool | None = setting(
        None, "--local", "Noise on activations instead of weights (flat-vi, sbnn)."
    )
    weight_decay: float | None = setting(None, "--weight-decay", "Weight decay (map).")
    momentum: float | None = setting(None, "--momentum", "Momentum of sgd (map).")
    rule: Literal["hierarchical", "savage-dickey", "none"] | None = setting(
        None, "--rule", "How evidence decides on a weight; none removes nothing (bmr)."
    )
    adapt: Literal["sa", "em", "none"] | None = setting(
        None, "--adapt", "How the prior is learned while sampling (sgld, sghmc)."
    )
    temperature: Numbers | None = setting(
        None, "--temperature", "1 samples the posterior, less is colder (sgld, sghmc).", "FLOAT"
    )
    anneal: float | None = setting(
        None, "--anneal", "Factor on 1 / temperature after each epoch (sgld, sghmc)."
    )
    friction: float | None = setting(None, "--friction", "1 - momentum (sghmc).")
    spike_scale: Numbers | None = setting(
        None, "--spike-scale", "Laplace scale of weights that do not matter (sgld, sghmc).", "FLOAT"
    )
    burn_in: float | None = setting(
        None, "--burn-in", "Fraction of the run before the first draw is kept (sgld, sghmc)."
    )
    draws: int | None = setting(None, "--draws", "Draws kept of a chain (sgld, sghmc).")
    cycles: int | None = setting(
        None, "--cycles", "Cosine cycles of the step size over the run (sgld, sghmc)."
    )
    group: Literal["units", "inputs", "weights"] | None = setting(
        None, "--group", "What goes as one (tdamp)."
    )
    power: float | None = setting(None, "--power", "Times a datum counts when it is read (tdamp).")
    memory: float | None = setting(
        None, "--memory", "Passes until what was read has faded to 1/e (tdamp)."
    )


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate and the weight of the prior move during the run."""

    lr: Literal["constant", "cosine", "linear", "step"] | None = setting(
        None, "--lr-schedule", "Course of the learning rate."
    )
    hold: float | None = setting(
        None, "--hold", "Fraction of the run before it decays; until pruning ends unless given."
    )
    warmup: float = setting(0.0, "--warmup", "Fraction of the run in which it rises from 0.")
    kl: float | None = setting(None, "--kl", "Weight of the prior; 1 is Bayes.")
    kl_after: float | None = setting(None, "--kl-after", "Its weight once pruning has ended.")
    kl_warmup_epochs: float | None = setting(
        None, "--kl-warmup-epochs", "Epochs over which the weight of the prior rises from 0."
    )
    minibatch: Literal["uniform", "geometric"] = setting(
        "uniform", "--minibatch", "How the batches of an epoch share the prior."
    )


@dataclass(frozen=True)
class PruningConfig:
    """Gradual pruning during training; off unless zeros is given."""

    zeros: float | None = setting(
        None, "--zeros", "Final fraction of zeros over all parameters; no pruning unless given."
    )
    start: float = setting(0.125, "--prune-start", "Fraction of the run at which pruning begins.")
    end: float = setting(0.5625, "--prune-end", "Fraction of the run at which it has ended.")
    keep_units: float | None = setting(
        None, "--keep-units", "Final fraction of hidden units, channels, heads: whole units go."
    )
    score: Score | None = setting(None, "--score", "Which weights go first.")
    soft: bool = setting(False, "--soft", "Let pruned weights come back until pruning ends.")


@dataclass(frozen=True)
class TrainingConfig:
    """The loop: how long, how many, on what device."""

    epochs: int | None = setting(
        None,
        "--epochs",
        "Passes over the data (60, tdamp 10, unless --steps is given).",
        alias="--em-iters",
    )
    steps: int | None = setting(None, "--steps", "Gradient steps, in place of epochs.")
    batch_size: int | None = setting(
        None, "--batch-size", "Examples per step (128; tdamp 100, or 10 of a small table)."
    )
    seed: int = setting(0, "--seed", "Seed of initial weights, noise and batch order.")
    n_models: int = setting(
        1, "--n-models", "Models, or chains, side by side from different seeds.", alias="--chains"
    )
    clip_norm: float | None = setting(
        None, "--clip-norm", "Bound on the norm of the gradient per example."
    )
    shift: int = setting(
        0, "--shift", "Images: move each by up to so many pixels at random, in every batch."
    )
    flip: bool = setting(False, "--flip", "Images: mirror half of them left to right.")
    rotate: float = setting(0.0, "--rotate", "Images: turn each by up to so many degrees.")
    val_fraction: float | None = setting(
        None, "--val-fraction", "Part of the training data held out and watched."
    )
    patience: int | None = setting(
        None, "--patience", "Epochs without a better validation likelihood before stopping."
    )
    min_delta: float = setting(0.0, "--min-delta", "How much lower (nats) counts as better.")
    device: str = setting("auto", "--device", "auto, cpu, cuda or cuda:N.", "DEVICE")
    threads: int | None = setting(
        None,
        "--threads",
        "CPU threads; 1 is fastest for small networks. Torch chooses unless given.",
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "--compile", "Compile the elementwise part of a step."
    )
    checkpoint_every: int | None = setting(
        None, "--checkpoint-every", "Steps between checkpoints; at each epoch's end unless given."
    )
    distill: int | None = setting(
        None, "--distill", "Self-distillation: number of dense teachers trained first."
    )
    distill_epochs: int | None = setting(
        None, "--distill-epochs", "Their epochs; as many as the run unless given."
    )
    distill_weight: float = setting(0.5, "--distill-weight", "Share of the teachers in a label.")


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run."""

    data: DataConfig = field(default_factory=DataConfig)
    net: NetConfig = field(default_factory=NetConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    pruning: PruningConfig = field(default_factory=PruningConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
