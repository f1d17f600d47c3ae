"""Every example runs, in fewer epochs than it asks for, is short, and says something."""

import warnings
from pathlib import Path

import pytest

from unit.test_docs import in_fewer_epochs

# Libraries that two of them are about; their warnings are theirs.
NEEDED = {"lightning_sieve": ("lightning",), "trainer_sieve": ("transformers", "accelerate")}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path, monkeypatch, capsys):
    for name in NEEDED.get(path.stem, ()):
        pytest.importorskip(name)
        warnings.simplefilter("ignore")
    monkeypatch.chdir(tmp_path)
    code = in_fewer_epochs(path.read_text(encoding="utf-8"))
    exec(compile(code, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
    assert len(capsys.readouterr().out.splitlines()) >= 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(path):
    limit = 201 if path.stem == "nano" else 80  # that one is the library in small
    assert len(path.read_text(encoding="utf-8").splitlines()) < limit
