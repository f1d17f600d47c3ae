"""Promises that every engine keeps. A new engine joins by lines in tests/engine_table.py."""

import copy
import dataclasses
from functools import partial

import pytest
import torch
from torch import nn

import engine_table
from bayesieve.checks import AUTO
from bayesieve.core.batch import Batch
from bayesieve.core.layout import Roles
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.noise import space_of
from bayesieve.core.posterior import Posterior
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.core.state import named_tensors, restore_, snapshot
from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.scaled import Horseshoe, LayerScaled
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.engines.tdamp import TDAMP
from bayesieve.engines.tdamp.state import GroupSparse, moments
from bayesieve.errors import UnsupportedModelError
from bayesieve.training.population import Population
from engine_table import ENGINES, MIXED
from oracles import log_likelihood
from problems import flat, run, seeded
from zoo import BY_NAME, Case, chain

EACH = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
POPULATIONS = pytest.mark.parametrize("k", [1, 3])
CASE = BY_NAME["layer_norm"]  # prunable, kept and point parameters
NORMED = BY_NAME["batch_norm"]  # buffers
CHAIN = Case("chain", partial(chain, 3, 4, 3, act=nn.ReLU, seed=None), (3,))
N_DATA = 11


def case_of(engine, case=CASE):
    """The network to promise things on: the given one, where the engine can learn it."""
    return CHAIN if isinstance(engine, TDAMP) else case


def problem_of(engine, case=CASE, dtype=torch.float32):
    return case_of(engine, case).problem(N_DATA, dtype=dtype)


def batches_of(problem, size=4):
    """All data in turn; the last batch is smaller."""
    return [Batch(x, y) for x, y in zip(problem.x.split(size), problem.y.split(size), strict=True)]


def trained(engine, problem, *, n_steps=4, seed=0, k=1):
    batches = batches_of(problem)
    return run(engine, problem, n_steps, seed=seed, n_models=k, batches=batches, renewing=False)


def assert_equal_states(a, b):
    first, second = snapshot(a), snapshot(b)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def assert_equal_posteriors(a, b):
    assert torch.equal(a.mean, b.mean)
    assert torch.equal(a.draw(4, seeded(1)), b.draw(4, seeded(1)))
    assert a.buffers.keys() == b.buffers.keys()
    for name, value in a.buffers.items():
        assert torch.equal(value, b.buffers[name]), name


@pytest.mark.slow
@EACH
@POPULATIONS
def test_equal_seeds_give_equal_results(engine, k):
    problem, other = problem_of(engine), problem_of(engine)
    state, again = trained(engine, problem, k=k), trained(engine, other, k=k)
    assert_equal_states(state, again)
    for i in range(k):
        assert_equal_posteriors(
            engine.posterior(problem, state, i), engine.posterior(other, again, i)
        )


@EACH
@pytest.mark.parametrize("case", [CASE, NORMED], ids=lambda case: case.name)
def test_a_second_run_on_the_same_problem_starts_afresh(engine, case):
    problem = problem_of(engine, case)
    first = engine.posterior(problem, trained(engine, problem))
    second = engine.posterior(problem, trained(engine, problem))
    assert_equal_posteriors(first, second)


@EACH
def test_seeds_matter_where_there_is_noise(engine):
    problem = problem_of(engine)
    states = [flat(trained(engine, problem, seed=seed)) for seed in (0, 1)]
    deterministic = isinstance(engine, MAP) and engine.start == "module"
    assert torch.equal(*states) is deterministic


@EACH
@POPULATIONS
def test_the_global_random_state_is_neither_read_nor_changed(engine, k):
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        problem = problem_of(engine)
        state = trained(engine, problem, k=k)
        engine.kl(state)
        engine.posterior(problem, state).draw(2, seeded(0))
        assert torch.equal(torch.get_rng_state(), before)
        results.append(state)
    assert_equal_states(*results)


@EACH
@POPULATIONS
def test_a_restored_run_continues_bit_for_bit(engine, k):
    problem = problem_of(engine, NORMED)
    batches = batches_of(problem)
    state = trained(engine, problem, n_steps=3, k=k)
    saved = Population(problem, engine, state, k).copies()
    fresh_problem = problem_of(engine, NORMED)
    fresh = engine.init(fresh_problem, seeded(99), k)
    Population(fresh_problem, engine, fresh, k).restore_(saved)
    for step in range(4):
        ours = engine.step(problem, state, batches[step % 3])
        theirs = engine.step(fresh_problem, fresh, batches[step % 3])
        assert torch.equal(ours["log_lik"], theirs["log_lik"])
    assert_equal_states(state, fresh)
    assert not torch.equal(saved["state." + _first_name(state)], flat(state))


def _first_name(state):
    return next(name for name, value in named_tensors(state) if value is flat(state))


@EACH
@POPULATIONS
def test_a_state_goes_back_in_place(engine, k):
    problem = problem_of(engine)
    state = trained(engine, problem, k=k)
    addresses = [value.data_ptr() for _, value in named_tensors(state)]
    saved = snapshot(state)
    for batch in batches_of(problem):
        engine.step(problem, state, batch)
    assert [value.data_ptr() for _, value in named_tensors(state)] == addresses
    restore_(state, saved)
    for name, value in snapshot(state).items():
        assert torch.equal(value, saved[name]), name


@EACH
@POPULATIONS
def test_the_model_is_left_alone(engine, k):
    case = case_of(engine, NORMED)
    model = case.model(dtype=torch.float32)
    before = copy.deepcopy(model.state_dict())
    data = case.data(N_DATA, dtype=torch.float32)
    problem = Problem(model, case.likelihood, data[:2])
    engine.posterior(problem, trained(engine, problem, k=k))
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def memory(posterior):
    """Storages a posterior can see, its network's structure left out."""
    tensors = [v for v in vars(posterior).values() if isinstance(v, torch.Tensor)]
    return {t.untyped_storage().data_ptr() for t in (*tensors, *posterior.buffers.values())}


@EACH
@POPULATIONS
def test_a_posterior_shares_no_memory_and_does_not_change_later(engine, k):
    problem = problem_of(engine, NORMED)
    state = trained(engine, problem, k=k)
    posterior = engine.posterior(problem, state)
    space = space_of(problem, engine, k)
    owned = {value.untyped_storage().data_ptr() for _, value in named_tensors(state)}
    owned |= {value.untyped_storage().data_ptr() for value in space.all_buffers().values()}
    owned |= {space.weights.untyped_storage().data_ptr()}
    owned |= {value.untyped_storage().data_ptr() for value in problem.network.skeleton.buffers()}
    assert not memory(posterior) & owned
    assert not memory(posterior) & memory(engine.posterior(problem, state))
    mean = posterior.mean.clone()
    buffers = {name: value.clone() for name, value in posterior.buffers.items()}
    for batch in batches_of(problem):
        engine.step(problem, state, batch)
    assert torch.equal(posterior.mean, mean)
    assert not torch.equal(engine.posterior(problem, state).mean, mean)
    for name, value in posterior.buffers.items():
        assert torch.equal(value, buffers[name])


@EACH
@POPULATIONS
def test_shapes_of_states_metrics_and_posteriors(engine, k):
    problem = problem_of(engine)
    d = problem.layout.size
    state = engine.init(problem, seeded(0), k)
    metrics = engine.step(problem, state, batches_of(problem)[0])
    assert flat(state).shape == (k, d)
    assert "log_lik" in metrics
    for value in (*metrics.values(), engine.kl(state)):
        assert value.shape == (k,)
        assert not value.requires_grad
        assert torch.isfinite(value).all()
    for i in range(k):
        posterior = engine.posterior(problem, state, i)
        assert isinstance(posterior, Posterior)
        assert posterior.mean.shape == (d,)
        assert posterior.draw(5, seeded(0)).shape == (5, d)
        assert posterior.network is problem.network
        means = moments(state)[0] if isinstance(engine, TDAMP) else flat(state)
        torch.testing.assert_close(posterior.mean, means[i])


@EACH
@POPULATIONS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_device_are_kept(engine, k, dtype):
    problem = problem_of(engine, dtype=dtype)
    state = trained(engine, problem, k=k)
    posterior = engine.posterior(problem, state)
    for name, value in named_tensors(state):
        mask = name in ("controls.keep", "controls.trained")
        assert value.dtype == (torch.bool if mask else dtype), name
        assert value.device == problem.device
    for value in (posterior.mean, posterior.draw(2, seeded(0))):
        assert value.dtype == dtype
        assert value.device == problem.device


@EACH
@POPULATIONS
def test_inclusion_is_a_probability(engine, k):
    problem = problem_of(engine)
    posterior = engine.posterior(problem, trained(engine, problem, k=k), k - 1)
    if not isinstance(engine.prior, SpikeSlab | GaussianLaplace | GroupSparse):
        assert posterior.inclusion is None
        return
    inclusion = posterior.inclusion
    assert inclusion.shape == (problem.layout.size,)
    assert ((inclusion >= 0) & (inclusion <= 1)).all()
    assert (inclusion[problem.layout.n_bayesian :] == 1).all()
    share = inclusion[problem.layout.sparse].mean()
    assert share == 1 if getattr(engine, "keep", None) == 1 else 0 < share < 1


@EACH
@POPULATIONS
def test_one_example_is_a_batch(engine, k):
    problem = problem_of(engine)
    state = engine.init(problem, seeded(0), k)
    metrics = engine.step(problem, state, Batch(problem.x[:1], problem.y[:1]))
    assert torch.isfinite(metrics["log_lik"]).all()
    assert torch.isfinite(flat(state)).all()


@EACH
@POPULATIONS
def test_the_last_batch_may_be_smaller(engine, k):
    problem = problem_of(engine)
    batches = batches_of(problem)
    assert [batch.n for batch in batches] == [4, 4, 3]
    state = engine.init(problem, seeded(0), k)
    values = torch.stack([engine.step(problem, state, batch)["log_lik"] for batch in batches])
    # nats over all 11 examples, three classes, whatever the batch: about -11 log 3 = -12
    assert (values < -3).all()
    assert (values > -40).all()


@EACH
def test_members_of_a_population_differ(engine):
    problem = problem_of(engine)
    state = trained(engine, problem, k=3)
    means = [engine.posterior(problem, state, i).mean for i in range(3)]
    weights = problem.layout.sparse
    for i in range(3):
        for j in range(i):
            assert (means[i][weights] != means[j][weights]).all()


@EACH
def test_members_may_see_their_own_batches(engine):
    problem = problem_of(engine)
    x, y = (torch.stack([value[i : i + 4] for i in range(3)]) for value in (problem.x, problem.y))
    state = engine.init(problem, seeded(0), 3)
    metrics = engine.step(problem, state, Batch(x, y, per_member=True))
    assert metrics["log_lik"].shape == (3,)
    assert torch.isfinite(flat(state)).all()


@pytest.mark.slow
@EACH
def test_training_helps(engine):
    problem = problem_of(engine)
    whole = Batch(problem.x, problem.y)
    state = engine.init(problem, seeded(0))
    state.controls.kl_scale.fill_(0.01)  # little data: let them speak
    before = log_likelihood(problem, engine.posterior(problem, state).mean[None], whole)
    for _ in range(60):
        engine.step(problem, state, whole)
    after = log_likelihood(problem, engine.posterior(problem, state).mean[None], whole)
    assert after > before + 0.2


def prune_(state, problem, share=0.5):
    """Switch off a random share of the prunable weights of every member; returns keep."""
    state.controls.allow_masks_(flat(state))
    n = problem.layout.n_sparse
    keep = torch.rand(len(flat(state)), n, generator=seeded(5)) >= share
    state.controls.keep[:, :n] = keep
    state.controls.trained[:, :n] = keep
    return state.controls.keep.clone()


@EACH
@POPULATIONS
def test_pruned_weights_are_zero_and_stay_zero(engine, k):
    problem = problem_of(engine)
    state = trained(engine, problem, k=k)
    keep = prune_(state, problem)
    for batch in batches_of(problem) * 2:
        engine.step(problem, state, batch)
        for i in range(k):
            posterior = engine.posterior(problem, state, i)
            assert (posterior.mean[~keep[i]] == 0).all()
            assert (posterior.draw(3, seeded(0))[:, ~keep[i]] == 0).all()
            assert (posterior.mean[keep[i]] != 0).all()
            if posterior.inclusion is not None:
                assert (posterior.inclusion[~keep[i]] == 0).all()
    assert torch.equal(state.controls.keep, keep)


@EACH
@POPULATIONS
def test_what_a_pruned_weight_holds_has_no_effect(engine, k):
    results = []
    for junk in (0.0, 100.0):
        problem = problem_of(engine, dtype=torch.float64)
        state = trained(engine, problem, n_steps=3, k=k)
        keep = prune_(state, problem)
        flat(state)[~keep] += junk
        metrics = [engine.step(problem, state, batch)["log_lik"] for batch in batches_of(problem)]
        results.append((torch.stack(metrics), flat(state)[keep], engine.kl(state)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@EACH
@POPULATIONS
def test_weights_that_are_no_longer_trained_do_not_move(engine, k):
    problem = problem_of(engine)
    state = trained(engine, problem, k=k)
    state.controls.allow_masks_(flat(state))
    still = torch.rand(flat(state).shape, generator=seeded(5)) < 0.5
    state.controls.trained.copy_(~still)
    before = flat(state).clone()
    for batch in batches_of(problem) * 2:
        engine.step(problem, state, batch)
    assert torch.equal(flat(state)[still], before[still])
    assert (flat(state)[~still] != before[~still]).all()


@pytest.mark.slow
@EACH
@POPULATIONS
def test_masks_that_keep_everything_change_nothing(engine, k):
    results = []
    for masked in (False, True):
        problem = problem_of(engine)
        state = engine.init(problem, seeded(0), k)
        if masked:
            state.controls.allow_masks_(flat(state))
        for batch in batches_of(problem):
            engine.step(problem, state, batch)
        results.append(flat(state))
    torch.testing.assert_close(*results)


@EACH
@POPULATIONS
def test_a_rate_of_zero_moves_nothing(engine, k):
    problem = problem_of(engine)
    state = engine.init(problem, seeded(0), k)
    before = flat(state).clone()
    state.controls.lr_scale.fill_(0)
    for batch in batches_of(problem):
        engine.step(problem, state, batch)
    torch.testing.assert_close(flat(state), before)


@EACH
@POPULATIONS
def test_a_warm_start_continues_from_a_posterior(engine, k):
    problem = problem_of(engine)
    posterior = engine.posterior(problem, trained(engine, problem))
    state = engine.init(problem, seeded(1), k)
    engine.warm_start_(state, posterior)
    for i in range(k):
        torch.testing.assert_close(engine.posterior(problem, state, i).mean, posterior.mean)
    engine.step(problem, state, batches_of(problem)[0])
    assert torch.isfinite(flat(state)).all()


@EACH
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (nn.Flatten, "has no trainable parameter"),
        (lambda: nn.LazyLinear(1), "is not initialised yet"),
        (lambda: nn.Linear(2, 1, dtype=torch.complex64), "must be real floating point"),
    ],
)
def test_unsupported_models_are_refused_before_training(engine, build, message):
    data = torch.zeros(4, 2), torch.zeros(4, 1)
    with pytest.raises(UnsupportedModelError, match=message):
        engine.init(Problem(build(), Gaussian(), data), seeded(0))


class Bare(nn.Module):
    """A matrix that no layer owns, so that it is a point unless roles say otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(2, 1))

    def forward(self, x):
        return x @ self.matrix


@EACH
def test_a_network_without_a_posterior_is_refused_by_all_but_map(engine):
    data = torch.zeros(4, 2), torch.zeros(4, 1)
    problem = Problem(Bare(), Gaussian(), data)
    if isinstance(engine, MAP):
        assert flat(run(engine, problem, 2)).shape == (1, 2)
        return
    unknown = isinstance(engine, TDAMP)  # must know every layer
    message = (
        r"\(Bare\) is not supp" if unknown else r"no parameter .*Roles\(prune=\('matrix', \.\."
    )
    with pytest.raises(UnsupportedModelError, match=f"^{type(engine).__name__}: .*{message}"):
        engine.init(problem, seeded(0))
    if not unknown:
        run(engine, Problem(Bare(), Gaussian(), data, roles=Roles(prune=("matrix",))), 2)


@EACH
def test_frozen_integer_parameters_are_carried_along(engine):
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.shift = nn.Parameter(torch.tensor([3]), requires_grad=False)

        def forward(self, x):
            return self.layer(x) + self.shift

    problem = Problem(Shifted(), Gaussian(), (torch.zeros(4, 2), torch.full((4, 1), 3.0)))
    if isinstance(engine, TDAMP):  # must know every layer
        with pytest.raises(UnsupportedModelError, match=r"\(Shifted\) is not supported"):
            engine.init(problem, seeded(0))
        return
    state = run(engine, problem, 2)
    assert flat(state).shape == (1, 3)


@EACH
def test_engines_are_frozen_hashable_printable_and_comparable(engine):
    rate = next(name for name in ("lr", "step_size", "trust") if hasattr(engine, name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(engine, rate, 1.0)
    twin = dataclasses.replace(engine)
    assert twin == engine
    assert hash(twin) == hash(engine)
    assert dataclasses.replace(engine, **{rate: 0.05}) != engine
    assert eval(repr(engine), vars(engine_table) | {"AUTO": AUTO}) == engine
    assert copy.deepcopy(engine) == engine
    assert not any(isinstance(value, torch.Tensor) for value in vars(engine).values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MAP(lr=0.0), r"^MAP: lr must be > 0, got 0\.0\.$"),
        (lambda: MAP(lr=(0.1, -0.1)), r"^MAP: lr must be > 0, got -0\.1\.$"),
        (lambda: MAP(weight_decay=-1.0), r"^MAP: weight_decay must be >= 0, got -1\.0\.$"),
        (lambda: MAP(momentum=-0.1), r"^MAP: momentum must be >= 0"),
        (lambda: MAP(optimizer="sdg"), r"^MAP: optimizer must be one of .* Did you mean 'sgd'"),
        (lambda: MAP(start="xavier"), r"^MAP: start must be one of module, he; got 'xavier'\."),
        (lambda: FlatVI(lr=float("nan")), r"^FlatVI: lr must be > 0, got nan\.$"),
        (lambda: FlatVI(init_std=0.0), r"^FlatVI: init_std must be > 0"),
        (lambda: FlatVI(start="module2"), r"Did you mean 'module'"),
        (lambda: FlatVI(prior=MIXED, local=True), r"^FlatVI: a SpikeSlab prior .* or use SBNN\.$"),
        (lambda: SBNN(lr=-1.0), r"^SBNN: lr must be > 0, got -1\.0\.$"),
        (lambda: SBNN(init_std=-1.0), r"^SBNN: init_std must be > 0, got -1\.0\.$"),
        (lambda: SBNN(optimizer="adamw"), r"^SBNN: optimizer must be one of adam, sgd"),
        (lambda: SBNN(start="zero"), r"^SBNN: start must be one of module, he"),
        (lambda: SBNN(optimizer="sgd", local=True), r"^SBNN: local noise needs optimizer='adam'"),
        (lambda: SGLD(step_size=0.0), r"^SGLD: step_size must be > 0, got 0\.0\.$"),
        (lambda: SGLD(temperature=-1.0), r"^SGLD: temperature must be >= 0, got -1\.0\.$"),
        (lambda: SGLD(adapt="sa"), r"^SGLD: adapt='sa' needs a GaussianLaplace prior, got Normal"),
        (lambda: SGLD(adapt="sam"), r"^SGLD: adapt must be one of .* Did you mean 'sa'"),
        (lambda: SGHMC(friction=1.5), r"^SGHMC: friction must be between 0 and 1, got 1\.5"),
        (lambda: SGHMC(step_size=0.3), r"^SGHMC: gradient_variance \* step_size / 2 must be <="),
        (lambda: SGHMC(start="zero"), r"^SGHMC: start must be one of module, he"),
        (lambda: TDAMP(power=0.0), r"^TDAMP: power must be > 0, got 0\.0\.$"),
        (lambda: TDAMP(memory=-1.0), r"^TDAMP: memory must be > 0"),
        (lambda: TDAMP(trust=0.0), r"^TDAMP: trust must be > 0"),
        (lambda: TDAMP(damping=1.1), r"^TDAMP: damping must be between 0 and 1"),
        (lambda: TDAMP(keep=2.0), r"^TDAMP: keep must be between 0 and 1"),
        (lambda: TDAMP(judged_at=0.0), r"^TDAMP: judged_at must be > 0"),
        (lambda: TDAMP(judged_at=1.5), r"^TDAMP: judged_at must be between 0 and 1"),
        (lambda: TDAMP(prune_passes=(3, 2)), r"^TDAMP: prune_passes must be \(first, last\)"),
        (lambda: GroupSparse(group="unit"), r"^GroupSparse: group must be .* Did you mean 'units'"),
        (lambda: GroupSparse(active_prob=1.0), r"^GroupSparse: active_prob must be strictly"),
        (lambda: GroupSparse(hidden_variance=0.0), r"^GroupSparse: hidden_variance must be > 0"),
        (lambda: BMR(lr=0.0), r"^BMR: lr must be > 0, got 0\.0\.$"),
        (lambda: BMR(init_std=-1.0), r"^BMR: init_std must be > 0"),
        (lambda: BMR(start="normal"), r"^BMR: start must be one of module, he, uniform"),
        (lambda: Reduction("savage"), r"Did you mean 'savage-dickey'"),
        (lambda: Reduction(end=0.0), r"^Reduction: end must be > 0"),
        (lambda: Reduction(end=1.5), r"^Reduction: end must be between 0 and 1"),
        (lambda: Reduction(scope="all"), r"^Reduction: scope must be one of layer, global"),
        (lambda: LayerScaled(std=0.0), r"^LayerScaled: std must be > 0"),
        (lambda: HorseshoeVI(lr=0.0), r"^HorseshoeVI: lr must be > 0, got 0\.0\.$"),
        (lambda: HorseshoeVI(init_std=-1.0), r"^HorseshoeVI: init_std must be > 0"),
        (lambda: HorseshoeVI(start="zero"), r"^HorseshoeVI: start must be one of module, he"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MAP(prior=LayerScaled()), "MAP: prior must be Normal or SpikeSlab, got LayerSc"),
        (lambda: FlatVI(prior=Horseshoe()), "FlatVI: prior must be Normal or SpikeSlab, got Hor"),
        (lambda: FlatVI(prior=Normal), "FlatVI: prior must be .*, got the class Normal"),
        (
            lambda: SBNN(prior=Normal()),
            r"SBNN: prior must be a SpikeSlab, got Normal.*Use FlatVI for",
        ),
        (lambda: BMR(prior=Normal()), "BMR: prior must be LayerScaled, got Normal"),
        (lambda: HorseshoeVI(prior=Normal()), "HorseshoeVI: prior must be Horseshoe, got Normal"),
        (lambda: SGLD(prior=MIXED), "SGLD: prior must be Normal or GaussianLaplace, got SpikeSl"),
        (lambda: SGHMC(prior=MIXED), "SGHMC: prior must be Normal or GaussianLaplace, got Spike"),
        (lambda: TDAMP(prior=Normal()), "TDAMP: prior must be GroupSparse, got Normal"),
    ],
)
def test_a_prior_of_another_engine_is_named_when_the_engine_is_made(make, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        make()


@pytest.mark.parametrize(
    "engine",
    [
        MAP(lr=(0.1, 0.2)),
        MAP(prior=Normal((0.1, 0.2))),
        FlatVI(lr=(0.1, 0.2)),
        FlatVI(init_std=(0.1, 0.2)),
        FlatVI(prior=Normal((0.1, 0.2))),
        SBNN(lr=(0.1, 0.2)),
        SBNN(prior=SpikeSlab((1.0, 2.0), 0.1)),
        SGLD(step_size=(1e-4, 2e-4)),
        SGHMC(prior=GaussianLaplace((0.1, 0.2)), adapt="sa"),
    ],
    ids=str,
)
@POPULATIONS
def test_as_many_numbers_as_members_are_needed(engine, k):
    problem = problem_of(engine)
    with pytest.raises(ValueError, match=r"one number per model; the number of models is not 2"):
        trained(engine, problem, n_steps=1, k=k)
