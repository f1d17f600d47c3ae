from itertools import pairwise

import pytest
import torch
from torch import nn

from bayesieve.core.posterior import Samples
from bayesieve.sieve.schedule import GradualPruning


@pytest.mark.parametrize(
    ("progress", "share"),
    [(0.0, 0.0), (0.2, 0.0), (0.3, 1 - 0.75**3), (0.4, 0.875), (0.6, 1.0), (1.0, 1.0)],
)
def test_zeros_follow_the_cubic(progress, share):
    pruning = GradualPruning(zeros=0.8, start=0.2, end=0.6)
    assert pruning.zeros_at(progress) == pytest.approx(0.8 * share)
    assert pruning.is_active(progress) == (progress > 0.2)


def run(pruning, posteriors):
    """Masks of a run of ten epochs."""
    keep, masks = None, []
    for epoch, posterior in enumerate(posteriors, start=1):
        if pruning.is_active(epoch / len(posteriors)):
            keep = pruning.keep(posterior, epoch / len(posteriors), keep)
            masks.append(keep)
    return masks


@pytest.fixture
def changing(random_posterior, mlp):
    """Ten posteriors of one network that agree in nothing."""
    first = random_posterior(mlp)
    others = (random_posterior(mlp, seed=i) for i in range(1, 10))
    return [first, *(type(first)(first.network, q.mean, q.std) for q in others)]


def test_hard_masks_only_shrink_and_reach_the_end(changing):
    masks = run(GradualPruning(zeros=0.8, start=0.15, end=0.65), changing)
    assert all(not (b & ~a).any() for a, b in pairwise(masks))
    assert 22 <= int(masks[-1].sum()) <= 23  # round(0.2 * 116)
    assert torch.equal(masks[-1], masks[-2])  # nothing changes after the end


def test_soft_masks_may_grow_until_the_end(changing):
    masks = run(GradualPruning(zeros=0.8, start=0.15, end=0.65, soft=True), changing)
    came_back = [bool((b & ~a).any()) for a, b in pairwise(masks)]
    assert any(came_back[:4])
    assert not any(came_back[5:])
    assert 22 <= int(masks[-1].sum()) <= 23


def test_zero_weights_before_the_first_mask_are_not_taken_for_pruned(network_of):
    posterior = Samples(network_of(nn.Linear(4, 1)), torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0]]))
    keep = GradualPruning(zeros=0.5, score="magnitude").keep(posterior, 0.126, None)
    assert keep.all()


def test_check_speaks_before_training(random_posterior, network_of, mlp):
    with pytest.raises(ValueError, match="single draw"):
        GradualPruning().check(Samples(network_of(nn.Linear(4, 1)), torch.ones(1, 5)))
    with pytest.raises(ValueError, match="2 of 116 parameters may stay, but 7 always do"):
        GradualPruning(zeros=0.985).check(random_posterior(mlp))
    GradualPruning(zeros=0.9).check(random_posterior(mlp))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"zeros": 1.0}, "zeros must be strictly between"),
        ({"start": 0.6}, "start must be < end, got 0.6 and 0.5625"),
        ({"end": 1.5}, "end must be between"),
        ({"score": "snrr"}, "Did you mean 'snr'"),
    ],
)
def test_wrong_arguments_raise(fields, text):
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        GradualPruning(**fields)
