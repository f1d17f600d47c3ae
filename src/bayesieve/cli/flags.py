"""One command-line flag per argument of a command and per setting of a run.

Help must not import what commands need: their modules import torch, which takes a second. So the
signature of a command is read from its source. Its annotations are made of names of
`runs.arguments`, its defaults are plain values, and its docstring says what each argument means.
"""

import ast
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer

from bayesieve import runs
from bayesieve.cli import ended_at_once, uncollected
from bayesieve.cli.console import FLAGS, JsonFlag, heartbeat, print_json, with_flags
from bayesieve.environment import is_shared, rank_of_process
from bayesieve.errors import UsageError
from bayesieve.runs import arguments
from bayesieve.runs.arguments import COMMAND_LINE, Arg, Json, plain
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
_WITH_SETTINGS = ("train", "sweep")


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked:
        ctx.params["help_all"] = True
        print(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", help="Show every option and exit.", callback=_show_all, is_eager=True
    ),
]  # fmt: skip

Show = Callable[[Any, Json], None]  # of what was asked and the result
_Commands = list[tuple[Callable[..., None], str]]  # with an example of each, in order of help
COMMANDS: _Commands = []
OF_RUNS: _Commands = []  # of the group `runs`


class _Flag(NamedTuple):
    """An argument or setting as the command line shows it."""

    name: str
    hint: Any
    default: Any  # inspect.Parameter.empty where there is none
    help: str
    about: Arg
    panel: str | None = None  # of a setting of a run, which is None if not set

    @property
    def dashed(self) -> str:
        """The flag itself."""
        return _dashed(self.about.word or self.name)


def command(
    function: str,
    example: str,
    group: _Commands = COMMANDS,
    exit_code: Callable[[Any, Json], int] = lambda asked, result: 0,
) -> Callable[[Show], Callable[..., None]]:
    """Make a command of a function of `bayesieve.runs` and of one that shows its result to people.

    Args:
        function: its name in `bayesieve.runs`.
        example: shown in the help.
        group: the commands that it belongs to.
        exit_code: what it ends with after it has printed its result.
    """
    about, declared = _declared(function)
    flags = {word: _dashed(word) for word in keywords()} | {
        flag.name: flag.name.upper() if flag.about.positional else flag.dashed
        for flag in declared
        if flag.panel is None
    }

    def made(show: Show) -> Callable[..., None]:
        def wrapper(*, json: bool, **values: Any) -> None:
            FLAGS.clear()
            FLAGS.update(flags)
            values.pop("help_all", None)  # it ended the program if it was given
            COMMAND_LINE.set(shlex.join(sys.argv[1:]))
            given = {k: v for k, v in values.items() if v is not None and v != []}
            with ended_at_once(), uncollected():
                work: Callable[..., Json] = getattr(runs, function)
            if is_shared() and show.__name__ != "train":
                raise UsageError(
                    f"{show.__name__}: only `train` divides its work among the processes of "
                    "torchrun; start this command without it."
                )
            with heartbeat(show.__name__.replace("_", "-")):
                result = work(**given)
            if rank_of_process() > 0:
                return  # the first process tells the result
            asked = SimpleNamespace(**values)
            if json:
                print_json(result)
            else:
                show(asked, result)
            if code := exit_code(asked, result):
                raise typer.Exit(code)

        own = [_parameter(flag, flags) for flag in declared if flag.panel is None]
        own.append(_keyword("json", JsonFlag, False))
        if function in _WITH_SETTINGS:
            own.append(_keyword("help_all", HelpAll, False))
        own += [_parameter(flag, flags) for flag in declared if flag.panel is not None]
        wrapper.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        wrapper.__doc__ = with_flags(about, flags)
        wrapper.__name__ = show.__name__
        group.append((wrapper, example))
        return wrapper

    return made


def _declared(function: str) -> tuple[str, list[_Flag]]:
    """The docstring of a command up to its arguments, and these, with all settings it takes.

    Example:
        >>> about, flags = _declared("verify")
        >>> [(flag.name, flag.help) for flag in flags][0]
        ('bundle', 'Bundle folder.')
    """
    node = _functions(runs.HOME[function])[function]
    about, _, rest = (ast.get_docstring(node) or "").partition("\n\nArgs:\n")
    said = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", rest.partition("\n\n")[0], re.M)
    helps = {name: " ".join(text.split()) for name, text in said}
    args, found = node.args, []
    required = [None] * (len(args.args) - len(args.defaults))
    defaults = [*required, *args.defaults, *args.kw_defaults]
    for one, value in zip([*args.args, *args.kwonlyargs], defaults, strict=True):
        annotation = ast.unparse(one.annotation or ast.Name("Any"))
        hint, notes = plain(eval(annotation, vars(arguments)))
        default = inspect.Parameter.empty if value is None else ast.literal_eval(value)
        joined = {k: v for arg in notes for k, v in vars(arg).items() if v not in (None, False)}
        found.append(_Flag(one.arg, hint, default, helps[one.arg], Arg(**joined)))
    for section, spec in all_settings() if function in _WITH_SETTINGS else ():
        name, hint, known = word_of(spec), hints_of(section)[spec.name], spec.metadata
        panel = _PANELS[section]
        found.append(_Flag(name, hint, spec.default, known["help"], known["arg"], panel))
    return about, found


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    source = (Path(runs.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    nodes = ast.parse(source).body
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def _parameter(flag: _Flag, flags: Mapping[str, str]) -> inspect.Parameter:
    """A parameter as typer takes it."""
    kind, choices, default = _value_type(flag.hint), choices_of(flag.hint), flag.default
    metavar = "|".join(choices) or flag.about.metavar
    text, is_setting = with_flags(flag.help, flags), flag.panel is not None
    if metavar is None and kind in _METAVARS:
        metavar = _METAVARS[kind]
    elif len(metavar or "") > _MOST_METAVAR:  # too wide for a column
        text += f" One of: {', '.join(choices)}."
        metavar = "NAME"
    reading: Any = {"parser": _path, "metavar": metavar or "PATH"} if kind is Path else {}
    reading = {"metavar": metavar} | reading
    if is_setting and default not in (None, (), False):
        text += f" [default: {default}]"
    option: Any
    if flag.about.positional:
        if kind in (Path, list[Path]) and flag.about.metavar is None:
            reading["metavar"] = flag.name.upper()
        option = typer.Argument(help=text, **reading)
    else:
        main = flag.dashed
        if kind is bool and (is_setting or default is True):
            main = f"{main}/--no-{main[2:]}"
        aliases = [] if flag.about.alias is None else [_dashed(flag.about.alias)]
        option = typer.Option(
            main,
            *aliases,
            help=text,
            **reading,
            rich_help_panel=flag.panel,
            show_default=not is_setting,
        )
    if is_setting:
        default = None
    elif kind is Path and isinstance(default, str):
        default = Path(default)
    value: Any = kind | None if default is None else kind
    return _keyword(flag.name, Annotated[value, option], default)


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
