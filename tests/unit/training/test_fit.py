"""`fit` adds no mathematics: it equals a loop over `engine.step`, and keeps its other promises."""

import inspect
import json
import threading
import time

import pytest
import torch
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.execution import Execution
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.posterior import SparseModel
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.sgmcmc import SGLD
from bayesieve.engines.tdamp import TDAMP
from bayesieve.errors import DivergedError
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from bayesieve.training.validation import Validation
from problems import normal, run_by
from runs import (
    BATCH,
    N_DATA,
    PER_EPOCH,
    Contrary,
    Spy,
    assert_equal_posteriors,
    assert_equal_runs,
    assert_equal_states,
    by_hand,
    fit_toy,
    toy,
    with_batch_norm,
    with_dropout,
    without_clock,
)

PRIOR = SpikeSlab(0.5, 0.1, 0.4)
ENGINES = {
    "sbnn": SBNN(PRIOR, lr=0.02, init_std=0.05, local=False),
    "sbnn-local": SBNN(PRIOR, lr=0.02, init_std=0.05, local=True),
    "flat_vi": FlatVI(Normal(0.5), lr=0.02, init_std=0.05, local=False),
    "map-sgd": MAP(optimizer="sgd", lr=0.05),
}
EACH = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
RENEWING = BMR(lr=0.3, init_std=0.5)  # prunes by itself between steps
SIMPLE = MAP(lr=0.02)


@pytest.mark.parametrize("engine", [*ENGINES.values(), RENEWING], ids=[*ENGINES, "bmr"])
@pytest.mark.parametrize("k", [1, 2])
def test_equals_a_hand_written_loop_bit_for_bit(engine, k):
    problem = toy()
    run = fit_toy(problem, engine, seed=5, n_models=k)
    assert_equal_states(run.state, by_hand(problem, run.engine, seed=5, n_models=k))


def test_an_engine_renews_its_masks_between_steps_until_they_are_settled():
    run = fit_toy(toy(), RENEWING, epochs=20, seed=5)
    zeros = [row["zeros"] for row in run.history]
    assert zeros[0] == 0  # the first tenth of the run
    assert zeros[-1] > 0
    assert zeros == sorted(zeros)
    assert len({*zeros[12:]}) == 1  # settled after 60 %
    assert run.state.kl == 1


def test_validation_counts_once_the_masks_are_settled():
    watch = Validation(Contrary, patience=100)  # the earliest epoch that counts wins
    run = fit_toy(toy(), RENEWING, epochs=20, seed=5, validation=watch)
    zeros = 1 - run.state.controls.keep.double().mean().item()
    assert zeros == pytest.approx(run.history[-1]["zeros"])


def test_equals_a_hand_written_loop_with_dropout_and_dials():
    problem, engine = toy(with_dropout), ENGINES["sbnn"]
    schedule = Schedule(lr="linear", warmup=0.25, kl=0.5, kl_warmup_epochs=2, minibatch="geometric")

    def dials(step):
        progress, share = step / 12, (8 / 7, 4 / 7, 2 / 7)[step % 3] / 2 * 3
        lr = progress / 0.25 if progress < 0.25 else 1 - (progress - 0.25) / 0.75
        return lr, 0.5 * min(step / 3 / 2, 1.0) * share

    spy = Spy(engine)
    run = fit_toy(problem, spy, schedule=schedule)
    expected = torch.tensor([dials(step) for step in range(12)])
    torch.testing.assert_close(torch.tensor([step[:2] for step in spy.seen]), expected)
    seen = iter(spy.seen)
    assert_equal_states(run.state, by_hand(problem, engine, dials=lambda _: next(seen)[:2]))


def test_every_example_is_used_once_per_epoch_and_the_last_batch_is_smaller():
    spy = Spy(SIMPLE)
    problem = toy()
    fit_toy(problem, spy, epochs=2)
    batches = [batch for _, _, batch in spy.seen]
    assert [batch.n for batch in batches] == [8, 8, 6, 8, 8, 6]
    epochs = [torch.cat([b.x for b in batches[i : i + 3]]) for i in (0, 3)]
    for rows in epochs:
        assert torch.equal(rows.sort(0).values, problem.x.sort(0).values)
    assert not torch.equal(*epochs)


def test_steps_count_steps():
    problem = toy()
    assert_equal_runs(fit_toy(problem, SIMPLE, epochs=2), fit_toy(problem, SIMPLE, steps=6))
    cut = fit_toy(problem, SIMPLE, steps=5)
    assert [(row["epoch"], row["step"]) for row in cut.history] == [(1, 3), (2, 5)]
    assert fit_toy(problem, SIMPLE, steps=1).history[0]["step"] == 1
    one = Spy(SIMPLE)
    fit_toy(problem, one, epochs=2, batch_size=1000)
    assert [batch.n for _, _, batch in one.seen] == [N_DATA, N_DATA]


@EACH
def test_seeds_decide_everything(engine):
    problem = toy(with_dropout)
    first, again = (fit_toy(problem, engine, seed=3) for _ in range(2))
    assert_equal_runs(first, again)
    other = fit_toy(problem, engine, seed=4)
    assert not torch.equal(first.posterior.mean, other.posterior.mean)


def test_global_random_numbers_are_untouched():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    fit_toy(toy(with_dropout), ENGINES["sbnn"])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_callers_problem_is_untouched():
    problem = toy(with_batch_norm)
    fit_toy(problem, SIMPLE, schedule=Schedule(clip_norm=0.1))
    assert problem.execution == Execution()
    assert torch.equal(problem.workspace().buffers(0)["1.running_mean"], torch.zeros(8))


def test_two_runs_on_one_problem_do_not_share_batch_norm_statistics():
    problem = toy(with_batch_norm)
    first = fit_toy(problem, SIMPLE)
    before = first.posterior
    second = fit_toy(problem, SIMPLE)
    fit_toy(problem, SIMPLE, n_models=2)
    assert_equal_posteriors(first.posterior, before)
    assert_equal_runs(first, second)


def test_population_has_k_different_models():
    run = fit_toy(toy(), ENGINES["sbnn"], n_models=3)
    means = torch.stack([q.mean for q in run.posteriors])
    assert means.shape[0] == run.n_models == 3
    assert len({tuple(row) for row in means.tolist()}) == 3
    assert torch.equal(run.posterior.mean, means[0])
    for name in ("log_lik", "kl", "elbo"):
        assert len(run.history[-1][name]) == 3


def test_engines_of_a_population_may_differ_in_numbers():
    engines = [MAP(Normal(0.5), lr=0.01), MAP(Normal(2.0), lr=0.05)]
    run = fit_toy(toy(), engines)
    assert run.state.lr.shape == (2, 1)
    assert run.engine == MAP(Normal((0.5, 2.0)), lr=(0.01, 0.05), weight_decay=0.0)
    alone = fit_toy(toy(), engines[0])  # the first member starts at the module's weights too
    torch.testing.assert_close(run.posterior.mean, alone.posterior.mean)


def test_history_holds_one_row_per_epoch_with_means_over_its_steps():
    problem, engine = toy(), MAP(Normal(0.7), optimizer="sgd", lr=1e-30)  # does not move
    run = fit_toy(problem, engine, epochs=2)
    assert [row["epoch"] for row in run.history] == [1, 2]
    w = problem.initial
    log_prior = torch.distributions.Normal(0.0, 0.7).log_prob(w.double()).sum().item()
    assert run.history[0]["kl"] == pytest.approx(-log_prior, rel=1e-6)
    spy = Spy(engine)
    fit_toy(problem, spy, epochs=1)
    logits = [problem.network.outputs(w[None], batch.x, {})[0] for _, _, batch in spy.seen]
    losses = [
        nn.functional.cross_entropy(output, batch.y).item()
        for output, (_, _, batch) in zip(logits, spy.seen, strict=True)
    ]
    row = run.history[0]
    assert row["log_lik"] == pytest.approx(-N_DATA * sum(losses) / 3, rel=1e-5)
    assert row["elbo"] == pytest.approx(row["log_lik"] - row["kl"])


def test_metrics_file_equals_the_history(tmp_path):
    problem = toy()
    validation = Validation((problem.x, problem.y))
    run = fit_toy(problem, SIMPLE, folder=tmp_path / "run", validation=validation)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == run.history
    assert all(row["seconds"] >= 0 for row in run.history)


def test_validation_scores_the_mean_of_every_model():
    problem = toy()
    x = normal(9, 4, seed=8, dtype=torch.float32)
    y = torch.arange(9) % 3
    run = fit_toy(problem, SIMPLE, epochs=1, n_models=2, validation=Validation((x, y)))
    row = run.history[0]
    for i, posterior in enumerate(run.posteriors):
        logits = problem.network.outputs(posterior.mean[None], x, {})[0]
        assert row["val_nll"][i] == pytest.approx(nn.functional.cross_entropy(logits, y).item())
        assert row["val_error"][i] == pytest.approx((logits.argmax(1) != y).double().mean().item())


def test_early_stopping_ends_in_the_best_state():
    problem = toy(with_batch_norm)
    run = fit_toy(problem, SIMPLE, epochs=50, validation=Validation(Contrary, patience=2))
    scores = [row["val_nll"] for row in run.history]
    best = scores.index(min(scores))
    assert len(scores) == best + 3 < 50
    assert_equal_posteriors(run.posterior, fit_toy(problem, SIMPLE, epochs=best + 1).posterior)


def test_without_patience_the_last_state_stays():
    problem = toy()
    watched = fit_toy(problem, SIMPLE, validation=Validation(Contrary))
    assert_equal_states(watched.state, fit_toy(problem, SIMPLE).state)


def test_small_gains_do_not_count():
    problem = toy()
    held_out = (problem.x, problem.y)
    run = fit_toy(problem, SIMPLE, epochs=30, validation=Validation(held_out, 2, min_delta=100.0))
    assert len(run.history) == 3  # only the first beats infinity


def test_callbacks_see_every_epoch_and_may_stop():
    seen = []

    def watch(progress):
        seen.append((progress.epoch, progress.step, progress.n_steps, progress.posterior().mean))
        return progress.epoch == 2

    run = fit_toy(toy(), SIMPLE, callbacks=[watch, lambda _: False])
    assert [row[:3] for row in seen] == [(1, 3, 12), (2, 6, 12)]
    assert torch.equal(seen[-1][3], run.posterior.mean)


def test_start_from_a_posterior_continues_there():
    problem = toy(with_batch_norm)
    first = fit_toy(problem, ENGINES["sbnn"]).posterior
    still = SBNN(PRIOR, lr=1e-30)
    run = fit_toy(problem, still, epochs=1, start_from=first, n_models=2)
    for posterior in run.posteriors:
        torch.testing.assert_close(posterior.mean, first.mean)
        torch.testing.assert_close(posterior.std, first.std)
    tracked = run.posterior.buffers["1.num_batches_tracked"]
    assert tracked == first.buffers["1.num_batches_tracked"] + PER_EPOCH


@EACH
def test_zeros_of_a_sparse_start_stay_zero(engine):
    problem = toy()
    first = fit_toy(problem, engine).posterior
    keep = torch.arange(problem.layout.size) % 3 != 0
    run = fit_toy(problem, engine, start_from=SparseModel(first.masked(keep), keep))
    mean = run.posterior.mean
    assert torch.equal(mean == 0, ~keep)
    assert not torch.equal(mean, first.mean * keep)
    assert run.history[0]["zeros"] == pytest.approx((~keep).double().mean().item())


@EACH
def test_each_model_may_start_from_its_own(engine):
    problem = toy(with_batch_norm)
    learned = [fit_toy(problem, engine, seed=seed).posterior for seed in (0, 1)]
    masks = [torch.arange(problem.layout.size) % n != 0 for n in (3, 4)]
    starts = [SparseModel(q.masked(keep), keep) for q, keep in zip(learned, masks, strict=True)]
    together = fit_toy(problem, engine, start_from=starts, n_models=2, epochs=1)
    for posterior, keep in zip(together.posteriors, masks, strict=True):
        assert torch.equal(posterior.mean == 0, ~keep)
    alone = fit_toy(problem, engine, start_from=starts[1], epochs=1)
    before = starts[1].posterior.mean
    moved = (together.posteriors[1].mean - before).abs().max()
    far = (together.posteriors[1].mean - starts[0].posterior.mean).abs().max()
    assert moved < far  # it began at its start
    tracked = [
        posterior.buffers["1.num_batches_tracked"]
        for posterior in (*together.posteriors, alone.posterior)
    ]
    assert len(set(map(int, tracked))) == 1


def test_as_many_starts_as_models():
    first = fit_toy(toy(), SIMPLE).posterior
    with pytest.raises(ValueError, match="one posterior for each of 3 models, got 2"):
        fit_toy(toy(), SIMPLE, start_from=[first, first], n_models=3)


def test_clipping_scales_the_gradient_to_the_norm():
    problem, engine = toy(), MAP(optimizer="sgd", lr=1.0, weight_decay=0.0, momentum=0.0)
    w = problem.initial.clone().requires_grad_()
    parts = problem.layout.unflatten(w)
    logits = torch.relu(problem.x @ parts["0.weight"].T + parts["0.bias"])
    logits = logits @ parts["2.weight"].T + parts["2.bias"]
    (grad,) = torch.autograd.grad(nn.functional.cross_entropy(logits, problem.y), w)
    for bound in (0.1 * grad.norm().item(), 10 * grad.norm().item()):
        clipped = Schedule(clip_norm=bound)
        run = fit_toy(problem, engine, steps=1, batch_size=N_DATA, schedule=clipped)
        move = problem.initial - run.posterior.mean
        torch.testing.assert_close(move, grad * min(1.0, bound / grad.norm().item()))


def test_divergence_names_step_and_advice():
    x = torch.ones(N_DATA, 1)
    problem = Problem(nn.Linear(1, 1), Gaussian(), (x, x[:, 0]))
    engine = MAP(optimizer="sgd", lr=1e30)
    text = "MAP: log_lik or kl is not finite at step 3, epoch 1; last finite log_lik none. Lower lr"
    with pytest.raises(DivergedError, match=text):
        fit_toy(problem, engine)
    later = Schedule(warmup=1.0)  # the first step has length 0
    with pytest.raises(DivergedError, match=r"at step 3, epoch 3; last finite log_lik -\d"):
        fit_toy(problem, engine, epochs=3, batch_size=N_DATA, schedule=later)


def test_a_validation_score_that_is_not_finite_raises():
    x = torch.ones(N_DATA, 1)
    problem = Problem(nn.Linear(1, 1), Gaussian(), (x, x[:, 0]))
    far = (x, torch.full((N_DATA,), 1e30))  # its square is infinite
    with pytest.raises(DivergedError, match="the validation score is not finite at step 3"):
        fit_toy(problem, SIMPLE, validation=Validation(far))


def test_a_last_step_into_infinity_is_no_result():
    x = torch.ones(N_DATA, 1)
    problem = Problem(nn.Linear(1, 1), Gaussian(0.1), (x, 100 * x[:, 0]))
    with pytest.raises(DivergedError, match=r"MAP: the posterior mean is not finite at step 1"):
        fit(problem, MAP(optimizer="sgd", lr=1e38), steps=1, schedule=Schedule())


def test_draws_that_predict_infinity_are_no_result():
    x = torch.ones(N_DATA, 1)
    module = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))
    problem = Problem(module, Gaussian(), (x, 100 * x[:, 0]))
    message = r"SGLD: a prediction of the kept draws is not finite at step 1"
    with pytest.raises(DivergedError, match=message):  # finite weights, whose product is not
        fit(problem, SGLD(step_size=1e13), steps=1, schedule=Schedule())


def test_what_helps_against_divergence_is_what_the_engine_has():
    x = torch.ones(N_DATA, 1)
    problem = Problem(nn.Linear(1, 1), Gaussian(), (x, 1e30 * x[:, 0]))
    with pytest.raises(DivergedError, match=r"Lower lr \(0\.001\), add warm-up .* or bring inputs"):
        fit(problem, MAP(lr=1e-3), epochs=1)
    with pytest.raises(DivergedError, match=r"TDAMP: .* none\. Bring inputs and real targets to"):
        fit(problem, TDAMP(), epochs=1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.full((4, 3), torch.nan)}, ValueError, r"^Validation: inputs must be finite"),
        ({"x": torch.ones(4, 2)}, ValueError, r"^Validation: the model must accept inputs of shap"),
        ({"y": torch.full((4,), 3)}, ValueError, r"^Validation: Categorical: labels must lie in 0"),
        ({"x": torch.ones(4, 3).double()}, TypeError, r"^Validation: inputs are torch\.float64"),
    ],
)
def test_held_out_data_that_do_not_fit_are_refused_before_training(change, error, message):
    train = torch.ones(8, 3), torch.zeros(8, dtype=torch.int64)
    problem = Problem(nn.Linear(3, 3), Categorical(), train)
    held_out = {"x": train[0][:4], "y": train[1][:4]} | change
    with pytest.raises(error, match=message):
        fit(problem, MAP(), epochs=1, validation=Validation(tuple(held_out.values())))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"callbacks": print}, r"^fit: callbacks must be a list of functions, got <built-in"),
        ({"callbacks": ["stop"]}, r"^fit: callbacks must be a list of functions, got \['stop'\]"),
        ({"start_from": nn.Linear(1, 1)}, r"^fit: start_from must be a posterior or a sparse mode"),
        ({"start_from": [nn.Linear(1, 1)]}, r"^fit: start_from must be a posterior or a sparse mo"),
    ],
)
def test_wrong_kinds_are_named_before_training(given, message):
    with pytest.raises(TypeError, match=message):
        fit_toy(toy(), SIMPLE, **given)


def test_folders_may_be_text(tmp_path):
    fit_toy(toy(), SIMPLE, folder=str(tmp_path))
    assert (tmp_path / "metrics.jsonl").exists()


def test_runs_outside_the_main_thread(tmp_path):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(fit_toy(toy(), SIMPLE, folder=tmp_path)))
    thread.start()
    thread.join()
    assert_equal_runs(runs[0], fit_toy(toy(), SIMPLE))


def test_seconds_are_those_of_the_call():
    started = time.perf_counter()
    run = fit_toy(toy(), SIMPLE)
    assert 0 < run.seconds < time.perf_counter() - started


def test_float64_and_a_single_example():
    problem = toy(dtype=torch.float64)
    assert fit_toy(problem, ENGINES["sbnn-local"]).posterior.mean.dtype == torch.float64
    one = Problem(nn.Linear(4, 3), Categorical(), (problem.x[:1].float(), problem.y[:1]))
    assert len(fit_toy(one, SIMPLE, epochs=2).history) == 2
    assert without_clock(fit_toy(one, SIMPLE).history)[0]["step"] == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"epochs": 1, "steps": 1}, ValueError, "give either epochs or steps, got epochs=1"),
        ({"epochs": 0}, ValueError, "epochs must be > 0, got 0"),
        ({"steps": 0}, ValueError, "steps must be > 0, got 0"),
        ({"steps": -3}, ValueError, "steps must be > 0, got -3"),
        ({"epochs": 1.5}, TypeError, r"epochs must be a whole number, got 1\.5"),
        ({"epochs": 1, "batch_size": 0}, ValueError, "batch_size must be > 0"),
        ({"epochs": 1, "batch_size": 2.0}, TypeError, "batch_size must be a whole number"),
        ({"epochs": 1, "resume": True}, ValueError, "resume=True needs the folder of the first"),
        ({"epochs": 1, "schedule": Schedule(kl_after=1.0)}, ValueError, "there is no pruning"),
        ({"epochs": 1, "pruning": GradualPruning(0.5)}, ValueError, "single draw"),
    ],
)
def test_wrong_arguments_raise(options, error, text):
    from bayesieve.training.launch import fit

    with pytest.raises(error, match=text):
        fit(toy(), SIMPLE, **options)


def test_fit_has_at_most_14_arguments():
    assert len(inspect.signature(fit).parameters) <= 14


def test_a_start_from_another_network_raises():
    other = fit_toy(toy(with_batch_norm), SIMPLE, epochs=1).posterior
    with pytest.raises(ValueError, match="start_from belongs to a network with other tensors"):
        fit_toy(toy(), SIMPLE, start_from=other)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 21])
def test_batch_norm_refuses_a_last_batch_of_one(batch_size):
    with pytest.raises(ValueError, match=f"22 examples in batches of {batch_size} leave a last"):
        fit_toy(toy(with_batch_norm), SIMPLE, batch_size=batch_size)
    assert fit_toy(toy(with_batch_norm), SIMPLE, batch_size=BATCH, steps=1).history


def test_clipping_bounds_mean_and_std_gradients_together_with_local_noise():
    problem, engine = toy(), SBNN(local=True)
    run_by(problem, clip_norm=0.01)
    state = engine.init(problem, torch.Generator().manual_seed(0))
    engine.step(problem, state, Batch(problem.x, problem.y))
    space = engine.noise.workspace(problem, 1)
    std_grads = 2 * space.variances.sqrt() * space.variance_grads
    joint = torch.cat([space.grads, std_grads], 1).norm() / problem.n_data
    assert joint.item() == pytest.approx(0.01, rel=1e-4)


def test_a_run_hands_back_its_mask():
    run = fit_toy(toy(), SBNN(), epochs=4, pruning=GradualPruning(0.5, start=0.1, end=0.5))
    sparse = run.sparse()
    assert torch.equal(sparse.keep, run.state.controls.keep[0])
    assert sparse.zeros == pytest.approx(run.history[-1]["zeros"])
    assert not fit_toy(toy(), SBNN()).sparse().zeros


def test_a_sparse_model_has_the_zeros_of_an_engine_that_removes_weights_itself():
    run = fit_toy(toy(), TDAMP(), epochs=20)
    gone = (run.posterior.mean == 0) & (run.posterior.std == 0)
    assert run.sparse().zeros == pytest.approx(gone.double().mean().item())
    assert run.sparse().zeros > 0
    assert isinstance(run.models[0], SparseModel)
    by_evidence = fit_toy(toy(), RENEWING, epochs=20, seed=5)
    assert by_evidence.sparse().zeros == pytest.approx(by_evidence.history[-1]["zeros"]) != 0
    assert not isinstance(fit_toy(toy(), SIMPLE).models[0], SparseModel)


def test_a_run_and_a_problem_print_as_one_short_line():
    run = fit_toy(toy(), [SIMPLE] * 3)
    assert repr(run) == "Fit(MAP, 3 x 67 weights, 4 epochs, 12 steps, on cpu)"
    assert repr(run.problem) == (
        "Problem(Categorical, 67 weights (56 may be pruned), 22 examples, on cpu)"
    )


def test_pruning_says_when_most_of_a_network_cannot_be_pruned():
    x = torch.randint(9, (12, 1))
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(4, 3))
    problem = Problem(model, Categorical(), (x, x[:, 0] % 3))
    said = r"of 51 weights: 12 may be pruned, 3 are kept, 36 are points\. Name others with"
    with pytest.warns(UserWarning, match=said):
        fit(problem, SBNN(), epochs=4, batch_size=6, pruning=GradualPruning(zeros=0.1))


def test_a_run_says_how_much_data_its_doubt_counts():
    """The recipe for tables weighs the prior less; Bayes' rule is one setting away."""
    tempered, exact, cold = (
        fit(toy(), engine, epochs=1, schedule=schedule)
        for engine, schedule in (
            (FlatVI(), None),
            (FlatVI(), Schedule(lr="cosine", kl=1)),
            (SGLD(temperature=0.5), None),
        )
    )
    assert (tempered.kl, exact.kl, cold.kl) == (0.3, 1, 0.5)
    assert ", kl 0.3, " in repr(tempered)
    assert "kl" not in repr(exact)
