"""report.md and the pictures of a run folder: a page a newcomer can read.

Each picture is drawn only where it means something.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.assess.metrics import reliability_bins
from bayesieve.assess.predict import ClassPrediction, RealPrediction, has_spread, predict
from bayesieve.core.posterior import Model
from bayesieve.data import DataSet
from bayesieve.report.quality import target_columns
from bayesieve.runs.config import RunConfig
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.run import Curve, curve_points
from bayesieve.runs.text import quality_header, quality_row
from bayesieve.text import markdown_table
from bayesieve.uncertainty.familiarity import FILE, Familiarity, unavailable

_WORDS = {
    "classification": (
        "**error**: share of test examples classified wrongly. **NLL**: negative log-likelihood, "
        "nats per example; lower is better and punishes confident mistakes. **ECE**: expected "
        "calibration error, the gap between confidence and accuracy. "
    ),
    "regression": (
        "**RMSE**: root mean squared error in the unit of the target. **log-lik**: log density of "
        "the test targets, nats per example; higher is better. **90 % coverage**: share of targets "
        "inside the 90 % interval. "
    ),
}
_SIZE = (
    "**±**: the standard error that the choice of draws leaves; there are as many as bring it "
    "below 2 %, at most 256. **weights kept**: parameters that are not 0, biases "
    "counted. **bytes**: kept weights and where they sit, before `compact` cuts out whole units."
)


Picture = tuple[str, str]  # a file below the folder, and the sentence that goes with it


def write_summary(
    folder: RunFolder,
    config: RunConfig,
    data: DataSet,
    model: Model,
    rows: Mapping[str, Mapping[str, Any]],
    metrics: Mapping[str, Any],
    *,
    title: str,
    score: str,
    curve: Curve,
    history: Sequence[Mapping[str, Any]] = (),
    figures: bool = True,
    remarks: Sequence[str] = (),
    origin: str | None = None,
) -> None:
    """Write curve.json, familiarity, pictures, report.md and last metrics.json, which ends a run.

    Args:
        folder: the run folder.
        config: resolved settings.
        data: with the test examples.
        model: what is drawn.
        rows: results by label, for the table of the report.
        metrics: content of metrics.json.
        title: headline.
        score: which weights go first along the curve.
        curve: error against zeros.
        history: one row of metrics per epoch.
        figures: whether to draw pictures.
        remarks: further paragraphs.
        origin: where the weights come from; the engine and length of `config` unless given.
    """
    folder.write("curve.json", {"score": score, "points": curve})
    if not unavailable(data.train.x):
        folder.write(FILE, Familiarity.of(data.train.x).to_bytes())
    shown = draw_run(folder, model, data, history, curve) if figures else []
    table = markdown_table(
        quality_header(data.task), [quality_row(name, row) for name, row in rows.items()]
    )
    words = _WORDS[data.task] + _SIZE
    last = "Every setting is in `config.json`; evaluate again with `bayesieve evaluate`."
    paragraphs = [f"# {title}", _summary(data, config, origin), table, words, *remarks]
    folder.write("report.md", "\n\n".join([*paragraphs, *embedded(shown), last]) + "\n")
    folder.write("metrics.json", metrics)
    folder.seal()


def embedded(pictures: Sequence[Picture]) -> list[str]:
    """Pictures in Markdown, each above its caption."""
    return [f"![{caption}]({file})\n\n{caption}" for file, caption in pictures]


def _summary(data: DataSet, config: RunConfig, origin: str | None) -> str:
    training = config.training
    length = f"{training.epochs} epochs" if training.steps is None else f"{training.steps} steps"
    made = origin or f"engine {config.engine.name}, {length}, seed {training.seed}"
    text = (
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test examples. Network "
        f"{config.net.name}, {made}."
    )
    if config.pruning.zeros is not None:
        text += (
            f" Pruned while training to {100 * config.pruning.zeros:g} % zeros by "
            f"{config.pruning.score}."
        )
    if training.distill:
        text += f" Self-distillation from {training.distill} dense teachers (an extra)."
    return text


def draw_run(
    folder: RunFolder,
    model: Model,
    data: DataSet,
    history: Sequence[Mapping[str, Any]],
    curve: Sequence[Mapping[str, float]],
) -> list[Picture]:
    """Draw everything that fits the model and the data into `folder`/figures."""
    from bayesieve.assess import figures  # here: without pictures nobody waits for matplotlib

    pictures: list[Picture] = []

    def place(name: str, caption: str) -> Path:
        pictures.append((f"figures/{name}.png", caption))
        return folder.place(f"figures/{name}.png")

    at_mean = prediction = predict(model, data.test.x)
    if has_spread(model):
        prediction = predict(model, data.test.x, n_samples=None, targets=data.test.y)
    if history:
        rows = [
            {key: value[0] if isinstance(value, list) else value for key, value in row.items()}
            for row in history
        ]
        figures.training_curves(rows, place("training", "How training went, per epoch."))
    if isinstance(prediction, ClassPrediction) and isinstance(at_mean, ClassPrediction):
        shown = {"weights": prediction}
        if prediction is not at_mean:
            shown = {"mean weights": at_mean, f"{prediction.n_draws} draws": prediction}
        y = data.test.y
        bins = {name: reliability_bins(one.probs.cpu(), y) for name, one in shown.items()}
        text = "How often the network is right when it says it is this sure."
        figures.reliability_diagram(bins, place("reliability", text))
    elif isinstance(prediction, RealPrediction):
        columns = target_columns(prediction, data)
        mean, std, target = (columns[name].numpy() for name in ("mean", "std", "target"))
        figures.regression_fit(mean, std, target, place("fit", "Predictions against targets."))
    points = curve_points(curve)
    if len(points) > 1:
        path = place("sparsity", "What pruning further in one shot, without training, costs.")
        figures.error_vs_sparsity(points, path)
    return pictures
