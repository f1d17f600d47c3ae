"""8-bit weights in the runtime: the kernel equals its twin, and sums stay in 16 bits."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

from bayesieve.deliver import runtime
from bayesieve.deliver.c import quantise_rows
from bayesieve.deliver.runtime import as_runtime, integers, kernels
from bayesieve.deliver.runtime.integers import IntegerLayers, rounded, run_rounded
from bayesieve.deliver.runtime.kernels import Affine, by_input
from bayesieve.errors import UnsupportedModelError
from bayesieve.sieve.compact import compact

SIZES = (1, 2, 4, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 83, 130)  # around every border


pytestmark = pytest.mark.usefixtures("quick")


def affine(n_out, n_in, density, seed, activation="ReLU"):
    draws = np.random.default_rng(seed)
    weight = draws.standard_normal((n_out, n_in)) * (draws.random((n_out, n_in)) < density)
    bias = draws.standard_normal(n_out).astype(np.float32)
    return Affine(csr_array(weight.astype(np.float32)), bias, activation)


def stacked(widths, density, between="ReLU", last="none"):
    kinds = [between] * (len(widths) - 2) + [last]
    shapes = zip(widths[1:], widths, kinds, strict=False)
    return [affine(n_out, n_in, density, i, kind) for i, (n_out, n_in, kind) in enumerate(shapes)]


def rows(n, d, seed=3, zeros=0.5):
    draws = np.random.default_rng(seed)
    x = draws.standard_normal((n, d)) * (draws.random((n, d)) >= zeros)
    return x.astype(np.float32)


def in_floats(layers, x):
    for layer in layers:
        x = x @ layer.weight.toarray().T + layer.bias
        x = np.maximum(x, 0) if layer.activation == "ReLU" else x
    return x


def net_of(layers):
    made = []
    for layer in layers:
        linear = nn.Linear(layer.weight.shape[1], len(layer.bias))
        linear.weight.data = torch.from_numpy(layer.weight.toarray())
        linear.bias.data = torch.from_numpy(layer.bias)
        made += [linear, nn.ReLU()] if layer.activation == "ReLU" else [linear]
    return nn.Sequential(*made).eval()


# ------------------------------------------------------------------------------------- rounding


def test_one_weight_by_hand():
    layer = Affine(csr_array(np.array([[0.5]], np.float32)), np.array([1.0], np.float32))
    (made,) = rounded([layer], np.array([[2.0]], np.float32))
    assert made.affine.weight.toarray().tolist() == [[127]]
    assert made.limit == 32767  # 128 (32767 - 1/2) / 127 is more than 16 bits have
    step = 1.25 * 2.0 / 32767
    assert made.inverse == pytest.approx(1 / step)
    # x = 2: A = 26214 steps, S = round(26214 * 127 / 128) = 26009, and s = 0.5 / 127
    wanted = 128 * 0.5 / 127 * step * 26009 + 1
    assert run_rounded([made], np.array([[2.0]], np.float32)).item() == pytest.approx(wanted)


@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
def test_no_sum_can_leave_sixteen_bits(density):
    layers = stacked((200, 90, 40, 5), density)
    for made in rounded(layers, rows(50, 200)):
        absolute = np.abs(made.affine.weight.toarray().astype(np.int64))
        worst = (absolute * made.limit / 128 + 0.5 * (absolute > 0)).sum(1).max()
        assert worst <= 32767
        assert made.limit == 32767 or worst > 32767 * 0.95  # and none is smaller than it must be
        largest = np.abs(made.factor.astype(int)).max() + np.abs(made.offset.astype(int)).max()
        assert largest <= 32767


@pytest.mark.parametrize("density", [0.05, 0.3])
def test_the_error_is_that_of_eight_bits(density):
    layers = stacked((60, 50, 40, 4), density)
    x = rows(300, 60)
    wanted = in_floats(layers, x)
    actual = run_rounded(rounded(layers, x), x)
    assert np.abs(actual - wanted).max() < 0.03 * np.abs(wanted).max()
    by_row = quantise_rows(torch.from_numpy(layers[0].weight.toarray()))[1]
    first = rounded(layers, x)[0]
    kept = np.diff(first.affine.weight.indptr) > 0
    assert first.scale == pytest.approx(
        128 * by_row.numpy() * kept / float(first.inverse), rel=1e-5
    )


def test_other_activations_are_refused_between_layers_only():
    x = rows(20, 6)
    with pytest.raises(
        UnsupportedModelError, match="int8 takes ReLU between Linear layers, got Ta"
    ):
        rounded(stacked((6, 5, 4), 1.0, between="Tanh"), x)
    made = rounded(stacked((6, 5, 4), 1.0, last="Sigmoid"), x)
    assert ((run_rounded(made, x) > 0) & (run_rounded(made, x) < 1)).all()


def test_a_layer_too_wide_for_sixteen_bits_is_refused():
    wide = Affine(csr_array(np.ones((1, 70_000), np.float32)), np.zeros(1, np.float32))
    with pytest.raises(UnsupportedModelError, match="70,000 weights of one output is too wide"):
        rounded([wide], np.ones((1, 70_000), np.float32))


# ----------------------------------------------------------------------------------- the kernel


@pytest.mark.parametrize("density", [0.0, 0.03, 0.3, 1.0])
@pytest.mark.parametrize(
    "widths", [(1, 1), (3, 2, 1), (6, 17, 33, 5), (45, 70, 16, 32), (784, 40, 3)]
)
def test_the_kernel_equals_the_twin_at_every_batch_size(compiler, widths, density):
    layers = stacked(widths, density)
    compiled = IntegerLayers(layers, widths[0], rows(40, widths[0]))
    for n in SIZES:
        for zeros in (0.0, 0.8):
            x = 2 * rows(n, widths[0], seed=n, zeros=zeros)  # larger than the calibration: cut
            wanted = compiled.plain(torch.from_numpy(x)).numpy()
            scale = max(float(np.abs(wanted).max()), 1e-30)
            assert np.abs(compiled(x) - wanted).max() <= 1e-6 * scale


@pytest.mark.parametrize("between", ["ReLU", "none"])
@pytest.mark.parametrize("last", ["none", "ReLU", "Tanh", "GELU"])
def test_activations(compiler, between, last):
    layers = stacked((20, 30, 7), 0.3, between, last)
    compiled = IntegerLayers(layers, 20, rows(40, 20))
    for n in (1, 9, 64):
        x = rows(n, 20)
        wanted = compiled.plain(torch.from_numpy(x)).numpy()
        assert np.abs(compiled(x) - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_a_network_that_is_all_zeros(compiler):
    empty = [layer._replace(bias=0 * layer.bias) for layer in stacked((5, 6, 2), 0.0)]
    compiled = IntegerLayers(empty, 5, np.zeros((3, 5), np.float32))
    assert not compiled(rows(70, 5)).any()
    assert not compiled(rows(1, 5)).any()


def test_selected_features_are_read_in_order(compiler):
    layer = Affine(csr_array(np.array([[1.0, 0.0, 10.0]], np.float32)), np.zeros(1, np.float32))
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    compiled = IntegerLayers([layer], 5, x, np.array([4, 1, 0]))
    rounded_weight = 13 / 127 * 10  # 1.0 in steps of 10 / 127
    wanted = [4 * rounded_weight, 9 * rounded_weight + 10 * 5]
    assert compiled(x).ravel() == pytest.approx(wanted, rel=0.001)


def test_layers_larger_than_a_cache_run_weight_by_weight(compiler, monkeypatch):
    layers = stacked((30, 40, 5), 0.5)
    x = rows(70, 30)
    wanted = IntegerLayers(layers, 30, x)(x)
    monkeypatch.setattr(kernels, "CACHE", 0)
    monkeypatch.setattr(integers, "CACHE", 0)
    assert by_input(layers[0].weight, 8).group == 1
    compiled = IntegerLayers(layers, 30, x)
    assert compiled(x) == pytest.approx(wanted)
    alone = np.concatenate([compiled(x[i : i + 1]) for i in range(70)])
    assert alone == pytest.approx(wanted)


def test_weights_are_stored_as_bytes(compiler):
    layers = [Affine(csr_array(np.ones((64, 64), np.float32)), np.zeros(64, np.float32))]
    compiled = IntegerLayers(layers, 64, rows(9, 64))
    stored = [array for array in compiled._kept if array.dtype == np.int8]
    assert [array.size for array in stored] == [64 * 64, 64 * 64]


# ---------------------------------------------------------------------------- as_runtime, in int8


def fastest_is(monkeypatch, name):
    def median_times(functions, example, **options):
        times = {key: 0.5 if key == name else 9.0 for key in functions}
        return {key: dict.fromkeys(runtime.BATCHES, ms) for key, ms in times.items()}

    monkeypatch.setattr(runtime, "median_times", median_times)


def test_int8_runs_where_it_is_fastest_and_says_what_it_changes(compiler, monkeypatch):
    fastest_is(monkeypatch, "int8")
    net = net_of(stacked((40, 60, 30, 5), 0.1))
    x = torch.from_numpy(rows(500, 40))
    made = as_runtime(net, x[:64], precision="int8", calibration=x)
    assert {row.choice for row in made.plan} == {"int8"}
    with torch.no_grad():
        wanted = net(x)
    actual = made(x)
    assert made.rounding.examples == 500
    assert made.rounding.weights == 1.0
    assert made.rounding.changed == int((wanted.argmax(1) != actual.argmax(1)).sum()) < 25
    error = float((wanted - actual).abs().max() / wanted.abs().max())
    assert made.rounding.error == pytest.approx(error)
    assert 0 < error < 0.03
    assert "int8: 100% of the weights have 8 bits; on 500 examples" in made.describe()
    assert "8-bit weights is faster" in made.plan[0].reason
    alone = torch.cat([made(x[i : i + 1]) for i in range(20)])
    assert torch.allclose(alone, actual[:20], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fastest", ["torch", "kernel"])
def test_floats_run_where_they_are_faster(compiler, monkeypatch, fastest):
    fastest_is(monkeypatch, fastest)
    net = net_of(stacked((40, 60, 5), 0.1))
    x = torch.from_numpy(rows(100, 40))
    made = as_runtime(net, x, precision="int8", calibration=x)
    assert {row.choice for row in made.plan} == {fastest}
    assert set(made.plan[0].milliseconds) == {"torch", "kernel", "int8"}
    assert float((made(x) - net(x).detach()).abs().max()) < 1e-4


def test_after_convolutions_the_linear_layers_have_eight_bits(compiler, monkeypatch):
    fastest_is(monkeypatch, "int8")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    x = torch.rand(50, 1, 8, 8)
    made = as_runtime(net, x, precision="int8", calibration=x)
    assert made.rounding.weights == pytest.approx(432 / (432 + 36))
    assert float((made(x) - net(x).detach()).abs().max()) < 0.03


def test_a_compacted_network_with_selected_features(compiler, monkeypatch):
    fastest_is(monkeypatch, "int8")
    net = net_of(stacked((40, 60, 5), 0.2))
    with torch.no_grad():
        net[0].weight[:, ::2] = 0
    x = torch.from_numpy(rows(100, 40))
    made = as_runtime(compact(net, x), x, precision="int8", calibration=x)
    assert made.rounding.error < 0.03


def test_a_wrong_kernel_is_refused(compiler, monkeypatch):
    fastest_is(monkeypatch, "int8")
    monkeypatch.setattr(IntegerLayers, "plain", lambda self, x: self.on_tensor(x) * 1.0001)
    x = torch.from_numpy(rows(64, 40))
    with pytest.raises(runtime.VerificationError, match="differ"):
        as_runtime(net_of(stacked((40, 60, 5), 0.1)), x, precision="int8", calibration=x)


def test_without_a_compiler_floats_run(uncompiled):
    x = torch.from_numpy(rows(64, 40))
    net = net_of(stacked((40, 60, 5), 0.1))
    made = as_runtime(net, x, precision="int8", calibration=x)
    assert made.rounding is None
    assert all("no compiled kernel" in row.reason for row in made.plan)


def test_wrong_arguments_are_refused(compiler):
    net, x = net_of(stacked((4, 5, 2), 1.0)), torch.from_numpy(rows(9, 4))
    with pytest.raises(ValueError, match=r"int8 needs calibration examples\. Pass calibration=x"):
        as_runtime(net, x, precision="int8")
    with pytest.raises(ValueError, match="calibration is for precision='int8'"):
        as_runtime(net, x, calibration=x)
    with pytest.raises(ValueError, match=r"calibration must be float32 inputs of shape \(n, 4\)"):
        as_runtime(net, x, precision="int8", calibration=x[:, :3])
    with pytest.raises(ValueError, match="calibration holds inf or NaN"):
        as_runtime(net, x, precision="int8", calibration=x.clone().fill_(torch.nan))
    with pytest.raises(ValueError, match="precision"):
        as_runtime(net, x, precision="int4", calibration=x)
    tanh = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    with pytest.raises(UnsupportedModelError, match="int8 takes ReLU between Linear layers"):
        as_runtime(tanh, x, precision="int8", calibration=x)
    images = nn.Sequential(nn.Conv2d(1, 2, 3))
    with pytest.raises(UnsupportedModelError, match="int8 has a kernel for Linear layers only"):
        as_runtime(
            images, torch.rand(3, 1, 5, 5), precision="int8", calibration=torch.rand(3, 1, 5, 5)
        )
