"""`bayesieve report`: from run folders to one page, and JavaScript that agrees with torch."""

import json
import os
import subprocess
import sys
import webbrowser

import pytest
import torch
from safetensors.torch import save_file

import bayesieve as bs
from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Categorical
from bayesieve.nets import lenet_300_100, mlp
from bayesieve.report import collect as collecting
from bayesieve.report.curve import further_masks
from bayesieve.report.embed import embed
from bayesieve.report.source import Limits, Source
from bayesieve.runs import load, report
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.page import read_source
from bayesieve.runs.run import BEFORE, save_model
from commands import as_json, call, ok, refused
from reports import node

TINY = ["--data", "digits", "--net", "mlp:16", "--device", "cpu", "--no-figures", "--lr", "1e-2"]
CLASSES = """
    const network = loadNetwork(given.network);
    return given.x.map((x) => probabilities(forward(network, x), network.output));
"""


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "dense"
    ok("train", *TINY, "--epochs", "5", "--out", out)
    return out


@pytest.fixture(scope="module")
def pruned(dense):
    out = dense.parent / "pruned"
    ok("prune", dense, "--zeros", "0.8", "--no-figures", "--out", out)
    return out


def embedded(text):
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start : text.index("</script>", start)])


def test_a_page_and_its_data(pruned, tmp_path):
    out, data = (tmp_path / "new" / name for name in ("r.html", "r.json"))
    found = as_json("report", pruned, "-o", out, "--points", 5, "--data", data)
    text = out.read_text(encoding="utf-8")
    assert found["bytes"] == len(text.encode()) < 3_000_000
    assert embedded(text) == json.loads(data.read_text())
    (run,) = embedded(text)["runs"]
    assert found["runs"][0]["embedded"]
    assert len(run["curve"]["points"]) == 5
    assert run["headline"]["before"]["name"] == "before pruning"  # prune remembers where from
    metrics = json.loads((pruned / "metrics.json").read_text())
    assert run["headline"]["after"]["quality"]["error"] == pytest.approx(metrics["error"], rel=1e-5)
    assert run["headline"]["before"]["quality"]["error"] == pytest.approx(
        metrics["dense"]["error"], rel=1e-5
    )
    assert run["provenance"]["command"].startswith("bayesieve ")
    assert set(run["provenance"]["hashes"]) == {
        "posterior.safetensors", "config.json", "metrics.json", "curve.json",
    }  # fmt: skip


def test_open_makes_a_page_that_is_missing_and_shows_it(pruned, monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not shown.append(address))
    (pruned / "report.html").unlink(missing_ok=True)
    for _ in range(2):  # the second time it is there
        assert ok("open", pruned).stdout.strip() == str(pruned / "report.html")
    assert shown == [(pruned / "report.html").as_uri()] * 2
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert "no browser was found" in ok("open", pruned / "report.html").stderr
    assert "is not a run folder" in refused(2, "open", pruned.parent / "none")


def test_watch_shows_where_a_run_is(dense):
    seen = as_json("watch", dense)
    assert (seen["epoch"], seen["epochs"], seen["finished"]) == (5, 5, True)
    assert seen["seconds_left"] == 0
    text = ok("watch", dense, "--once").stdout
    assert text.startswith(f"{dense}: epoch 5 of 5, 100 %")
    assert "log-likelihood" in text
    assert "is not a run folder" in refused(2, "watch", dense.parent)


def test_what_was_collected_once_is_not_computed_again(pruned, tmp_path, monkeypatch):
    first = as_json("report", pruned, "--points", 3)
    monkeypatch.setattr(collecting, "collect_run", None)
    again = as_json("report", pruned, "--points", 3, "-o", tmp_path / "r.html")
    assert again["runs"] == first["runs"]
    made = (pruned / "report.html").read_text()
    assert (tmp_path / "r.html").read_text() == made
    monkeypatch.undo()
    # another number of positions, or a page that is no page, is computed
    assert as_json("report", pruned, "--points", 2)["runs"][0]["points"] == 2
    (pruned / "report.html").write_text('<script type="application/json" id="data">[</script>')
    assert as_json("report", pruned, "--points", 2)["runs"][0]["points"] == 2


def test_a_page_that_is_stored_loads_no_library_it_does_not_need(tmp_path):
    rows = [f"{i},{i * 7 % 5},{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,z,y", *rows]) + "\n")
    table = ["--data", f"csv:{tmp_path / 't.csv'}", "--target", "y", *TINY[2:]]
    ok("train", *table, "--epochs", "1", "--out", tmp_path / "run")
    asked = ["report", str(tmp_path / "run"), "--device", "cpu", "--points", "2"]
    ok(*asked)
    code = (
        "import gc, sys; from bayesieve.cli.main import app; app(sys.argv[1:], standalone_mode=0); "
        "print(*{'scipy', 'matplotlib', 'sklearn', 'pandas', 'torch._dynamo'} & {*sys.modules}); "
        "print('torch' in sys.modules, gc.isenabled(), gc.get_freeze_count() > 0)"
    )
    command = [sys.executable, "-c", code, *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "testing" not in done.stderr  # it was stored
    assert done.stdout.splitlines()[-2:] == ["", "True True True"]


def test_checks_are_printed_and_are_the_exit_code(pruned, tmp_path):
    found = call("report", pruned, "--points", 4, "-o", tmp_path / "r.html", "--check")
    assert found.exit_code == 1  # 5 epochs of training are too few to be as accurate
    assert "As accurate as before pruning?" in found.stdout
    assert "testing" in found.stderr


def test_fewer_test_examples(pruned, tmp_path):
    data = tmp_path / "r.json"
    ok("report", pruned, "-o", tmp_path / "r.html", "--points", 2, "--test-examples", 50,
       "--data", data)  # fmt: skip
    (run,) = json.loads(data.read_text())["runs"]
    assert run["data"]["n_test"] == run["headline"]["after"]["quality"]["n_examples"] == 50


def test_without_a_place_the_page_goes_into_the_run(dense):
    ok("report", dense, "--points", 3)
    assert (dense / "report.html").is_file()


def test_several_runs_and_equal_names(dense, pruned, tmp_path):
    out = tmp_path / "r.html"
    found = as_json("report", dense, pruned, dense, "-o", out, "--points", 3)
    assert [run["name"] for run in found["runs"]] == ["dense (1)", "pruned", "dense (2)"]


def test_what_is_refused(dense, tmp_path):
    assert "give the page of several runs a place" in refused(2, "report", dense, dense)
    assert "is not a run folder" in refused(2, "report", tmp_path, "-o", tmp_path / "r.html")
    assert "is a folder" in refused(2, "report", dense, "-o", tmp_path)
    assert not (tmp_path / "r.html").exists()
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.json").write_text((dense / "config.json").read_text())
    assert "is not a finished run" in refused(2, "report", unfinished)


def test_another_run_to_compare_with(dense, pruned, tmp_path):
    data = tmp_path / "r.json"
    ok("report", pruned, "--before", dense, "-o", tmp_path / "r.html", "--points", 3,
       "--data", data)  # fmt: skip
    (run,) = json.loads(data.read_text())["runs"]
    metrics = json.loads((dense / "metrics.json").read_text())
    before = run["headline"]["before"]
    assert before["name"] == "run dense"
    assert before["quality"]["error"] == pytest.approx(metrics["error"], rel=1e-5)
    rows = [f"{i % 7},{i % 3}" for i in range(60)]
    (tmp_path / "other.csv").write_text("\n".join(["a,b", *rows]))
    other = tmp_path / "other"
    ok("train", "--data", f"csv:{tmp_path / 'other.csv'}", "--target", "b", "--net", "mlp:4",
       "--device", "cpu", "--no-figures", "--epochs", "1", "--out", other)  # fmt: skip
    text = refused(2, "report", pruned, "--before", other, "-o", tmp_path / "s.html")
    assert "is tested on other examples" in text
    assert not (tmp_path / "s.html").exists()


def test_a_sieved_network_is_compared_with_the_one_that_was_given(tmp_path):
    torch.manual_seed(0)
    net = mlp((1, 8, 8), 10, widths=(8,))
    save_file(net.state_dict(), tmp_path / "given.safetensors")
    out, data = tmp_path / "sieved", tmp_path / "r.json"
    ok("sieve", tmp_path / "given.safetensors", "--net", "mlp:8", "--data", "digits", "--zeros",
       "0.5", "--device", "cpu", "--no-figures", "--out", out)  # fmt: skip
    ok("report", out, "-o", tmp_path / "r.html", "--points", 2, "--data", data)
    (run,) = json.loads(data.read_text())["runs"]
    before = run["headline"]["before"]
    test = bs.load_data("digits").test
    wrong = (net(test.x).argmax(1) != test.y).double().mean()
    assert before["name"] == "as trained"
    assert before["quality"]["error"] == pytest.approx(float(wrong), rel=1e-5)


def test_all_chains_of_a_sampler_are_averaged(tmp_path):
    chains, pruned, data = (tmp_path / name for name in ("chains", "pruned", "r.json"))
    ok("train", "--data", "digits", "--net", "mlp:8", "--engine", "sghmc", "--chains", 2,
       "--epochs", 4, "--draws", 6, "--device", "cpu", "--no-figures", "--out", chains)  # fmt: skip
    ok("report", chains, "-o", tmp_path / "r.html", "--points", 2, "--data", data)
    (run,) = json.loads(data.read_text())["runs"]
    sampled = run["headline"]["sampled"]
    assert sampled["draws"] == 12
    assert run["chains"]["n_chains"] == 2
    assert sampled["nll"] == pytest.approx(
        as_json("evaluate", chains, "--samples", 12)["nll"], rel=1e-5
    )
    # one chain is left of a pruned run: nothing to add
    ok("prune", chains, "--zeros", "0.5", "--no-figures", "--out", pruned)
    ok("report", pruned, "-o", tmp_path / "p.html", "--points", 2, "--data", data)
    (run,) = json.loads(data.read_text())["runs"]
    assert run["headline"]["sampled"]["draws"] == 6
    assert as_json("evaluate", pruned, "--samples", 6)["zeros"] == pytest.approx(0.5, abs=0.01)


def test_the_cut_that_the_page_names_is_the_one_it_shows(dense, tmp_path):
    data = tmp_path / "r.json"
    ok("report", dense, "-o", tmp_path / "r.html", "--points", 5, "--data", data)
    (run,) = json.loads(data.read_text())["runs"]
    point = run["curve"]["points"][2]
    zeros, score = f"{point['zeros']:.4f}", run["curve"]["score"]
    cut = tmp_path / "cut"
    ok("prune", dense, "--zeros", zeros, "--score", score, "--no-figures", "--out", cut)
    metrics = json.loads((cut / "metrics.json").read_text())
    assert metrics["weights"] == pytest.approx(point["weights"], abs=1)
    assert metrics["error"] == pytest.approx(point["error"], abs=2 / 364)


def test_a_network_to_compare_with_is_kept_beside_the_run(pruned):
    run = load(pruned, device="cpu")
    save_model(run.model.posterior, RunFolder(pruned).path / BEFORE)
    page = report([pruned])
    assert page["report"] == str(pruned / "report.html")
    source = read_source(RunFolder(pruned), "cpu")
    assert source.before_name == "dense"
    assert torch.equal(source.before.mean, run.model.posterior.mean)
    (pruned / BEFORE).unlink()


def agree(model, network, x):
    """Same class everywhere, probabilities within 1e-3."""
    found = torch.tensor(node(CLASSES, network=network, x=x.flatten(1).tolist()))
    expected = predict(model, x).probs.float()
    assert torch.equal(found.argmax(1), expected.argmax(1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("BAYESIEVE_DATA", ""), "mnist")),
    reason="BAYESIEVE_DATA names no folder with mnist",
)
def test_javascript_and_torch_agree_on_500_test_digits_of_mnist():
    data = bs.load_data("mnist")
    torch.manual_seed(0)
    train = data.train.subset(torch.arange(4000))
    problem = bs.Problem(lenet_300_100(data.input_shape, 10), Categorical(), train)
    posterior = bs.fit(problem, bs.SBNN(lr=3e-3), epochs=2, seed=0).posterior
    sparse = bs.prune(posterior, bs.rules.keep_zeros(0.9))
    source = Source("mnist", "mnist", sparse, data)
    levels = further_masks(sparse, "snr", 4).sum(0)
    network = embed(source, levels, Limits())
    assert network["n_draws"] > 0
    agree(sparse, network, data.test.x[:500])
