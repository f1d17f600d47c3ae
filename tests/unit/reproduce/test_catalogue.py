"""The catalogue, the committed records and the page made from them agree."""

import importlib
import json
from pathlib import Path

import pytest

from bayesieve.reproduce import ROWS, STUDIES, Finding, Row, listing, read_findings, results_page
from bayesieve.reproduce.running import Checked, arguments_of, study_of

RESULTS = Path(__file__).parents[3] / "results"


def finding(value, **change):
    given = {"study": "s", "key": "k", "field": "f", "value": value, "seeds": 2, "device": "cpu",
             "seconds": 1.0, "date": None, "command": "c"}  # fmt: skip
    return {("s", "k", "f"): Finding(**given | change)}


def row(**change):
    given = {"name": "n", "source": "p", "item": "table 1", "what": "w", "metric": "m",
             "paper": 2.0, "study": "s", "key": "k", "field": "f"}  # fmt: skip
    return Row(**given | change)


def test_names_are_unique_and_every_source_is_there():
    names = [own.name for own in ROWS]
    assert len(set(names)) == len(names)
    assert {own.source for own in ROWS} == {"sBNN", "BMR", "SG-MCMC-SA", "EM-TDAMP", "NumPy MLP"}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_a_command(name):
    module = importlib.import_module(f"bayesieve.studies.{STUDIES[name].module}")
    with pytest.raises(SystemExit) as stop:
        module.main(["--help"])
    assert stop.value.code == 0


def test_the_committed_records_are_read():
    found = read_findings(RESULTS)
    assert found["sbnn-mnist", "l300-98.5", "error"].value == pytest.approx(1.69, abs=0.2)
    covered = {own["study"] for own in listing(found) if own["ours"] is not None}
    assert {"sbnn-mnist", "tdamp-mnist", "scratch-mnist"} <= covered


def test_the_same_number_twice_is_an_error(tmp_path):
    text = (RESULTS / "sbnn_mnist_l300.json").read_text()
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="is in another record too"):
        read_findings(tmp_path)


def test_what_is_no_record_is_passed_over(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "other.json").write_text(json.dumps({"study": "unknown"}))
    assert read_findings(tmp_path) == {}


@pytest.mark.parametrize(
    ("change", "value", "status"),
    [
        ({}, 1.9, "reached"),
        ({}, 2.1, "worse"),
        ({"better": "higher"}, 2.1, "reached"),
        ({"better": "higher"}, 1.9, "worse"),
        ({"better": "neither"}, 1.9, "measured"),
        ({"paper": None}, 1.9, "measured"),
        ({"unavailable": "no data"}, None, "no data"),
        ({}, None, "to be measured"),
    ],
)
def test_status(change, value, status):
    found = {} if value is None else finding(value)
    (own,) = listing(found, [row(**change)])
    assert (own["status"], own["ours"]) == (status, value)
    assert {"name", "source", "metric", "paper", "ours", "seeds", "device", "seconds",
            "command"} <= own.keys()  # fmt: skip


def test_the_page_marks_what_is_worse():
    study, key, field = next((r.study, r.key, r.field) for r in ROWS if r.name == "sbnn-table-7-l5")
    bad = Finding(study, key, field, 9.9, 1, "cpu", 1.0, None, "the command")
    page = results_page({(study, key, field): bad})
    assert "| 1.06 | 9.9 | 1 | cpu | **worse** |" in page
    assert "- sbnn-mnist: `the command`" in page


def test_arguments_and_names():
    out = Path("a.json")
    assert arguments_of(STUDIES["sbnn-mnist"], "quick", out, 2, "cpu")[-4:] == [
        "--seeds", "2", "--device", "cpu",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="CPU only"):
        arguments_of(STUDIES["scratch-mnist"], "full", out, device="cuda")
    with pytest.raises(ValueError, match="no number of seeds"):
        arguments_of(STUDIES["scratch-mnist"], "full", out, seeds=1)
    assert study_of("tdamp-table-4.1-units") == "tdamp-mnist"


def test_agreement():
    assert Checked("s", "k", "f", 1.0, 1.05, 0.06).agrees
    assert not Checked("s", "k", "f", 1.0, 1.07, 0.06).agrees
