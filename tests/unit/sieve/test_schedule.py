from itertools import pairwise

import pytest
import torch
from torch import nn

from bayesieve.core.posterior import Samples
from bayesieve.sieve.schedule import AnnealedPruning, GradualPruning


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


def test_annealed_zeros_follow_the_paper():
    # D = 0.99, U steps an epoch: the shares of its ResNet runs after so many epochs.
    pruning = AnnealedPruning(zeros=0.9, periods=1000, end=0.9)
    shares = [pruning.zeros_at(epoch / 1000) / 0.9 for epoch in (10, 100, 300, 700)]
    assert shares == pytest.approx([0.0956, 0.634, 0.951, 0.999], abs=5e-4)
    assert pruning.zeros_at(0.0) == 0
    assert pruning.zeros_at(0.9) == pruning.zeros_at(1.0) == 0.9
    assert not pruning.is_active(0.0)
    assert pruning.is_active(1e-6)


def test_annealed_masks_take_the_same_fraction_of_every_layer(random_posterior, mlp):
    posterior = random_posterior(mlp)
    pruning = AnnealedPruning(zeros=0.5, periods=100, end=1.0)
    keep = pruning.keep(posterior, 0.5, None)
    layout = posterior.layout
    removed = pruning.zeros_at(0.5) * layout.size / layout.n_sparse
    for name, part in layout.slices.items():
        if part.stop <= layout.n_sparse:
            size = posterior.mean[part].abs()
            n = part.stop - part.start
            assert int((~keep[part]).sum()) == pytest.approx(removed * n, abs=2), name
            smallest = size.argsort()[: int(removed * n) - 2]
            assert not keep[part][smallest].any()


def test_annealed_masks_may_grow_until_the_end(changing):
    masks = run(AnnealedPruning(zeros=0.8, periods=20, end=0.65, scope="global"), changing)
    came_back = [bool((b & ~a).any()) for a, b in pairwise(masks)]
    assert any(came_back[:4])
    assert not any(came_back[6:])
    assert 22 <= int(masks[-1].sum()) <= 23
    hard = run(AnnealedPruning(zeros=0.8, periods=20, end=0.65, soft=False), changing)
    assert all(not (b & ~a).any() for a, b in pairwise(hard))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"zeros": 0.0}, "zeros must be strictly between"),
        ({"decay": 1.0}, "decay must be strictly between"),
        ({"periods": 0.0}, "periods must be > 0"),
        ({"end": 0.0}, "end must be > 0"),
        ({"scope": "layers"}, "Did you mean 'layer'"),
        ({"score": "rho"}, "score must be one of"),
    ],
)
def test_wrong_annealing_is_refused(fields, text):
    with pytest.raises(
        ValueError, match=f"^AnnealedPruning: {text}" if "Did" not in text else text
    ):
        AnnealedPruning(**fields)
