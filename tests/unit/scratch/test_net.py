"""The network: what it computes, learns, repeats and refuses."""

import subprocess
import sys

import numpy as np
import pytest

from bayesieve.errors import DivergedError
from bayesieve.scratch import (
    L2,
    Adam,
    CrossEntropy,
    FeedForwardNet,
    Gaussian,
    GradientDescent,
    History,
    Linear,
    Plan,
    ReLU,
    Sigmoid,
    SquaredError,
    Tanh,
    linear_decay,
)

RNG = np.random.default_rng
X = RNG(0).normal(size=(50, 3))
Y = (X.sum(axis=1) > 0).astype(np.int64)


def small(**options):
    return FeedForwardNet(3, (8, 5), 2, **{"hidden": Tanh(), "seed": 1, **options})


def test_importing_it_loads_no_torch():
    code = "import sys, bayesieve.scratch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    heavy = {"torch", "scipy", "sklearn", "matplotlib", "pandas", "typer"}
    assert not heavy & set(modules)
    ours = {name for name in modules if name.startswith("bayesieve.")}
    rest = {name for name in ours if not name.startswith("bayesieve.scratch")}
    assert rest == {"bayesieve.checks", "bayesieve.errors"}


def test_the_network_of_the_source():
    net = FeedForwardNet(784, (500, 250, 100), 10)
    assert net.params.size == 392_500 + 125_250 + 25_100 + 1_010 == 543_860
    assert [weight.shape for weight in net.weights] == [(784, 500), (500, 250), (250, 100),
                                                        (100, 10)]  # fmt: skip
    assert repr(net) == ("FeedForwardNet(784-500-250-100-10, Sigmoid(), Softmax(), "
                         "CrossEntropy(penalty=None), float32)")  # fmt: skip


def test_weights_and_gradients_are_views_of_one_vector():
    net = small()
    for flat, views in (
        (net.params, [*net.weights, *net.biases]),
        (net.gradient, [*net.weight_gradients, *net.bias_gradients]),
    ):
        assert all(np.shares_memory(view, flat) for view in views)
        assert sum(view.size for view in views) == flat.size


def test_the_penalty_leaves_biases_alone():
    plain, penalised = small(), small(loss=CrossEntropy(L2(10)))
    plain.value_and_grad(X, Y)
    penalised.value_and_grad(X, Y)
    for ours, other in zip(plain.bias_gradients, penalised.bias_gradients, strict=True):
        np.testing.assert_array_equal(ours, other)
    assert not np.allclose(plain.weight_gradients[0], penalised.weight_gradients[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimiser", [GradientDescent(0.5), Adam(0.02)], ids=repr)
def test_it_learns_in_its_own_dtype(dtype, optimiser):
    net = small(dtype=dtype)
    history = net.train(X, Y, Plan(optimiser, epochs=100, batch_size=8), (X, Y))
    assert net.params.dtype == net.outputs(X).dtype == dtype
    assert history.train_loss[-1] < 0.2 * history.train_loss[0]
    assert net.evaluate(X, Y).accuracy >= 0.98
    assert net.predict(X).tolist() == net.outputs(X).argmax(axis=1).tolist()


def test_regression_with_a_linear_output():
    target = np.stack([X.sum(axis=1), X[:, 0] ** 2], axis=1)
    net = small(output=Linear(), loss=SquaredError())
    net.train(X, target, Plan(Adam(0.01), epochs=200, batch_size=10))
    assert net.evaluate(X, target).loss < 0.05 * target.var()


def test_a_linear_model_is_a_net_without_hidden_layers():
    net = FeedForwardNet(3, (), 2)
    net.train(X, Y, Plan(GradientDescent(1.0), epochs=50))
    assert net.evaluate(X, Y).accuracy >= 0.98


def test_float32_starts_where_float64_does():
    np.testing.assert_array_equal(small().params, small(dtype="float64").params.astype("float32"))


def test_equal_seeds_repeat_and_other_seeds_differ():
    def trained(start, shuffle):
        net = small(seed=start)
        net.train(X, Y, Plan(epochs=2, batch_size=7, seed=shuffle))
        return net.params

    np.testing.assert_array_equal(trained(0, 0), trained(0, 0))
    assert not np.array_equal(trained(0, 0), trained(1, 0))
    assert not np.array_equal(trained(0, 0), trained(0, 1))


def test_training_leaves_the_data_and_the_global_generator_alone():
    x, y = X.astype(np.float32), Y.copy()
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    small().train(x, y, Plan(epochs=1))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.testing.assert_array_equal(x, X.astype(np.float32))
    np.testing.assert_array_equal(y, Y)


def test_training_is_the_loop_written_out():
    """Batches by hand, a short one last, from gradients of whole batches."""
    net, other = small(dtype="float64"), small(dtype="float64")
    plan = Plan(GradientDescent(0.3), 2, batch_size=16, seed=3, schedule=linear_decay)
    net.train(X, Y, plan)
    rng = RNG(3)
    for epoch in range(2):
        order = rng.permutation(50)
        for i in range(4):
            rows, rate = order[16 * i : 16 * i + 16], 0.3 * (1 - (4 * epoch + i) / 8)
            other.params -= rate * other.value_and_grad(X[rows], Y[rows])[1]
    np.testing.assert_allclose(net.params, other.params, rtol=0, atol=1e-14)


def test_a_batch_larger_than_the_data_is_all_of_it():
    net, other = small(dtype="float64"), small(dtype="float64")
    net.train(X, Y, Plan(epochs=3, batch_size=50))
    other.train(X, Y, Plan(epochs=3, batch_size=1000))
    np.testing.assert_array_equal(net.params, other.params)


def test_records_come_at_intervals():
    plan = Plan(epochs=2, batch_size=10, record_every=4)  # five steps an epoch
    history = small().train(X, Y, plan, (X, Y))
    assert [record.step for record in history.records] == [4, 8, 10]
    assert history.epoch == [0.8, 1.6, 2.0]
    assert all(loss is not None for loss in history.val_loss)
    assert small().train(X, Y, Plan(epochs=2)).val_loss == [None, None]


def test_validation_is_measured_and_does_not_interfere():
    net, other = small(), small()
    history = net.train(X, Y, Plan(epochs=3), (X[:20], Y[:20]))
    other.train(X, Y, Plan(epochs=3))
    np.testing.assert_array_equal(net.params, other.params)
    assert history.val_loss[-1] == pytest.approx(net.evaluate(X[:20], Y[:20]).loss)


def test_history_prints_itself():
    assert repr(History()) == "History(no records)"
    text = repr(small().train(X, Y, Plan(epochs=1), (X, Y)))
    assert text.startswith("History(1 records, epoch 1, train loss 0.")
    assert "validation loss" in text


def test_epochs_hands_out_each_epoch():
    net = small()
    seen = [len(history) for history in net.epochs(X, Y, Plan(epochs=3))]
    assert seen == [1, 2, 3]


def test_many_rows_are_as_few_rows():
    x = RNG(1).normal(size=(2500, 3))
    net = small(dtype="float64")
    apart = np.concatenate([net.outputs(x[:700]), net.outputs(x[700:])])
    np.testing.assert_allclose(net.outputs(x), apart, rtol=1e-13)


def test_soft_targets_and_labels_agree():
    net = small()
    by_label, by_row = net.value_and_grad(X, Y), net.value_and_grad(X, np.eye(2)[Y])
    assert by_label[0] == by_row[0]
    np.testing.assert_array_equal(by_label[1], by_row[1])


def test_a_penalty_is_told_apart_from_the_loss():
    net, plain = small(loss=CrossEntropy(L2(0.1))), small()
    evaluation = net.evaluate(X, Y)
    assert evaluation.loss == plain.evaluate(X, Y).loss
    expected = 0.05 * sum(np.square(weight).sum() for weight in net.weights)
    assert evaluation.penalty == pytest.approx(expected, rel=1e-5)
    assert net.value_and_grad(X, Y)[0] == pytest.approx(
        evaluation.loss + evaluation.penalty, rel=1e-6
    )


def test_divergence_is_reported():
    net = small(hidden=ReLU(), output=Linear(), loss=SquaredError())
    with pytest.raises(DivergedError, match=r"loss is not finite at step \d+; last .* Lower lr"):
        net.train(1e6 * X, Y, Plan(GradientDescent(1e3), epochs=50))


def test_divergence_in_the_last_step_is_reported():
    net = small(output=Linear(), loss=SquaredError())
    with pytest.raises(DivergedError, match=r"weights are not finite after step 1\. Lower lr"):
        net.train(X, Y, Plan(GradientDescent(1e300), epochs=1))


NAN = X.copy()
NAN[4, 2] = np.nan


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (NAN, Y, "x must be finite, got nan at row 4, column 2"),
        (X[:, :2], Y, r"x must have shape \(N, 3\), got \(50, 2\)"),
        (X[0], Y, r"x must have shape \(N, 3\), got \(3,\)"),
        (X[:0], Y[:0], "x must hold at least one example, got none"),
        (X, Y[:-1], r"y must have one row per row of x, got shape \(49,\) for 50 rows"),
        (X, Y + 1, "labels must be 0 to 1, got 2 at row"),
        (X, -Y, "labels must be 0 to 1, got -1 at row"),
        (X, Y + 0.5, r"labels of shape \(50,\) or targets of shape \(50, 2\), got float64"),
        (X, np.ones((50, 2)), r"each row of y must be >= 0 and sum to 1, got \[1.0, 1.0\]"),
        (X, np.full((50, 2), np.inf), "y must be finite, got inf at row 0"),
        (X, np.ones((50, 3)), r"targets of shape \(50, 2\), got float64 of shape \(50, 3\)"),
    ],
)
@pytest.mark.parametrize("act", ["train", "evaluate", "value_and_grad"])
def test_wrong_data_give_one_clear_error(act, x, y, message):
    net = small()
    before = net.params.copy()
    with pytest.raises(ValueError, match=message):
        getattr(net, act)(x, y)
    np.testing.assert_array_equal(net.params, before)


def test_predict_checks_its_inputs():
    with pytest.raises(ValueError, match="predict: x must be finite"):
        small().predict(NAN)
    with pytest.raises(TypeError, match="predict: x must hold real numbers, got dtype <U1"):
        small().predict([["a", "b", "c"]])


def test_wrong_validation_data_are_named():
    with pytest.raises(ValueError, match="train, validation: x must have shape"):
        small().train(X, Y, Plan(epochs=1), (X[:, :1], Y))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, (8, 0), 2), ValueError, r"hidden_units\[1\] must be > 0, got 0"),
        ((0, (8,), 2), ValueError, "n_inputs must be > 0, got 0"),
        ((3, (8,), -1), ValueError, "n_outputs must be > 0, got -1"),
        ((3, (2.5,), 2), TypeError, r"hidden_units\[0\] must be a whole number, got 2.5"),
    ],
)
def test_wrong_sizes_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        FeedForwardNet(*arguments)


def test_wrong_combinations_are_refused():
    with pytest.raises(ValueError, match=r"CrossEntropy needs outputs that sum to 1.*Sigmoid"):
        small(output=Sigmoid())
    with pytest.raises(ValueError, match="dtype must be one of float32, float64; got 'float16'"):
        small(dtype="float16")


@pytest.mark.parametrize("name", ["epochs", "batch_size", "record_every"])
def test_wrong_plans_are_refused(name):
    with pytest.raises(ValueError, match=f"Plan: {name} must be > 0, got 0"):
        Plan(**{name: 0})
    with pytest.raises(TypeError, match=f"Plan: {name} must be a whole number, got 2.5"):
        Plan(**{name: 2.5})


def test_other_starts_can_be_asked_for():
    assert np.abs(small(initialiser=Gaussian(1e-6)).params).max() < 1e-4
