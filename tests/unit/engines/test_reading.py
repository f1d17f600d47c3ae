"""Files and lines to read an engine to the bottom: the file itself and all it imports from us.

The ground floor is not counted: the modules that every engine stands on and what they import in
turn (the posteriors carry their priors, the workspace makes the noise), checks, errors and the
likelihoods.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
CORE = ("layout", "network", "problem", "workspace", "posterior", "state")
FLOOR = (*(f"core.{name}" for name in CORE), "core.likelihoods", "checks", "errors")

# engine: file, files and lines at most
LIMITS = {
    "MAP": ("map", 2, 340),
    "SBNN": ("sbnn", 3, 600),
    "SGHMC": ("sgmcmc", 3, 780),  # moves in C and their twins
    "BMR": ("bmr", 4, 900),
    "horseshoe": ("horseshoe", 4, 900),
    "TDAMP": ("tdamp", 8, 1550),
}


def file_of(module: str) -> Path | None:
    """The file of a dotted module below bayesieve; None for a name inside a module."""
    path = SOURCE / "bayesieve" / Path(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def imported_by(path: Path) -> Iterator[str]:
    """Our modules that a file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bayesieve."):
            module = (node.module or "").removeprefix("bayesieve.")
            names = [f"{module}.{alias.name}" for alias in node.names]
            submodules = [name for name in names if file_of(name) is not None]
            yield from submodules
            if len(submodules) < len(names):
                yield module
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("bayesieve.")]
            yield from (name.removeprefix("bayesieve.") for name in names)


def reached(modules: Iterator[str] | tuple[str, ...], stop: frozenset[Path]) -> frozenset[Path]:
    """Files of modules and of all they import, not going into `stop`."""
    paths: set[Path] = set()
    waiting = list(modules)
    while waiting:
        path = file_of(waiting.pop())
        if path is not None and path not in paths | stop:
            paths.add(path)
            waiting.extend(imported_by(path))
    return frozenset(paths)


def to_read(engine: str) -> list[Path]:
    """What one has to read to know an engine."""
    return sorted(reached((f"engines.{engine}",), reached(FLOOR, frozenset())))


@pytest.mark.parametrize("name", LIMITS)
def test_an_engine_is_read_to_the_bottom_in_few_files(name):
    file, most_files, most_lines = LIMITS[name]
    lines = {
        path.relative_to(SOURCE).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in to_read(file)
    }
    assert len(lines) <= most_files, lines
    assert sum(lines.values()) <= most_lines, lines


def test_the_floor_has_no_engine():
    rooms = {
        path.relative_to(SOURCE / "bayesieve").parts[0] for path in reached(FLOOR, frozenset())
    }
    assert rooms <= {"core", "nets", "data", "checks.py", "errors.py", "files.py"}
