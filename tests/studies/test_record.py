"""The one format of records: what is checked, what is joined, what a second call goes on with."""

import importlib
import json
from argparse import Namespace

import pytest
import torch

from problems import few_images
from records import record_of
from studies import sbnn_tables, uci
from studies.harness import Run, prior_pairs, splits
from studies.record import check, join, make_row, read, write


def uci_part(name, row, device="cpu", **change):
    metrics = {"rmse": 1.0, "rmse_standard_error": 0.1, "log_lik": 0.0, "half/rmse": 1.0}
    made = make_row(f"{name}/{row}", {"set": name, "row": row}, [], seeds=list(range(20)),
                    seconds=2.0, metrics=metrics)  # fmt: skip
    settings = {"quick": False, "splits": None, "effort": 1.0, "in_blocks": False}
    arguments = {"machine": {"device": device}, "command": f"c --sets {name}", "settings": settings,
             "kind": None, **change}  # fmt: skip
    return record_of("uci", [{**made, "data": name}], **arguments)


def tables_part(experiment, **line):
    scale = {"n_sets": 20, "fdr_sets": 100, "n_folds": 10, "fold_epochs": 20}
    return record_of("sbnn_tables", [sbnn_tables.row_of(experiment, line, scale)], command="c",
                     settings={"n_sets": 20})  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "schema must be 1"),
        ({"scored_on": "5,000 images"}, "scored_on must be one of"),
        ({"kind": "many"}, "kind must be one of"),
        ({"own": 1}, r"unknown \['own'\]"),
        ({"rows": [{"name": "a"}]}, "row a: missing"),
        ({"rows": [make_row("a", {}, [{"n": 1}], seeds=2)]}, "2 seeds, but numbers of 1"),
        ({"rows": [make_row("a", {}, [], seeds=1, metrics={"n": "x"})]}, "n must be a finite"),
        ({"rows": [make_row("a", {}, [], seeds=1, metrics={"n": float("nan")})]}, "finite number"),
        ({"rows": [make_row("a", {}, [], seeds=1)] * 2}, "stand in it twice"),
    ],
)
def test_what_is_not_of_the_format_is_refused(change, words, tmp_path):
    check(record_of("uci", []), "test")
    wrong = {**record_of("uci", []), **change}
    with pytest.raises(ValueError, match=words):
        check(wrong, "test")
    with pytest.raises(ValueError, match=words):
        write(tmp_path / "a.json", wrong)
    assert not list(tmp_path.iterdir())


def test_rows_of_several_machines_keep_their_machine():
    pieces = [uci_part("yacht", "sbnn"), uci_part("yacht", "linear", "gpu", notes={"timing": 3})]
    joint = join(pieces, ("sets",))
    devices = {row["name"]: row["machine"]["device"] for row in joint["rows"]}
    assert devices == {"yacht/sbnn": "cpu", "yacht/linear": "gpu"}
    assert joint["notes"]["timing"] == 3
    assert joint["machine"] == {"device": "cpu and gpu"}
    assert joint["command"] == "c"
    assert [part["command"] for part in joint["parts"]] == ["c --sets yacht"] * 2
    again = join([joint, uci_part("wine", "sbnn")])
    assert len(again["parts"]) == 3
    assert again["rows"][1]["machine"] == {"device": "gpu"}


def test_what_is_there_twice_or_differs_is_refused():
    with pytest.raises(ValueError, match="row yacht/sbnn is in two"):
        join([uci_part("yacht", "sbnn"), uci_part("yacht", "sbnn")])
    with pytest.raises(ValueError, match="note timing is in two"):
        join([uci_part(name, "sbnn", notes={"timing": 1}) for name in ("yacht", "wine")])
    with pytest.raises(ValueError, match="differ in settings"):
        join([uci_part("yacht", "sbnn"), uci_part("wine", "sbnn", settings={"effort": 2.0})])
    with pytest.raises(ValueError, match="row e1/0 is in two"):
        join([tables_part("e1", mix=0)] * 2)
    other = {**tables_part("e1", mix=1), "settings": {"n_sets": 2}}
    with pytest.raises(ValueError, match="differ in settings"):
        join([tables_part("e1", mix=0), other])


def test_no_joined_record_mixes_the_two_copies_of_cifar():
    copies = [{**uci_part(name, "sbnn"), "data": None} for name in ("yacht", "wine")]
    for record, data in zip(copies, ("CIFAR-10", "CIFAR-10 (JPEG copy)"), strict=True):
        record["rows"][0]["data"] = data
    with pytest.raises(ValueError, match="the JPEG copy of CIFAR-10 and the original"):
        join(copies)
    with pytest.raises(ValueError, match="differ in data"):
        join([{**uci_part("yacht", "sbnn"), "data": "CIFAR-10"},
              {**uci_part("wine", "sbnn"), "data": "CIFAR-10 (JPEG copy)"}])  # fmt: skip
    assert len(join(copies[:1])["rows"]) == 1


def test_lines_come_in_order():
    pieces = [tables_part("e4", share=0.2, removed=r, mse=0.5) for r in (0.5, 0.2)]
    lines = sbnn_tables.found_in(join(pieces))["e4"]
    assert [line["removed"] for line in lines] == [0.2, 0.5]


def test_files_of_another_study_are_refused(tmp_path):
    path = tmp_path / "a.json"
    write(path, record_of("uci", []))
    with pytest.raises(ValueError, match="is a record of uci"):
        read(path, "sbnn_tables")
    with pytest.raises(ValueError, match="there is no file"):
        read(tmp_path / "b.json", "uci")
    path.write_text(json.dumps({"study": "compare"}))
    with pytest.raises(ValueError, match="is not the record of a study"):
        read(path)


def test_the_studies_join_files(tmp_path, capsys):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, name in zip(paths, ("yacht", "wine"), strict=True):
        write(path, uci_part(name, "sbnn"))
    assert uci.main(["--join", *map(str, paths), "--out", str(tmp_path / "all.json")]) == 0
    stored = json.loads((tmp_path / "all.json").read_text())
    assert {row["name"] for row in stored["rows"]} == {"yacht/sbnn", "wine/sbnn"}
    for path, experiment in zip(paths, ("e1", "e4"), strict=True):
        rows = [tables_part(experiment, mix=s, share=s, psi_2=s, removed=0.0, mse=0.5)["rows"][0]
                for s in (0.0, 0.5)]  # fmt: skip
        write(path, record_of("sbnn_tables", rows, settings={"n_sets": 20}))
    out = tmp_path / "tables.json"
    assert sbnn_tables.main(["--join", *map(str, paths), "--out", str(out)]) == 0
    rows = {row["name"]: row["metrics"] for row in json.loads(out.read_text())["rows"]}
    assert rows["figure-1"]["correlation"] == pytest.approx(1.0)
    assert rows["droprate"] == {"points": 2}
    capsys.readouterr()


def begin(out, command, **change):
    options = Namespace(quick=False, device="cpu", out=out, **change)
    return Run("uci", [command], options, settings={"effort": 1.0})


def test_a_second_call_goes_on_and_rows_keep_their_command(tmp_path, capsys):
    out = tmp_path / "a.json"
    first = begin(out, "--one")
    first.add(make_row("a", {"n": (1, 2)}, [{"rmse": 1.0}], seeds=[0], seconds=1.0), ("rmse",))
    assert capsys.readouterr().out.split() == ["a", "rmse", "1", "1", "s"]
    second = begin(out, "--two")
    assert not second.wants("a", {"n": (1, 2)})
    assert second.wants("a", {"n": (1, 3)})
    second.add(make_row("b", {}, [{"rmse": 2.0}], seeds=[0]))
    rows = read(out, "uci")["rows"]
    assert rows[0]["command"].endswith("--one")
    assert "command" not in rows[1]
    with pytest.raises(SystemExit, match="has scored_on 'test'"):
        begin(out, "--three", held_out=True)
    strict = Run("uci", [], Namespace(quick=False, out=out), settings={"effort": 1.0},
                 one_per_name=True)  # fmt: skip
    with pytest.raises(SystemExit, match="has a with another n"):
        strict.wants("a", {"n": 5})


def test_a_run_keeps_to_its_budget_and_to_one_copy_of_the_data(tmp_path):
    run = begin(tmp_path / "x.json", "--one", budget=100.0)
    assert run.wants("first", {}, "long")
    run.add(make_row("first", {}, [{"n": 1}], seeds=1, seconds=200.0), kind="long")
    assert not run.wants("second", {}, "long")
    assert run.wants("third", {}, "short")
    record = read(tmp_path / "x.json")
    assert record["skipped"] == ["second"]
    assert [row["metrics"] for row in record["rows"]] == [{"n": 1}]
    row = make_row("fourth", {}, [{"n": 1}], seeds=1)
    run.add({**row, "data": "CIFAR-10 (JPEG copy)"})
    with pytest.raises(ValueError, match="the JPEG copy of CIFAR-10 and the original"):
        run.wants("fifth", {}, "short", data="CIFAR-10")


def test_splits_hold_out_the_same_examples_or_take_few():
    data = few_images(6000, 10, (1, 4, 4))
    held_out = splits(data, held_out=True)
    assert (len(held_out.train), len(held_out.test)) == (1000, 5000)
    assert torch.equal(held_out.test.x, splits(data, held_out=True).test.x)
    few = splits(data, few=7, few_test=3)
    assert (len(few.train), len(few.test)) == (7, 3)
    with pytest.raises(Exception, match="pairs v0:v1"):
        prior_pairs("1:2:3")
    assert prior_pairs("0.005:1e-5") == ((0.005, 1e-5),)


UNKNOWN = {  # study: flags that name something it does not have, and what it says
    "aeb_linear": ("--methods sam", "aeb_linear: method must be one of"),
    "aeb_logistic": ("--methods sam", "aeb_logistic: method must be one of"),
    "aeb_uci": ("--sets yatch", "aeb_uci: set must be one of"),
    "bmr_images": ("--nets resnet", r"^bmr_images: nets must be one of .*'resnet'"),
    "bmr_mnist": ("--settings l300-97", "^bmr_mnist: setting must be one of"),
    "conformal": ("--quick --only 40", "case must be one of"),
    "sbnn_droprate": ("--settings m4", "setting must be one of"),
    "sbnn_tables": ("--only e9", "experiment must be one of"),
    "tdamp_uci": ("--sets bosten", r"^tdamp_uci: --sets must be one of .*Did you mean"),
    "uci": ("--sets bostn", "set must be one of"),
}


@pytest.mark.parametrize("study", UNKNOWN)
def test_unknown_names_are_refused_before_any_work(study):
    flags, words = UNKNOWN[study]
    with pytest.raises(ValueError, match=words):
        importlib.import_module(f"studies.{study}").main(flags.split())


@pytest.mark.parametrize("study", ["sbnn_droprate", "sbnn_vgg"])
def test_a_picture_of_records_needs_a_folder(study, tmp_path):
    with pytest.raises(ValueError, match="--figures FOLDER"):
        importlib.import_module(f"studies.{study}").main(["--draw", str(tmp_path / "x.json")])


@pytest.mark.parametrize(
    "study", ["aeb_linear --data-sets", "aeb_logistic --steps", "aeb_uci --splits"]
)
@pytest.mark.parametrize("value", ["0", "-5", "1.5"])
def test_nothing_to_do_is_refused(study, value, capsys):
    name, flag = study.split()
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"studies.{name}").main([f"{flag}={value}"])
    said = capsys.readouterr().err
    assert f"argument {flag}: must be a whole number > 0, got '{value}'" in said
