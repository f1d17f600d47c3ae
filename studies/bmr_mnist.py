"""Sparse networks on MNIST with stochastic Bayesian model reduction.

    python -m studies.bmr_mnist --full --seeds 3 --out results/bmr_mnist.json
    python -m studies.bmr_mnist --settings l300-98.5 --held-out
    python -m studies.bmr_mnist --settings l300-98.5 --chosen "spikes, evidence kl .3"
    python -m studies.bmr_mnist --quick              # minutes on two CPU cores

Protocol: no augmentation, pixels / 126, batch 128. Sparsity is strict: zeros over all parameters,
biases included. Each row has a few candidate trainings (`ROWS`). They are compared by
the NLL of 5,000 held-out training images (the rest is trained on); the best one that is sparse
enough is trained again on all 60,000 and the test images are read once. `--held-out` stops before
that. Candidates called "spikes" are model reduction of a spike-and-slab posterior (SBNN); the
others have the paper's prior, a learned width per layer.

Published for LeNet-300-100: Sparse VD ([Molchanov]) 1.92 % at 98.5 % zeros, [Saha] 1.94 % at 95 %.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from bayesieve import SBNN, Problem, Schedule, likelihoods, load_data, priors
from bayesieve.checks import check_choice
from bayesieve.data.examples import DataSet, Examples
from bayesieve.engines import Engine
from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.sieve.evidence import weight_evidence
from bayesieve.sieve.ranking import Score, ScoreName
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.fit import Fit
from bayesieve.training.launch import fit
from studies import harness
from studies.harness import Run, chosen, make_row, study_parser
from studies.images import mean_and_draws
from studies.sbnn_mnist import build


@dataclass(frozen=True)
class Numbers:
    """Numbers that may differ between the models of one population."""

    lr: float = 1e-2  # learning rate; of layers with learned widths in units of the width
    init_std: float = 0.18  # starting std of the weights, in the same units
    width: float = 0.1  # of the layers (γ₀), or of the slab
    last_width: float = 1.0  # of the last layer
    spike: float = math.exp(-3)  # width of the spike; only for "spike-slab"
    # of the Gamma prior of c⁻², and its rate; a large one holds the widths where they are
    shape: float = 2.0


_SBNN = Numbers(lr=1e-3, init_std=math.exp(-4), width=math.exp(-1))


@dataclass(frozen=True)
class Candidate:
    """One way to train a row."""

    # how the engine prunes by itself: weights with ΔF > 0 ("savage-dickey"), ΔF > ζ with a learned
    # ζ per layer ("layer"; both spare the last layer) or one for all weights ("global"), or not at
    # all ("none")
    prunes: Literal["savage-dickey", "layer", "global", "none"] = "savage-dickey"
    # which weights go until the row's zeros are reached: those of least "evidence" (ΔF) or "snr";
    # "none" leaves it to the engine
    top_up: Literal["evidence", "snr", "none"] = "snr"
    kl: float = 0.1  # weight of the KL until pruning ends
    kl_after: float = 1.0  # weight afterwards
    prune_epochs: tuple[int, int] = (16, 90)  # first and last epoch of pruning
    # "layers" (normal, a learned width per layer: the paper's) or "spike-slab"
    prior: Literal["layers", "spike-slab"] = "layers"
    numbers: Numbers = Numbers()  # of the engine

    def __post_init__(self) -> None:
        if self.prunes == self.top_up == "none":
            raise ValueError("bmr_mnist: a candidate must prune by itself or be topped up.")
        if self.prior == "spike-slab" and self.prunes != "none":
            raise ValueError("bmr_mnist: SBNN does not prune by itself; give prunes='none'.")

    @property
    def reduction(self) -> Reduction | None:
        """Pruning by the engine; None where it does not prune. Fractions are set by the row."""
        if self.prunes == "none":
            return None
        if self.prunes == "savage-dickey":
            return Reduction("savage-dickey")
        return Reduction("hierarchical", scope=self.prunes, spare_last=self.prunes == "layer")

    def engine(self, epochs: int) -> Engine[Any]:
        """The engine in a run of some epochs."""
        n = self.numbers
        if self.prior == "spike-slab":
            prior = priors.SpikeSlab(n.width, n.spike, 0.5)
            return SBNN(prior, lr=n.lr, init_std=n.init_std, start="he", local=True)
        reduction = self.reduction
        if reduction is not None:  # then the engine turns the dial of the KL
            first, last = self.fractions(epochs)
            reduction = replace(reduction, start=first, end=last, kl=self.kl / self.kl_after)
        widths = priors.LayerScaled(n.width, n.last_width, n.shape, n.shape)
        return BMR(widths, reduction, lr=n.lr, init_std=n.init_std, start="he", local=True)

    def schedule(self) -> Schedule:
        """Learning rate and weight of the KL."""
        if self.prunes != "none":
            return Schedule(lr="cosine", kl=self.kl_after, kl_warmup_epochs=10)
        return Schedule(lr="cosine", kl=self.kl, kl_after=self.kl_after, kl_warmup_epochs=10)

    def pruning(self, zeros: float, epochs: int) -> GradualPruning | None:
        """Pruning beside the engine."""
        if self.top_up == "none":
            return None
        score: Score | ScoreName = self.top_up  # under the prior of the posterior, if it has one
        if self.top_up == "evidence" and self.prior == "layers":
            score = weight_evidence("savage-dickey", prior_std="empirical")
        first, last = self.fractions(epochs)
        return GradualPruning(zeros, start=first, end=last, score=score)

    def fractions(self, epochs: int) -> tuple[float, float]:
        """First and last point of pruning as fractions of a run."""
        return self.prune_epochs[0] / epochs, self.prune_epochs[1] / epochs


@dataclass(frozen=True)
class Goal:
    """A network, a sparsity, and the trainings to choose from."""

    net: str  # "l300" or "l5"
    zeros: float  # fraction of zeros over all parameters to reach
    target: float  # error (a fraction) to reach
    epochs: int  # passes over the data
    candidates: dict[str, Candidate]  # by name


def together(candidates: Mapping[str, Candidate]) -> list[list[str]]:
    """Names of candidates that can be trained as one population, group by group.

    Example:
        >>> a, b = Candidate(), Candidate(kl=0.3)
        >>> together({"a": a, "b": b, "c": replace(a, numbers=Numbers(lr=1e-3))})
        [['a', 'c'], ['b']]
    """
    groups: dict[Candidate, list[str]] = {}
    for label, candidate in candidates.items():
        groups.setdefault(replace(candidate, numbers=Numbers()), []).append(label)
    return list(groups.values())


_EVIDENCE = Candidate("none", "evidence", 0.3, prune_epochs=(20, 90))
_SPIKES = replace(_EVIDENCE, prior="spike-slab", numbers=_SBNN)
_SLOW = Numbers(lr=3e-3, last_width=0.1)
_L300 = {
    "savage-dickey": Candidate(top_up="none"),
    "savage-dickey, topped up": Candidate(),
    "savage-dickey kl .03, topped up": Candidate(kl=0.03),
    "savage-dickey, slow, topped up": Candidate(numbers=_SLOW),
    "one zeta, topped up": Candidate(prunes="global"),
    "zeta per layer, topped up": Candidate(prunes="layer"),
    "snr kl .1": Candidate(prunes="none"),
    "snr kl .3": Candidate(prunes="none", kl=0.3),
    "evidence kl .3": _EVIDENCE,
    "evidence kl .3, last width .1": replace(_EVIDENCE, numbers=Numbers(last_width=0.1)),
    "evidence kl .3, slow": replace(_EVIDENCE, numbers=_SLOW),
    "evidence kl .3, slow, last width 1": replace(_EVIDENCE, numbers=Numbers(lr=3e-3)),
    "evidence kl .3, fixed widths": replace(
        _EVIDENCE, numbers=Numbers(3e-3, 0.06, 0.3, last_width=0.3, shape=1e6)
    ),
    "spikes, evidence kl .3": _SPIKES,
    "spikes, evidence kl .3, until 120": replace(_SPIKES, prune_epochs=(20, 120)),
    "spikes, evidence kl .3, until 70": replace(_SPIKES, prune_epochs=(20, 70)),
    "spikes, evidence kl .2": replace(_SPIKES, kl=0.2),
    "spikes, evidence kl .5": replace(_SPIKES, kl=0.5),
    "spikes, evidence kl .3, lr 2e-3": replace(_SPIKES, numbers=replace(_SBNN, lr=2e-3)),
    "spikes, evidence kl .3, lr 5e-4": replace(_SPIKES, numbers=replace(_SBNN, lr=5e-4)),
}
_L5 = {
    "savage-dickey, topped up": Candidate(kl_after=0.3, prune_epochs=(8, 42)),
    "savage-dickey kl .03, topped up": Candidate(kl=0.03, kl_after=0.3, prune_epochs=(8, 42)),
    "snr kl .1": Candidate(prunes="none", kl_after=0.3, prune_epochs=(8, 42)),
    "snr kl .3": Candidate(prunes="none", kl=0.3, kl_after=0.3, prune_epochs=(8, 42)),
}
ROWS = {
    "l300-97.6": Goal("l300", 0.976, 0.0170, 160, _L300),
    "l300-98.5": Goal("l300", 0.985, 0.0170, 160, _L300),
    "l5-99.2": Goal("l5", 0.992, 0.0090, 70, _L5),
}


def train(
    goal: Goal, candidates: Sequence[Candidate], data: Examples, seeds: int, device: str
) -> Fit:
    """All seeds of candidates that differ in numbers only, as one population."""
    problem = Problem(build(goal.net), likelihoods.Categorical(), data).to(device)
    engines = [one.engine(goal.epochs) for one in candidates for _ in range(seeds)]
    first = candidates[0]
    return fit(
        problem, engines, epochs=goal.epochs, seed=1, schedule=first.schedule(),
        pruning=first.pruning(goal.zeros, goal.epochs),
    )  # fmt: skip


def scored(
    name: str, goal: Goal, label: str, run: Fit, data: Examples, members: Sequence[int]
) -> harness.Row:
    """The row of one candidate: errors, and the weights left in each layer."""
    layout, names = run.problem.layout, ("error", "nll", "ece", "zeros")
    each: list[dict[str, Any]] = []
    for member in members:
        sparse = run.sparse(member)
        kept = {name: int(sparse.keep[layout.slices[name]].sum()) for name in layout.names
                if layout.slices[name].start < layout.n_sparse}  # fmt: skip
        each.append({**mean_and_draws(sparse, data, names, names[:3]), "kept": kept})
    metrics = {"zeros_min": min(one["zeros"] for one in each), "fit_seconds": run.seconds,
               "trained_together": run.n_models}  # fmt: skip
    return make_row(name, setting_of(goal, label), each, seeds=len(each), seconds=run.seconds,
                    metrics=metrics)  # fmt: skip


def setting_of(goal: Goal, label: str) -> dict[str, Any]:
    """Everything that decides the numbers of one candidate."""
    return {"net": goal.net, "zeros": goal.zeros, "target": goal.target, "epochs": goal.epochs,
            "label": label, "candidate": asdict(goal.candidates[label])}  # fmt: skip


def choose(tried: Mapping[str, harness.Row], zeros: float) -> str:
    """The candidate of least held-out NLL among those sparse enough (else the sparsest).

    By the likelihood and not by the error: one standard error of 100 mistakes is 10, more than
    most candidates differ by.

    Example:
        >>> tried = {"a": {"metrics": {"mc_nll": 0.08, "zeros_min": 0.99}},
        ...          "b": {"metrics": {"mc_nll": 0.07, "zeros_min": 0.90}}}
        >>> choose(tried, 0.98)
        'a'
    """
    result = {label: row["metrics"] for label, row in tried.items()}
    enough = [label for label, one in result.items() if one["zeros_min"] >= zeros - 1e-4]
    if not enough:
        return max(result, key=lambda label: result[label]["zeros_min"])
    return min(enough, key=lambda label: result[label]["mc_nll"])


def compare(
    name: str, goal: Goal, data: DataSet, seeds: int, device: str
) -> dict[str, harness.Row]:
    """Rows of every candidate on held-out training images, by label."""
    data = harness.splits(data, held_out=True)
    tried = {}
    for labels in together(goal.candidates):
        candidates = [goal.candidates[label] for label in labels]
        run = train(goal, candidates, data.train, seeds, device)
        for i, label in enumerate(labels):
            members = range(i * seeds, (i + 1) * seeds)
            row = scored(f"{name}/{label}", goal, label, run, data.test, members)
            tried[label] = {**row, "scored_on": "held-out"}
    return tried


def final(name: str, goal: Goal, label: str, data: DataSet, seeds: int, device: str) -> harness.Row:
    """The row of one candidate trained on all training images; reads the test images once."""
    started = time.perf_counter()
    run = train(goal, [goal.candidates[label]], data.train, seeds, device)
    row = scored(name, goal, label, run, data.test, range(seeds))
    return {**row, "seconds": time.perf_counter() - started}


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen rows and write one record."""
    parser = study_parser(__doc__, quick="one seed, 6 epochs, 12,000 images", full="all rows",
                          seeds=3)  # fmt: skip
    parser.add_argument("--settings", default="l300-97.6", help=f"comma list of {list(ROWS)}")
    parser.add_argument("--only", help="candidates separated by ;, all unless given")
    aim = parser.add_mutually_exclusive_group()
    aim.add_argument("--held-out", action="store_true", help="do not read the test images")
    aim.add_argument("--chosen", help="candidate to test, without comparing it again")
    options = parser.parse_args(arguments)
    names = list(ROWS) if options.full else chosen("bmr_mnist", "setting", options.settings, ROWS)
    data = load_data("mnist")
    if options.quick:
        data, options.seeds = harness.splits(data, few=12_000), 1
    run = Run("bmr_mnist", arguments, options, data=data.name)
    show = ("error", "mc_error", "mc_nll", "zeros_min")
    for name in names:
        goal = ROWS[name]
        if options.quick:  # one candidate
            label, one = next(pair for pair in goal.candidates.items() if pair[1].top_up != "none")
            goal = replace(goal, epochs=6, candidates={label: replace(one, prune_epochs=(1, 4))})
        only = options.chosen or options.only
        if only:
            labels = [label.strip() for label in only.split(";")]
            for label in labels:
                check_choice("bmr_mnist", "candidate", label, goal.candidates)
            goal = replace(goal, candidates={label: goal.candidates[label] for label in labels})
        best = options.chosen
        if best is None:
            known = {label: run.find(f"{name}/{label}", setting_of(goal, label))
                     for label in goal.candidates}  # fmt: skip
            tried = {label: row for label, row in known.items() if row is not None}
            left = {label: one for label, one in goal.candidates.items() if label not in tried}
            new = compare(name, replace(goal, candidates=left), data, options.seeds, options.device)
            for row in new.values():
                run.add(row, show)
            best = choose({**tried, **new}, goal.zeros)
        if not options.held_out and run.wants(name, setting_of(goal, best)):
            run.add(final(name, goal, best, data, options.seeds, options.device), show)
    return run.finish(show)


if __name__ == "__main__":
    raise SystemExit(main())
