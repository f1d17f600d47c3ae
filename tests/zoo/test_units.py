"""Half the units of every architecture go, and the smaller network computes the same."""

import json
import os

import pytest

from architectures import ARCHITECTURES
from make_models_table import PAGE, RECORD, halved, page
from model_checks import Trial, copies, trains

WHOLE = os.environ.get("BAYESIEVE_ZOO") == "whole"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_half_the_units_go_and_the_rest_computes_the_same(name):
    case = ARCHITECTURES[name]
    trial = Trial(*case.build())
    half = halved(name, trial)
    before, after = half.report.parameters
    assert half.report.max_difference < 1e-5
    assert after <= case.left * before, half.report
    assert after <= 1.1 * (1 - half.sparse.zeros) * before, half.report  # what is masked is gone
    assert WHOLE or half.row in PAGE.read_text(encoding="utf-8"), "run make zoo"
    trains(trial)
    copies(trial)


@pytest.mark.skipif(WHOLE, reason="both are written at the end")
def test_the_page_is_made_of_the_record():
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    assert PAGE.read_text(encoding="utf-8") == page(rows)


def test_dropout_that_a_function_does_is_on_in_training():
    trial = Trial(*ARCHITECTURES["Swin"].build())
    assert not trial.outputs(trial.small.eval()).equal(trial.outputs(trial.small.train()))
