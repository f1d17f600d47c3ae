"""`bayesieve version`."""

from bayesieve import __version__
from bayesieve.cli.console import JsonFlag, print_json

EXAMPLE = "Example: bayesieve version"


def version(json: JsonFlag = False) -> None:
    """Print the version."""
    if json:
        print_json({"version": __version__})
    else:
        print(__version__)
