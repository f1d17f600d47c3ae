"""The work of `bayesieve report`: run folders in, one page out."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bayesieve.cli.compacting import provenance
from bayesieve.cli.config import RunConfig
from bayesieve.cli.config_files import RECORD, UsageError
from bayesieve.cli.folder import RunFolder
from bayesieve.cli.loading import Run, load_model, load_run
from bayesieve.core.posterior import Model, SparseModel, has_spread, posterior_of
from bayesieve.core.storage import atomic_write, save
from bayesieve.data import DataSet
from bayesieve.errors import DamagedFileError
from bayesieve.report.card import model_card
from bayesieve.report.collect import collect
from bayesieve.report.packing import Json
from bayesieve.report.page import page
from bayesieve.report.source import Limits, Source
from bayesieve.sieve.scores import SCORES, ScoreName

BEFORE = "posterior-before.safetensors"  # the network a run is compared with, beside its own
_HASHED = ("posterior.safetensors", "config.json", "metrics.json", "curve.json")
_MOST_MEMBERS = 16


def write_run_page(folder: RunFolder, *, before: Model | None = None) -> Path:
    """Write report.html into a run folder.

    Args:
        folder: a finished run.
        before: what it is compared with, such as a dense network; kept beside the run.
    """
    if before is not None:
        save(before, folder.path / BEFORE, extra={"pruned": isinstance(before, SparseModel)})
    out = folder.path / "report.html"
    write_page([folder], out)
    return out


def write_page(
    folders: Sequence[RunFolder],
    out: Path,
    *,
    limits: Limits | None = None,
    device: str = "auto",
    n_test: int | None = None,
    card: Path | None = None,
    data: Path | None = None,
) -> dict[str, Any]:
    """Build one page of several runs; returns what was written and how long it took.

    Args:
        folders: finished runs.
        out: the page.
        limits: how much the page may hold.
        device: where to compute.
        n_test: how many test examples to use, from the first; None for all.
        card: a Markdown model card to write too.
        data: a JSON file for the data behind the page.
    """
    sources = [read_source(folder, device, n_test) for folder in folders]
    started = time.perf_counter()
    collected = collect(_distinct(sources), limits=limits)
    text = page(collected)
    seconds = time.perf_counter() - started
    files = {out: text}
    if card is not None:
        files[card] = model_card(collected)
    if data is not None:
        files[data] = json.dumps(collected)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, content.encode())
    return {
        "report": str(out),
        "bytes": len(text.encode()),
        "seconds": round(seconds, 3),
        "card": None if card is None else str(card),
        "data": None if data is None else str(data),
        "runs": [_summary(run) for run in collected["runs"]],
    }


def _summary(run: Json) -> Json:
    network = run["network"]
    check = None if network is None else network["check"]
    return {
        "name": run["name"],
        "points": len(run["curve"]["points"]),
        "embedded": network is not None,
        "not_embedded": run["not_embedded"],
        "draws": None if network is None else network["n_draws"],
        "max_difference": None if check is None else check["max_difference"],
    }


def read_source(folder: RunFolder, device: str = "auto", n_test: int | None = None) -> Source:
    """A run folder as what a report is made from, with all test examples or the first `n_test`."""
    if not folder.finished:
        raise UsageError(f"{folder.path} is not a finished run: it has no metrics.json.")
    run = load_run(folder, device=device)
    record = folder.read("config.json").get(RECORD, {})
    metrics = folder.read("metrics.json")
    before, name = _before(folder, run, record)
    config = run.config
    seconds = metrics.get("seconds")
    settings = provenance(run, folder)["run"]
    return Source(
        name=folder.path.resolve().name,
        title=f"{config.engine.name} on {run.data.name}, {config.net.name}",
        model=run.model,
        data=_with_test(run.data, n_test),
        before=before,
        before_name=name,
        members=_members(folder, run),
        score=_score(folder, run.model),
        history=_history(folder),
        config={**settings, "schedule": vars(config.schedule), "pruning": vars(config.pruning)},
        versions=record.get("versions", {}),
        hashes={name: _sha256(folder.path / name) for name in _HASHED
                if (folder.path / name).is_file()},
        command=_command(record, config),
        seconds=seconds if isinstance(seconds, int | float) else None,
    )  # fmt: skip


def _with_test(data: DataSet, n: int | None) -> DataSet:
    if n is None or n >= len(data.test):
        return data
    return replace(data, test=data.test.subset(torch.arange(n)))


def _before(folder: RunFolder, run: Run, record: dict[str, Any]) -> tuple[Model | None, str]:
    """The network a run is compared with: kept beside it, or the run it was pruned from."""
    own = folder.path / BEFORE
    network = posterior_of(run.model).network
    if own.is_file():
        return load_model(own, network), "dense"
    source = Path(str(record.get("source", ""))) / "posterior.safetensors"
    if record.get("command") == "prune" and source.is_file():
        return load_model(source, network), "before pruning"
    return None, "dense"


def _members(folder: RunFolder, run: Run) -> tuple[Model, ...]:
    network = posterior_of(run.model).network
    paths = [folder.member(i) for i in range(run.config.training.n_models)][:_MOST_MEMBERS]
    if run.config.training.n_models < 2 or not all(path.is_file() for path in paths):
        return ()
    return tuple(load_model(path, network) for path in paths)


def _score(folder: RunFolder, model: Model) -> ScoreName:
    """What the run was ranked by, else what suits its posterior."""
    known: dict[str, ScoreName] = {name: name for name in SCORES}  # type: ignore[misc]
    named = folder.read("curve.json").get("score") if _has(folder, "curve.json") else None
    return known.get(str(named), "snr" if has_spread(model) else "magnitude")


def _has(folder: RunFolder, name: str) -> bool:
    return (folder.path / name).is_file()


def _history(folder: RunFolder) -> list[dict[str, Any]]:
    file = folder.path / "metrics.jsonl"
    if not file.is_file():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise DamagedFileError(f"{file} is damaged: {error}.") from error


def _command(record: dict[str, Any], config: RunConfig) -> str | None:
    """How the run was made; the demo writes no arguments down, but takes only these two."""
    if record.get("arguments"):
        return f"bayesieve {record['arguments']}"
    if record.get("command") == "demo":
        return f"bayesieve demo --epochs {config.training.epochs} --seed {config.training.seed}"
    return f"bayesieve {record['command']}" if record.get("command") else None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _distinct(sources: Sequence[Source]) -> list[Source]:
    """The same runs, numbered where folders have the same name."""
    names = [source.name for source in sources]
    return [
        source
        if names.count(source.name) == 1
        else replace(source, name=f"{source.name} ({names[: i + 1].count(source.name)})")
        for i, source in enumerate(sources)
    ]
