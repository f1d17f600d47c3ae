"""The joint posterior of an additive model: the probability that an input matters.

The model is a sum of piecewise linear effects, one per input. Every input has K functions (itself,
a line, then hinges; `HingeBasis`), centred and orthonormal over the n rows. With F functions φ,

    y = a + Σ_f φ_f β_f + ε,   ε ~ N(0, n v),   β_f = 0 if f is out, ~ N(0, v τ_f) if f is in.

An input matters if one of its functions is in. It is a candidate with probability π; the line of a
candidate is in with probability λ, each of its hinges with κ. All these numbers are learned: v has
prior 1/v, τ/n of lines and of hinges inverse gamma priors of shape ½ and scale ⅛ and 1/40,
π ~ Beta(1, 9), λ ~ Beta(3, 1), κ ~ Beta(1, 9). The learned π corrects for the number of inputs
[Scott].

Gibbs sampling [George] draws from the joint posterior, so of inputs that say nearly the same each
has its share of the probability. The coefficients are integrated out. With G = ΦᵀΦ / n, c = Φᵀy / n
and S the functions that are in,

    K = (G_SS + diag 1/τ)⁻¹,   b = c - G_·S K c_S,   r = diag (G - G_·S K G_S·),
    h_f = 1 + τ_f r_f if f is out, 1 - τ_f r_f if f is in,
    log P(in) / P(out) = log prior odds ∓ ½ log h_f + ½ τ_f b_f² / (v h_f)

gives the odds of all functions at once, - for those out and + for those in. So a sweep draws a new
state for every function in random order, yet computes only where a state changes: up to the next
change nothing else does. A change is an update of K, b and h of rank one. Rows enter through G and
c alone, so that the time of a sweep does not grow with n.

Inputs that are nearly equal change places too slowly one by one. A second move takes a function f
that is in and a function g that is out, g with probability q(g | f) from their correlation, and
draws anew which of the two is in. Its odds contain q(f | g) / q(g | f), which makes it exact.

Of more than 1,000 inputs the chains see those that `screened` chooses; the others never enter, but
they count where π is learned, so that a search among many stays a search among many.

`inclusion` is the mean over draws of P(the line is in | all the rest), 1 where a hinge is in.
Several targets share the states; their terms add up. Classes are targets too: their indicators,
turned so that they are uncorrelated, as in discriminant analysis by regression [Scoring]. A latent
variable for every row in their place [Albert] leaves chains stuck where inputs are correlated.

Several inputs may make one column, as the levels of a category do. Each of m such inputs is a
candidate with probability π / m, so that a column of many levels is no likelier to matter than any
other, and the column matters if one of its inputs does.

Symbols: n rows, or the sum of their weights; D inputs; K functions of each; C chains; o targets.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.checks import check_positive
from bayesieve.select.additive import HingeBasis

Array = NDArray[Any]
_AT_ONCE = 4096  # rows whose functions are in memory at once
_MOST_STORED = 6000  # functions up to which all of G is kept, whatever n
_SCREEN_ROWS = 2000  # that inputs are screened by
_VERY_MANY = 10_000  # inputs of which fewer may enter, since those that matter are far ahead
_FORWARD = 40  # inputs that are regressed out at most while screening
_BURN_IN = 40  # sweeps before the first that counts
_LEAST_NOISE = 1e-6  # variance of the noise over that of the target; below all is rounding
_WIDEST = 1e9  # τ, where 1 - τ r can still be computed


@dataclass(frozen=True, eq=False)
class JointPosterior:
    """Posterior of an additive model about its D inputs.

    Args:
        inclusion: (D,), probability that an input matters.
        effect: (D,), posterior mean of the standard deviation of its effect over the rows, in units
            of that of the target; of a column of several inputs the root of the sum of squares.
        error: (D,), Monte-Carlo standard error of `inclusion`, from the spread over chains.
        n_sweeps: sweeps of every chain that count.
    """

    inclusion: Tensor
    effect: Tensor
    error: Tensor
    n_sweeps: int


def joint_posterior(
    x: Tensor, y: Tensor, *, weight: Tensor | None = None, groups: Tensor | None = None,
    n_hinges: int = 3, chains: int = 8, sweeps: int = 40, most_sweeps: int = 400,
    tolerance: float = 0.03, screen: int | None = None, seed: int = 0,
) -> JointPosterior:  # fmt: skip
    """Sample the joint posterior of an additive model.

    Args:
        x: (n, D), inputs.
        y: (n,) or (n, o), targets; class numbers (n,) if they are integers.
        weight: (n,), what each row counts: 2 counts as if it stood there twice; None counts all
            once.
        groups: (D,), the number of the column that each input belongs to, from 0; None makes each
            its own. The posterior is about columns.
        n_hinges: of each input, at its quantiles.
        chains: that start with nothing in and run side by side.
        sweeps: after which the error is looked at; 40 sweeps before that do not count.
        most_sweeps: at which to stop, with a warning, where the error is still too large.
        tolerance: largest Monte-Carlo standard error of an inclusion probability to stop at.
        screen: most inputs that may enter; those left out have probability 0. None is 1,000, and
            500 of more than 10,000 inputs.
        seed: of the chains.

    Example:
        >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        >>> found = joint_posterior(x, x[:, 2].abs() + 0.5 * x[:, 0])
        >>> found.inclusion.round().tolist()
        [1.0, 0.0, 1.0, 0.0]
    """
    if screen is None:
        screen = 1000 if x.shape[1] <= _VERY_MANY else 500
    check_positive(
        "joint_posterior", n_hinges=n_hinges, chains=chains, sweeps=sweeps, tolerance=tolerance,
        screen=screen,
    )  # fmt: skip
    if chains < 2:
        raise ValueError("joint_posterior: chains must be 2 or more; their spread is the error.")
    seen = screened(x, y, weight, n_hinges, screen)
    n_left_out = x.shape[1] - len(seen)
    distinct, place = _distinct(x[:, seen])
    groups = torch.arange(x.shape[1]) if groups is None else groups
    kept, column_of = groups[seen].unique(return_inverse=True)
    columns = _Columns(place.numpy(), column_of.numpy())
    rng = np.random.default_rng(seed)
    inputs = x[:, seen[distinct]]
    sampler = _Chains(inputs, y, weight, n_hinges, chains, rng, columns.share, n_left_out)
    total, effect, n = np.zeros((chains, len(columns))), np.zeros(len(columns)), 0
    for _ in range(_BURN_IN):
        sampler.sweep()
    error = np.full(len(columns), math.inf)
    while error.max() > tolerance and n < most_sweeps:
        for _ in range(sweeps):
            sampler.sweep()
            total += columns.inclusion(sampler.inclusion(), sampler.n_inside > 0)
            effect += columns.effects(sampler.effects()).mean(0)
        n += sweeps
        error = (total / n).std(0, ddof=1) / math.sqrt(chains)
    if error.max() > tolerance:
        warnings.warn(
            f"joint_posterior: after {n} sweeps of {chains} chains the probability of input "
            f"{int(kept[error.argmax()])} has a Monte-Carlo standard error of {error.max():.2f}. "
            "Raise most_sweeps to know it better.",
            RuntimeWarning,
            stacklevel=2,
        )
    found = torch.zeros(3, int(groups.max()) + 1, dtype=torch.float64)
    found[:, kept] = torch.as_tensor(np.stack([total.mean(0) / n, effect / n, error]))
    return JointPosterior(found[0], found[1], found[2], n)


def screened(x: Tensor, y: Tensor, weight: Tensor | None, n_hinges: int, most: int) -> Tensor:
    """The inputs, (at most `most`,) in order, that may matter: all of them if they are few.

    The evidence of an input against a target is the smaller p-value of its line and of all its
    functions. Half of the inputs are those with the strongest evidence about the targets. The
    others have it about what is left of them when the strongest inputs, one after the other while
    their evidence holds against the number of all, are regressed out.

    Args:
        x: (n, D), inputs.
        y: as for `joint_posterior`.
        weight: (n,), what each row counts.
        n_hinges: of each input.
        most: inputs to keep.

    Example:
        >>> x = torch.randn(100, 50, generator=torch.Generator().manual_seed(0))
        >>> screened(x, x[:, 7].abs() + x[:, 30], None, 3, 4).tolist()[:2] == [7, 30]
        False
        >>> {7, 30} <= set(screened(x, x[:, 7].abs() + x[:, 30], None, 3, 4).tolist())
        True
    """
    n_inputs = x.shape[1]
    if n_inputs <= most:
        return torch.arange(n_inputs)
    counts = torch.ones(len(x)) if weight is None else weight.cpu()
    rows = (counts > 0).nonzero()[:, 0]
    rows = rows[:: max(1, len(rows) // _SCREEN_ROWS)]
    share = (counts[rows].double() / counts[rows].sum())[:, None]
    labels = y.cpu()[rows]
    target = (_standardised if y.is_floating_point() else _indicators)(labels, share).float()
    phi = torch.cat(
        [HingeBasis(part, n_hinges)(part) for part in x.cpu()[rows].float().split(_AT_ONCE, 1)], 1
    ).unflatten(1, (n_inputs, n_hinges + 1))
    n = len(rows)

    from scipy.stats import chi2  # here: it takes half a second to load

    def evidence(rest: Tensor) -> Array:
        """Log p-values, (D,), the stronger the lower."""
        scale = rest.square().mean(0).clamp_min(1e-12).sqrt()
        squares = torch.einsum("ndk,no->dko", phi, rest / scale).div(n).square().sum(2) * n
        o = target.shape[1]
        line, whole = squares[:, 0].numpy(), squares.sum(1).numpy()
        logs = chi2.logsf(line, o), chi2.logsf(whole, o * (n_hinges + 1))
        return np.asarray(np.minimum(*logs))

    marginal = evidence(target)
    chosen, rest = list[int](), target
    while len(chosen) < min(_FORWARD, n // (4 * (n_hinges + 1))):
        strength = evidence(rest)
        strength[chosen] = 0.0
        best = int(strength.argmin())
        if strength[best] + math.log(n_inputs) > 0:
            break
        chosen.append(best)
        design = torch.cat([phi[:, chosen].flatten(1), torch.ones(n, 1)], 1).double()
        ridge = 1e-3 * n * torch.eye(design.shape[1], dtype=torch.float64)
        solution = torch.linalg.solve(design.T @ design + ridge, design.T @ target.double())
        rest = target - (design @ solution).float()
    kept = set(chosen) | set(np.argsort(marginal)[: most // 2].tolist())
    for j in np.argsort(evidence(rest)).tolist():
        if len(kept) >= most:
            break
        kept.add(j)
    return torch.tensor(sorted(kept))


def _distinct(x: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of x, (n, D), that are no multiple of an earlier one, and where each of all D is.

    Example:
        >>> x = torch.tensor([[1.0, 2.0, -1.0, 5.0], [2.0, 2.0, -2.0, 0.0], [4.0, 2.0, -4.0, 3.0]])
        >>> [columns.tolist() for columns in _distinct(x)]  # the third is minus the first
        [[0, 1, 3], [0, 1, 0, 2]]
    """
    z = x.double().cpu()
    z = z - z.mean(0)
    z = z / z.norm(dim=0).clamp_min(torch.finfo(z.dtype).tiny)
    first = []
    for columns in torch.arange(x.shape[1]).split(_AT_ONCE):
        same = (z[:, columns].T @ z).abs() > 1 - 1e-9  # False for a constant one
        first.append(torch.where(same.any(1), same.double().argmax(1), columns))
    distinct, place = torch.cat(first).unique(return_inverse=True)
    return distinct, place


class _Columns:
    """Map from each of the G columns to its distinct inputs: mostly one.

    Args:
        place: (D,), the distinct input that each input is.
        groups: (D,), its column.

    Example:
        >>> columns = _Columns(np.array([0, 1, 1, 2]), np.array([0, 1, 1, 1]))
        >>> len(columns), columns.first.tolist(), columns.share.tolist()
        (2, [0, 1], [1.0, 0.5, 0.5])
        >>> columns.inclusion(np.array([[0.5, 0.2, 0.1]]), np.array([[False, True, False]]))
        array([[0.5, 1. ]])
    """

    def __init__(self, place: Array, groups: Array) -> None:
        pairs = np.unique(np.stack([groups, place], 1), axis=0)
        sizes = np.bincount(pairs[:, 0])
        self.first = pairs[np.cumsum(sizes) - sizes, 1]  # (G,)
        several = np.flatnonzero(sizes > 1)
        self.several = [(int(g), pairs[pairs[:, 0] == g, 1]) for g in several]
        self.share = np.zeros(place.max() + 1)  # of π, by input
        np.maximum.at(self.share, pairs[:, 1], 1 / sizes[pairs[:, 0]])

    def __len__(self) -> int:
        return len(self.first)

    def inclusion(self, probability: Array, inside: Array) -> Array:
        """Return of columns, (C, G), the probability of one input, or whether one of many is in."""
        columns: Array = probability[:, self.first]
        for g, inputs in self.several:
            columns[:, g] = inside[:, inputs].any(1)
        return columns

    def effects(self, effects: Array) -> Array:
        """Return the effects of columns, (C, G), from those of inputs, (C, D)."""
        columns: Array = effects[:, self.first]
        for g, inputs in self.several:
            columns[:, g] = np.sqrt(np.square(effects[:, inputs]).sum(1))
        return columns


class _Chains:
    """C chains side by side: which functions are in, learned numbers, and what follows from them.

    `slots`, (C, A), are the functions that are in, where `used`; `rows`, (C, A, F), their rows of
    G; `inverse`, (C, A, A), is K, and 0 where a slot is free. `b`, (C, F, o), and `h`, (C, F), are
    those of the module's text.
    """

    def __init__(
        self, x: Tensor, y: Tensor, weight: Tensor | None, n_hinges: int, chains: int,
        rng: np.random.Generator, share: Array | None = None, n_left_out: int = 0,
    ) -> None:  # fmt: skip
        self.share = np.ones(x.shape[1]) if share is None else share  # of π, by input, (D,)
        self.gram, self.moment, self.present, self.n = _moments(x, y, weight, n_hinges)
        self.rng, self.chain, self.n_left_out = rng, np.arange(chains), n_left_out
        self.k = n_hinges + 1
        by_input = self.present.reshape(-1, self.k)
        self.varies, self.n_hinges = by_input[:, 0], by_input[:, 1:].sum(1)
        n_functions, self.n_targets = self.moment.shape
        shape = (chains, n_functions)
        self.is_hinge = np.tile(np.arange(self.k) > 0, len(by_input)).astype(int)
        self.inside, self.beta = np.zeros(shape, dtype=bool), np.zeros((*shape, self.n_targets))
        self.n_inside = np.zeros((chains, len(by_input)), dtype=int)  # functions of every input
        self.noise = np.full((chains, self.n_targets), 1 / self.n)  # v
        self.widths = np.tile([self.n, 0.3 * self.n], (chains, 1))  # τ of lines and hinges
        self.shares = np.tile([0.2, 0.75, 0.1], (chains, 1))  # π, λ, κ
        self.used, self.slots = np.zeros((chains, 0), dtype=bool), np.zeros((chains, 0), dtype=int)
        self.slot_of = np.zeros(shape, dtype=int)
        self.rows, self.inverse = np.zeros((chains, 0, n_functions)), np.zeros((chains, 0, 0))
        self._add_slots(8)
        self._refresh()

    def sweep(self) -> None:
        """Every function once, two swaps, then the learned numbers."""
        self._visit()
        self._swap()
        self._swap()
        self._learn()
        self._refresh()

    def inclusion(self) -> Array:
        """P(the line is in | all the rest) of every input, (C, D); 1 where a hinge is in."""
        odds = self._log_odds()[:, :: self.k]
        bent = self.n_inside > self.inside[:, :: self.k]
        probability: Array = 1 / (1 + np.exp(-np.clip(odds, -700, 700)))
        return np.where(bent, 1.0, probability) * self.varies

    def effects(self) -> Array:
        """Standard deviation over the rows of the effect of every input, (C, D)."""
        squares = np.square(self.beta).sum(2).reshape(*self.n_inside.shape, self.k)
        effects: Array = np.sqrt(squares.sum(2))
        return effects

    def _visit(self) -> None:
        """Draw the state of every function in random order, going from change to change."""
        needed = self.rng.logistic(size=self.inside.shape)  # in where the log odds are larger
        n_functions = needed.shape[1]
        order = np.broadcast_to(np.arange(n_functions), needed.shape)
        order = self.rng.permuted(order, axis=1)
        reached = np.full(len(needed), -1)
        while True:
            change = (self._log_odds() > needed) != self.inside
            change &= order > reached[:, None]
            ahead = np.where(change, order, n_functions)
            f = ahead.argmin(1)
            reached = ahead[self.chain, f]
            if reached.min() == n_functions:
                return
            self._flip(f, reached < n_functions)

    def _swap(self) -> None:
        """Draw anew which of two functions is in, where one of them is."""
        chain = self.chain
        f = np.where(self.inside, self.rng.random(self.inside.shape), -1.0).argmax(1)
        forth = self._nearness(f)
        total = forth.cumsum(1)
        g = (total < total[:, -1:] * self.rng.random((len(chain), 1))).sum(1)
        g = np.minimum(g, forth.shape[1] - 1)
        swapped = self.inside[chain, f] & ~self.inside[chain, g] & (forth[chain, g] > 0)
        if not swapped.any():
            return
        back = self._nearness(g)
        self._flip(f, swapped)
        odds = self._log_odds()
        gain = np.where(swapped, odds[chain, g] - odds[chain, f], 0.0)
        choice = np.stack([back[chain, f] / back.sum(1), forth[chain, g] / total[:, -1]])
        gain[swapped] += np.log(choice[0, swapped] / choice[1, swapped])
        self._flip(np.where(gain > self.rng.logistic(size=len(chain)), g, f), swapped)

    def _nearness(self, f: Array) -> Array:
        """Return how readily functions f, (C,), swap with all others: unnormalized q(· | f)."""
        near = np.square(np.square(self._gram_rows(f))) + 1e-6
        near[self.chain, f] = 0.0
        return near * self.present

    def _flip(self, f: Array, flipped: Array) -> None:
        """Take functions f, (C,), in where they are out and out where they are in.

        Chains that are not `flipped`, (C,), stay as they are.
        """
        if self.used.all(1).any():
            self._add_slots(8)
        chain, leaving = self.chain, self.inside[self.chain, f]
        at = np.where(leaving, self.slot_of[chain, f], self.used.argmin(1))
        width = self.width[chain, f]
        h = np.where(leaving, self.inverse[chain, at, at] / width, self.h[chain, f])
        u = (self.inverse @ self.rows[chain, :, f, None])[:, :, 0]
        u[chain, at] = -1.0
        u = np.where(leaving[:, None], self.inverse[chain, :, at], u) * flipped[:, None]
        entering = flipped & ~leaving
        self.rows[chain[entering], at[entering]] = self._gram_rows(f[entering])
        step = (u[:, None] @ self.rows)[:, 0] * (np.where(leaving, -1.0, -width) / h)[:, None]
        self.b -= step[:, :, None] * self.b[chain, f][:, None]
        turned = (self.sign[chain, f] * h / width)[:, None]
        self.h -= np.square(step) * self.sign * self.width * turned
        self.h[chain, f] = np.where(flipped, 1 / h, h)
        pivot = np.where(leaving, -width * h, h / width)
        self.inverse += u[:, :, None] * (u / pivot[:, None])[:, None]
        chain, at, f, leaving = chain[flipped], at[flipped], f[flipped], leaving[flipped]
        self.used[chain, at], self.slots[chain, at], self.slot_of[chain, f] = ~leaving, f, at
        self.inside[chain, f] = ~leaving
        self.sign[chain, f] *= -1
        self.n_inside[chain, f // self.k] += np.where(leaving, -1, 1)
        chain, at = chain[leaving], at[leaving]
        self.rows[chain, at] = self.inverse[chain, at] = self.inverse[chain, :, at] = 0.0
        self._set_inside()

    def _log_odds(self) -> Array:
        """Log odds of in against out of every function given all others, (C, F)."""
        others = np.repeat(self.n_inside, self.k, 1) > self.inside
        if self.n_targets == 1:
            fit = np.square(self.b[:, :, 0]) / (2 * self.noise)
        else:
            fit = np.einsum("cfo,co->cf", np.square(self.b), 0.5 / self.noise)
        fit *= self.width
        fit /= self.h
        fit -= np.log(self.h) * self.sign * (0.5 * self.n_targets)
        fit += np.where(others, self.prior_of_more, self.prior_of_first)
        return fit

    def _learn(self) -> None:
        """Draw v, then β, then τ, then π, λ and κ, each given the rest."""
        rng, root = self.rng, np.linalg.cholesky(self._precision())
        half = np.linalg.solve(root, self._in_slots(self.moment))
        rest = np.maximum(1 - np.square(half).sum(1), _LEAST_NOISE)  # targets have variance 1
        self.noise = 0.5 * rest / rng.gamma(0.5 * (self.n - 1), size=rest.shape)
        half += rng.standard_normal(half.shape) * np.sqrt(self.noise)[:, None]
        draw = np.linalg.solve(root.transpose(0, 2, 1), half)
        self.beta[...] = 0.0
        chain, slot = self.used.nonzero()
        self.beta[chain, self.slots[chain, slot]] = draw[chain, slot]
        kinds = np.stack([1 - self.is_hinge, self.is_hinge], 1)
        n_in = self.inside @ kinds  # (C, 2)
        size = (np.square(self.beta) / self.noise[:, None]).sum(2) @ kinds
        scale = 0.5 * size + self.n * np.array([0.125, 0.025])
        self.widths = np.minimum(scale / rng.gamma(0.5 + 0.5 * self.n_targets * n_in), _WIDEST)
        candidate = (self.n_inside > 0) | (rng.random(self.n_inside.shape) < self.idle)
        n = candidate.sum(1)
        chosen = n
        if (self.share < 1).any():  # a candidate is one of π that is also one of 1 / m
            pi, s = self.shares[:, :1], self.share
            missed = rng.random(candidate.shape) < pi * (1 - s) / (1 - pi * s)
            chosen = (candidate | (missed & self.varies)).sum(1)
        n_inputs = self.varies.sum()
        if self.n_left_out:  # candidates of which nothing is in
            chosen = chosen + rng.binomial(self.n_left_out, self.idle.max(1))
            n_inputs = n_inputs + self.n_left_out
        pi = rng.beta(1 + chosen, 9 + n_inputs - chosen)
        line = rng.beta(3 + n_in[:, 0], 1 + n - n_in[:, 0])
        hinge = rng.beta(1 + n_in[:, 1], 9 + candidate @ self.n_hinges - n_in[:, 1])
        self.shares = np.clip(np.stack([pi, line, hinge], 1), 1e-6, 1 - 1e-6)

    def _refresh(self) -> None:
        """Compute anew what depends on the learned numbers."""
        self.width = self.widths[:, self.is_hinge]  # (C, F)
        self.sign = np.where(self.inside, -1.0, 1.0)
        self.inverse = np.linalg.inv(self._precision())
        self.inverse *= self.used[:, :, None] & self.used[:, None]
        beta = self.inverse @ self._in_slots(self.moment)
        self.b = self.moment - self.rows.transpose(0, 2, 1) @ beta
        explained = np.einsum("caf,caf->cf", self.rows, self.inverse @ self.rows)
        self.h = 1 + self.width * (self.present - explained)
        self._set_inside()
        pi, line, hinge = self.shares.T
        # P(candidate | nothing of the input is in), 0 for a constant one, (C, D)
        candidate = pi[:, None] * self.share
        idle = (1 - line)[:, None] * (1 - hinge)[:, None] ** self.n_hinges * self.varies
        idle = candidate * idle
        self.idle = idle / (1 - candidate + idle)
        more = (self.shares / (1 - self.shares))[:, 1 + self.is_hinge] * self.present
        with np.errstate(divide="ignore"):  # a function that is 0 on all rows never enters
            self.prior_of_more = np.log(more)
            self.prior_of_first = np.log(more * np.repeat(self.idle, self.k, 1))

    def _set_inside(self) -> None:
        """Set h of functions that are in to K_ff / τ_f: with little noise 1 - τ r is rounding."""
        chain, slot = self.used.nonzero()
        f = self.slots[chain, slot]
        self.h[chain, f] = self.inverse[chain, slot, slot] / self.width[chain, f]

    def _precision(self) -> Array:
        """G_SS + diag 1/τ, (C, A, A), with ones on the diagonal of free slots."""
        across = self.slots[:, None].repeat(self.slots.shape[1], 1)
        precision: Array = np.take_along_axis(self.rows, across, 2) * self.used[:, None]
        diagonal = np.arange(self.slots.shape[1])
        width = np.take_along_axis(self.width, self.slots, 1)
        precision[:, diagonal, diagonal] += np.where(self.used, 1 / width, 1.0)
        return precision

    def _in_slots(self, values: Array) -> Array:
        """Values of all functions, (F, o), at those that are in, (C, A, o); 0 in free slots."""
        return values[self.slots] * self.used[:, :, None]

    def _add_slots(self, n: int) -> None:
        self.used, self.slots = (np.pad(a, ((0, 0), (0, n))) for a in (self.used, self.slots))
        self.rows = np.pad(self.rows, ((0, 0), (0, n), (0, 0)))
        self.inverse = np.pad(self.inverse, ((0, 0), (0, n), (0, n)))

    def _gram_rows(self, f: Array) -> Array:
        """Rows f of G, (len(f), F); `gram` is G itself, or the functions where G is too large."""
        if len(self.gram) == self.gram.shape[1]:
            return self.gram[f]
        rows: Array = self.gram[:, f].T @ self.gram
        return rows


def _moments(
    x: Tensor, y: Tensor, weight: Tensor | None, n_hinges: int
) -> tuple[Array, Array, Array, float]:
    """G, (F, F), or Φ / √n, (n, F), if smaller; c, (F, o); which functions are not 0, (F,); n.

    The basis looks at a part of many rows and at no weights, so its functions are centred and made
    orthonormal once more.
    """
    counts = torch.ones(len(x)) if weight is None else weight.cpu()
    rows = counts > 0
    x, y, counts = x.cpu()[rows].double(), y.cpu()[rows], counts[rows].double()
    n = float(counts.sum())
    share = (counts / n)[:, None]
    basis = HingeBasis(x, n_hinges)
    d, k = basis.present.shape
    parts = [slice(start, start + _AT_ONCE) for start in range(0, len(x), _AT_ONCE)]
    mean = torch.stack([(basis(x[part]) * share[part]).sum(0) for part in parts]).sum(0)

    def functions(part: slice) -> Tensor:
        return ((basis(x[part]) - mean) * share[part].sqrt()).unflatten(1, (d, k))

    grams = (~basis.present).double().diag_embed()  # of the functions of each input, (D, K, K)
    for part in parts:
        grams += torch.einsum("ndk,ndm->dkm", functions(part), functions(part))
    turn = torch.linalg.inv(torch.linalg.cholesky(grams)).mT
    target = (_indicators if not y.is_floating_point() else _standardised)(y, share)
    stored = d * k <= _MOST_STORED or len(x) > d * k
    gram = torch.zeros((d * k, d * k) if stored else (0, 0), dtype=torch.float64)
    moment = torch.zeros(d * k, target.shape[1], dtype=torch.float64)
    pieces = []
    for part in parts:
        phi = torch.einsum("ndk,dkm->ndm", functions(part), turn).flatten(1)
        moment += phi.T @ (target[part] * share[part].sqrt())
        if stored:
            gram += phi.T @ phi
        else:
            pieces.append(phi)
    gram = gram if stored else torch.cat(pieces)
    return gram.numpy(), moment.numpy(), basis.present.flatten().numpy(), n


def _standardised(y: Tensor, share: Tensor) -> Tensor:
    """Targets, (n, o), with mean 0 and variance 1; a constant one is 0."""
    y = y.double().reshape(len(y), -1)
    y = y - (share * y).sum(0)
    std = (share * y.square()).sum(0).sqrt()
    return y / torch.where(std > 0, std, 1.0)


def _indicators(y: Tensor, share: Tensor) -> Tensor:
    """Indicators of classes, turned into uncorrelated targets of variance 1, (n, classes - 1).

    Divided by the root of their share, indicators have a covariance that is a projection, along
    the roots of the shares; so any orthonormal basis across that line will do. One class is a
    target that is 0.
    """
    classes, label = y.unique(return_inverse=True)
    if len(classes) < 2:
        return torch.zeros(len(y), 1, dtype=torch.float64)
    eye = torch.eye(len(classes), dtype=torch.float64)
    roots = (eye[label] * share).sum(0).sqrt()[:, None]
    turn, _ = torch.linalg.qr(torch.cat([roots, eye[:, 1:]], 1))
    return (turn[:, 1:] / roots)[label]
