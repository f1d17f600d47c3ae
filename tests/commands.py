"""Running the command line inside the test process."""

import json

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
