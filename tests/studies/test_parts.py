"""Records computed in parts become one record, and nothing is taken twice."""

import json

import pytest
from studies.parts import join_tables, join_uci, read_parts

from studies import sbnn_tables, uci


def uci_part(name, row, device="cpu", **more):
    own = {"full": {"rmse": 1.0, "rmse_standard_error": 0.1, "log_lik": 0.0}, "seconds": 2.0}
    own["half"] = own["full"]
    return {"study": "uci", "machine": {"device": device}, "command": f"c --sets {name}",
            "quick": False, "splits": None, "effort": 1.0, "sets": {name: {row: own}},
            **more}  # fmt: skip


def tables_part(**experiments):
    scale = {"n_sets": 20, "shares": [len(experiments)], "device": "cpu", "at_once": 3}
    return {"study": "sbnn_tables", "machine": {"device": "cpu"}, "command": "c", "scale": scale,
            "experiments": experiments, "seconds": dict.fromkeys(experiments, 1.5)}  # fmt: skip


def test_rows_of_several_machines_keep_their_machine():
    joint = join_uci([uci_part("yacht", "sbnn"), uci_part("yacht", "linear", "gpu", timing=3)])
    rows = joint["sets"]["yacht"]
    assert [rows[name]["machine"]["device"] for name in ("sbnn", "linear")] == ["cpu", "gpu"]
    assert joint["timing"] == 3
    assert joint["machine"] == {"device": "cpu and gpu"}
    assert joint["command"] == "c"
    assert [part["command"] for part in joint["parts"]] == ["c --sets yacht"] * 2
    again = join_uci([joint, uci_part("wine", "sbnn")])
    assert len(again["parts"]) == 3
    assert again["sets"]["yacht"]["linear"]["machine"] == {"device": "gpu"}


def test_what_is_there_twice_or_differs_is_refused():
    with pytest.raises(ValueError, match="row sbnn of yacht is in two"):
        join_uci([uci_part("yacht", "sbnn"), uci_part("yacht", "sbnn")])
    with pytest.raises(ValueError, match="timing is in two"):
        join_uci([uci_part("yacht", "sbnn", timing=1), uci_part("wine", "sbnn", timing=2)])
    with pytest.raises(ValueError, match="differ in effort"):
        join_uci([uci_part("yacht", "sbnn"), uci_part("wine", "sbnn", effort=2.0)])
    with pytest.raises(ValueError, match="experiment e1 is in two"):
        join_tables([tables_part(e1=[]), tables_part(e1=[])])
    with pytest.raises(ValueError, match="line of e3-cv is in two"):
        join_tables([tables_part(**{"e3-cv": [{"share": 0.2}]})] * 2)
    other = tables_part(e1=[])
    other["scale"]["n_sets"] = 2
    with pytest.raises(ValueError, match="differ in scale"):
        join_tables([tables_part(e2=[]), other])


def test_shares_come_in_order():
    parts = [tables_part(**{"e3-cv": [{"share": s}]}) for s in (0.5, 0.2)]
    joint = join_tables([*parts, tables_part(e4=[1])])
    assert [row["share"] for row in joint["experiments"]["e3-cv"]] == [0.2, 0.5]
    assert joint["seconds"] == {"e3-cv": 3.0, "e4": 1.5}


def test_files_of_another_study_are_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"study": "uci"}))
    with pytest.raises(ValueError, match="is a record of uci"):
        read_parts([path], "sbnn_tables")
    with pytest.raises(ValueError, match="no record at"):
        read_parts([tmp_path / "b.json"], "uci")


def test_the_studies_join_files(tmp_path, capsys):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, name in zip(paths, ("yacht", "wine"), strict=True):
        path.write_text(json.dumps(uci_part(name, "sbnn")))
    assert uci.main(["--join", *map(str, paths), "--out", str(tmp_path / "all.json")]) == 0
    stored = json.loads((tmp_path / "all.json").read_text())
    assert set(stored["findings"]) == {"yacht", "wine"}
    for path, experiment in zip(paths, ("e1", "e4"), strict=True):
        rows = [{"share": s, "psi_2": s, "removed": 0.0, "mse": 0.5} for s in (0.0, 0.5)]
        path.write_text(json.dumps(tables_part(**{experiment: rows})))
    out = tmp_path / "tables.json"
    assert sbnn_tables.main(["--join", *map(str, paths), "--out", str(out)]) == 0
    found = json.loads(out.read_text())["findings"]
    assert found["figure-1"]["correlation"] == pytest.approx(1.0)
    assert found["droprate"] == {"points": 2}
    capsys.readouterr()
