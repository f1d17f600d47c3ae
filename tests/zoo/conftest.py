"""The rows of all architectures come together here, and become the record and the page."""

from make_models_table import record

_ROWS = {}


def pytest_runtest_logreport(report):
    """Take the row that a test of any worker has measured."""
    _ROWS.update(value for kind, value in report.user_properties if kind == "zoo")


def pytest_sessionfinish(session):
    """Write what was measured, unless this is one of several workers."""
    if _ROWS and not hasattr(session.config, "workerinput"):
        record(_ROWS)
