"""`bayesieve sweep` as a user runs it."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading

import pytest

from bayesieve.errors import UsageError
from bayesieve.runs.config import read_config
from commands import as_json, forked_command, ok, refused
from studies.search import Dimension, SearchFolder

NET = ("--data", "digits", "--net", "mlp:8")
SEARCH = (*NET, "--engine", "map", "--epochs", "1")
SWEEP = (*SEARCH, "--no-figures")


def test_a_search_is_continued_and_its_front_can_be_trained(tmp_path):
    pytest.importorskip("optuna")
    first = as_json("sweep", *SWEEP, "--trials", "2", "--out", tmp_path)
    assert [row["number"] for row in first["trials"]] == [0, 1]
    assert set(first["trials"][0]["settings"]) == {"engine.lr", "pruning.zeros"}
    second = as_json("sweep", *SWEEP, "--trials", "1", "--out", tmp_path)
    assert second["trials"][:2] == first["trials"]
    assert json.loads((tmp_path / "sweep.json").read_text()) == second
    front = second["front"]
    assert front
    for row in front:  # nothing is better in both
        assert not any(
            other["score"] < row["score"] and other["weights"] < row["weights"]
            for other in second["trials"]
        )
    file = tmp_path / "front" / f"{front[0]['number']}.json"
    assert read_config(file).engine.lr == front[0]["settings"]["engine.lr"]
    ok("train", "--config", file, "--no-figures", "--out", tmp_path / "run")
    other = refused(2, "sweep", *SWEEP, "--batch-size", "7", "--out", tmp_path)
    assert "begun with other settings" in other


def test_what_to_search_can_be_said(tmp_path):
    pytest.importorskip("optuna")
    result = as_json(
        "sweep", *SWEEP, "--trials", "1", "--out", tmp_path, "--zeros", "0.5",
        "--search", "engine.optimizer=adamw|sgd", "--search", "engine.lr=0.01:0.1:log",
    )  # fmt: skip
    (row,) = result["trials"]
    assert row["settings"]["engine.optimizer"] in ("adamw", "sgd")
    assert 0.01 <= row["settings"]["engine.lr"] <= 0.1


def test_whole_numbers_can_be_searched(tmp_path):
    pytest.importorskip("optuna")
    result = as_json(
        "sweep", *SWEEP, "--trials", "2", "--out", tmp_path, "--zeros", "0.5",
        "--search", "training.batch_size=32:128:log", "--search", "training.epochs=1|2",
    )  # fmt: skip
    for trial in settings(result):
        assert type(trial["training.batch_size"]) is int
        assert 32 <= trial["training.batch_size"] <= 128
        assert trial["training.epochs"] in (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "lr=1:2",
        "engine.lr",
        "engine.lr=2:1",
        "engine.lr=0:1:log",
        "engine.lr=1:2:3",
        "training.batch_size=1.5:3",
    ],
)
def test_searches_that_cannot_be_meant(text):
    with pytest.raises(UsageError, match="--search"):
        Dimension.parse(text)


def test_a_search_fails_before_it_trains(tmp_path):
    pytest.importorskip("optuna")
    line = refused(2, "sweep", *SWEEP, "--search", "engine.l=1:2", "--out", tmp_path / "a")
    assert "unknown key 'engine.l'" in line
    assert not (tmp_path / "a").exists()
    assert "--trials" in refused(2, "sweep", *SWEEP, "--trials", "-1", "--out", tmp_path / "a")


def settings(result):
    return [row["settings"] for row in result["trials"]]


def test_a_search_in_two_parts_tries_what_the_unbroken_one_tries(tmp_path):
    pytest.importorskip("optuna")
    parts = [as_json("sweep", *SWEEP, "--trials", n, "--out", tmp_path / "a") for n in (2, 1)]
    whole = as_json("sweep", *SWEEP, "--trials", "3", "--out", tmp_path / "b")
    assert settings(parts[1]) == settings(whole)
    # Around 1e-2, which few examples take; many take 1e-3.
    assert all(0.002 <= trial["engine.lr"] <= 0.05 for trial in settings(whole))
    other = as_json("sweep", *SWEEP, "--seed", "1", "--trials", "1", "--out", tmp_path / "c")
    assert settings(other)[0] not in settings(whole)


def test_the_folder_holds_the_front_and_nothing_that_was_beaten(tmp_path):
    pytest.importorskip("optuna")
    as_json("sweep", *SEARCH, "--trials", "1", "--out", tmp_path)
    folder = SearchFolder(tmp_path)
    folder.place("front/99.json").write_text("{}")  # of a trial that was beaten
    (tmp_path / "front" / "mine.json").write_text("{}")
    result = as_json("sweep", *SEARCH, "--trials", "1", "--out", tmp_path)
    assert (tmp_path / "sweep.png").exists()
    names = {f"{row['number']}.json" for row in result["front"]} | {"mine.json"}
    assert {file.name for file in (tmp_path / "front").iterdir()} == names


def test_one_database_holds_several_searches_and_each_machine_its_own_device(tmp_path):
    pytest.importorskip("optuna")
    shared = ("sweep", *SWEEP, "--storage", f"sqlite:///{tmp_path}/shared.db")
    first = as_json(*shared, "--trials", "1", "--out", tmp_path / "a")
    second = as_json(*shared, "--trials", "1", "--device", "cpu", "--out", tmp_path / "b")
    assert second["trials"][0] == first["trials"][0]
    gathered = as_json(*shared, "--trials", "0", "--out", tmp_path / "c")
    assert gathered == second
    empty = refused(2, *shared, "--trials", "0", "--name", "other", "--out", tmp_path / "d")
    assert "no finished trial yet" in empty
    wrong = refused(2, "sweep", *SWEEP, "--storage", "shared.db", "--out", tmp_path / "e")
    assert "--storage shared.db: this database cannot be used" in wrong


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """URL of a PostgreSQL server that this test starts, on a socket of its own."""
    pytest.importorskip("psycopg", reason="needs psycopg, the driver of PostgreSQL")
    makes, controls = shutil.which("initdb"), shutil.which("pg_ctl")
    if makes is None or controls is None:
        pytest.skip("needs a PostgreSQL server: Debian's package postgresql")
    user = {"user": "postgres"} if os.geteuid() == 0 else {}  # the server refuses to run as root
    with tempfile.TemporaryDirectory() as home:  # the path of a socket must be short
        os.chmod(home, 0o777)
        data = f"{home}/data"
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
        subprocess.run([makes, "-D", data, "-A", "trust", "-U", "sweeps"], **quiet)
        settings = f"-k {home} -c listen_addresses='' -c fsync=off"
        subprocess.run([controls, "-D", data, "-w", "-o", settings, "start"], **quiet)
        try:
            yield f"postgresql://sweeps@/postgres?host={home}"
        finally:
            subprocess.run([controls, "-D", data, "-m", "immediate", "stop"], **quiet)


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
def test_workers_share_a_database_and_one_that_is_killed_loses_only_its_trial(
    tmp_path, storage, request
):
    pytest.importorskip("optuna")
    url = f"sqlite:///{tmp_path}/shared.db"
    if storage == "postgres":
        url = request.getfixturevalue("postgres")
    shared = ("sweep", *SWEEP, "--storage", url)
    errors, tick = tmp_path / "errors.txt", threading.Event()
    other = forked_command(errors, *shared, "--out", tmp_path / "a", "--trials", "10000")
    try:
        while not (tmp_path / "a" / "sweep.json").exists():
            assert other.is_alive, other.errors
            tick.wait(0.05)
        ours = as_json(*shared, "--trials", "2", "--out", tmp_path / "b")
    finally:
        assert other.end(signal.SIGKILL, 60) == -signal.SIGKILL
    last = as_json(*shared, "--trials", "1", "--out", tmp_path / "c")
    theirs = json.loads((tmp_path / "a" / "sweep.json").read_text())
    for earlier in (ours, theirs):
        assert [row for row in last["trials"] if row in earlier["trials"]] == earlier["trials"]
    tried = [tuple(trial.values()) for trial in settings(last)]
    assert len(set(tried)) == len(tried) >= 4


def test_a_database_that_another_worker_is_just_making_is_tried_again(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    from sqlalchemy.exc import IntegrityError

    create, calls = optuna.create_study, []

    def beaten(**arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise IntegrityError("INSERT INTO alembic_version", None, Exception("UNIQUE"))
        return create(**arguments)

    monkeypatch.setattr(optuna, "create_study", beaten)
    as_json("sweep", *SWEEP, "--trials", "1", "--out", tmp_path)
    assert len(calls) == 2
