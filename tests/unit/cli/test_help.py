"""What `--help` shows can be pasted."""

import pytest
import typer

from bayesieve.cli.main import app

ROOM = 78  # of 80 columns; a line that is broken there is two commands when it is pasted


def _examples():
    """The example of every command, by name."""
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        yield name, command.epilog
        for inner, own in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", own.epilog


@pytest.mark.parametrize(("name", "text"), list(_examples()))
def test_the_example_fits_a_line_and_is_of_this_command(name, text):
    assert text.startswith(f"Example: bayesieve {name}")
    assert len(text) <= ROOM
