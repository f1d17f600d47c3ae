"""Mixer, ViT and the LeNets with every engine, pruning and compaction."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.bmr import BMR, PAPER_ROLES
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.fast.stepper import make_stepper
from bayesieve.nets import lenet5_wide, mixer, mlp, vit
from bayesieve.sieve.compact import compact
from bayesieve.sieve.evidence import prune_by_evidence, weight_evidence
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_zeros
from engine_table import ANY_NETWORK
from engine_table import ENGINES as VARIANTS
from problems import normal32, seeded
from zoo import built

NETS = {
    "mlp": lambda: mlp((1, 8, 8), 3, (6, 5), "swish", dropout=0.2),
    "lenet": lambda: lenet5_wide((1, 32, 32), 3),
    "mixer": lambda: mixer((1, 8, 8), 3, n_blocks=2, width=8, token_hidden=6, hidden=7),
    "vit": lambda: vit((1, 8, 8), 3, n_blocks=2, width=8, n_heads=2, hidden=7, dropout=0.1),
}
ENGINES = {
    **ANY_NETWORK,
    "flat_vi-local": VARIANTS["flat_vi-local"],
    "bmr-local": BMR(lr=1e-2, local=True),
    "flat-ff": BMR(reduction=None),
}


def problem_of(net, **options):
    model = built(NETS[net])
    side = 32 if net == "lenet" else 8
    x = normal32(6, 1, side, side, seed=1)
    return Problem(model, Categorical(), (x, torch.arange(6) % 3), **options)


def stepped(problem, engine, k=1, n_steps=3):
    """State after a few steps by the stepper that training uses."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = engine.init(problem, seeded(0), k)
        step = make_stepper(problem, engine, state, k)
        for _ in range(n_steps):
            metrics = step(torch.arange(4))
    assert torch.isfinite(metrics["log_lik"]).all()
    return state


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_every_engine_trains_prunes_and_compacts(net, engine):
    problem = problem_of(net)
    posterior = engine.posterior(problem, stepped(problem, engine))
    assert torch.isfinite(posterior.mean).all()
    score = "magnitude"  # every posterior has it
    sparse = prune(posterior, keep_zeros(0.7, score=score))
    assert 1 - sparse.keep.double().mean() >= 0.7 - 1 / len(sparse.keep)
    small = compact(sparse, problem.x[:2])
    expected = sparse.to_module()(problem.x)
    torch.testing.assert_close(small(problem.x), expected, rtol=1e-4, atol=1e-5)


class Calls(TorchDispatchMode):
    """Names of all operations inside the block."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    "engine",
    [engine for name, engine in ENGINES.items() if name not in ("sgld", "sghmc")],
    ids=[name for name in ENGINES if name not in ("sgld", "sghmc")],
)
def test_no_step_waits_for_a_number(net, engine):
    """Reading a value back would stall a GPU and cannot be captured in a graph."""
    problem = problem_of(net)
    state = stepped(problem, engine)
    step = make_stepper(problem, engine, state)
    with Calls() as calls:
        step(torch.arange(4))
        if hasattr(engine, "renew_"):
            engine.renew_(problem, state, 500, 25_000)
    assert "mm" in calls.names or "addmm" in calls.names
    assert not calls.names & {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim"}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention of two at once
@pytest.mark.parametrize("net", ["mixer", "vit"])
@pytest.mark.parametrize("engine", [BMR(lr=1e-2), HorseshoeVI(lr=1e-2)], ids=["bmr", "horseshoe"])
def test_two_models_train_together_as_each_would_alone(net, engine):
    problem = problem_of(net)
    if net == "vit":  # without dropout: each member would draw its own
        problem = Problem(vit((1, 8, 8), 3, n_blocks=2, width=8, n_heads=2, hidden=7),
                          Categorical(), (problem.x, problem.y))  # fmt: skip
    w = problem.initial + 0.1 * normal32(2, problem.layout.size, seed=3)
    batch = Batch(problem.x, problem.y)
    together = problem.value_and_grad(w, batch)[1].clone()
    alone = [problem.value_and_grad(row[None], batch)[1][0].clone() for row in w]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-3, atol=1e-3)
    state = stepped(problem, engine, k=2)
    means = [engine.posterior(problem, state, i).mean for i in range(2)]
    assert not torch.equal(*means)


@pytest.mark.parametrize("net", ["mixer", "vit"])
def test_under_the_papers_roles_every_layer_can_lose_weights(net):
    """Norms, biases and positions have a posterior too; compaction still keeps the function."""
    problem = problem_of(net, roles=PAPER_ROLES)
    assert problem.layout.n_sparse == problem.layout.size
    engine = BMR.paper()
    sparse = prune(
        engine.posterior(problem, stepped(problem, engine)), keep_zeros(0.8, score="magnitude")
    )
    small = compact(sparse, problem.x[:2])
    torch.testing.assert_close(
        small(problem.x), sparse.to_module()(problem.x), rtol=1e-4, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention of two at once
@pytest.mark.parametrize("net", ["mixer", "vit"])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("roles", [{}, {"roles": PAPER_ROLES}], ids=["default", "paper"])
def test_patch_networks_can_be_reduced_by_evidence(net, k, roles):
    problem = problem_of(net, **roles)
    if net == "vit":  # without dropout, as above
        problem = Problem(vit((1, 8, 8), 3, n_blocks=2, width=8, n_heads=2, hidden=7),
                          Categorical(), (problem.x, problem.y), **roles)  # fmt: skip
    engine = BMR(lr=1e-2)
    state = stepped(problem, engine, k)
    evidence = weight_evidence(prior_std=engine.prior_stds(problem, state))
    sparse = prune_by_evidence(engine.posterior(problem, state, k - 1), evidence)
    assert sparse.to_module()(problem.x).isfinite().all()
