"""Markov chains over the weights: settings, state, gradient, kept draws, and a learned prior.

The engines in sgmcmc.py differ only in how a chain moves; everything around the move is here, from
`drift` on inside the kernel of a move. The chain axis is the population axis k. The newest place of
the ring of draws always has the current position, so that keeping a draw needs no branch inside a
captured step. Each draw has the running statistics of its normalisation layers at that step.

A `GaussianLaplace` prior has latent numbers. After each move, with ω the weight of the newest
estimate, stochastic approximation sets

    ρ ← (1 - ω) ρ + ω ρ̃ (eq. 12),  κ ← (1 - ω) κ + ω κ̃(ρ) (eq. 13),
    δ ← (1 - ω) δ + ω δ̃(ρ) (eq. 15),  σ² ← (1 - ω) σ² + ω σ̃² (eq. 14).

ω = 1 is the EM variant. Where σ is also the noise of a Gaussian likelihood, the gradient of the
data is rescaled from the noise_std of the likelihood to σ.

Reference: [Deng], algorithm 1.
Departures: ω falls ten times lower by default than in the paper's regression, whose latents settle
before the weights have moved; σ̃ uses the residuals at the point where the gradient was taken, which
saves a forward pass; a pruned weight has the ρ of 0 and does not count for δ and σ; in the first
steps σ² may follow the residuals alone (eq. L3 of docs/theory/sgld.md).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from bayesieve.checks import (
    AUTO,
    check_choice,
    check_fraction,
    check_kind,
    check_not_negative,
    check_positive,
    chosen,
)
from bayesieve.core.batch import Batch
from bayesieve.core.execution import kernel
from bayesieve.core.network import NUMBERS_PREFIX
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.priors import Normal, Number, per_model
from bayesieve.core.priors_laplace import (
    GaussianLaplace,
    best_scale,
    best_slab_prob,
    decay_of,
    log_odds_at_zero,
    log_odds_from,
    penalties,
    penalty_energy,
    penalty_gradient,
)
from bayesieve.core.problem import Problem, starting_points
from bayesieve.core.random import as_normals
from bayesieve.core.state import Controls
from bayesieve.core.workspace import flat_statistics, named_statistics, statistics_names
from bayesieve.errors import UsageError

if TYPE_CHECKING:
    from bayesieve.engines.recipes import RunSize

Adapt = Literal["none", "sa", "em"]
Follow = Callable[..., "Sums"]  # `follow_`, or what computes the same
_RMS_DECAY, _RMS_FLOOR = 0.99, 1e-5  # of the preconditioner, per example
# Weight of the newest residuals while σ settles and in the noise of predictions: a hundred batches.
_NOISE_WEIGHT = 0.01
_LATENT_SETTINGS = (
    "spike_scale", "slab_std", "slab_share", "spike_share", "scale_count", "scale_square"
)  # fmt: skip


@dataclass(frozen=True)
class Averaging:
    """Speed of the prior's latent numbers: ω = min(1, weight (k + delay)^-power).

    Args:
        weight: factor of ω.
        delay: steps before ω begins to fall.
        power: in (0, 1].
        scale: whether σ is learned.
        slab_prob: whether δ of each layer is learned.
        noise_first: real targets: first steps in which σ² follows the residuals alone, so that the
            search for what matters does not depend on the σ it begins with.

    Example:
        >>> round(Averaging(weight=10.0).omega(torch.tensor(0.0)).item(), 4)  # 10 · 1000^-0.7
        0.0794
    """

    weight: float = 1.0
    delay: float = 1000.0
    power: float = 0.7
    scale: bool = True
    slab_prob: bool = True
    noise_first: int = 0

    def __post_init__(self) -> None:
        check_positive("Averaging", weight=self.weight, power=self.power)
        check_not_negative("Averaging", delay=self.delay, noise_first=self.noise_first)
        check_fraction("Averaging", power=self.power)

    def omega(self, step: Tensor) -> Tensor:
        """Weight of the newest estimate after `step` steps."""
        return (self.weight * (step + self.delay) ** -self.power).clamp(max=1)


@dataclass(frozen=True)
class Chain:
    """Draws kept of a chain, and the course of its step size and temperature.

    Args:
        burn_in: steps before the first kept draw.
        thin: steps between kept draws.
        n_kept: most draws held of one chain; then the oldest go.
        power: the step size falls as (1 + (k - 1) / delay)^-power.
        delay: steps before it begins to fall.
        cycle: steps of a cosine cycle from the full step size to 0; 0 for none.
        cooling: factor on the temperature after each step; below 1 is simulated annealing.
        warming: first steps in which the temperature rises linearly from 0: the chain climbs to a
            mode, as [Rockova]'s search does, before it samples around it.

    Example:
        >>> round(Chain(cycle=10).factor(torch.tensor(6.0)).item(), 4)  # half-way down a cosine
        0.5
    """

    burn_in: int = AUTO
    thin: int = AUTO
    n_kept: int = 20
    power: float = 0.0
    delay: float = 1.0
    cycle: int = 0
    cooling: float = 1.0
    warming: int = 0

    @classmethod
    def over(
        cls, n_steps: int, *, n_kept: int = 20, burn_in: float = 0.5, last_temperature: float = 1.0
    ) -> "Chain":
        """Draws spread evenly over the end of a run of known length.

        Args:
            n_steps: length of the run.
            n_kept: draws kept.
            burn_in: fraction of the run before the first.
            last_temperature: factor on the temperature that cooling has reached at the end.

        Example:
            >>> chain = Chain.over(1000, last_temperature=0.001)
            >>> chain.burn_in, chain.thin, round(chain.cooling, 4)
            (500, 25, 0.9931)
        """
        check_positive("Chain", n_steps=n_steps, n_kept=n_kept, last_temperature=last_temperature)
        check_fraction("Chain", burn_in=burn_in)
        first = min(round(burn_in * n_steps), n_steps - 1)
        thin = max(1, (n_steps - first) // n_kept)
        return cls(first, thin, n_kept, cooling=last_temperature ** (1 / n_steps))

    def __post_init__(self) -> None:
        check_positive("Chain", thin=self.thin, n_kept=self.n_kept, delay=self.delay)
        check_positive("Chain", cooling=self.cooling)
        check_not_negative("Chain", burn_in=self.burn_in, power=self.power, cycle=self.cycle)
        check_not_negative("Chain", warming=self.warming)

    def factor(self, step: Tensor) -> Tensor:
        """Factor on the step size at step k ≥ 1."""
        value = torch.ones_like(step)
        if self.power:
            value = (1 + (step - 1) / self.delay) ** -self.power
        if self.cycle:
            value = value * 0.5 * (1 + torch.cos(math.pi / self.cycle * ((step - 1) % self.cycle)))
        return value

    def heat(self, step: Tensor) -> Tensor | float:
        """Factor on the temperature at step k ≥ 1.

        Example:
            >>> Chain(warming=4).heat(torch.tensor(2.0)).item()
            0.25
        """
        value: Tensor | float = self.cooling ** (step - 1) if self.cooling != 1 else 1.0
        if self.warming:
            value = value * ((step - 1) / self.warming).clamp(max=1)
        return value

    def after_burn_in(self, step: Tensor) -> Tensor:
        """Steps since burn-in."""
        return step - chosen(self.burn_in, 0)

    def n_seen(self, step: Tensor) -> Tensor:
        """Draws kept so far, the current position included, after `step` steps; at least 1.

        In whole numbers: compiled code may divide by multiplying with 1 / thin, whose rounding
        would take a draw one step early.

        Example:
            >>> Chain(burn_in=10, thin=7).n_seen(torch.tensor([10.0, 17.0, 18.0])).tolist()
            [1, 1, 2]
        """
        since, thin = self.after_burn_in(step.long()), chosen(self.thin, 100)
        return ((since + thin - 1) // thin).clamp(min=1)


@dataclass
class Latents:
    """Estimates for k chains, P prunable weights and L layers, and the prior's numbers."""

    rho: Tensor  # (k, P)
    laplace: Tensor  # κ₀, (k, P)
    gauss: Tensor  # κ₁, (k, P)
    slab_prob: Tensor  # δ, (k, L)
    scale: Tensor  # σ, (k, 1)
    spike_scale: Tensor  # this and the rest: scalar or (k, 1)
    slab_std: Tensor
    slab_share: Tensor
    spike_share: Tensor
    scale_count: Tensor
    scale_square: Tensor
    sizes: tuple[int, ...]  # weights of each layer


@dataclass
class ChainState:
    """State of k chains."""

    w: Tensor  # (k, d)
    velocity: Tensor | None  # (k, d), of samplers with momentum
    square: Tensor | None  # (k, d), running mean square of the gradient, of preconditioned ones
    draws: Tensor  # (k, n_kept, d)
    norms: Tensor | None  # (k, n_kept, b), running statistics of normalisation layers
    average: Tensor  # (k, d), of all positions since burn-in
    latents: Latents | None  # of a GaussianLaplace prior
    precision: Tensor  # of Gaussian priors, scalar or (k, 1)
    step: Tensor  # scalar
    step_size: Tensor  # scalar or (k, 1)
    temperature: Tensor  # scalar or (k, 1)
    controls: Controls
    generator: Generator
    n_bayesian: int


@dataclass(frozen=True)
class Sampler:
    """Settings and methods of a sampler but for its step; the models of a population are chains.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: density of the Bayesian weights; `GaussianLaplace` concerns the prunable ones.
        step_size: ε; the posterior is in nats over the full data set.
        temperature: T; 1 samples the posterior, 0 is gradient ascent.
        adapt: how a `GaussianLaplace` prior is learned: "sa", "em" or "none".
        averaging: the weights of the stochastic approximation.
        chain: burn-in, thinning, draws kept, and schedules of step size and temperature.
        preconditioned: divide the gradient by its running root mean square.
        start: starting weights: "module" (the model's own) or "he" (uniform in ±√(6 / fan_in)).
    """

    prior: Normal | GaussianLaplace = field(default_factory=lambda: Normal(AUTO))
    step_size: Number = AUTO
    temperature: Number = 1.0
    adapt: Adapt = "none"
    averaging: Averaging = field(default_factory=Averaging)
    chain: Chain = field(default_factory=Chain)
    preconditioned: bool = AUTO
    start: Literal["module", "he"] = "module"
    _momentum: ClassVar[bool] = False

    def __post_init__(self) -> None:
        who = type(self).__name__
        check_kind(who, "prior", self.prior, Normal, GaussianLaplace)
        check_positive(who, step_size=self.step_size)
        check_not_negative(who, temperature=self.temperature)
        check_choice(who, "adapt", self.adapt, ("none", "sa", "em"))
        check_choice(who, "start", self.start, ("module", "he"))
        if self.adapt != "none" and not isinstance(self.prior, GaussianLaplace):
            raise ValueError(
                f"{who}: adapt={self.adapt!r} needs a GaussianLaplace prior, got "
                f"{type(self.prior).__name__}. Give that prior, or "
                "`adapt=none`."
            )

    @staticmethod
    def fields_from(settings: Mapping[str, Any], size: "RunSize") -> dict[str, Any]:
        """Choose step size, burn-in, thinning, cycles and cooling by the size of a run."""
        lr, fraction, draws, cycles = (
            settings[key] for key in ("lr", "burn_in", "draws", "cycles")
        )
        check_positive("train", lr=lr)
        # lr is that of SGD on the mean loss, the step size of a sampler in nats over all data
        rates = tuple(rate / size.n_data for rate in (lr if isinstance(lr, tuple) else (lr,)))
        if not 0 <= fraction < 1:
            raise UsageError(
                f"`burn_in` is a fraction of the run from 0 to below 1, got {fraction}."
            )
        for name, least, got in (("draws", 1, draws), ("cycles", 0, cycles)):
            if got < least:
                raise UsageError(f"`{name}` must be at least {least}, got {got}.")
        burn_in = min(round(fraction * size.n_steps), size.n_steps - 1)
        after = size.n_steps - burn_in
        chain = Chain(
            burn_in=burn_in,
            thin=max(1, after // draws),
            n_kept=min(draws, after),
            cycle=-(-size.n_steps // cycles) if cycles else 0,
            cooling=settings["anneal"] ** (-1 / size.per_epoch),
        )
        return {"step_size": rates if isinstance(lr, tuple) else rates[0], "chain": chain}

    @property
    def epsilon(self) -> Number:
        """ε, a plain number where nobody chose one."""
        return chosen(self.step_size, 1e-5)

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> ChainState:
        """Start every chain at the initial weights."""
        who, prior, latents = type(self).__name__, self.prior, None
        problem.layout.check_bayesian(who)
        w = starting_points(problem, n_models, generator, self.start)
        if isinstance(prior, GaussianLaplace):
            real = problem.likelihood.normal_noise is not None
            if real and problem.data.weighted:
                raise ValueError(
                    "GaussianLaplace: with real targets every example counts once; "
                    "remove the weights."
                )
            if not real and self.averaging.noise_first:
                raise ValueError(
                    f"{who}: averaging.noise_first is for real targets; "
                    "class labels have no residuals. Leave it at 0."
                )
            latents = latents_of(prior, problem, w)
        std = prior.other_std if isinstance(prior, GaussianLaplace) else chosen(prior.std, 1.0)
        ring = (0, 0, 0, self.chain.n_kept - 1)  # room for more draws behind the first
        norms = problem.workspace(n_models).statistics()
        return ChainState(
            w=w,
            velocity=torch.zeros_like(w) if self._momentum else None,
            square=torch.ones_like(w) if self.preconditioned else None,
            draws=pad(w[:, None], ring),
            norms=None if norms is None else pad(norms[:, None], ring),
            average=w.clone(),
            latents=latents,
            precision=per_model(std, w) ** -2,
            step=w.new_zeros(()),
            step_size=per_model(self.epsilon, w),
            temperature=per_model(self.temperature, w),
            controls=Controls.neutral(w),
            generator=generator,
            n_bayesian=problem.layout.n_bayesian,
        )

    def warm_start_(self, state: ChainState, posterior: Posterior) -> None:
        """Move every chain to the mean of another posterior, in place."""
        state.w.copy_(posterior.mean)
        state.average.copy_(posterior.mean)
        state.draws[:, 0] = posterior.mean
        names, buffers = statistics_names(posterior.network), posterior.buffers
        if state.norms is not None and all(name in buffers for name in names):
            state.norms[:, 0] = flat_statistics(names, {n: buffers[n][None] for n in names})

    def kl(self, state: ChainState) -> Tensor:
        """Energy under the prior of the Bayesian weights still trained, in nats, (k,).

        Constants are left out: under an adaptive prior they would change with the latents.
        """
        n, keep = state.n_bayesian, state.controls.keep
        w = state.w[:, :n] if keep is None else state.w[:, :n] * keep[:, :n]
        value = 0.5 * state.precision * w.square()
        if state.latents is not None:
            penalty = state.latents.laplace, state.latents.gauss, state.latents.scale
            start = state.latents.rho.shape[1]
            energy = penalty_energy(w[:, :start], *penalty)
            value[:, :start] = energy + 0.5 * decay_of(self.prior) * w[:, :start].square()
        return state.controls.total(value)

    def posterior(self, problem: Problem, state: ChainState, member: int = 0) -> Samples:
        """The draws of one chain as copies, oldest first, 0 where pruned; inclusion as of now."""
        seen, n_kept = int(self.chain.n_seen(state.step).item()), self.chain.n_kept
        order = [place % n_kept for place in range(max(seen - n_kept, 0), seen)]
        norms = None if state.norms is None else state.norms[member, order].detach()
        return self._samples(problem, state, member, state.draws[member, order].detach(), norms)

    def average(self, problem: Problem, state: ChainState, member: int = 0) -> Samples:
        """The mean of all positions of one chain since burn-in, as a posterior of one draw.

        Its normalisation layers have the last statistics, which are not those of the mean weights.
        `sieve.prune.reestimate_batchnorm` computes those.
        """
        draws = state.average[member : member + 1].detach().clone()
        return self._samples(problem, state, member, draws, None)

    def _samples(
        self, problem: Problem, state: ChainState, member: int, draws: Tensor, norms: Tensor | None
    ) -> Samples:
        space, statistics = problem.workspace(len(state.w)), {}
        buffers = space.buffers(member)
        if norms is not None:
            statistics = named_statistics(space.norm_names, norms, buffers)
            buffers |= {name: value.mean(0) for name, value in statistics.items()}
        logit = None
        if state.latents is not None and self.adapt != "none":
            assert isinstance(self.prior, GaussianLaplace)
            wide = self.prior.ranks_by_inclusion(member)  # inclusion is that of the wider component
            odds = state.latents.rho[member].logit(eps=1e-7)
            logit = torch.full_like(state.w[member], torch.inf)
            logit[problem.layout.sparse] = odds if wide else -odds
        samples = Samples(problem.network, draws, logit, buffers, statistics)
        return state.controls.masked(samples, member)


@dataclass
class Residuals:
    """Residuals of a Gaussian likelihood whose noise is the scale σ of the prior."""

    square_sum: Tensor  # Σ (y - ŷ)² over all data, (k,)
    n_targets: int  # N · m numbers observed
    column: int | None = None  # of w: the logarithm of a noise that the likelihood learns


@dataclass
class Slope:
    """The gradient of the log-likelihood at the current position."""

    log_lik: Tensor  # (k,)
    grad: Tensor  # (k, d)
    n_data: int
    residuals: Residuals | None = None  # where σ is also the noise


def slope(problem: Problem, state: ChainState, batch: Batch) -> Slope:
    """Log-likelihood of all data, estimated from a batch, and its gradient."""
    weights = problem.workspace(len(state.w)).weights.copy_(state.w)
    keep, _ = state.controls.factors
    if keep is not None:
        weights.mul_(keep)
    at = Slope(*problem.value_and_grad(weights, batch), problem.n_data)
    if state.latents is not None and problem.likelihood.normal_noise is not None:
        share_noise_(problem, state.w, state.latents.scale, at)
    return at


def share_noise_(problem: Problem, w: Tensor, scale: Tensor, at: Slope) -> None:
    """Replace the noise of the likelihood by σ, (k, 1), in log-likelihood and gradient, in place.

    A noise that the likelihood learns follows the residuals instead, eq. L4, and predictions assume
    it: σ counts weights too, and is not the noise of the data.
    """
    learned, column = list(problem.likelihood.parameters()), None
    assumed = w.new_full((len(w),), problem.likelihood.normal_noise or 1.0)
    if learned:
        column = problem.layout.slices[NUMBERS_PREFIX + learned[0]].start
        assumed = w[:, column].exp()
    n, constant = problem.n_data * problem.data.sample.y[0].numel(), 0.5 * math.log(2 * math.pi)
    square_sum = -2 * assumed.square() * (at.log_lik + n * (assumed.log() + constant))
    at.log_lik = -0.5 * square_sum / scale[:, 0].square() - n * (scale[:, 0].log() + constant)
    at.grad.mul_((assumed[:, None] / scale).square())
    if column is not None:
        at.grad[:, column] = 0.0
    at.residuals = Residuals(square_sum, n, column)


def drift(engine: Sampler, state: ChainState, at: Slope) -> Tensor:
    """Gradient of log p(D | w) + kl_scale log p(w), in place, (k, d); points have no prior."""
    grad, w, latents = at.grad, state.w, state.latents
    weight, start = state.controls.kl_scale, 0
    if latents is not None:
        start = latents.rho.shape[1]
        grad[:, :start].sub_(weight * prior_pull(w, latents))
        if decay := decay_of(engine.prior):
            grad[:, :start].sub_(weight * decay * w[:, :start])
    rest = slice(start, state.n_bayesian)
    grad[:, rest].sub_(weight * state.precision * w[:, rest])
    return grad


def metric(state: ChainState, at: Slope) -> Tensor | None:
    """Diagonal preconditioner 1 / (root mean square of the gradient per example), or None.

    [Li]'s RMSprop metric without the divergence term: a bias of order 1 - 0.99 while it moves.
    """
    if state.square is None:
        return None
    state.square.lerp_((at.grad / at.n_data).square(), 1 - _RMS_DECAY)
    return 1 / (state.square.sqrt() + _RMS_FLOOR)


def lengths(engine: Sampler, state: ChainState) -> tuple[Tensor, Tensor]:
    """Step size and temperature of the current step, each scalar or (k, 1)."""
    size = state.step_size * state.controls.lr_scale * engine.chain.factor(state.step)
    return size, state.temperature * engine.chain.heat(state.step)


def advance_(
    problem: Problem, engine: Sampler, state: ChainState, at: Slope, size: Tensor, std: Tensor,
    momentum: float,
) -> None:  # fmt: skip
    """Move the chains, let the prior follow, and keep the position; in place.

    Args:
        problem: network and data.
        engine: the sampler.
        state: of k chains.
        at: gradient at their position.
        size: ε of the step, scalar or (k, 1).
        std: of the noise where the metric is 1, scalar or (k, 1).
        momentum: share of the velocity that stays, 1 - α.
    """
    noise = problem.execution.backend.noise(state.w[:, : state.n_bayesian], state.generator)
    problem.run(move_)(engine, state, at, noise, size, std, momentum)
    problem.run(after_move_)(engine, state, at, problem.run(follow_))
    statistics = problem.workspace(len(state.w)).statistics()
    if state.norms is not None and statistics is not None:
        state.norms.index_copy_(1, _newest(engine.chain, state.step), statistics[:, None])


@kernel("bayesieve_move_chains")
def move_(
    engine: Sampler, state: ChainState, at: Slope, noise: Tensor, size: Tensor, std: Tensor,
    momentum: float,
) -> None:  # fmt: skip
    """Eq. H1, in place; eq. L1 for chains without a velocity."""
    n, trained = state.n_bayesian, state.controls.trained
    grad = drift(engine, state, at)
    scales = metric(state, at)
    move = (size if scales is None else size * scales) * grad
    if state.velocity is not None:
        move = state.velocity.mul_(momentum).add_(move)
    normals = as_normals(noise, grad[:, :n])
    move[:, :n].add_((std if scales is None else std * scales[:, :n].sqrt()) * normals)
    if trained is not None:
        move.mul_(trained)
    state.w.add_(move)


@kernel(small=True)
def after_move_(engine: Sampler, state: ChainState, at: Slope, follow: Follow) -> None:
    """Let the prior follow the new position, and keep the position; in place."""
    chain, averaging, w, step = engine.chain, engine.averaging, state.w, state.step
    if state.latents is not None and engine.adapt != "none":
        omega = torch.ones_like(step) if engine.adapt == "em" else averaging.omega(step)
        settling = step <= averaging.noise_first if averaging.noise_first else None
        settings = (omega, averaging, at.residuals, settling)
        update_latents_(state.latents, w, state.controls.keep, *settings, follow)
    if at.residuals is not None and at.residuals.column is not None:  # eq. L4
        before = w[:, at.residuals.column].exp().square()
        newest = at.residuals.square_sum / at.residuals.n_targets
        w[:, at.residuals.column] = 0.5 * before.lerp(newest, _NOISE_WEIGHT).log()
    state.draws.index_copy_(1, _newest(chain, step), w[:, None])
    state.average.lerp_(w, 1 / chain.after_burn_in(step).clamp(min=1))


def _newest(chain: Chain, step: Tensor) -> Tensor:
    """The place in the ring of the current position, (1,)."""
    return ((chain.n_seen(step) - 1) % chain.n_kept)[None]


def latents_of(prior: GaussianLaplace, problem: Problem, w: Tensor) -> Latents:
    """Starting estimates for weights of shape (k, d)."""
    layout = problem.layout
    sparse = (name for name in layout.names if layout.slices[name].start < layout.n_sparse)
    sizes = tuple(size for _, size in zip(sparse, layout.sizes, strict=False))
    weights, layers = torch.ones_like(w[:, : layout.n_sparse]), w.new_ones(len(w), len(sizes))
    return Latents(
        rho=per_model(prior.slab_prob, w) * weights,
        laplace=per_model(prior.penalty, w) * weights,
        gauss=per_model(prior.penalty, w) * weights,
        slab_prob=per_model(prior.slab_prob, w) * layers,
        scale=per_model(prior.scale, w) * w.new_ones(len(w), 1),
        **{name: per_model(getattr(prior, name), w) for name in _LATENT_SETTINGS},
        sizes=sizes,
    )


def prior_pull(w: Tensor, latents: Latents) -> Tensor:
    """Gradient of the prior's energy for the prunable weights, (k, P)."""
    prunable = w[:, : latents.rho.shape[1]]
    return penalty_gradient(prunable, latents.laplace, latents.gauss, latents.scale)


def update_latents_(
    latents: Latents, w: Tensor, keep: Tensor | None, omega: Tensor, averaging: Averaging,
    residuals: Residuals | None, settling: Tensor | None = None, follow: "Follow | None" = None,
) -> None:  # fmt: skip
    """One round of eqs 12, 13, 15 and 14 at weights (k, d), in place; ω weighs the new estimates.

    A weight that is not kept has the ρ of 0 and is not counted: as observations of δ and σ zeros
    that the pruning made would shrink the rest. `residuals` are there where σ is also the noise.
    Where `settling`, bool, scalar or (k, 1), σ² follows the residuals alone, eq. L3.
    """
    numbers = latents.spike_scale, latents.slab_std
    odds = log_odds_at_zero(latents.slab_prob, *numbers)  # (k, L)
    sums = Sums(*(follow or follow_)(latents, w, keep, omega, odds))
    if averaging.slab_prob:
        means = sums.rho / sums.kept.clamp(min=1)
        best = best_slab_prob(means, latents.slab_share, latents.spike_share)
        latents.slab_prob.lerp_(best, omega)
    if averaging.scale:
        _update_scale_(latents, sums, omega, residuals, settling)


class Sums(NamedTuple):
    """Sums over the weights that each layer keeps, (k, L) each."""

    rho: Tensor
    kept: Tensor  # how many
    laplace: Tensor  # κ₀ |w|
    gauss: Tensor  # κ₁ w²


@kernel("bayesieve_follow", compiled=False)
def follow_(latents: Latents, w: Tensor, keep: Tensor | None, omega: Tensor, odds: Tensor) -> Sums:
    """Eqs 12 and 13 for weights (k, d), in place; `odds` are those of ρ at 0, (k, L)."""
    n, numbers = latents.rho.shape[1], (latents.spike_scale, latents.slab_std)
    kept = None if keep is None else keep[:, :n]
    weights = w[:, :n] if kept is None else w[:, :n] * kept
    if len(latents.sizes) > 1:  # one number for all weights of a layer
        pairs = zip(odds.split(1, 1), latents.sizes, strict=True)
        odds = torch.cat([column.expand(-1, size) for column, size in pairs], 1)
    found = log_odds_from(odds, weights, latents.scale, *numbers)
    latents.rho.lerp_(torch.sigmoid(found), omega)
    laplace, gauss = penalties(latents.rho, *numbers)
    latents.laplace.lerp_(laplace, omega)
    latents.gauss.lerp_(gauss, omega)
    values = (
        latents.rho if kept is None else latents.rho * kept,
        torch.ones_like(weights) if kept is None else kept,
        latents.laplace * weights.abs(),
        latents.gauss * weights.square(),
    )
    return Sums(*(_layer_sums(value, latents.sizes) for value in values))


def _layer_sums(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sums over the weights of each layer, (k, P) -> (k, L)."""
    return torch.cat([layer.sum(1, keepdim=True) for layer in values.split(sizes, 1)], 1)


def _update_scale_(
    latents: Latents, sums: Sums, omega: Tensor, residuals: Residuals | None,
    settling: Tensor | None,
) -> None:  # fmt: skip
    """Eq. 14; where `settling`, eq. L3: the maximiser without the weights."""
    guess = latents.scale_count * latents.scale_square
    n_kept, laplace_sum, squares = (total.sum(1, keepdim=True) for total in sums[1:])
    squares, n_targets = squares + guess, 0
    if residuals is not None:
        n_targets, squares = residuals.n_targets, squares + residuals.square_sum[:, None]
    count = n_kept + n_targets + latents.scale_count + 2
    best = best_scale(laplace_sum, squares, count).square()
    if settling is not None and residuals is not None:
        alone = residuals.square_sum[:, None] + guess
        best = torch.where(settling, alone / (n_targets + latents.scale_count + 2), best)
        omega = torch.where(settling, _NOISE_WEIGHT, omega)
    latents.scale.copy_(latents.scale.square().lerp(best, omega).sqrt())
