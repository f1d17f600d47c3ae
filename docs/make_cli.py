"""Write the flags of every command into docs/cli.md, from the commands themselves.

python docs/make_cli.py          # renew the tables
python docs/make_cli.py --check  # exit code 1 if one is out of date
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from bayesieve.cli.main import app

PAGE = Path(__file__).with_name("cli.md")
_BLOCK = re.compile(r"(<!-- flags of ([\w -]+):begin -->\n).*?(<!-- flags of \2:end -->)", re.S)


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its name, such as "runs pool"."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        else:
            yield before + name, command


def flags_table(command: Any) -> str:
    """The arguments and flags of a command as a table, its groups of flags in bold."""
    rows, title = [], None
    for parameter in command.params:
        panel = getattr(parameter, "rich_help_panel", None)
        if panel != title:
            title = panel
            rows.append((f"**{title}**", ""))
        flags = [*parameter.opts, *parameter.secondary_opts]
        if parameter.param_type_name == "argument":
            flags = [parameter.metavar or parameter.name.upper()]
        text = " ".join((parameter.help or "").split())
        if "|" in (parameter.metavar or "") and " One of: " not in text:
            text += f" One of: {', '.join(parameter.metavar.split('|'))}."
        text = _with_default(text, parameter).replace("|", "\\|")
        rows.append((", ".join(f"`{flag}`" for flag in flags), text))
    return "\n".join(["| flag | |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows)])


def _with_default(text: str, parameter: Any) -> str:
    default = parameter.default
    words = (parameter.required and " Required.") or ""
    if default not in (None, False, (), []) and not callable(default) and "[default" not in text:
        shown = {True: "on"}.get(default, default)
        words = f" [default: {shown}]"
    return text + words


def filled(page: str) -> str:
    """The page with its tables renewed."""
    known = dict(commands())

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}{flags_table(known[found[2]])}\n{found[3]}"

    return _BLOCK.sub(table, page)


def missing(page: str) -> list[str]:
    """Commands with flags whose table the page lacks."""
    found = {name for _, name, _ in _BLOCK.findall(page)}
    return [name for name, command in commands() if command.params and name not in found]


def main() -> int:
    """Renew docs/cli.md, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    if lacking := missing(page):
        print(f"{PAGE.name}: no table of flags of {', '.join(lacking)}", file=sys.stderr)
        return 1
    if "--check" not in sys.argv:
        PAGE.write_text(filled(page), encoding="utf-8")
    elif filled(page) != page:
        print(f"{PAGE.name} is out of date: run python docs/make_cli.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
