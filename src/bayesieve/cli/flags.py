"""One command-line flag per setting of a run or argument of a command, made from its field."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from bayesieve.cli.console import JsonFlag, given_arguments, print_json
from bayesieve.runs.config import all_settings, keyword_of, sections
from bayesieve.runs.options import Options

_PANELS = {
    "data": "Data",
    "net": "Network",
    "engine": "Engine",
    "schedule": "Schedule",
    "pruning": "Pruning while training",
    "training": "Training",
}
_O = TypeVar("_O", bound=Options)


def command(
    options: type[_O],
) -> Callable[[Callable[[_O, dict[str, Any]], None]], Callable[..., None]]:
    """Make a command of its options and of a function that shows the result to people."""

    def made(show: Callable[[_O, dict[str, Any]], None]) -> Callable[..., None]:
        specs = {spec.name: spec for spec in fields(options)}
        recorded = {"arguments"} & {*specs}
        settings = _settings() if "settings" in specs else {}

        def wrapper(*, json: bool, **values: Any) -> None:
            values |= {name: given_arguments() for name in recorded}
            if settings:
                chosen = {name: values.pop(name) for name in settings}
                set_ones = {name: v for name, v in chosen.items() if v is not None and v != []}
                values["settings"] = set_ones
            asked = options(**values)
            result = asked()
            if json:
                print_json(result)
            else:
                show(asked, result)

        hints = get_type_hints(options)
        shown = [spec for name, spec in specs.items() if name not in (*recorded, "settings")]
        parameters = [_from_option(spec, hints[spec.name]) for spec in shown]
        parameters += [_keyword("json", JsonFlag, False), *settings.values()]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__doc__, wrapper.__name__ = options.__doc__, show.__name__
        return wrapper

    return made


def _from_option(spec: Field[Any], hint: Any) -> inspect.Parameter:
    about = spec.metadata
    kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    kind: Any = _plain_type([kind for kind in kinds if kind is not NoneType])
    if about.get("argument"):
        flag = typer.Argument(help=about["help"], metavar=about["metavar"])
    else:
        names = (about["flag"] or "--" + spec.name.replace("_", "-")).split(",")
        if spec.default is True:
            names = [f"{names[0]}/--no-{names[0][2:]}"]
        flag = typer.Option(
            *names, help=about["help"], metavar=about["metavar"], min=about["least"],
            max=about["most"],
        )  # fmt: skip
    default = inspect.Parameter.empty if spec.default is MISSING else spec.default
    if kind is Path and isinstance(default, str):
        default = Path(default)
    return _keyword(spec.name, Annotated[kind | None if NoneType in kinds else kind, flag], default)


def _plain_type(kinds: list[Any]) -> Any:
    """The type of a value on the command line; lists of numbers are text."""
    if Path in kinds:
        return Path
    if str in kinds:
        return str
    if get_origin(kinds[0]) is Sequence:
        (item,) = get_args(kinds[0])
        return list[str] if item is str else list[Path]
    return kinds[0]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _settings() -> dict[str, inspect.Parameter]:
    """One flag per setting of a run, by keyword."""
    flags = {keyword_of(spec.metadata["flag"]): (section, spec) for section, spec in all_settings()}
    return {key: _parameter(key, *pair) for key, pair in flags.items()}


def _parameter(key: str, section: str, spec: Field[Any]) -> inspect.Parameter:
    hint = get_type_hints(sections()[section])[spec.name]
    kind, choices = _flag_type(hint)
    flag, text = spec.metadata["flag"], spec.metadata["help"]
    if spec.default is not MISSING and spec.default not in (None, (), False):
        text += f" [default: {spec.default}]"
    names = [f"{flag}/--no-{flag[2:]}" if kind is bool else flag]
    if spec.metadata["alias"] is not None:
        names.append(spec.metadata["alias"])
    option = typer.Option(
        *names,
        help=text,
        metavar=choices or spec.metadata["metavar"],
        rich_help_panel=_PANELS[section],
        show_default=False,
    )
    python_type: Any = list[str] if kind is tuple else kind
    annotation = Annotated[python_type | None, option]
    return _keyword(key, annotation, None)


def _flag_type(hint: Any) -> tuple[Any, str | None]:
    """The type of a flag, and its choices if it has any."""
    options = [hint] if get_origin(hint) in (tuple, Literal, None) else list(get_args(hint))
    options = [kind for kind in options if kind is not NoneType]
    if len(options) > 1:
        return str, None  # numbers, which may be a list
    if get_origin(options[0]) is Literal:
        return str, "|".join(get_args(options[0]))
    return (tuple, None) if get_origin(options[0]) is tuple else (options[0], None)
