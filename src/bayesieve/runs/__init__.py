"""A run folder and everything done with it: what the command line can do, in Python.

Every function has the name of its command and takes the command's flags as keywords, with the same
defaults: both are made from `options` and `config`. It returns what the command prints with
`--json`. Work is loaded on first use, so that the command line's help is instant.

Modules have the names of things, functions those of commands; no name is both.
"""

from collections.abc import Callable as _Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bayesieve.runs import options as _options
from bayesieve.runs.arguments import as_function as _as_function
from bayesieve.runs.config import RunConfig as RunConfig

if TYPE_CHECKING:
    from bayesieve.runs.run import Run as Run
    from bayesieve.runs.run import load as load
    from bayesieve.runs.run import pool as pool

attack = _as_function(_options.Attack)
certify = _as_function(_options.Certify)
compact = _as_function(_options.Compact)
compare = _as_function(_options.Compare)
demo = _as_function(_options.Demo)
evaluate = _as_function(_options.Evaluate)
export = _as_function(_options.Export)
fit_table = _as_function(_options.FitTable)
open_page = _as_function(_options.Open)
pool_runs = _as_function(_options.Pool)
predict = _as_function(_options.Predict)
profile = _as_function(_options.Profile)
prune = _as_function(_options.Prune)
report = _as_function(_options.Report)
select = _as_function(_options.Select)
sieve = _as_function(_options.Sieve)
sweep: _Callable[..., dict[str, Any]] = _as_function(_options.Sweep)
train: _Callable[..., dict[str, Any]] = _as_function(_options.Train)
verify = _as_function(_options.Verify)
watch = _as_function(_options.Watch)

_HOME = {"Run": "run", "load": "run", "pool": "run"}
__all__ = [
    "RunConfig", "attack", "certify", "compact", "compare", "demo", "evaluate", "export",
    "fit_table", "open_page", "pool_runs", "predict", "profile", "prune", "report", "select",
    "sieve", "sweep", "train", "verify", "watch", *_HOME,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bayesieve.runs' has no attribute {name!r}")
    return getattr(import_module(f"bayesieve.runs.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
