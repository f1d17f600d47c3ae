"""The VGG study on images small in number and size."""

import json

import pytest
import torch

from bayesieve.core.priors import SpikeSlab
from bayesieve.data.examples import DataSet, Examples
from pages.studies import vgg_table
from problems import normal32, seeded
from records import record_of
from studies import sbnn_vgg
from studies.record import make_row, write
from studies.reproduce.table import read_findings
from studies.sbnn_vgg import Setting, engine, run_setting, vgg_like

STAGES = ((4, 4), (8,))


def examples(n, seed):
    colours = normal32(10, 3, 1, 1, seed=0)  # shifting and mirroring keep them
    y = torch.randint(10, (n,), generator=seeded(seed))
    return Examples(colours[y] + 0.3 * normal32(n, 3, 8, 8, seed=seed), y)


def images(n=240):
    recipe = {"kind": "image", "scale": 255.0, "mean": [0.5] * 3, "std": [0.25] * 3}
    classes = tuple("0123456789")
    return DataSet("toy", examples(n, 1), examples(60, 2), "classification", classes,
                   preprocessing=recipe)  # fmt: skip


def test_the_network_is_the_papers():
    net = vgg_like((3, 32, 32), 10)
    kinds = [type(layer).__name__ for layer in net]
    assert (kinds.count("Conv2d"), kinds.count("Linear")) == (13, 2)
    assert kinds.count("BatchNorm2d") + kinds.count("BatchNorm1d") == 14
    assert "Dropout" not in kinds
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_prior_is_the_papers():
    prior = engine(Setting(98.5, 1, 1e-3)).prior
    assert isinstance(prior, SpikeSlab)
    numbers = (prior.slab_std, prior.spike_std, prior.slab_prob)
    assert numbers == pytest.approx((1.0, 0.0067379, 0.5), rel=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_sparse_run_starts_from_the_dense_network(precision):
    data = images()
    dense = Setting(0.0, 15, 0.05, batch_size=40, stages=STAGES, precision=precision)
    row, start = run_setting(dense, data, None, 0, "cpu")
    assert row["metrics"]["error"] < 50
    assert row["metrics"]["zeros"] == 0
    # one epoch with a learning rate of almost nothing: the mask is all that changes
    still = Setting(60.0, 1, 1e-12, kl=0.01, batch_size=40, stages=STAGES, precision=precision)
    row, sparse = run_setting(still, data, start, 0, "cpu")
    assert row["metrics"]["zeros"] == pytest.approx(0.6, abs=0.01)
    part = sparse.layout.sparse
    kept = sparse.mean[part] != 0
    assert torch.allclose(sparse.mean[part][kept], start.mean[part][kept], atol=1e-6)


def test_the_command_writes_a_record_that_reproduce_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sbnn_vgg, "load_data", lambda name: images())
    monkeypatch.setattr(sbnn_vgg, "STAGES", ((128, 128), (512,)))
    monkeypatch.setattr(sbnn_vgg, "_QUICK_EPOCHS", 4)
    out = tmp_path / "record.json"
    folder = str(tmp_path)
    sbnn_vgg.main(["--quick", "--limit", "600", "--device", "cpu", "--figures", folder, "--out",
                   str(out)])  # fmt: skip
    rows = json.loads(out.read_text())["rows"]
    assert [row["setting"]["zeros"] for row in rows] == [0.0, 98.5]
    assert (tmp_path / "sbnn_vgg.png").stat().st_size > 10_000
    assert "| renewed_error |" in capsys.readouterr().out
    again = tmp_path / "again"
    sbnn_vgg.main(["--draw", str(out), "--figures", str(again)])
    assert (again / "sbnn_vgg.png").read_bytes() == (tmp_path / "sbnn_vgg.png").read_bytes()
    result = read_findings(tmp_path, quick=True)
    assert result["sbnn-vgg", "98.5", "error"].value == rows[1]["metrics"]["error"]
    assert result["sbnn-vgg", "0", "error"].value == rows[0]["metrics"]["error"]


def test_a_second_call_trains_the_dense_network_for_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sbnn_vgg, "load_data", lambda name: images())
    monkeypatch.setattr(sbnn_vgg, "STAGES", ((128, 128), (512,)))
    monkeypatch.setattr(sbnn_vgg, "_QUICK_EPOCHS", 1)
    trained, run = [], run_setting

    def spy(setting, *rest):
        trained.append((setting.zeros, setting.kl))
        return run(setting, *rest)

    monkeypatch.setattr(sbnn_vgg, "run_setting", spy)
    call = ["--quick", "--device", "cpu", "--out", str(tmp_path / "record.json")]
    sbnn_vgg.main(call)
    sbnn_vgg.main(call)
    assert trained == [(0.0, 0.0), (98.5, 0.01)]
    sbnn_vgg.main([*call, "--kl", "0.01,0.1"])
    assert trained[2:] == [(0.0, 0.0), (98.5, 0.1)]
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert [row["setting"]["kl"] for row in rows] == [0.0, 0.01, 0.1]


def test_a_picture_needs_a_folder_and_a_sparse_network(tmp_path):
    record = tmp_path / "record.json"
    row = make_row("0", {"zeros": 0.0}, [{"error": 9.0}], seeds=1)
    write(record, record_of("sbnn_vgg", [row]))
    with pytest.raises(ValueError, match="no sparse network"):
        sbnn_vgg.main(["--draw", str(record), "--figures", str(tmp_path)])


def test_sparse_networks_beside_the_papers():
    metrics = {"zeros": 0.985, "weights": 224816, "error": 9.5, "renewed_error": 9.6, "nll": 0.31,
               "ece": 0.02}  # fmt: skip
    row = make_row("98.5", {"zeros": 98.5, "epochs": 30}, [metrics], seeds=1, seconds=99.6)
    other = {**row, "setting": {"zeros": 90.0, "epochs": 30}}
    first, second = vgg_table([row, other]).splitlines()[2:]
    assert first == "| 98.5 % | 224,816 | 30 | 9.50 % | 9.60 % | 0.310 | 0.020 | 8.7 % | 100 |"
    assert second.split("|")[8].strip() == ""
    assert vgg_table([]) == ""


def test_records_of_single_seeds_become_one(tmp_path):
    parts = []
    for seed, error in enumerate((6.0, 8.0)):
        row = make_row("97", {"zeros": 97.0}, [{"error": error}], seeds=[seed], seconds=2.0)
        parts.append(tmp_path / f"{seed}.json")
        write(parts[-1], record_of("sbnn_vgg", [row], data="CIFAR-10"))
    out = tmp_path / "joined.json"
    sbnn_vgg.main(["--join", *map(str, parts), "--out", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["seeds"], row["metrics"]["error"], row["seconds"]) == ([0, 1], 7.0, 4.0)
    with pytest.raises(ValueError, match="in two of the parts"):
        sbnn_vgg.main(["--join", str(parts[0]), str(parts[0])])
