"""Every example runs, is short, and says something."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_under_80_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
