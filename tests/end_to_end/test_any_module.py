"""Modules as users write them, from training to a smaller file, with every engine."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import bayesieve as bs
from bayesieve.core.storage import load_sparse
from bayesieve.errors import UnsupportedModelError
from engine_table import ENGINES
from problems import seeded
from zoo import Calling

ROW, IMAGE, SERIES, WORDS = (8,), (1, 8, 8), (5, 4), (6,)


def tied():
    model = Calling(
        lambda s, x: s.head(torch.tanh(s.second(torch.tanh(s.first(x))))),
        first=nn.Linear(8, 8), second=nn.Linear(8, 8), head=nn.Linear(8, 3),
    )  # fmt: skip
    model.second.weight = model.first.weight
    return model


def summed():
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    return Calling(
        lambda s, x: s.head(sum(torch.relu(layer(x)) for layer in s.layers)),
        layers=layers, head=nn.Linear(8, 3),
    )  # fmt: skip


def residual():
    def forward(s, x):
        h = s.enter(x)
        for layer in s.layers:
            h = h + torch.relu(layer(h))
        return s.head(h)

    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    return Calling(forward, enter=nn.Linear(8, 8), layers=layers, head=nn.Linear(8, 3))


def joined():
    return Calling(
        lambda s, x: s.head(torch.cat([torch.relu(s.left(x)), torch.tanh(s.right(x)), x], 1)),
        left=nn.Linear(8, 5), right=nn.Linear(8, 4), head=nn.Linear(17, 3),
    )  # fmt: skip


def scaled():
    model = Calling(
        lambda s, x: s.head(torch.relu(s.first((x - s.shift) / s.scale))),
        first=nn.Linear(8, 6), head=nn.Linear(6, 3),
    )  # fmt: skip
    model.register_buffer("shift", torch.full((8,), 0.1))
    model.register_buffer("scale", torch.tensor(1.5))
    return model


def pictures(*layers, width):
    pool = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), *layers, *pool)


def grouped():
    return pictures(nn.Conv2d(8, 8, 3, groups=2), width=8)


def depthwise():
    return pictures(nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 6, 1), width=6)


def transposed():
    return pictures(nn.ConvTranspose2d(8, 4, 2, stride=2), width=4)


def group_norm():
    return pictures(nn.Conv2d(8, 4, 3), nn.GroupNorm(2, 4), width=4)


def hourglass():
    def forward(s, x):
        down = torch.relu(s.down(x))
        up = F.interpolate(torch.relu(s.middle(F.max_pool2d(down, 2))), scale_factor=2)
        return s.out(torch.cat([down, up], 1)).mean((2, 3))

    down, middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    return Calling(forward, down=down, middle=middle, out=nn.Conv2d(8, 3, 1))


def gated():
    def forward(s, x):
        h = torch.relu(s.conv(x))
        gate = torch.sigmoid(s.up(torch.relu(s.down(h.mean((2, 3))))))
        return s.head((h * gate[:, :, None, None]).mean((2, 3)))

    conv, head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8, 3)
    return Calling(forward, conv=conv, down=nn.Linear(8, 2), up=nn.Linear(2, 8), head=head)


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


def encoder():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return Calling(
        lambda s, x: s.head(s.stack(x).mean(1)),
        stack=nn.TransformerEncoder(layer, 2), head=nn.Linear(4, 3),
    )  # fmt: skip


def words():
    return Calling(
        lambda s, x: s.head(torch.relu(s.mix(s.embed(x).mean(1)))),
        embed=nn.Embedding(11, 6, padding_idx=0), mix=nn.Linear(6, 6), head=nn.Linear(6, 3),
    )  # fmt: skip


def normed():
    first = parametrizations.weight_norm(nn.Linear(8, 8))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(8, 3))


def half_frozen():
    model = nn.Sequential(
        nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3)
    )
    model[4].requires_grad_(False)
    return model


def wide():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2000))


def double():
    return nn.Sequential(nn.Linear(8, 8), nn.PReLU(8), nn.Dropout(0.2), nn.Linear(8, 3)).double()


def squeezed():
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    return Calling(lambda s, x: s.layers(x).squeeze(-1), layers=layers)


MODULES = {
    tied: ROW, summed: ROW, residual: ROW, joined: ROW, scaled: ROW, grouped: IMAGE,
    depthwise: IMAGE, transposed: IMAGE, group_norm: IMAGE, hourglass: IMAGE, gated: IMAGE,
    recurrent: SERIES, gru: SERIES, cross_attention: SERIES, encoder: SERIES, words: WORDS,
    normed: ROW, half_frozen: ROW, wide: ROW, double: ROW, squeezed: ROW,
}  # fmt: skip
NO_BUNDLE = {recurrent: "LSTM", gru: "GRU"}
EACH = pytest.mark.parametrize("build", MODULES, ids=lambda build: build.__name__)


def problem_of(build, n=24):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
    source, dtype = seeded(1), next(model.parameters()).dtype
    if build is words:
        x = torch.randint(11, (n, *WORDS), generator=source)
    else:
        x = torch.empty(n, *MODULES[build], dtype=dtype).normal_(generator=source)
    if build is squeezed:
        return bs.Problem(model, bs.likelihoods.Bernoulli(), (x, torch.arange(n) % 2))
    return bs.Problem(model, bs.likelihoods.Categorical(), (x, torch.arange(n) % 3))


def pruned(build, engine):
    """The problem and what is left of its posterior, four in ten prunable weights gone."""
    problem = problem_of(build)
    run = bs.fit(problem, engine, epochs=2, batch_size=8, seed=0)
    kept = 1 - 0.4 * problem.layout.n_sparse / problem.layout.size
    return problem, bs.prune(run.posterior, bs.rules.keep_zeros(1 - kept, score="magnitude"))


@EACH
@pytest.mark.parametrize(
    "engine", ["map", "flat_vi", "sbnn-local", "bmr", "horseshoe", "sgld", "sghmc-em"]
)
def test_a_module_is_trained_pruned_compacted_and_read_back(build, engine, tmp_path):
    problem, sparse = pruned(build, ENGINES[engine])
    assert sparse.zeros > 0
    masked = sparse.to_module()
    saved = load_sparse(bs.save(sparse, tmp_path / "sparse.safetensors"), problem)
    small = bs.compact(sparse, problem.x[:4])
    with torch.no_grad():
        expected = masked(problem.x)
        assert torch.equal(saved.to_module()(problem.x), expected)
        torch.testing.assert_close(small(problem.x), expected, atol=1e-5, rtol=1e-5)
    assert bs.predict(sparse, problem.x[:3], n_samples=2).probs.isfinite().all()
    if build in NO_BUNDLE:
        with pytest.raises(UnsupportedModelError, match=NO_BUNDLE[build]):
            bs.save(small, tmp_path / "bundle", example=problem.x[:4])
        return
    bundle = bs.load(bs.save(small, tmp_path / "bundle", example=problem.x[:4]))
    assert torch.equal(bundle(problem.x), small(problem.x))


@EACH
def test_message_passing_names_the_layer_it_does_not_know(build):
    problem = problem_of(build)
    if build is wide:
        assert bs.fit(problem, bs.TDAMP(), epochs=1, batch_size=8).posterior.mean.isfinite().all()
        return
    with pytest.raises(UnsupportedModelError, match=r"^TDAMP: "):
        bs.fit(problem, bs.TDAMP(), epochs=1)


@pytest.mark.parametrize("build", [gru, grouped, transposed, normed], ids=lambda b: b.__name__)
def test_what_onnx_says_is_what_the_small_network_says(build, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    problem, sparse = pruned(build, ENGINES["sbnn-local"])
    small = bs.compact(sparse, problem.x[:4])
    path = bs.export_onnx(small, tmp_path / "small.onnx", problem.x[:4])
    session = runtime.InferenceSession(str(path))
    (found,) = session.run(None, {session.get_inputs()[0].name: problem.x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), small(problem.x), atol=1e-5, rtol=1e-4)


def test_a_size_taken_by_len_is_named_with_the_way_out():
    model = Calling(lambda s, x: s.layer(x.reshape(len(x), -1)), layer=nn.Linear(8, 3))
    with pytest.raises(UnsupportedModelError, match=r"len\(x\) .* write x\.shape\[0\]"):
        bs.compact(model, torch.ones(2, 8))
