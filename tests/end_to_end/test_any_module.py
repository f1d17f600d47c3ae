"""Modules as users write them, from training to a smaller file, with every engine."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import bayesieve as bs
from architectures import ARCHITECTURES, TOKENS, Architecture, pooled
from bayesieve.core.storage import load_sparse
from bayesieve.errors import UnsupportedModelError
from engine_table import ENGINES
from problems import normal32, seeded
from zoo import Calling, built, chain

ROW, SERIES = (2, 8), (2, 5, 4)


def summed():
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    return Calling(
        lambda s, x: s.head(sum(torch.relu(layer(x)) for layer in s.layers)),
        layers=layers, head=nn.Linear(8, 3),
    )  # fmt: skip


def scaled():
    model = Calling(
        lambda s, x: s.head(torch.relu(s.first((x - s.shift) / s.scale))),
        first=nn.Linear(8, 6), head=nn.Linear(6, 3),
    )  # fmt: skip
    model.register_buffer("shift", torch.full((8,), 0.1))
    model.register_buffer("scale", torch.tensor(1.5))
    return model


def transposed():
    return pooled(4, nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU())


def recurrent():
    layer = nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True)
    return Calling(lambda s, x: s.head(s.layer(x)[0].mean(1)), layer=layer, head=nn.Linear(12, 3))


def gru():
    layer = nn.GRU(4, 6, batch_first=True)
    return Calling(lambda s, x: s.head(s.layer(x)[1][-1]), layer=layer, head=nn.Linear(6, 3))


def cross_attention():
    layer = nn.MultiheadAttention(6, 2, batch_first=True, kdim=4, vdim=4)
    return Calling(
        lambda s, x: s.head(s.layer(s.ask(x), x, x, need_weights=False)[0].mean(1)),
        layer=layer, ask=nn.Linear(4, 6), head=nn.Linear(6, 3),
    )  # fmt: skip


def words():
    return Calling(
        lambda s, x: s.head(torch.relu(s.mix(s.embed(x).mean(1)))),
        embed=nn.Embedding(11, 6, padding_idx=0), mix=nn.Linear(6, 6), head=nn.Linear(6, 3),
    )  # fmt: skip


def normed():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), chain(8, 3, seed=None))


def half_frozen():
    model = chain(8, 12, 10, 3, act=nn.ReLU, seed=None)
    model[4].requires_grad_(False)
    return model


def wide():
    return chain(8, 8, 2000, act=nn.ReLU, seed=None)


def double():
    return nn.Sequential(nn.Linear(8, 8), nn.PReLU(8), nn.Dropout(0.2), nn.Linear(8, 3)).double()


def squeezed():
    layers = chain(8, 8, 1, act=nn.ReLU, seed=None)
    return Calling(lambda s, x: s.layers(x).squeeze(-1), layers=layers)


OF_THE_ZOO = ("two readers", "ResNet-18", "ResNeXt", "MobileNetV3", "group norm", "U-Net",
              "GPT, tied embedding", "nn.TransformerEncoder")  # fmt: skip
SHAPES = {transposed: (2, 3, 8, 8), recurrent: SERIES, gru: SERIES, cross_attention: SERIES,
          words: TOKENS} | dict.fromkeys(
              (summed, scaled, normed, half_frozen, wide, double, squeezed), ROW)  # fmt: skip
MODULES = {name: ARCHITECTURES[name] for name in OF_THE_ZOO}
MODULES |= {build.__name__: Architecture(build, shape) for build, shape in SHAPES.items()}
NO_BUNDLE = {"recurrent": "LSTM", "gru": "GRU"}
EACH_ENGINE = ("map", "flat_vi", "sbnn-local", "bmr", "horseshoe", "sgld", "sghmc-em")
# every module with two engines, every engine with several modules; all pairs are the contract's
PAIRS = [(name, EACH_ENGINE[(i + j) % 7]) for i, name in enumerate(MODULES) for j in (0, 3)]


def problem_of(name, n=24):
    case = MODULES[name]
    model = built(case.make)
    if case.shape == TOKENS:
        x = torch.randint(11, (n, *case.shape[1:]), generator=seeded(1))
    else:
        x = normal32(n, *case.shape[1:], seed=1).to(next(model.parameters()).dtype)
    if name == "squeezed":
        return bs.Problem(model, bs.likelihoods.Bernoulli(), (x, torch.arange(n) % 2))
    roles = {"roles": bs.Roles(prune=(nn.Embedding,))} if name == "words" else {}
    shape = model(x).shape
    y = torch.arange(shape[:-1].numel()).view(shape[:-1]) % min(shape[-1], 3)
    return bs.Problem(model, bs.likelihoods.Categorical(), (x, y), **roles)


def pruned(name, engine):
    """The problem and what is left of its posterior, four in ten prunable weights gone."""
    problem = problem_of(name)
    run = bs.fit(problem, engine, epochs=2, batch_size=8, seed=0)
    kept = 1 - 0.4 * problem.layout.n_sparse / problem.layout.size
    return problem, bs.prune(run.posterior, bs.rules.keep_zeros(1 - kept, score="magnitude"))


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_a_module_is_trained_pruned_compacted_and_read_back(name, engine, tmp_path):
    problem, sparse = pruned(name, ENGINES[engine])
    assert sparse.zeros > 0
    masked = sparse.to_module()
    saved = load_sparse(bs.save(sparse, tmp_path / "sparse.safetensors"), problem)
    small = bs.compact(sparse, problem.x[:4])
    with torch.no_grad():
        expected = masked(problem.x)
        assert torch.equal(saved.to_module()(problem.x), expected)
        torch.testing.assert_close(small(problem.x), expected, atol=1e-5, rtol=1e-5)
    drawn = [bs.predict(q, problem.x[:3], n_samples=2).probs for q in (sparse, saved)]
    assert torch.equal(*drawn)
    assert drawn[0].isfinite().all()
    if name in NO_BUNDLE:
        with pytest.raises(UnsupportedModelError, match=NO_BUNDLE[name]):
            bs.save(small, tmp_path / "bundle", example=problem.x[:4])
        return
    bundle = bs.load(bs.save(small, tmp_path / "bundle", example=problem.x[:4]))
    assert torch.equal(bundle(problem.x), small(problem.x))


@pytest.mark.parametrize("name", MODULES)
def test_message_passing_names_the_layer_it_does_not_know(name):
    problem = problem_of(name)
    if name == "wide":
        assert bs.fit(problem, bs.TDAMP(), epochs=1, batch_size=8).posterior.mean.isfinite().all()
        return
    with pytest.raises(UnsupportedModelError, match=r"^TDAMP: "):
        bs.fit(problem, bs.TDAMP(), epochs=1)


@pytest.mark.parametrize("name", ["gru", "ResNeXt", "transposed", "normed"])
def test_what_onnx_says_is_what_the_small_network_says(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    problem, sparse = pruned(name, ENGINES["sbnn-local"])
    small = bs.compact(sparse, problem.x[:4])
    path = bs.export_onnx(small, tmp_path / "small.onnx", problem.x[:4])
    session = runtime.InferenceSession(str(path))
    (found,) = session.run(None, {session.get_inputs()[0].name: problem.x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), small(problem.x), atol=1e-5, rtol=1e-4)


def test_a_size_taken_by_len_is_named_with_the_way_out():
    model = Calling(lambda s, x: s.layer(x.reshape(len(x), -1)), layer=nn.Linear(8, 3))
    with pytest.raises(UnsupportedModelError, match=r"len\(x\) .* write x\.shape\[0\]"):
        bs.compact(model, torch.ones(2, 8))
