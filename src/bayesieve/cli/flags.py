"""One command-line flag per setting of a run or argument of a command, made from its field."""

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from bayesieve.cli import ended_at_once, uncollected
from bayesieve.cli.console import FLAGS, JsonFlag, heartbeat, print_json, with_flags
from bayesieve.cli.layout import HelpAll
from bayesieve.environment import is_shared, rank_of_process
from bayesieve.errors import UsageError
from bayesieve.runs.arguments import Options
from bayesieve.runs.config import (
    all_settings,
    choices_of,
    hints_of,
    keywords,
    kinds_of,
    word_of,
)

_PANELS = {
    "data": "Data",
    "net": "Network",
    "engine": "Engine",
    "schedule": "Schedule",
    "pruning": "Pruning while training",
    "training": "Training",
}
_METAVARS = {int: "N", float: "NUMBER", str: "TEXT"}
_MOST_METAVAR = 32
_O = TypeVar("_O", bound=Options)


_Commands = list[tuple[Callable[..., None], str]]  # with an example of each, in order of help
COMMANDS: _Commands = []
OF_RUNS: _Commands = []  # of the group `runs`


def command(
    options: type[_O], example: str, group: _Commands = COMMANDS
) -> Callable[[Callable[[_O, dict[str, Any]], None]], Callable[..., None]]:
    """Make a command of its options and of a function that shows the result to people."""

    def made(show: Callable[[_O, dict[str, Any]], None]) -> Callable[..., None]:
        specs = {spec.name: spec for spec in fields(options)}
        recorded = {"arguments"} & {*specs}

        def wrapper(*, json: bool, **values: Any) -> None:
            values.pop("help_all", None)  # it ended the program if it was given
            FLAGS.clear()
            FLAGS.update(flags)
            values |= {name: shlex.join(sys.argv[1:]) for name in recorded}
            asked = options.of(**{k: v for k, v in values.items() if v is not None and v != []})
            with ended_at_once(), uncollected():
                options.load()
            if is_shared() and show.__name__ != "train":
                raise UsageError(
                    f"{show.__name__}: only `train` divides its work among the processes of "
                    "torchrun; start this command without it."
                )
            with heartbeat(show.__name__.replace("_", "-")):
                result = asked()
            if rank_of_process() > 0:
                return  # the first process tells the result
            if json:
                print_json(result)
            else:
                show(asked, result)
            if code := asked.exit_code(result):
                raise typer.Exit(code)

        hints = get_type_hints(options)
        flags = {word: _dashed(word) for word in keywords()} | {
            name: name.upper() if spec.metadata.get("argument") else _dashed(word_of(spec))
            for name, spec in specs.items()
        }
        shown = [spec for name, spec in specs.items() if name not in (*recorded, "settings")]
        parameters = [_parameter(spec, hints[spec.name], flags) for spec in shown]
        parameters.append(_keyword("json", JsonFlag, False))
        if "settings" in specs:
            parameters.append(_keyword("help_all", HelpAll, False))
        for section, spec in all_settings() if "settings" in specs else ():
            keyword, hint = word_of(spec), hints_of(section)[spec.name]
            parameters.append(_parameter(spec, hint, flags, keyword, _PANELS[section]))
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__doc__, wrapper.__name__ = with_flags(options.__doc__ or "", flags), show.__name__
        group.append((wrapper, example))
        return wrapper

    return made


def _parameter(
    spec: Field[Any],
    hint: Any,
    flags: Mapping[str, str],
    name: str | None = None,
    panel: str | None = None,
) -> inspect.Parameter:
    """The flag of an option, or of a setting of a run, which has a panel and is None if not set."""
    about, default = spec.metadata, spec.default
    kind = _value_type(hint)
    metavar = "|".join(choices_of(hint)) or about["metavar"]
    text, is_setting = with_flags(about["help"], flags), panel is not None
    if metavar is None and kind in _METAVARS:
        metavar = _METAVARS[kind]
    elif len(metavar or "") > _MOST_METAVAR:  # too wide for a column
        text += f" One of: {', '.join(choices_of(hint))}."
        metavar = "NAME"
    reading: Any = {"parser": _path, "metavar": metavar or "PATH"} if kind is Path else {}
    reading = {"metavar": metavar} | reading
    if is_setting and default is not MISSING and default not in (None, (), False):
        text += f" [default: {default}]"
    if about.get("argument"):
        flag = typer.Argument(help=text, **reading)
    else:
        main = _dashed(word_of(spec))
        if kind is bool and (is_setting or default is True):
            main = f"{main}/--no-{main[2:]}"
        aliases = [] if about["alias"] is None else [_dashed(about["alias"])]
        flag = typer.Option(
            main,
            *aliases,
            help=text,
            **reading,
            rich_help_panel=panel,
            show_default=not is_setting,
        )
    if is_setting:
        default = None
    elif default is MISSING:
        default = inspect.Parameter.empty
    elif kind is Path and isinstance(default, str):
        default = Path(default)
    value: Any = kind | None if default is None else kind
    return _keyword(name or spec.name, Annotated[value, flag], default)


def _dashed(word: str) -> str:
    return word if word.startswith("-") else "--" + word.replace("_", "-")


def _path(text: str | Path) -> Path:
    """A path of the command line; the empty text would mean the working directory."""
    if not str(text):
        raise typer.BadParameter("the path is empty; give a name, or . for this folder")
    return Path(text)


def _value_type(hint: Any) -> Any:
    """The type of a value on the command line; numbers that may be a list are text."""
    kinds = kinds_of(hint)
    if Path in kinds:
        return Path
    if len(kinds) > 1 or choices_of(hint):
        return str
    if get_origin(kinds[0]) in (tuple, Sequence):
        return list[str] if get_args(kinds[0])[0] is str else list[Path]
    return kinds[0]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
