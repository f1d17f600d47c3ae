"""EM-TDAMP: a sparse network learned by message passing, without a gradient.

The joint density of weights, group indicators and targets is a factor graph. Cut at the weights it
has two parts that exchange extrinsic Gaussian messages (turbo loop):

    Module A  the network: approximate message passing, one batch after another    (T3 to T15)
    Module B  the group-sparse prior: exact sum-product, once per pass             (T16 to T20)
    M-step    sparsity ρ, slab variances ν, noise v, once per pass                 (T21 to T23)
    Removal   hidden units by joint evidence, once per pass, without a target      (T26 to T28)

The posterior is exp((H₀ + H) w - (P₀ + G) w² / 2): (H, G) is what the data say, (H₀, P₀) what the
prior says. Keeping natural parameters makes (H, G) the extrinsic message: nothing is divided.

Reference: Xu, Liu, Zhang and Lau (2024), arXiv:2402.07366; batches as in Lucibello et al. (2022).
Equations are derived in docs/theory/tdamp.md, not transcribed: only an abstract was at hand.
Symbols: H linear, G and P precision, ν slab_var, ρ active_prob, π activity, β power, c memory,
κ trust, V var.
Departures: the data message decays (`memory`) and is counted `power` times, less so when it cools
(T29); classes pull no harder than logits (T30); a weight moves at most `trust` standard deviations
per batch; one sweep per batch, so Onsager terms vanish; the probit has variance 1.702² so that
outputs are logits; convolutions are linear layers over patches; removed groups are masked, not cut
out of the tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from bayesieve.checks import (
    AUTO,
    check_fraction,
    check_kind,
    check_not_negative,
    check_positive,
    chosen,
)
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.inputs import one_input
from bayesieve.core.network import NUMBERS_PREFIX
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.priors import normal_kl
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.engines.tdamp.channels import Message, check_likelihood, observe
from bayesieve.engines.tdamp.damp import absorb_, batch_score, cavity_
from bayesieve.engines.tdamp.groups import (
    extrinsic,
    group_sum,
    noise_residual,
    noise_update,
    remove_groups_,
    remove_units_,
    slab_moments,
    slab_update,
)
from bayesieve.engines.tdamp.state import GroupSparse, TDAMPState, Wiring, kept, moments, set_

if TYPE_CHECKING:
    from bayesieve.engines.recipes import RunSize

__all__ = ["TDAMP", "TDAMPState"]
_NOISE_NAME = NUMBERS_PREFIX + "log_noise_std"
_LEARN_NOISE_AFTER = 4  # passes


@dataclass(frozen=True)
class TDAMP:
    """Message-passing engine for ReLU networks of linear layers and convolutions.

    Inputs should be centred and have unit average energy per feature, targets of a regression be
    standardised. A pass ends when as many examples were seen as the problem has.

    Args:
        prior: groups, their prior activity and slab variances.
        keep: fraction of groups of each layer to end with; None removes what the evidence does not
            support: hidden units by their joint evidence, other groups each by its own. With a
            single output their number is a guess, and channels of a convolution need a target.
        prune_passes: first and last pass after which groups are removed; afterwards exactly `keep`
            of them are left. Without `keep` a pass removes at most an equal share of the units.
            Leave some passes to recover.
        judged_at: share of the data that the joint evidence of hidden units is read at, without
            `keep`; more of it keeps more units. 0.2 finds a support that is known, and at least
            2,000 target values are read.
        power: times each datum is counted when its batch is absorbed.
        memory: passes after which the data message has decayed to 1/e; the data are then counted
            at most `power` · `memory` times.
        cool_passes: first and last pass over which `power` falls to 1 and `memory` to
            `cool_memory`, so that means suit a wider message; None never cools.
        cool_memory: `memory` after that.
        trust: standard deviations a weight may move per batch.
        damping: fraction of the old message kept at each batch; 1 moves nothing.
        init_scale: size of the random start relative to He's.
        learn_slab: whether the M-step updates slab variances.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> x = torch.eye(4).repeat(8, 1)
        >>> problem = Problem(nn.Linear(4, 1, bias=False), Gaussian(9.0), (x, 2 * x[:, :1]))
        >>> engine = TDAMP(power=1.0, memory=1e9, trust=10.0, init_scale=0.0,
        ...                prior=GroupSparse(output_variance=4.0))
        >>> state = engine.init(problem, Generator())
        >>> _ = engine.step(problem, state, Batch(problem.x, problem.y))
        >>> engine.posterior(problem, state).mean[0].item()  # exact: 2 * 8 / 89 = 0.1798
        0.17777...
    """

    prior: GroupSparse = field(default_factory=GroupSparse)
    keep: float | None = None
    prune_passes: tuple[int, int] = AUTO
    judged_at: float = 0.2
    power: float = 5.0
    memory: float = 10.0
    trust: float = 0.5
    cool_passes: tuple[int, int] | None = None
    cool_memory: float = 6.0
    damping: float = 0.0
    init_scale: float = 0.3
    learn_slab: bool = False

    def __post_init__(self) -> None:
        check_kind("TDAMP", "prior", self.prior, GroupSparse)
        check_positive("TDAMP", power=self.power, trust=self.trust, judged_at=self.judged_at)
        check_positive("TDAMP", memory=self.memory, cool_memory=self.cool_memory)
        check_not_negative("TDAMP", init_scale=self.init_scale)
        keep = 1.0 if self.keep is None else self.keep
        check_fraction("TDAMP", damping=self.damping, keep=keep, judged_at=self.judged_at)
        for name in ("prune_passes", "cool_passes"):
            first, last = getattr(self, name) or (1, 1)
            if not 1 <= first <= last:
                raise ValueError(
                    f"TDAMP: {name} must be (first, last) with 1 <= first <= last, "
                    f"got {(first, last)}."
                )

    @staticmethod
    def fields_from(settings: Mapping[str, Any], size: "RunSize") -> dict[str, Any]:
        """Choose which groups are removed, and when; an epoch is one EM iteration."""
        keep, n_passes = size.keep_units, max(1, round(size.n_steps / size.per_epoch))
        if not size.may_prune or (keep is None and size.task == "regression"):
            keep = 1.0  # of a regression: one output tells too little about single units
        return {"keep": keep, "prune_passes": (2, max(2, round(0.6 * n_passes)))}

    @property
    def passes(self) -> tuple[int, int]:
        """First and last pass after which groups are removed, plain numbers if nobody chose."""
        return chosen(self.prune_passes, (2, 6))

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> TDAMPState:
        """The prior, and a random start inside the data message, which fades by itself."""
        check_likelihood(problem.likelihood, problem.data.sample.y)
        if problem.data.weighted:
            raise ValueError("TDAMP: every example counts once; remove the weights.")
        layout, wiring = problem.layout, Wiring(problem.network, self.prior.group)
        if self._joint and any(layer.window for layer in wiring.layers):
            raise ValueError(
                "TDAMP: without keep, hidden units are chosen by the joint evidence of Linear "
                "layers; give keep for a network with Conv2d, 1.0 to keep all channels."
            )
        zeros = problem.initial.new_zeros(n_models, layout.size)
        slab, start = zeros.new_ones(n_models, wiring.n_layers + 1), torch.zeros_like(zeros)
        for i, layer in enumerate(wiring.layers):
            n_in, last = layout.fan_in(layer.weight), i == wiring.n_layers - 1
            slab[:, i] = self.prior.slab_variance(n_in, last=last)
            std = self.init_scale * ((1 if last else 2) / n_in) ** 0.5
            start[:, layout.slices[layer.weight]].normal_(generator=generator).mul_(std)
        precision = 1 / slab[:, wiring.layer_of]
        groups = zeros.new_ones(n_models, wiring.n_groups + 1)
        log_odds = groups * torch.tensor(self.prior.active_prob, dtype=torch.float64).logit()
        log_odds[:, -1] = torch.inf
        reached = torch.ones_like(zeros)
        reached[:, layout.n_bayesian :] = 0
        return TDAMPState(
            prior_linear=torch.zeros_like(zeros),
            prior_precision=precision,
            data_linear=precision * start,
            data_precision=torch.zeros_like(zeros),
            slab_var=slab,
            log_odds=log_odds,
            prior_log_odds=log_odds.clone(),
            alive=groups,
            reached=reached,
            noise=zeros.new_full((n_models, 1), (problem.likelihood.normal_noise or 1.0) ** 2),
            residual=zeros.new_zeros(n_models, 1),
            gram=zeros.new_zeros(n_models, wiring.n_gram if self._joint else 0),
            count=zeros.new_zeros(()),
            seen=zeros.new_zeros(()),
            passes=zeros.new_zeros(()),
            controls=Controls.neutral(zeros),
            generator=generator,
            wiring=wiring,
            n_bayesian=layout.n_bayesian,
        )

    def warm_start_(self, state: TDAMPState, posterior: Posterior) -> None:
        """Take another posterior's mean, and its std where that is below the prior's."""
        std = getattr(posterior, "std", torch.zeros_like(posterior.mean))
        known = std > 0
        precision = torch.where(known, std, 1).square().reciprocal() - state.prior_precision
        state.data_precision.copy_((precision * known).clamp(min=0))
        total = state.prior_precision + state.data_precision
        state.data_linear.copy_(posterior.mean * total - state.prior_linear)
        state.count.fill_(1.0)

    def step(self, problem: Problem, state: TDAMPState, batch: Batch) -> Metrics:
        """Forget a little, absorb one batch (Module A); at the end of a pass, B and the M-step."""
        rate = (1 - self.damping) * state.controls.lr_scale
        share = batch.n_step / problem.n_data
        moving = rate if state.controls.trained is None else rate * state.controls.trained
        power, memory = self._temperature(state)
        state.count.mul_(1 - rate * (share / memory)).add_(rate * power * share)
        data = Message(state.data_linear, state.data_precision)
        prior = Message(state.prior_linear, state.prior_precision)
        precision, mean, var = problem.run(cavity_)(
            data, prior, 1 - moving * (share / memory), state.controls.kl_scale, kept(state)
        )
        first, *others = batch.parts(problem.execution.bounds.micro_batch)
        sums = self._sweep(problem, state, first, mean, var)
        for part in others:
            for total, more in zip(sums, self._sweep(problem, state, part, mean, var), strict=True):
                total += more
        if (sharing := problem.execution.sharing) is not None:  # messages add, eq. T24
            sums = sharing.sum(*sums)
        score, gained, log_lik, residual, *grams = sums
        message = Message(score, gained.clamp(min=0))
        state.residual += residual
        for columns, gram in zip(state.wiring.grams, grams, strict=False):
            state.gram[:, columns] += gram
        problem.run(absorb_)(data, precision, mean, var, message, power, self.trust, moving)
        state.seen.add_(batch.n_step)
        ends = state.seen >= problem.n_data
        if problem.device.type != "cpu" or bool(ends):  # a captured step has no branches
            self._close_pass_(problem, state, ends & (rate > 0))
        return {"log_lik": log_lik * (problem.n_data / batch.n_step)}

    def _sweep(
        self, problem: Problem, state: TDAMPState, batch: Batch, mean: Tensor, var: Tensor
    ) -> list[Tensor]:
        """Sums over the examples of a batch.

        Score and precision, (k, d), predictive log density, (k,), residual, (k, 1), and the grams
        of hidden layers, (k, n²) each.
        """
        layout, k = problem.layout, len(mean)
        x, lead = one_input("TDAMP", batch.x).to(mean.dtype), 2 if batch.per_member else 1
        if state.wiring.layers[0].window is None:
            x = x.flatten(lead)
        means, variances = layout.unflatten(mean), layout.unflatten(var)
        shape = (*x.shape[:lead], means[state.wiring.layers[-1].weight].shape[1])
        seen = observe(problem.likelihood, batch.y, state.noise, shape)
        sweep = problem.run(batch_score)(
            state.wiring.layers, means, variances, x, seen, joint=self._joint
        )
        grams = [gram.flatten(1) for gram in sweep.grams]
        residual = torch.zeros_like(state.residual)
        if problem.likelihood.parameters():  # the noise is learned
            each = noise_residual(sweep.output.mean, sweep.output.var, seen.target, seen.noise)
            residual = each.mean(-1).sum(-1)[:, None]
        zeros = layout.unflatten(torch.zeros_like(mean))  # of parameters that no message reaches
        score, precision = (
            torch.cat([values.get(name, zero).reshape(k, -1) for name, zero in zeros.items()], 1)
            for values in (sweep.score, sweep.precision)
        )
        return [score, precision, sweep.log_prob, residual, *grams]

    def _close_pass_(self, problem: Problem, state: TDAMPState, now: Tensor) -> None:
        """Removal of groups, Module B and the M-step, where `now` (scalar) is True."""
        wiring = state.wiring
        set_(state.passes, state.passes + 1, now)
        if self._joint:
            remove_units_(problem, state, self.passes, self.judged_at, now)
            active = state.alive[:, wiring.group_of]
        else:
            remove_groups_(state, self.keep, self.passes, now)
            active = torch.sigmoid(state.log_odds)[:, wiring.group_of]
        set_(state.reached, wiring.reach(state.alive), now)
        state.reached[:, state.n_bayesian :] = 0
        data = Message(state.data_linear, state.data_precision)
        slab_var = state.slab_var[:, wiring.layer_of]
        if self.learn_slab:
            share, slab = active * kept(state), slab_moments(data, slab_var)
            values = (share * (slab.mean.square() + slab.var), share)
            sums = (group_sum(value, wiring.layer_of, wiring.n_layers + 1) for value in values)
            set_(state.slab_var, slab_update(state.slab_var, *sums), now)
            slab_var = state.slab_var[:, wiring.layer_of]
        back = extrinsic(data, slab_moments(data, slab_var), slab_var, active)
        trained = state.controls.trained
        moving = now if trained is None else now & trained
        set_(state.prior_linear, back.linear, moving)
        set_(state.prior_precision, back.precision, moving)
        if problem.likelihood.parameters():  # the noise is learned
            noise = noise_update(state.noise, state.residual / problem.n_data)
            set_(state.noise, noise, now & (state.passes > _LEARN_NOISE_AFTER))
        for total in (state.residual, state.seen, state.gram):
            set_(total, torch.zeros_like(total), now)

    def settled(self, n_epochs: int) -> float:
        """Fraction of the run after which nothing is removed; networks before it are larger."""
        return 0.0 if self.keep == 1.0 else min(self.passes[1] / n_epochs, 1.0)

    @property
    def _joint(self) -> bool:
        """Return whether hidden units are judged by their joint evidence."""
        return self.prior.group == "units" and self.keep is None

    def _temperature(self, state: TDAMPState) -> tuple[Tensor, Tensor]:
        """Power and memory in this pass, eq. T29."""
        one = torch.ones_like(state.passes)
        if self.cool_passes is None:
            return self.power * one, self.memory * one
        first, last = self.cool_passes
        left = ((last - 1 - state.passes) / (last - first + 1)).clamp(0, 1)
        return self.power**left, self.memory**left * self.cool_memory ** (1 - left)

    def kl(self, state: TDAMPState) -> Tensor:
        """KL[q || prior] of weights and indicators still in the network, in nats, (k,)."""
        mean, var = moments(state)
        slab_std = state.slab_var[:, state.wiring.layer_of].sqrt()
        std = torch.where(var > 0, var, slab_std.square()).sqrt()
        weights = normal_kl(mean.double(), std.double().log(), slab_std.double())
        weights = weights * (torch.sigmoid(state.log_odds)[:, state.wiring.group_of] * (var > 0))
        p = torch.sigmoid(state.log_odds.double())[:, :-1]
        rho = torch.sigmoid(state.prior_log_odds.double())[:, :-1].clamp(1e-300, 1 - 1e-16)
        groups = torch.special.xlogy(p, p / rho) + torch.special.xlogy(1 - p, (1 - p) / (1 - rho))
        return weights[:, : state.n_bayesian].sum(1) + groups.sum(1)

    def posterior(self, problem: Problem, state: TDAMPState, member: int = 0) -> Factorised:
        """Normals as wide as the data, counted once, allow; removed groups are exactly 0."""
        mean, var = (value[member].clone() for value in moments(state))
        removed = torch.where(state.alive > 0, state.log_odds, -torch.inf)
        log_odds = state.wiring.reach(removed)[member].clone()
        if _NOISE_NAME in problem.layout.names:
            mean[problem.layout.slices[_NOISE_NAME]] = 0.5 * state.noise[member].log()
        buffers = problem.workspace(len(state.alive)).buffers(member)
        whole = Factorised(problem.network, mean, var.sqrt(), None, log_odds, buffers)
        return state.controls.masked(whole, member)
