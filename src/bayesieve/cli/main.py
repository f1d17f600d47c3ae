"""The entry point: commands, their help, and the exit codes of those that fail.

Exit codes follow the kind of error. 2, the command was called wrongly: `UsageError`, ValueError and
TypeError, which the library raises for arguments. 1, the call was right but the work failed: the
errors of `bayesieve.errors`, the system's (files, memory) and missing packages. 130 or 143, stopped
by Ctrl-C or SIGTERM. Errors are one line on standard error. Anything else is a bug of ours and
keeps its traceback. Nothing here imports torch.
"""

import errno
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bayesieve.cli import commands as commands  # makes them
from bayesieve.cli import signals_to, stopped_by
from bayesieve.cli.console import remarks_shown, with_flags
from bayesieve.cli.flags import COMMANDS, OF_RUNS
from bayesieve.cli.others import OTHERS, data_app, version
from bayesieve.cli.scratch import scratch_app
from bayesieve.errors import BayesieveError, UsageError, out_of_memory, shortage

# Options that `--help` shows of commands with a flag for every setting; `--help-all` has the rest.
USUAL = frozenset(
    {"--data", "--target", "--net", "--engine", "--epochs", "--batch-size", "--lr", "--zeros",
     "--seed", "--device", "--out", "--resume", "--dry-run", "--trials", "--json", "--help",
     "--help-all"}
)  # fmt: skip
# Groups of commands, in the order of the help.
GROUPS = {
    "Start": ("demo", "data", "doctor", "version", "scratch"),
    "Train": ("train", "watch", "fit-table", "select", "compare", "sweep", "runs"),
    "Sieve": ("prune", "sieve", "compact"),
    "Deliver": ("export", "predict", "verify", "profile"),
    "Evidence": ("report", "open", "evaluate", "certify", "attack", "reproduce"),
}
TRACEBACK_VARIABLE = "BAYESIEVE_TRACEBACK"
_ELSEWHERE = "; choose a folder that you may write to"
_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "; make room and try again")
_REMEDIES |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _ELSEWHERE)
_Misuse: Any = typer.BadParameter.__mro__[1]  # typer's error of arguments has no public name


class _Stopped(KeyboardInterrupt):
    """A signal that ends a command."""

    def __init__(self, number: int) -> None:
        super().__init__(stopped_by(number))
        self.exit_code = 128 + number


@contextmanager
def _stoppable() -> Iterator[list[_Stopped]]:
    """Let signals raise, so that files half written are removed and locks released.

    Yields the list of those that came: what a signal interrupts may hide it behind another error,
    as NumPy does while it is imported.
    """
    came: list[_Stopped] = []

    def stop(number: int, _: object) -> None:
        came.append(_Stopped(number))
        raise came[-1]

    with signals_to(stop):
        yield came


class Command(TyperCommand):
    """A command whose help has one list per group of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by group."""
        short = "help_all" in {p.name for p in self.params} and not ctx.params.get("help_all")
        groups: dict[str, list[tuple[str, str]]] = {}
        hidden = 0
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if short and not USUAL & {*param.opts}:
                hidden += 1
                continue
            usual = "Options" if param.param_type_name == "option" else "Arguments"
            panel = None if short else getattr(param, "rich_help_panel", None)
            groups.setdefault(panel or usual, []).append(record)
        for title in sorted(groups, key=lambda name: name != "Arguments"):
            _write(formatter, title, groups[title])
        if hidden:
            more = f"{hidden} more options: {ctx.command_path} --help-all"
            formatter.write_paragraph()
            formatter.write_text(more)


class _Guarded(TyperGroup):
    """Turns the library's errors into one line and an exit code; its help lists groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each group, with the first sentence of their help, whole."""
        for title, names in GROUPS.items():
            texts = {name: self.commands[name].help or "" for name in names}
            rows = [(name, " ".join(s.partition("\n\n")[0].split())) for name, s in texts.items()]
            _write(formatter, title, rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command."""
        try:
            return super().parse_args(ctx, args)
        except _Misuse as error:
            _refuse(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        came: list[_Stopped] = []
        try:
            with remarks_shown(), _stoppable() as came:
                return super().invoke(ctx)
        except _Misuse as error:
            _refuse(error)
            raise
        except KeyboardInterrupt as error:
            message = str(error) or stopped_by(signal.SIGINT)
            _leave(message, getattr(error, "exit_code", 130))
        except BrokenPipeError:
            raise  # the reader has left, as with `| head`: typer ends quietly
        except Exception as error:
            if came:
                _leave(str(came[-1]), came[-1].exit_code)
            code = exit_code(error)
            asked = os.environ.get(TRACEBACK_VARIABLE) and not isinstance(error, UsageError)
            if code is None or asked:
                raise
            _leave(with_flags(_message(error)), code)


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    with formatter.section(title):
        formatter.write_dl(rows)


def exit_code(error: Exception) -> int | None:
    """2 for a wrong call, 1 for work that failed, None for a bug.

    Example:
        >>> exit_code(ValueError("SBNN: lr must be > 0, got -1."))
        2
    """
    if isinstance(error, BayesieveError | OSError | MemoryError | ImportError):
        return 1  # first: a damaged file is also a ValueError
    if isinstance(error, ValueError | TypeError):  # and so a UsageError
        return 2
    return 1 if out_of_memory(error) else None


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        # a file is written beside its place first, under a name nobody asked for
        name = re.sub(r"\.([^/]+)\.[0-9a-f]{16}\.part$", r"\1", str(error.filename))
        remedy = _REMEDIES.get(error.errno or 0, "")
        return f"{name}: {error.strerror[0].lower()}{error.strerror[1:]}{remedy}."
    if out_of_memory(error) and not isinstance(error, BayesieveError):
        reason = str(error).partition("\n")[0].rstrip(".") or "no more is free"
        return f"memory ran out: {reason}. {shortage()}"
    return str(error) or type(error).__name__


def _refuse(error: Any) -> None:
    """Leave with one line; return for a command without arguments, which shows its help."""
    if type(error).show is not _Misuse.show:
        return
    where = "bayesieve" if error.ctx is None else error.ctx.command_path
    said = error.format_message().rstrip(".")
    stop = "" if said.endswith("?") else "."
    _leave(f"{said}{stop} See `{where} --help`.", 2)


def _leave(message: str, code: int) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)


app = typer.Typer(
    cls=_Guarded,
    help="Bayesian sparse deep learning: learn a posterior, sieve out what the data do not need.",
    epilog=f"Start with `bayesieve demo`. {TRACEBACK_VARIABLE}=1 shows where an error comes from.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


_VersionFlag = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
]


@app.callback()
def _options(version: _VersionFlag = False) -> None:
    pass


for _command, _example in [*COMMANDS, *OTHERS]:
    app.command(cls=Command, epilog=f"Example: bayesieve {_example}")(_command)
app.add_typer(data_app, name="data")
_of_runs = typer.Typer(
    help="Work with several runs at once.",
    epilog="Example: bayesieve runs pool runs/a runs/b",
    rich_markup_mode=None,
    no_args_is_help=True,
)
for _command, _example in OF_RUNS:
    _of_runs.command(cls=Command, epilog=f"Example: bayesieve {_example}")(_command)
app.add_typer(_of_runs, name="runs")
app.add_typer(scratch_app, name="scratch")


def run() -> None:
    """Run the command line."""
    app()
