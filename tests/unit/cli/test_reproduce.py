"""`bayesieve reproduce`: a list that fits the screen, a run that leaves its files, a verdict."""

import json
import sys
from pathlib import Path

import pytest

from bayesieve.runs.clone import require_studies
from commands import as_json, call, ok, refused
from studies import tdamp_uci
from studies.reproduce import running
from studies.reproduce.catalogue import ROWS
from studies.reproduce.running import Checked

RESULTS = Path(__file__).parents[3] / "results"
KEYS = {"name", "source", "metric", "paper", "ours", "seeds", "device", "seconds", "command"}


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_the_list_fits_80_columns_uncut(narrow):
    text = ok("reproduce", "list", "--results", RESULTS).stdout
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    first = text.partition("└")[0]  # one screen of counts
    assert len(first.splitlines()) < 24
    assert f"all        │  {len(ROWS)} │" in first
    for part in ("table 8 (reproduce sbnn-droprate)", "table 4.1 (reproduce tdamp-mnist)",
                 "rows have a number of ours"):  # fmt: skip
        assert part in text


def test_the_list_as_data():
    rows = as_json("reproduce", "list", "--results", RESULTS)
    assert [row["name"] for row in rows] == [row.name for row in ROWS]
    assert all(row.keys() >= KEYS for row in rows)


def test_a_list_without_records_says_so(tmp_path):
    result = ok("reproduce", "list", "--results", tmp_path / "none")
    assert "only the papers' numbers" in result.stderr
    assert f"0 of {len(ROWS)} rows" in result.stdout


def test_a_run_leaves_record_table_and_rows(tmp_path, monkeypatch):
    record = json.loads((RESULTS / "tdamp_uci_rest.json").read_text())

    def main(arguments):
        print("a study talks")
        out = Path(arguments[arguments.index("--out") + 1])
        out.write_text(json.dumps({**record, "command": " ".join(arguments)}))

    monkeypatch.setattr(tdamp_uci, "main", main)
    out = tmp_path / "again"
    rows = as_json("reproduce", "own-tdamp-yacht", "--quick", "--out", out)
    measured = {row["name"]: row["ours"] for row in rows if row["ours"] is not None}
    assert set(measured) == {"own-tdamp-energy", "own-tdamp-yacht"}
    assert (out / "findings.csv").read_text().startswith("study,key,field,value")
    assert (out / "rows.md").read_text().count("| quick run |") == 2
    assert (out / "rows.png").stat().st_size > 10_000
    text = ok("reproduce", "tdamp-uci", "--quick", "--out", out).stdout
    assert "no evidence" in text
    assert "record.json, findings.csv, rows.md, rows.png" in text
    assert "a study talks" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tdamp-uc", "--quick", "--out", "x"), "'tdamp-uc'"),
        (("tdamp-uci", "--out", "x"), "--quick or --full"),
        (("tdamp-uci", "--quick"), "--out runs/again"),
        (("verify", "--results", "no-such-folder"), "no folder no-such-folder"),
        (("list", "--quick"), "reproduce list runs no study: leave out --quick"),
        (("--seeds", "2", "--out", "x"), "leave out --seeds, --out"),
    ],
)
def test_what_is_asked_must_be_clear(arguments, words):
    assert words in refused(2, "reproduce", *arguments)


@pytest.mark.parametrize(("again", "code"), [(1.001, 0), (1.2, 1)])
def test_verify_tells_by_its_exit_code(narrow, monkeypatch, again, code):
    numbers = [
        Checked("uci", "yacht", "rmse", 1.0, again, 0.01, "averaged"),
        Checked("structured-lenet5", "8-16-50", "dense parameters", 431080, 431080, 0, "counted"),
    ]
    monkeypatch.setattr(running, "verify", lambda *_: numbers)
    result = call("reproduce", "verify", "--results", RESULTS)
    assert result.exit_code == code
    assert "431,080" in result.stdout
    assert ("NO" in result.stdout) == (code == 1)
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    rows = json.loads(call("reproduce", "verify", "--results", RESULTS, "--json").stdout)
    assert [row["agrees"] for row in rows] == [code == 0, True]


def test_without_a_clone_the_command_says_to_clone(tmp_path, monkeypatch):
    monkeypatch.setattr("bayesieve.runs.clone.__file__", str(tmp_path / "a/b/c/clone.py"))
    monkeypatch.chdir(tmp_path)
    works = ("compare --data digits --out a", "sweep --data digits --out a")
    for command in ("reproduce list", "reproduce verify", *works):
        assert "clone the repository" in refused(2, *command.split())


def test_a_clone_around_the_working_directory_is_enough(tmp_path, monkeypatch):
    for folder in ("studies", "src/bayesieve", "runs"):
        (tmp_path / "clone" / folder).mkdir(parents=True)
    (tmp_path / "clone" / "studies" / "__init__.py").touch()
    monkeypatch.setattr("bayesieve.runs.clone.__file__", str(tmp_path / "a/b/c/clone.py"))
    monkeypatch.chdir(tmp_path / "clone" / "runs")
    monkeypatch.setattr("sys.path", [*sys.path])
    require_studies("reproduce")
    assert sys.path[-1] == str(tmp_path / "clone")
