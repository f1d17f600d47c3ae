"""Objects from settings, and the complaints that come before anything is written."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from bayesieve.core.likelihoods import Bernoulli, Gaussian
from bayesieve.core.posterior import SparseModel
from bayesieve.errors import UsageError
from bayesieve.runs.build import build_module, make_plan
from bayesieve.runs.config import (
    DataConfig,
    EngineConfig,
    NetConfig,
    PruningConfig,
    RunConfig,
    TrainingConfig,
)
from bayesieve.runs.run import storage_bytes

CONFIG = RunConfig(
    DataConfig("digits"), NetConfig("mlp:8"), training=TrainingConfig(epochs=1, device="cpu")
)


def changed(**sections):
    return replace(CONFIG, **sections)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RunConfig(), "give a data set"),
        (changed(net=NetConfig("lenet")), "`net` must be one of.*Did you mean 'lenet5'"),
        (changed(net=NetConfig("mlp:a")), "must read mlp:400,400"),
        (changed(net=NetConfig("mlp:8:rellu")), "Did you mean 'relu'"),
        (changed(net=NetConfig("mlp:8", noise_std=0.1)), "for real targets, not categorical"),
        (changed(engine=EngineConfig(lr=-1.0)), "SBNN: lr must be > 0"),
        (changed(engine=EngineConfig(lr=(1e-3, 1e-2))), "`lr` has 2 numbers; `n_models` is 1"),
        (changed(pruning=PruningConfig(zeros=1.2)), "zeros must be"),
        (changed(pruning=PruningConfig(zeros=0.9999)), "smallest fraction that can be reached"),
        (changed(pruning=PruningConfig(soft=True)), "`soft` need `zeros`"),
        (
            changed(engine=EngineConfig("map"), pruning=PruningConfig(zeros=0.5, score="snr")),
            "single draw",
        ),
        (changed(training=TrainingConfig(epochs=1, steps=1)), "either `epochs` or `steps`"),
        (changed(training=TrainingConfig(epochs=0)), "epochs must be > 0"),
        (changed(training=TrainingConfig(batch_size=0)), "batch_size must be > 0"),
        (changed(training=TrainingConfig(n_models=0)), "n_models must be > 0"),
        (changed(training=TrainingConfig(checkpoint_every=0)), "checkpoint_every must be > 0"),
        (changed(training=TrainingConfig(patience=2)), "`patience` needs `val_fraction`"),
        (changed(training=TrainingConfig(val_fraction=1.5)), "val_fraction must be strictly"),
        (changed(training=TrainingConfig(device="gpu")), "`device` must be"),
        (
            changed(engine=EngineConfig("bmr"), training=TrainingConfig(moments="bf16")),
            'moments="bf16" .* not BMR',
        ),
        (changed(training=TrainingConfig(distill_epochs=2)), "needs `distill`"),
        (changed(training=TrainingConfig(distill=0)), "distill must be > 0"),
        (changed(training=TrainingConfig(distill=2, distill_weight=2.0)), "distill_weight must be"),
    ],
)
def test_wrong_settings_raise_before_training(config, message):
    with pytest.raises(ValueError, match=message):
        make_plan(config)


def test_a_plan_is_a_fixed_point():
    plan = make_plan(changed(pruning=PruningConfig(zeros=0.5)))
    again = make_plan(plan.config)
    assert again.config == plan.config
    assert again.engine == plan.engine
    assert again.schedule == plan.schedule


def test_initial_weights_depend_on_the_seed_alone():
    data = make_plan(CONFIG).data
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = (build_module(CONFIG.net, data, seed=1) for _ in range(2))
    assert torch.equal(first.fc1.weight, second.fc1.weight)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first.fc1.weight, build_module(CONFIG.net, data, seed=2).fc1.weight)


def test_warm_start_takes_the_weights(tmp_path):
    data = make_plan(CONFIG).data
    model = build_module(CONFIG.net, data, seed=7)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    warm = changed(net=replace(CONFIG.net, warm_start=str(tmp_path / "w.safetensors")))
    plan = make_plan(warm)
    assert plan.config.engine.start == "module"
    assert torch.equal(plan.problem.initial, plan.problem.network.weights_of(model))


def test_warm_start_that_does_not_fit(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "w.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"123")
    for name, message in (("w", "does not fit"), ("torn", "cannot be read"), ("no", "cannot be")):
        net = replace(CONFIG.net, warm_start=str(tmp_path / f"{name}.safetensors"))
        with pytest.raises(UsageError, match=message):
            make_plan(changed(net=net))


def test_float64_reaches_data_and_network():
    plan = make_plan(changed(net=replace(CONFIG.net, dtype="float64")))
    assert plan.problem.x.dtype == plan.problem.initial.dtype == torch.float64


def test_roles_come_from_patterns():
    plan = make_plan(changed(net=replace(CONFIG.net, keep_params=("out.*",))))
    assert plan.problem.layout.n_sparse == 64 * 8


def test_likelihood_of_tables(tmp_path):
    rows = "\n".join(f"{i},{(7 * i) % 5},{i % 2}" for i in range(40))
    (tmp_path / "t.csv").write_text(f"a,b,c\n{rows}\n")
    table = DataConfig(f"csv:{tmp_path / 't.csv'}", target="b", task="regression")
    plan = make_plan(changed(data=table))
    assert plan.problem.likelihood == Gaussian(1.0, learned=True)
    assert plan.config.net.learn_noise is True
    fixed = make_plan(changed(data=table, net=NetConfig("mlp:4", noise_std=0.2)))
    assert fixed.problem.likelihood == Gaussian(0.2)
    binary = replace(table, target="c", task="classification")
    plan = make_plan(changed(data=binary, net=NetConfig("mlp:4", likelihood="bernoulli")))
    assert plan.problem.likelihood == Bernoulli()


def test_storage_of_sparse_models():
    plan = make_plan(CONFIG)
    state = plan.engine.init(plan.problem, torch.Generator().manual_seed(0), 1)
    posterior = plan.engine.posterior(plan.problem, state, 0)
    d = posterior.layout.size
    assert storage_bytes(posterior) == 4 * d
    keep = torch.zeros(d, dtype=torch.bool)
    keep[:3] = True
    assert storage_bytes(SparseModel(posterior.masked(keep), keep)) == 3 * 4 + 3 * 4
    keep[:100] = True
    assert storage_bytes(SparseModel(posterior.masked(keep), keep)) == 100 * 4 + -(-d // 8)
