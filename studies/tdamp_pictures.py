"""CSV files and the seven pictures of the MNIST study of EM-TDAMP."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.assess import figures
from bayesieve.assess.evaluate import Evaluation, evaluate
from bayesieve.assess.figures.style import dress, legend, new_figure, series_colors
from bayesieve.assess.figures.style import save as save_figure
from bayesieve.assess.metrics import ClassificationReport
from bayesieve.assess.predict import ClassPrediction
from bayesieve.core.posterior import SparseModel
from bayesieve.core.storage import save
from bayesieve.data.examples import Examples
from bayesieve.files import write_atomically
from bayesieve.training.fit import Fit
from studies.tdamp_mnist import DRAWS


def write_folder(folder: Path, run: Fit, test: Examples, records: Sequence[dict[str, Any]]) -> None:
    """History and confusion as CSV, the sparse posterior, and the seven pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    posterior = run.posterior
    inclusion = posterior.inclusion
    assert inclusion is not None
    save(SparseModel(posterior, inclusion > 0.5), folder / "posterior.safetensors")
    rows = [{"run": own["name"], **row} for own in records for row in own["seeds"][0]["history"]]
    _write_csv(folder / "history.csv", list(rows[0]), [list(row.values()) for row in rows])
    result = evaluate(posterior, test, n_samples=DRAWS)
    assert isinstance(result.report, ClassificationReport)
    names = [str(digit) for digit in range(10)]
    _write_csv(folder / "confusion.csv", names, result.report.confusion)
    histories = {own["name"]: own["seeds"][0]["history"] for own in records}
    _pictures(folder, run, test, result, histories)


def _pictures(
    folder: Path, run: Fit, test: Examples, result: Evaluation,
    histories: Mapping[str, list[dict[str, Any]]],
) -> None:  # fmt: skip
    main = histories["tdamp-64-of-128"]
    _lines(folder / "accuracy.png", "Accuracy after each pass", "accuracy",
           {name: [row["accuracy"] for row in own] for name, own in histories.items()})  # fmt: skip
    _lines(folder / "scores.png", "Means over classes", "score",
           {key: [row[key] for row in main] for key in ("precision", "recall", "f1")})  # fmt: skip
    _lines(folder / "units.png", "Active hidden units", "units",
           {"tdamp-64-of-128": [row["units"] for row in main]})  # fmt: skip
    names = [str(digit) for digit in range(10)]
    report, prediction = result.report, result.prediction
    assert isinstance(report, ClassificationReport)
    assert isinstance(prediction, ClassPrediction)
    figures.confusion_matrix(report.confusion, names, folder / "confusion.png")
    inclusion = run.posterior.inclusion
    assert inclusion is not None
    units = run.posterior.layout.unflatten(inclusion)["fc1.weight"][:, 0]
    figures.inclusion_cdf({"hidden units": units.cpu().numpy()}, folder / "activity.png")
    points = {"tdamp-64-of-128": [(row["zeros"], 1 - row["accuracy"]) for row in main]}
    figures.error_vs_sparsity(points, folder / "sparsity.png")
    doubt = [[float(values[test.y == c].mean()) for c in range(10)]
             for values in (prediction.aleatoric, prediction.epistemic)]  # fmt: skip
    figures.uncertainty_per_class(doubt[0], doubt[1], names, folder / "uncertainty.png")


def _lines(path: Path, title: str, ylabel: str, series: Mapping[str, Sequence[float]]) -> None:
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    for (name, values), color in zip(series.items(), series_colors(len(series)), strict=True):
        axes.plot(
            range(1, len(values) + 1), values, color=color, lw=2, marker="o", ms=4, label=name
        )
    dress(axes, title=title, xlabel="pass", ylabel=ylabel, grid="y")
    if len(series) > 1:
        legend(axes)
    save_figure(figure, path)


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_atomically(path, text.getvalue())
