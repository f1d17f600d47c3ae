"""`python -m bayesieve` is the command line."""

from bayesieve.cli import run

run()
