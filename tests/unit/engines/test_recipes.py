"""One table of recommended settings: every way to train reads the same numbers."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from torch import nn

from bayesieve.checks import AUTO
from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.engines import recipes
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.recipes import ENGINES, RunSize
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.engines.tdamp import TDAMP
from bayesieve.estimators.defaults import Choices, table_settings
from bayesieve.nets import mlp
from bayesieve.runs.build import make_plan
from bayesieve.runs.config import DataConfig, EngineConfig, NetConfig, RunConfig
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from studies.comparison.budget import Compare
from studies.comparison.methods import build_method

OBJECTS = {
    "map": MAP(),
    "flat-vi": FlatVI(),
    "sbnn": SBNN(),
    "bmr": BMR(),
    "horseshoe": HorseshoeVI(),
    "sgld": SGLD(),
    "sghmc": SGHMC(),
    "tdamp": TDAMP(keep=1.0),
}
NAMES = pytest.mark.parametrize("name", ENGINES)
TASKS = pytest.mark.parametrize("task", ["classification", "regression"])
LIKELIHOODS = {"classification": Categorical(), "regression": Gaussian()}
NUMBERS = ("lr", "step_size", "init_std", "weight_decay", "prior", "chain", "local", "prune_passes")


def numbers(engine):
    """Settings of an engine that the recipe decides; the start depends on the network."""
    names = {spec.name for spec in dataclasses.fields(engine)}
    return {name: getattr(engine, name) for name in NUMBERS if name in names}


def table(task, n=600):
    """A small table and its csv text."""
    x = torch.linspace(-1, 1, 3 * n).view(n, 3)
    y = (x[:, 0] > 0).long() if task == "classification" else x[:, 0].sin()
    return x, y


def write_csv(path, task):
    x, y = table(task)
    rows = [f"{a},{b},{c},{d}" for (a, b, c), d in zip(x.tolist(), y.tolist(), strict=True)]
    path.write_text("\n".join(["a,b,c,y", *rows]) + "\n")


@NAMES
def test_an_engine_object_has_the_name_of_its_recipe(name):
    assert recipes.name_of(OBJECTS[name]) == name
    assert recipes.name_of(object()) is None


@TASKS
@NAMES
def test_python_command_line_and_estimators_have_the_same_settings_for_a_table(
    name, task, tmp_path
):
    write_csv(tmp_path / "t.csv", task)
    prior = {"prior": "normal"} if name in ("sgld", "sghmc") else {}
    config = RunConfig(
        data=DataConfig(name=f"csv:{tmp_path / 't.csv'}", target="y", task=task),
        net=NetConfig(name="mlp:50"),
        engine=EngineConfig(name=name, **prior),
    )
    plan = make_plan(config)
    n_data = plan.problem.n_data
    n_columns = plan.problem.x.shape[1]
    choices = Choices(engine=name, n_members=1, folds=0)
    settings = table_settings(choices, task, n_data, n_columns)
    assert (plan.config.training.epochs, plan.config.training.batch_size) == (
        settings.epochs,
        settings.batch_size,
    )
    assert numbers(plan.engine) == numbers(settings.engine)
    assert plan.schedule == settings.schedule
    if name == "tdamp":
        return
    examples = plan.problem.x, plan.problem.y
    n_outputs = 2 if task == "classification" else 1
    problem = Problem(mlp((3,), n_outputs, (50,)), plan.problem.likelihood,
                      examples)  # fmt: skip
    run = fit(problem, OBJECTS[name], epochs=1)
    python = recipes.complete(
        OBJECTS[name],
        RunSize(n_data, settings.epochs * -(-n_data // settings.batch_size),
                settings.batch_size, task=task, table=True),
    )  # fmt: skip
    assert numbers(python) == numbers(plan.engine)
    free = ("lr", "init_std", "prior", "local", "weight_decay", "step_size")
    for key in free:  # whatever does not depend on the length of the run
        assert getattr(run.engine, key, None) == getattr(plan.engine, key, None)


@NAMES
def test_python_command_line_and_compare_have_the_same_settings_for_images(name):
    if name == "tdamp":  # needs a plain sequence and centred inputs
        return
    prior = {"prior": "normal", "adapt": "none"} if name in ("sgld", "sghmc") else {}
    config = RunConfig(
        data=DataConfig(name="digits"), net=NetConfig(name="mlp:20"),
        engine=EngineConfig(name=name, **prior),
    )  # fmt: skip
    plan = make_plan(config)
    epochs, n_data = plan.config.training.epochs, plan.problem.n_data
    budget = Compare("unused", epochs=epochs, batch_size=plan.config.training.batch_size)
    changes = {"engine": prior} if prior else {}
    method = build_method(name, "classification", n_data, budget, changes)
    assert numbers(method.engine) == numbers(plan.engine)
    assert method.schedule == plan.schedule
    size = RunSize(n_data, plan.size.n_steps, plan.size.batch_size)
    assert numbers(recipes.complete(OBJECTS[name], size)) == numbers(plan.engine)


def test_fit_takes_length_and_schedule_from_the_recipe():
    data = load_data("digits")
    problem = Problem(mlp((1, 8, 8), 10, (8,)), Categorical(), data.train)
    seen = []
    run = fit(problem, MAP(), callbacks=[lambda progress: seen.append(progress) or True])
    n_batches = -(-len(data.train) // 128)
    assert seen[0].n_steps == 60 * n_batches
    assert run.engine == MAP(lr=0.01, weight_decay=0.0)


def test_numbers_that_were_chosen_stay():
    size = RunSize(500, 1000, 64, task="regression", table=True)
    chosen = SBNN(SpikeSlab(0.5, 0.1), lr=0.25, init_std=0.125, local=True)
    assert recipes.complete(chosen, size) == chosen
    mixed = recipes.complete(SBNN(SpikeSlab(slab_std=0.5)), size)
    assert (mixed.prior.slab_std, mixed.lr) == (0.5, 0.03)
    chain = SGHMC(Normal(2.0), step_size=1e-3)
    assert recipes.complete(chain, size).prior == Normal(2.0)
    assert recipes.complete(chain, size).chain.burn_in == 600
    assert recipes.complete(MAP(), size).weight_decay == 0.3
    assert recipes.complete(MAP(lr=0.1), size).weight_decay == 0.0  # decay belongs to its lr
    mixed = recipes.complete(SBNN(lr=(0.5, AUTO)), size)  # a population of two engines
    assert mixed.lr == (0.5, 0.03)
    paper = BMR.paper()
    assert recipes.complete(paper, size) == paper


def test_a_setting_that_nobody_chose_says_so():
    assert SBNN() != SBNN(lr=1e-3)
    assert repr(SBNN()).startswith("SBNN(prior=SpikeSlab(slab_std=AUTO, spike_std=AUTO")
    assert pickle.loads(pickle.dumps(SBNN())).lr is copy.deepcopy(AUTO) is AUTO
    assert not AUTO  # a switch is off in a loop written by hand


def test_a_loop_written_by_hand_takes_plain_numbers():
    problem = Problem(nn.Linear(3, 1), Gaussian(), (torch.ones(9, 3), torch.ones(9)))
    plain = {
        "flat-vi": FlatVI(Normal(0.1), 1e-3, 0.018, local=False),
        "sbnn": SBNN(SpikeSlab(math.exp(-1), math.exp(-3)), 1e-3, local=False),
        "map": MAP(lr=1e-3, weight_decay=0.0),
        "bmr": BMR(lr=1e-2, init_std=0.1, local=False),
        "horseshoe": HorseshoeVI(lr=5e-3, init_std=0.1),
        "sgld": SGLD(Normal(1.0), 1e-5, chain=Chain(0, 100), preconditioned=False),
        "sghmc": SGHMC(Normal(1.0), 1e-5, chain=Chain(0, 100), preconditioned=False),
        "tdamp": TDAMP(keep=1.0, prune_passes=(2, 6)),
    }
    assert plain.keys() == ENGINES.keys()
    for name, engine in plain.items():
        weights = []
        for one in (OBJECTS[name], engine):
            generator = torch.Generator().manual_seed(0)
            state = one.init(problem, generator)
            for _ in range(3):
                one.step(problem, state, Batch(problem.x, problem.y))
            posterior = one.posterior(problem, state)
            kl = one.kl(state)
            weights.append((posterior.mean, getattr(posterior, "std", None), kl))
        for a, b in zip(*weights, strict=True):
            assert (a is None and b is None) or torch.equal(a, b), name


def test_a_posterior_of_a_hand_written_loop_has_a_prior_of_numbers():
    problem = Problem(nn.Linear(3, 1), Gaussian(), (torch.ones(9, 3), torch.ones(9)))
    for engine in (SBNN(), FlatVI()):
        state = engine.init(problem, torch.Generator().manual_seed(0))
        assert AUTO not in vars(engine.posterior(problem, state).prior).values()


def test_an_engine_of_your_own_needs_a_length_and_has_constant_dials():
    class Mine:
        prior = None

        def __getattr__(self, name):
            return getattr(MAP(lr=0.1), name)

    problem = Problem(nn.Linear(3, 1), Gaussian(), (torch.ones(9, 3), torch.ones(9)))
    with pytest.raises(ValueError, match="give either epochs or steps"):
        fit(problem, Mine())
    assert fit(problem, Mine(), epochs=1).n_models == 1


@TASKS
def test_a_recommended_schedule_is_a_schedule(task):
    for name in ENGINES:
        for is_table in (False, True):
            size = RunSize(60_000, 900, 600, task=task, table=is_table)
            Schedule(**recipes.recommended_schedule(name, size))


@pytest.mark.parametrize(
    ("name", "task", "n_data", "is_table", "kl"),
    [
        ("sbnn", "classification", 500, False, 0.1),
        ("sbnn", "classification", 60_000, False, 0.3),
        ("sbnn", "regression", 500, False, 1.0),
        ("sbnn", "regression", 500, True, 0.3),
        ("bmr", "classification", 500, False, 0.1),
        ("bmr", "classification", 60_000, False, 1.0),
        ("bmr", "classification", 500, True, 1.0),
        ("sghmc", "classification", 500, True, 1.0),
    ],
)
def test_the_weight_of_the_prior_depends_on_engine_task_and_data(name, task, n_data, is_table, kl):
    size = RunSize.of(name, n_data, 60, None, None, task=task, table=is_table)
    course = recipes.recommended_schedule(name, size)
    assert course["kl"] == kl
