"""The work of `bayesieve demo`: two trainings, the pictures that compare them, a small model."""

from typing import Any

from bayesieve.assess import figures
from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.metrics import reliability_bins
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.posterior import Model, SparseModel
from bayesieve.runs.build import Plan
from bayesieve.runs.bundle import compact_run
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.learn import learn, models_of, save_models
from bayesieve.runs.page import write_run_page
from bayesieve.runs.pictures import Picture, draw_run, first_layer
from bayesieve.runs.report import write_report
from bayesieve.runs.results import DRAWS, curve_of, curve_points, numbers
from bayesieve.runs.text import note
from bayesieve.sieve.prune import kept_per_layer
from bayesieve.training.fit import fit

MODEL = "model"  # the bundle inside the run folder


def train_both(
    dense: Plan, sparse: Plan, folder: RunFolder
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train the dense and the sparse network; write the sparse one's folder with a comparison.

    Returns the numbers of each by name, and what `_delivered` says of the compacted one.
    """
    training = dense.config.training
    assert training.batch_size is not None
    note(f"1/4 dense network, {training.epochs} epochs")
    plain = fit(
        dense.problem,
        dense.engine,
        epochs=training.epochs,
        batch_size=training.batch_size,
        seed=training.seed,
        schedule=dense.schedule,
    ).posterior
    note(f"2/4 sparse Bayesian network, {sparse.config.training.epochs} epochs, pruned on the way")
    folder.clear()
    folder.create(sparse.config, {"command": "demo"})
    run = learn(sparse, folder, resume=False)
    models = models_of(run)
    save_models(models, folder)
    note("3/4 testing and drawing")
    sieved, test = models[0], sparse.data.test
    rows = {
        "dense": numbers(evaluate(plain, test), plain),
        "sparse": numbers(evaluate(sieved, test), sieved),
        f"sparse, {DRAWS} draws": numbers(evaluate(sieved, test, n_samples=DRAWS), sieved),
    }
    curve = curve_of(sieved, test, "snr")
    folder.write("curve.json", {"score": "snr", "points": curve})
    pictures = [*_compared(folder, plain, sieved, sparse, curve_points(curve), rows)]
    pictures += draw_run(folder.path, sieved, sparse.data, history=run.history)
    title = "Demo: a dense network and a sparse Bayesian one"
    folder.write_text("report.md", write_report(title, sparse.data, sparse.config, rows, pictures))
    folder.write("metrics.json", {**rows["sparse"], "compared": rows})
    page = write_run_page(folder, before=plain)
    note("4/4 cutting out what has no effect")
    return rows, _delivered(folder, page["runs"][0])


def _delivered(folder: RunFolder, measured: dict[str, Any]) -> dict[str, Any]:
    """Write the compacted network as a bundle; its sizes and times beside those of all weights."""
    made = compact_run(folder, folder.path / MODEL, posterior=True, force=True)
    layers = made["compaction"]["layers"]
    times = measured["runtime_ms"]
    return {
        "model": made["bundle"],
        "units": [layer["units"] for layer in layers[:-1]],
        "parameters": made["compaction"]["parameters"],
        "changed_predictions": made["changed_predictions"],
        "ms_of_64": [(times[side] or {}).get("64") for side in ("before", "after")],
    }


def _compared(
    folder: RunFolder,
    plain: Model,
    sieved: Model,
    plan: Plan,
    points: list[tuple[float, float, float]],
    rows: dict[str, Any],
) -> list[Picture]:
    assert isinstance(sieved, SparseModel)
    test = plan.data.test
    bins = {}
    for label, model in (("dense", plain), ("sparse", sieved)):
        prediction = predict(model, test.x)
        assert isinstance(prediction, ClassPrediction)
        bins[label] = reliability_bins(prediction.probs, test.y)
    layers = {
        row.name.removesuffix(".weight"): (row.kept, row.total)
        for row in kept_per_layer(sieved)
        if row.name.endswith(".weight")
    }
    figures.sieve_overview(
        folder.figures / "overview.png",
        curve=[point[:2] for point in points],
        chosen=0,
        dense_error=rows["dense"]["error"],
        layers=layers,
        reliability=bins,
    )
    figures.first_layer_map(
        first_layer(sieved).numpy(), plan.data.input_shape, folder.figures / "pixels.png"
    )
    return [
        Picture("figures/overview.png", "What is kept, and what it costs."),
        Picture("figures/pixels.png", "The pixels the sparse network still looks at."),
    ]
