"""Values and gradients of a problem against plain autograd on the original module."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesieve.core.batch import Batch
from bayesieve.core.layout import Roles
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian
from bayesieve.core.noise import ActivationNoise
from bayesieve.core.problem import Problem, starting_points
from bayesieve.core.reading import with_data
from bayesieve.data import gather
from bayesieve.errors import UnsupportedModelError
from oracles import log_likelihood
from problems import normal, seeded
from zoo import BY_NAME, REPEATED, ZOO, Fork, plain_log_lik

# PyTorch's CPU attention has no batching rule: slow under vmap, but right.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
CASES = pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
NORMS = pytest.mark.parametrize("name", ["batch_norm", "batch_norm_2d"])
F64 = torch.float64


def by_autograd(case, layout, w, batch, scale):
    """Value, flat gradient and module after one backward pass of the original, in train mode."""
    model = case.model().train()
    named = dict(model.named_parameters())
    log_noise = torch.zeros((), dtype=w.dtype)
    if isinstance(case.likelihood, Gaussian):
        log_noise = log_noise + torch.tensor(case.likelihood.noise_std, dtype=w.dtype).log()
    for name in layout.names:
        value = w[layout.slices[name]]
        if name in named:
            named[name].data.copy_(value.view(named[name].shape))
        else:
            named[name] = log_noise = value[0].clone().requires_grad_()
    value = scale * plain_log_lik(case.likelihood, model(batch.x), batch.y, log_noise)
    value.backward()
    grad = torch.cat([named[name].grad.flatten() for name in layout.names])
    return value.detach(), grad, model


@CASES
def test_value_and_gradient_equal_plain_autograd(case):
    problem = case.problem(n=6)
    w, batch = case.weights(problem), case.data(4, seed=8)
    value, grad = problem.value_and_grad(w, batch)
    exact, exact_grad, _ = by_autograd(case, problem.layout, w[0], batch, 6 / 4)
    assert value.shape == (1,)
    assert grad.shape == (1, problem.layout.size)
    assert not value.requires_grad
    assert not grad.requires_grad
    torch.testing.assert_close(value[0], exact)
    torch.testing.assert_close(grad[0], exact_grad)


@CASES
def test_each_row_of_a_population_equals_a_single_run(case):
    problem = case.problem()
    w, batch = case.weights(problem, k=3), case.data(5, seed=8)
    for _ in range(2):
        values, grads = problem.value_and_grad(w, batch)
    together = problem.workspace(3)
    for i in range(3):
        alone = case.problem()
        for _ in range(2):
            value, grad = alone.value_and_grad(w[i : i + 1], batch)
        torch.testing.assert_close(values[i], value[0])
        torch.testing.assert_close(grads[i], grad[0])
        buffers = alone.workspace().buffers(0)
        assert together.buffers(i).keys() == buffers.keys()
        for name, buffer in buffers.items():
            torch.testing.assert_close(together.buffers(i)[name], buffer)


@CASES
def test_each_member_may_have_another_batch(case):
    problem = case.problem()
    w = case.weights(problem, k=3)
    batches = [case.data(5, seed=seed) for seed in range(3)]
    x, y = (torch.stack([b[part] for b in batches]) for part in (0, 1))
    values, grads = problem.value_and_grad(w, Batch(x, y, per_member=True))
    for i, batch in enumerate(batches):
        value, grad = case.problem().value_and_grad(w[i : i + 1], batch)
        torch.testing.assert_close(values[i], value[0])
        torch.testing.assert_close(grads[i], grad[0])
    one = Batch(x[:1], y[:1], per_member=True)
    assert one.n == 5
    torch.testing.assert_close(case.problem().value_and_grad(w[:1], one)[0], values[:1])


@NORMS
@pytest.mark.parametrize("k", [1, 3])
def test_batch_statistics_follow_training_and_leave_the_network(name, k):
    case = BY_NAME[name]
    problem = case.problem()
    w, batch = case.weights(problem, k=k), case.data(5, seed=8)
    problem.value_and_grad(w, batch)
    for i in range(k):
        model = by_autograd(case, problem.layout, w[i], batch, 1.0)[2]
        buffers = problem.workspace(k).buffers(i)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[key], buffer)
    assert problem.network.buffers()["1.num_batches_tracked"] == 0


@CASES
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("k", [1, 3])
def test_the_users_model_and_the_global_random_state_stay_as_they_were(case, training, k):
    model = case.model().train(training)
    before = copy.deepcopy(model.state_dict())
    flags = [(p.requires_grad, p.grad is None, p.data_ptr()) for p in model.parameters()]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    problem = Problem(model, case.likelihood, case.data()[:2])
    w = starting_points(problem, k, seeded(0), "module")
    for _ in range(2):
        _, grad = problem.value_and_grad(w, case.data())
        w = w + 0.01 * grad
    log_likelihood(problem, w, case.data())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training is training for m in model.modules())
    assert [(p.requires_grad, p.grad is None, p.data_ptr()) for p in model.parameters()] == flags
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_sums_are_scaled_to_the_full_data_set():
    case = BY_NAME["mlp"]
    data = case.data(12)
    problem = Problem(case.model(), case.likelihood, data[:2])
    w = case.weights(problem)
    whole, whole_grad = (t.clone() for t in problem.value_and_grad(w, Batch(*data[:2])))
    batches = [Batch(data.x[rows], data.y[rows]) for rows in (slice(0, 3), slice(3, 12))]
    pieces = [[t.clone() for t in problem.value_and_grad(w, batch)] for batch in batches]
    torch.testing.assert_close(3 / 12 * pieces[0][0] + 9 / 12 * pieces[1][0], whole)
    torch.testing.assert_close(3 / 12 * pieces[0][1] + 9 / 12 * pieces[1][1], whole_grad)


def test_layers_that_a_call_skips_get_gradient_zero():
    x = torch.ones(2, 2, dtype=F64)
    problem = Problem(Fork().double(), Gaussian(), (x, torch.ones(2, 1, dtype=F64)))
    for k in (1, 2):
        w = problem.initial.repeat(k, 1)
        views = problem.layout.unflatten(problem.value_and_grad(w, Batch(x, x[:, :1]))[1])
        assert views["left.weight"].abs().min() > 0
        assert (views["right.weight"] == 0).all()
        views = problem.layout.unflatten(problem.value_and_grad(w, Batch(-x, x[:, :1]))[1])
        assert views["right.weight"].abs().min() > 0
        assert (views["left.weight"] == 0).all()


def test_one_layer_under_two_names_is_one_parameter():
    case = REPEATED
    problem = case.problem(n=6)
    batch = case.data(4, seed=8)
    for k in (2, 3, 1):
        w = case.weights(problem, k=k)
        values, grads = problem.value_and_grad(w, batch)
        for i in range(k):
            exact, exact_grad, _ = by_autograd(case, problem.layout, w[i], batch, 6 / 4)
            torch.testing.assert_close(values[i], exact)
            torch.testing.assert_close(grads[i], exact_grad)


@pytest.mark.parametrize("training", [True, False])
def test_batching_is_tried_in_the_mode_it_is_used_in(training):
    # Cumulative statistics read a buffer's value, which vmap cannot, but only when training.
    norm = nn.BatchNorm1d(2, momentum=None, dtype=F64)
    model = nn.Sequential(norm, nn.Linear(2, 1, dtype=F64)).train(training)
    x, y = normal(5, 2, seed=1), normal(5, 1, seed=2)
    problem = Problem(model, Gaussian(), (x, y))
    values, _ = problem.value_and_grad(problem.initial.repeat(3, 1), Batch(x, y))
    torch.testing.assert_close(values, values[:1].expand(3))


def test_control_flow_on_inputs_follows_the_batch_of_each_member():
    x = torch.ones(2, 2, dtype=F64)
    problem = Problem(Fork().double(), Gaussian(), (x, x[:, :1]))
    w = problem.initial.repeat(2, 1)
    problem.value_and_grad(w, Batch(x, x[:, :1]))
    batch = Batch(torch.stack([x, -x]), torch.stack([x[:, :1]] * 2), per_member=True)
    values, _ = problem.value_and_grad(w, batch)
    for i, inputs in enumerate((x, -x)):
        alone = with_data(problem, (x, x[:, :1])).value_and_grad(w[:1], Batch(inputs, x[:, :1]))[0]
        torch.testing.assert_close(values[i], alone[0])


def test_gradients_do_not_accumulate_and_weights_are_not_changed():
    case = BY_NAME["mlp"]
    problem = case.problem()
    w, batch = case.weights(problem), case.data()
    before = w.clone()
    first = problem.value_and_grad(w, batch)[1].clone()
    assert torch.equal(problem.value_and_grad(w, batch)[1], first)
    assert torch.equal(w, before)
    space = problem.workspace()
    space.weights.copy_(w)  # the copy that callers of the hot path save
    assert torch.equal(problem.value_and_grad(space.weights, batch)[1], first)


def test_gradients_flow_where_the_caller_has_switched_them_off():
    case = BY_NAME["mlp"]
    problem = case.problem()
    w, batch = case.weights(problem), case.data()
    exact = problem.value_and_grad(w, batch)[1].clone()
    with torch.no_grad():
        assert torch.equal(problem.value_and_grad(w, batch)[1], exact)


def test_starting_points_of_the_module():
    case = BY_NAME["attention"]
    problem = case.problem()
    w = starting_points(problem, 3, seeded(0), "module")
    assert torch.equal(w[0], problem.initial)
    part = problem.layout.slices["head.weight"]
    assert not torch.equal(w[1, part], w[2, part])
    assert not torch.equal(w[0, part], w[1, part])
    assert torch.equal(w, starting_points(problem, 3, seeded(0), "module"))
    one = starting_points(problem, 1, seeded(0), "module")
    one.zero_()
    assert problem.initial.abs().sum() > 0


def test_he_starting_points_leave_norms_as_they_are():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    everything = Roles(prune=(nn.Linear, nn.LayerNorm))
    x, y = normal(5, 3, seed=0), torch.zeros(5, dtype=torch.long)
    problem = Problem(model.double(), Categorical(), (x, y), roles=everything)
    w = problem.layout.unflatten(starting_points(problem, 1, seeded(0), "he")[0])
    assert torch.equal(w["1.weight"], torch.ones(4, dtype=torch.float64))
    assert not w["1.bias"].any()
    assert not w["0.bias"].any()


def test_he_starting_points_have_the_stated_range():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 400), nn.LayerNorm(400), nn.Conv1d(1, 1, 3))
    problem = Problem(
        nn.Sequential(model[0], model[1], nn.Unflatten(1, (1, 400)), model[2], nn.Flatten()),
        Gaussian(),
        (torch.zeros(1, 50), torch.zeros(1, 398)),
    )
    w = starting_points(problem, 2, seeded(0), "he")
    views = problem.layout.unflatten(w)
    bound = (6 / 50) ** 0.5
    weight = views["0.weight"]
    assert bound * 0.999 < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx((2 / 50) ** 0.5, rel=0.02)
    assert views["3.weight"].abs().max() <= 2**0.5
    assert (views["0.bias"] == 0).all()
    assert (views["1.weight"] == 1).all()  # a point parameter: as in the model
    assert not torch.equal(w[0], w[1])
    with pytest.raises(ValueError, match="scheme must be 'module' or 'he', got 'xavier'"):
        starting_points(problem, 1, seeded(0), "xavier")


def test_the_workspace_is_kept_while_its_shape_fits():
    problem = BY_NAME["mlp"].problem()
    space = problem.workspace(2)
    assert problem.workspace(2) is space
    assert problem.workspace(3) is not space
    assert problem.workspace(3, ActivationNoise()).variances is not None


def test_other_data_share_the_network_but_not_the_workspace():
    case = BY_NAME["mlp"]
    problem = case.problem(n=6)
    other = with_data(problem, case.data(9, seed=1)[:2])
    assert other.n_data == 9
    assert problem.n_data == 6
    assert other.network is problem.network
    assert other.workspace() is not problem.workspace()
    w = case.weights(problem)
    batch = case.data(3, seed=2)
    ratio = other.value_and_grad(w, batch)[0] / problem.value_and_grad(w, batch)[0]
    assert ratio.item() == pytest.approx(1.5)


def test_data_may_be_an_object_with_x_and_y():
    case = BY_NAME["mlp"]
    x, y = case.data()[:2]
    problem = Problem(case.model(), case.likelihood, SimpleNamespace(x=x, y=y))
    assert torch.equal(problem.x, case.data().x)
    moved = problem.to("cpu")
    assert moved.layout is problem.layout


def test_roles_reach_the_layout():
    case = BY_NAME["mlp"]
    problem = Problem(case.model(), case.likelihood, case.data()[:2], roles=Roles(keep=("2.*",)))
    assert problem.layout.n_sparse == 12


def _nan(shape, row):
    x = torch.zeros(shape)
    x[row] = torch.nan
    return x


ONES = torch.ones(4, 2)


@pytest.mark.parametrize(
    ("likelihood", "x", "y", "error", "message"),
    [
        (Gaussian(), ONES.numpy(), ONES[:, :1], TypeError, "or dict of tensors, got ndarray"),
        (Gaussian(), ONES, ONES[:3, :1], ValueError, "same length > 0, got 4 and 3"),
        (Gaussian(), ONES[:0], ONES[:0, :1], ValueError, "same length > 0, got 0 and 0"),
        (Gaussian(), ONES.double(), ONES[:, :1], TypeError, "inputs are torch.float64 but"),
        (Gaussian(), _nan((4, 2), 2), ONES[:, :1], ValueError, "finite; example 2 holds NaN"),
        (Gaussian(), ONES, _nan((4, 1), 1), ValueError, "targets must be finite; example 1 is"),
        (Categorical(), ONES, torch.tensor([0, 0, 0, 1]), ValueError, r"labels must lie in 0\.\.0"),
        (Bernoulli(), ONES, ONES[:, 0] * 2, ValueError, "targets must be 0 or 1"),
    ],
)
def test_data_that_do_not_fit_are_refused_at_once(likelihood, x, y, error, message):
    with pytest.raises(error, match=message):
        Problem(nn.Linear(2, 1), likelihood, (x, y))


class Returns(nn.Module):
    """A layer whose outputs are handed out in some other form."""

    def __init__(self, form):
        super().__init__()
        self.layer, self.form = nn.Linear(2, 3), form

    def forward(self, x):
        return self.form(self.layer(x))


@pytest.mark.parametrize(
    ("form", "error", "message"),
    [
        (lambda y: {"scores": y, "loss": y}, UnsupportedModelError, "got a dict with scores, loss"),
        (lambda y: (y, y), UnsupportedModelError, "must return one tensor, .* got a tuple"),
        (lambda y: y.sum(), ValueError, r"one row per example, .* got \(\) for 2 examples"),
        (lambda y: y[:1], ValueError, r"one row per example, .* got \(1, 3\) for 2 examples"),
        (lambda y: y @ y, ValueError, r"inputs of shape \(2, 2\) and torch.float32, but it failed"),
    ],
)
def test_models_that_return_something_else_are_refused_at_once(form, error, message):
    with pytest.raises(error, match=message):
        Problem(Returns(form), Categorical(), (ONES, torch.tensor([0, 1, 2, 0])))


def test_data_of_another_kind_are_named():
    loader = DataLoader(TensorDataset(ONES, ONES[:, :1]))
    with pytest.raises(TypeError, match=r"got set\. .* bayesieve\.data\.gather"):
        Problem(nn.Linear(2, 1), Gaussian(), {1})
    problem = Problem(nn.Linear(2, 1), Gaussian(), gather(loader))
    assert torch.equal(problem.x, ONES)


def test_what_is_no_model_or_no_likelihood_is_named():
    with pytest.raises(TypeError, match=r"model must be a nn\.Module, got function"):
        Problem(lambda x: x, Gaussian(), (ONES, ONES))
    with pytest.raises(TypeError, match=r"likelihood must be one such as .*, got Categorical\.$"):
        Problem(nn.Linear(2, 2), Categorical, (ONES, ONES))
