"""The likelihood of docs/skeletons, from outside the package, through every room."""

import ast
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bayesieve as bs
from bayesieve.core import likelihoods
from bayesieve.core.priors import Normal
from bayesieve.data import DataSet, Examples
from bayesieve.deliver.bundle import read_bundle
from bayesieve.deliver.onnx import read_onnx
from bayesieve.deliver.serving import bundle_columns, onnx_columns, predict_bundle
from bayesieve.report.page import write_report
from bayesieve.runs.build import build_likelihood
from bayesieve.runs.config import NetConfig

ROOT = Path(__file__).parents[3]


def load_skeleton():
    path = ROOT / "docs" / "skeletons" / "likelihood.py"
    spec = importlib.util.spec_from_file_location("skeleton_likelihood", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Exponential


Exponential = load_skeleton()
SOURCE = torch.Generator().manual_seed(0)
X = torch.rand(400, 3, generator=SOURCE)
MEAN = (1 + 2 * X[:, :1]).exp()  # the other two columns do nothing
Y = MEAN * torch.empty_like(MEAN).exponential_(generator=SOURCE)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    # the examples of the documentation may have registered a class of the same name
    monkeypatch.setitem(likelihoods._REGISTERED, "Exponential", Exponential)


@pytest.fixture(scope="module")
def problem():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for layer in (model[0], model[2]):
            layer.reset_parameters()
    return bs.Problem(model, Exponential(), (X, Y))


@pytest.fixture(scope="module")
def run(problem):
    held_out = bs.Validation((X[:50], Y[:50]), patience=50)
    return bs.fit(
        problem, bs.FlatVI(Normal(1.0), lr=0.02), epochs=120, batch_size=50, validation=held_out
    )


@pytest.fixture(scope="module")
def sparse(run):
    return bs.prune(run.posterior, bs.rules.keep_zeros(0.3))


def test_the_density_is_torchs():
    output = torch.linspace(-2, 3, 10, dtype=torch.float64)[:, None]
    times = torch.arange(1, 11, dtype=torch.float64)[:, None]
    law = torch.distributions.Exponential((-output).exp())
    exact = law.log_prob(times)
    torch.testing.assert_close(Exponential().log_prob(output, times, {}), exact[:, 0])
    torch.testing.assert_close(Exponential().log_density(times, output.exp(), None), exact)
    low, high = Exponential().interval(output.exp(), None, 0.8)
    torch.testing.assert_close(law.cdf(high) - law.cdf(low), torch.full_like(low, 0.8))
    torch.testing.assert_close(law.cdf(low), torch.full_like(low, 0.1))


def test_it_trains_and_is_evaluated(run):
    result = bs.evaluate(run.posterior, (X, Y), n_samples=10)
    best = torch.distributions.Exponential(1 / MEAN).log_prob(Y).mean().item()
    assert result["log_lik"] == pytest.approx(best, abs=0.05)
    assert result["coverage_90"] == pytest.approx(0.9, abs=0.05)
    assert run.history[-1]["val_rmse"] < run.history[0]["val_rmse"]


def test_predictions_have_its_moments_and_draws(run):
    prediction = bs.predict(run.posterior, X[:5], n_samples=50)
    drawn = prediction.sample(20_000, torch.Generator().manual_seed(0))
    assert drawn.min() > 0
    torch.testing.assert_close(drawn.mean(0), prediction.mean, rtol=0.05, atol=0)
    torch.testing.assert_close(drawn.std(0), prediction.std, rtol=0.05, atol=0)


def test_laplace_uses_its_curvature(problem, run):
    q = bs.laplace(problem, run.posterior, labels="exact")
    w = run.posterior.mean
    jacobian = torch.func.jacrev(
        lambda flat: torch.func.functional_call(
            problem.network.skeleton, problem.network.split(flat)[0], (X,)
        )
    )(w)[:, 0]
    information = jacobian.square().sum(0)
    expected = (information + q.prior.std**-2).rsqrt()
    torch.testing.assert_close(q.std, expected, rtol=1e-3, atol=1e-6)


def test_a_pruned_network_becomes_a_bundle(sparse, tmp_path):
    assert sparse.removed == pytest.approx(0.3, abs=0.1)
    folder = bs.save(sparse.to_module(), tmp_path / "b", example=X[:4], sparse=sparse)
    bundle = read_bundle(folder)
    assert bundle.likelihood == Exponential()
    assert "exponential, its standard deviation is the mean" in (folder / "README.md").read_text()
    columns = bundle_columns(predict_bundle(bundle, X[:3]), None, None)
    mean = bs.predict(sparse, X[:3]).mean[:, 0]
    assert columns["mean"] == pytest.approx(mean.tolist(), rel=1e-5)
    assert columns["aleatoric"] == pytest.approx(mean.tolist(), rel=1e-5)
    assert columns["lower_90"] == pytest.approx((-mean * math.log(0.95)).tolist(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [0, 5])
def test_it_is_exported_to_onnx(sparse, n_samples, tmp_path):
    pytest.importorskip("onnxruntime")
    path = bs.export_onnx(
        sparse.to_module(), tmp_path / "m.onnx", X[:4], posterior=sparse.posterior,
        n_samples=n_samples,
    )  # fmt: skip
    columns = onnx_columns(read_onnx(path), X[:3])
    expected = bs.predict(sparse, X[:3], n_samples=n_samples)
    assert columns["mean"] == pytest.approx(expected.mean[:, 0].tolist(), rel=1e-4)
    assert columns["std"] == pytest.approx(expected.std[:, 0].tolist(), rel=1e-4)


def test_the_report_shows_it_and_says_why_there_is_nothing_to_play_with(run, sparse, tmp_path):
    half = (Examples(X[:200], Y[:200]), Examples(X[200:], Y[200:]))
    data = DataSet("times", *half, "regression")
    path = write_report(sparse, data, tmp_path / "report.html", before=run.posterior)
    text = path.read_text(encoding="utf-8")
    assert "the page does not know the likelihood Exponential" in text
    assert "coverage_90" in text


def test_an_unknown_likelihood_says_what_to_import(monkeypatch):
    monkeypatch.setattr(likelihoods, "_REGISTERED", {})
    with pytest.raises(ValueError, match=r"unknown .* 'Exponential'.*likelihoods\.register"):
        likelihoods.from_dict(json.loads(json.dumps(Exponential().to_dict())))


KINDS = [likelihoods.likelihood_class(name) for name in likelihoods.NAMES]
NAMES = {*(kind.__name__ for kind in KINDS), "ClassLikelihood", "RealLikelihood"}


@pytest.mark.parametrize("name", likelihoods.NAMES)
def test_the_command_line_knows_every_likelihood(name):
    kind = likelihoods.likelihood_class(name)
    train = SimpleNamespace(y=torch.ones(3))
    data = SimpleNamespace(name="some data", task=kind.task, train=train)
    assert isinstance(build_likelihood(NetConfig(likelihood=name), data), kind)


def test_a_likelihood_that_is_none_is_refused_with_the_names():
    with pytest.raises(ValueError, match=r"must be one of categorical.*Did you mean 'gaussian'"):
        likelihoods.likelihood_class("gausian")


@pytest.mark.slow
def test_nobody_else_asks_what_a_likelihood_is():
    package = ROOT / "src" / "bayesieve"
    asking = []
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "core" / "likelihoods") or "scratch" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "isinstance",
                "issubclass",
            ):
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            elif isinstance(node, ast.MatchClass):
                asked = {ast.unparse(node.cls)}
            elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
                asked = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            else:
                continue
            if asked & NAMES:
                asking.append(f"{path.relative_to(package)}:{node.lineno}")
    assert not asking, f"ask the likelihood instead: {asking}"
