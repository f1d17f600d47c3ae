"""The simulated experiments 1 to 4 of [Saha] as functions: many data sets, one population.

Two networks select inputs: the paper's 20-10, and an additive one (hinges of every input, one
linear layer; see `select.additive`), which is ours. Both are sBNN. Settings were chosen on
data sets with seeds from 10,000; the experiments use seeds from 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesieve import MAP, SBNN, likelihoods, priors
from bayesieve.assess.predict import RealPrediction, predict
from bayesieve.checks import check_fraction
from bayesieve.core.posterior import Posterior
from bayesieve.engines import Engine
from bayesieve.estimators.importance import PopulationFits
from bayesieve.estimators.population import Training, stacked
from bayesieve.nets import mlp
from bayesieve.select import (
    PROPORTIONS,
    AdditiveFits,
    HingeBasis,
    additive_network,
    choose_proportion,
    feature_importance,
    folds,
    normalised,
    select_fdr,
    select_fraction,
    weight_log_bayes_factors,
)
from bayesieve.select.importance import by_input, matrices_of
from bayesieve.select.selection import RULES
from studies.harness import seeded
from studies.knockoffs import gaussian_knockoffs, knockoff_select, knockoff_statistic
from studies.simulations import Simulation, additive, two_inputs
from studies.uci_networks import without_least

NetName = Literal["20-10", "additive"]
_WIDTHS = (20, 10)
_MOST_COMPARED = 0.5


@dataclass(frozen=True)
class Scale:
    """Amount of work."""

    n_sets: int = 20  # simulated data sets per cell of a table
    alphas: tuple[int, ...] = tuple(range(1, 11))  # effect sizes are j / alpha
    dims: tuple[int, ...] = (50, 100, 200)  # numbers of inputs
    # π, chances of an input to enter
    shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    fdr_sets: int = 100  # data sets of the test of error control
    n_folds: int = 10  # of the cross-validated proportion
    epochs: int = 150  # of the 20-10 network
    additive_epochs: int = 100  # of the additive network
    fold_epochs: int = 20  # of the many additive networks that rank the inputs of every fold
    device: str = "cpu"  # where to train
    at_once: int = 512  # networks per population
    # which networks select inputs, where both may
    nets: tuple[NetName, ...] = ("20-10", "additive")


QUICK = Scale(2, (2,), (50,), (0.2, 0.5), 4, 3, 40, 40, 30, at_once=64)


@dataclass(frozen=True, eq=False)
class Tables:
    """Simulations of one width in one table, and the rows of each."""

    sims: Sequence[Simulation]
    x: Tensor  # training inputs of all simulations, one below the other, (n_sets · n, D)
    y: Tensor  # their standardised targets
    rows: list[Tensor]  # of each simulation
    active: Tensor  # inputs that enter, (n_sets, D)

    @classmethod
    def of(cls, sims: Sequence[Simulation]) -> "Tables":
        """Simulations that all have the same number of rows."""
        x, y, rows = stacked([(sim.data.train.x, sim.data.train.y) for sim in sims])
        return cls(sims, x, y, list(rows.index), torch.stack([sim.active for sim in sims]))


def engine_of(net: NetName) -> Engine[Any]:
    """The sBNN of a network: close scales for hidden layers, a narrow spike for effects."""
    if net == "20-10":
        return SBNN(priors.SpikeSlab(1.0, math.exp(-2)), 5e-3, 0.018, local=True)
    return SBNN(priors.SpikeSlab(math.exp(-1), math.exp(-4)), 1e-2, 0.01, local=True)


def fits_of(
    tables: Tables, net: NetName, scale: Scale, x: Tensor | None = None, *,
    learned_noise: bool = False,
) -> PopulationFits:  # fmt: skip
    """Fits of the simulations of a table, as one population.

    Where few inputs matter, the 20-10 network tells them best when it takes all of the target's
    variance for noise; where all do, and to predict, it must learn how much of it is
    (`learned_noise`).
    """
    inputs = tables.x if x is None else x
    model: nn.Module
    if net == "20-10":
        model = seeded(0, mlp, inputs.shape[1:], 1, _WIDTHS)
        likelihood = likelihoods.Gaussian(1.0, learned=learned_noise)
    else:
        model, likelihood = additive_network(inputs), likelihoods.Gaussian(0.5, learned=True)
    epochs = scale.epochs if net == "20-10" else scale.additive_epochs
    training = Training(epochs, 100, seed=3, at_once=scale.at_once, device=scale.device)
    return PopulationFits(inputs, tables.y, model, likelihood, engine_of(net), training)


@dataclass(frozen=True, eq=False)
class RankedByNetworks(AdditiveFits):
    """Additive models whose inputs are ranked by trained networks, not by the joint posterior."""

    training: Training = field(default_factory=Training)

    def importance(self, rows: Sequence[Tensor]) -> Tensor:
        """φ of additive networks on each set of rows, (k, D); their hinges are computed once."""
        basis, *layers = additive_network(self.x)
        assert isinstance(basis, HingeBasis)
        noise = likelihoods.Gaussian(0.5, learned=True)
        fits = PopulationFits(
            basis(self.x), self.y, nn.Sequential(*layers), noise, engine_of("additive"),
            self.training,
        )  # fmt: skip
        psi = torch.stack([feature_importance(q).psi.cpu() for (q,) in fits.posteriors(rows)])
        present = basis.present.cpu()
        return normalised((psi.unflatten(-1, present.shape) * present).mean(-1))


def additive_fits(tables: Tables, scale: Scale, epochs: int | None = None) -> RankedByNetworks:
    """The additive network again, for what asks for importances and errors only: faster."""
    training = Training(
        epochs or scale.additive_epochs, 100, seed=3, at_once=scale.at_once, device=scale.device
    )
    return RankedByNetworks(tables.x, tables.y, training=training)


def two_input_importance(scale: Scale) -> list[dict[str, float]]:
    """Experiment 1: ψ of two inputs against the share of variance the second explains."""
    mixes = [round(0.05 * i, 2) for i in range(21)]
    tables = Tables.of([two_inputs(mix=mix, seed=i) for i, mix in enumerate(mixes)])
    numbers = fits_of(tables, "20-10", scale).posteriors(tables.rows)
    rows = []
    for mix, (q,) in zip(mixes, numbers, strict=True):
        first, second = feature_importance(q).psi.tolist()
        share = mix**2 / ((1 - mix) ** 2 + mix**2 + 1)
        rows.append({"mix": mix, "share": share, "psi_1": first, "psi_2": second})
    return rows


def importance_against_effects(scale: Scale, net: NetName) -> list[dict[str, Any]]:
    """Experiment 2: correlation of φ with the effect sizes when every input enters."""
    rows = []
    for d, nonlinear in product((20, 100), (False, True)):
        sims = [additive(2000, d, 1.0, a, nonlinear, seed=50 + i)
                for a in scale.alphas for i in range(min(scale.n_sets, 5))]  # fmt: skip
        tables = Tables.of(sims)
        phi = fits_of(tables, net, scale, learned_noise=True).importance(tables.rows)
        numbers = [float(torch.corrcoef(torch.stack([p, sim.coefficients]))[0, 1])
                   for p, sim in zip(phi, sims, strict=True)]  # fmt: skip
        per = len(numbers) // len(scale.alphas)
        for i, alpha in enumerate(scale.alphas):
            correlation = sum(numbers[i * per : (i + 1) * per]) / per
            rows.append({"d": d, "nonlinear": nonlinear, "alpha": alpha, "net": net,
                         "correlation": correlation})  # fmt: skip
    return rows


def fixed_fraction_accuracy(scale: Scale, net: NetName, d: int) -> list[dict[str, Any]]:
    """Experiment 3: share of inputs told rightly when the best 20 % are kept, π = 0.2."""
    sims = [additive(2000, d, 0.2, a, seed=100 * a + i)
            for a in scale.alphas for i in range(scale.n_sets)]  # fmt: skip
    tables = Tables.of(sims)
    fits = fits_of(tables, net, scale) if net == "20-10" else additive_fits(tables, scale)
    keep = select_fraction(fits.importance(tables.rows), 0.2)
    right = (keep == tables.active).double().mean(1)
    effects = torch.stack([sim.coefficients * sim.active for sim in sims])
    oracle = (select_fraction(effects, 0.2) == tables.active).double().mean(1)
    by_alpha = (scores.view(-1, scale.n_sets) for scores in (right, oracle))
    return [
        {"d": d, "alpha": alpha, "net": net, "accuracy": float(ours.mean()),
         "lowest": float(ours.min()), "oracle": float(best.mean())}
        for alpha, ours, best in zip(scale.alphas, *by_alpha, strict=True)
    ]  # fmt: skip


def cross_validated_accuracy(scale: Scale, share: float, d: int) -> dict[str, Any]:
    """Experiment 3 with the proportion chosen by cross-validation, and what is gained by a refit.

    The inputs are ranked by additive networks; what a proportion of them is worth is computed in
    closed form (`AdditiveFits`). The networks that are compared are the paper's 20-10, up to
    π = 0.5: beyond, 20 units are too few for any of them.
    """
    tables = Tables.of([additive(2000, d, share, 2.0, seed=5000 + i) for i in range(scale.n_sets)])
    fits = additive_fits(tables, scale, scale.fold_epochs)
    pieces = [folds(len(rows), scale.n_folds, torch.Generator().manual_seed(i))
             for i, rows in enumerate(tables.rows)]  # fmt: skip
    train, test = [], []
    for rows, (kept_folds, left_folds) in zip(tables.rows, pieces, strict=True):
        train += [rows[fold] for fold in kept_folds]
        test += [rows[fold] for fold in left_folds]
    importance = fits.importance(train)
    keep = torch.stack([select_fraction(importance, s) for s in PROPORTIONS], 1)
    n = len(PROPORTIONS)
    errors = fits.errors([r for r in train for _ in range(n)], [r for r in test for _ in range(n)],
                         keep.flatten(0, 1)).view(scale.n_sets, scale.n_folds, n)  # fmt: skip
    ranking = additive_fits(tables, scale).importance(tables.rows)
    record: dict[str, Any] = {"share": share, "d": d, "proportions": list(PROPORTIONS),
                              "path": errors[0].mean(0).tolist()}  # fmt: skip
    kept = torch.zeros_like(tables.active)
    for rule in RULES:
        chosen = [choose_proportion(PROPORTIONS, paths, rule=rule).proportion for paths in errors]
        kept = torch.stack([select_fraction(phi, p)
                            for phi, p in zip(ranking, chosen, strict=True)])  # fmt: skip
        right = (kept == tables.active).double().mean(1)
        record[rule] = {"accuracy": float(right.mean()), "lowest": float(right.min()),
                        "proportion": sum(chosen) / len(chosen)}  # fmt: skip
    top = select_fraction(ranking, 0.2)
    record["fixed"] = {"accuracy": float((top == tables.active).double().mean())}
    if share <= _MOST_COMPARED:
        record["mse"] = refit_errors(tables, kept, scale)
    return record


def refit_errors(tables: Tables, keep: Tensor, scale: Scale) -> dict[str, float]:
    """Test error, in units of the target's variance, of the networks the paper compares."""
    fits = fits_of(tables, "20-10", scale, learned_noise=True)
    every, shape = torch.ones_like(keep), keep.shape[1:]
    rows: dict[str, list[Posterior]] = {
        "refit": [q for (q,) in fits.posteriors(tables.rows, keep)],
        "full BNN": [q for (q,) in fits.posteriors(tables.rows)],
    }
    for name, dropout in (("NN", 0.0), ("NN + dropout", 0.2)):
        model = seeded(0, mlp, shape, 1, _WIDTHS, dropout=dropout)
        points = PopulationFits(
            tables.x, tables.y, model, likelihoods.Gaussian(1.0), MAP(lr=3e-3), fits.training
        )
        rows[name] = [q for (q,) in points.posteriors(tables.rows)]
    additive_fits = fits_of(tables, "additive", scale)
    rows["additive refit"] = [q for (q,) in additive_fits.posteriors(tables.rows, keep)]
    masks = {"refit": keep, "additive refit": keep}
    errors = {
        name: _mean_error(tables, nets, masks.get(name, every)) for name, nets in rows.items()
    }
    return {**errors, "linear": _linear_error(tables)}


def pruning_curve(scale: Scale, share: float, d: int) -> list[dict[str, float]]:
    """Experiment 4: test error against the share of weights removed from 20-10 in one shot."""
    tables = Tables.of([additive(2000, d, share, 2.0, seed=8000 + i) for i in range(scale.n_sets)])
    numbers = [q for (q,) in fits_of(tables, "20-10", scale).posteriors(tables.rows)]
    every, rows = torch.ones_like(tables.active), []
    for removed in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        pruned = [without_least(q, removed) for q in numbers]
        rows.append({"share": share, "removed": removed,
                     "mse": _mean_error(tables, pruned, every)})  # fmt: skip
    return rows


def feature_evidence(posterior: Posterior, prior_prob: float | None = None) -> Tensor:
    """How far the weights of an input speak for it under mean-field inference, (D,), 0 to 1.

    It compares "each of the K weights that leave input j is present with probability q = 1/K, one
    of them at least" with "none is":

        B_j = [Π_i (1 - q + q B_ij) - (1 - q)^K] / [1 - (1 - q)^K],   logit P_j = log B_j + logit π

    with B_ij = p(D) / p(D | w_ij = 0) by Savage and Dickey. P_j would be a probability if the
    weights were independent in the posterior; of correlated inputs it is far off, so error control
    in the package uses `select.joint_posterior`.

    Args:
        posterior: of a fully connected network.
        prior_prob: π; None estimates it as the share of inputs that matter.
    """
    first = matrices_of(posterior, weight_log_bayes_factors(posterior))[0]
    columns, present = by_input(posterior, first)
    evidence = log_bayes_factor(columns.transpose(0, 1).flatten(1), present.repeat(1, len(first)))
    return probability_from_evidence(evidence, prior_prob)


def log_bayes_factor(evidence: Tensor, present: Tensor | None = None) -> Tensor:
    """Log B of "some of these K weights matter, each with chance 1/K" against "none", (...,).

    Args:
        evidence: (..., K), log Bayes factor of each weight alone.
        present: (..., K) bool, the weights that count among the K; None counts all. Where none is
            left the result is -inf: nothing there can matter.

    Example:
        >>> log_bayes_factor(torch.tensor([[2.0], [-1.0]]))  # one weight each
        tensor([ 2., -1.])
        >>> log_bayes_factor(torch.tensor([[2.0, 0.0]]), torch.tensor([[True, False]]))
        tensor([2.])
    """
    log_b = evidence.double()
    if present is None:
        present = torch.ones_like(log_b, dtype=torch.bool)
    k = present.sum(-1)
    many = k.clamp_min(2).double()  # one weight needs no formula, see the last line
    without = torch.log1p(-1 / many)  # log (1 - q)
    each = torch.logaddexp(without[..., None].expand_as(log_b), log_b - many.log()[..., None])
    none = many * without
    gain = torch.where(present, each, 0.0).sum(-1) - none  # >= 0
    # log(e^gain - 1) without overflow
    growth = torch.where(gain > 30, gain, gain.clamp(max=30).expm1().log())
    combined = growth + none - (-none.expm1()).log()
    alone = torch.where(present, log_b, -torch.inf).amax(-1)  # -inf where there is none at all
    return torch.where(k > 1, combined, alone).to(evidence.dtype)


def probability_from_evidence(evidence: Tensor, prior_prob: float | None = None) -> Tensor:
    """P = sigmoid(evidence + logit π) of D inputs, (D,); None finds π = mean P.

    Example:
        >>> probability_from_evidence(torch.tensor([9.0, -9.0, -9.0]), 0.5).round().tolist()
        [1.0, 0.0, 0.0]
    """
    if prior_prob is not None:
        check_fraction("feature_evidence", open_ends=True, prior_prob=prior_prob)
        return torch.sigmoid(evidence + math.log(prior_prob / (1 - prior_prob)))
    d, share = len(evidence), 0.5
    for _ in range(200):
        probability = torch.sigmoid(evidence + math.log(share / (1 - share)))
        # Half an input on either side: a share of 0 or 1 could never be left again.
        renewed = (float(probability.sum()) + 0.5) / (d + 1)
        if abs(renewed - share) < 1e-6:
            break
        share = renewed
    return torch.sigmoid(evidence + math.log(share / (1 - share)))


def false_discoveries(
    scale: Scale, d: int, level: float = 0.1, first_seed: int = 20_000
) -> dict[str, Any]:
    """Realised false-discovery rate and power at a level, by the posterior and by knockoffs."""
    n = scale.fdr_sets
    tables = Tables.of([additive(2000, d, 0.2, 2.0, seed=first_seed + i) for i in range(n)])
    kept: dict[str, list[Tensor]] = {"posterior": [], "posterior 20-10": [], "knockoffs": []}
    for net, label in (("additive", "posterior"), ("20-10", "posterior 20-10")):
        for (q,) in fits_of(tables, net, scale).posteriors(tables.rows):  # type: ignore[arg-type]
            kept[label].append(select_fdr(feature_evidence(q), level).cpu())
    source = torch.Generator().manual_seed(first_seed)
    x = tables.x
    copies = torch.cat([gaussian_knockoffs(x[rows], source) for rows in tables.rows])
    both = fits_of(tables, "additive", scale, torch.cat([x, copies], 1))
    for phi in both.importance(tables.rows):
        kept["knockoffs"].append(knockoff_select(knockoff_statistic(phi), level))
    rates = {rule: _rates(torch.stack(masks), tables.active) for rule, masks in kept.items()}
    return {"level": level, "n_sets": n, "d": d, **rates}


def _rates(keep: Tensor, active: Tensor) -> dict[str, float]:
    wrong = (keep & ~active).sum(1) / keep.sum(1).clamp_min(1)
    power = (keep & active).sum(1) / active.sum(1).clamp_min(1)
    n = len(keep) ** 0.5
    return {"fdr": float(wrong.mean()), "fdr_standard_error": float(wrong.std()) / n,
            "power": float(power.mean()), "power_standard_error": float(power.std()) / n,
            "kept": float(keep.double().sum(1).mean())}  # fmt: skip


def _mean_error(tables: Tables, models: Sequence[Posterior], keep: Tensor) -> float:
    errors = []
    for sim, model, mask in zip(tables.sims, models, keep, strict=True):
        numbers = predict(model, sim.data.test.x * mask)
        assert isinstance(numbers, RealPrediction)
        errors.append((numbers.mean[:, 0].cpu() - sim.data.test.y).square().mean())
    return float(torch.stack(errors).mean())


def _linear_error(tables: Tables) -> float:
    errors = []
    for sim in tables.sims:
        design = torch.cat([sim.data.train.x, torch.ones(len(sim.data.train), 1)], 1)
        weights = torch.linalg.lstsq(design, sim.data.train.y[:, None]).solution
        at = torch.cat([sim.data.test.x, torch.ones(len(sim.data.test), 1)], 1)
        errors.append(((at @ weights)[:, 0] - sim.data.test.y).square().mean())
    return float(torch.stack(errors).mean())
