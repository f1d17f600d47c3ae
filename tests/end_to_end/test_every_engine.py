"""Each engine the whole way on a tiny network: train, prune, compact, check, bundle, predict."""

import json
import shutil

import numpy as np
import pytest

from bayesieve.engines.recipes import ENGINES
from commands import as_json, ok, refused

NET = ("--data", "digits", "--net", "mlp:12", "--no-figures", "--threads", 1)
EPOCHS = {"tdamp": 1}
SAMPLERS = ("sgld", "sghmc")


def train(out, engine, *more, epochs=None):
    length = epochs or EPOCHS.get(engine, 8)
    return as_json("train", *NET, "--engine", engine, "--epochs", length, "--out", out, *more)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "new.npz"
    np.savez(path, x=np.random.default_rng(0).random((5, 1, 8, 8), dtype=np.float32))
    return path


@pytest.mark.parametrize("engine", ENGINES)
def test_from_training_to_predictions(engine, tmp_path, images):
    run, sparse, bundle = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    trained = train(run, engine)
    assert trained["error"] < 0.5  # guessing gives 0.9
    pruned = as_json("prune", run, "--keep-units", 0.5, "--finetune", 1, "--no-figures",
                     "--out", sparse)  # fmt: skip
    compacted = as_json("compact", sparse, "--posterior", "--out", bundle)
    before, after = compacted["compaction"]["parameters"]
    assert before == 12 * 65 + 130
    assert after <= 6 * 65 + 70  # less where an engine has removed inputs as well
    assert compacted["changed_predictions"] == 0
    assert compacted["compacted"]["error"] == pytest.approx(pruned["error"])
    assert as_json("verify", bundle, "--against", sparse)["ok"]
    ok("export", bundle, "--to", "bundle", "--out", tmp_path / "copy")
    ok("predict", tmp_path / "copy", images, "--samples", 4, "--out", tmp_path / "p.csv")
    header, *rows = (tmp_path / "p.csv").read_text().splitlines()
    assert len(rows) == 5
    assert "epistemic" in header


@pytest.mark.parametrize("engine", [name for name in ENGINES if name not in SAMPLERS])
def test_whole_units_go_while_training_and_can_be_compacted(engine, tmp_path):
    trained = train(tmp_path / "a", engine, "--keep-units", 0.5, epochs=3)
    assert trained["weights"] <= 6 * 65 + 70
    compacted = as_json("compact", tmp_path / "a", "--out", tmp_path / "b")
    assert compacted["compaction"]["parameters"][1] <= 6 * 65 + 70


@pytest.mark.parametrize("engine", SAMPLERS)
def test_chains_say_how_far_they_agree(engine, tmp_path):
    found = train(tmp_path / "a", engine, "--chains", 3, "--draws", 5, epochs=3)
    assert len(found["models"]) == 3
    assert (found["sampled"]["draws"], found["sampled"]["chains"]) == (15, 3)
    again = as_json("evaluate", tmp_path / "a", "--samples", 15)
    assert again["nll"] == pytest.approx(found["sampled"]["nll"], rel=1e-6)
    alone = as_json("evaluate", tmp_path / "a", "--samples", 5, "--member", 0)
    assert abs(alone["nll"] - again["nll"]) > 1e-4  # the other chains had a say
    assert json.loads((tmp_path / "a" / "chains.json").read_text())["n_chains"] == 3


def test_a_chain_keeps_no_more_draws_than_steps(tmp_path):
    train(tmp_path / "a", "sghmc", "--draws", 500, "--burn-in", 0.5, epochs=1)
    ok("evaluate", tmp_path / "a", "--samples", 4)


def test_a_table_gets_a_small_network_and_enough_steps(tmp_path):
    rows = "\n".join(f"{i},{i % 7},{0.5 * i}" for i in range(100))
    (tmp_path / "t.csv").write_text(f"a,b,y\n{rows}\n")
    plan = as_json("train", "--data", f"csv:{tmp_path / 't.csv'}", "--target", "y", "--dry-run")
    assert plan["config"]["net"]["name"] == "mlp:50"
    assert plan["config"]["engine"]["lr"] == 0.03
    assert plan["config"]["training"]["batch_size"] == 32
    assert plan["steps"] == 367 * 3  # 80 rows: the first whole pass after 1,100 steps
    images = as_json("train", "--data", "digits", "--dry-run")["config"]
    assert images["net"]["name"] == "mlp:400,400"
    assert images["schedule"]["kl"] == 0.1


@pytest.mark.parametrize("adapt", ["sa", "em"])
def test_a_regression_learns_the_sparse_prior_when_asked_to(adapt, tmp_path):
    rows = "\n".join(f"{i},{i % 7},{0.5 * i}" for i in range(60))
    (tmp_path / "t.csv").write_text(f"a,b,y\n{rows}\n")
    asked = ("train", "--data", f"csv:{tmp_path / 't.csv'}", "--target", "y", "--net", "mlp:4",
             "--engine", "sghmc", "--adapt", adapt, "--chains", 2, "--anneal", 1.01,
             "--steps", 40, "--no-figures")  # fmt: skip
    config = as_json(*asked, "--dry-run")["config"]
    assert config["engine"]["prior"] == "gaussian-laplace"
    assert config["engine"]["lr"] == 0.0005  # the task's, as with a normal prior
    assert config["engine"]["preconditioned"] is True
    assert config["net"]["learn_noise"] is True  # from the residuals
    as_json(*asked, "--out", tmp_path / "a")
    ok("evaluate", tmp_path / "a", "--samples", 4)


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    train(tmp_path / "a", "map", epochs=1)
    for name in ("metrics.json", "posterior.safetensors"):
        (tmp_path / "a" / name).unlink()
    assert "--resume" in refused(2, "evaluate", tmp_path / "a")


def test_a_run_that_ended_before_its_first_checkpoint_begins_anew(tmp_path):
    first = train(tmp_path / "a", "map", epochs=1)
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    for name in ("metrics.json", "posterior.safetensors"):
        (tmp_path / "a" / name).unlink()
    again = as_json("train", "--resume", "--no-figures", "--out", tmp_path / "a")
    assert again["nll"] == first["nll"]


def test_damage_is_named_and_comparisons_blame_nobody(tmp_path):
    train(tmp_path / "a", "map", epochs=1)
    train(tmp_path / "other", "map", "--seed", 1, epochs=1)
    ok("prune", tmp_path / "a", "--zeros", 0.5, "--no-figures", "--out", tmp_path / "b")
    ok("compact", tmp_path / "b", "--out", tmp_path / "c")
    message = refused(1, "verify", tmp_path / "c", "--against", tmp_path / "other")
    assert "differ" in message
    assert "report" not in message
    assert "is a bundle" in refused(2, "evaluate", tmp_path / "c")
    (tmp_path / "a" / "metrics.jsonl").write_text('{"epoch": ')
    page = tmp_path / "page.html"
    assert "metrics.jsonl is damaged" in refused(1, "report", tmp_path / "a", "-o", page)
    assert not page.exists()
