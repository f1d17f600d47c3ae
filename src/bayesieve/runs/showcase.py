"""`demo`: two trainings on small digits, their numbers side by side, and a small model."""

from pathlib import Path

from bayesieve.assess.evaluate import evaluate
from bayesieve.runs.arguments import Json, Place, command
from bayesieve.runs.build import make_plan
from bayesieve.runs.bundle import compact
from bayesieve.runs.config import from_keywords
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.learn import fit_plan, learn
from bayesieve.runs.page import report
from bayesieve.runs.run import BEFORE, curve_of, numbers, save_model
from bayesieve.runs.summary import write_summary
from bayesieve.runs.text import note

MODEL = "model"  # the bundle inside the run folder
_COURSE = {"batch_size": 64, "device": "cpu", "threads": 1, "checkpoint_every": 1000}
# The numbers of the sparse Bayesian network were chosen on held-out training data.
_SPARSE = {"engine": "sbnn", "lr": 1e-2, "kl": 0.1, "zeros": 0.9}
_DENSE = {"engine": "map", "lr": 1e-3}


@command
def demo(
    out: Place = "runs/demo",
    *,
    epochs: int = 200,
    seed: int = 0,
    force: bool = False,
) -> Json:
    """Train a dense network and a sparse Bayesian one on 8x8 digits, and compare them.

    Args:
        out: Run folder to write.
        epochs: Passes over the data.
        seed: Seed of both trainings.
        force: Replace the run in `out`.
    """
    folder = RunFolder(Path(out))
    force = force or (folder.listed() is not None and folder.made_by("demo"))
    folder.check_free(force=force)
    note("digits: 1,797 handwritten digits of 8x8 pixels, network 64-100-50-10")
    shared = {"data": "digits", "net": "mlp:100,50", "epochs": epochs, "seed": seed, **_COURSE}
    dense, sparse = (make_plan(from_keywords(shared | engine)) for engine in (_DENSE, _SPARSE))
    note(f"1/4 dense network, {epochs} epochs")
    plain = fit_plan(dense, dense.problem).posterior
    note(f"2/4 sparse Bayesian network, {epochs} epochs, pruned on the way")
    with folder.locked():
        folder.begin(force=force)
        folder.create(sparse.config, "demo")
        run = learn(sparse, folder, resume=False)
        sieved, test = run.models[0], sparse.data.test
        save_model(sieved, folder.place(folder.posterior.name))
        note("3/4 testing and drawing")
        averaged = numbers(evaluate(sieved, test, n_samples=None), sieved)
        rows = {
            "dense": numbers(evaluate(plain, test), plain),
            "sparse": numbers(evaluate(sieved, test), sieved),
            f"sparse, {averaged['draws']} draws": averaged,
        }
        curve = curve_of(sieved, test, "snr")
        write_summary(
            folder,
            sparse.config,
            sparse.data,
            sieved,
            rows,
            {**rows["sparse"], "compared": rows},
            title="Demo: a dense network and a sparse Bayesian one",
            score="snr",
            curve=curve,
            history=run.history,
        )
        save_model(plain, folder.place(BEFORE))
        page = report([folder.path])
    note("4/4 cutting out what has no effect")
    made = compact(folder.path, folder.path / MODEL, posterior=True, force=True)
    times = page["runs"][0]["runtime_ms"]
    for name in [*rows][1:]:  # the size that is delivered, as the page states it
        rows[name] = {**rows[name], "bytes": made["compacted"]["bytes"]}
    delivered = {  # sizes and times beside those of all weights
        "model": made["bundle"],
        "units": [layer["units"] for layer in made["compaction"]["layers"][:-1]],
        "parameters": made["compaction"]["parameters"],
        "changed_predictions": made["changed_predictions"],
        "ms_of_64": [(times[side] or {}).get("64") for side in ("before", "after")],
    }
    return {**rows, "delivered": delivered}
