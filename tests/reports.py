"""Runs to report on, made in a second, and JavaScript of the page run by Node."""

import json
import shutil
import subprocess

import pytest
import torch

import bayesieve as bs
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples
from bayesieve.data import DataSet, Examples
from bayesieve.nets import mlp
from bayesieve.report.page import asset
from bayesieve.report.source import Limits, Source
from bayesieve.training.schedule import Schedule

QUICK = Limits(points=5, draws=4)
# what works without a document of a browser
PURE = ("numbers.js", "state.js", "forward.js", "inputs.js", "familiarity.js")


def digits_source(*, zeros=0.8, epochs=4, kl=1.0, **provenance):
    """A small SBNN on the digits, pruned in one shot."""
    data = bs.load_data("digits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem = bs.Problem(
            mlp(data.input_shape, data.n_outputs, (20,)), Categorical(), data.train
        )
    run = bs.fit(problem, bs.SBNN(lr=1e-2), epochs=epochs, seed=0)
    sparse = bs.prune(run.posterior, bs.rules.keep_zeros(zeros))
    known = {"before": run.posterior, "history": run.history}
    origin = {"command": "bayesieve demo", **provenance}
    return Source("digits", "sbnn on digits", sparse, data, kl=kl, provenance=origin, **known)


def table_data(task="regression", n=80):
    """Columns a, b (numbers) and c (text), of which b means nothing."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(n, 2, generator=generator)
    level = torch.randint(2, (n,), generator=generator)
    x = torch.cat([raw, torch.nn.functional.one_hot(level, 2)], 1)
    signal = raw[:, 0] + level
    columns = [
        {"name": "a", "kind": "numeric", "mean": 5.0, "std": 2.0, "fill": None},
        {"name": "b", "kind": "numeric", "mean": 0.0, "std": 1.0, "fill": None},
        {"name": "c", "kind": "category", "levels": ["no", "yes"], "fill": None},
    ]
    recipe = {"kind": "table", "columns": columns, "target": {"name": "y"}}
    names = ("a", "b", "c=no", "c=yes")
    if task == "regression":
        part = Examples(x, signal, torch.tensor(10.0), torch.tensor(3.0))
        return DataSet("toy", part, part, task, None, names, recipe)
    part = Examples(x, (signal > 0.5).long())
    return DataSet("toy", part, part, task, ("low", "high"), names, recipe)


def table_source(task="regression", engine=None):
    """A small network on that table, 60 % of its parameters kept."""
    data = table_data(task)
    torch.manual_seed(0)
    likelihood = Gaussian(1.0) if task == "regression" else Categorical()
    model = mlp(data.input_shape, 1 if task == "regression" else 2, (6,))
    problem = bs.Problem(model, likelihood, data.train)
    schedule = Schedule(kl=0.01)  # few examples: the prior would win
    engine = engine or bs.FlatVI(lr=3e-2)
    fitted = bs.fit(problem, engine, epochs=60, seed=0, schedule=schedule).posterior
    score = "magnitude" if isinstance(fitted, Samples) else "snr"
    return Source(
        "toy", "toy", bs.prune(fitted, bs.rules.keep_zeros(0.4, score)), data, score=score
    )


def untrained(module, likelihood, shape, *, std=0.05, kept=0.7):
    """A posterior over the weights a module has, a part of them 0, for inputs of this shape."""
    network = Network.of(module, likelihood)
    generator = torch.Generator().manual_seed(1)
    mean = network.weights_of(module)
    keep = torch.rand(mean.shape, generator=generator) < kept
    keep[network.layout.n_sparse :] = True
    spread = torch.full_like(mean, std)
    spread[network.layout.n_bayesian :] = 0
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    return Factorised(network, mean, spread, buffers=buffers).masked(keep), shape


def node(code, **values):
    """What `code`, the body of a function of `given`, returns in Node with the page's scripts."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is not on the path")
    scripts = "\n".join(asset(name) for name in PURE)
    program = f"""
        const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
        {scripts}
        const result = (() => {{ {code} }})();
        process.stdout.write(JSON.stringify(result));
    """
    done = subprocess.run(
        ["node", "-e", program],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
