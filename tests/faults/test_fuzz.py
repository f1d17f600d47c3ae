"""The byte fuzzer over every reader: a short form for every day, 10,000 cases in the long form."""

import warnings

import pytest

from faults import fuzz, rows

CASES = rows.cases(210, 10_000)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return fuzz.make_targets(tmp_path_factory.mktemp("fuzz"))


def test_no_reader_falls_for_damaged_bytes(targets, tally):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of decoders that go on
        for number in range(-(-CASES // len(targets))):
            for name in targets:
                tally.injected()
                if found := fuzz.run_case(targets, name, number):
                    tally.found(*found)


def test_cases_are_the_same_every_time(targets):
    for name in targets:
        assert fuzz.case(targets, name, 7) == fuzz.case(targets, name, 7)
