import math

import pytest

from bayesieve.checks import (
    check_choice,
    check_fraction,
    check_not_negative,
    check_positive,
    check_seed,
    did_you_mean,
)


def test_good_values_pass():
    check_positive("f", a=1, b=1e-300, c=(0.5, 2))
    check_not_negative("f", a=0, b=0.0, c=(0, 3.5))
    check_fraction("f", a=0, b=1, c=(0.0, 0.5, 1.0))
    check_fraction("f", open_ends=True, a=0.5, b=(1e-9, 1 - 1e-9))
    check_choice("f", "score", "snr", ("snr", "magnitude"))


def test_a_percentage_is_taken_for_what_it_is():
    with pytest.raises(
        ValueError, match=r"zeros must be between 0 and 1, got 95. Write 95 % as 0.95."
    ):
        check_fraction("prune", zeros=95)
    with pytest.raises(ValueError, match=r"got 200\.$"):
        check_fraction("prune", zeros=200)


def test_empty_tuples_pass():
    check_positive("f", a=())
    check_not_negative("f", a=())
    check_fraction("f", a=())


@pytest.mark.parametrize("value", [0, 0.0, -1, math.inf, -math.inf, math.nan, (1.0, 0.0)])
def test_not_positive_raises(value):
    with pytest.raises(ValueError, match=r"^SBNN: lr must be > 0, got "):
        check_positive("SBNN", lr=value)


@pytest.mark.parametrize("value", [-1, -1e-300, math.inf, math.nan, (0.0, -2.0)])
def test_negative_raises(value):
    with pytest.raises(ValueError, match=r"^SGLD: temperature must be >= 0, got "):
        check_not_negative("SGLD", temperature=value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, (0.5, 2)])
def test_outside_the_unit_interval_raises(value):
    with pytest.raises(ValueError, match=r"^prune: fraction must be between 0 and 1, got "):
        check_fraction("prune", fraction=value)


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.1, math.nan])
def test_ends_are_refused_when_open(value):
    message = r"^SpikeSlab: slab_prob must be strictly between 0 and 1, got "
    with pytest.raises(ValueError, match=message):
        check_fraction("SpikeSlab", open_ends=True, slab_prob=value)


@pytest.mark.parametrize("check", [check_positive, check_not_negative, check_fraction])
@pytest.mark.parametrize("value", ["0.5", None, [0.5], (0.5, "a")])
def test_what_is_no_number_raises(check, value):
    with pytest.raises(TypeError, match=r"^MAP: lr must be a number, got "):
        check("MAP", lr=value)


@pytest.mark.parametrize("value", [-1, 2**63 - 1, 1.5, "0", None])
def test_what_is_no_seed_raises(value):
    check_seed("fit", seed=0, other=2**63 - 2)
    with pytest.raises(ValueError, match=r"^fit: seed must be a whole number from 0 to 2\^63 - 2"):
        check_seed("fit", seed=value)


def test_the_faulty_one_of_several_values_is_named():
    with pytest.raises(ValueError, match=r"^f: b must be > 0, got -2\.$"):
        check_positive("f", a=1, b=(3, -2), c=4)


def test_unknown_choice_lists_all_and_suggests_the_nearest():
    message = r"^prune: score must be one of snr, magnitude; got 'magnitud'\. Did you mean 'magn"
    with pytest.raises(ValueError, match=message):
        check_choice("prune", "score", "magnitud", iter(("snr", "magnitude")))


def test_far_words_get_no_suggestion():
    assert did_you_mean("zzz", ("snr", "magnitude")) == ""
    assert did_you_mean("snrr", iter(("snr", "magnitude"))) == " Did you mean 'snr'?"
