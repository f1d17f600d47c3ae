"""`python -m bayesieve` is the command line."""

from bayesieve.cli.main import run

run()
