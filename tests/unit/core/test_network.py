"""The network as a function of a flat vector, against the module itself."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network, materialise
from bayesieve.fast import evaluator as evaluator_module
from bayesieve.fast.evaluator import evaluator
from problems import normal
from zoo import BY_NAME, ZOO, Branching

CASES = pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)


def network_of(case):
    return Network.of(case.model(), case.likelihood)


def with_weights(case, network, w):
    """The original module holding the weights w, in eval mode: the naive route."""
    model = case.model().eval()
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name in network.layout.names:
            if name in named:
                named[name].copy_(w[network.layout.slices[name]].view(named[name].shape))
    return model


@CASES
def test_outputs_equal_the_module_in_eval_mode(case):
    network = network_of(case)
    w = network.weights_of(case.model()) + 0.3 * normal(3, network.layout.size, seed=1)
    x = case.data().x
    outputs = network.outputs(w, x, network.buffers())
    assert not outputs.requires_grad
    for row, output in zip(w, outputs, strict=True):
        torch.testing.assert_close(output, with_weights(case, network, row)(x).detach())


@CASES
def test_materialised_modules_hold_the_weights(case):
    network = network_of(case)
    w = network.weights_of(case.model()) + 0.3 * normal(network.layout.size, seed=1)
    module = materialise(network, w, network.buffers())
    assert type(module) is type(case.model())
    assert not module.training
    x = case.data().x
    torch.testing.assert_close(module(x), with_weights(case, network, w)(x))
    before = w.clone()
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.zero_()
    assert torch.equal(w, before)
    assert all((b == network.buffers()[n]).all() for n, b in network.skeleton.named_buffers())


def test_the_skeleton_holds_no_trainable_weight():
    network = network_of(BY_NAME["frozen"])
    meta = {name: p.is_meta for name, p in network.skeleton.named_parameters()}
    assert meta == {"0.weight": False, "0.bias": False, "2.weight": True, "2.bias": True}


def test_later_changes_to_the_model_do_not_reach_the_network():
    case = BY_NAME["batch_norm"]
    model = case.model()
    network = Network.of(model, case.likelihood)
    w, x = network.weights_of(model), case.data().x
    before = network.outputs(w[None], x, network.buffers())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    assert torch.equal(network.outputs(w[None], x, network.buffers()), before)


def test_outputs_leave_modes_as_they_were():
    model = BY_NAME["batch_norm"].model().train()
    model[1].eval()
    network = Network.of(model, BY_NAME["batch_norm"].likelihood)
    modes = [m.training for m in network.skeleton.modules()]
    network.outputs(network.weights_of(model)[None], BY_NAME["batch_norm"].data().x, {})
    assert [m.training for m in network.skeleton.modules()] == modes
    assert modes == [True, True, False, True, True]


def test_buffers_are_copies_and_decide_the_output():
    case = BY_NAME["batch_norm"]
    network = network_of(case)
    buffers = network.buffers()
    buffers["1.running_mean"] += 1
    assert (network.buffers()["1.running_mean"] == 0).all()
    w, x = network.weights_of(case.model())[None], case.data().x
    model = case.model().eval()
    model[1].running_mean += 1
    torch.testing.assert_close(network.outputs(w, x, buffers)[0], model(x).detach())


def test_split_separates_the_numbers_of_the_likelihood():
    network = Network.of(nn.Linear(2, 1), Gaussian(0.5, learned=True))
    assert network.layout.names == ("weight", "bias", "likelihood.log_noise_std")
    parameters, extra = network.split(torch.arange(8.0).view(2, 4))
    assert set(parameters) == {"weight", "bias"}
    assert extra["log_noise_std"].tolist() == [3.0, 7.0]


# PyTorch's CPU attention has no batching rule: slow under vmap, but right.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@CASES
def test_what_vmap_can_follow_is_known(case):
    network = network_of(case)
    assert network.is_batchable(case.data(2).x) is (case.build is not Branching)


def test_attention_stays_off_the_kernel_that_needs_aligned_weights(monkeypatch):
    def refused(*_):
        raise AssertionError("views of a flat vector are not aligned")

    monkeypatch.setattr(torch, "_native_multi_head_attention", refused)
    case = BY_NAME["attention"]
    network, x = network_of(case), case.data(2).x
    w = network.weights_of(case.model())[None]
    network.outputs(w, x, network.buffers())
    assert torch.backends.mha.get_fastpath_enabled()  # as it was


def test_moving_to_the_same_device_is_free():
    network = network_of(BY_NAME["mlp"])
    assert network.to("cpu") is network


def test_moving_to_another_device_keeps_structure_and_leaves_the_original():
    network = network_of(BY_NAME["batch_norm"])
    moved = network.to("meta")
    assert {b.device.type for b in moved.skeleton.buffers()} == {"meta"}
    assert {b.device.type for b in network.skeleton.buffers()} == {"cpu"}
    assert moved.layout == network.layout


def mirrored_pairs(network, n_pairs, seed=1):
    """A centre, (d,), and draws around it, each followed by its mirror, (2 n, d)."""
    centre = 0.5 * normal(network.layout.size, seed=seed)
    shifts = 0.3 * normal(n_pairs, network.layout.size, seed=seed + 1)
    return centre, torch.stack([centre + shifts, centre - shifts], 1).flatten(0, 1)


class TiedDecoder(nn.Module):
    """Reads the weights of its first layer a second time, and changes that layer's output."""

    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(5, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        hidden = self.act(self.first(x))
        return hidden @ self.first.weight + self.first(x).sum(1, keepdim=True) + x


class Twice(nn.Module):
    """Gives its layer the inputs, then other numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x):
        return self.layer(self.layer(x[:, :5]).tanh()) + self.layer(x.flip(1))


def normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Linear(4, 2))


def squared_by_hook():
    layer = nn.Linear(5, 4)
    layer.register_forward_pre_hook(
        lambda one, _: one._parameters.update(weight=one._parameters["weight"].square())
    )
    return nn.Sequential(layer, nn.Linear(4, 2))


@pytest.mark.parametrize("build", [TiedDecoder, Twice, normed, squared_by_hook])
def test_mirrored_vectors_have_the_outputs_of_any_vectors(monkeypatch, build):
    monkeypatch.setattr(evaluator_module, "_WORTH_SAVING", 0)
    network = Network.of(build().double(), Gaussian())
    centre, w = mirrored_pairs(network, 3)
    batches = normal(7, 5, seed=4).split(3)
    with evaluator(network, batches, {}, centre) as evaluate:
        outputs = torch.cat([evaluate(part) for part in w.split((1, 1, 3, 1))])
    torch.testing.assert_close(outputs, network.outputs(w, torch.cat(batches), {}))


@CASES
def test_mirrored_vectors_in_every_network(monkeypatch, case):
    monkeypatch.setattr(evaluator_module, "_WORTH_SAVING", 0)
    network, x = network_of(case), case.data().x
    centre, w = mirrored_pairs(network, 2)
    with evaluator(network, [x, x[:2]], network.buffers(), centre) as evaluate:
        outputs = evaluate(w)
    expected = [network.outputs(w, part, network.buffers()) for part in (x, x[:2])]
    torch.testing.assert_close(outputs, torch.cat(expected, 1))


def test_the_second_of_two_mirrored_vectors_takes_no_product_in_the_first_layer(monkeypatch):
    monkeypatch.setattr(evaluator_module, "_WORTH_SAVING", 0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    network = Network.of(layers.double(), Gaussian())
    centre, w = mirrored_pairs(network, 5)
    products, linear = [], torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda *args: products.append(len(args[1])) or linear(*args)
    )
    with evaluator(network, [normal(2, 2, 3, seed=4)], {}, centre) as evaluate:
        evaluate(w)
    assert products.count(4) == 1 + 5  # the centre's, and one of each pair
    assert products.count(3) == 10


def test_an_evaluator_returns_the_module_as_it_borrowed_it(monkeypatch):
    monkeypatch.setattr(evaluator_module, "_WORTH_SAVING", 0)
    case = BY_NAME["batch_norm"]
    network = network_of(case)
    with network.borrowed() as module:
        tables = [dict(t) for m in module.modules() for t in (m._parameters, m._buffers)]
    centre, w = mirrored_pairs(network, 1)
    other = {name: value + 1 for name, value in network.buffers().items()}
    wrong = case.data().x[:, :1]
    with (
        evaluator(network, [case.data().x, wrong], other, centre) as run,
        pytest.raises(RuntimeError),
    ):
        run(w)
    with network.borrowed() as again:
        assert again is module
        assert not any("forward" in vars(m) for m in again.modules())
        after = [dict(t) for m in again.modules() for t in (m._parameters, m._buffers)]
    for before, now in zip(tables, after, strict=True):
        assert list(before) == list(now)
        assert all(before[name] is now[name] for name in before)


def test_buffers_of_one_vector_are_not_those_of_the_next():
    case = BY_NAME["batch_norm"]
    network, x = network_of(case), case.data().x
    w, buffers = network.weights_of(case.model())[None], network.buffers()
    moved = {"1.running_mean": buffers["1.running_mean"][None] + 1}
    with evaluator(network, [x], buffers) as evaluate:
        first, then, last = evaluate(w), evaluate(w, moved), evaluate(w)
    assert torch.equal(first, last)
    assert not torch.allclose(first, then)
