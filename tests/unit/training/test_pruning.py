"""Gradual pruning inside `fit`: strict zeros, reached on time, and for good."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import SparseModel
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from bayesieve.training.validation import Validation
from runs import PER_EPOCH, Contrary, Spy, fit_toy, toy
from zoo import built

PRIOR = SpikeSlab(0.5, 0.1, 0.4)
ENGINES = {
    "sbnn": (SBNN(PRIOR, lr=0.05), "snr"),
    "sbnn-local": (SBNN(PRIOR, lr=0.05, local=True), "inclusion"),
    "sbnn-sgd": (SBNN(PRIOR, lr=0.05, optimizer="sgd"), "second-moment"),
    "flat_vi": (FlatVI(Normal(0.5), lr=0.05), "evidence"),
    "map": (MAP(lr=0.05, weight_decay=0.1), "magnitude"),
    "map-sgd": (MAP(Normal(0.5), optimizer="sgd", lr=0.05), "magnitude"),
}
EACH = pytest.mark.parametrize(("engine", "score"), ENGINES.values(), ids=ENGINES.keys())
SIZE = 67  # parameters of the toy network
TARGET, KEPT = 0.6, 27  # round(0.4 * 67)


def masks_of(engine, pruning, *, epochs=10, **options):
    """The run, and after each epoch which entries of the mean are not 0, per model."""
    masks = []

    def watch(progress):
        keep = progress.posterior().mean != 0
        masks.append(keep)
        return False

    return fit_toy(
        toy(), engine, epochs=epochs, pruning=pruning, callbacks=[watch], **options
    ), masks


@EACH
def test_hard_pruning_reaches_the_target_and_zeros_stay(engine, score):
    run, masks = masks_of(engine, GradualPruning(TARGET, 0.15, 0.65, score))
    assert masks[0].all()
    assert all(not (after & ~before).any() for before, after in pairwise(masks))
    assert all(torch.equal(mask, masks[-1]) for mask in masks[6:])
    kept = int(masks[-1].sum())
    assert kept in (KEPT, KEPT - 1)  # one less where the next weight would bring a bias too
    assert [row["zeros"] for row in run.history] == pytest.approx(
        [1 - int(mask.sum()) / SIZE for mask in masks]
    )
    posterior = run.posterior
    assert torch.equal(posterior.mean != 0, run.state.controls.keep[0])
    if hasattr(posterior, "std"):
        assert not posterior.std[~masks[-1]].any()
    if posterior.inclusion is not None:
        assert not posterior.inclusion[~masks[-1]].any()
    size = evaluate(posterior, run.problem).to_dict()
    assert size["weights"] == kept
    assert size["zeros"] == 1 - kept / SIZE


@EACH
def test_kept_weights_go_on_learning_after_the_end(engine, score):
    means = []
    pruning = GradualPruning(TARGET, 0.15, 0.65, score)
    watch = [lambda progress: means.append(progress.posterior().mean)]
    fit_toy(toy(), engine, epochs=10, pruning=pruning, callbacks=watch)
    moved = means[-1] != means[7]
    assert torch.equal(moved, means[-1] != 0)


def test_soft_masks_may_come_back_before_the_end_and_not_after():
    engine = SBNN(PRIOR, lr=0.3)
    run, masks = masks_of(engine, GradualPruning(TARGET, 0.05, 0.65, soft=True), epochs=20)
    came_back = [bool((after & ~before).any()) for before, after in pairwise(masks)]
    assert any(came_back[:12])
    assert not any(came_back[12:])
    assert int(masks[-1].sum()) == KEPT
    assert torch.equal(run.state.controls.trained, run.state.controls.keep)
    hard, _ = masks_of(engine, GradualPruning(TARGET, 0.05, 0.65), epochs=20)
    assert not torch.equal(hard.state.controls.keep, run.state.controls.keep)


def test_every_model_of_a_population_has_its_own_mask():
    run, _ = masks_of(SBNN(PRIOR, lr=0.05), GradualPruning(TARGET, 0.15, 0.65), n_models=3)
    keep = run.state.controls.keep
    assert [int(mask.sum()) for mask in keep] == [KEPT] * 3
    assert not torch.equal(keep[0], keep[1])
    assert run.history[-1]["zeros"] == pytest.approx([1 - KEPT / SIZE] * 3)


@pytest.mark.parametrize("soft", [False, True])
def test_zeros_of_a_sparse_start_do_not_come_back(soft):
    problem, engine = toy(), SBNN(PRIOR, lr=0.05)
    first = fit_toy(problem, engine).posterior
    keep = torch.arange(SIZE) % 2 == 0
    start = SparseModel(first.masked(keep), keep)
    pruning = GradualPruning(0.7, 0.15, 0.65, soft=soft)
    run, masks = masks_of(engine, pruning, start_from=start)
    assert all(not (mask & ~keep).any() for mask in masks)
    assert int(masks[-1].sum()) <= 20  # round(0.3 * 67)
    assert run.history[0]["zeros"] == pytest.approx(33 / 67)


def test_masks_follow_the_cubic():
    pruning = GradualPruning(TARGET, 0.15, 0.65)
    _, masks = masks_of(SBNN(PRIOR, lr=0.05), pruning)
    for epoch, mask in enumerate(masks, start=1):
        target = round((1 - pruning.zeros_at(epoch / 10)) * SIZE)
        assert target - 2 <= int(mask.sum()) <= target


def test_a_run_cut_inside_an_epoch_still_reaches_the_target():
    run = fit_toy(toy(), SBNN(PRIOR, lr=0.05), steps=4, pruning=GradualPruning(TARGET, 0.1, 0.9))
    assert int((run.posterior.mean != 0).sum()) == KEPT


def test_kl_after_holds_from_the_end_of_pruning():
    spy = Spy(SBNN(PRIOR, lr=0.05))
    schedule = Schedule(kl=0.25, kl_after=0.75)
    fit_toy(toy(), spy, pruning=GradualPruning(TARGET, 0.1, 0.5), schedule=schedule)
    kl = [step[1] for step in spy.seen]
    assert kl == [0.25] * 2 * PER_EPOCH + [0.75] * 2 * PER_EPOCH


def test_learning_rate_decays_after_pruning_only():
    spy = Spy(SBNN(PRIOR, lr=0.05))
    pruning = GradualPruning(TARGET, 0.1, 0.5)
    fit_toy(toy(), spy, pruning=pruning, schedule=Schedule(lr="linear"))
    lr = [step[0] for step in spy.seen]
    assert lr == pytest.approx([1.0] * 7 + [5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_early_stopping_waits_for_the_final_mask():
    run = fit_toy(
        toy(), SBNN(PRIOR, lr=0.05), epochs=40, pruning=GradualPruning(TARGET, 0.1, 0.5),
        validation=Validation(Contrary, patience=3),
    )  # fmt: skip
    assert 20 < len(run.history) < 40
    assert int((run.posterior.mean != 0).sum()) in (KEPT, KEPT - 1)
    scores = [row["val_nll"] for row in run.history[19:]]
    assert scores.index(min(scores)) == len(scores) - 4


def test_impossible_targets_raise_before_the_first_step():
    spy = Spy(SBNN(PRIOR))
    with pytest.raises(ValueError, match=r"1 of 67 parameters may stay, but .* always do"):
        fit_toy(toy(), spy, pruning=GradualPruning(0.99))
    with pytest.raises(ValueError, match="no inclusion probabilities"):
        fit_toy(toy(), Spy(FlatVI()), pruning=GradualPruning(0.5, score="inclusion"))
    assert spy.seen == []


class CountedPruning(GradualPruning):
    """Writes down at which fraction of the run it was asked for a mask."""

    def keep(self, posterior, progress, within):
        asked.append(progress)
        return super().keep(posterior, progress, within)


asked = []


@pytest.fixture(autouse=True)
def _nothing_asked():
    asked.clear()


def digits_error(epochs, copies):
    """The error and the zeros of a network pruned while it trains on copies of the digits."""
    data = load_data("digits")
    train = data.train.x.repeat(copies, 1, 1, 1), data.train.y.repeat(copies)
    net = built(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    )
    run = fit(
        Problem(net, Categorical(), train),
        SBNN(lr=1e-2),
        epochs=epochs,
        batch_size=64,
        seed=0,
        schedule=Schedule(lr="cosine", kl=0.1 * copies, warmup=0.05),
        pruning=CountedPruning(zeros=0.98),
    )
    result = evaluate(run.sparse(), data.test).to_dict()
    return result["error"], result["zeros"]


@pytest.mark.slow
def test_two_long_epochs_prune_as_well_as_many_short_ones_of_as_many_steps():
    long, zeros = digits_error(epochs=2, copies=16)  # 728 steps
    assert zeros == pytest.approx(0.98, abs=0.001)
    assert 50 <= len(asked) <= 100
    assert asked == sorted(asked)
    assert asked[-1] >= GradualPruning.end > asked[-2]
    asked.clear()
    short, _ = digits_error(epochs=31, copies=1)  # 713 steps
    assert 50 <= len(asked) <= 100
    assert long < short + 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("n_steps", "batch_size"), [(360, 1), (360, 22), (800, 22), (113, 8)])
def test_masks_are_renewed_50_to_100_times_whatever_an_epoch_is(n_steps, batch_size):
    pruning = CountedPruning(TARGET, 0.125, 0.5625)
    fit_toy(toy(), SBNN(PRIOR, lr=0.01), steps=n_steps, batch_size=batch_size, pruning=pruning)
    window = sum(0.125 < step / n_steps < 0.5625 for step in range(n_steps)) + 1
    assert len(asked) == window if window < 50 else 50 <= len(asked) <= 100


def test_a_run_of_few_steps_renews_its_mask_after_each():
    fit_toy(toy(), SBNN(PRIOR, lr=0.01), steps=20, pruning=CountedPruning(TARGET, 0.1, 0.5))
    assert asked == [step / 20 for step in range(3, 11)]
