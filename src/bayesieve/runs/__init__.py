"""A run folder and everything done with it: what the command line can do, in Python.

Every function has the name of its command and takes the command's flags as keywords, with the same
defaults. It returns what the command prints with `--json`. Names are loaded on first use, so that
the command line's help is instant.

Modules have the names of things, functions those of commands; no name is both.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesieve.runs.bundle import compact as compact
    from bayesieve.runs.bundle import verify as verify
    from bayesieve.runs.comparison.compare import compare as compare
    from bayesieve.runs.config import RunConfig as RunConfig
    from bayesieve.runs.formats import export as export
    from bayesieve.runs.learn import train as train
    from bayesieve.runs.page import report as report
    from bayesieve.runs.predictions import predict as predict
    from bayesieve.runs.results import evaluate as evaluate
    from bayesieve.runs.robustness import attack as attack
    from bayesieve.runs.run import Run as Run
    from bayesieve.runs.run import load as load
    from bayesieve.runs.run import pool as pool
    from bayesieve.runs.search import sweep as sweep
    from bayesieve.runs.showcase import demo as demo
    from bayesieve.runs.sparse import prune as prune
    from bayesieve.runs.sparse import sieve as sieve
    from bayesieve.runs.timing import profile as profile

_HOME = {
    "RunConfig": "config",
    "Run": "run",
    "load": "run",
    "pool": "run",
    "train": "learn",
    "prune": "sparse",
    "sieve": "sparse",
    "evaluate": "results",
    "attack": "robustness",
    "compact": "bundle",
    "verify": "bundle",
    "export": "formats",
    "predict": "predictions",
    "profile": "timing",
    "report": "page",
    "compare": "comparison.compare",
    "sweep": "search",
    "demo": "showcase",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bayesieve.runs' has no attribute {name!r}")
    return getattr(import_module(f"bayesieve.runs.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
