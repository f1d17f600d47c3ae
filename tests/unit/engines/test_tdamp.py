"""Module A and the engine: exact small models, symmetries, groups, masks and promises."""

import math

import pytest
import torch
from torch import nn
from torch.special import log_ndtr

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian
from bayesieve.core.posterior import SparseModel
from bayesieve.core.problem import Problem
from bayesieve.data.examples import Examples
from bayesieve.engines.tdamp import TDAMP
from bayesieve.engines.tdamp.channels import PROBIT_VARIANCE, Message, Unit, gaussian_channel
from bayesieve.engines.tdamp.damp import Weights, absorb_, backward, forward, weight_score
from bayesieve.engines.tdamp.state import GroupSparse
from bayesieve.errors import UnsupportedModelError
from bayesieve.nets import mlp
from bayesieve.training.launch import fit
from bayesieve.training.validation import Validation
from problems import linear_model, normal, seeded
from problems import run as run_steps

F64 = torch.float64
PLAIN = {"power": 1.0, "memory": 1e12, "trust": 1e6, "init_scale": 0.0}  # textbook message passing


def network(width=6, n_in=4, n_out=3, dtype=F64):
    torch.manual_seed(0)
    return mlp((n_in,), n_out, widths=(width,)).to(dtype)


@pytest.fixture(autouse=True)
def _own_seed():
    with torch.random.fork_rng():
        yield


def blobs(n=60, n_in=4, n_out=3, dtype=F64):
    """Three Gaussian clouds around the first unit vectors."""
    y = torch.arange(n) % n_out
    x = 2 * torch.eye(n_in, dtype=F64)[y] + 0.5 * normal(n, n_in, seed=7)
    return (x - x.mean(0)).to(dtype), y


def problem_of(width=6, dtype=F64):
    return Problem(network(width, dtype=dtype), Categorical(), blobs(dtype=dtype))


def run(engine, problem, n_steps, *, seed=0, k=1, size=20):
    batches = [
        Batch(x, y) for x, y in zip(problem.x.split(size), problem.y.split(size), strict=True)
    ]
    return run_steps(engine, problem, n_steps, seed=seed, n_models=k, batches=batches)


@pytest.mark.parametrize("width", [100, 1000])
def test_a_wide_linear_model_is_bayesian_regression_on_orthogonal_rows(width):
    x = torch.linalg.qr(normal(width, 4, seed=1))[0].T * width**0.5
    y, noise_std, variance = normal(4, 1, seed=2), 0.5, 2.0
    problem = Problem(linear_model(width), Gaussian(noise_std), (x, y))
    engine = TDAMP(prior=GroupSparse(output_variance=variance), **PLAIN)
    posterior = engine.posterior(problem, run(engine, problem, 1))
    nu = variance / width
    gram = nu * x @ x.T + noise_std**2 * torch.eye(4, dtype=F64)
    exact_mean = nu * x.T @ torch.linalg.solve(gram, y)[:, 0]
    exact_var = nu - nu**2 * (x * torch.linalg.solve(gram, x)).sum(0)
    error = (posterior.mean - exact_mean).norm() / exact_mean.norm()
    assert error < 10 / width  # the cavity term that AMP drops
    torch.testing.assert_close(posterior.std.square(), exact_var, rtol=100 / width, atol=0)


@pytest.mark.parametrize(("n", "passes"), [(200, 20), (1000, 8)])
def test_the_std_counts_the_data_once(n, passes):
    """Default power and memory on n >> p: exact up to what AMP drops, of order p / n."""
    x, noise_std = torch.linalg.qr(normal(n, 5, seed=1))[0] * n**0.5, 0.5
    y = x @ normal(5, 1, seed=2) + noise_std * normal(n, 1, seed=3)
    problem = Problem(linear_model(5), Gaussian(noise_std), (x, y))
    engine = TDAMP(prior=GroupSparse(output_variance=5.0), keep=1.0)
    state = run(engine, problem, passes * 10, size=n // 10)
    exact = (1 + n / noise_std**2) ** -0.5
    assert state.count > 20
    posterior = engine.posterior(problem, state)
    torch.testing.assert_close(posterior.std / exact, torch.ones(5, dtype=F64), rtol=0, atol=0.05)
    engine.warm_start_(again := engine.init(problem, seeded(0)), posterior)
    torch.testing.assert_close(engine.posterior(problem, again).std, posterior.std)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_single_probit_neuron_matches_quadrature_at_each_weight(label):
    """One example, one wide neuron: every marginal by one-dimensional quadrature."""
    width = 400
    x = normal(1, width, seed=3)
    problem = Problem(linear_model(width), Bernoulli(), (x, torch.tensor([[label]], dtype=F64)))
    engine = TDAMP(prior=GroupSparse(output_variance=4.0), **PLAIN)
    posterior = engine.posterior(problem, run(engine, problem, 1))
    nu, sign = 4.0 / width, 2 * label - 1
    grid = torch.linspace(-8, 8, 4001, dtype=F64) * nu**0.5
    for i in (0, 1, 2):
        rest = nu * (x.square().sum() - x[0, i] ** 2) + PROBIT_VARIANCE
        weight = (-0.5 * grid**2 / nu + log_ndtr(sign * x[0, i] * grid / rest.sqrt())).softmax(0)
        mean = (weight * grid).sum()
        var = (weight * (grid - mean) ** 2).sum()
        torch.testing.assert_close(posterior.mean[i], mean, rtol=0.03, atol=0)
        torch.testing.assert_close(posterior.std[i] ** 2, var, rtol=0.03, atol=0)


@pytest.mark.parametrize("target", [-2.0, 0.5, 3.0])
def test_a_relu_neuron_matches_quadrature(target):
    """One hidden unit behind many inputs: its bias, by quadrature over the pre-activation."""
    width, nu_out, out_mean = 50, 0.02, 0.3
    model = mlp((width,), 1, widths=(1,)).to(F64)
    x, y = normal(1, width, seed=4), torch.full((1, 1), target, dtype=F64)
    problem = Problem(model, Gaussian(1.0), (x.repeat(2, 1), y.repeat(2, 1)))
    engine = TDAMP(prior=GroupSparse(hidden_variance=1.0, output_variance=nu_out), **PLAIN)
    state = engine.init(problem, seeded(0))  # half of a pass: Module B is not asked
    out = problem.layout.slices["out.weight"]
    state.data_linear[:, out] = state.prior_precision[:, out] * out_mean
    before = engine.posterior(problem, state)
    engine.step(problem, state, Batch(x, y))
    after = engine.posterior(problem, state)
    bias = problem.layout.slices["fc1.bias"]
    nu = 1 / width
    spread = nu * (x.square().sum() + 1)
    z = torch.linspace(-9, 9, 20_001, dtype=F64) * spread.sqrt()
    u = z.clamp(min=0)
    noise = 1 + nu_out * (1 + u.square())
    log_weight = -0.5 * z**2 / spread - 0.5 * (target - out_mean * u) ** 2 / noise
    weight = (log_weight - 0.5 * noise.log()).softmax(0)
    expected = (weight * z).sum() * nu / spread
    assert (before.mean[bias] == 0).all()
    # what AMP drops here: the unit's own share of the output's variance, about a tenth
    torch.testing.assert_close(after.mean[bias][0], expected, rtol=0.12, atol=0)


def one_output(mean_scale=1.0, unit_scale=1.0):
    """A layer of five noisy units and one output: its evidence and the channel's response."""
    unit = Unit(unit_scale * normal(1, 5, seed=1), normal(1, 5, seed=2).square())
    weights = Weights(mean_scale * normal(1, 5, seed=3), normal(1, 5, seed=4).square(), None, None)
    leaves = [value.requires_grad_() for value in (*unit, *weights[:2])]
    omega, var = forward(unit, weights)
    target, noise = torch.tensor([[1.5]], dtype=F64), torch.tensor([[0.3]], dtype=F64)
    log_z = torch.distributions.Normal(omega, (var + noise).sqrt()).log_prob(target).sum()
    slopes = torch.autograd.grad(log_z, leaves)
    response = gaussian_channel(omega.detach(), var.detach(), target, noise)
    return Unit(*(v.detach() for v in unit)), Weights(*(v.detach() for v in weights[:2]), None,
                                                      None), response, slopes  # fmt: skip


def test_the_score_of_a_weight_is_the_slope_of_the_evidence():
    unit, weights, response, slopes = one_output()
    torch.testing.assert_close(weight_score(response, unit, weights)[0], slopes[2])


def test_the_precision_of_a_weight_is_that_of_assumed_density_filtering():
    """At mean 0, one example: G = S² - 2 ∂ log Z / ∂σ, clamped at 0."""
    unit, weights, response, slopes = one_output(mean_scale=0.0)
    expected = slopes[2].square() - 2 * slopes[3]
    assert (expected > 0).any()
    torch.testing.assert_close(
        weight_score(response, unit, weights)[1], expected, rtol=1e-6, atol=1e-9
    )


def test_the_message_down_has_the_slope_of_the_evidence():
    unit, weights, response, slopes = one_output()
    a, b = backward(response, unit, weights)
    torch.testing.assert_close(b - a * unit.mean, slopes[0])


def test_the_message_down_has_the_precision_of_assumed_density_filtering():
    """At unit mean 0: A = (∂ log Z / ∂u)² - 2 ∂ log Z / ∂D."""
    unit, weights, response, slopes = one_output(unit_scale=0.0)
    a, _ = backward(response, unit, weights)
    torch.testing.assert_close(a, slopes[0].square() - 2 * slopes[1])


def test_the_spread_of_a_layer_is_that_of_a_product_of_normals():
    unit, weights, _, _ = one_output()
    (u, u_var), (w, w_var) = unit, weights[:2]
    found, var = forward(unit, weights), (u.square() + u_var) * (w.square() + w_var) - (u * w) ** 2
    torch.testing.assert_close(found.mean, (u * w).sum(1, keepdim=True))
    torch.testing.assert_close(found.var, var.sum(1, keepdim=True))


def test_damping_of_one_moves_nothing():
    problem, engine = problem_of(), TDAMP(damping=1.0)
    state = engine.init(problem, seeded(0))
    before = engine.posterior(problem, state)
    for _ in range(4):
        engine.step(problem, state, Batch(problem.x, problem.y))
    after = engine.posterior(problem, state)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.std, after.std)


def test_half_damping_adds_half_of_the_message():
    problem = problem_of()
    batch = Batch(problem.x[:20], problem.y[:20])
    gains = []
    for damping in (0.0, 0.5):
        engine = TDAMP(damping=damping, **{**PLAIN, "init_scale": 0.3})
        state = engine.init(problem, seeded(0))
        before = state.data_precision.clone()
        engine.step(problem, state, batch)
        gains.append(state.data_precision - before)
    torch.testing.assert_close(gains[1], gains[0] / 2)


def test_hidden_units_may_be_renumbered():
    problem, engine = problem_of(), TDAMP(keep=0.5, prune_passes=(1, 2))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    results = []
    for permuted in (False, True):
        state = engine.init(problem, seeded(0))
        if permuted:
            for tensor in (state.data_linear, state.prior_precision):
                parts = problem.layout.unflatten(tensor)
                for name in ("fc1.weight", "fc1.bias"):
                    parts[name].copy_(parts[name][:, order].clone())
                parts["out.weight"].copy_(parts["out.weight"][:, :, order].clone())
        for _ in range(3):
            for x, y in zip(problem.x.split(20), problem.y.split(20), strict=True):
                engine.step(problem, state, Batch(x, y))
        results.append(problem.layout.unflatten(engine.posterior(problem, state).mean))
    plain, permuted = results
    torch.testing.assert_close(permuted["fc1.weight"], plain["fc1.weight"][order])
    torch.testing.assert_close(permuted["fc1.bias"], plain["fc1.bias"][order])
    torch.testing.assert_close(permuted["out.weight"], plain["out.weight"][:, order])
    torch.testing.assert_close(permuted["out.bias"], plain["out.bias"])


def test_the_trust_region_bounds_the_move_and_leaves_the_width_alone():
    mean, var = torch.tensor([0.2, 0.0]), torch.tensor([0.04, 0.0])
    precision, data = torch.tensor([25.0, 25.0]), Message(torch.zeros(2), torch.zeros(2))
    batch = Message(torch.tensor([1e4, 1e4]), torch.tensor([3.0, 3.0]))
    absorb_(data, precision, mean, var, batch, torch.ones(()), 0.5, torch.ones(()))
    total = 1 / 0.04 + 3.0
    moved = (0.2 / 0.04 + data.linear[0]) / total
    assert moved.item() == pytest.approx(0.2 + 0.5 * 0.2, rel=1e-5)
    assert data.precision.tolist() == [3.0, 0.0]
    assert data.linear[1] == 0


def test_members_do_not_see_each_other_and_may_see_their_own_batches():
    problem, engine = problem_of(), TDAMP()
    alone = run(engine, problem, 3)
    both = engine.init(problem, seeded(0), 2)
    for name in ("data_linear",):
        getattr(both, name)[0] = getattr(engine.init(problem, seeded(0)), name)[0]
    for x, y in zip(problem.x.split(20), problem.y.split(20), strict=True):
        batch = Batch(torch.stack([x, -x]), torch.stack([y, y]), per_member=True)
        metrics = engine.step(problem, both, batch)
        assert metrics["log_lik"].shape == (2,)
    torch.testing.assert_close(both.data_linear[0], alone.data_linear[0])


@pytest.mark.parametrize("group", ["units", "inputs", "weights"])
def test_a_forced_fraction_of_groups_is_kept(group):
    problem = problem_of(width=8)
    engine = TDAMP(prior=GroupSparse(group=group), keep=0.5, prune_passes=(1, 3))
    posterior = engine.posterior(problem, run(engine, problem, 15))
    named = problem.layout.unflatten(posterior.mean)
    first, last = named["fc1.weight"], named["out.weight"]
    inclusion = posterior.inclusion
    assert ((inclusion == 0) | (inclusion == 1)).all()
    assert torch.equal(inclusion == 0, (posterior.mean == 0) & (posterior.std == 0))
    if group == "units":
        gone = (first == 0).all(1)
        assert gone.sum() == 4
        assert torch.equal((last == 0).all(0), gone)
        assert torch.equal(named["fc1.bias"] == 0, gone)
    elif group == "inputs":
        assert (first == 0).all(0).sum() == 2
        assert (last != 0).all()
    else:
        assert (first == 0).sum() == 16
        assert (last == 0).sum() == 12


def test_two_hidden_layers_learn_and_are_pruned_each_by_half():
    torch.manual_seed(0)
    problem = Problem(mlp((4,), 3, widths=(12, 8)).to(F64), Categorical(), blobs())
    engine = TDAMP(keep=0.5, prune_passes=(3, 6))
    posterior = engine.posterior(problem, run(engine, problem, 60))
    named = problem.layout.unflatten(posterior.mean)
    first, second = ((named[f"fc{i}.weight"] != 0).any(1) for i in (1, 2))
    assert (first.sum(), second.sum()) == (6, 4)
    assert torch.equal((named["fc2.weight"] != 0).any(0), first)
    assert torch.equal((named["out.weight"] != 0).any(0), second)
    outputs = posterior.network.outputs(posterior.mean[None], problem.x, {})[0]
    assert (outputs.argmax(1) == problem.y).double().mean() > 0.9


def test_without_a_target_useless_inputs_are_found():
    x = normal(600, 12, seed=11)
    y = x[:, :3] @ torch.tensor([[1.0], [-1.0], [0.8]], dtype=F64) + 0.3 * normal(600, 1, seed=12)
    model = mlp((12,), 1, widths=()).to(F64)
    problem = Problem(model, Gaussian(0.3), (x, y))
    engine = TDAMP(prior=GroupSparse("inputs", output_variance=3.0), power=1.0, memory=3.0)
    posterior = engine.posterior(problem, run(engine, problem, 120, size=50))
    inclusion = problem.layout.unflatten(posterior.inclusion)["out.weight"][0]
    assert (inclusion > 0.5).tolist() == [True] * 3 + [False] * 9


def test_learned_noise_is_found_and_reported():
    x = normal(800, 3, seed=13)
    y = x @ torch.tensor([[0.5], [-0.5], [0.2]], dtype=F64) + 0.4 * normal(800, 1, seed=14)
    problem = Problem(mlp((3,), 1, widths=()).to(F64), Gaussian(1.0, learned=True), (x, y))
    engine = TDAMP(power=1.0, memory=5.0)
    state = run(engine, problem, 12 * 16, size=50)
    log_noise = engine.posterior(problem, state).mean[-1]
    assert log_noise.exp().item() == pytest.approx(0.4, rel=0.08)


def test_the_slab_variance_is_learned_on_request():
    problem = problem_of()
    fixed, learned = (run(TDAMP(learn_slab=flag), problem, 12) for flag in (False, True))
    assert fixed.slab_var[0, 0] == GroupSparse().slab_variance(4, last=False)
    assert learned.slab_var[0, 0] != fixed.slab_var[0, 0]
    assert (learned.slab_var > 0).all()


def test_it_runs_under_fit_and_ends_in_a_posterior_the_rest_can_use():
    problem = problem_of(width=8, dtype=torch.float32)
    engine = TDAMP(keep=0.5, prune_passes=(2, 4))
    result = fit(problem, engine, epochs=6, batch_size=25, seed=0)
    posterior = result.posterior
    keep = posterior.inclusion > 0.5
    sparse = SparseModel(posterior.masked(keep), keep)
    torch.testing.assert_close(sparse.posterior.mean, posterior.mean)
    assert sparse.zeros == pytest.approx(4 * (4 + 1 + 3) / problem.layout.size)
    assert result.history[-1]["log_lik"] > result.history[0]["log_lik"]
    assert all(math.isfinite(row["elbo"]) for row in result.history)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)),
            r"^TDAMP: layer '1' \(BatchNorm1d\) is not supported; supported: Linear, Conv2d, ReLU",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
            r"^TDAMP: layer '1' \(Tanh\) is not supported",
        ),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), r"layer '1' \(Linear\) is out of place"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), r"the last layer must be Linear"),
    ],
)
def test_other_networks_are_refused(model, message):
    x, y = blobs(dtype=torch.float32)
    with pytest.raises(UnsupportedModelError, match=message):
        TDAMP().init(Problem(model, Categorical(), (x, y)), seeded(0))


def test_frozen_layers_and_soft_labels_are_refused():
    x, y = blobs(dtype=torch.float32)
    model = mlp((4,), 3, widths=(5,))
    model.fc1.weight.requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match=r"'fc1.weight' is frozen or shared"):
        TDAMP().init(Problem(model, Categorical(), (x, y)), seeded(0))
    soft = nn.functional.one_hot(y, 3).float()
    with pytest.raises(ValueError, match=r"class probabilities as targets are not supported"):
        TDAMP().init(Problem(mlp((4,), 3, widths=(5,)), Categorical(), (x, soft)), seeded(0))


def test_early_stopping_does_not_go_back_before_the_last_removal() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    problem = Problem(net, Categorical(), (x, x[:, :3].argmax(1)))
    engine = TDAMP(keep=0.5, prune_passes=(1, 3))
    held_out = Examples(torch.randn(30, 4), torch.randint(3, (30,)))  # noise: nothing gets better
    run = fit(problem, engine, epochs=8, batch_size=10, validation=Validation(held_out, patience=1))
    assert engine.settled(6) == 0.5
    assert 3 < len(run.history) < 8
    units = run.posterior.mean[problem.layout.slices["0.weight"]].view(8, 4)
    assert int((units != 0).any(1).sum()) == 4
