"""How the arguments of a command are declared: once, for the command line and for Python.

A command is a dataclass of `Options`; each field has its help, default and check. The command line
makes its flags from the fields, `as_function` a function with the same words. Nothing here imports
torch.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, Self, get_type_hints

from bayesieve.checks import check_choice
from bayesieve.errors import UsageError
from bayesieve.runs.config import check_values, choices_of, kinds_of, setting, word_of

P = ParamSpec("P")
option: Any = partial(setting, kw_only=True)  # a `setting` may be given by position too


def argument(help: str, default: Any = MISSING, *, metavar: str | None = None) -> Any:
    """A dataclass field that the command line takes by position."""
    return field(default=default, metadata={"help": help, "argument": True, "metavar": metavar})


def command_line() -> Any:
    """A dataclass field for the command line that is written down in records; no flag."""
    return field(default=None, kw_only=True, metadata={"help": "the command line, for records"})


def run_settings() -> Any:
    """A dataclass field for the settings of `config` that are set, by keyword; a flag each."""
    about = {"help": "by the names of the flags, such as data='digits', engine='sbnn', zeros=0.9"}
    return field(default_factory=dict, kw_only=True, metadata=about)


@dataclass(frozen=True)
class Options:
    """The arguments of one command, checked."""

    work: ClassVar[str]  # module and function of `bayesieve.runs` that do it

    def __post_init__(self) -> None:
        command, hints = self.command_name(), get_type_hints(type(self))
        for spec in fields(self):
            value, choices = getattr(self, spec.name), choices_of(hints[spec.name])
            if value == "" and Path in kinds_of(hints[spec.name]):
                raise UsageError(f"{command}: `{word_of(spec)}` is empty; give a name.")
            if choices and value is not None:
                check_choice(command, word_of(spec), value, choices)
        check_values(command, self)

    @classmethod
    def command_name(cls) -> str:
        """The command as it is written on the command line."""
        return cls.work.rpartition(".")[2].replace("_", "-")

    @classmethod
    def of(cls, *args: Any, **values: Any) -> Self:
        """Options by name, among them settings of a run where the command takes them."""
        names = {spec.name for spec in fields(cls)}
        if "settings" in names:
            values["settings"] = {name: values.pop(name) for name in [*values] if name not in names}
        return cls(*args, **values)

    def exit_code(self, result: Mapping[str, Any]) -> int:
        """What the command ends with after it has printed its result."""
        return 0

    @classmethod
    def load(cls) -> Callable[[Self], dict[str, Any]]:
        """Import the function that does the work."""
        module, _, name = cls.work.rpartition(".")
        function: Callable[[Self], dict[str, Any]]
        function = getattr(import_module(f"bayesieve.runs.{module}"), name)
        return function

    def __call__(self) -> dict[str, Any]:
        """Do the work; returns what the command prints as JSON."""
        return self.load()(self)


def as_function(options: Callable[P, Options]) -> Callable[P, dict[str, Any]]:
    """A function with the arguments of a command.

    Example:
        >>> from bayesieve.runs.options import Verify
        >>> verify = as_function(Verify)
        >>> list(inspect.signature(verify).parameters)
        ['bundle', 'against', 'trust']
    """
    kind: Any = options
    parameters = dict(inspect.signature(kind).parameters)

    def function(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        result: dict[str, Any] = kind.of(*args, **kwargs)()
        return result

    if "settings" in parameters:
        rest = inspect.Parameter.VAR_KEYWORD
        parameters["settings"] = inspect.Parameter("settings", rest, annotation=Any)
    specs = "\n".join(f"    {spec.name}: {spec.metadata['help']}" for spec in fields(kind))
    function.__name__ = function.__qualname__ = kind.work.rpartition(".")[2]
    returns = "Returns:\n    What the command prints as JSON."
    function.__doc__ = f"{inspect.getdoc(kind)}\n\nArgs:\n{specs}\n\n{returns}"
    function.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    return function
