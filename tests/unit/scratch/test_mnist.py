"""Real images: the network learns them, and fast. Skipped without BAYESIEVE_DATA."""

import os
import time
from pathlib import Path

import pytest

from bayesieve.data import load_data
from bayesieve.scratch import Adam, FeedForwardNet, GradientDescent, Plan, ReLU
from studies.scratch_mnist import prepare

_REAL = os.environ.get("BAYESIEVE_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (_REAL and (Path(_REAL) / "mnist").is_dir()),
        reason="no mnist in BAYESIEVE_DATA: no real data here",
    ),
]


@pytest.fixture(scope="module")
def parts():
    return prepare(load_data("mnist"), n_train=10_000)


def test_the_split_and_the_standardisation_are_those_of_the_source(parts):
    assert [len(split.y) for split in (parts.train, parts.val, parts.test)] == [10_000] * 3
    assert parts.train.x.mean() == pytest.approx(0, abs=1e-4)
    assert parts.train.x.std() == pytest.approx(1, abs=1e-4)


def test_sixty_four_images_are_learnt_by_heart(parts):
    net = FeedForwardNet(784, (500, 250, 100), 10, hidden=ReLU())
    x, y = parts.train.x[:64], parts.train.y[:64]
    history = net.train(x, y, Plan(Adam(1e-3), epochs=100))
    assert net.evaluate(x, y).accuracy == 1
    assert history.train_loss[-1] < 1e-2 * history.train_loss[0]


def test_one_epoch_on_ten_thousand_images(parts):
    net = FeedForwardNet(784, (500, 250, 100), 10, hidden=ReLU())
    started = time.process_time()
    net.train(parts.train.x, parts.train.y, Plan(GradientDescent(0.01), epochs=1))
    assert time.process_time() - started < 10
    assert net.evaluate(parts.test.x, parts.test.y).accuracy > 0.6
