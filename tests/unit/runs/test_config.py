"""Settings: round trips, strict names and types, flags for every field."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import get_args

import pytest

from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.engines.recipes import (
    ENGINES,
    EngineName,
    RunSize,
    build,
    complete,
    recommended_batch_size,
    recommended_epochs,
)
from bayesieve.errors import UsageError
from bayesieve.runs.build import resolve_engine, resolve_pruning, resolve_schedule
from bayesieve.runs.config import (
    EngineConfig,
    PruningConfig,
    RunConfig,
    ScheduleConfig,
    argument_of,
    from_dict,
    read_config,
    sections,
    to_dict,
)


def built(config, size):
    return build(config.name, size, config.asked())


MANY = RunSize(60_000, n_steps=1200, batch_size=600)  # 12 epochs
EVERYTHING = {
    "data": {"name": "csv:house.csv", "target": "price", "missing": "impute"},
    "net": {"name": "mlp:20:tanh", "prune_params": ["fc*"], "dtype": "float64"},
    "engine": {"name": "sbnn", "lr": [1e-3, 1e-2], "local": False},
    "schedule": {"lr": "cosine", "kl": 0.3},
    "pruning": {"zeros": 0.9, "score": "snr", "soft": True},
    "training": {"epochs": 5, "n_models": 2, "compile": "off"},
}


def test_round_trip_through_json():
    config = from_dict(EVERYTHING, "test")
    assert config.engine.lr == (1e-3, 1e-2)
    assert config.net.prune_params == ("fc*",)
    assert from_dict(json.loads(json.dumps(to_dict(config))), "test") == config


def test_yaml_toml_and_json_agree(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "engine: {name: map, lr: 1e-3}\ntraining: {compile: off, epochs: 3}\n"
    )
    (tmp_path / "a.toml").write_text(
        '[engine]\nname = "map"\nlr = 1e-3\n[training]\ncompile = "off"\nepochs = 3\n'
    )
    plain = {"engine": {"name": "map", "lr": 1e-3}, "training": {"compile": "off", "epochs": 3}}
    (tmp_path / "a.json").write_text(json.dumps({**plain, "record": {"command": "train"}}))
    found = [read_config(tmp_path / f"a.{kind}") for kind in ("yaml", "toml", "json")]
    assert found[0] == found[1] == found[2] == from_dict(plain, "test")


def test_a_setting_of_version_02_that_changed_nothing_is_passed_over():
    for value in (None, False):
        assert from_dict({"engine": {"paired": value}}, "config.json") == RunConfig()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"enginee": {}}, "unknown section 'enginee'.*Did you mean 'engine'"),
        ({"engine": {"slab_sd": 1}}, "unknown key 'engine.slab_sd'.*'engine.slab_std'"),
        ({"engine": 3}, "engine must hold keys and values"),
        ({"engine": {"paired": True}}, "unknown key 'engine.paired'"),
        ({"engine": {"name": "sbn"}}, "must be one of map, flat-vi, sbnn.*Did you mean 'sbnn'"),
        ({"engine": {"lr": "fast"}}, "engine.lr must be a number, got 'fast'"),
        ({"engine": {"lr": True}}, "engine.lr must be a number, got True"),
        ({"training": {"epochs": 2.5}}, "training.epochs must be a whole number, got 2.5"),
        ({"pruning": {"soft": "yes"}}, "pruning.soft must be true or false, got 'yes'"),
        ({"net": {"name": 3}}, "net.name must be text, got 3"),
    ],
)
def test_wrong_settings_name_the_key(values, message):
    with pytest.raises(UsageError, match=f"run.yaml: .*{message}"):
        from_dict(values, "run.yaml")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "engine: [", "not a valid yaml file"),
        ("a.toml", "engine = ", "not a valid toml file"),
        ("a.ini", "", "must end in .yaml, .yml, .toml or .json"),
        ("a.yaml", "- 1", "must hold sections"),
    ],
)
def test_unreadable_files(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        read_config(tmp_path / name)


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match="no such configuration file"):
        read_config(tmp_path / "none.yaml")


def test_every_setting_has_its_own_flag_and_help():
    specs = [(name, spec) for name, kind in sections().items() for spec in fields(kind)]
    flags = [argument_of(name, spec.name) for name, spec in specs]
    assert len(set(flags)) == len(flags)
    assert all(spec.metadata["help"] for _, spec in specs)


@pytest.mark.parametrize("name", ENGINES)
def test_resolved_engines_have_no_gaps_and_stay_as_they_are(name):
    resolved = resolve_engine(EngineConfig(name=name), MANY, own_start=False)
    assert resolve_engine(resolved, MANY, own_start=True) == resolved
    engine = built(resolved, RunSize(1000, n_steps=100, batch_size=100))
    assert isinstance(engine.init, Callable)
    if hasattr(engine, "start"):
        assert engine.start == resolved.start
    if hasattr(engine, "lr"):
        assert engine.lr == resolved.lr


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EngineConfig(name="sbnn", momentum=0.9), "sbnn with prior spike-slab has no `momentum`"),
        (EngineConfig(name="map", slab_std=1.0), "map with prior none has no `slab_std`"),
        (EngineConfig(name="sbnn", prior="normal"), "sbnn takes `prior` spike-slab"),
        (EngineConfig(name="map", local=True), "has no `local`"),
    ],
)
def test_settings_an_engine_cannot_use(config, message):
    with pytest.raises(UsageError, match=message):
        resolve_engine(config, MANY, own_start=False)


def test_bayes_by_backprop_has_no_local_noise():
    config = EngineConfig(name="flat-vi", prior="spike-slab")
    assert resolve_engine(config, MANY, own_start=False).local is False


def test_own_weights_are_kept_as_the_start():
    assert resolve_engine(EngineConfig(), MANY, own_start=True).start == "module"


def test_schedule_and_score_follow_the_engine():
    sbnn, plain = EngineConfig(name="sbnn"), EngineConfig(name="map")
    course = resolve_schedule(ScheduleConfig(), sbnn, MANY)
    assert (course.lr, course.kl, course.kl_warmup_epochs) == ("cosine", 0.3, 2.0)
    assert resolve_schedule(ScheduleConfig(), plain, MANY).kl == 1.0
    assert resolve_schedule(ScheduleConfig(), sbnn, replace(MANY, task="regression")).kl == 1.0
    assert resolve_pruning(PruningConfig(zeros=0.9), sbnn).score == "snr"
    assert resolve_pruning(PruningConfig(zeros=0.9), plain).score == "magnitude"
    assert resolve_pruning(PruningConfig(), plain).score is None


def test_defaults_are_a_valid_configuration():
    assert from_dict(to_dict(RunConfig()), "test") == RunConfig()


def test_samplers_count_in_steps_of_the_run():
    config = EngineConfig(name="sghmc", lr=0.5, burn_in=0.5, draws=5, anneal=2.0, cycles=4)
    size = RunSize(1000, n_steps=100, batch_size=100)
    engine = built(resolve_engine(config, MANY, own_start=False), size)
    assert engine.step_size == 0.5 / 1000
    assert (engine.chain.burn_in, engine.chain.thin, engine.chain.n_kept) == (50, 10, 5)
    assert engine.chain.cycle == 25
    assert engine.chain.cooling**10 == pytest.approx(0.5)
    assert engine.adapt == "sa"
    plain = resolve_engine(EngineConfig(name="sgld", prior="normal"), MANY, own_start=False)
    assert built(plain, size).adapt == "none"


def test_message_passing_counts_passes_and_units():
    resolved = resolve_engine(EngineConfig(name="tdamp"), MANY, own_start=True)
    size = RunSize(1000, n_steps=100, batch_size=100, keep_units=0.25)
    engine = built(resolved, size)
    assert (engine.keep, engine.prune_passes) == (0.25, (2, 6))
    assert recommended_epochs("tdamp", 500, 10) == recommended_batch_size("tdamp", 500) == 10
    assert recommended_batch_size("tdamp", 5000) == 100


@pytest.mark.parametrize(
    ("pruning", "name", "message"),
    [
        (PruningConfig(zeros=0.5, keep_units=0.5), "sbnn", "either `zeros` or `keep_units`"),
        (PruningConfig(zeros=0.5), "tdamp", "removes whole units: give `keep_units`"),
    ],
)
def test_pruning_an_engine_cannot_do(pruning, name, message):
    with pytest.raises(UsageError, match=message):
        resolve_pruning(pruning, EngineConfig(name=name))


def test_presets():
    assert (
        resolve_engine(EngineConfig(name="bmr", preset="paper"), MANY, own_start=False).start
        == "uniform"
    )
    horseshoe = EngineConfig(name="horseshoe", preset="paper")
    schedule = resolve_schedule(ScheduleConfig(), horseshoe, MANY)
    assert (schedule.lr, schedule.kl, schedule.kl_warmup_epochs) == ("constant", 1.0, 0.0)
    with pytest.raises(UsageError, match=r"sbnn has no `preset` paper \(map, flat-vi, bmr, horse"):
        resolve_engine(EngineConfig(preset="paper"), MANY, own_start=False)
    with pytest.raises(UsageError, match="give 1 or more"):
        resolve_engine(EngineConfig(name="sgld", anneal=0.9), MANY, own_start=False)


def test_the_four_methods_of_the_paper_are_its_own():
    from studies.bmr_images import Cell, setting

    names = {"map": "map", "flat-vi": "flat", "horseshoe": "tiered", "bmr": "bmr"}
    for name, method in names.items():
        config = EngineConfig(name=name, preset="paper")
        resolved = resolve_engine(config, RunSize(500, n_steps=100, batch_size=50), own_start=False)
        engine = built(resolved, RunSize(500, n_steps=100, batch_size=50))
        paper = setting(Cell("fashion-mnist", "mlp", method, "paper")).engine
        if name == "horseshoe":  # the study leaves its init_std, 0.1 in the paper, to `fit`
            paper = replace(paper, init_std=0.1)
        assert engine == complete(paper, RunSize(500, n_steps=100, batch_size=50)), name
    config = EngineConfig(name="flat-vi", preset="paper", prior="normal")
    with pytest.raises(UsageError, match="flat-vi means `prior` layer-scaled; remove yours"):
        resolve_engine(config, MANY, own_start=False)


def test_training_what_is_left_of_a_pruned_network_removes_nothing_more():
    size = RunSize(1000, n_steps=100, batch_size=100, may_prune=False)
    reduced = {
        name: built(resolve_engine(EngineConfig(name=name), MANY, own_start=False), size)
        for name in ("bmr", "tdamp")
    }
    assert reduced["bmr"].reduction is None
    assert reduced["tdamp"].keep == 1.0


@pytest.mark.parametrize(
    ("preset", "rule", "reduction"),
    [
        (None, None, Reduction()),
        (None, "none", None),
        ("paper", None, BMR.paper().reduction),
        ("paper", "savage-dickey", Reduction(start=0.0, end=1.0, kl=1.0)),
    ],
)
def test_what_model_reduction_is_told_to_do(preset, rule, reduction):
    config = resolve_engine(
        EngineConfig(name="bmr", preset=preset, rule=rule), MANY, own_start=False
    )
    size = RunSize(1000, n_steps=100, batch_size=100)
    engine = built(config, size)
    assert engine.reduction == reduction
    assert engine.coordinates == ("standard" if preset == "paper" else "weights")


def test_the_names_of_engines_are_those_of_the_table():
    assert get_args(EngineName) == tuple(ENGINES)
