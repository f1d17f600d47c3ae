"""The image studies of the samplers on a few random images: every path, no real training."""

import json
import math
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from torch import Generator, nn

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Samples
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.images import image_recipe
from bayesieve.engines.map import MAP
from bayesieve.engines.sgmcmc import SGLD
from studies import aeb_images, aeb_resnet
from studies.harness import Run
from studies.record import read


def few_images(shape, n_train=24, n_test=12):
    source = Generator().manual_seed(0)

    def some(n):
        x = torch.rand(n, *shape, generator=source)
        return Examples(x, torch.randint(10, (n,), generator=source))

    recipe = image_recipe(shape, [0.0] * shape[0], [1.0] * shape[0])
    classes = tuple("abcdefghij")
    return DataSet("few", some(n_train), some(n_test), "classification", classes,
                   preprocessing=recipe)  # fmt: skip


@pytest.fixture
def digits(monkeypatch):
    monkeypatch.setattr(aeb_images, "load_data", lambda name: few_images((1, 28, 28)))


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.setattr(aeb_resnet, "load_data", lambda name: few_images((3, 32, 32)))


def study_run(budget=None, out=None):
    options = Namespace(budget=budget, device="cpu", quick=False, out=out)
    return Run("aeb_images", [], options)


def test_every_method_runs_and_leaves_a_row(digits, tmp_path, capsys):
    out = tmp_path / "x.json"
    names = ",".join(aeb_images.METHODS)
    aeb_images.main(["--methods", names, "--epochs", "1", "--chains", "2", "--out", str(out)])
    record = json.loads(out.read_text())
    assert [row["setting"]["method"] for row in record["rows"]] == list(aeb_images.METHODS)
    for row in record["rows"]:
        n_chains = 1 if row["setting"]["method"] in ("vanilla", "dropout", "sgd") else 2
        assert len(row["each"]) == n_chains
        assert row["kind"] == ("single" if n_chains == 1 else "ensemble")
        assert 0 <= row["metrics"]["accuracy"] <= 100
    assert record["command"].startswith("python -m studies.aeb_images --methods")
    assert "| mnist/sghmc-sa " in capsys.readouterr().out


def test_augmented_tasks_use_the_other_network_and_fill_with_black(digits):
    arguments = aeb_images.parser().parse_args(["--shift", "1", "--paper"])
    data, augment = aeb_images.prepared(arguments, aeb_images.TASKS["fashion-da"], None)
    black = (0 - few_images((1, 28, 28)).train.x.mean()) / data.preprocessing["std"][0]
    assert augment.fill == pytest.approx((black.item(),), abs=1e-3)
    assert (augment.shift, augment.erase) == (1, 0.5)
    setting = aeb_images.Setting("sghmc-sa", epochs=1, batch_size=12, n_kept=2)
    row, posterior = aeb_images.run_setting(
        "fashion-da", setting, data, augment, study_run(), "cpu"
    )
    assert "norm0.running_mean" in posterior.draw_buffers
    assert row["metrics"]["draws"] == 1  # one step after burn-in
    assert posterior.layout.n_sparse == 1600 * 256  # "fc1" alone


def test_attacks_are_drawn(digits, tmp_path):
    aeb_images.main(["--methods", "sgd,sghmc", "--epochs", "1", "--attack", "--figures",
                     str(tmp_path), "--out", str(tmp_path / "x.json")])  # fmt: skip
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    curve, metrics = rows[1]["detail"]["fgsm"], rows[1]["metrics"]
    assert [point["strength"] for point in curve] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert curve[0]["accuracy"] == pytest.approx(metrics["average"] / 100, abs=1e-5)
    assert metrics["attacked"] == curve[-1]["accuracy"]
    assert (tmp_path / "aeb_mnist_fgsm.png").stat().st_size > 10_000


def test_engines_are_scaled_by_the_number_of_images():
    setting = aeb_images.Setting("sgld-sa", lr=0.06, slab_var=0.25)
    engine = aeb_images.engine(setting, 60_000, 100)
    assert isinstance(engine, SGLD)
    assert isinstance(engine.prior, GaussianLaplace)
    assert engine.step_size == pytest.approx(4e-6)
    assert engine.prior.slab_std == 0.5
    assert engine.prior.other_std**-2 == pytest.approx(5e-4 * 60_000)
    assert isinstance(aeb_images.engine(aeb_images.Setting("dropout"), 10, 10), MAP)


def test_draws_are_kept_at_the_end_of_cycles():
    setting = aeb_images.Setting("sghmc", cycles=6)
    chain = aeb_images.engine(setting, 60_000, 600).chain
    ends = [step for step in range(301, 601) if chain.n_seen(torch.tensor(float(step + 1))) >
            chain.n_seen(torch.tensor(float(step)))]  # fmt: skip
    assert ends == [400, 500, 600]
    assert chain.n_kept == 3
    assert chain.factor(torch.tensor(400.0)).item() < 3e-4
    assert chain.factor(torch.tensor(401.0)).item() == 1


def test_chains_are_pooled_with_their_own_statistics(digits):
    arguments = aeb_images.parser().parse_args([])
    data, augment = aeb_images.prepared(arguments, aeb_images.TASKS["mnist-da"], None)
    setting = aeb_images.Setting("sghmc", epochs=2, batch_size=12, n_kept=2, chains=2)
    row, posterior = aeb_images.run_setting("mnist-da", setting, data, augment, study_run(), "cpu")
    assert row["metrics"]["draws"] == len(posterior.draws) == 4
    statistics = posterior.draw_buffers["norm4.running_mean"]
    assert statistics.shape == (4, 64)
    assert not torch.equal(statistics[1], statistics[3])
    prediction = predict(posterior, data.test.x, n_samples=4)
    labels = (prediction.label == data.test.y).double().mean().item()
    assert row["metrics"]["accuracy"] == pytest.approx(100 * labels, abs=1e-2)
    row, _ = aeb_images.run_setting("mnist-da", setting, data, augment, study_run(0.0), "cpu")
    assert row["setting"]["chains"] == len(row["each"]) == 1  # the budget is spent


def test_settings_are_the_papers_where_asked():
    options = ["--methods", "sghmc-sa,sgd", "--paper", "--cycles", "4", "--chains", "3"]
    arguments = aeb_images.parser().parse_args(options)
    chain, point = aeb_images.settings(arguments, aeb_images.TASKS["fashion"])
    assert (chain.lr, chain.temperature, chain.batch_size) == (0.03, 4e-4, 1000)
    assert (chain.cycles, chain.chains) == (4, 3)
    assert (point.cycles, point.chains, point.temperature) == (0, 1, 0.0)


def test_lists_are_combined_once_for_point_estimates(digits):
    arguments = aeb_images.parser().parse_args(
        ["--methods", "vanilla,sghmc", "--temperature", "0.1,0.01", "--prior", "1:0.1"]
    )
    task = aeb_images.TASKS["mnist"]
    numbers = [(s.method, s.temperature) for s in aeb_images.settings(arguments, task)]
    assert numbers == [("vanilla", 0.0), ("sghmc", 0.1), ("sghmc", 0.01)]
    arguments.methods = "dropout"
    (dropout,) = aeb_images.settings(arguments, aeb_images.TASKS["mnist-da"])
    for setting, rates in ((dropout, [0.1, 0.3]), (replace(dropout, method="vanilla"), [0.0, 0.0])):
        net = aeb_images.network(setting, (1, 28, 28), augmented=True)
        assert [layer.p for layer in net if isinstance(layer, nn.Dropout)] == rates
    arguments.methods = "sghcm"
    with pytest.raises(ValueError, match="aeb_images: method must be one of"):
        aeb_images.settings(arguments, task)


def test_the_residual_network_is_pruned_from_the_dense_one(pictures, tmp_path, capsys):
    out = tmp_path / "x.json"
    names = ",".join(aeb_resnet.METHODS)
    aeb_resnet.main(["--quick", "--methods", names, "--out", str(out), "--figures", str(tmp_path)])
    dense, *sparse = json.loads(out.read_text())["rows"]
    assert dense["metrics"]["zeros"] == 0
    for row in sparse:
        assert row["metrics"]["zeros"] == pytest.approx(0.9, abs=1e-4)
        assert row["metrics"]["draws"] >= 1
        assert 0 < row["metrics"]["prior_weight"] <= 1
    assert "| a-sghmc-sa/90 | 0.9" in capsys.readouterr().out
    assert (tmp_path / "aeb_resnet.png").stat().st_size > 10_000


def test_chains_of_several_seeds_are_pooled(pictures, tmp_path):
    folder, out = tmp_path / "draws", tmp_path / "pooled.json"
    for seed in ("0", "1"):
        aeb_resnet.main(
            ["--quick", "--methods", "a-sghmc-sa", "--seed", seed, "--keep", str(folder)]
        )
    aeb_resnet.main(["--quick", "--pool", str(folder), "--out", str(out)])
    rows = {row["name"]: row for row in read(out)["rows"]}
    assert rows.keys() == {"dense/0", "a-sghmc-sa/90"}
    row = rows["a-sghmc-sa/90"]
    assert row["seeds"] == [0, 1]
    assert row["metrics"]["accuracy"] == sum(one["accuracy"] for one in row["each"]) / 2
    assert row["metrics"]["pooled_draws"] == 2 * row["metrics"]["draws"]
    assert row["metrics"]["pooled_nll"] <= row["metrics"]["nll"]  # by Jensen's inequality


def test_pooling_needs_draws(pictures, tmp_path):
    with pytest.raises(ValueError, match="--keep"):
        aeb_resnet.main(["--quick", "--pool", str(tmp_path)])


def test_a_stored_dense_network_is_begun_from(pictures, tmp_path, monkeypatch):
    dense, out, figure = (tmp_path / name for name in ("dense", "x.json", "aeb_resnet.png"))
    options = ["--quick", "--methods", "a-sghmc-sa", "--dense", str(dense), "--out", str(out)]
    aeb_resnet.main(options)
    first = json.loads(out.read_text())["rows"]
    out.unlink()
    aeb_resnet.main(options)
    second = json.loads(out.read_text())["rows"]
    assert second[0] == first[0]  # read, not trained
    assert second[1]["metrics"]["nll"] == first[1]["metrics"]["nll"]
    labels = []  # one step is too short to see them in the scores
    soften = aeb_resnet.soften
    monkeypatch.setattr(aeb_resnet, "soften", lambda *of: labels.append(soften(*of)) or labels[-1])
    aeb_resnet.main([*options, "--distill", "0.5"])
    third = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in third[1:]] == ["a-sghmc-sa/90", "a-sghmc-sa/90/kd"]
    assert ((labels[0].y > 0.5).sum(1) == 1).all()  # the label has its half and more
    assert labels[0].y.max() < 1
    aeb_resnet.main(["--draw", str(out), "--figures", str(tmp_path)])
    assert figure.stat().st_size > 10_000
    with pytest.raises(ValueError, match="was trained and scored on"):
        aeb_resnet.read_draws(dense, few_images((3, 32, 32)), {"n_train": 25}, "cpu")


def test_the_sparse_layers_are_the_papers():
    data = few_images((3, 32, 32)).train
    problem = Problem(aeb_resnet.resnet20((3, 32, 32), 10), Categorical(), data,
                      roles=aeb_resnet.ROLES)  # fmt: skip
    layout = problem.layout
    assert layout.n_sparse == 267_264
    rest = {name for name in layout.names if layout.slices[name].start >= layout.n_sparse}
    assert {"conv1.weight", "stage2_1.shortcut.conv.weight", "out.weight"} <= rest


def test_a_draw_brings_its_own_statistics():
    data = few_images((3, 32, 32)).train
    problem = Problem(aeb_resnet.resnet20((3, 32, 32), 10), Categorical(), data)
    draws = torch.randn(3, problem.layout.size)
    one = {"norm1.running_mean": torch.arange(48.0).view(3, 16)}
    whole = Samples(problem.network, draws, None, problem.network.buffers(), one)
    _, _, last = aeb_resnet.single_draws(whole)
    assert torch.equal(last.mean, draws[2])
    assert last.buffers["norm1.running_mean"][0] == 32
    assert not last.draw_buffers


def test_the_priors_total_pull_is_the_papers():
    short = aeb_resnet.Setting("a-sghmc-sa", 90, 0.02, 1)
    factors = [aeb_resnet.Schedule(lr="cosine", hold=0.3).lr_scale(k / 5000) for k in range(5000)]
    total = sum(0.02 * factor for factor in factors) * aeb_resnet.pull(short, 5000)
    assert total == pytest.approx(3.605, rel=1e-3)
    assert aeb_resnet.pull(short, 10) == 1.0


@pytest.mark.parametrize("masks", ["chain", "cycle", "draw"])
def test_draws_have_the_mask_of_their_chain_or_of_their_own(pictures, masks):
    data = aeb_resnet.load_data("cifar10")
    dense = aeb_resnet.Setting("dense", 0, 0.1, 3, 10, cycles=3)
    row, start = aeb_resnet.run_setting(dense, data, None, 0, "cpu")
    assert len(start.draws) == 2  # of all cycles but the first
    sparse = aeb_resnet.Setting("a-sghmc-sa", 90, 1e-3, 6, 10, cycles=3, scope="global",
                                decay=5e-4, masks=masks)  # fmt: skip
    row, sieved = aeb_resnet.run_setting(sparse, data, start, 0, "cpu")
    metrics, kept = row["metrics"], sieved.draws != 0
    assert row["name"] == "a-sghmc-sa/90" + ("" if masks == "chain" else f"/mask of each {masks}")
    assert metrics["draws"] == len(kept) == {"chain": 2, "cycle": 3, "draw": 2}[masks]
    assert metrics["steps"] == 6 * math.ceil(len(data.train) / 10)
    assert metrics["zeros"] == pytest.approx(0.9, abs=1e-4)
    tenth = torch.full((len(kept),), 0.1, dtype=torch.float64)
    assert torch.allclose(kept.double().mean(1), tenth, atol=4e-3)  # factors of norms start at 0
    present = float(kept.any(0).double().mean())
    assert metrics["zeros_of_all"] == pytest.approx(1 - present, abs=4e-3)
    assert torch.equal(kept[0], kept[1]) == (masks == "chain")
    assert all(len(value) == len(kept) for value in sieved.draw_buffers.values())
    if masks == "draw":  # each is near the dense draw that it began at
        distance = torch.stack([((w - start.draws) * (w != 0)).norm(dim=1) for w in sieved.draws])
        assert torch.equal(distance.argmin(1), torch.arange(2))
