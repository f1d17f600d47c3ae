"""The look of `--help`: commands and options in groups, nothing cut, the usual options first."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

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
_ALL = "--help-all"


class Command(TyperCommand):
    """A command whose help has one list per group of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by group."""
        short = _has_settings(self) and not ctx.params.get("help_all")
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
            more = f"{hidden} more options: {ctx.command_path} {_ALL}"
            formatter.write_paragraph()
            formatter.write_text(more)


class Group(TyperGroup):
    """The whole program: its help lists commands by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each group, with the first sentence of their help, whole."""
        for title, names in GROUPS.items():
            texts = {name: self.commands[name].help or "" for name in names}
            rows = [(name, " ".join(s.partition("\n\n")[0].split())) for name, s in texts.items()]
            _write(formatter, title, rows)


def _has_settings(command: Any) -> bool:
    return any(_ALL in param.opts for param in command.params)


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    with formatter.section(title):
        formatter.write_dl(rows)


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked:
        ctx.params["help_all"] = True
        print(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        _ALL, help="Show every option and exit.", callback=_show_all, is_eager=True
    ),
]  # fmt: skip
