"""The reference of the site: every public name, on the page of its room.

Public are the names of `bayesieve`, of its namespaces and of its rooms, a few more, and
whatever the documentation imports. mkdocstrings writes each entry from the docstring.
"""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import bayesieve as bs
from bayesieve import runs
from bayesieve.text import markdown_table

ROOMS = {
    "core": "Problems, likelihoods, priors, posteriors",
    "data": "Data",
    "engines": "Engines",
    "training": "Training",
    "contrib": "Other tools",
    "sieve": "Sieving and compaction",
    "assess": "Predictions and their quality",
    "uncertainty": "Uncertainty: OOD scores, intervals, calibration",
    "select": "Which inputs matter",
    "deliver": "Delivery",
    "estimators": "Estimators for tables",
    "report": "The page of a model",
    "runs": "Run folders",
    "nets": "Networks",
}
# Objects that users are given, or that documentation names by another path.
_ALSO = (
    "bayesieve.training.fit.Fit", "bayesieve.training.progress.Progress",
    "bayesieve.core.batch.Batch", "bayesieve.core.layout.Layout", "bayesieve.core.layout.Role",
    "bayesieve.core.posterior.Factorised", "bayesieve.core.posterior.Samples",
    "bayesieve.core.posterior.SparseModel", "bayesieve.core.storage.load_posterior",
    "bayesieve.core.storage.load_sparse", "bayesieve.data.augment.Augment",
    "bayesieve.engines.bmr.Reduction", "bayesieve.engines.laplace.laplace_units",
    "bayesieve.engines.sampling.Averaging", "bayesieve.sieve.evidence.prune_units_by_evidence",
    "bayesieve.sieve.evidence.weight_evidence", "bayesieve.sieve.schedule.AnnealedPruning",
    "bayesieve.sieve.schedule.GradualUnits",
)  # fmt: skip
# Names of a namespace that are meant for users: its other ones serve its files.
_OF_NAMESPACE = {"likelihoods": r"[A-Z]", "priors": r"[A-Z]", "rules": r"keep_[^a]"}
_IMPORT = re.compile(r"^ *from (bayesieve\.[\w.]+) import \(?([\w, \n]+)", re.M)
_DOTTED = re.compile(r"`(?:bs\.|bayesieve\.)((?:\w+\.)+\w+)")


def public_names(pages: list[Path]) -> dict[str, list[str]]:
    """Dotted names by room, each once: at the top of the package where it is there.

    Args:
        pages: Markdown files whose imports count too.

    Example:
        >>> public_names([])["engines"][:2]
        ['bayesieve.AUTO', 'bayesieve.Chain']
    """
    top = {f"bayesieve.{home}.{name}": f"bayesieve.{name}" for name, home in bs._HOME.items()}
    paths = [*top, *_ALSO]
    for name, pattern in _OF_NAMESPACE.items():
        module = getattr(bs, name)
        paths += [f"{module.__name__}.{key}" for key in vars(module) if re.match(pattern, key)]
    for room in ROOMS:
        module = importlib.import_module(f"bayesieve.{room}")
        paths += [f"bayesieve.{room}.{key}" for key in vars(module) if not key.startswith("_")]
    paths += [path for page in pages for path in imported(page.read_text(encoding="utf-8"))]
    names: dict[str, list[str]] = {room: [] for room in ROOMS}
    seen = set()
    for path in paths:
        thing = _find(path)
        if path.startswith("bayesieve.priors.") and thing is not None:  # from several files
            path = f"{thing.__module__}.{thing.__name__}"
        room = path.split(".")[1].replace("checks", "engines")  # AUTO
        if thing is None or id(thing) in seen or room not in ROOMS or room == "runs":
            continue
        seen.add(id(thing))
        if thing is bs.AUTO or path.endswith(f".{thing.__name__}"):
            names[room].append(top.get(path, path))
        else:  # `gpt` is a second name of `GPT`
            names[room].append(f"{thing.__module__}.{thing.__name__}")
    names["runs"] = [f"bayesieve.runs.{name}" for name in runs.__all__]
    return {room: paths for room, paths in names.items() if paths}


def imported(text: str) -> list[str]:
    """Dotted names of the package that a page imports or names in code.

    Example:
        >>> imported("    from bayesieve.data import DataSet, Examples")
        ['bayesieve.data.DataSet', 'bayesieve.data.Examples']
    """
    names = [f"{home}.{name}" for home, found in _IMPORT.findall(text)
             for name in re.findall(r"\w+", found)]  # fmt: skip
    return names + [f"bayesieve.{_home_of(path)}" for path in _DOTTED.findall(text)]


def page(room: str, names: list[str]) -> str:
    """One page: a heading, then an entry for each name."""
    head = f"# {ROOMS[room]}\n\n{_about(room)}\n\n"
    return head + "\n".join(f"::: {name}\n" for name in names)


def overview(names: dict[str, list[str]]) -> str:
    """The first page of the reference: every name with the first line of its docstring."""
    parts = [
        "# Reference",
        "Every public name, from its docstring. `bs` is `import bayesieve as bs`.",
    ]
    for room, paths in names.items():
        rows = []
        for path in paths:
            first = (inspect.getdoc(_find(path)) or "").split("\n")[0]
            name = f"[`{path.removeprefix('bayesieve.')}`]({room}.md#{path})"
            rows.append((name, _cell(first)))
        parts += [f"## {ROOMS[room]}", markdown_table(("name", ""), rows, left=2)]
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    """Text in a table, where a bar would end its cell."""
    return text.replace("|", "\\|")


def _about(room: str) -> str:
    return inspect.getdoc(importlib.import_module(f"bayesieve.{room}")) or ""


def _home_of(path: str) -> str:
    """`rules.keep_units` as `sieve.rules.keep_units`."""
    first, _, rest = path.partition(".")
    return f"{bs._NAMESPACES.get(first, first)}.{rest}"


def _find(path: str) -> Any:
    """Find the class, function or `AUTO` of ours by its dotted name; None for anything else."""
    home, _, name = path.rpartition(".")
    try:
        thing = getattr(importlib.import_module(home), name)
    except (ImportError, AttributeError):
        return None
    ours = getattr(thing, "__module__", "").startswith("bayesieve")
    kinds = inspect.isclass(thing) or inspect.isfunction(thing) or thing is bs.AUTO
    return thing if ours and kinds else None
