"""Settings of engines as text: dataclass fields that are flags, and the fields of an engine."""

# ruff: noqa: RUF009 - `setting` makes a dataclass field, as `field` does

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

Numbers = float | tuple[float, ...]  # one number, or one per model of a population
EngineName = Literal["map", "flat-vi", "sbnn", "bmr", "horseshoe", "sgld", "sghmc", "tdamp"]
PriorName = Literal[
    "none", "normal", "spike-slab", "layer-scaled", "horseshoe", "gaussian-laplace", "group-sparse"
]


def setting(
    help: str,
    default: Any = None,
    *,
    flag: str | None = None,
    alias: str | None = None,
    metavar: str | None = None,
    check: Callable[..., None] | None = None,
    kw_only: bool = False,
) -> Any:
    """A dataclass field that is a flag.

    Args:
        help: one line for the command line and for the docstring.
        default: its value unless given; MISSING where it must be.
        flag: name on the command line, if it is not the field's.
        alias: second name on the command line.
        metavar: stands for the value in the help.
        check: function of `bayesieve.checks` that a value must pass.
        kw_only: whether Python takes it by keyword only.
    """
    about = {"help": help, "flag": flag, "alias": alias, "metavar": metavar, "check": check}
    return field(default=default, kw_only=kw_only, metadata=about)


def flag_name(spec: Field[Any]) -> str:
    """The flag of a field."""
    return spec.metadata.get("flag") or "--" + spec.name.replace("_", "-")


def check_values(who: str, settings: Any) -> None:
    """Raise where a value does not pass the check of its field."""
    for spec in fields(settings):
        value, check = getattr(settings, spec.name), spec.metadata.get("check")
        if check is not None and value is not None:
            check(who, **{flag_name(spec): value})


@dataclass(frozen=True)
class EngineConfig:
    """The algorithm and its numbers; an engine refuses those it has no use for."""

    name: EngineName = setting("Algorithm.", "sbnn", flag="--engine")
    preset: Literal["default", "paper"] | None = setting(
        "Recommended numbers, or those of the engine's paper."
    )
    prior: PriorName | None = setting("Prior on the weights: the engine's own unless given.")
    prior_std: Numbers | None = setting("Standard deviation of a normal prior.", metavar="FLOAT")
    slab_std: Numbers | None = setting(
        "Spike and slab: standard deviation of weights that matter.", metavar="FLOAT"
    )
    spike_std: Numbers | None = setting(
        "Spike and slab: standard deviation of those that do not.", metavar="FLOAT"
    )
    slab_prob: Numbers | None = setting(
        "Spike and slab: prior probability that a weight matters.", metavar="FLOAT"
    )
    lr: Numbers | None = setting(
        "Learning rate; A,B,... gives each of --n-models its own.", metavar="FLOAT"
    )
    init_std: Numbers | None = setting("Starting posterior standard deviation.", metavar="FLOAT")
    start: Literal["module", "he", "uniform"] | None = setting(
        "Starting means: the network's own, uniform by fan-in, or (bmr) by width."
    )
    optimizer: Literal["adam", "adamw", "sgd"] | None = setting("Optimiser of the engine.")
    local: bool | None = setting("Noise on activations instead of weights (flat-vi, sbnn, bmr).")
    weight_decay: float | None = setting("Weight decay (map).")
    momentum: float | None = setting("Momentum of sgd (map).")
    rule: Literal["hierarchical", "savage-dickey", "none"] | None = setting(
        "How evidence decides on a weight; none removes nothing (bmr)."
    )
    adapt: Literal["sa", "em", "none"] | None = setting(
        "How the prior is learned while sampling (sgld, sghmc)."
    )
    temperature: Numbers | None = setting(
        "1 samples the posterior, less is colder (sgld, sghmc).", metavar="FLOAT"
    )
    anneal: float | None = setting("Factor on 1 / temperature after each epoch (sgld, sghmc).")
    friction: float | None = setting("1 - momentum (sghmc).")
    preconditioned: bool | None = setting("Steps by the gradient's root mean square (sgld, sghmc).")
    spike_scale: Numbers | None = setting(
        "Laplace scale of weights that do not matter (sgld, sghmc).", metavar="FLOAT"
    )
    burn_in: float | None = setting(
        "Fraction of the run before the first draw is kept (sgld, sghmc)."
    )
    draws: int | None = setting("Draws kept of a chain (sgld, sghmc).")
    cycles: int | None = setting("Cosine cycles of the step size over the run (sgld, sghmc).")
    group: Literal["units", "inputs", "weights"] | None = setting("What goes as one (tdamp).")
    power: float | None = setting("Times a datum counts when it is read (tdamp).")
    memory: float | None = setting("Passes until what was read has faded to 1/e (tdamp).")
