"""One command-line flag per setting, made from the description of its field."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from bayesieve.runs.config import all_settings, keyword_of, sections

_PANELS = {
    "data": "Data",
    "net": "Network",
    "engine": "Engine",
    "schedule": "Schedule",
    "pruning": "Pruning while training",
    "training": "Training",
}
Settings = dict[str, Any]  # keyword -> value, only those that were set


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag per setting; it receives those that were set as `settings`."""
    arguments = inspect.signature(command).parameters
    flags = {keyword_of(spec.metadata["flag"]): (section, spec) for section, spec in all_settings()}

    def wrapper(**values: Any) -> None:
        settings = {key: values.pop(key) for key in flags}
        set_ones = {key: v for key, v in settings.items() if v is not None and v != []}
        command(settings=set_ones, **values)

    parameters = [p for name, p in arguments.items() if name != "settings"]
    parameters += [_parameter(key, *pair) for key, pair in flags.items()]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    return wrapper


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
    return inspect.Parameter(
        key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _flag_type(hint: Any) -> tuple[Any, str | None]:
    """The type of a flag, and its choices if it has any."""
    options = [hint] if get_origin(hint) in (tuple, Literal, None) else list(get_args(hint))
    options = [kind for kind in options if kind is not NoneType]
    if len(options) > 1:
        return str, None  # numbers, which may be a list
    if get_origin(options[0]) is Literal:
        return str, "|".join(get_args(options[0]))
    return (tuple, None) if get_origin(options[0]) is tuple else (options[0], None)
