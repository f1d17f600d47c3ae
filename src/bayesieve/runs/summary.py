"""report.md and the pictures of a run folder: a page a newcomer can read.

Each picture is drawn only where it means something.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bayesieve.assess import figures
from bayesieve.assess.metrics import confusion_matrix, reliability_bins
from bayesieve.assess.predict import ClassPrediction, Prediction, RealPrediction, predict
from bayesieve.core.layout import Role
from bayesieve.core.posterior import Model, SparseModel, has_spread, posterior_of
from bayesieve.data import DataSet
from bayesieve.runs.config import RunConfig
from bayesieve.runs.run import DRAWS, Curve, curve_points
from bayesieve.runs.text import quality_header, quality_row
from bayesieve.sieve.prune import kept_per_layer
from bayesieve.text import markdown_table

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
    "**weights kept**: parameters that are not 0, biases counted. **bytes**: kept weights and "
    "where they sit."
)


@dataclass(frozen=True)
class Picture:
    """A file below the run folder and the sentence that goes with it."""

    file: str
    caption: str


def write_report(
    title: str,
    data: DataSet,
    config: RunConfig,
    rows: Mapping[str, Mapping[str, Any]],
    pictures: Sequence[Picture],
    remarks: Sequence[str] = (),
    origin: str | None = None,
) -> str:
    """The text of report.md.

    Args:
        title: headline.
        data: what it was tested on.
        config: resolved settings.
        rows: results by label.
        pictures: what to embed.
        remarks: further paragraphs.
        origin: where the weights come from; the engine and length of `config` unless given.
    """
    table = markdown_table(
        quality_header(data.task), [quality_row(name, row) for name, row in rows.items()]
    )
    words = _WORDS[data.task] + _SIZE
    paragraphs = [f"# {title}", _summary(data, config, origin), table, words, *remarks]
    paragraphs += [f"![{p.caption}]({p.file})\n\n{p.caption}" for p in pictures]
    paragraphs.append(
        "Every setting is in `config.json`; evaluate again with `bayesieve evaluate`."
    )
    return "\n\n".join(paragraphs) + "\n"


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
    folder: Path,
    model: Model,
    data: DataSet,
    *,
    history: Sequence[Mapping[str, Any]] = (),
    curve: Curve | None = None,
) -> list[Picture]:
    """Draw everything that fits the model and the data into `folder`/figures."""
    n_samples = DRAWS if has_spread(model) else 0
    prediction = predict(model, data.test.x, n_samples=n_samples)
    at_mean = predict(model, data.test.x) if n_samples else prediction
    sketch = _Sketch(folder, model, data)
    if history:
        sketch.training(history)
    if isinstance(prediction, ClassPrediction) and isinstance(at_mean, ClassPrediction):
        sketch.reliability({"mean weights": at_mean, f"{n_samples} draws": prediction}
                           if n_samples else {"weights": prediction})  # fmt: skip
        sketch.classes(prediction, at_mean)
    elif isinstance(prediction, RealPrediction):
        sketch.regression(prediction)
    sketch.inclusion()
    sketch.layers()
    if curve:
        sketch.curve(curve)
    return sketch.pictures


class _Sketch:
    """Draws one kind of picture per method and remembers what it has drawn."""

    def __init__(self, folder: Path, model: Model, data: DataSet) -> None:
        self.folder, self.model, self.data = folder, model, data
        self.pictures: list[Picture] = []

    def _file(self, name: str, caption: str) -> Path:
        self.pictures.append(Picture(f"figures/{name}.png", caption))
        return self.folder / "figures" / f"{name}.png"

    def training(self, history: Sequence[Mapping[str, Any]]) -> None:
        rows = [
            {key: value[0] if isinstance(value, list) else value for key, value in row.items()}
            for row in history
        ]
        figures.training_curves(rows, self._file("training", "How training went, per epoch."))

    def reliability(self, predictions: Mapping[str, Prediction]) -> None:
        labels = self.data.test.y
        bins = {
            name: reliability_bins(prediction.probs.cpu(), labels)
            for name, prediction in predictions.items()
            if isinstance(prediction, ClassPrediction)
        }
        text = "How often the network is right when it says it is this sure."
        figures.reliability_diagram(bins, self._file("reliability", text))

    def classes(self, prediction: ClassPrediction, at_mean: ClassPrediction) -> None:
        names, test = self.data.classes or (), self.data.test
        matrix = confusion_matrix(at_mean.probs.cpu(), test.y)
        figures.confusion_matrix(
            matrix, names, self._file("confusion", "True classes against predicted ones.")
        )
        means = [
            [float(values.cpu()[test.y == c].mean()) if bool((test.y == c).any()) else 0.0
             for c in range(len(names))]
            for values in (prediction.aleatoric, prediction.epistemic)
        ]  # fmt: skip
        text = "Doubt about each class, split into noise of the data and doubt about the weights."
        figures.uncertainty_per_class(means[0], means[1], names, self._file("uncertainty", text))
        if test.x.dim() == 4 and test.x.shape[1] in (1, 3) and len(test) > 1:
            figures.certain_examples(
                test.x.numpy(),
                test.y.tolist(),
                prediction.label.tolist(),
                prediction.entropy.cpu().numpy(),
                names,
                self._file("examples", "The test images it is most and least sure about."),
            )

    def regression(self, prediction: RealPrediction) -> None:
        test = self.data.test
        mean, std = prediction.mean.cpu(), prediction.std.cpu()
        scale = test.target_std.double()
        shift = test.target_mean.double()
        targets = test.y.reshape(len(test), -1)
        columns = [v.double()[:, 0].numpy() for v in (
            mean * scale + shift, std * scale, targets * scale + shift)]  # fmt: skip
        figures.regression_fit(
            columns[0], columns[1], columns[2], self._file("fit", "Predictions against targets.")
        )

    def inclusion(self) -> None:
        inclusion = posterior_of(self.model).inclusion
        if inclusion is None:
            return
        layers = {name: inclusion[part].cpu().numpy() for name, part in self._prunable()}
        text = "How many weights of each layer the data call for."
        figures.inclusion_cdf(layers, self._file("inclusion", text))

    def layers(self) -> None:
        if not isinstance(self.model, SparseModel):
            return
        wanted = {name for name, _ in self._prunable()}
        rows = [row for row in kept_per_layer(self.model) if row.name in wanted]
        names, kept, total = zip(*rows, strict=True)
        text = "Weights kept in each layer."
        figures.kept_per_layer(names, kept, total, self._file("layers", text))

    def curve(self, curve: Curve) -> None:
        points = curve_points(curve)
        if len(points) < 2:
            return
        path = self._file("sparsity", "What pruning further in one shot, without training, costs.")
        figures.error_vs_sparsity(points, path)

    def _prunable(self) -> list[tuple[str, slice]]:
        layout = self.model.layout
        pairs = zip(layout.names, layout.roles, strict=True)
        return [(name, layout.slices[name]) for name, role in pairs if role == Role.PRUNE]


def first_layer(model: Model) -> torch.Tensor:
    """The first weight matrix with pruned entries 0, (n_units, n_inputs)."""
    layout = model.layout
    name = layout.names[0]
    return posterior_of(model).mean[layout.slices[name]].view(layout.shapes[0]).cpu()
