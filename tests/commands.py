"""Running the command line inside the test process, or in a copy of it that may be killed."""

import csv
import json
import multiprocessing
import os
import sys
import warnings

from typer.testing import CliRunner

from bayesieve.cli.main import app


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def ok(*arguments):
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr or repr(result.exception)
    return result


def as_json(*arguments):
    return json.loads(ok(*arguments, "--json").stdout)


def refused(code, *arguments):
    """The one line a failing command prints."""
    result = call(*arguments)
    assert result.exit_code == code, (result.exit_code, result.stderr, result.exception)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def write_table(path, n=40, header="a,b,y", row=lambda i: (i, (i * 7) % 11, i % 5 + 0.25 * i)):
    """Write a CSV file of n rows, each made from its number; returns its path."""
    lines = [header, *(",".join(map(str, row(i))) for i in range(n))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def rows_of(path):
    """Rows of a CSV file as dictionaries."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


class Forked:
    """A copy of this process, with its imports done, that runs a function and may be killed.

    Args:
        errors: file for its standard output and errors.
        function: what it runs; SystemExit gives the exit code.
        arguments: of the function.
    """

    def __init__(self, errors, function, *arguments):
        self._errors = errors
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=self._run, args=(function, arguments))
        with warnings.catch_warnings():  # newer Pythons warn of threads; the copy uses none
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()

    def _run(self, function, arguments):
        sys.stderr = self._errors.open("w", buffering=1, encoding="utf-8")
        sys.stdout = sys.stderr
        os.dup2(sys.stderr.fileno(), 2)
        function(*arguments)

    @property
    def errors(self):
        """Its standard output and errors so far."""
        return self._errors.read_text(encoding="utf-8")

    @property
    def is_alive(self):
        return self._process.is_alive()

    def end(self, signal_number, patience):
        """Send a signal, wait, and return the exit code: below 0 for a signal that ended it."""
        os.kill(self._process.pid, signal_number)
        return self.wait(patience)

    def wait(self, patience):
        """The exit code, once it ends; below 0 for a signal that ended it."""
        self._process.join(patience)
        assert self._process.exitcode is not None, f"still alive after {patience} s"
        return self._process.exitcode


def forked_command(errors, *arguments):
    """A command line in a copy of this process."""
    return Forked(errors, app, [str(argument) for argument in arguments])
