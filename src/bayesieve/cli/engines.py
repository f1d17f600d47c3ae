"""From resolved settings to an engine: one function per algorithm."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bayesieve.checks import check_positive
from bayesieve.cli.config import EngineConfig, Numbers
from bayesieve.cli.config_files import UsageError

if TYPE_CHECKING:
    from bayesieve.core.priors import GaussianLaplace, Normal, Prior, SpikeSlab
    from bayesieve.engines import Engine
    from bayesieve.engines.bmr import Reduction
    from bayesieve.engines.chain import Chain


@dataclass(frozen=True)
class RunSize:
    """What of a run an engine may need to know.

    Args:
        n_data: training examples.
        n_steps: gradient steps of the run.
        per_epoch: steps of an epoch.
        keep_units: fraction of units to end with, where the engine itself removes them.
        task: "classification" or "regression".
        may_prune: False while what is left of a pruned network trains on: then no engine removes
            weights by itself, and a chain's learned prior gives way to its slab.
    """

    n_data: int
    n_steps: int
    per_epoch: int
    keep_units: float | None = None
    task: str = "classification"
    may_prune: bool = True

    @property
    def n_epochs(self) -> int:
        """Epochs of the run, the last perhaps cut short."""
        return max(1, round(self.n_steps / self.per_epoch))


def build_map(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """Point estimate."""
    from bayesieve.engines.map import MAP

    c: Any = config  # resolved: no field read here is None
    return MAP(_prior(config), c.optimizer, c.lr, c.weight_decay, c.momentum, c.start)


def build_flat_vi(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """Mean-field variational inference; with learned layer widths it is BMR that never prunes."""
    from bayesieve.engines.flat_vi import FlatVI

    c: Any = config
    if config.prior == "layer-scaled":
        return _layer_scaled(config, None)
    prior = _normal(config) if config.prior == "normal" else _spike_slab(config)
    return FlatVI(prior, c.lr, c.init_std, c.start, c.local)


def build_sbnn(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """The same with a spike-and-slab prior and inclusion probabilities."""
    from bayesieve.engines.sbnn import SBNN

    c: Any = config
    return SBNN(_spike_slab(config), c.lr, c.init_std, c.start, c.optimizer, c.local)


def build_bmr(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """Variational inference that prunes by Bayesian model reduction."""
    from bayesieve.engines.bmr import Reduction

    c: Any = config
    reduction = None
    if size.may_prune and c.rule != "none":
        paper = c.preset == "paper"
        reduction = Reduction(c.rule, start=0.0, end=1.0, kl=1.0) if paper else Reduction(c.rule)
    return _layer_scaled(config, reduction)


def _layer_scaled(config: EngineConfig, reduction: "Reduction | None") -> "Engine[Any]":
    """The engine with learned layer widths, in the coordinates of its preset."""
    from bayesieve.core.priors import LayerScaled
    from bayesieve.engines.bmr import BMR

    c: Any = config
    like = BMR.paper() if c.preset == "paper" else BMR()
    prior = LayerScaled(std=c.prior_std)
    return BMR(prior, reduction, c.lr, c.init_std, c.start, c.local, like.coordinates)


def build_horseshoe(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """Variational inference under a regularised horseshoe."""
    from bayesieve.core.priors import Horseshoe
    from bayesieve.engines.horseshoe import HorseshoeVI

    c: Any = config
    return HorseshoeVI(Horseshoe(std=c.prior_std), c.lr, c.init_std, c.start)


def build_sgld(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """Langevin dynamics."""
    from bayesieve.engines.sgld import SGLD

    return SGLD(**_sampling(config, size))


def build_sghmc(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """Hamiltonian dynamics."""
    from bayesieve.engines.sghmc import SGHMC

    c: Any = config
    return SGHMC(**_sampling(config, size), friction=c.friction)


def build_tdamp(config: EngineConfig, size: RunSize) -> "Engine[Any]":
    """Message passing; an epoch is one EM iteration."""
    from bayesieve.core.priors import GroupSparse
    from bayesieve.engines.tdamp import TDAMP

    c: Any = config
    last = max(2, round(0.6 * size.n_epochs))
    keep = size.keep_units
    if not size.may_prune or (keep is None and size.task == "regression"):
        keep = 1.0  # of a regression: one output tells too little about single units
    return TDAMP(
        prior=GroupSparse(group=c.group),
        keep=keep,
        prune_passes=(2, last),
        power=c.power,
        memory=c.memory,
    )


def _sampling(config: EngineConfig, size: RunSize) -> dict[str, Any]:
    """The settings both samplers have."""
    if not size.may_prune:
        config = _of_survivors(config)
    c: Any = config
    return {
        "prior": _sampled_prior(config),
        "step_size": _per_example(c.lr, size),
        "temperature": c.temperature,
        "adapt": c.adapt,
        "chain": _chain(config, size),
        "start": c.start,
    }


def _of_survivors(config: EngineConfig) -> EngineConfig:
    """The settings with the slab as the prior: what is left was included."""
    if config.prior != "gaussian-laplace":
        return config
    return replace(config, prior="normal", prior_std=config.slab_std, adapt="none")


def _chain(config: EngineConfig, size: RunSize) -> "Chain":
    """Burn-in, thinning, cycles and cooling in steps."""
    from bayesieve.engines.chain import Chain

    c: Any = config
    if not 0 <= c.burn_in < 1:
        raise UsageError(f"--burn-in is a fraction of the run from 0 to below 1, got {c.burn_in}.")
    if c.draws < 1 or c.cycles < 0:
        least, flag, got = (1, "--draws", c.draws) if c.draws < 1 else (0, "--cycles", c.cycles)
        raise UsageError(f"{flag} must be at least {least}, got {got}.")
    burn_in = min(round(c.burn_in * size.n_steps), size.n_steps - 1)
    after = size.n_steps - burn_in
    return Chain(
        burn_in=burn_in,
        thin=max(1, after // c.draws),
        n_kept=min(c.draws, after),
        cycle=-(-size.n_steps // c.cycles) if c.cycles else 0,
        cooling=c.anneal ** (-1 / size.per_epoch),
    )


def _per_example(lr: Numbers, size: RunSize) -> Numbers:
    """Step sizes of samplers are in nats over all data: lr is that of SGD on the mean loss."""
    check_positive("train", **{"--lr": lr})
    if isinstance(lr, tuple):
        return tuple(own / size.n_data for own in lr)
    return lr / size.n_data


def _prior(config: EngineConfig) -> "Prior | None":
    if config.prior == "normal":
        return _normal(config)
    return _spike_slab(config) if config.prior == "spike-slab" else None


def _normal(config: EngineConfig) -> "Normal":
    from bayesieve.core.priors import Normal

    assert config.prior_std is not None
    return Normal(config.prior_std)


def _spike_slab(config: EngineConfig) -> "SpikeSlab":
    from bayesieve.core.priors import SpikeSlab

    numbers = (config.slab_std, config.spike_std, config.slab_prob)
    return SpikeSlab(*(number for number in numbers if number is not None))


def _sampled_prior(config: EngineConfig) -> "Normal | GaussianLaplace":
    if config.prior == "normal":
        return _normal(config)
    from bayesieve.core.priors import GaussianLaplace

    c: Any = config
    return GaussianLaplace(spike_scale=c.spike_scale, slab_std=c.slab_std, slab_prob=c.slab_prob)
