"""The network as a function of a flat vector, against the module itself."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network, materialise
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
