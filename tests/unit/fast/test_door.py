"""The door for speed is narrow: no code outside `fast` asks what runs it."""

import re
from dataclasses import fields
from pathlib import Path

from bayesieve.core.execution import Execution
from problems import no_data

PACKAGE = Path(__file__).parents[3] / "src" / "bayesieve"
FORK = re.compile(r"(?:execution|backend)\.(?:native|compiled)|_natively_")


def test_no_code_outside_asks_for_the_backend():
    files = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "fast"]
    asking = [str(path) for path in files if FORK.search(path.read_text(encoding="utf-8"))]
    assert files
    assert not asking


def test_a_problem_and_an_execution_have_few_names():
    assert len([name for name in dir(no_data()) if not name.startswith("_")]) <= 14
    assert len(fields(Execution)) <= 4
