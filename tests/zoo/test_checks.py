"""Every check of tests/model_checks.py, on a few architectures; `make zoo` takes all of them.

What an architecture cannot do is recorded with its reason, and shown in docs/models.md.
"""

import json
import os

import pytest

from architectures import ARCHITECTURES
from benchmarks.libraries import LIBRARY_MODELS, missing
from make_models_table import RECORD
from model_checks import CHECKS, Trial, outcome

WHOLE = os.environ.get("BAYESIEVE_ZOO") == "whole"
SHORT = ("LeNet", "norm and activation in one", "GPT, tied embedding")
SLOW = {"ONNX", "horseshoe"}  # seconds to load
ROWS = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]


def differing(name: str, trial: Trial) -> list[str]:
    """Checks that do not come out as recorded."""
    checks = [check for check in CHECKS if WHOLE or check not in SLOW]
    found = {check: outcome(check, trial) for check in checks}
    recorded = ROWS[name]["checks"]
    return [f"{c}: {w}" for c, w in found.items() if (w == "yes") != (recorded[c] == "yes")]


@pytest.mark.parametrize("name", ARCHITECTURES if WHOLE else SHORT)
def test_every_check_comes_out_as_recorded(name):
    assert not differing(name, Trial(*ARCHITECTURES[name].build()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LIBRARY_MODELS)
def test_models_of_libraries(name):
    case = LIBRARY_MODELS[name]
    if not WHOLE:
        pytest.skip("takes minutes: make zoo")
    if missing(case.library):
        pytest.skip(f"{case.library} is not installed: pip install 'bayesieve[zoo]'")
    if name not in ROWS:
        pytest.skip("has no record yet: python docs/make_models_table.py")
    trial = Trial(*case.build())
    assert not differing(name, trial)
    before, after = trial.small.compaction.parameters
    assert after <= case.left * before
