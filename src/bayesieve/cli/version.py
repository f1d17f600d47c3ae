"""`bayesieve version`, and the same as `bayesieve --version`."""

from typing import Annotated

import typer

from bayesieve import __version__
from bayesieve.cli.console import JsonFlag, print_json

EXAMPLE = "Example: bayesieve version"


def version(json: JsonFlag = False) -> None:
    """Print the version."""
    if json:
        print_json({"version": __version__})
    else:
        print(__version__)


def _print_and_exit(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


VersionFlag = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", callback=_print_and_exit, is_eager=True
    ),
]
