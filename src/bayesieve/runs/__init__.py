"""A run folder and everything done with it: what the command line can do, in Python.

Every function has the name of its command and takes the command's flags as keywords, with the same
defaults: the command line reads its signature. It returns what the command prints with the flag
json. Functions are loaded on first use, so that the command line's help is instant.

Modules have the names of things, functions those of commands; no name is both.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesieve.runs.bundle import compact as compact
    from bayesieve.runs.bundle import export as export
    from bayesieve.runs.bundle import verify as verify
    from bayesieve.runs.certificate import certify as certify
    from bayesieve.runs.clone import compare as compare
    from bayesieve.runs.clone import sweep as sweep
    from bayesieve.runs.config import RunConfig as RunConfig
    from bayesieve.runs.folder import watch as watch
    from bayesieve.runs.learn import pool_runs as pool_runs
    from bayesieve.runs.learn import train as train
    from bayesieve.runs.page import open_page as open_page
    from bayesieve.runs.page import report as report
    from bayesieve.runs.predictions import predict as predict
    from bayesieve.runs.robustness import attack as attack
    from bayesieve.runs.run import Run as Run
    from bayesieve.runs.run import evaluate as evaluate
    from bayesieve.runs.run import load as load
    from bayesieve.runs.run import pool as pool
    from bayesieve.runs.showcase import demo as demo
    from bayesieve.runs.sparse import prune as prune
    from bayesieve.runs.sparse import sieve as sieve
    from bayesieve.runs.tables import fit_table as fit_table
    from bayesieve.runs.tables import select as select
    from bayesieve.runs.timing import profile as profile

HOME = {  # module of each name
    "Run": "run", "RunConfig": "config", "attack": "robustness", "certify": "certificate",
    "compact": "bundle", "compare": "clone", "demo": "showcase", "evaluate": "run",
    "export": "bundle", "fit_table": "tables", "load": "run", "open_page": "page", "pool": "run",
    "pool_runs": "learn", "predict": "predictions", "profile": "timing", "prune": "sparse",
    "report": "page", "select": "tables", "sieve": "sparse", "sweep": "clone", "train": "learn",
    "verify": "bundle", "watch": "folder",
}  # fmt: skip
__all__ = [*HOME]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'bayesieve.runs' has no attribute {name!r}")
    return getattr(import_module(f"bayesieve.runs.{HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
