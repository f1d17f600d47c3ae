"""One method, trained and scored."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from bayesieve import runs
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.problem import Problem
from bayesieve.data.augment import Augment
from bayesieve.data.examples import Examples
from bayesieve.data.images import PixelScale
from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.scaled import LayerScaled
from bayesieve.errors import UnsupportedModelError
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from studies.comparison import measure as measuring
from studies.comparison.budget import Compare
from studies.comparison.measure import measure
from studies.comparison.methods import Method

BUDGET = Compare("unused", epochs=4, batch_size=16, seeds=2, zeros=(0.5,), finetune=2, samples=4)
KINDS = {
    "point": Method("map", MAP(lr=0.02), Schedule(), "magnitude", "point"),
    "posterior": Method("sbnn", SBNN(lr=0.02), Schedule()),
    "ensemble": Method("ensemble", MAP(lr=0.02), Schedule(), "magnitude", "ensemble", members=2),
    "dropout": Method("dropout", MAP(lr=0.02), Schedule(), "magnitude", "dropout"),
}


def images() -> tuple[nn.Module, Examples]:
    torch.manual_seed(3)
    y = torch.arange(64) % 2
    x = torch.rand(64, 1, 2, 2) * 0.2 + y[:, None, None, None] * 0.5
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return model, Examples(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_scored_in_every_way(kind):
    model, data = images()
    outside = 5 * torch.randn(32, 1, 2, 2)
    problem = Problem(model, Categorical(), data)
    found = measure(KINDS[kind], model, problem, data, BUDGET, outside=outside, scale=PixelScale())
    assert len(found["seeds"]) == 2
    assert found["epochs"] == (2 if kind == "ensemble" else 4)  # the same number of gradients
    for numbers in found["seeds"]:
        assert list(numbers) == [
            "error", "NLL", "ECE", "out-of-distribution AUROC", "error under FGSM 0.1",
            "error at 50 % zeros",
        ]  # fmt: skip
        assert all(0 <= value <= 3 for value in numbers.values())
        assert numbers["error"] <= 0.5
    assert found["seeds"][0] != found["seeds"][1]
    assert found["bytes"] > 0
    assert found["peak_bytes"] is None  # of a device only
    assert found["repetitions"] == [[0, 0], [0, 1]]
    parameters = 4 * 8 + 8 + 8 * 2 + 2
    for (reached,) in found["zeros_reached"]:
        assert 0.5 <= reached <= 0.5 + 9 / parameters  # a dead unit takes its bias along


def test_regression_has_rmse():
    torch.manual_seed(0)
    x = torch.randn(64, 2)
    data = Examples(x, x[:, :1] * 2)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    found = measure(KINDS["point"], model, Problem(model, Gaussian(0.3), data), data, BUDGET)
    assert set(found["seeds"][0]) == {"RMSE", "NLL", "RMSE at 50 % zeros"}


def test_an_engine_that_removes_weights_itself_is_pruned_no_further_than_asked():
    model, data = images()
    reduction = Reduction(start=0.1, end=0.9)
    method = Method("bmr", BMR(LayerScaled(std=0.01), reduction, lr=0.02), Schedule())
    budget = Compare(
        "unused", epochs=6, batch_size=16, seeds=1, zeros=(0.05, 0.9), finetune=1, attack=0
    )
    found = measure(method, model, Problem(model, Categorical(), data), data, budget)
    ((few, many),) = found["zeros_reached"]
    assert 0.05 < few < many
    assert many == pytest.approx(0.9, abs=0.05)


def test_pruned_convolutions_train_one_by_one_to_the_same_masks():
    torch.manual_seed(0)
    y = torch.arange(32) % 2
    data = Examples(torch.rand(32, 1, 4, 4) + y[:, None, None, None], y)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    found = measure(KINDS["posterior"], model, Problem(model, Categorical(), data), data,
                    BUDGET)  # fmt: skip
    assert [len(reached) for reached in found["zeros_reached"]] == [1, 1]
    assert all(0.5 <= reached[0] < 0.6 for reached in found["zeros_reached"])


def test_networks_with_convolutions_train_one_after_another_from_different_weights(monkeypatch):
    torch.manual_seed(0)
    data = Examples(torch.rand(32, 1, 4, 4), torch.arange(32) % 2)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    problem, calls = Problem(model, Categorical(), data), []

    def noted(begun, engines, **named):
        calls.append((len(engines), named["seed"], begun.initial))
        return fit(begun, engines, **named)

    monkeypatch.setattr(measuring, "fit", noted)
    method = KINDS["ensemble"]
    posteriors, _ = measuring.learn(method, problem, replace(BUDGET, seed=5, compile="off"))
    assert [n for n, _, _ in calls] == [1] * 4  # two members of two repetitions
    assert len({seed for _, seed, _ in calls}) == len({start.sum() for _, _, start in calls}) == 4
    assert torch.equal(calls[0][2], problem.initial)
    assert len(posteriors) == 4


def test_training_images_are_changed_when_asked():
    model, data = images()
    budget = Compare("unused", epochs=1, batch_size=16, seeds=1, zeros=(0.5,), finetune=1, attack=0)
    method = KINDS["point"]
    plain, moved = (
        measure(method, model, Problem(model, Categorical(), data, augment=augment), data, budget)
        for augment in (None, Augment(shift=1, flip=True))
    )
    assert plain["seeds"][0]["NLL"] != moved["seeds"][0]["NLL"]


def test_a_method_whose_network_cannot_have_so_many_zeros_is_refused_before_it_trains():
    model, data = images()
    budget = Compare(
        "unused", epochs=1, batch_size=16, seeds=1, zeros=(0.5, 0.85), finetune=1, attack=0
    )
    problem = Problem(model, Categorical(), data)
    (few,) = measure(KINDS["point"], model, problem, data, budget)["zeros_reached"]
    assert few[1] >= 0.85 - 1 / 58
    words = (
        r"^dropout: its network cannot have 95 % zeros: 3 of 58 parameters may stay, but 5 "
        r"always do: at most 91.37 % can be 0. Ask for fewer zeros.$"
    )
    with pytest.raises(UnsupportedModelError, match=words):
        measure(KINDS["dropout"], model, problem, data, replace(budget, zeros=(0.95,)))


def test_the_same_seed_measures_the_same():
    model, data = images()
    budget = Compare("unused", epochs=1, batch_size=16, seeds=1, zeros=())
    runs = [
        measure(KINDS["dropout"], model, Problem(model, Categorical(), data), data, budget)
        for _ in range(2)
    ]
    assert runs[0]["seeds"] == runs[1]["seeds"]


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"zeros": (1.0,)}, {"samples": 0}, {"seeds": -1}, {"finetune": 0}]
)
def test_a_budget_must_make_sense(wrong, tmp_path):
    with pytest.raises(ValueError, match=f"compare: {next(iter(wrong))}"):
        runs.compare(tmp_path, data="digits", **wrong)
