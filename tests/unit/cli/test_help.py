"""`--help` can be pasted and shows completion; nothing slow is loaded for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bayesieve import __version__
from bayesieve.cli.main import app
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
