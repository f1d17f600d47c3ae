import math

import pytest

from bayesieve.training.schedule import Schedule, minibatch_weight


@pytest.mark.parametrize("kind", ["uniform", "geometric"])
@pytest.mark.parametrize("n_batches", [1, 2, 469, 1875, 5000])
def test_shares_of_the_kl_sum_to_one(kind, n_batches):
    shares = [minibatch_weight(i, n_batches, kind) / n_batches for i in range(n_batches)]
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-12)
    assert all(math.isfinite(share) and share >= 0 for share in shares)


def test_geometric_shares_halve_and_the_first_tends_to_one_half():
    assert minibatch_weight(0, 1, "geometric") == pytest.approx(1.0)
    assert minibatch_weight(0, 2, "geometric") / 2 == pytest.approx(2 / 3)
    assert minibatch_weight(0, 469, "geometric") / 469 == pytest.approx(0.5)
    three = [minibatch_weight(i, 3, "geometric") / 3 for i in range(3)]
    assert three == pytest.approx([4 / 7, 2 / 7, 1 / 7])


@pytest.mark.parametrize(
    ("schedule", "progress", "factor"),
    [
        (Schedule(), 0.7, 1.0),
        (Schedule(lr="cosine"), 0.0, 1.0),
        (Schedule(lr="cosine"), 1 / 3, 0.75),
        (Schedule(lr="cosine"), 1.0, 0.0),
        (Schedule(lr="cosine", hold=0.5), 0.5, 1.0),
        (Schedule(lr="cosine", hold=0.5), 0.75, 0.5),
        (Schedule(lr="cosine", hold=1.0), 1.0, 1.0),
        (Schedule(lr="linear"), 0.25, 0.75),
        (Schedule(lr="linear", hold=0.2), 0.6, 0.5),
        (Schedule(lr="step"), 0.59, 1.0),
        (Schedule(lr="step"), 0.6, 0.3),
        (Schedule(lr="step"), 0.85, 0.09),
        (Schedule(warmup=0.2), 0.0, 0.0),
        (Schedule(warmup=0.2), 0.05, 0.25),
        (Schedule(warmup=0.2), 0.2, 1.0),
        (Schedule(lr="linear", warmup=0.2), 0.2, 1.0),  # no jump from warm-up to decay
        (Schedule(lr="linear", warmup=0.2), 0.6, 0.5),
    ],
)
def test_learning_rate_at_known_points(schedule, progress, factor):
    assert schedule.lr_scale(progress) == pytest.approx(factor, abs=1e-12)


def test_decay_waits_for_pruning_unless_told_otherwise():
    assert Schedule(lr="linear").lr_scale(0.5, prune_end=0.5) == 1.0
    assert Schedule(lr="linear").lr_scale(0.75, prune_end=0.5) == 0.5
    assert Schedule(lr="linear", hold=0.0).lr_scale(0.5, prune_end=0.5) == 0.5


def test_kl_weight_rises_over_epochs_and_changes_when_pruning_ends():
    schedule = Schedule(kl=0.4, kl_after=2.0, kl_warmup_epochs=10)
    assert schedule.kl_scale(0, 0.0, 0.5) == 0.0
    assert schedule.kl_scale(5, 0.1, 0.5) == pytest.approx(0.2)
    assert schedule.kl_scale(20, 0.49, 0.5) == pytest.approx(0.4)
    assert schedule.kl_scale(20, 0.5, 0.5) == pytest.approx(2.0)
    assert schedule.kl_scale(5, 0.5, 0.5) == pytest.approx(1.0)  # warm-up applies to both
    assert Schedule(kl=0.4).kl_scale(20, 0.5, 0.5) == pytest.approx(0.4)
    assert Schedule(kl=0.4, kl_after=0.0).kl_scale(20, 0.9, 0.5) == 0.0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"lr": "cosin"}, "lr must be one of .* Did you mean 'cosine'"),
        ({"minibatch": "both"}, "minibatch must be one of"),
        ({"hold": 1.5}, "hold must be between 0 and 1"),
        ({"warmup": -0.1}, "warmup must be between 0 and 1"),
        ({"kl": -1.0}, "kl must be >= 0"),
        ({"kl": math.nan}, "kl must be >= 0"),
        ({"kl_after": -1.0}, "kl_after must be >= 0"),
        ({"kl_warmup_epochs": -1.0}, "kl_warmup_epochs must be >= 0"),
    ],
)
def test_wrong_values_raise(fields, text):
    with pytest.raises(ValueError, match=f"Schedule: {text}"):
        Schedule(**fields)
