"""The tables of what each engine reached: every number has a name in the catalogue."""

from pathlib import Path

import pytest

from pages.engines import WANTS, _filled, named, wants_table
from pages.headlines import HEADLINES, count_sentence, headline_table
from studies.reproduce.catalogue import ROWS
from studies.reproduce.table import UNKNOWN, listing, read_findings

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


def test_every_headline_has_a_number_of_ours_and_of_the_paper():
    findings, rows = read_findings(RESULTS), {row.name: row for row in ROWS}
    lines = headline_table(findings).splitlines()[2 : 2 + len(HEADLINES)]
    for line, headline in zip(lines, HEADLINES, strict=True):
        task, *_, single, averaged, paper, link = line.strip("| ").split(" | ")
        row = rows[headline.row]
        assert task == headline.task
        assert (RESULTS.parent / link.partition("(")[2].rstrip(")")).is_file()
        for cell, metric in ((single, headline.single), (averaged, headline.averaged)):
            assert bool(cell.strip()) == (metric is not None)
            if metric is not None:
                value = findings[row.study, row.key, metric].value
                assert float(cell.split()[0]) == pytest.approx(headline.unit * value, abs=0.006)
        assert float(paper) in (pytest.approx(row.paper), pytest.approx(100 * row.paper))


def test_one_seed_is_said_and_several_have_an_error():
    findings = read_findings(RESULTS)
    table = headline_table(findings)
    for headline, line in zip(HEADLINES, table.splitlines()[2:], strict=False):
        row = next(row for row in ROWS if row.name == headline.row)
        number = findings[row.study, row.key, headline.single or headline.averaged]
        assert ("one seed" in line) == (number.seeds == 1)
        assert ("±" in line) == (number.error is not None)


def test_all_rows_are_counted():
    statuses = [
        row["status"] for row in listing(read_findings(RESULTS)) if row["paper"] is not None
    ]
    good = sum(status.startswith("reached") for status in statuses)
    close, single = (statuses.count(name) for name in ("reached within error", UNKNOWN))
    missed, waiting = statuses.count("worse"), statuses.count("to be measured")
    sentence = count_sentence(read_findings(RESULTS))
    assert f"we match or beat {good + single} ({close} within error, {single} on a" in sentence
    assert f"and miss {missed};" in sentence
    assert (f"{waiting} are still to be measured" in sentence) == (waiting > 0)


def test_a_sentence_needs_all_its_numbers():
    assert _filled("{a:.0%} gone, {b:.2f}", {"a": 0.9013, "b": 1.5}) == "90 % gone, 1.50"
    assert _filled("{a:.0%} gone, {b:.2f}", {"a": 0.9013}) is None
