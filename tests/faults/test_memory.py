"""Memory: estimated before it is taken, refused in words where it is not there."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesieve as bs
from bayesieve.assess.memory import LiveBytes, _left_in_groups, free_bytes
from bayesieve.cli.main import _message, exit_code
from bayesieve.core.batch import first_not_finite
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.posterior import posterior_of
from bayesieve.core.state import named_tensors
from bayesieve.data import images
from bayesieve.engines.recipes import ENGINES
from bayesieve.errors import ShortOfMemoryError
from bayesieve.runs import learn, memory, train
from bayesieve.runs.config import check_threads
from bayesieve.runs.memory import MemoryNeed, memory_need
from bayesieve.runs.run import load
from bayesieve.training import loop
from bayesieve.training.fingerprint import fingerprint
from engine_table import ONE_EACH

HUGE = {"data": "digits", "net": "mlp:3000000,3000000"}


def digits(net, n=100):
    data = bs.load_data("digits")
    return bs.Problem(net, Categorical(), (data.train.x[:n], data.train.y[:n]))


def test_a_network_of_petabytes_is_refused_with_its_size_and_nothing_is_allocated():
    with pytest.raises(ShortOfMemoryError) as caught:
        train(**HUGE, dry_run=True)
    said = str(caught.value)
    for words in ("TB of memory", "are free", "`batch_size`", "`net`", "`n_models`"):
        assert words in said
    assert exit_code(caught.value) == 1


def test_a_run_that_does_not_fit_is_refused_before_its_folder_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 50_000_000)
    out = tmp_path / "run"
    with pytest.raises(ShortOfMemoryError, match=r"50.0 MB are free on cpu"):
        train(data="digits", net="mlp:2000,2000", epochs=1, out=str(out))
    assert not out.exists()


def test_a_population_too_large_is_trained_in_groups(monkeypatch, tmp_path):
    """Memory is enough for two of five models; the run says so, and is resumed in its groups."""
    asked = {"data": "digits", "net": "mlp:4", "engine": "sgld", "n_models": 5, "epochs": 2,
             "threads": 1, "figures": False}  # fmt: skip
    monkeypatch.setattr(learn, "is_large", lambda plan: True)
    monkeypatch.setattr(MemoryNeed, "fits", lambda need, device: need.state < 1_000_000)
    need, said = memory_of_models(monkeypatch), []
    monkeypatch.setattr(learn, "note", said.append)
    result = train(**asked, out=str(tmp_path / "a"))
    assert need == [5, 3, 2]
    assert any("they are trained 2 at a time" in text for text in said)
    assert json.loads((tmp_path / "a" / "groups.json").read_text()) == {"sizes": [2, 2, 1]}
    rows = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [len(json.loads(row)["log_lik"]) for row in rows] == [5, 5]
    assert result["chains"]["n_chains"] == 5
    means = [posterior_of(model).mean for model in load(tmp_path / "a").models()]
    assert len(torch.stack(means).unique(dim=0)) == 5


def memory_of_models(monkeypatch):
    """Let each model take 400 kB of state; returns how many were asked for."""
    seen, needed = [], learn.needed_memory

    def counted(config, *others):
        seen.append(config.training.n_models)
        return replace(needed(config, *others), state=400_000 * config.training.n_models)

    monkeypatch.setattr(learn, "needed_memory", counted)
    return seen


def test_a_dry_run_states_every_part(capsys):
    result = train(data="digits", net="mlp:100", dry_run=True)
    parts = result["memory"]
    assert set(parts) == {
        "data", "weights", "state", "gradients", "activations", "checkpoint", "draws", "reading",
        "peak",
    }  # fmt: skip
    assert all(n > 0 for n in parts.values())
    assert parts["peak"] > parts["data"] + parts["weights"] + parts["state"]
    assert result["free_bytes"] > parts["peak"]
    engines = result["engines"]
    assert set(engines) == set(ENGINES)
    assert engines["sbnn"]["peak"] == parts["peak"]
    assert engines["map"]["per_weight"] < engines["sbnn"]["per_weight"]
    assert engines["map"]["largest"] > engines["sbnn"]["largest"] > result["parameters"]


@pytest.mark.parametrize("name", ONE_EACH)
def test_the_state_and_the_step_of_every_engine_are_counted_as_they_are(name):
    """Against the same run on real tensors; tables that some priors keep take less than 1 MB."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    engine, problem = ONE_EACH[name], digits(net)
    need = memory_need(problem, engine, batch_size=20)
    with LiveBytes([problem.x, problem.y, problem.initial]) as live:
        state = engine.init(problem, torch.Generator().manual_seed(0), 1)
        batch = problem.data.batch(torch.arange(20))
        for _ in range(2):
            engine.step(problem, state, batch)
    counted = need.state + need.gradients + need.activations
    stored = sum(value.nbytes for _, value in named_tensors(state))
    assert need.state >= 0.99 * stored
    assert counted == pytest.approx(live.most, rel=0.1, abs=1_000_000)


def test_buffers_frozen_parameters_and_populations_can_be_rehearsed():
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 10)
    )
    net[1].weight.requires_grad_(False)
    problem = digits(net)
    one = memory_need(problem, bs.SBNN(), batch_size=20, masks=True, test=(problem.x, problem.y))
    three = memory_need(problem, bs.SBNN(), batch_size=20, n_models=3)
    assert three.state == pytest.approx(3 * one.state, rel=0.01)
    assert one.draws > 0
    assert not problem.initial.is_meta


def test_draws_that_a_gpu_evaluates_at_once_are_counted_together():
    """Against the same call on real tensors, which `vmap` evaluates the same way on a CPU."""
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10)
    problem = digits(nn.Sequential(nn.Flatten(), *layers), n=300)
    test = (problem.x, problem.y)
    one, all_ = (
        memory_need(problem, bs.SBNN(), batch_size=20, test=test, device=device).draws
        for device in ("cpu", "cuda")
    )
    network, w = problem.network, problem.initial.expand(32, -1).clone()
    with LiveBytes([w, *test]) as live, network.borrowed() as module, torch.no_grad():
        call = network.call_of(module)
        torch.vmap(lambda row: call(row, {}, test[0]))(network.split(w)[0])
    assert all_ == pytest.approx(live.most + w.nbytes, rel=0.2)
    assert all_ > 1.5 * one


class _Full:
    """A step that finds no memory, as the allocator of a GPU or a CPU says it."""

    def __init__(self, error):
        self.error = error

    def __call__(self, index):
        raise self.error


CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                   "allocate memory: you tried to allocate 99 bytes.")  # fmt: skip
GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")


@pytest.mark.parametrize("error", [CPU, GPU, MemoryError()], ids=["cpu", "cuda", "python"])
def test_memory_that_runs_out_in_a_run_is_answered_in_words(monkeypatch, tmp_path, error):
    monkeypatch.setattr(loop, "make_stepper", lambda *_: _Full(error))
    x = torch.zeros(8, 1)
    problem = bs.Problem(nn.Linear(1, 1), Gaussian(), (x, x[:, 0]))
    with pytest.raises(ShortOfMemoryError, match="memory ran out at step 0") as caught:
        bs.fit(problem, bs.MAP(), epochs=1, folder=tmp_path / "run")
    said = str(caught.value)
    assert "`batch_size`" in said
    assert "\n" not in said
    assert "Checkpoints are in" in said
    assert exit_code(caught.value) == exit_code(error) == 1
    assert "`batch_size`" in _message(error)


def test_what_a_control_group_leaves_counts(tmp_path):
    """Version 2 nested in a group without limit, and version 1 by its own names."""
    groups = tmp_path / "cgroup"
    inner = groups / "job" / "step"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("1000\n")
    (inner / "memory.stat").write_text("anon 1\n")
    (inner.parent / "memory.max").write_text("5000\n")
    (inner.parent / "memory.current").write_text("1500\n")
    (inner.parent / "memory.stat").write_text("anon 1000\ninactive_file 500\n")
    old = groups / "memory" / "box"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("9000\n")
    (old / "memory.usage_in_bytes").write_text("2000\n")
    (old / "memory.stat").write_text("total_inactive_file 0\n")
    lines = tmp_path / "lines"
    lines.write_text("5:cpu,cpuacct:/box\n4:memory:/box\n0::/job/step\n")
    assert _left_in_groups(lines, groups) == [7000, 4000]
    assert _left_in_groups(tmp_path / "none", groups) == []
    assert free_bytes() > 0


def test_more_threads_than_processors_are_refused():
    with pytest.raises(ValueError, match=r"threads must be at most .*, got 100000"):
        train(data="digits", threads=100_000, dry_run=True)
    with pytest.raises(ValueError, match="at most"):
        check_threads("profile", threads=100_000)


def test_loading_images_takes_one_copy_of_pixels_beside_the_inputs(monkeypatch, tmp_path):
    """The bytes that NumPy holds at once; inputs take 4 bytes a pixel, in train and test."""
    import tracemalloc

    n, side = 2000, 28
    pixels = np.random.default_rng(0).integers(0, 256, (n, side, side, 1), dtype=np.uint8)
    arrays = {"labels": np.arange(n) % 2, "for_test": np.arange(n) % 5 == 0,
              "classes": np.array(["a", "b"])}  # fmt: skip

    def decoded(*_, **__):
        return images.Decoded(pixels.copy(), **arrays)

    monkeypatch.setattr(images, "decode_images", decoded)
    tracemalloc.start()
    images.load_images(tmp_path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1.1 * 5 * pixels.nbytes + 1_000_000


def test_looking_for_numbers_that_are_not_finite_takes_little_memory():
    x = torch.zeros(1000, 20_000)
    with LiveBytes([x]) as live:
        assert first_not_finite(x) is None
    assert live.most < x.nbytes / 2
    x[777, 5] = torch.inf
    assert first_not_finite(x) == 777
    assert first_not_finite(torch.zeros(3, dtype=torch.int64)) is None


def test_telling_data_from_others_takes_little_memory():
    x, y = torch.randn(4000, 784, generator=torch.Generator().manual_seed(0)), torch.arange(4000)
    with LiveBytes([x, y]) as live:
        found = fingerprint(x, y)["inputs"]["parts"]
    assert live.most < x.nbytes / 2
    part = x.chunk(16)[3].flatten().double()
    weights = 1 + (torch.arange(len(part), dtype=torch.float64) * 0.618033988749895).frac()
    assert found[3][1:] == pytest.approx([float(part @ weights), float(part.abs().sum())])


class Constants(nn.Module):
    """Makes a tensor in `forward`, and has one that is no buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.shift = nn.Linear(4, 3), torch.linspace(-1, 1, 3)

    def forward(self, x):
        return self.layer(x) + self.shift + torch.arange(3.0)


class Numbers(Constants):
    def forward(self, x):
        return super().forward(x) * float(x.detach().cpu().numpy().max() > -9)


DATA = (torch.zeros(20, 4), torch.zeros(20, dtype=torch.long))


def test_tensors_that_forward_makes_can_be_rehearsed():
    need = memory_need(bs.Problem(Constants(), Categorical(), DATA), bs.SBNN(), batch_size=5)
    plain = memory_need(bs.Problem(nn.Linear(4, 3), Categorical(), DATA), bs.SBNN(), batch_size=5)
    assert need.state == plain.state


def test_a_module_that_needs_numbers_says_so():
    problem = bs.Problem(Numbers(), Categorical(), DATA)
    with pytest.raises(bs.errors.UnsupportedModelError, match="memory is not known"):
        memory_need(problem, bs.SBNN(), batch_size=5)


@pytest.mark.parametrize("kind", ["Constants", "Numbers"])
def test_such_networks_are_trained_and_dry_runs_tell(tmp_path, monkeypatch, capsys, kind):
    """Neither the rehearsal nor the stored graph may stop a run of a module that works."""
    source = Path(__file__).read_text(encoding="utf-8")
    classes = source[source.index("class Constants") : source.index("DATA = ")]
    layers = f"nn.Flatten(), nn.Linear(64, 4), {kind}(), nn.Linear(3, n)"
    make = f"def make(shape, n):\n    return nn.Sequential({layers})\n"
    name = f"odd_{kind.lower()}"
    (tmp_path / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n{classes}\n{make}")
    monkeypatch.syspath_prepend(tmp_path)
    run = {"data": "digits", "net": f"module:{name}.make", "epochs": 1, "figures": False}
    told = train(**run, out=tmp_path / "a", dry_run=True)
    assert bool(told["memory"]) == (kind == "Constants")
    assert train(**run, out=tmp_path / "a")["error"] < 1
    capsys.readouterr()
