"""`bayesieve sieve`: trained weights in, an ordinary run folder out."""

import json
from importlib import import_module

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from bayesieve.data import load_data
from bayesieve.nets import mlp
from commands import as_json, ok, refused
from zoo import built

NET, N_BIASES = "mlp:24", 34


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The state dict of a small network after a minute's worth of plain training, as a file."""
    data = load_data("digits").train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = mlp(tuple(data.x.shape[1:]), 10, widths=(24,))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(80):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.x), data.y).backward()
            optimizer.step()
    path = tmp_path_factory.mktemp("given") / "model.safetensors"
    save_file(model.state_dict(), path)
    return path


def sieve(path, out, *more):
    return ("sieve", path, "--net", NET, "--data", "digits", "--out", out, "--no-figures", *more)


def test_examples_set_apart_decide_and_next_to_nothing_is_lost(tmp_path, trained):
    result = as_json(*sieve(trained, tmp_path / "a"))
    assert result["dense"]["zeros"] == 0
    assert 0.4 < result["zeros"] < 0.9
    assert result["held_out"]["zeros"] == pytest.approx(result["zeros"])
    assert result["held_out"]["lost"] <= 0.01
    assert result["nll"] < result["dense"]["nll"] + 0.03
    assert result["error"] < result["dense"]["error"] + 0.01
    text = (tmp_path / "a" / "report.md").read_text(encoding="utf-8")
    assert "nats per held-out example (allowed 0.01)" in text
    record = json.loads((tmp_path / "a" / "config.json").read_text(encoding="utf-8"))["record"]
    assert record["rule"] == {"max_loss": 0.01, "curvature": "unit", "seed": 0}


def test_a_larger_loss_allows_more_zeros(tmp_path, trained):
    results = [
        as_json(*sieve(trained, tmp_path / loss, "--max-loss", loss)) for loss in ("0", "0.1")
    ]
    assert results[0]["zeros"] < results[1]["zeros"]
    said = ok(*sieve(trained, tmp_path / "b")).stderr
    assert "cost on training examples set apart: " in said


def test_the_evidence_decides_if_asked_to(tmp_path, trained):
    result = as_json(*sieve(trained, tmp_path / "a", "--rule", "savage-dickey"))
    assert 0.2 < result["zeros"] < 0.99
    assert "held_out" not in result
    assert result["curve"][0]["zeros"] == 0
    text = (tmp_path / "a" / "report.md").read_text(encoding="utf-8")
    assert f"trained weights of {trained.name}, not trained again" in text
    assert "epochs" not in text
    rows = [line.split(" | ") for line in text.splitlines() if ".weight | " in line]
    assert sum(int(kept.replace(",", "")) for _, kept, *_ in rows) == result["weights"] - N_BIASES


def test_the_result_is_a_run_that_other_commands_take(tmp_path, trained):
    out = tmp_path / "a"
    result = as_json(*sieve(trained, out, "--zeros", "0.5", "--labels", "exact"))
    assert result["zeros"] == pytest.approx(0.5, abs=0.01)
    again = as_json("evaluate", out)
    assert again["error"] == result["error"]
    more = as_json("prune", out, "--zeros", "0.7", "--no-figures", "--out", tmp_path / "b")
    assert more["zeros"] == pytest.approx(0.7, abs=0.01)
    tuned = as_json("prune", out, "--zeros", "0.7", "--finetune", "1", "--no-figures",
                    "--out", tmp_path / "c")  # fmt: skip
    assert tuned["zeros"] == pytest.approx(0.7, abs=0.01)
    ok("compact", out, "--out", tmp_path / "small")


def test_a_unit_makes_up_for_what_it_loses(tmp_path, trained):
    found = {
        way: as_json(*sieve(trained, tmp_path / way, "--zeros", "0.8", "--curvature", way))
        for way in ("unit", "diagonal")
    }
    assert found["unit"]["zeros"] == pytest.approx(found["diagonal"]["zeros"], abs=0.01)
    assert found["unit"]["error"] < found["diagonal"]["error"]


def test_too_deep_a_cut_is_told_and_a_light_one_is_not(tmp_path, trained):
    said = {
        zeros: ok(*sieve(trained, tmp_path / zeros, "--zeros", zeros)).stderr
        for zeros in ("0.2", "0.95")
    }
    assert "nats per example with 95.0% zeros" in said["0.95"]
    assert "--zeros 0.950 --finetune 5" in said["0.95"]
    assert "nats" not in said["0.2"]


def test_a_threshold_of_0_removes_nothing(tmp_path, trained):
    assert as_json(*sieve(trained, tmp_path / "a", "--threshold", "0"))["zeros"] == 0


def test_a_threshold_near_1_removes_more(tmp_path, trained):
    results = [
        as_json(*sieve(trained, tmp_path / name, "--threshold", name)) for name in ("0.1", "0.99")
    ]
    assert results[0]["zeros"] < results[1]["zeros"]


def fitted(model, x, y, loss):
    """The model after 150 steps of plain training on all examples."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss(model(x).squeeze(1), y).backward()
        optimizer.step()
    return model


def test_a_regression_is_sieved_at_the_noise_its_weights_leave(tmp_path):
    """Noise as large as the target itself would call most weights superfluous."""
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tanh(2 * x[:, 0]) + x[:, 1]
    rows = [f"{a},{b},{c},{d}" for a, b, c, d in torch.column_stack([x, y]).tolist()]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["a,b,c,y", *rows]), encoding="utf-8")
    data = load_data(f"csv:{table}", target="y").train
    model = built(
        lambda: fitted(mlp((3,), 1, widths=(20,)), data.x, data.y, nn.functional.mse_loss)
    )
    path, out = tmp_path / "model.safetensors", tmp_path / "a"
    save_file(model.state_dict(), path)
    result = as_json(
        "sieve", path, "--net", "mlp:20", "--data", f"csv:{table}", "--target", "y", "--out", out,
        "--no-figures",
    )  # fmt: skip
    with torch.no_grad():
        left = (model(data.x)[:, 0] - data.y).square().mean().sqrt().item()
    assert left < 0.2  # of targets with variance 1
    found = json.loads((out / "config.json").read_text(encoding="utf-8"))["net"]["noise_std"]
    assert found == pytest.approx(left, rel=1e-4)
    assert result["zeros"] > 0.05
    assert result["rmse"] < 1.5 * result["dense"]["rmse"]


NORMED = """
from torch import nn

def small(shape, n):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, n)
    )
"""


def test_batchnorm_statistics_are_renewed_when_asked_and_the_flag_is_named(tmp_path, monkeypatch):
    (tmp_path / "normed.py").write_text(NORMED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    data = load_data("digits").train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = fitted(import_module("normed").small((1, 8, 8), 10), data.x, data.y,
                       nn.functional.cross_entropy)  # fmt: skip
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    given = ("sieve", "model.safetensors", "--net", "module:normed.small", "--data", "digits",
             "--zeros", "0.7", "--curvature", "diagonal", "--no-figures", "--json")  # fmt: skip
    done = ok(*given, "--out", "a"), ok(*given, "--out", "b", "--reestimate-batchnorm")
    old, new = (json.loads(run.stdout) for run in done)
    assert new["weights"] == old["weights"]
    assert new["nll"] < 0.7 * old["nll"]
    assert "(--reestimate-batchnorm)" in done[0].stderr
    assert "(--reestimate-batchnorm)" not in done[1].stderr


def with_change(trained, path, change):
    from safetensors.torch import load_file

    weights = load_file(trained)
    change(weights, next(iter(weights)))
    save_file(weights, path)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, name: w.pop(name), "lacks"),
        (lambda w, name: w.update({name: torch.zeros(3)}), "has shape [3]"),
        (lambda w, name: w.update(extra=torch.zeros(1)), "has 'extra', which --net has not"),
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, trained, change, message):
    path = with_change(trained, tmp_path / "other.safetensors", change)
    assert message in refused(2, *sieve(path, tmp_path / "a"))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (("--zeros", "0.5", "--threshold", "0.5"), 2, "give one of --max-loss, --zeros, and"),
        (("--max-loss", "0.5", "--rule", "hierarchical"), 2, "give one of --max-loss, --zeros"),
        (("--max-loss", "-1"), 2, "--max-loss must be >= 0"),
        (("--zeros", "1.5"), 2, "zeros must be between 0 and 1"),
        (("--rule", "savage"), 2, "Did you mean 'savage-dickey'"),
        (("--curvature", "full"), 2, "--curvature must be one of unit, diagonal"),
        (("--labels", "all"), 2, "--labels must be one of exact, sampled"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, trained, more, code, message):
    assert message in refused(code, *sieve(trained, tmp_path / "a", *more))
    assert not (tmp_path / "a").exists()


def test_a_file_that_is_no_safetensors_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"nothing of the kind")
    assert "cannot be read as safetensors" in refused(2, *sieve(path, tmp_path / "a"))
    assert "there is no file" in refused(2, *sieve(tmp_path / "none", tmp_path / "a"))


def test_a_finished_run_is_not_overwritten(tmp_path, trained):
    ok(*sieve(trained, tmp_path / "a"))
    assert "holds a finished run" in refused(2, *sieve(trained, tmp_path / "a"))
    ok(*sieve(trained, tmp_path / "a", "--force"))
