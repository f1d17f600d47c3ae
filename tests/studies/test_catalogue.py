"""The catalogue, the committed records and the page made from them agree."""

import importlib
import json
from itertools import pairwise
from pathlib import Path

import pytest

from pages.papers import results_page
from records import record_of
from studies.record import check, make_row, read_folder, write
from studies.reproduce.catalogue import ROWS, STUDIES, Row
from studies.reproduce.running import arguments_of, study_of
from studies.reproduce.table import SHORT, Finding, counts, listing, missing, read_findings

RESULTS = Path(__file__).parents[2] / "results"


def finding(value, **change):
    options = {"value": value, "seeds": 2, "device": "cpu", "seconds": 1.0, "date": None,
               "command": "c", "error": 0.0}  # fmt: skip
    return {("s", "k", "f"): Finding(**options | change)}


def row(**change):
    options = {"name": "n", "source": "p", "item": "table 1", "what": "w", "metric": "m",
             "paper": 2.0, "study": "s", "key": "k", "field": "f"}  # fmt: skip
    return Row(**options | change)


def test_names_are_unique_and_every_source_is_there():
    names = [entry.name for entry in ROWS]
    assert len(set(names)) == len(names)
    assert {entry.source for entry in ROWS} == {
        "sBNN", "BMR", "SG-MCMC-SA", "EM-TDAMP", "NumPy MLP", "beyond the papers",
    }  # fmt: skip


def test_every_table_of_sbnn_is_covered():
    items = {entry.item for entry in ROWS if entry.source == "sBNN"}
    assert {f"table {number}" for number in range(2, 10)} <= items  # table 1 lists data sets


def test_every_method_measured_with_the_papers_settings_has_a_row():
    shown = {entry.key for entry in ROWS if entry.study == "bmr-images"}
    measured = {key for study, key, _ in read_findings(RESULTS) if study == "bmr-images"}
    wanted = {key for key in measured if key.endswith("/paper")}
    assert {"bmr", "map", "flat", "tiered"} <= {key.split("/")[2] for key in wanted}
    assert wanted <= shown


def test_rows_of_one_item_stand_together():
    seen = list(dict.fromkeys((entry.source, entry.item) for entry in ROWS))
    order = [(entry.source, entry.item) for entry in ROWS]
    assert 1 + sum(a != b for a, b in pairwise(order)) == len(seen)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_a_command_with_its_arguments(name, capsys):
    study = STUDIES[name]
    module = importlib.import_module(f"studies.{study.module}")
    with pytest.raises(SystemExit) as stop:
        module.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    wanted = {"--out", *study.quick, *study.full, *(study.check.arguments if study.check else ())}
    wanted |= {"--device"} if study.device else set()
    wanted |= {"--seeds"} if study.seeds else set()
    for flag in wanted:
        assert not flag.startswith("--") or f"{flag} " in text or f"{flag}\n" in text, flag


def test_every_row_is_of_a_study():
    assert {entry.study for entry in ROWS} <= set(STUDIES)


def test_the_committed_records_are_read():
    numbers = read_findings(RESULTS)
    assert numbers["sbnn-mnist", "l300-98.5", "error"].value == pytest.approx(0.0169, abs=0.002)
    covered = {entry["study"] for entry in listing(numbers) if entry["ours"] is not None}
    assert {"sbnn-mnist", "sbnn-droprate", "uci", "structured-lenet5", "bmr-mnist", "laplace-bmr",
            "aeb-linear", "aeb-images", "tdamp-mnist", "tdamp-uci",
            "scratch-mnist"} <= covered  # fmt: skip


def test_every_committed_record_is_of_a_study_and_of_the_one_format():
    known = {study.module for study in STUDIES.values()}
    for folder in (RESULTS, *(path for path in RESULTS.iterdir() if path.is_dir())):
        for path, record in read_folder(folder):
            assert record["study"] in known, path
            check(record, path.name)


def test_every_file_of_a_study_is_a_record():
    names = {study.module for study in STUDIES.values()}
    for path in RESULTS.rglob("*.json"):
        content = json.loads(path.read_text())
        assert content.get("study") not in names or content["schema"] == 1, path


def test_the_same_number_twice_is_an_error(tmp_path):
    text = (RESULTS / "sbnn_mnist_l300.json").read_text()
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"b\.json: sbnn-mnist/l300-98\.5/error is in the records"):
        read_findings(tmp_path)


def test_what_is_no_record_is_passed_over(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "other.json").write_text(json.dumps({"study": "unknown"}))
    assert read_findings(tmp_path) == {}


def test_quick_and_held_out_records_are_no_evidence(tmp_path):
    record = json.loads((RESULTS / "sbnn_mnist_l300.json").read_text())
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**record, "command": f"{record['command']} --quick"}))
    assert read_findings(tmp_path) == {}
    assert ("sbnn-mnist", "l300-98.5", "error") in read_findings(tmp_path, quick=True)
    path.write_text(json.dumps({**record, "settings": {"quick": True}}))
    assert read_findings(tmp_path) == {}
    path.write_text(json.dumps({**record, "scored_on": "held-out"}))
    assert read_findings(tmp_path, quick=True) == {}


@pytest.mark.parametrize(("value", "status"), [(2.005, "error unknown"), (2.02, "worse")])
def test_a_number_read_off_a_figure_is_not_behind_within_its_reading_error(value, status):
    (entry,) = listing(finding(value, error=None), [row(reading=0.01)])
    assert entry["status"] == status


def test_every_row_of_images_and_chains_that_is_behind_says_why():
    entries = listing(read_findings(RESULTS))
    silent = [entry["name"] for entry in entries
              if entry["source"] in ("BMR", "SG-MCMC-SA", "beyond the papers")
              and entry["status"] in SHORT and not entry["reason"]]  # fmt: skip
    assert silent == []


def test_a_reason_is_told_where_a_row_is_behind():
    for value, told in ((1.9, ""), (2.1, "too short")):
        (entry,) = listing(finding(value), [row(reason="too short")])
        assert entry["reason"] == told


@pytest.mark.parametrize(
    ("change", "value", "status"),
    [
        ({}, 1.9, "reached"),
        ({}, 2.1, "worse"),
        ({}, 2.0 + 4e-16, "reached"),  # what rounding makes of an equal mean
        ({"paper": 0.0, "decimals": 2}, 0.004, "reached"),
        ({"paper": 0.0, "decimals": 2}, 0.006, "worse"),
        ({"better": "higher"}, 2.1, "reached"),
        ({"better": "higher"}, 1.9, "worse"),
        ({"better": "neither"}, 1.9, "measured"),
        ({"paper": None}, 1.9, "measured"),
        ({"paper": None, "target": 1.8}, 1.9, "missed"),
        ({"paper": None, "target": 1.8, "better": "higher"}, 1.9, "met"),
        ({"unavailable": "no data"}, None, "no data"),
        ({}, None, "to be measured"),
    ],
)
def test_status(change, value, status):
    numbers = {} if value is None else finding(value)
    (entry,) = listing(numbers, [row(**change)])
    assert (entry["status"], entry["ours"]) == (status, value)
    assert {"name", "source", "metric", "paper", "ours", "seeds", "device", "seconds",
            "command"} <= entry.keys()  # fmt: skip


@pytest.mark.parametrize(
    ("value", "error", "seeds", "status"),
    [
        # Student's t of 4 degrees of freedom: 2.776
        (1.9, 0.1 / 2.777, 5, "reached"),
        (1.9, 0.1 / 2.775, 5, "reached within error"),
        (2.1, 0.1 / 1.99, 5, "reached within error"),
        (2.1, 0.1 / 2.01, 5, "worse"),
        (15.9, 4.0, 3, "worse"),  # Student's t of 2 degrees of freedom, 4.3, would forgive it
        (1.0, None, 1, "error unknown"),
        (2.1, None, 1, "worse"),
    ],
)
def test_status_with_the_error_of_the_mean(value, error, seeds, status):
    (entry,) = listing(finding(value, error=error, seeds=seeds), [row()])
    assert entry["status"] == status


def test_no_single_seed_reaches_its_paper():
    for entry in listing(read_findings(RESULTS)):
        if entry["seeds"] == 1:
            assert not entry["status"].startswith(("reached", "met")), entry["name"]


def test_every_number_says_whose_settings_and_which_kind_of_model():
    rows = {entry["name"]: entry for entry in listing(read_findings(RESULTS))}
    assert {entry["kind"] for entry in rows.values() if entry["ours"] is not None} <= {
        "single", "ensemble",
    }  # fmt: skip
    assert rows["sbnn-table-3-wine"]["kind"] == "ensemble"
    assert rows["sbnn-table-2-wine-0"]["kind"] == "single"
    # the paper's own algorithm is shown beside our search, and none is called by the other's name
    mse = [rows[f"aeb-table-1-{s}-paper-mse"] for s in ("0.01-2", "0.1-2", "0.01-1", "0.1-1")]
    assert [one["ours"] for one in mse] == [7.963, 4.227, 6.561, 4.169]
    assert {one["settings"] for one in mse} == {"paper"}
    search = rows["aeb-table-1-0.1-2-sa-mse"]
    assert (search["settings"], "our search" in search["what"]) == ("ours", True)


def test_a_quick_run_is_compared_with_nothing():
    quick = finding(9.9, quick=True)
    rows = listing(quick, [row()])
    assert (rows[0]["status"], rows[0]["ours"]) == ("quick run", 9.9)
    assert counts(rows) == {"quick run": 1}


def test_counts_and_gaps_in_words():
    lost = row(name="b", key="l", unavailable="no such data")
    rows = listing(finding(2.5), [row(), lost, row(key="x"), row(key="y")])
    assert counts(rows) == {"worse": 1, "to be measured": 2, "no data": 1}
    assert missing(rows) == ["1 row: no such data", "2 rows: to be measured"]


def test_the_page_tells_what_falls_short():
    entry = next(r for r in ROWS if r.name == "sbnn-table-7-l5")
    bad = Finding(0.099, 1, "cpu", 1.0, "2026-01-02", "the command")
    page = results_page({(entry.study, entry.key, entry.field): bad})
    assert "| 1.06 | 9.9 | **worse** | ours |  | 1 | 1 | cpu |" in page
    short = page[page.index("## Where we fall short") : page.index("## sBNN")]
    assert "- sBNN, table 7, 1 of 7 rows:" in short
    assert f"  - {entry.what}: test error in % 9.9, the paper 1.06" in short
    assert "- sbnn-mnist: `the command` (2026-01-02)" in page
    assert "- table 9 (`sbnn-vgg`): 2 rows: to be measured" in page


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


def test_the_words_name_the_copy_of_cifar_that_was_measured():
    cifar = row(what="CIFAR-10, lenet")
    for data in ("CIFAR-10 (JPEG copy)", "CIFAR-10"):
        (one,) = listing(finding(1.9, data=data), [cifar])
        assert one["what"] == f"{data}, lenet"


def test_a_number_comes_with_its_rows_machine_seeds_and_seconds(tmp_path):
    rows = [make_row("a", {}, [{"accuracy": 0.8}, {"accuracy": 0.9}], seeds=[1, 2], seconds=3.0,
                     metrics={"nll": None}),
            {**make_row("b", {}, [], seeds=4, metrics={"accuracy": 0.5}),
             "machine": {"device": "other"}},
            {**make_row("c", {}, [], seeds=1, metrics={"accuracy": 0.1}),
             "scored_on": "held-out"}]  # fmt: skip
    write(tmp_path / "a.json", record_of("aeb_logistic", rows))
    numbers = read_findings(tmp_path)
    assert {key for _, key, _ in numbers} == {"a", "b"}
    first, second = (numbers["aeb-logistic", key, "accuracy"] for key in "ab")
    assert (first.value, first.seeds, first.seconds, first.device) == (
        pytest.approx(0.85), 2, 3.0, "chip",
    )  # fmt: skip
    assert (second.seeds, second.seconds, second.device) == (4, 5.0, "other")
    assert first.date == "2026-01-02"
    assert ("aeb-logistic", "a", "nll") not in numbers
    (one,) = listing(numbers, [row(study="aeb-logistic", key="a", field="accuracy", factor=100)])
    assert one["ours"] == pytest.approx(85.0)
