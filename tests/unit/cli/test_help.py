"""`--help` can be pasted and shows completion; nothing slow is loaded for it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bayesieve import __version__
from bayesieve.cli.main import GROUPS, app
from commands import ok

SRC = Path(__file__).parents[3] / "src"

ROOM = 78  # of 80 columns; a line that is broken there is two commands when it is pasted


def _examples():
    """The example of every command, by name."""
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        yield name, command.epilog
        for inner, nested in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", nested.epilog


@pytest.mark.parametrize(("name", "text"), list(_examples()))
def test_the_example_fits_a_line_and_is_of_this_command(name, text):
    assert text.startswith(f"Example: bayesieve {name}")
    assert len(text) <= ROOM


def test_help_offers_completion_and_the_version():
    shown = ok("--help").stdout
    assert "--install-completion" in shown
    assert "--version" in shown
    assert ok("--version").stdout.strip() == __version__


def test_every_command_is_in_one_group():
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(typer.main.get_command(app).commands)
    shown = ok("--help").stdout
    assert [line[:-1] for line in shown.splitlines() if line[:1].isalpha() and line[-1] == ":"] == [
        "Options", *GROUPS,
    ]  # fmt: skip


def test_training_shows_a_dozen_options_and_all_of_them_on_demand():
    short, whole = ok("train", "--help").stdout, ok("train", "--help-all").stdout
    flags = re.compile(r"^  (?:-\w, )?(--[\w-]+)", re.MULTILINE)
    assert 10 <= len(flags.findall(short)) <= 17
    assert "train --help-all" in short
    assert {*flags.findall(short)} < {*flags.findall(whole)}
    assert "Pruning while training:" in whole


@pytest.mark.parametrize("name", list(typer.main.get_command(app).commands))
def test_no_help_is_cut_or_wider_than_a_terminal(name):
    shown = ok(name, "--help-all" if name in ("train", "sweep") else "--help").stdout
    assert "…" not in shown
    assert "<bool>" not in shown
    # a flag that is longer than the room of its name has a line of its own
    assert [line for line in shown.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_never_loads_torch(arguments):
    code = (
        "import sys; from bayesieve.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
        "print(*{'torch', 'numpy', 'sklearn'} & {*sys.modules}, 'loaded', file=sys.stderr)"
    )
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.split() == ["loaded"]
