"""Short runs still give the numbers they gave when they were frozen; see update.py."""

import json
from pathlib import Path

import pytest

from golden.update import RUNS, SEED

HERE = Path(__file__).parent
FIELDS = {"value", "atol", "command", "seed", "torch", "date", "why"}


def record(name):
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RUNS)
def test_a_frozen_number_has_not_drifted(name):
    frozen = record(name)
    assert RUNS[name]() == pytest.approx(frozen["value"], abs=frozen["atol"], rel=0)


def test_every_frozen_number_has_a_run_and_its_provenance():
    assert {path.stem for path in HERE.glob("*.json")} == set(RUNS)
    for name in RUNS:
        frozen = record(name)
        assert frozen.keys() == FIELDS
        assert frozen["seed"] == SEED
        assert frozen["why"]
        assert f"--only {name}" in frozen["command"]
