"""The work of `bayesieve sieve`: check the weights, Laplace around them, reduce."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from bayesieve.checks import check_choice, check_fraction
from bayesieve.core.posterior import Factorised, Posterior, SparseModel
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.errors import UsageError
from bayesieve.runs.build import build_data, build_module, make_plan
from bayesieve.runs.config import DataConfig, EngineConfig, NetConfig, RunConfig, TrainingConfig
from bayesieve.runs.results import curve_of
from bayesieve.runs.run import Run
from bayesieve.runs.sparse import Pruned
from bayesieve.runs.text import markdown_table
from bayesieve.sieve.evidence import (
    evidence_report,
    prune_by_evidence,
    prune_units_by_evidence,
    weight_evidence,
)
from bayesieve.sieve.prune import prune, reestimate_batchnorm
from bayesieve.sieve.rules import keep_zeros
from bayesieve.training.laplace import laplace
from bayesieve.training.unit_laplace import laplace_units

SCORE: Final = "snr"  # which weights go first when a number of zeros is asked for
_BATCH = 1024
_LEAST_NOISE = 1e-4  # of standardised targets; a network that repeats its data has a residual of 0
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Way:
    """How much goes, and how that is judged; `zeros` and `threshold` exclude each other."""

    zeros: float | None
    threshold: float | None
    rule: str
    curvature: str
    labels: str
    seed: int
    reestimate_batchnorm: bool = False

    def __post_init__(self) -> None:
        check_choice("sieve", "--curvature", self.curvature, ("unit", "diagonal"))
        check_choice("sieve", "--rule", self.rule, ("hierarchical", "savage-dickey"))
        check_choice("sieve", "--labels", self.labels, ("sampled", "exact"))
        if self.threshold is not None:
            check_fraction("sieve", threshold=self.threshold)
        if self.zeros is not None:
            check_fraction("sieve", zeros=self.zeros)

    def to_dict(self) -> dict[str, Any]:
        """What was chosen, ready for JSON."""
        chosen = asdict(self).items()
        return {name: value for name, value in chosen if value is not None and value is not False}

    @property
    def least(self) -> float:
        """Probability of being needed that keeps a weight; 0 keeps all."""
        return 0.5 if self.threshold is None else self.threshold

    def __call__(self, problem: Problem) -> tuple[Factorised, SparseModel]:
        """The posterior around the trained weights, and the same without what goes."""
        posterior, sparse = self._reduced(problem)
        if self.reestimate_batchnorm:
            sparse = reestimate_batchnorm(sparse, problem.x)
        return posterior, sparse

    def _reduced(self, problem: Problem) -> tuple[Factorised, SparseModel]:
        labels: Any = self.labels
        rule: Any = self.rule
        units = None
        if self.curvature == "unit":
            units = laplace_units(problem, labels=labels, seed=self.seed)
        posterior = units.posterior if units else laplace(problem, labels=labels, seed=self.seed)
        if self.zeros is not None:
            if units is not None:
                return posterior, prune_units_by_evidence(units, self.zeros)
            return posterior, prune(posterior, keep_zeros(self.zeros, score=SCORE))
        sparse = prune_by_evidence(posterior, weight_evidence(rule), threshold=self.least)
        return posterior, units.reduced(sparse.keep) if units else sparse

    def evidence(self, posterior: Posterior | SparseModel) -> list[str]:
        """A paragraph on what the evidence removes in each tensor; none where --zeros decides."""
        if self.zeros is not None:
            return []
        rule: Any = self.rule
        found = evidence_report(posterior, weight_evidence(rule), threshold=self.least)
        rows = [
            (name, f"{kept:,}", f"{total:,}", f"{log_odds:.2f}", f"{gained:.1f}")
            for name, kept, total, log_odds, gained in found
        ]
        header = ("tensor", "kept", "of", "prior log-odds", "evidence gained")
        words = (
            "What the evidence removes. **prior log-odds** that a weight is needed; **evidence "
            "gained**: sum over what goes of the log evidence that each gains alone, in nats."
        )
        return [words, markdown_table(header, rows)]


def sieve_trained(data: DataConfig, net: NetConfig, way: Way, device: str) -> tuple[Run, Pruned]:
    """Load trained weights, find their posterior and reduce it."""
    check_fits(Path(net.warm_start or ""), shapes_of(data, net))
    # What `prune --finetune` would go on with: the same family of posteriors around these weights.
    engine = EngineConfig(name="flat-vi", start="module")
    training = TrainingConfig(seed=way.seed, device=device)
    plan = make_plan(RunConfig(data=data, net=net, engine=engine, training=training))
    if plan.problem.likelihood.normal_noise is not None:
        # Trained weights come without a noise level, and curvature is in its units.
        known = replace(net, noise_std=residual(plan.problem), learn_noise=True)
        plan = make_plan(RunConfig(data=data, net=known, engine=engine, training=training))
    posterior, sparse = way(plan.problem.to(plan.device))
    assert isinstance(posterior.prior, Normal)
    width = posterior.prior.std
    config = replace(plan.config, engine=replace(plan.config.engine, prior_std=width))
    run = Run(config, plan.data, plan.data.train, None, posterior)
    curve = curve_of(posterior, plan.data.test, SCORE)
    return run, Pruned(sparse, curve, SCORE, [])


def residual(problem: Problem) -> float:
    """Root mean square of what the model's own weights leave of the training targets."""
    network, w = problem.network, problem.initial[None]
    buffers, total = network.buffers(), 0.0
    parts = zip(problem.x.split(_BATCH), problem.y.split(_BATCH), strict=True)
    for x, y in parts:
        left = network.outputs(w, x, buffers)[0].reshape(y.shape) - y
        total += left.double().square().sum().item()
    return max((total / problem.y.numel()) ** 0.5, _LEAST_NOISE)


def shapes_of(data: DataConfig, net: NetConfig) -> Shapes:
    """Name and shape of every tensor in the state dict of a network."""
    state = build_module(net, build_data(data, net), seed=0).state_dict()
    return {name: tuple(value.shape) for name, value in state.items()}


def check_fits(file: Path, expected: Shapes) -> None:
    """Raise unless a safetensors file holds exactly these tensors; names the first that differs."""
    if not file.is_file():
        raise UsageError(f"sieve: there is no file {file}.")
    try:
        with safe_open(file, framework="pt") as stream:
            found = {name: tuple(stream.get_slice(name).get_shape()) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"sieve: {file} cannot be read as safetensors ({error}). Write it with "
            "safetensors.torch.save_file(model.state_dict(), path)."
        ) from error
    for name, shape in expected.items():
        if name not in found:
            near = ", ".join(sorted(found)[:4])
            raise UsageError(f"sieve: {file} lacks {name!r} of --net; it has {near}, ...")
        if found[name] != shape:
            raise UsageError(
                f"sieve: {name!r} has shape {list(found[name])} in {file} but {list(shape)} in "
                "--net. Give the network it was trained as."
            )
    for name in found:
        if name not in expected:
            raise UsageError(f"sieve: {file} has {name!r}, which --net has not.")
