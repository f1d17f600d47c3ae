"""Records of studies for tests."""


def record_of(study, rows, **change):
    """A record of the one format with these rows."""
    return {
        "schema": 1, "study": study, "command": f"python -m studies.{study} --full",
        "date": "2026-01-02", "machine": {"device": "chip", "torch": "2"}, "data": None,
        "scored_on": "test", "test_reads": None, "kind": "single", "settings": {}, "seconds": 5.0,
        "skipped": [], "rows": rows, "notes": {}, **change,
    }  # fmt: skip
