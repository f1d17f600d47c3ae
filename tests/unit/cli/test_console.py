"""What a terminal shows while a command works."""

import sys
import threading

from bayesieve.cli import console
from bayesieve.training.progress import Bar
from commands import ok


def on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(console, "_QUIET", 0.0)


def test_a_command_at_work_says_so_on_a_terminal(capsys, monkeypatch):
    on_a_terminal(monkeypatch)
    said = threading.Event()
    monkeypatch.setattr(
        console, "print", lambda *a, **b: (said.set(), print(*a, **b)), raising=False
    )
    with console.heartbeat("evaluate"):
        assert said.wait(5)
    shown = capsys.readouterr().err
    assert "evaluate: 0 s" in shown
    assert shown.endswith("\r\x1b[K")  # nothing is left of it


def test_the_heartbeat_gives_way_to_a_bar(capsys, monkeypatch):
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(Bar, "shown", True)
    with console.heartbeat("train"):
        threading.Event().wait(0.05)
    assert "train:" not in capsys.readouterr().err


def test_nothing_is_written_without_a_terminal(capsys):
    with console.heartbeat("evaluate"):
        pass
    assert capsys.readouterr() == ("", "")


def test_scratch_training_ends_with_numbers():
    shown = ok("scratch", "train", "--data", "digits", "--epochs", 1, "--units", "8")
    *_, loss, result = shown.stdout.strip().splitlines()
    assert loss.startswith("loss: training ")
    assert result.startswith("result: accuracy training ")
    assert "(" not in shown.stderr  # words, no repr
