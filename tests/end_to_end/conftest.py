import pytest


@pytest.fixture(autouse=True, scope="package")
def _short_bursts():
    """Times are measured and written as ever, from single calls: nobody here reads how precise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesieve.graph.costs._BURST", 1e-9)
        yield
