"""The network inside the page: what is stored is the run's network, in torch and in JavaScript."""

import pytest
import torch
from scipy import stats
from torch import nn

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, StudentT
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Samples
from bayesieve.data import DataSet, Examples
from bayesieve.errors import UnsupportedModelError, VerificationError
from bayesieve.nets import PiecewiseLinear, lenet5, mlp
from bayesieve.report import embed as embedding
from bayesieve.report.embed import embed, run_embedded
from bayesieve.report.source import Limits, Source
from reports import node, untrained
from zoo import Calling

FORWARD = """
    const network = loadNetwork(given.network);
    return given.x.map((x) => Array.from(forward(network, x, given.member)));
"""


def wired():
    """Every step a page knows, with BatchNorm statistics that are not the initial ones."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, padding=(1, 2), bias=False), nn.BatchNorm2d(4),
        nn.Tanh(), nn.AvgPool2d(2, padding=1), nn.Conv2d(4, 6, 3, stride=(1, 2), groups=2,
        dilation=(2, 1)), nn.SiLU(), nn.MaxPool2d(2, 1), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Sigmoid(), nn.Linear(7, 3),
    )  # fmt: skip
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return module.eval(), (2, 11, 9)


def small_lenet():
    torch.manual_seed(0)
    return lenet5((1, 28, 28), 10), (1, 28, 28)


def plain():
    torch.manual_seed(0)
    return mlp((12,), 3, (9, 5), activation="relu"), (12,)


def binned():
    """Embedded columns of a table, as fit-table has them; bins are narrow and far apart."""
    torch.manual_seed(0)
    embedding = PiecewiseLinear.of(torch.randn(300, 4).pow(3), 6)
    return nn.Sequential(embedding.layers(), mlp((embedding.width,), 3, (9,))), (4,)


NETS = {"wired": wired, "lenet5": small_lenet, "mlp": plain, "binned": binned}


def source_of(module, shape, likelihood=None, posterior=None):
    likelihood = likelihood or Categorical()
    if posterior is None:
        posterior, _ = untrained(module, likelihood, shape)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(20, *shape, generator=generator)
    if isinstance(likelihood, Gaussian | Heteroscedastic | StudentT):
        data = DataSet("toy", Examples(x, x.flatten(1)[:, 0]), Examples(x, x.flatten(1)[:, 0]),
                       "regression")  # fmt: skip
    else:
        part = Examples(x, torch.zeros(20, dtype=torch.long))
        n = 2 if isinstance(likelihood, Bernoulli) else 10
        data = DataSet("toy", part, part, "classification", tuple("abcdefghij"[:n]))
    return Source("toy", "toy", posterior, data)


def levels_of(posterior):
    return (posterior.mean != 0).long()


@pytest.mark.parametrize("name", NETS)
def test_stored_networks_give_the_outputs_of_the_module(name):
    module, shape = NETS[name]()
    source = source_of(module, shape)
    network = embed(source, levels_of(source.posterior), Limits())
    x = source.data.test.x
    expected = materialise(source.posterior.network, source.posterior.mean,
                           source.posterior.buffers)(x)  # fmt: skip
    torch.testing.assert_close(run_embedded(network, x), expected, rtol=0, atol=1e-3)
    assert network["check"]["max_difference"] < 1e-3
    assert network["check"]["changed"] == 0


@pytest.mark.parametrize("name", NETS)
def test_javascript_gives_the_outputs_of_torch(name):
    module, shape = NETS[name]()
    source = source_of(module, shape)
    limits = Limits(draw_bytes=4 * 2 * source.posterior.layout.size)
    network = embed(source, levels_of(source.posterior), limits)
    x = source.data.test.x[:6]
    for member in (0, 3):
        actual = node(FORWARD, network=network, x=x.flatten(1).tolist(), member=member)
        expected = run_embedded(network, x, member)
        torch.testing.assert_close(torch.tensor(actual), expected, rtol=1e-4, atol=1e-4)


def test_draws_are_those_of_the_posterior():
    module, shape = plain()
    source = source_of(module, shape)
    network = embed(source, levels_of(source.posterior), Limits())
    n = network["n_draws"]
    assert n == 16
    x = source.data.test.x
    exact = predict(source.model, x, n_samples=n).probs.float()
    actual = torch.stack([run_embedded(network, x, i + 1).softmax(1) for i in range(n)]).mean(0)
    torch.testing.assert_close(actual, exact, rtol=0, atol=1e-4)


def test_javascript_averages_and_splits_uncertainty_like_predict():
    module, shape = plain()
    posterior, _ = untrained(module, Categorical(), shape, std=0.3)
    draws = posterior.draw(6, torch.Generator().manual_seed(3))
    source = source_of(module, shape, posterior=Samples(posterior.network, draws))
    network = embed(source, levels_of(source.posterior), Limits())
    assert network["n_draws"] == 6  # every draw once
    x = source.data.test.x
    code = """
        const network = loadNetwork(given.network);
        return given.x.map((x) => classify(network, x));
    """
    actual = node(code, network=network, x=x.tolist())
    expected = predict(source.model, x, n_samples=6)
    probs = torch.tensor([row["probs"] for row in actual])
    torch.testing.assert_close(probs, expected.probs.float(), rtol=0, atol=1e-3)
    for key, values in (("total", expected.entropy), ("epistemic", expected.epistemic)):
        numbers = torch.tensor([row[key] for row in actual]).double()
        torch.testing.assert_close(numbers, values, rtol=0, atol=2e-3)


def test_a_regression_and_its_noise():
    module, shape = mlp((5,), 1, (6,)), (5,)
    likelihood = Gaussian(0.5, learned=True)
    source = source_of(module, shape, likelihood)
    network = embed(source, levels_of(source.posterior), Limits())
    assert network["output"] == "normal"
    assert network["noise_std"] == pytest.approx([0.5] * 17)
    code = "const n = loadNetwork(given.network); return given.x.map((x) => regress(n, x));"
    actual = node(code, network=network, x=source.data.test.x.tolist())
    outputs = torch.stack([run_embedded(network, source.data.test.x, i + 1) for i in range(16)])
    center = torch.tensor([row["center"] for row in actual])
    spread = torch.tensor([row["epistemic"] for row in actual])
    torch.testing.assert_close(center, outputs.mean(0)[:, 0], rtol=0, atol=1e-4)
    torch.testing.assert_close(spread, outputs.std(0, correction=0)[:, 0], rtol=0, atol=1e-4)


def test_noise_that_depends_on_the_input():
    module, shape = mlp((5,), 2, (6,)), (5,)
    source = source_of(module, shape, Heteroscedastic(0.4))
    network = embed(source, levels_of(source.posterior), Limits())
    x = source.data.test.x
    code = "const n = loadNetwork(given.network); return given.x.map((x) => regress(n, x));"
    actual = node(code, network=network, x=x.tolist())
    expected = predict(source.model, x, n_samples=16)
    for key, values in (("center", expected.mean), ("aleatoric", expected.aleatoric_std),
                     ("epistemic", expected.epistemic_std)):  # fmt: skip
        numbers = torch.tensor([row[key] for row in actual]).double()
        torch.testing.assert_close(numbers, values[:, 0].double(), rtol=0, atol=1e-4)
    assert node("return selfCheck(loadNetwork(given.network));", network=network)["ok"]


def test_batchnorm_statistics_of_each_draw():
    module, shape = wired()
    posterior, _ = untrained(module, Categorical(), shape)
    draws = posterior.draw(5, torch.Generator().manual_seed(3))
    statistics = {"2.running_mean": torch.randn(5, 4, generator=torch.Generator().manual_seed(4))}
    samples = Samples(posterior.network, draws, buffers=posterior.buffers, draw_buffers=statistics)
    source = source_of(module, shape, posterior=samples)
    network = embed(source, levels_of(source.posterior), Limits())
    x = source.data.test.x
    actual = torch.stack([run_embedded(network, x, i + 1).softmax(1) for i in range(5)]).mean(0)
    exact = predict(samples, x, n_samples=5).probs.float()
    torch.testing.assert_close(actual, exact, rtol=0, atol=1e-3)


def test_one_logit_gives_two_classes():
    module, shape = mlp((5,), 1, (6,)), (5,)
    source = source_of(module, shape, Bernoulli())
    network = embed(source, levels_of(source.posterior), Limits())
    code = "const n = loadNetwork(given.network); return given.x.map((x) => classify(n, x).mean);"
    actual = node(code, network=network, x=source.data.test.x.tolist())
    expected = predict(source.model, source.data.test.x).probs
    torch.testing.assert_close(torch.tensor(actual), expected.float(), rtol=0, atol=1e-4)


def test_the_slider_prunes_the_network_in_the_page():
    module, shape = plain()
    source = source_of(module, shape)
    layout = source.posterior.layout
    first = levels_of(source.posterior)
    first[layout.sparse] *= torch.randint(1, 4, (layout.n_sparse,),
                                          generator=torch.Generator().manual_seed(0))  # fmt: skip
    network = embed(source, first, Limits())
    keep = first > 1
    keep[layout.n_sparse :] = True  # without outgoing weights a bias has no effect
    x = source.data.test.x
    w = (source.posterior.mean * keep)[None]
    expected = source.posterior.network.outputs(w, x, source.posterior.buffers)[0]
    code = """
        const network = loadNetwork(given.network);
        return given.x.map((x) => Array.from(forward(network, x, 0, 1)));
    """
    actual = node(code, network=network, x=x.tolist())
    torch.testing.assert_close(torch.tensor(actual), expected, rtol=0, atol=1e-3)


def test_the_page_checks_itself():
    module, shape = plain()
    source = source_of(module, shape)
    network = embed(source, levels_of(source.posterior), Limits())
    code = "return selfCheck(loadNetwork(given.network));"
    honest = node(code, network=network)
    assert honest["ok"]
    assert honest["n"] == 8
    network["check"]["expected"][0][0] += 0.01
    wrong = node(code, network=network)
    assert not wrong["ok"]
    assert wrong["worst"] == pytest.approx(0.01, rel=0.1)


def branching():
    return Calling(lambda s, x: s.a(x) + s.b(x), a=nn.Linear(4, 3), b=nn.Linear(4, 3))


def test_networks_that_are_no_chain_are_left_out_with_the_reason():
    source = source_of(branching(), (4,))
    with pytest.raises(UnsupportedModelError, match="branches at") as caught:
        embed(source, levels_of(source.posterior), Limits())
    assert "export_c" not in str(caught.value)


def test_large_networks_are_left_out_with_advice():
    module, shape = plain()
    source = source_of(module, shape)
    with pytest.raises(UnsupportedModelError, match=r"prune it first$"):
        embed(source, levels_of(source.posterior), Limits(model_bytes=100))


def test_draws_are_left_out_before_the_network():
    module, shape = plain()
    source = source_of(module, shape)
    network = embed(source, levels_of(source.posterior), Limits(draw_bytes=100))
    assert network["n_draws"] == 0
    actual = node("return classify(loadNetwork(given.network), given.x);", network=network,
                 x=source.data.test.x[0].tolist())  # fmt: skip
    assert actual["epistemic"] is None


def test_a_wrong_network_does_not_get_into_a_page(monkeypatch):
    module, shape = plain()
    source = source_of(module, shape)
    honest = embedding.run_embedded
    monkeypatch.setattr(embedding, "run_embedded", lambda *args: honest(*args) * 1.5)
    with pytest.raises(VerificationError, match="differs from the run"):
        embed(source, levels_of(source.posterior), Limits())


def test_student_t_noise_keeps_its_tails():
    """Density and interval in the page against scipy's Student-t of the same standard deviation."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    source = source_of(module, (3,), StudentT(scale=0.5, df=5.0))
    network = embed(source, torch.ones_like(source.posterior.mean).long(), Limits())
    std = 0.5 * (5 / 3) ** 0.5
    assert network["df"] == 5
    assert network["noise_std"][0] == pytest.approx(std, rel=1e-5)
    assert network["factor_90"] * std == pytest.approx(0.5 * stats.t(5).ppf(0.95), rel=1e-4)
    actual = node("return given.v.map(noiseShape(given.df, given.std));", v=[0, 0.7, -2], df=5,
                 std=std)  # fmt: skip
    exact = stats.t(5, scale=0.5).pdf([0, 0.7, -2])
    assert actual == pytest.approx(exact / exact[0], rel=1e-6)
    normal = node("return noiseShape(null, 2)(3);")
    assert normal == pytest.approx(stats.norm.pdf(1.5) / stats.norm.pdf(0))
