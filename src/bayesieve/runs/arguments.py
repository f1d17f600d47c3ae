"""Types of the arguments of commands, and how these are checked. Nothing here imports torch.

A command is a plain function with `@command`. The command line makes its flags from the signature
and the docstring, which it reads without importing the function (`cli.flags`): annotations of
commands are made of the names of this module.
"""

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Sequence
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from bayesieve.checks import (
    check_choice,
    check_fraction,
    check_not_negative,
    check_positive,
)
from bayesieve.errors import UsageError
from bayesieve.runs.config import Arg as Arg
from bayesieve.runs.config import RunConfig, check_threads, choices_of, kinds_of
from bayesieve.runs.config import Score as Score

P = ParamSpec("P")
R = TypeVar("R")
# The command line that is under way, for records; None in Python.
COMMAND_LINE: ContextVar[str | None] = ContextVar("COMMAND_LINE", default=None)


def _check_draws(who: str, **values: str | int) -> None:
    for name, value in values.items():
        if value != "auto" and not str(value).isdecimal():
            raise ValueError(f"{who}: {name} must be a number of draws or auto, got {value}.")


Json = dict[str, Any]  # what a command returns, and prints with the flag json: plain data
Place = Path | str
# settings as an object, as nested plain data, or as a YAML, TOML or JSON file
Config = RunConfig | Mapping[str, Mapping[str, Any]] | Place
Task = Literal["regression", "classification"]
Missing = Literal["refuse", "impute"]
Noise = Literal["gaussian", "student-t", "heteroscedastic", "poisson", "negative-binomial"]
ARGUMENT = Arg(positional=True)
COLUMN = Arg(metavar="COLUMN")
LIST = Arg(metavar="LIST")
Count = Annotated[int, Arg(check_positive)]
WholeNumber = Annotated[int, Arg(check_not_negative)]
Threads = Annotated[int, Arg(check_threads)]
Positive = Annotated[float, Arg(check_positive)]
NotNegative = Annotated[float, Arg(check_not_negative)]
Fraction = Annotated[float, Arg(check_fraction)]
Share = Annotated[float, Arg(partial(check_fraction, open_ends=True))]
Draws = Annotated[str | int, Arg(_check_draws, metavar="N|auto")]


def n_samples_of(samples: str | int) -> int | None:
    """Draws as `predict` takes them: a number, or None for as many as their error asks for.

    Example:
        >>> n_samples_of("auto"), n_samples_of("32")
        (None, 32)
    """
    return None if samples == "auto" else int(samples)


def plain(hint: Any) -> tuple[Any, list[Arg]]:
    """A type without its annotations, and these.

    Example:
        >>> plain(Count | None)[0]
        int | None
    """
    if get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        kind, about = plain(inner)
        return kind, about + [one for one in more if isinstance(one, Arg)]
    kinds = get_args(hint) if any(get_origin(one) is Annotated for one in get_args(hint)) else ()
    if not kinds:
        return hint, []
    parts = [plain(one) for one in kinds]
    united = parts[0][0]
    for kind, _ in parts[1:]:
        united = united | kind
    return united, [arg for _, about in parts for arg in about]


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a command before it begins.

    Each must be one of its choices, pass its check, and be no empty path.
    """
    signature, who = inspect.signature(function), function.__name__.replace("_", "-")

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = get_type_hints(function, include_extras=True)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            hint, about = plain(hints[name])
            if value == "" and Path in kinds_of(hint):
                raise UsageError(f"{who}: `{name}` is empty; give a name.")
            if value is None or name == "settings":
                continue
            if choices := choices_of(hint):
                check_choice(who, name, value, choices)
            for check in (arg.check for arg in about if arg.check is not None):
                check(who, **{name: value})
        return function(*args, **kwargs)

    return checked
