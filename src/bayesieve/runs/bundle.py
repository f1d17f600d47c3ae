"""The work of `bayesieve compact`: shrink, compare with what was there before, write."""

import importlib.metadata
from pathlib import Path
from typing import Any

from bayesieve import __version__
from bayesieve.assess.evaluate import Evaluation, evaluate
from bayesieve.assess.predict import ClassPrediction
from bayesieve.core.posterior import SparseModel
from bayesieve.deliver.bundle import save_bundle, stored_bytes
from bayesieve.deliver.serving import as_point
from bayesieve.errors import UsageError
from bayesieve.runs.config import RECORD, to_dict
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.results import numbers
from bayesieve.runs.run import Run, load_run
from bayesieve.sieve.compact import compact


def compact_run(source: RunFolder, out: Path, *, posterior: bool, force: bool) -> dict[str, Any]:
    """Compact a pruned run and write the bundle; returns metrics of every stage and the report."""
    run = load_run(source, device="cpu")
    sparse = run.model
    if not isinstance(sparse, SparseModel):
        raise UsageError(
            f"{source.path} is not pruned, so nothing can be removed. First run "
            f"`bayesieve prune {source.path} --zeros 0.9 --out RUN`."
        )
    test = run.data.test
    small: Any = compact(sparse, test.x[:64])
    likelihood = sparse.network.likelihood_at(sparse.posterior.mean)
    masked, compacted = evaluate(sparse, test), evaluate(as_point(small, likelihood), test)
    result: dict[str, Any] = {}
    if source.finished and isinstance(source.read("metrics.json").get("dense"), dict):
        result["dense"] = source.read("metrics.json")["dense"]
    result |= {
        "masked": numbers(masked, sparse),
        "compacted": {**compacted.to_dict(), "bytes": stored_bytes(small)},
        "compaction": small.compaction.to_dict(),
        "changed_predictions": _changed(masked, compacted),
        "n_test": len(test),
    }
    save_bundle(
        small,
        out,
        example=test.x[:1],
        posterior=sparse.posterior if posterior else None,
        sparse=sparse,
        preprocessing=run.data.preprocessing or None,
        classes=run.data.classes,
        feature_names=run.data.feature_names,
        thresholds=source.read("config.json").get(RECORD, {}).get("rule"),
        metrics={**result, "compaction": _short(result["compaction"])},
        config=provenance(run, source),
        force=force,
    )
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    return {**result, "bundle": str(out), "bundle_bytes": sum(sizes.values()), "files": sizes}


def provenance(run: Run, source: RunFolder) -> dict[str, Any]:
    """How a bundle came about; of paths only the last part, since bundles travel."""
    settings = {name: to_dict(run.config)[name] for name in ("data", "net", "engine", "training")}
    kind, colon, rest = str(settings["data"]["name"]).partition(":")
    settings["data"]["name"] = f"{kind}:{Path(rest).name}" if colon else kind
    if settings["net"]["warm_start"] is not None:
        settings["net"]["warm_start"] = Path(settings["net"]["warm_start"]).name
    given = {
        name: {key: value for key, value in section.items() if value not in (None, [])}
        for name, section in settings.items()
    }
    versions = {"bayesieve": __version__}
    versions |= {name: importlib.metadata.version(name) for name in ("torch", "safetensors")}
    return {"source": source.path.name, "run": given, "versions": versions}


def _short(report: dict[str, Any]) -> dict[str, Any]:
    """The report with the number of features read: which ones stands in the weights already."""
    read = report["input_features"]
    return {**report, "input_features": None if read is None else len(read)}


def _changed(before: Evaluation, after: Evaluation) -> int | None:
    """How many labels differ; None for a regression."""
    a, b = before.prediction, after.prediction
    if isinstance(a, ClassPrediction) and isinstance(b, ClassPrediction):
        return int((a.label.cpu() != b.label.cpu()).sum())
    return None
