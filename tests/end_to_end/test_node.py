"""Exported files run in Node.js: data, posterior, ONNX, onnxruntime-node, the same classes.

Needs Node.js and the network once, so it runs only with BAYESIEVE_NODE_TESTS=1; the npm package
is kept in pytest's cache folder.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import bayesieve as bs
from bayesieve.assess.predict import predict
from bayesieve.core.network import materialise
from bayesieve.deliver.onnx import export_onnx
from bayesieve.nets import mlp

pytestmark = pytest.mark.skipif(
    os.environ.get("BAYESIEVE_NODE_TESTS") != "1",
    reason="set BAYESIEVE_NODE_TESTS=1 to install onnxruntime-node from npm and run it",
)
SCRIPT = Path(__file__).parents[2] / "examples" / "node" / "predict.mjs"
PACKAGE = "onnxruntime-node@1.30.0"
N_DIGITS = 200


@pytest.fixture(scope="module")
def node_folder(request):
    """A folder with onnxruntime-node and the example script."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail("BAYESIEVE_NODE_TESTS=1 needs node and npm on the path")
    folder = request.config.cache.mkdir("onnxruntime-node")
    if not (folder / "node_modules" / "onnxruntime-node").is_dir():
        # Its install script fetches GPU libraries, which are not needed.
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", PACKAGE]
        (folder / "package.json").write_text('{"private": true}')
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    shutil.copy(SCRIPT, folder)
    return folder


@pytest.fixture(scope="module")
def trained():
    """A posterior of the digits and the inputs to ask it about."""
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    data = bs.load_data("digits")
    torch.manual_seed(0)
    model = mlp(data.input_shape, data.n_outputs, (32,))
    problem = bs.Problem(model, bs.likelihoods.Categorical(), data.train)
    run = bs.fit(problem, bs.SBNN(lr=1e-2), epochs=20, seed=0)
    return run.posterior, data.test.x[:N_DIGITS], data.test.y[:N_DIGITS], data


def run_node(folder, model, x, tmp_path):
    inputs = tmp_path / "inputs.json"
    inputs.write_text(json.dumps({"shape": list(x.shape), "data": x.flatten().tolist()}))
    command = ["node", SCRIPT.name, str(model), str(inputs)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_point_model_gives_the_same_classes(node_folder, trained, tmp_path):
    posterior, x, y, data = trained
    module = materialise(posterior.network, posterior.mean, posterior.buffers)
    path = export_onnx(
        module, tmp_path / "model.onnx", x, classes=data.classes, preprocessing=data.preprocessing
    )
    found = run_node(node_folder, path, x, tmp_path)
    assert len(x) == N_DIGITS
    assert found == {"classes": module(x).argmax(1).tolist()}
    assert (torch.tensor(found["classes"]) == y).float().mean() > 0.8


def test_posterior_draws_give_the_same_classes_and_uncertainty(node_folder, trained, tmp_path):
    posterior, x, _, _ = trained
    module = materialise(posterior.network, posterior.mean, posterior.buffers)
    path = export_onnx(module, tmp_path / "draws.onnx", x, posterior=posterior, n_samples=5)
    found = run_node(node_folder, path, x, tmp_path)
    expected = predict(posterior, x, n_samples=5)
    assert found["classes"] == expected.label.tolist()
    assert found["entropy"] == pytest.approx(expected.entropy.tolist(), abs=1e-4)
    assert found["mutual_information"] == pytest.approx(expected.epistemic.tolist(), abs=1e-4)


def test_usage_is_said_when_arguments_lack(node_folder):
    done = subprocess.run(
        ["node", SCRIPT.name], cwd=node_folder, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "usage: node predict.mjs model.onnx inputs.json\n")
