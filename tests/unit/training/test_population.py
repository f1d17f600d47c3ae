from dataclasses import dataclass

import pytest

from bayesieve.checks import AUTO
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.training.population import one_engine
from runs import fit_toy, toy


def test_one_engine_stays_itself():
    engine = SBNN(lr=0.5)
    assert one_engine([engine] * 3) == (engine, 3)
    assert one_engine([engine]) == (engine, 1)
    assert one_engine((engine, SBNN(lr=0.5))) == (engine, 2)


def test_numbers_become_tuples_and_the_rest_must_agree():
    engines = [
        SBNN(SpikeSlab(1.0, 0.1), lr=0.1, init_std=0.01, local=True),
        SBNN(SpikeSlab(0.5, 0.2, 0.3), lr=1, init_std=0.02, local=True),
    ]
    merged, k = one_engine(engines)
    prior = SpikeSlab((1.0, 0.5), (0.1, 0.2), (0.5, 0.3))
    assert merged == SBNN(prior, lr=(0.1, 1), init_std=(0.01, 0.02), local=True)
    assert k == 2
    assert [merged.prior.member(i) for i in range(2)] == [engine.prior for engine in engines]


def test_only_what_differs_becomes_a_tuple():
    merged, _ = one_engine([FlatVI(lr=0.1), FlatVI(lr=0.2)])
    assert merged == FlatVI(lr=(0.1, 0.2))
    assert merged.prior.std is AUTO
    assert one_engine([SBNN(init_std=0.1), SBNN()])[0] == SBNN(init_std=(0.1, AUTO))


@dataclass(frozen=True)
class _Other:
    lr: float = 0.1


@pytest.mark.parametrize(
    ("engines", "text"),
    [
        ([], "give at least one engine"),
        ([MAP(), SBNN()], "must be of one class"),
        ([MAP(optimizer="sgd"), MAP()], "may differ only in numbers, not in optimizer"),
        ([SBNN(local=True), SBNN()], "not in local"),
        ([MAP(weight_decay=0.1), MAP()], "not in weight_decay"),  # one number for all models
        ([_Other(0.1), _Other(0.2)], "not in lr"),
        ([MAP(Normal()), MAP(SpikeSlab())], "priors of one class, got Normal, SpikeSlab"),
        ([MAP(Normal()), MAP()], "priors of one class, got NoneType, Normal"),
    ],
)
def test_engines_that_cannot_be_one_raise(engines, text):
    with pytest.raises(ValueError, match=f"fit: .*{text}"):
        one_engine(engines)


def test_tuples_must_have_one_number_per_model():
    for k in (1, 3):
        with pytest.raises(ValueError, match="must hold one number per model"):
            fit_toy(toy(), MAP(lr=(0.1, 0.2)), n_models=k)
