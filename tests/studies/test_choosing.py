"""The tables of what each engine reached: every number has a name in the catalogue."""

from pathlib import Path

import pytest

from pages.engines import WANTS, _filled, named, wants_table
from pages.headlines import HEADLINES, headline_table
from studies.reproduce.catalogue import ROWS
from studies.reproduce.scorecard import COLUMNS
from studies.reproduce.table import listing, read_findings

RESULTS = Path(__file__).parents[2] / "results"


def test_every_number_is_a_row_of_the_catalogue():
    assert named() <= {row.name for row in ROWS}
    assert len(named()) > 15


def test_every_want_has_a_number():
    """A record that went missing would leave a cell empty."""
    lines = wants_table(read_findings(RESULTS)).splitlines()[2:]
    assert len(lines) == len(WANTS)
    for line in lines:
        told = line.split(" | ")[2].removesuffix(" |")
        assert any(letter.isdigit() for letter in told), line
        assert "{" not in line


def test_numbers_are_those_of_the_records():
    findings = read_findings(RESULTS)
    ours = {row["name"]: row["ours"] for row in listing(findings)}
    told = f"98.5 % zeros: {ours['sbnn-table-7-l300-more']:.2f} % test error"
    assert told in wants_table(findings)
    assert all(line.endswith("|  |") for line in wants_table({}).splitlines()[2:])


def test_a_sentence_needs_all_its_numbers():
    assert _filled("{a:.0%} gone, {b:.2f}", {"a": 0.9013, "b": 1.5}) == "90 % gone, 1.50"
    assert _filled("{a:.0%} gone, {b:.2f}", {"a": 0.9013}) is None


def test_every_headline_has_a_page_and_its_numbers():
    findings = read_findings(RESULTS)
    lines = headline_table(findings).splitlines()[2 : 2 + len(HEADLINES)]
    for line, headline in zip(lines, HEADLINES, strict=True):
        task, _, *cells, link = line.strip("| ").split(" | ")
        assert task == headline.task
        assert (RESULTS.parent / link.partition("(")[2].rstrip(")")).is_file()
        for cell, column in zip(cells, COLUMNS, strict=True):
            place = headline.ours.get(column)
            assert bool(cell.strip()) == (place is not None)
            if place is not None:
                found = findings[place.study + place.records, place.key, place.metric]
                assert float(cell.split()[0]) == pytest.approx(
                    place.factor * found.value, abs=0.006
                )
                assert ("one seed" in cell) == (found.error is None and found.seeds == 1)
                assert ("±" in cell) == (found.error is not None)
