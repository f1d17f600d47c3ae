"""The count of published numbers: its rule by hand, its totals by a second program."""

import json
import math
from collections import Counter
from pathlib import Path
from statistics import fmean, stdev

import pytest
from scipy.stats import t

from studies.reproduce.catalogue import PAPER
from studies.reproduce.scorecard import COLUMNS, NUMBERS, Published, count, sentence, verdict
from studies.reproduce.table import Finding, read_findings

RESULTS = Path(__file__).parents[2] / "results"
# What the papers print of their own methods, by table; without CIFAR-100 and Year.
PRINTED = {
    ("sBNN", "table 2"): 9 * 9, ("sBNN", "table 4"): 3, ("sBNN", "table 5"): 4,
    ("sBNN", "table 6"): 6, ("sBNN", "tables 7, 9"): 2, ("sBNN", "table 8"): 2 * 12,
    ("sBNN", "figures 2, 4, 7, 11"): 5, ("BMR", "figures 1, 2"): 2 * 4 * 4,
    ("SG-MCMC-SA", "table 1"): 8, ("SG-MCMC-SA", "table 2"): 4, ("SG-MCMC-SA", "table 3"): 5,
    ("EM-TDAMP", "table 4.1"): 4, ("NumPy MLP", "accuracies"): 8,
}  # fmt: skip


def test_every_published_number_counts_once():
    assert Counter((number.source, number.item) for number in NUMBERS) == PRINTED
    assert len({(number.source, number.item, number.what) for number in NUMBERS}) == len(NUMBERS)


@pytest.mark.parametrize(
    ("value", "error", "seeds", "expected"),
    [
        (0.95, 0.01, 3, "better"),  # 0.95 + 4.30 · 0.01 < 1
        (0.96, 0.01, 3, "level"),  # 0.96 + 4.30 · 0.01 > 1
        (1.02, 0.011, 3, "level"),  # 1.02 - 2 · 0.011 < 1
        (1.03, 0.011, 3, "worse"),
        (0.99, None, 1, "better"),  # one seed: its value
        (1.04, None, 1, "level"),  # one seed: the reading of the figure
        (1.06, None, 1, "worse"),
    ],
)
@pytest.mark.parametrize("lower", [True, False])
def test_a_verdict_follows_the_rule(value, error, seeds, expected, lower):
    reading = 0.05 if seeds == 1 else 0.0
    value = value if lower else 2 - value
    number = Published("", "", "", 1.0, {}, lower=lower, reading=reading)
    assert verdict(number, Finding(value, seeds, "", None, None, "", error=error), 1.0) == expected


def test_ends_are_rounded_to_the_printed_digits():
    ours = Finding(0.0049, 20, "", None, None, "", error=1e-5)
    assert verdict(Published("", "", "", 0.0, {}, decimals=2), ours, 1.0) == "better"
    assert verdict(Published("", "", "", 0.0, {}), ours, 1.0) == "worse"


def rows_by_name(folder):
    """Rows that were scored on test data, by study and name, straight from the files."""
    found = {}
    for path in folder.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("schema") != 1:
            continue
        for row in record["rows"]:
            if row.get("scored_on", record["scored_on"]) == "test":
                found[record["study"].replace("_", "-"), row["name"]] = row
    return found


def again(number, place, row):
    """The verdict of a number by plain arithmetic."""
    metric, value = place.metric, place.factor * row["metrics"][place.metric]
    seeds = row["seeds"] if isinstance(row["seeds"], int) else len(row["seeds"])
    each = [one[metric] for one in row["each"] if metric in one]
    error = None
    if len(each) > 1:
        mean = place.factor * fmean(each)
        if math.isclose(mean, value, rel_tol=1e-3):
            error = place.factor * stdev(each) / math.sqrt(len(each))
    elif seeds > 1 and f"{metric}_standard_error" in row["metrics"]:
        error = place.factor * row["metrics"][f"{metric}_standard_error"]
    low = high = value
    if error is not None:
        interval = t.interval(0.95, seeds - 1, loc=value, scale=error) if error else (value, value)
        low = interval[0] if not number.lower else value - 2 * error
        high = interval[1] if number.lower else value + 2 * error
    if number.decimals is not None:
        low, high = round(low, number.decimals), round(high, number.decimals)
    aim, tiny = number.value, 1e-9
    if (high <= aim + tiny) if number.lower else (low >= aim - tiny):
        return "better"
    reach = aim + number.reading if number.lower else aim - number.reading
    return "level" if (low <= reach + tiny if number.lower else high >= reach - tiny) else "worse"


def test_a_second_program_counts_the_same():
    ours, theirs = rows_by_name(RESULTS), rows_by_name(RESULTS / "paper_settings")
    totals = {column: Counter() for column in COLUMNS}
    for number in NUMBERS:
        for column, place in number.ours.items():
            row = (theirs if place.records == PAPER else ours).get((place.study, place.key))
            if row is not None and row["metrics"].get(place.metric) is not None:
                totals[column][again(number, place, row)] += 1
    counted = count(NUMBERS, read_findings(RESULTS))
    assert {column: {k: v for k, v in found.items() if v} for column, found in counted.items()} == {
        column: dict(found) for column, found in totals.items()
    }


def test_the_sentence_states_the_sums():
    said = sentence(read_findings(RESULTS))
    for found in count(NUMBERS, read_findings(RESULTS)).values():
        assert f"{found['better']} of {sum(found.values())} are better" in said
    assert f"{len(NUMBERS)} numbers" in said
