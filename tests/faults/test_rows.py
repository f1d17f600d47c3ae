"""Every test of faults belongs to a row of the table, and counts are kept by row."""

from faults import rows


def test_every_file_has_a_row_and_every_row_a_file():
    assert sorted({file for file, _, _ in rows.TESTS}) == rows.test_files()
    assert {row for _, _, row in rows.TESTS} - {None} <= set(rows.ROWS)


def test_moments_are_spread_evenly():
    assert rows.spread(10, 4) == [1, 4, 7, 10]
    assert rows.spread(3, 9) == [1, 2, 3]


def test_a_finding_is_counted_and_files_that_did_not_run_keep_their_counts():
    tally = rows.Tally()
    tally.injected(3)
    tally.check_end(139, "Traceback (most recent call last)", "a command")
    tally.check_end(130, "error: stopped", "another")
    assert tally.counts["faults"] == 3
    assert tally.counts["tracebacks"] == tally.counts["wrong exit codes"] == 1
    key = ("kill", "test_kill.py")
    first = rows.record({key: tally.counts}, {key: 1.0}, None)
    other = ("kill", "test_more.py")
    second = rows.record({other: tally.counts}, {other: 2.0}, first)
    (row,) = [row for row in second["rows"] if row["name"] == "kill"]
    assert row["faults"] == 6
    assert row["seconds"] == 3.0
