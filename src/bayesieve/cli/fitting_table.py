"""The work of `bayesieve fit-table`: settings for tables, then the way of `train` and `export`."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bayesieve.assess.figures.features import importance_bars
from bayesieve.core.posterior import Posterior
from bayesieve.data import DataSet, load_data
from bayesieve.errors import DataError
from bayesieve.runs.build import make_plan
from bayesieve.runs.config import (
    DataConfig,
    EngineConfig,
    NetConfig,
    PruningConfig,
    RunConfig,
    ScheduleConfig,
    TrainingConfig,
)
from bayesieve.runs.folder import RunFolder, check_out
from bayesieve.runs.formats import export_to, read_source
from bayesieve.runs.learn import complete, learn
from bayesieve.runs.options import Compact
from bayesieve.select import feature_importance, importance_draws, normalised_among

LEAST_ROWS = 20
_STEPS, _LARGE, _HELD_OUT = 3000, 10_000, 0.1
_DRAWS = 200


@dataclass(frozen=True)
class TableFit:
    """What a call of fit-table asks for; see its help."""

    file: Path
    target: str
    task: str | None
    missing: str
    engine: str
    hidden: str | None
    epochs: int | None
    zeros: float | None
    test_fraction: float
    seed: int


def fit_and_report(
    own: TableFit, bundle: Path, folder: Path, *, force: bool, figures: bool
) -> dict[str, Any]:
    """Check everything, train, write the report folder, then the bundle."""
    data = load_checked(own.file, own.target, own.task, own.missing, own.seed, own.test_fraction)
    plan = make_plan(settings_for(own, data))
    run_folder = RunFolder(folder)
    run_folder.check_free(force=force)
    check_out(bundle, force=force)
    run_folder.clear()
    run_folder.create(plan.config, "fit-table", file=own.file.name)
    run = learn(plan, run_folder, resume=False)
    metrics = complete(plan, run, run_folder, figures=figures)
    importance = _importance(plan.data, run.posterior, run_folder, figures=figures)
    if own.zeros is None:
        source = read_source(folder, masked_ok=True)
        export_to(source, "bundle", bundle, force=force)
    else:
        Compact(folder, bundle, posterior=True, force=force)()
    return {
        "data": str(own.file), "target": own.target, "task": plan.data.task,
        "rows": {"train": plan.problem.n_data, "test": len(plan.data.test)},
        "bundle": str(bundle), "report": str(folder), "metrics": metrics,
        "importance": importance,
    }  # fmt: skip


def load_checked(
    file: Path, target: str, task: str | None, missing: str, seed: int, test_fraction: float = 0.2
) -> DataSet:
    """The table, or one line on why nothing can be learned from it."""
    data = load_data(
        f"{file.suffix.lower().lstrip('.')}:{file}",
        target=target,
        task=task,  # type: ignore[arg-type]
        missing=missing,  # type: ignore[arg-type]
        test_fraction=test_fraction,
        seed=seed,
    )
    check_learnable(file, target, data)
    return data


def check_learnable(file: Path, target: str, data: DataSet) -> None:
    """Raise unless there are enough rows and the target varies among those to learn from."""
    n = len(data.train) + len(data.test)
    if n < LEAST_ROWS:
        raise DataError(f"{file}: at least {LEAST_ROWS} rows are needed, got {n}. Add some.")
    y = data.train.y
    if bool((y == y[:1]).all()):
        what = "one class" if data.task == "classification" else "one value"
        raise DataError(
            f"{file}: target {target!r} has {what} only in the rows to learn from; there is "
            "nothing to predict. Choose another target."
        )


def settings_for(own: TableFit, data: DataSet) -> RunConfig:
    """The settings of a run on this table."""
    n = len(data.train)
    hidden = own.hidden or ("50,50" if n < _LARGE else "100,100")
    batch_size = max(16, min(256, 2 ** round(math.log2(n / 16))))
    per_epoch = math.ceil((1 - _HELD_OUT) * n / batch_size)
    epochs = own.epochs or max(20, min(400, round(_STEPS / per_epoch)))
    name = f"{own.file.suffix.lower().lstrip('.')}:{own.file}"
    task: Any = own.task
    missing: Any = own.missing
    engine = EngineConfig(
        name="sbnn", slab_std=1.0, spike_std=math.exp(-2), lr=1e-2, init_std=0.02, start="module"
    )
    if own.engine == "flat-vi":
        engine = EngineConfig(name="flat-vi", prior_std=1.0, lr=1e-2, init_std=0.02, start="module")
    net = NetConfig(name=f"mlp:{hidden}")
    if data.task == "regression":
        net = replace(net, noise_std=0.5, learn_noise=True)
    patience = max(5, epochs // 4) if n >= 100 else None
    return RunConfig(
        DataConfig(name, own.target, task, missing=missing, test_fraction=own.test_fraction,
                   seed=own.seed),
        net,
        engine,
        ScheduleConfig(lr="cosine", kl=0.3, kl_warmup_epochs=round(0.1 * epochs, 2)),
        PruningConfig(zeros=own.zeros, start=0.2, end=0.6),
        TrainingConfig(epochs=epochs, batch_size=batch_size, seed=own.seed, device="cpu", threads=1,
                       val_fraction=None if patience is None else _HELD_OUT, patience=patience),
    )  # fmt: skip


def _importance(
    data: DataSet, posterior: Posterior, folder: RunFolder, *, figures: bool
) -> dict[str, float]:
    """Write importance.json, its picture and a section of the report; returns φ by name."""
    names = data.feature_names or ()
    posterior = posterior.to("cpu")
    varies = (data.train.x != data.train.x[:1]).any(0)  # of a constant the data say nothing
    found = feature_importance(posterior)
    own_phi = normalised_among(found.psi, varies)
    draws = varies * importance_draws(posterior, _DRAWS, torch.Generator().manual_seed(0))
    low, high = draws.quantile(0.05, 0), draws.quantile(0.95, 0)
    phi = dict(zip(names, own_phi.tolist(), strict=True))
    psi = found.psi * varies
    numbers = {"psi": psi, "psi_low": low, "psi_high": high, "phi": own_phi}
    columns = {key: [float(f"{v:.6g}") for v in value.tolist()] for key, value in numbers.items()}
    folder.write("importance.json", {"source": found.source, "names": list(names), **columns})
    best = sorted(phi.items(), key=lambda item: -item[1])[:10]
    listed = ", ".join(f"{name} ({value:.2f})" for name, value in best)
    text = (folder.path / "report.md").read_text(encoding="utf-8")
    text += (
        "\n## Which inputs matter\n\nφ is 1 for the most important input and 0 for the least: "
        f"{listed}. `bayesieve select` says which of them are worth keeping.\n"
    )
    if figures:
        at = folder.figures / "importance.png"
        importance_bars(names, psi, at, low=low, high=high, xlabel="importance ψ")
        caption = "Importance of the inputs with 90 % intervals."
        text += f"\n![{caption}](figures/importance.png)\n\n{caption}\n"
    folder.write_text("report.md", text)
    return phi
