"""`report`: run folders in, one page out."""

import json
import re
import time
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch

from bayesieve.core.posterior import Model
from bayesieve.errors import BayesieveError, UsageError
from bayesieve.files import check_output, same_place, sha256, write_atomically
from bayesieve.report.collect import collect
from bayesieve.report.page import page
from bayesieve.report.source import Limits, Source
from bayesieve.runs.arguments import ARGUMENT, Arg, Count, Json, Place, command
from bayesieve.runs.bundle import provenance
from bayesieve.runs.config import all_settings
from bayesieve.runs.folder import PAGE, RunFolder
from bayesieve.runs.run import load_finished, parent_of, usual_score
from bayesieve.runs.text import note
from bayesieve.sieve.ranking import SCORES, ScoreName

_HASHED = ("posterior.safetensors", "config.json", "metrics.json", "curve.json")
_MOST_MEMBERS = 16


@command
def report(
    runs: Annotated[Sequence[Place], Arg(positional=True, metavar="RUN...")],
    out: Annotated[Place | None, Arg(alias="-o")] = None,
    *,
    before: Annotated[Place | None, Arg(metavar="RUN")] = None,
    points: int = 21,
    test_examples: Count | None = None,
    data: Place | None = None,
    check: bool = False,
    device: str = "auto",
    trust: bool = False,
) -> Json:
    """Write a self-contained HTML page: curves, calibration, examples, and the network to try.

    Args:
        runs: Run folders of `train`, `prune`, `sieve` or `demo`.
        out: Page to write; report.html in the only run unless given.
        before: Run to compare with, such as a dense one; the run it was pruned from unless given.
        points: Positions of the slider, 2 to 250.
        test_examples: Test on the first so many examples: for large networks on a CPU.
        data: Write the data behind the page as JSON too.
        check: End with exit code 1 if a check of the page fails.
        device: auto, cpu, cuda or cuda:N.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    if out is None and len(runs) > 1:
        raise UsageError("give the page of several runs a place: -o report.html.")
    if not 2 <= points <= 250:
        raise UsageError(f"`points` must be from 2 to 250, got {points}.")
    target = Path(runs[0]) / "report.html" if out is None else Path(out)
    folders = [RunFolder(Path(run)) for run in runs]
    compared = None if before is None else RunFolder(Path(before))
    for folder in (*folders, *([compared] if compared else [])):
        folder.read_config()  # names a folder that is no run before anything is loaded
    outputs = {"`out`": target, "`data`": data}
    _check_outputs({f: Path(path) for f, path in outputs.items() if path is not None}, folders)
    sources = [
        read_source(folder, device, test_examples, compared, trust=trust) for folder in folders
    ]
    started = time.perf_counter()
    collected = collect(
        _distinct(sources),
        limits=Limits(points=points),
        ready={run["key"]: run for folder in folders for run in _made_before(folder)},
        tell=note,
    )
    text = page(collected)
    seconds = time.perf_counter() - started
    files: dict[Path, str] = {target: text}
    if data is not None:
        files[Path(data)] = json.dumps(collected)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, content, folders)
    return {
        "report": str(target),
        "bytes": len(text.encode()),
        "seconds": round(seconds, 3),
        "data": None if data is None else str(data),
        "runs": [_summary(run) for run in collected["runs"]],
    }


@command
def open_page(
    run: Annotated[Place, ARGUMENT],
    *,
    device: str = "auto",
    trust: bool = False,
) -> Json:
    """Open the page of a run in the browser, and make it first if there is none.

    Args:
        run: Run folder, or a page of `report`.
        device: auto, cpu, cuda or cuda:N.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
    """
    place = Path(run)
    page = place if place.is_file() else place / PAGE
    if page.suffix != ".html":
        raise UsageError(f"open: {page} is no page; give a run folder or an HTML file.")
    if not page.is_file():
        RunFolder(place).read_config()  # names a folder that is no run
        note(f"{place} has no page yet: making it")
        report([place], device=device, trust=trust)
    return {"page": str(page), "opened": webbrowser.open(page.resolve().as_uri())}


def add_page(folder: RunFolder, device: str, *, trust: bool) -> None:
    """Write the page of a run that has just ended, or say why it has none."""
    try:
        report([folder.path], device=device, trust=trust)
    except (BayesieveError, ValueError, TypeError) as error:
        note(f"no page: {error}")


def _made_before(folder: RunFolder) -> list[Json]:
    """The runs in the page that lies in a folder, whose numbers need not be computed again."""
    if not (folder.path / PAGE).is_file():
        return []
    try:
        text = folder.read_bytes(PAGE).decode()
        found = re.search(r'<script type="application/json" id="data">([^<]*)</script>', text)
        data = json.loads(found[1]) if found else {}
    except (ValueError, RecursionError, BayesieveError):  # damaged: it is made anew
        return []
    runs = data.get("runs") if isinstance(data, dict) else None
    return [run for run in runs or () if isinstance(run, dict) and isinstance(run.get("key"), str)]


def _check_outputs(outputs: Mapping[str, Path], folders: Sequence[RunFolder]) -> None:
    """Raise if an output is no regular file, an input, a foreign file in a run, or given twice."""
    inputs = [file for folder in folders for file in folder.inputs()]
    taken: dict[Path, str] = {}
    for flag, path in outputs.items():
        target = check_output(path, inputs, flag)
        if target in taken:
            raise UsageError(f"{flag} and {taken[target]} are the same file, {path}.")
        taken[target] = flag
        if (home := _home(path, folders)) is not None:
            home.check_place(path.name, flag=flag)


def _home(path: Path, folders: Sequence[RunFolder]) -> RunFolder | None:
    """The run folder that a file lies in, if it is one of these."""
    return next((folder for folder in folders if same_place(folder.path, path.parent)), None)


def _write(path: Path, content: str, folders: Sequence[RunFolder]) -> None:
    home = _home(path, folders)
    if home is None:
        write_atomically(path, content)
        return
    with home.locked():
        home.write(path.name, content)
        home.seal()


def _summary(run: Json) -> Json:
    network = run["network"]
    check = None if network is None else network["check"]
    sides = {side: run["headline"][side] for side in ("before", "after")}
    return {
        "name": run["name"],
        "title": run["title"],
        "checks": run["checks"],
        "points": len(run["curve"]["points"]),
        "embedded": network is not None,
        "not_embedded": run["not_embedded"],
        "draws": None if network is None else network["n_draws"],
        "max_difference": None if check is None else check["max_difference"],
        "latency_ms": {side: numbers["latency_ms"] for side, numbers in sides.items()},
        "runtime_ms": {side: numbers["runtime_ms"] for side, numbers in sides.items()},
    }


def read_source(
    folder: RunFolder,
    device: str = "auto",
    n_test: int | None = None,
    compared: RunFolder | None = None,
    *,
    trust: bool = False,
) -> Source:
    """A run folder as what a report is made from.

    Args:
        folder: a finished run.
        device: where to compute.
        n_test: how many test examples to use, from the first; None for all.
        compared: the run it is compared with; None takes the one it was pruned from, if any.
        trust: whether to import the factory that a run names, if its file is unchanged.
    """
    run = load_finished(folder, device, trust=trust)
    record = folder.record
    metrics = folder.read("metrics.json")
    before, name = parent_of(run, compared, device=device, trust=trust)
    config, data, members = run.config, run.data, run.models(_MOST_MEMBERS)
    if n_test is not None and n_test < len(data.test):
        data = replace(data, test=data.test.subset(torch.arange(n_test)))
    seconds = metrics.get("seconds")
    settings, files = provenance(run)["run"], [folder.path / name for name in _HASHED]
    command = record.get("arguments") or record.get("command")
    if command == "demo":  # which writes no arguments down, but takes only these two
        asked = {"epochs": config.training.epochs, "seed": config.training.seed}
        command = " ".join([command, *(f"--{key} {value}" for key, value in asked.items())])
    return Source(
        name=folder.path.resolve().name,
        title=f"{config.engine.name} on {data.name}, {config.net.name}",
        model=run.model,
        data=data,
        before=before,
        before_name=name,
        members=tuple(members) if len(members) > 1 else (),
        drawn=run.pooled(),
        score=_score(folder, run.model),
        history=folder.history(),
        certificate=run.certificate,
        familiarity=run.familiarity,
        kl=config.tempering,
        provenance={
            "command": command and f"bayesieve {command}",
            "config": {
                **settings,
                "schedule": vars(config.schedule),
                "pruning": vars(config.pruning),
            },
            "meanings": {f"{s}.{f.name}": f.metadata["help"] for s, f in all_settings()},
            "versions": record.get("versions", {}),
            "hashes": {path.name: sha256(path) for path in files if path.is_file()},
            "seconds": seconds if isinstance(seconds, int | float) else None,
            "folder": folder.path.name if folder.path.is_absolute() else folder.path.as_posix(),
        },
    )


def _score(folder: RunFolder, model: Model) -> ScoreName:
    """The score the run was ranked by, else the one that suits its posterior."""
    ranked = (folder.path / "curve.json").is_file()
    named: Any = folder.read("curve.json").get("score") if ranked else None
    score: ScoreName = named if named in [*SCORES] else usual_score(model)
    return score


def _distinct(sources: Sequence[Source]) -> list[Source]:
    """The same runs, numbered where folders have the same name."""
    names = [source.name for source in sources]
    return [
        source
        if names.count(source.name) == 1
        else replace(source, name=f"{source.name} ({names[: i + 1].count(source.name)})")
        for i, source in enumerate(sources)
    ]
