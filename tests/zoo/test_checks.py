"""Every check of tests/model_checks.py on a few architectures, and by `make zoo` on all of them.

What an architecture cannot do is recorded with its reason, and shown in docs/models.md. The short
form compares with the record; `BAYESIEVE_ZOO=whole` writes it (tests/zoo/conftest.py).
"""

import json
import os

import pytest

from architectures import ARCHITECTURES
from benchmarks.libraries import LIBRARY_MODELS, missing
from make_models_table import RECORD, measured
from model_checks import CHECKS, Trial, outcome

WHOLE = os.environ.get("BAYESIEVE_ZOO") == "whole"
SHORT = ("LeNet", "norm and activation in one", "GPT, tied embedding")
SLOW = {"ONNX", "horseshoe"}  # seconds to load


@pytest.mark.parametrize("name", SHORT)
def test_checks_come_out_as_recorded(name):
    if WHOLE:
        pytest.skip("the record is written anew")
    trial = Trial(*ARCHITECTURES[name].build())
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["rows"][name]["checks"]
    found = {check: outcome(check, trial) for check in CHECKS if check not in SLOW}
    assert not [c for c, said in found.items() if (said == "yes") != (recorded[c] == "yes")], found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*ARCHITECTURES, *LIBRARY_MODELS])
def test_what_holds_is_measured(name, record_property):
    if not WHOLE:
        pytest.skip("takes minutes: make zoo")
    case = {**ARCHITECTURES, **LIBRARY_MODELS}[name]
    if name in LIBRARY_MODELS and missing(case.library):
        pytest.skip(f"{case.library} is not installed: pip install 'bayesieve[zoo]'")
    trial = Trial(*case.build())
    row = measured(name, trial)
    record_property("zoo", (name, row))
    before, after = trial.small.compaction.parameters
    assert row["checks"]["compact"] == "yes"
    assert after <= case.left * before
