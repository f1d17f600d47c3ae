"""Recipes on few examples: settings chosen on held-out digits, then calibration on the test part.

    python -m studies.recipes --held-out --out results/held_out/recipes.json   # candidates
    python -m studies.recipes --full --out results/recipes.json               # the recipes, on test
    python -m studies.recipes --quick                       # two engines, three epochs

Protocol: `bayesieve train --data digits --net mlp:100 --engine E --epochs 30`, then `prune --zeros
0.9 --finetune 5`, each followed by `evaluate`. With --held-out a fifth of the training examples is
set aside and each candidate is scored there (`--val-fraction 0.2`, `evaluate --split val`): numbers
of bmr, horseshoe and the samplers, and the batches of fine-tuning, which are the same for every
engine. Of the candidates whose NLL is within two standard errors of the lowest, the first is
printed (the smallest step, the largest batch: the safest on other data); the recipe has it. Steps
near the end of their grid train a deeper network too, and the mean NLL of both decides.
Without, the recipes of `engines/recipes.py` are trained on all training examples, and the test
examples are read once per row.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from bayesieve import runs
from bayesieve.engines.recipes import (
    ENGINES,
    RunSize,
    recommended_schedule,
    settings_of,
)
from bayesieve.errors import DivergedError
from bayesieve.runs import sparse
from bayesieve.runs.sparse import finetune_batch_size
from studies.harness import Row, Run, chosen, make_row, say, study_parser

NET, EPOCHS, ZEROS, FINETUNE = "mlp:100", 30, 0.9, 5
N_TRAIN = 1433  # digits
SHOWN = ("ece", "error", "nll")
NARROW = {"slab_std": 0.5, "spike_scale": 0.05}
WIDE = {"slab_std": 2.0, "spike_scale": 0.5}
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "bmr": [{"lr": lr, "kl": kl} for lr in (0.01, 0.03, 0.1) for kl in (0.1, 0.3, 1.0)],
    "horseshoe": [{"lr": lr} for lr in (0.005, 0.01, 0.03, 0.1, 0.3)],
    "sgld": [{"lr": lr, **prior} for lr in (0.3, 0.6, 1.2) for prior in (NARROW, WIDE)],
    "sghmc": [{"lr": lr, **prior} for lr in (0.03, 0.1, 0.2, 0.4) for prior in (NARROW, WIDE)],
}
# Candidates as good as the best of smaller steps, or better: a deeper network trains with them too.
FINALISTS: dict[str, list[dict[str, Any]]] = {
    "horseshoe": [{"lr": lr} for lr in (0.03, 0.1)],
    "sgld": [{"lr": lr, **WIDE} for lr in (0.6, 1.2)],
    "sghmc": [{"lr": lr, **WIDE} for lr in (0.1, 0.2, 0.4)],
}
DEEP_NET, DEEP_EPOCHS = "mlp:200,100,50", 12
GUESSING = {"ece": 0.0, "error": 0.9, "nll": math.log(10)}  # what a run that diverged is worth
BATCHES = (128, 32, 8, 4)  # of fine-tuning
Scores = dict[str, float]


def train(engine: str, home: Path, epochs: int, seed: int, net: str = NET, **settings: Any) -> Path:
    """A finished run folder."""
    folder = home / f"dense-{seed}"
    runs.train(data="digits", net=net, engine=engine, epochs=epochs, seed=seed, out=folder,
               device="cpu", threads=1, figures=False, force=True, **settings)  # fmt: skip
    return folder


def sieve(dense: Path) -> Path:
    """The run without 90 % of its weights, trained on."""
    folder = dense.with_name(dense.name + "-sieved")
    runs.prune(run=dense, out=folder, zeros=ZEROS, finetune=FINETUNE, device="cpu", figures=False,
               force=True)  # fmt: skip
    return folder


def score(folder: Path, split: Any) -> Scores:
    """Numbers that `bayesieve evaluate` prints."""
    scored = runs.evaluate(run=folder, split=split, device="cpu")
    return {name: scored[name] for name in SHOWN}


def held_out_rows(engine: str, seeds: int, run: Run) -> Iterator[Row]:
    """A row for each candidate of an engine that the record does not have yet."""
    with tempfile.TemporaryDirectory() as folder:
        trials = [("dense", NET, EPOCHS, setting) for setting in CANDIDATES.get(engine, [])]
        trials += [("deep", DEEP_NET, DEEP_EPOCHS, one) for one in FINALISTS.get(engine, [])]
        for kind, net, epochs, setting in trials:
            if run.wants(f"{engine} {kind}", setting):
                began, each = time.process_time(), []
                for seed in range(seeds):
                    options = {"net": net, "val_fraction": 0.2, **setting}
                    try:
                        one = train(engine, Path(folder), epochs, seed, **options)
                        each.append(score(one, "val"))
                    except DivergedError:
                        each.append(GUESSING)
                yield row_of(f"{engine} {kind}", setting, each, began)
        dense: list[Path] = []
        for batch in BATCHES:
            setting = {"finetune_batch_size": batch}
            if run.wants(f"{engine} sieved", setting):
                dense = dense or [train(engine, Path(folder), EPOCHS, seed, val_fraction=0.2)
                                  for seed in range(seeds)]  # fmt: skip
                began = time.process_time()
                with mock.patch.object(sparse, "finetune_batch_size", return_value=batch):
                    each = [score(sieve(one), "val") for one in dense]
                yield row_of(f"{engine} sieved", setting, each, began)


def recipe_rows(engine: str, seeds: int, run: Run, epochs: int) -> Iterator[Row]:
    """The rows of a recipe, dense and sieved, unless the record has them."""
    if any(row["name"] == f"{engine} sieved" for row in run.rows):
        return
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        dense = [train(engine, Path(folder), epochs, seed) for seed in range(seeds)]
        setting = recipe_of(engine, epochs)
        yield row_of(f"{engine} dense", setting, [score(one, "test") for one in dense], began)
        began = time.process_time()
        batch = finetune_batch_size(N_TRAIN, setting["batch_size"])
        setting |= {"zeros": ZEROS, "finetune": FINETUNE, "finetune_batch_size": batch}
        each = [score(sieve(one), "test") for one in dense]
        yield row_of(f"{engine} sieved", setting, each, began)


def recipe_of(engine: Any, epochs: int = EPOCHS) -> dict[str, Any]:
    """Every number that the recipe of an engine has on digits."""
    size = RunSize.of(engine, N_TRAIN, epochs, None, None)
    return {"name": engine, **settings_of(engine, size, {}), **recommended_schedule(engine, size),
            "epochs": epochs, "batch_size": size.batch_size, "engine": engine}  # fmt: skip


def nll_of(run: Run, engine: str, setting: dict[str, Any]) -> list[float]:
    """Held-out NLL of the seeds of a candidate, mean over the networks that it trained."""
    found = [run.find(f"{engine} {kind}", setting) for kind in ("dense", "deep")]
    each = zip(*(row["each"] for row in found if row is not None), strict=True)
    return [statistics.fmean(one["nll"] for one in seed) for seed in each]


def sieved_scores(run: Run) -> list[list[float]]:
    """Held-out NLL of the seeds for every batch of fine-tuning, mean over engines with steps."""
    engines = [name for name, entry in ENGINES.items() if not entry.passes]
    scores = []
    for batch in BATCHES:
        rows = [run.find(f"{name} sieved", {"finetune_batch_size": batch}) for name in engines]
        each = zip(*(row["each"] for row in rows if row is not None), strict=True)
        scores.append([statistics.fmean(one["nll"] for one in seed) for seed in each])
    return scores


def choose(scores: Sequence[Sequence[float]], candidates: Sequence[Any]) -> Any:
    """The first candidate whose mean is within two standard errors of the lowest.

    Example:
        >>> choose([[0.3, 0.3], [0.1, 0.2], [0.1, 0.1]], ["slow", "safe", "fast"])
        'safe'
    """
    means = [statistics.fmean(seeds) for seeds in scores]
    errors = [statistics.stdev(seeds) / len(seeds) ** 0.5 for seeds in scores]
    best = min(range(len(means)), key=means.__getitem__)
    for mean, error, candidate in zip(means, errors, candidates, strict=True):
        if mean - means[best] <= 2 * math.hypot(error, errors[best]):
            return candidate
    return candidates[best]


def row_of(name: str, setting: dict[str, Any], each: list[Scores], began: float) -> Row:
    """A row that took the processor time since it began."""
    seconds = round(time.process_time() - began, 2)
    return make_row(name, setting, each, seeds=len(each), seconds=seconds, spread=["ece", "nll"])


def main(arguments: list[str] | None = None) -> int:
    """Score candidates on held-out examples, or recipes on test ones; write the record."""
    parser = study_parser(__doc__, "--held-out", quick="map and sbnn for three epochs",
                          seeds=2, device=False)  # fmt: skip
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma list of engines")
    options = parser.parse_args(arguments)
    run = Run("recipes", arguments, options, data="digits", settings={"net": NET})
    asked = "map,sbnn" if options.quick else options.engines
    seeds = 1 if options.quick else options.seeds
    for engine in chosen("recipes", "engine", asked, ENGINES):
        epochs = 3 if options.quick else EPOCHS
        rows = (held_out_rows(engine, seeds, run) if options.held_out
                else recipe_rows(engine, seeds, run, epochs))  # fmt: skip
        for row in rows:
            run.add(row, SHOWN)
            say(f"    {row['setting']}")
    if options.held_out:
        say("chosen:")
        for engine, candidates in {**CANDIDATES, **FINALISTS}.items():
            scores = [nll_of(run, engine, setting) for setting in candidates]
            say(f"    {engine}: {choose(scores, candidates)}")
        say(f"    finetune_batch_size: {choose(sieved_scores(run), BATCHES)}")
    return run.finish(SHOWN)


if __name__ == "__main__":
    raise SystemExit(main())
