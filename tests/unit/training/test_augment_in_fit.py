"""Random changes of images inside `fit`: as by hand, repeatable, refused where there are none."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.data.augment import Augment
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.training.launch import fit
from bayesieve.training.progress import Interrupted
from runs import assert_equal_runs, assert_equal_states, interrupt_after, toy
from zoo import built

AUGMENT = Augment(shift=1, flip=True, rotation=20, erase=0.3, fill=(-1.0, 0.5))
ENGINE = SGHMC(Normal(1.0), step_size=1e-4, chain=Chain(0, 100))


def images(n=20, size=6, augment=None):
    source = Generator().manual_seed(0)
    x = torch.rand(n, 2, size, size, generator=source)
    y = torch.randint(3, (n,), generator=source)
    model = built(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))
    )
    return Problem(model, Categorical(), (x, y), augment=augment)


def run(engine=ENGINE, augment=AUGMENT, **options):
    return fit(images(augment=augment), engine, epochs=3, batch_size=8, seed=5, **options)


def test_every_batch_is_changed_by_draws_from_the_states_generator():
    problem, order = images(), Generator().manual_seed(6)
    state = ENGINE.init(problem, Generator().manual_seed(5))
    for _ in range(3):
        for index in torch.randperm(20, generator=order).split(8):
            x = AUGMENT(problem.x[index], state.generator)
            ENGINE.step(problem, state, Batch(x, problem.y[index]))
    assert_equal_states(run().state, state)


def test_equal_seeds_give_equal_runs_and_the_images_themselves_stay():
    problem = images(augment=AUGMENT)
    before = problem.x.clone()
    fit(problem, ENGINE, epochs=1)
    assert torch.equal(problem.x, before)
    assert_equal_runs(run(), run())
    assert not torch.equal(run().state.w, run(augment=None).state.w)


@pytest.mark.parametrize("engine", [MAP(lr=0.01), ENGINE], ids=["map", "sghmc"])
def test_a_run_stopped_and_resumed_equals_an_unbroken_one(tmp_path, monkeypatch, engine):
    whole = run(engine)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4)
        with pytest.raises(Interrupted):
            run(engine, folder=tmp_path)
    assert_equal_runs(run(engine, folder=tmp_path, resume=True), whole)
    other = Augment(shift=1)
    with pytest.raises(ValueError, match="made with augment Augment"):
        run(engine, augment=other, folder=tmp_path, resume=True)


def test_models_with_batches_of_their_own_get_changes_of_their_own():
    x = torch.rand(3, 4, 2, 6, 6, generator=Generator().manual_seed(1))
    changed = AUGMENT(x, Generator().manual_seed(2))
    assert torch.equal(changed.flatten(0, 1), AUGMENT(x.flatten(0, 1), Generator().manual_seed(2)))


def test_a_fill_per_channel_is_what_comes_in():
    x = torch.full((50, 2, 6, 6), 9.0)
    moved = Augment(shift=2, rotation=5, erase=0.5, fill=(-1.0, 0.5))(x, Generator())
    assert moved[:, 0].min().item() == pytest.approx(-1.0)
    assert moved[:, 1].min().item() == pytest.approx(0.5)
    torch.testing.assert_close(moved.amax((2, 3)), torch.full((50, 2), 9.0))


def refuse(self, *args):
    raise AssertionError("an augmented step must not read a tensor's value")


def test_nothing_waits_for_the_host(monkeypatch):
    x, source = images().x, Generator()
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu"):
            patch.setattr(torch.Tensor, name, refuse)
        assert AUGMENT(x, source).shape == x.shape


def test_other_data_than_images_are_refused_before_the_first_step():
    with pytest.raises(ValueError, match=r"^Augment: images must have shape \(n, channels"):
        with_data(toy(), replace(toy().data, augment=AUGMENT))
    with pytest.raises(ValueError, match="fill has 3 values, the images 2 channels"):
        images(augment=Augment(fill=(0.0, 0.0, 1.0)))


def test_other_data_keep_the_changes_and_they_can_be_taken_away():
    problem = images(augment=AUGMENT)
    assert with_data(problem, (problem.x[:5], problem.y[:5])).data.augment is AUGMENT
    assert with_data(problem, replace(problem.data, augment=None)).data.augment is None
    assert problem.data.augment is AUGMENT
