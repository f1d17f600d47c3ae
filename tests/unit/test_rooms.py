"""Imports point one way through the rooms, in the order in which data walks through them."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import closure

PACKAGE = Path(__file__).parents[2] / "src" / "bayesieve"
BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text(encoding="utf-8"))

# A room imports itself, the ground floor and the rooms named here.
_GROUND = {"checks", "environment", "errors", "files", "lock", "text", "__version__"}
_INPUTS = {"data", "nets"}
_FITTED = {"core", "graph", "engines", "fast", "training"}
_ALL = {*_INPUTS, *_FITTED, "sieve", "assess", "uncertainty", "deliver"}
MAY_IMPORT: dict[str, set[str]] = {
    "checks": set(),
    "errors": set(),
    "environment": set(),
    "files": set(),
    "lock": set(),
    "priors": {"core", "engines"},
    "text": set(),
    "data": {"core"},
    "nets": {"core"},
    "scratch": set(),
    "core": set(),
    "graph": {"core"},
    "engines": {"core"},
    "fast": {"core", "engines"},
    "training": {"core", "engines", "fast"},
    "assess": _FITTED,
    "sieve": {"core", "graph", "engines"},
    "contrib": {*_INPUTS, *_FITTED},
    "uncertainty": {*_INPUTS, *_FITTED, "assess"},
    "deliver": {*_INPUTS, *_FITTED, "sieve", "assess", "uncertainty"},
    "select": _ALL,
    "estimators": {*_ALL, "select"},
    "report": {*_ALL, "select"},
    "runs": {*_ALL, "contrib", "select", "estimators", "report"},
}
MAY_IMPORT["cli"] = set(MAY_IMPORT)
MAY_IMPORT["__main__"] = {"cli"}
# modules of engines that are no engine: the families, and the table of settings
SHARED = {
    "Engine", "laplace", "optimisers", "recipes", "sampling", "scaled", "variational",
}  # fmt: skip

FILES = [
    path.relative_to(PACKAGE)
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"  # the public names: lazy, and from everywhere
]


@functools.cache
def imported_modules(path: Path) -> list[tuple[str, ...]]:
    """The parts after `bayesieve` of every module of ours a file imports, at any depth."""
    package, found = ("bayesieve", *path.parent.parts), []
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else ()
            base = (*start, *(node.module.split(".") if node.module else ()))
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        found += [name[1:] for name in names if name[0] == "bayesieve"]
    return found


HEART = {"core", "graph", "engines", "training", "fast", "sieve", "assess"}


def sizes_of_rooms():
    """Files and lines of each room; single files are the room `top`, rooms make up the heart."""
    found: dict[str, list[int]] = {"all": [0, 0]}
    for path in closure.files().values():
        parts = path.relative_to(PACKAGE).parts
        own = parts[0] if len(parts) > 1 else "top"
        for room in (own, "all", *(["heart"] if own in HEART else [])):
            size = found.setdefault(room, [0, 0])
            size[0] += 1
            size[1] += closure.lines(path)
    return found


def test_no_room_is_larger_than_its_budget():
    found = sizes_of_rooms()
    assert found.keys() == BUDGETS["rooms"].keys()
    too_large = {
        room: (size, BUDGETS["rooms"][room])
        for room, size in found.items()
        if size[0] > BUDGETS["rooms"][room][0] or size[1] > BUDGETS["rooms"][room][1]
    }
    assert not too_large, "files and lines, and what tests/unit/budgets.toml allows"


@pytest.mark.parametrize("name", BUDGETS["closures"])
def test_a_reader_opens_no_more_than_the_budget(name):
    budget, known = BUDGETS["closures"][name], closure.files()
    found = closure.closure([f"bayesieve.{module}" for module in budget["of"]], known)
    n_lines = sum(closure.lines(known[module]) for module in found)
    assert len(found) <= budget["modules"], sorted(found)
    assert n_lines <= budget["lines"], n_lines


@pytest.mark.slow
def test_imports_point_one_way():
    for path in FILES:
        room = path.parts[0].removesuffix(".py")
        assert room in MAY_IMPORT, f"{room} is a new room: say in MAY_IMPORT what it may import"
        allowed = MAY_IMPORT[room] | {room, *_GROUND}
        wrong = [
            ".".join(("bayesieve", *name))
            for name in imported_modules(path)
            if not name or name[0] not in allowed
        ]
        assert not wrong, f"{path} may import {sorted(allowed)}, not {wrong}"


def test_underscored_names_stay_in_their_room():
    for path in FILES:
        room = path.parts[0].removesuffix(".py")
        private = [
            ".".join(("bayesieve", *name))
            for name in imported_modules(path)
            if name[0] not in (room, "__version__") and any(part[0] == "_" for part in name)
        ]
        assert not private, f"{path} imports {private} of another room; make them public there"


def test_engines_do_not_import_each_other():
    for path in FILES:
        if path.parts[0] != "engines" or path.name.startswith("_") or path.stem in SHARED:
            continue  # __init__ gathers the engines; underscored modules are shared by them
        imported = (name for name in imported_modules(path) if name[0] == "engines")
        names = {name[1] for name in imported if name[1:]}
        engine = path.parts[1].removesuffix(".py")  # an engine is a file, or a folder of files
        others = {name for name in names - {engine, *SHARED} if name[0] != "_"}
        assert not others, f"{path} imports {sorted(others)}; share through core or engines/_*.py"


def test_messages_below_the_command_line_name_arguments_and_no_flags():
    """The command line adds the dashes: `cli.console.with_flags`."""
    of_others = {"native.py", "logs.py"}  # a compiler's and TensorBoard's
    for path in FILES:
        if path.parts[0] != "cli" and path.name not in of_others:
            lines = (PACKAGE / path).read_text(encoding="utf-8").splitlines()
            found = [line for line in lines if re.search(r'"[^"]*--[a-z]', line)]
            assert not found, f"{path}: {found}; write `name`, or `name=value`"


# One process for all of them: most of its time is the import of torch.
ONLY_WHERE_NEEDED = """
import sys

def not_yet(*names):
    assert not {*names} & {*sys.modules}, {*names} & {*sys.modules}

import bayesieve.data
not_yet("sklearn", "pandas", "pyarrow", "PIL", "matplotlib")
import bayesieve.assess.metrics, bayesieve.uncertainty.calibration
not_yet("matplotlib")
from bayesieve import runs
runs.train(data="digits", net="mlp:8", steps=2, figures=False, out=sys.argv[1])
not_yet("sklearn", "sympy", "matplotlib", "scipy.optimize")
import bayesieve.assess.figures
not_yet("matplotlib.pyplot")
"""


@pytest.mark.slow
def test_heavy_libraries_are_loaded_only_where_they_are_needed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ONLY_WHERE_NEEDED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
