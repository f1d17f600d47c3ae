"""Files of a run or bundle that are cut off or changed by a bit: refused, or the same answer."""

import re
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from commands import call, ok
from faults.injectors import flip, positions, truncate
from faults.rows import cases

READERS = {
    "run": ("evaluate b --samples 4 --json", "report b -o new.html --test-examples 4"),
    "compact bundle": ("predict compact t.csv --out said.csv --abstain 0.9",),
    "full bundle": ("predict full t.csv --samples 4 --out said.csv", "verify full"),
    "unfinished run": ("train --resume --no-figures --out unfinished --json",),
}

TIMES = re.compile(r'"[a-z_]*seconds": [0-9.e+-]+|"[a-z_]*ms":\{[^}]*\}|[0-9.e-]+ ms')  # differ


@pytest.fixture(scope="module")
def home(work, tmp_path_factory):
    """A run b, two bundles of it, and a run that was stopped after its second step."""
    home = tmp_path_factory.mktemp("damage") / "home"
    shutil.copytree(work.home, home)
    with chdir(home):
        ok("compact", "b", "--out", "compact")
        ok("export", "b", "--to", "bundle", "--masked-ok", "--out", "full")
        shutil.copytree("a", "unfinished")
        for name in ("metrics.json", "posterior.safetensors", "report.md"):
            (home / "unfinished" / name).unlink()
    return home


FOLDERS = {"run": "b", "compact bundle": "compact", "full bundle": "full",
           "unfinished run": "unfinished"}  # fmt: skip


@pytest.mark.parametrize("kind", cases(["run", "full bundle"], list(FOLDERS)))
def test_damage_is_refused_or_changes_no_answer(tmp_path, home, tally, kind):
    commands = READERS[kind][: cases(1, None)]
    expected = [answer(home, tmp_path, command) for command in commands]
    assert all(code == 0 for code, _, _ in expected), expected
    for file in sorted((home / FOLDERS[kind]).rglob("*")):
        if not file.is_file():
            continue
        name = file.relative_to(home)
        for at in cases([file.stat().st_size // 2], positions(file)):
            for damage in (flip, truncate):
                for command, (_, whole, _) in zip(commands, expected, strict=True):
                    code, said, errors = answer(home, tmp_path, command, name, damage, at)
                    tally.injected()
                    words = f"{damage.__name__} {name} at {at}, then {command}"
                    if code == 0 and said != whole:
                        tally.found("silent wrong answers", f"{words}: {said[:300]}")
                    if code != 0 and file.name not in errors:
                        tally.found("other failures", f"{words}: {errors[-300:]}")


def answer(home, tmp_path, command, name=None, damage=None, at=None):
    """Exit code, answer and errors of a command in a copy of the home with one damaged file."""
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    if damage is not None:
        damage(copy / name, at)
    with chdir(copy):
        result = call(*command.split())
        written = [Path(file) for file in ("said.csv", "new.html") if Path(file).exists()]
        said = "".join(file.read_text() for file in written) or result.stdout
    shutil.rmtree(copy)
    return result.exit_code, TIMES.sub("", said), result.stderr
