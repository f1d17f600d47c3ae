"""The methods of `bayesieve compare` by name."""

import pytest

from bayesieve.core.priors import Normal
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.engines.bmr import BMR
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.engines.tdamp import TDAMP
from bayesieve.errors import UsageError
from studies.comparison.budget import Compare
from studies.comparison.methods import METHODS, build_method, read_changes

BUDGET = Compare("unused", epochs=20, batch_size=100, finetune=5)


def method(name, *changes, task="classification"):
    return build_method(name, task, 50_000, BUDGET, read_changes(changes).get(name, {}))


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("name", METHODS)
def test_every_name_makes_a_method(name, task):
    built = method(name, task=task)
    assert built.name == name
    assert type(built.engine) is type(built.finetune_engine)


def test_what_removes_weights_itself_does_not_do_so_while_fine_tuning():
    built = method("bmr")
    assert isinstance(built.engine, BMR)
    assert built.engine.reduction is not None
    assert built.finetune_engine.reduction is None


def test_message_passing_keeps_its_units_unless_told():
    assert isinstance(method("tdamp").engine, TDAMP)
    assert method("tdamp").engine.keep == 1.0
    half = method("tdamp", "tdamp.pruning.keep_units=0.5")
    assert (half.engine.keep, half.finetune_engine.keep) == (0.5, 1.0)


def test_chains_are_as_long_as_their_run():
    built = method("sghmc-sa")
    assert isinstance(built.engine, SGHMC)
    assert built.engine.chain.burn_in == 0.6 * 20 * 500
    assert built.finetune_engine.chain.burn_in == 0.6 * 5 * 500
    assert built.finetune.lr == "constant"
    assert method("map").finetune.lr == "cosine"


def test_the_prior_of_what_is_left_of_a_sparse_chain_is_the_slab():
    built = method("sghmc-sa", "sghmc-sa.engine.slab_std=0.4")
    assert (built.engine.prior, built.engine.adapt) == (GaussianLaplace(0.05, 0.4), "sa")
    assert (built.finetune_engine.prior, built.finetune_engine.adapt) == (Normal(0.4), "none")
    assert method("sghmc").finetune_engine.prior == method("sghmc").engine.prior


def test_what_is_pruned_by():
    scores = {name: method(name).score for name in METHODS}
    without_spread = {"map", "dropout", "ensemble", "sgld", "sghmc", "sghmc-sa"}
    assert {name for name, score in scores.items() if score == "magnitude"} == without_spread
    assert method("sbnn", "sbnn.pruning.score=inclusion").score == "inclusion"


def test_settings_of_single_methods():
    changes = ("sbnn.engine.lr=0.5", "sbnn.schedule.kl=0.25", "map.engine.lr=0.1")
    built = method("sbnn", *changes)
    assert built.engine.lr == 0.5
    assert built.schedule.kl == built.finetune.kl == 0.25
    assert method("map", *changes).engine.lr == 0.1
    assert method("dropout", *changes).engine.lr == method("dropout").engine.lr
    with pytest.raises(UsageError, match="section of engine, schedule, pruning"):
        read_changes(["sbnn.training.epochs=3"])
