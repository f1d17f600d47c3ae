import json
import logging
import sys

import pytest
import torch
from torch import nn

import bayesieve
from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, StudentT
from bayesieve.core.network import Network
from bayesieve.core.posterior import Samples
from bayesieve.data.images import image_recipe, prepare_images
from bayesieve.deliver import export
from bayesieve.deliver import onnx as onnx_export
from bayesieve.deliver.onnx import export_onnx, read_onnx
from bayesieve.errors import DamagedFileError, UnsupportedModelError, VerificationError
from bayesieve.uncertainty.familiarity import Familiarity
from problems import normal32, posterior_around
from zoo import Calling

onnx = pytest.importorskip("onnx", reason="the extra [onnx] is not installed")
runtime = pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
pytest.importorskip("onnxscript", reason="the extra [onnx] is not installed")

CLASSES = ("zero", "one", "zwei", "drei")
PREPROCESSING = {"kind": "image", "mean": [0.5], "label": "Größe"}


def run(path, x):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    actual = session.run(None, {"input": x.numpy()})
    return {name: torch.from_numpy(v) for name, v in zip(names, actual, strict=True)}


def metadata(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


@pytest.fixture(scope="module")
def point(tmp_path_factory):
    """One export of a network in training mode, from a batch of one."""
    module = conv_net().train()
    example = normal32(1, 1, 6, 6)
    path = tmp_path_factory.mktemp("point") / "net.onnx"
    level = logging.getLogger("torch.onnx._internal.exporter._registration").level
    export_onnx(module, path, example, classes=CLASSES, preprocessing=PREPROCESSING)
    assert logging.getLogger("torch.onnx._internal.exporter._registration").level == level
    assert module.training
    return path, module.eval(), example


def test_point_model_gives_logits_for_any_batch(point):
    path, module, _ = point
    for n in (1, 2, 5, 33):
        x = normal32(n, 1, 6, 6, seed=n)
        actual = run(path, x)
        assert list(actual) == ["output"]
        torch.testing.assert_close(actual["output"], module(x), rtol=1e-4, atol=1e-5)
    graph = onnx.load(path).graph
    for value, size in ((graph.input[0], 4), (graph.output[0], 2)):
        sizes = value.type.tensor_type.shape.dim
        assert sizes[0].dim_param == "batch"
        assert len(sizes) == size


def test_metadata_hold_classes_preprocessing_and_version(point):
    actual = metadata(point[0])
    assert json.loads(actual.pop("classes")) == list(CLASSES)
    assert json.loads(actual.pop("preprocessing")) == PREPROCESSING
    assert actual.pop("takes") == "prepared"
    assert actual == {"bayesieve_version": bayesieve.__version__, "n_samples": "0"}


def test_file_stands_alone_and_tells_nothing_else(point):
    path, module, example = point
    data = path.read_bytes()
    assert [p.name for p in path.parent.iterdir()] == ["net.onnx"]
    assert example.numpy().tobytes() not in data
    assert b"stack_trace" not in data
    assert b"/bayesieve/" not in data
    weights = sum(p.numel() for p in module.parameters())
    assert path.stat().st_size < 4 * weights + 2500


REAL_OUTPUTS = ("mean", "aleatoric_std", "epistemic_std")
CASES = {
    "categorical": (Categorical(), 4, ("probability", "entropy", "mutual_information")),
    "bernoulli": (Bernoulli(), 1, ("probability", "entropy", "mutual_information")),
    "gaussian": (Gaussian(0.2, learned=True), 2, REAL_OUTPUTS),
    "student-t": (StudentT(0.2, 5.0, learned=True), 2, REAL_OUTPUTS),
    "heteroscedastic": (Heteroscedastic(0.3, 0.05), 4, REAL_OUTPUTS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_baked_draws_are_those_of_predict(name, tmp_path):
    likelihood, n_outputs, names = CASES[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, n_outputs))
    posterior = posterior_around(model, likelihood)
    path = export_onnx(
        model, tmp_path / "net.onnx", normal32(4, 3), posterior=posterior, n_samples=4, seed=3
    )
    x = normal32(9, 3, seed=5)
    actual = run(path, x)
    expected = predict(posterior, x, n_samples=4, seed=3)
    if likelihood.task == "classification":
        values = (expected.probs, expected.entropy, expected.epistemic)
    else:
        values = (expected.mean, expected.aleatoric_std, expected.epistemic_std)
    assert tuple(actual) == names
    for key, value in zip(names, values, strict=True):
        torch.testing.assert_close(actual[key], value, rtol=1e-4, atol=1e-5, check_dtype=False)
    assert float(actual[names[2]].min()) > 1e-4  # the draws do differ
    assert metadata(path)["task"] == likelihood.task
    assert (metadata(path)["n_samples"], metadata(path)["seed"]) == ("4", "3")


@pytest.mark.slow
def test_samples_and_batch_norm_statistics_are_baked(tmp_path):
    model = conv_net()
    model.train()(3 * normal32(8, 1, 6, 6) + 1)
    network = Network.of(model, Categorical())
    draws = network.weights_of(model) + 0.1 * normal32(3, network.layout.size)
    posterior = Samples(network, draws, buffers=network.buffers())
    path = export_onnx(
        model, tmp_path / "net.onnx", normal32(2, 1, 6, 6), posterior=posterior, n_samples=3,
        classes=CLASSES,
    )  # fmt: skip
    x = normal32(5, 1, 6, 6, seed=1)
    expected = predict(posterior, x, n_samples=3)
    actual = run(path, x)["probability"]
    torch.testing.assert_close(actual, expected.probs, rtol=1e-4, atol=1e-5, check_dtype=False)


@pytest.mark.slow
def test_draws_that_agree_have_no_mutual_information(tmp_path):
    model = nn.Linear(3, 2)
    posterior = posterior_around(model, Categorical(), std=0.0)
    path = export_onnx(
        model, tmp_path / "net.onnx", normal32(2, 3), posterior=posterior, n_samples=2
    )
    actual = run(path, normal32(4, 3, seed=1))
    probability = torch.softmax(model(normal32(4, 3, seed=1)), -1)
    torch.testing.assert_close(actual["probability"], probability.detach())
    torch.testing.assert_close(actual["entropy"], -(probability * probability.log()).sum(-1))
    assert float(actual["mutual_information"].abs().max()) < 1e-6


@pytest.mark.slow
def test_word_numbers_and_double_precision(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2)).double()
    x = torch.tensor([[0, 3, 6], [1, 1, 2]])
    path = export_onnx(module, tmp_path / "net.onnx", x)
    torch.testing.assert_close(run(path, x)["output"], module(x))


def one_batch():
    return Calling(lambda s, x: x.reshape(2, 3) * 2)


def strange():
    return Calling(lambda s, x: torch.special.bessel_j0(x))


class Masked(nn.Module):
    """Averages the tokens that are there: an input of zeros alone has no answer."""

    def __init__(self):
        super().__init__()
        self.token, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x):
        there = (x != 0).float()[..., None]
        return self.out((self.token(x) * there).sum(1) / there.sum(1))


@pytest.mark.slow
def test_tokens_are_checked_on_tokens_like_those_given(tmp_path):
    tokens = torch.tensor([[3, 1, 0, 0], [5, 2, 7, 0]])
    path = export_onnx(Masked().eval(), tmp_path / "m.onnx", tokens)
    assert path.is_file()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (one_batch(), r"torch\.export cannot trace"),
        (strange(), r"torch\.onnx cannot convert .*bessel_j0.* or use export_pt2"),
    ],
)
def test_modules_that_onnx_cannot_express(module, message, tmp_path):
    with pytest.raises(UnsupportedModelError, match=f"export_onnx: {message}"):
        export_onnx(module, tmp_path / "net.onnx", torch.ones(2, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_another_result_is_refused_and_the_old_file_kept(tmp_path, monkeypatch):
    module, other = nn.Linear(3, 2), nn.Linear(3, 2)
    trace = export.trace
    monkeypatch.setattr(onnx_export, "trace", lambda who, module, x: trace(who, other, x))
    path = tmp_path / "net.onnx"
    path.write_bytes(b"old")
    with pytest.raises(VerificationError, match="export_onnx: the exported 'output' differs"):
        export_onnx(module, path, torch.ones(2, 3))
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_graph_that_does_not_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_convert", lambda *args: b"\x08\x0anonsense")
    with pytest.raises(VerificationError, match="does not run"):
        export_onnx(nn.Linear(3, 2), tmp_path / "net.onnx", torch.ones(2, 3))
    assert not list(tmp_path.iterdir())


def test_weights_must_fit_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_LIMIT", 31)
    with pytest.raises(UnsupportedModelError, match="2 GiB"):
        export_onnx(nn.Linear(3, 2), tmp_path / "net.onnx", torch.ones(2, 3))


def test_the_extra_is_named_when_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnxruntime .* `pip install 'bayesieve\[onnx\]'`"):
        export_onnx(nn.Linear(3, 2), tmp_path / "net.onnx", torch.ones(2, 3))


def test_arguments_are_checked(tmp_path):
    layer, x, path = nn.Linear(3, 2), torch.ones(2, 3), tmp_path / "net.onnx"
    with pytest.raises(ValueError, match="returns 2 outputs, got 3 names"):
        export_onnx(layer, path, x, classes=("a", "b", "c"))
    with pytest.raises(TypeError, match="classes must be a sequence of names, got 'ab'"):
        export_onnx(layer, path, x, classes="ab")
    with pytest.raises(ValueError, match="n_samples must be >= 0, got -1"):
        export_onnx(layer, path, x, n_samples=-1)
    with pytest.raises(ValueError, match="n_samples = 4 needs a posterior"):
        export_onnx(layer, path, x, n_samples=4)
    other = posterior_around(nn.Linear(3, 5), Categorical())
    with pytest.raises(ValueError, match=r"returns \(5,\) per input where the module .* \(2,\)"):
        export_onnx(layer, path, x, posterior=other, n_samples=2)
    with pytest.raises(ValueError, match="does not run on an example"):
        export_onnx(layer, path, torch.ones(2, 4))
    with pytest.raises(FileNotFoundError, match="export_onnx: the folder"):
        export_onnx(layer, tmp_path / "none" / "net.onnx", x)
    with pytest.raises(ValueError, match="JSON compliant"):
        export_onnx(layer, path, x, preprocessing={"mean": float("nan")})
    assert not list(tmp_path.iterdir())


# --- raw pixels and several inputs


def test_a_file_of_raw_pixels_prepares_them_itself(tmp_path):
    recipe = image_recipe((3, 5, 4), [0.2, 0.4, 0.6], [0.3, 0.2, 0.1])
    pixels = torch.randint(256, (6, 5, 4, 3), generator=torch.Generator().manual_seed(1))
    pixels = pixels.to(torch.uint8)
    x = prepare_images(pixels.numpy(), recipe)
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(12, 4))
    known = Familiarity.of(x.repeat(10, 1, 1, 1) + 0.1 * normal32(60, 3, 5, 4))
    path = export_onnx(net, tmp_path / "a.onnx", x, classes=CLASSES, preprocessing=recipe, raw=True,
                       familiarity=known)  # fmt: skip
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.type) == ("pixels", "tensor(uint8)")
    logits, familiarity = session.run(None, {"pixels": pixels.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), net(x).detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(familiarity), known.score(x).float())
    assert metadata(path)["takes"] == "raw"
    read = read_onnx(path)
    assert (read.input_shape, read.dtype) == ((5, 4, 3), torch.uint8)
    with pytest.raises(Exception, match="Unexpected input data type"):  # no silent misreading
        session.run(None, {"pixels": pixels.float().numpy()})


def test_raw_needs_the_recipe_of_images(tmp_path):
    with pytest.raises(ValueError, match=r"raw needs the preprocessing of float32 images \(3,\)"):
        export_onnx(nn.Linear(3, 2), tmp_path / "a.onnx", normal32(2, 3), raw=True)


class Words(nn.Module):
    """Words whose mean is taken where a mask is 1: an empty mask is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids, mask=None):
        weight = mask[..., None] / mask.sum(1)[:, None, None]
        return {"logits": self.head((self.embed(ids) * weight).sum(1))}


def test_words_with_a_mask_are_checked_on_masks_that_let_something_through(tmp_path):
    torch.manual_seed(0)
    x = {
        "ids": torch.randint(9, (4, 5)),
        "mask": torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]] * 2),
    }
    net = Words()
    path = export_onnx(net, tmp_path / "a.onnx", x)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["ids", "mask"]
    (logits,) = session.run(None, {name: value[:3].numpy() for name, value in x.items()})
    expected = net(**x)["logits"][:3].detach()
    torch.testing.assert_close(torch.from_numpy(logits), expected)
    posterior = posterior_around(net, Categorical())
    path = export_onnx(net, tmp_path / "b.onnx", x, posterior=posterior, n_samples=3)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    probability = session.run(["probability"], {n: v.numpy() for n, v in x.items()})[0]
    wanted = predict(posterior, x, n_samples=3).probs.float()
    torch.testing.assert_close(torch.from_numpy(probability), wanted, rtol=1e-4, atol=1e-5)


def test_inputs_without_names_are_numbered(tmp_path):
    net = nn.Bilinear(3, 2, 4)
    path = export_onnx(net, tmp_path / "a.onnx", (normal32(2, 3), normal32(2, 2)))
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["input_0", "input_1"]
    with pytest.raises(DamagedFileError, match="must have one input"):
        read_onnx(path)
