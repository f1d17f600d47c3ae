"""The work of `bayesieve prune`: choose a mask, train what is left, compare, write."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from bayesieve.assess.evaluate import evaluate
from bayesieve.core.posterior import SparseModel, has_spread
from bayesieve.core.problem import Problem
from bayesieve.core.storage import save
from bayesieve.engines.recipes import RunSize, build_engine
from bayesieve.errors import UsageError
from bayesieve.runs.build import build_likelihood, build_module, build_roles
from bayesieve.runs.config import RunConfig
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.pictures import draw_run
from bayesieve.runs.report import write_report
from bayesieve.runs.results import Curve, curve_of, numbers
from bayesieve.runs.run import Run
from bayesieve.sieve.prune import prune, reestimate_batchnorm
from bayesieve.sieve.rules import Rule, keep_n_of_m, keep_probable, keep_zeros
from bayesieve.sieve.unit_rules import keep_latency, keep_macs, keep_units
from bayesieve.training.fit import fit
from bayesieve.training.plan import Plan as Length
from bayesieve.training.schedule import Schedule


@dataclass(frozen=True)
class Choice:
    """What to remove: exactly one of the first six; the last three of these remove whole units."""

    zeros: float | None
    threshold: float | None
    n_of_m: tuple[int, int] | None
    keep_units: float | None
    target_macs: float | None
    target_latency: float | None
    score: str | None
    scope: str | None
    allow_empty_layers: bool
    finetune: int
    reestimate_batchnorm: bool

    def __post_init__(self) -> None:
        ways = (self.zeros, self.threshold, self.n_of_m)
        structured = (self.keep_units, self.target_macs, self.target_latency)
        if sum(way is not None for way in (*ways, *structured)) != 1:
            raise UsageError(
                "give one of --zeros, --threshold, --n-of-m, --keep-units, --target-macs and "
                "--target-latency."
            )
        if self.allow_empty_layers and any(way is not None for way in structured):
            raise UsageError("--allow-empty-layers is for single weights; units leave one.")
        if self.threshold is not None and self.score not in (None, "inclusion"):
            raise UsageError("--threshold is on inclusion probabilities; leave out --score.")
        if self.zeros is None and self.keep_units is None and self.scope is not None:
            raise UsageError("--scope needs --zeros or --keep-units.")
        if self.finetune < 0:
            raise UsageError(f"--finetune must be >= 0, got {self.finetune}.")

    def to_dict(self) -> dict[str, Any]:
        """What was chosen, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}

    def rule(self, default_score: str, example: Tensor) -> Rule:
        """The rule; library names are checked where it is made.

        Args:
            default_score: for single weights; units have their own.
            example: one input, (1, ...), to count or time.
        """
        given: Any = self.score
        if self.keep_units is not None:
            per: Any = self.scope or "layer"
            return keep_units(self.keep_units, given, per)
        if self.target_macs is not None:
            return keep_macs(self.target_macs, example, given)
        if self.target_latency is not None:
            return keep_latency(self.target_latency, example, given)
        score: Any = self.score or default_score
        if self.threshold is not None:
            return keep_probable(self.threshold, self.allow_empty_layers)
        if self.n_of_m is not None:
            return keep_n_of_m(*self.n_of_m, score)
        assert self.zeros is not None
        scope: Any = self.scope or "global"
        return keep_zeros(
            self.zeros, score=score, scope=scope, allow_empty_layers=self.allow_empty_layers
        )


@dataclass(frozen=True)
class Pruned:
    """A pruned run before it is written."""

    model: SparseModel
    curve: Curve
    score: str
    history: list[dict[str, Any]]


def sieve(run: Run, choice: Choice) -> Pruned:
    """Prune a run, fine-tune it if asked, and draw up the curve of all sparsities."""
    default: Any = "snr" if has_spread(run.model) else "magnitude"
    sparse = prune(run.model, choice.rule(default, run.data.test.x[:1]))
    score: Any = choice.score or default
    curve = curve_of(run.model, run.data.test, score)
    history: list[dict[str, Any]] = []
    if choice.reestimate_batchnorm:
        sparse = reestimate_batchnorm(sparse, run.train.x)
    if choice.finetune:
        sparse, history = _finetune(run, sparse, choice.finetune)
    return Pruned(sparse, curve, score, history)


def write_pruned(
    run: Run,
    pruned: Pruned,
    folder: RunFolder,
    record: dict[str, Any],
    *,
    figures: bool,
    remarks: Sequence[str] = (),
    origin: str | None = None,
) -> dict[str, Any]:
    """Write the folder of a pruned run; returns its metrics, with those before under "dense".

    `remarks` go into its report; `origin` says where weights come from that the run did not train.
    """
    data, model = run.data, pruned.model
    before = numbers(evaluate(run.model, data.test), run.model)
    result = numbers(evaluate(model, data.test), model)
    folder.clear()
    folder.create(run.config, record)
    save(model, folder.posterior, extra={"pruned": True})
    folder.write("curve.json", {"score": pruned.score, "points": pruned.curve})
    pictures = []
    if figures:
        pictures = draw_run(folder.path, model, data, history=pruned.history, curve=pruned.curve)
    rows = {"before": before, "sparse": result}
    name = run.config.net.name if origin else run.config.engine.name
    title = f"{name} on {data.name}, pruned"
    text = write_report(title, data, run.config, rows, pictures, remarks, origin)
    folder.write_text("report.md", text)
    result = {**result, "dense": before, "curve": pruned.curve}
    folder.write("metrics.json", result)
    return result


def _finetune(
    run: Run, sparse: SparseModel, epochs: int
) -> tuple[SparseModel, list[dict[str, Any]]]:
    """Train the kept weights from where they are, means and stds; the mask does not change."""
    config = run.config
    training = config.training
    problem = Problem(
        build_module(config.net, run.data, training.seed),
        build_likelihood(config.net, run.data),
        run.train,
        roles=build_roles(config.net),
    )
    assert training.batch_size is not None  # a run folder holds resolved settings
    length = Length.of(problem.n_data, epochs, None, training.batch_size)
    size = RunSize(problem.n_data, length.n_steps, length.per_epoch, may_prune=False)
    done = fit(
        problem.to(sparse.network.device),
        build_engine(config.engine, size),
        epochs=epochs,
        batch_size=training.batch_size,
        seed=training.seed,
        schedule=_schedule(config),
        start_from=sparse,
    )
    return SparseModel(done.posterior, sparse.keep), done.history


def _schedule(config: RunConfig) -> Schedule:
    kl = config.schedule.kl if config.schedule.kl_after is None else config.schedule.kl_after
    return Schedule(
        lr="cosine",
        kl=1.0 if kl is None else kl,
        minibatch=config.schedule.minibatch,
        clip_norm=config.training.clip_norm,
        compile=config.training.compile,
    )
