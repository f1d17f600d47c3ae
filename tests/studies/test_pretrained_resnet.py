"""The study of networks that others have trained, on weights and images made here."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from bayesieve import predict
from problems import few_images
from studies import pretrained_resnet as study
from studies.pretrained_resnet import ResNet, Setting, point_of, problem_of, sieved_once


def images(n=40):
    return few_images(n, n, (3, 8, 8), noise=1.0)


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A folder with a file of weights, and few small images in place of CIFAR-10."""
    torch.manual_seed(0)
    (tmp_path / "pretrained").mkdir()
    for depth in (20, 8):  # the small one for what is slow
        net = ResNet(depth)
        path = tmp_path / "pretrained" / f"resnet{depth}-cifar10.safetensors"
        save_file(net.state_dict(), path)
    monkeypatch.setattr(study, "data_root", lambda: tmp_path)
    monkeypatch.setattr(study, "load_data", lambda name: images())
    return net


def test_the_network_has_the_published_sizes():
    sizes = {depth: sum(p.numel() for p in ResNet(depth).parameters()) for depth in (20, 56)}
    assert sizes == {20: 269_722, 56: 853_018}


def test_images_are_scaled_as_the_published_networks_expect_them():
    data = images()
    pixels = data.train.x * 0.25 + 0.5
    mean = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
    std = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
    assert torch.allclose(study.as_trained(data).train.x, (pixels - mean) / std, atol=1e-5)


def test_the_start_is_the_published_network(stranger):
    data = study.as_trained(images())
    problem = problem_of(Setting(8, "dense"), data, "cpu")
    stranger.eval()
    with torch.no_grad():
        expected = stranger(data.test.x)
    probabilities = predict(point_of(problem), data.test.x).probs
    assert torch.allclose(probabilities.float(), expected.softmax(1), atol=1e-5)


@pytest.mark.parametrize("way", study.WAYS)
def test_weights_go_once_in_every_way(stranger, way):
    data = study.as_trained(images(4))
    few = [Setting(8, "once", zeros, way) for zeros in (50.0, 80.0)]
    problem = problem_of(few[0], data, "cpu")
    half, most = sieved_once(problem, few)
    weights = problem.initial
    for model, zeros in ((half, 0.5), (most, 0.8)):
        kept = model.posterior.mean != 0
        assert float((~kept).float().mean()) == pytest.approx(zeros, abs=6e-3)  # norms start at 0
        assert kept[problem.layout.slices["conv1.weight"]].all()  # the first layer stays
        if way != "unit":  # the rest of a unit follows the weights that go
            assert torch.equal(model.posterior.mean[kept], weights[kept])


def test_inner_maps_go_in_the_first_cycle_of_a_chain(stranger):
    data = study.as_trained(images())
    setting = Setting(8, "sampled", 50.0, lr=1e-3, epochs=3, batch_size=20, cycles=3)
    model = study.sampled(setting, problem_of(setting, data, "cpu"), seed=0)
    draws = model.posterior.draws
    assert len(draws) == 2  # at the ends of the second and third cycle
    assert torch.equal(draws[0] != 0, draws[1] != 0)  # one mask
    blocks = [name for name in model.layout.names if name.endswith(".conv1.weight")]
    for name in blocks:
        maps = draws[:, model.layout.slices[name]].view(2, -1, 9).any(2)
        n_out, n_in = model.layout.shapes[model.layout.names.index(name)][:2]
        assert (maps.view(2, n_out, n_in).any(2).sum(1) == n_out // 2).all()
    scores = study.scored(model, data)
    assert scores["zeros"] == pytest.approx(float((draws[0] == 0).float().mean()))
    assert scores["macs"] < 0.6
    assert {"accuracy", "single", "nll", "ece"} <= scores.keys()


def test_inner_maps_go_while_the_network_is_tuned(stranger):
    data = study.as_trained(images())
    setting = Setting(8, "structured", 50.0, lr=1e-4, kl=0.02, epochs=1, batch_size=20)
    model = study.tuned(setting, problem_of(setting, data, "cpu"), 0)
    tensors = model.layout.unflatten(model.posterior.mean)
    inner = tensors["layer3.0.conv1.weight"]
    assert int((inner.flatten(1) != 0).any(1).sum()) == 32
    assert study.scored(model, data)["macs"] == pytest.approx(0.52, abs=0.03)


def test_evidence_removes_weights_and_signal_to_noise_what_it_leaves_too_many(stranger):
    data = study.as_trained(images())
    setting = Setting(8, "reduced", 80.0, "snr", 2, lr=0.01, kl=0.01, init_std=0.05, batch_size=20)
    model = study.tuned(setting, problem_of(setting, data, "cpu"), 0)
    assert model.zeros >= 0.8 - 1e-3
    layout, kept = model.layout, model.posterior.mean != 0
    assert kept[layout.slices["conv1.weight"]].all()  # the first layer stays
    assert 0 < float(kept[layout.slices["layer3.0.conv2.weight"]].float().mean()) < 0.5
    reduction = study.engine_of(setting).reduction
    assert (reduction.end, reduction.kl) == (setting.end, 1.0)  # one weight of the KL throughout


def test_a_sieved_network_is_scored_by_draws_and_with_statistics_of_its_mean_too(stranger):
    data = study.as_trained(images())
    setting = Setting(8, "tuned", 50.0, "snr", 1, lr=1e-3, kl=0.02, batch_size=20)
    model = study.tuned(setting, problem_of(setting, data, "cpu"), 0)
    scores = study.scored(model, data, n_draws=2)
    module = model.to_module()
    for norm in module.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.momentum = 1.0  # forget what training has seen
    with torch.no_grad():
        module.train()(data.train.x)  # in one batch
        logits = module.eval()(data.test.x)
    nll = torch.nn.functional.cross_entropy(logits, data.test.y)
    assert scores["renewed_nll"] == pytest.approx(float(nll), rel=1e-4)
    assert scores["renewed_nll"] != pytest.approx(scores["nll"], rel=1e-4)
    assert scores["draws_nll"] != scores["nll"]


def test_the_command_writes_a_record(stranger, tmp_path):
    out = tmp_path / "record.json"
    study.main(["--quick", "--parts", "tuned", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["resnet20/dense", "resnet20/tuned/snr/80"]
    assert rows[1]["metrics"]["zeros"] == pytest.approx(0.8, abs=1e-3)
    study.main(["--quick", "--parts", "tuned", "--out", str(out)])  # nothing is run again
    assert json.loads(out.read_text())["rows"] == rows


def test_settings_are_tried_on_a_network_that_has_not_seen_the_held_out_images(
    stranger, tmp_path, monkeypatch
):
    out, begun = tmp_path / "record.json", []
    monkeypatch.setattr(study, "splits", lambda data, **options: data)
    tuned = study.tuned

    def watched(setting, problem, seed):
        begun.append(problem)
        return tuned(setting, problem, seed)

    monkeypatch.setattr(study, "tuned", watched)
    monkeypatch.setattr(study, "_QUICK", (40, 40))
    kept = tmp_path / "stand-in.safetensors"
    flags = ["--quick", "--depths", "20", "--parts", "tuned", "--stand-in", str(kept)]
    flags += ["--out", str(out)]
    study.main([*flags, "--held-out", "--lr", "0.001,0.002", "--hold", "0"])
    rows = json.loads(out.read_text())["rows"]
    assert [row["setting"]["stand_in"] for row in rows] == [1, 1, 1]
    assert rows[1]["setting"]["hold"] == 0.0
    first, second = (problem.initial for problem in begun)
    assert torch.equal(first, second)  # trained once
    net = ResNet(20)
    net.load_state_dict(load_file(kept))
    assert torch.equal(first, begun[0].network.weights_of(net))
    with pytest.raises(SystemExit, match="--held-out"):
        study.main(flags)
    longer = Setting(20, "tuned", stand_in=2)
    with pytest.raises(ValueError, match="had 1 passes of training, not 2"):
        study.stand_in(longer, images(), "cpu", kept)
    with pytest.raises(SystemExit):
        study.main([*flags, "--held-out", "--stand-in-epochs", "0"])


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="resnet56-cifar10"):
        study.published(56, tmp_path)
