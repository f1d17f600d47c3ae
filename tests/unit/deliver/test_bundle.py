"""Bundles: what is saved comes back bit for bit, small, and without a line of code being run."""

import importlib.util
import json
import math
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, StudentT
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.deliver.bundle import (
    check_input,
    example_input,
    is_bundle,
    load,
    read_bundle,
    save,
    save_bundle,
)
from bayesieve.deliver.bundle.graph import graph_from_json, graph_to_json, output_shape, trace
from bayesieve.deliver.bundle.packing import pack, unpack
from bayesieve.deliver.bundle.posterior import likelihood_from_json
from bayesieve.engines.sbnn import SBNN
from bayesieve.errors import DamagedFileError, UnsupportedModelError
from bayesieve.nets import gpt, lenet_300_100
from bayesieve.sieve.compact import compact
from bayesieve.training.launch import fit
from problems import normal
from zoo import BY_NAME, REPEATED, ZOO

PLAIN = ["linear", "mlp", "binary", "conv1d", "conv2d", "batch_norm", "batch_norm_2d",
         "layer_norm", "attention", "embedding", "tied"]  # fmt: skip
LENET = ["README.md", "architecture.py", "config.json", "model.safetensors"]


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def zeroed(module, fraction, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p[torch.rand(p.shape, generator=generator) < fraction] = 0.0
    return module


# --- the trip there and back


@pytest.mark.parametrize("case", [*(BY_NAME[n] for n in PLAIN), REPEATED], ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_a_bundle_gives_the_same_outputs_bit_for_bit(case, dtype, tmp_path):
    module, x = case.model(dtype=dtype).eval(), case.data(dtype=dtype)[0]
    again = load(save(module, tmp_path / "b", example=x))
    assert not again.training
    with torch.no_grad():
        same(again(x), module(x))
    assert {p.dtype for p in again.parameters()} == {dtype}


def test_compaction_tells_the_input_shape(tmp_path):
    case = BY_NAME["conv2d"]
    folder = save(compact(case.model(), case.data()[0]), tmp_path / "b")
    assert read_bundle(folder).input_shape == case.input_shape


def test_the_order_in_memory_is_kept(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    module = module.to(memory_format=torch.channels_last)
    module[2].weight = nn.Parameter(torch.randn(4, 2).T)
    again = load(save(module, tmp_path / "b", example=torch.ones(1, 3, 3, 3)))
    for before, after in zip(module.parameters(), again.parameters(), strict=True):
        assert before.stride() == after.stride()


def test_a_saved_module_is_not_changed(tmp_path):
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    save(module, tmp_path / "b")
    assert module.training
    for name, value in module.state_dict().items():
        same(value, before[name])


def test_a_loaded_bundle_trains_and_saves_again(tmp_path):
    module = load(save(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), tmp_path / "a"))
    module(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    same(load(save(module, tmp_path / "b"))(torch.ones(1, 3)), module(torch.ones(1, 3)))


def test_loaded_weights_do_not_change_with_the_file(tmp_path):
    folder = save(nn.Linear(3, 2), tmp_path / "b")
    module = load(folder)
    before = module(torch.ones(1, 3))
    path = folder / "model.safetensors"
    path.write_bytes(b"\0" * path.stat().st_size)
    same(module(torch.ones(1, 3)), before)


def test_names_with_a_dash_are_kept(tmp_path):
    module = nn.Sequential()
    module.add_module("fc-1", nn.Linear(3, 2))
    again = load(save_bundle(module, tmp_path / "b", example=torch.ones(1, 3)))
    assert list(again.state_dict()) == ["fc-1.weight", "fc-1.bias"]
    x = torch.randn(4, 3)
    assert torch.equal(again(x), module(x))


def test_tied_weights_stay_tied(tmp_path):
    case = BY_NAME["tied"]
    folder = save(case.model(), tmp_path / "b", example=case.data()[0])
    assert "decode.weight" not in load_file(folder / "model.safetensors")
    module = load(folder)
    assert module.decode.weight is module.embed.weight


def test_minus_zero_infinity_and_nan_come_back(tmp_path):
    module = nn.Linear(100, 4)
    with torch.no_grad():
        module.weight.zero_()
        module.weight[0, :4] = torch.tensor([-0.0, math.inf, -math.inf, math.nan])
    weight = load(save(module, tmp_path / "b")).get_parameter("0.weight")
    assert torch.equal(weight.view(torch.int32), module.weight.view(torch.int32))


def test_config_is_kept(tmp_path):
    recipe = {"kind": "image", "shape": [1, 2, 3], "scale": 255.0, "mean": [0.1], "std": [0.3]}
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    folder = save_bundle(
        module, tmp_path / "b", preprocessing=recipe, classes=["no", "yes"],
        likelihood=Categorical(), thresholds={"zeros": 0.5}, metrics={"error": 0.25},
        config={"source": "runs/a"},
    )  # fmt: skip
    bundle = read_bundle(folder)
    assert bundle.input_shape == (1, 2, 3)
    assert bundle.classes == ("no", "yes")
    assert bundle.likelihood == Categorical()
    assert bundle.config["preprocessing"] == recipe
    assert bundle.config["thresholds"] == {"zeros": 0.5}
    assert bundle.config["provenance"] == {"source": "runs/a"}
    assert json.loads((folder / "metrics.json").read_text()) == {"error": 0.25}
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: bayesieve\n")
    for text in ("25.00 %", "no, yes", "bs.load", "load_model", "zeros 0.5", "model.safetensors"):
        assert text in card
    assert is_bundle(folder)


def test_the_layout_is_that_of_the_hub(tmp_path):
    folder = save(nn.Linear(2, 1), tmp_path / "b")
    assert sorted(p.name for p in folder.iterdir()) == LENET
    assert set(load_file(folder / "model.safetensors")) == {"0.weight", "0.bias"}


def test_the_input_shape_is_found_or_asked_for(tmp_path):
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="give example="):
        save(conv, tmp_path / "a")
    assert not list(tmp_path.iterdir())
    assert read_bundle(save(conv, tmp_path / "b", example=torch.ones(1, 1, 4, 4))).input_shape == (
        1, 4, 4,
    )  # fmt: skip
    named = nn.Sequential(nn.Tanh(), nn.Linear(3, 1))
    folder = save(named, tmp_path / "c", feature_names=["a", "b", "c"])
    assert read_bundle(folder).input_shape == (3,)
    with pytest.raises(ValueError, match="shapes do not fit"):
        save(named, tmp_path / "d", feature_names=["a", "b"])
    assert not (tmp_path / "d").exists()


def test_example_inputs_fit(tmp_path):
    case = BY_NAME["embedding"]
    bundle = read_bundle(save(case.model(), tmp_path / "b", example=case.data()[0]))
    x = example_input(bundle.input_shape, bundle.dtype)
    assert bundle.module(x).shape == (4, 3)


# --- size


def test_a_sparse_lenet_is_small(tmp_path):
    torch.manual_seed(0)
    module = zeroed(lenet_300_100((1, 28, 28), 10), 0.985)
    recipe = {"kind": "image", "shape": [1, 28, 28], "scale": 255.0, "mean": [0.0], "std": [0.3]}
    network = Network.of(module, Categorical())
    mean = network.weights_of(module)
    sparse = SparseModel(Samples(network, mean[None]), mean != 0)
    folder = save_bundle(
        module, tmp_path / "b", sparse=sparse, preprocessing=recipe,
        classes=[str(i) for i in range(10)], metrics={"error": 0.02},
    )  # fmt: skip
    assert "masks.safetensors" in {p.name for p in folder.iterdir()}
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 40_000
    x = torch.randn(3, 1, 28, 28)
    same(load(folder)(x), module(x))
    assert torch.equal(read_bundle(folder).keep, sparse.keep)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.7, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bool])
@pytest.mark.parametrize("shape", [(0,), (1,), (257,), (255, 3), (256, 2, 5), (40, 1021)])
def test_packing_is_exact_and_never_larger(fraction, dtype, shape):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator)
    x[torch.rand(shape, generator=generator) < fraction] = 0
    x = x.to(dtype)
    tensors, how = pack("w", x)
    back = unpack("w", tensors, how)
    assert back.dtype == dtype
    assert torch.equal(back, x)
    stored = sum(part.numel() * part.element_size() for part in tensors.values())
    assert stored <= x.numel() * x.element_size()
    n_values = int((x != 0).sum())
    if how is not None and dtype != torch.bool:
        expected = n_values * x.element_size() + x.numel() / 8
        assert stored <= expected + 1


@pytest.mark.parametrize("gap", [0, 1, 254, 255, 256, 509, 510, 511, 70_000])
def test_gaps_of_every_length(gap):
    x = torch.zeros(200_000)
    x[[3, 4 + gap, 199_999]] = torch.tensor([1.0, 2.0, -0.0])
    tensors, how = pack("w", x)
    assert how["as"] == "gaps"
    back = unpack("w", tensors, how)
    assert torch.equal(back.view(torch.int32), x.view(torch.int32))


# --- posterior, masks, likelihood


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_the_posterior_comes_back(case, tmp_path):
    if case.name == "branching":
        pytest.skip("cannot be traced")
    model = case.model()
    network = Network.of(model, case.likelihood)
    d = network.layout.size
    generator = torch.Generator().manual_seed(1)
    mean = network.weights_of(model)
    keep = torch.rand(d, generator=generator) < 0.5
    keep[network.layout.n_sparse :] = True
    std = torch.full((d,), 0.1, dtype=mean.dtype)
    std[network.layout.bayesian.stop :] = 0
    logit = torch.randn(d, generator=generator, dtype=mean.dtype)
    q = Factorised(network, mean, std, None, logit, network.buffers()).masked(keep)
    sparse = SparseModel(q, keep)
    x = case.data()[0]
    folder = save_bundle(sparse.to_module(), tmp_path / "b", example=x, posterior=q, sparse=sparse)
    bundle = read_bundle(folder)
    again = bundle.posterior
    for name in ("mean", "std", "logit_inclusion"):
        same(getattr(again, name), getattr(q, name))
    assert again.layout.shapes == q.layout.shapes
    assert case.name == "linear" or again.layout == q.layout  # a bare layer is called "0"
    assert torch.equal(bundle.keep, keep)
    w = q.draw(2, torch.Generator().manual_seed(0))
    same(again.draw(2, torch.Generator().manual_seed(0)), w)
    same(again.network.outputs(w, x, again.buffers), network.outputs(w, x, q.buffers))
    assert len(load_file(folder / "posterior.safetensors")["mean"]) == int(keep.sum())


def test_samples_come_back_without_masks(tmp_path):
    network = Network.of(nn.Linear(3, 2), Categorical())
    q = Samples(network, torch.randn(5, 8))
    bundle = read_bundle(save_bundle(nn.Linear(3, 2), tmp_path / "b", posterior=q))
    same(bundle.posterior.draws, q.draws)
    assert bundle.keep is None


LIKELIHOODS = [
    (Categorical(), 3),
    (Categorical((1.0, 2.5)), 2),
    (Bernoulli(), 1),
    (Bernoulli(3.0), 1),
    (Gaussian(0.3), 2),
    (StudentT(0.3, 5.0), 1),
    (Heteroscedastic(0.4, 0.02), 2),
]


@pytest.mark.parametrize(("likelihood", "n_outputs"), LIKELIHOODS)
def test_the_likelihood_comes_back(likelihood, n_outputs, tmp_path):
    folder = save_bundle(nn.Linear(2, n_outputs), tmp_path / "b", likelihood=likelihood)
    assert read_bundle(folder).likelihood == likelihood


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": "StudentT", "scale": 1.0, "df": 1.0}, "df must be > 2"),
        ({"name": "StudentT", "scale": 1.0}, "df must be a number, got 'None'"),
        ({"name": "Heteroscedastic", "noise_std": -1.0, "min_noise_std": 1.0}, "noise_std must be"),
        ({"name": "Gaussian", "noise_std": "1"}, "noise_std must be a number"),
        ({"name": "Categorical", "class_weight": 3}, "class_weight must be a list"),
        ({"name": "Cauchy"}, "unknown likelihood"),
    ],
)
def test_a_damaged_likelihood_is_named(row, message):
    with pytest.raises(ValueError, match=rf"config\.json is damaged: .*{message}"):
        likelihood_from_json(row, None)


def test_a_learned_noise_is_that_of_the_posterior(tmp_path):
    network = Network.of(nn.Linear(2, 1), Gaussian(1.0, learned=True))
    mean = torch.tensor([1.0, 2.0, 3.0, math.log(0.25)])
    q = Factorised(network, mean, torch.zeros(4))
    bundle = read_bundle(save_bundle(nn.Linear(2, 1), tmp_path / "b", posterior=q))
    assert bundle.likelihood.noise_std == pytest.approx(0.25)
    assert not bundle.likelihood.learned
    assert bundle.posterior.network.likelihood.learned


def test_what_is_missing_is_said(tmp_path):
    bundle = read_bundle(save(nn.Linear(2, 1), tmp_path / "b"))
    with pytest.raises(ValueError, match="holds no posterior"):
        _ = bundle.posterior
    with pytest.raises(ValueError, match="does not say what its outputs mean"):
        _ = bundle.likelihood


# --- dispatch and overwriting


def test_save_takes_posteriors_and_modules(tmp_path):
    network = Network.of(nn.Linear(2, 1), Gaussian())
    q = Samples(network, torch.zeros(1, 3))
    assert save(q, tmp_path / "q.safetensors").is_file()
    assert save(SparseModel(q, torch.ones(3).bool()), tmp_path / "s.safetensors").is_file()
    assert save(nn.Linear(2, 1), tmp_path / "b").is_dir()
    with pytest.raises(TypeError, match="dict cannot be saved"):
        save({}, tmp_path / "d")
    with pytest.raises(ValueError, match="use load_posterior"):
        load(tmp_path / "q.safetensors")


def test_nothing_is_overwritten_without_force(tmp_path):
    folder = save(nn.Linear(2, 1), tmp_path / "b")
    with pytest.raises(FileExistsError, match="not empty; use force"):
        save(nn.Linear(3, 1), folder)
    assert read_bundle(folder).input_shape == (2,)
    save(nn.Linear(3, 1), folder, force=True)
    assert read_bundle(folder).input_shape == (3,)
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_force_does_not_remove_what_is_no_bundle(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years")
    with pytest.raises(FileExistsError, match="something else than a bundle"):
        save(nn.Linear(2, 1), folder, force=True)
    (folder / "thesis.tex").rename(tmp_path / "thesis.tex")
    assert save(nn.Linear(2, 1), folder).is_dir()  # empty folders are free
    with pytest.raises(FileExistsError, match="is a file"):
        save(nn.Linear(2, 1), tmp_path / "thesis.tex")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        save(nn.Linear(2, 1), tmp_path / "no" / "b")


@pytest.mark.parametrize("metrics", [{"a": math.nan}, {"a": object()}])
def test_a_failed_save_leaves_nothing(metrics, tmp_path):
    with pytest.raises(ValueError, match="metrics must be plain JSON"):
        save_bundle(nn.Linear(2, 1), tmp_path / "b", metrics=metrics)
    with pytest.raises(UnsupportedModelError):
        save(nn.Sequential(nn.LSTM(2, 2)), tmp_path / "b", example=torch.ones(1, 2))
    with pytest.raises(ValueError, match="3 outputs but there are 2 classes"):
        save(nn.Linear(2, 3), tmp_path / "b", classes=["a", "b"])
    assert not list(tmp_path.iterdir())


def test_wrong_inputs_name_both_numbers():
    check_input((13,), torch.zeros(5, 13))
    with pytest.raises(ValueError, match=r"takes 13 features.*data have 12"):
        check_input((13,), torch.zeros(5, 12))


# --- plain torch


@pytest.mark.parametrize("shrink", [False, True], ids=["whole", "compacted"])
@pytest.mark.parametrize("name", [*PLAIN, "lenet"])
def test_the_architecture_file_is_the_same_network(name, shrink, tmp_path):
    if name == "lenet":
        torch.manual_seed(0)
        module, x = zeroed(lenet_300_100((1, 28, 28), 10), 0.9), torch.randn(2, 1, 28, 28)
    else:
        case = BY_NAME[name]
        module, x = case.model(), case.data()[0]
    if shrink:
        module = compact(zeroed(module, 0.6), x)
    folder = save(module.eval(), tmp_path / "b", example=x)
    namespace = {"__name__": "architecture", "__file__": str(folder / "architecture.py")}
    source = (folder / "architecture.py").read_text()
    exec(compile(source, "architecture.py", "exec"), namespace)
    with torch.no_grad():
        for again in (namespace["load_model"](folder), load(folder)):
            same(again(x), module(x))


@pytest.mark.slow
def test_the_architecture_file_runs_where_bayesieve_is_not_installed(tmp_path):
    torch.manual_seed(0)
    module = zeroed(lenet_300_100((1, 8, 8), 10), 0.9).eval()
    bits = zeroed(nn.Linear(64, 10), 0.4)  # dense enough for bits, not gaps
    torch.nn.init.uniform_(bits.bias)
    module.out = nn.Sequential(nn.Linear(100, 64), bits)
    folder = save(module, tmp_path / "b", example=torch.ones(1, 1, 8, 8))
    how = {row["as"] for row in read_bundle(folder).config["packed"].values()}
    assert how == {"gaps", "bits"}
    x = torch.randn(4, 1, 8, 8)
    torch.save(x, tmp_path / "x.pt")
    with torch.no_grad():
        torch.save(module(x), tmp_path / "y.pt")
    code = textwrap.dedent(
        """
        import sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "bayesieve":
                    raise ImportError("not here")
        sys.meta_path.insert(0, Refuse())
        import torch
        from architecture import load_model
        x, y = torch.load("../x.pt"), torch.load("../y.pt")
        torch.set_num_threads(1)
        with torch.no_grad():
            assert torch.equal(load_model()(x), y)
        assert not any(name.startswith("bayesieve") for name in sys.modules)
        print("same")
        """
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "same", done.stderr


# --- several inputs, and what networks call besides layers


class Pair(nn.Module):
    """Words, a mask and an age, in an order of its own."""

    def __init__(self):
        super().__init__()
        self.embed, self.age, self.head = nn.Embedding(9, 4), nn.Linear(1, 4), nn.Linear(4, 3)

    def forward(self, ids, mask, age):
        words = self.embed(ids) * mask[..., None]
        return self.head(torch.tanh(words.sum(1) + self.age(age)))


def pair():
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(9, (12, 5), generator=source)
    mask = torch.rand(12, 5, generator=source) < 0.7
    return {"age": torch.rand(12, 1, generator=source), "ids": ids, "mask": mask}


def test_several_inputs_come_back_by_name_with_the_posterior(tmp_path):
    x, y = pair(), torch.arange(12) % 3
    problem = Problem(Pair(), Categorical(), (x, y))
    sparse = fit(problem, SBNN(), epochs=2, batch_size=6).sparse()
    module = sparse.to_module()
    path = save_bundle(module, tmp_path / "b", example=x, sparse=sparse, posterior=sparse.posterior)
    bundle = read_bundle(path)
    assert set(bundle.input_names) == {"ids", "mask", "age"}
    assert torch.equal(bundle.module(**x), module(**x))
    again, known = predict(bundle.posterior, x, n_samples=4), predict(sparse, x, n_samples=4)
    torch.testing.assert_close(again.probs, known.probs)
    small = compact(sparse, x)
    copied = load(save_bundle(small, tmp_path / "c", example=x))
    assert torch.equal(copied(**x), small(**x))
    written = importlib.util.spec_from_file_location("written", path / "architecture.py")
    source = importlib.util.module_from_spec(written)
    written.loader.exec_module(source)
    assert torch.equal(source.load_model()(**x), module(**x))
    with pytest.raises(ValueError, match="the module takes age, ids, mask; give example="):
        save_bundle(small, tmp_path / "d")


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["inputs"].pop(),
        lambda config: config["inputs"][0].update(name="other"),
        lambda config: config["inputs"][0].update(shape=[2**40]),
        lambda config: config["inputs"][0].update(dtype="object"),
        lambda config: config.update(inputs={}),
    ],
)
def test_inputs_that_do_not_fit_the_graph_are_refused(tmp_path, change):
    path = save_bundle(Pair(), tmp_path / "b", example=pair())
    config = json.loads((path / "config.json").read_text())
    change(config)
    del config["checksum"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFileError, match=r"config\.json is damaged"):
        read_bundle(path)


@torch.fx.wrap
def stochastic_depth(x, chance, mode, training=True):
    """As in torchvision: of no effect after training."""
    return x * (torch.rand(1) > chance) if training else x


class Calls(nn.Module):
    """A layer under a name with a dash, and tensors made in forward."""

    def __init__(self):
        super().__init__()
        self.add_module("to-three", nn.Linear(3, 3))
        self.places = nn.Embedding(5, 3)

    def forward(self, x):
        places = self.places(torch.arange(x.shape[1], device=x.device))
        y = getattr(self, "to-three")(x + places)
        return x + stochastic_depth(y, 0.2, "row", self.training) + torch.zeros(x.shape[0], 1, 3)


@pytest.mark.parametrize("build", [Calls, lambda: gpt(3, 4, n_blocks=1, width=4, n_heads=2)])
def test_tensors_that_forward_makes_and_names_with_a_dash(tmp_path, build):
    module = build().eval()
    x = torch.tensor([[0, 2, 1, 1]])
    x = normal(2, 4, 3, seed=1).float() if isinstance(module, Calls) else x
    again = load(save_bundle(module, tmp_path / "b", example=x))
    assert torch.equal(again(x), module(x))
    assert any("to-three" in name for name, _ in again.named_modules()) == isinstance(module, Calls)


def test_a_file_cannot_ask_for_a_large_tensor():
    graph = graph_to_json(trace(Calls().eval(), normal(2, 4, 3, seed=1).float()))
    row = next(row for row in graph["nodes"] if row[2] == "torch.zeros")
    row[3][0] = [1 << 20, 1 << 20]
    with pytest.raises(ValueError, match="would be unreasonably large"):
        output_shape(graph_from_json(graph), (4, 3), torch.float32)
