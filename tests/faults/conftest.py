"""Counts what tests of faults inject and find, by row of the table."""

import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bayesieve.files import write_atomically
from faults import rows

HERE = Path(__file__).parent
_counts, _seconds, _failed = defaultdict(Counter), Counter(), set()


@pytest.fixture(autouse=True)
def tally(request, monkeypatch):
    """Counts of this test; every command that it runs is looked at, whoever starts it."""
    counted, invoke = rows.Tally(), CliRunner.invoke
    rows.Tally.now = counted

    def watched(self, app, args=None, **keywords):
        result = invoke(self, app, args, **keywords)
        words = " ".join(map(str, args or ()))[:200]
        bug = result.exception is not None and not isinstance(result.exception, SystemExit)
        if bug:
            counted.found("tracebacks", f"{words}: {result.exception!r}")
        else:
            counted.check_end(result.exit_code, result.stderr, words)
        return result

    monkeypatch.setattr(CliRunner, "invoke", watched)
    yield counted
    counted.counts["faults"] = counted.counts["faults"] or 1
    request.node.user_properties.append(("faults", counted.counts))
    if counted.findings:
        pytest.fail("\n".join(counted.findings), pytrace=False)


def pytest_runtest_logreport(report):
    """Add the counts of a test to its row; in the process that gathers the reports."""
    file = Path(report.nodeid.split("::")[0])
    row = rows.row_of(file.name, report.nodeid.split("::")[-1]) if HERE.name in file.parts else None
    if row is None:
        return
    key = row, file.name
    _seconds[key] += report.duration
    if report.failed:
        _failed.add(report.nodeid)
    counts = dict(report.user_properties).get("faults")
    if report.when == "teardown" and counts:
        if report.nodeid in _failed and not any(counts[kind] for kind in rows.COUNTS[1:]):
            counts = counts | {rows.OTHER: 1}
        _counts[key].update(counts)


def pytest_sessionfinish(session):
    """Write the record, if asked to."""
    path = os.environ.get(rows.RECORD)
    if path and _counts and not hasattr(session.config, "workerinput"):
        counts = {
            key: {kind: found[kind] for kind in rows.COUNTS} for key, found in _counts.items()
        }
        before = json.loads(Path(path).read_text()) if Path(path).is_file() else None
        write_atomically(path, rows.record(counts, _seconds, before))


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """Commands to stop, with their unbroken results."""
    from faults.work import Work

    return Work(tmp_path_factory.mktemp("work") / "home")
