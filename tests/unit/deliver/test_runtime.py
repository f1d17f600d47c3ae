"""The runtime equals its module along every path, says what it chose, and works uncompiled."""

import itertools
import threading

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn
from torch.nn import functional as F

from bayesieve.deliver import runtime
from bayesieve.deliver.layers import Activation, Select, read_layers
from bayesieve.deliver.runtime import Plan, as_runtime, kernels
from bayesieve.deliver.runtime.kernels import (
    ACTIVATIONS,
    Affine,
    CompiledLayers,
    by_input,
    by_output,
)
from bayesieve.errors import UnsupportedModelError, VerificationError
from bayesieve.sieve.compact import compact
from problems import normal32, seeded
from zoo import Calling

SIZES = (1, 2, 4, 5, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 83, 130)  # around every border


pytestmark = pytest.mark.usefixtures("quick")


def sparse_mlp(widths=(20, 30, 12, 3), activation=nn.ReLU, density=0.1, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Flatten()]
        for n_in, n_out in itertools.pairwise(widths):
            layers += [nn.Linear(n_in, n_out), activation()]
        net = nn.Sequential(*layers[:-1])
        with torch.no_grad():
            for layer in net:
                if isinstance(layer, nn.Linear):
                    layer.weight *= torch.rand(layer.weight.shape) < density
    return net.eval()


def inputs(n, d=20, seed=5):
    return normal32(n, d, seed=seed)


def relative(actual, wanted):
    return float((torch.as_tensor(actual) - wanted).abs().max() / wanted.abs().max())


# ---------------------------------------------------------------------------------- the kernel


@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("zeros", [0.0, 0.3, 0.9])
def test_the_kernel_equals_dense_products_at_every_batch_size(density, zeros, compiler):
    generator = np.random.default_rng(0)
    shapes = [(33, 20), (40, 33), (3, 40)]
    dense = [generator.standard_normal(s) * (generator.random(s) < density) for s in shapes]
    biases = [generator.standard_normal(s[0]) for s in shapes]
    layers = [
        Affine(csr_array(w.astype(np.float32)), b.astype(np.float32), "ReLU" if i < 2 else "none")
        for i, (w, b) in enumerate(zip(dense, biases, strict=True))
    ]
    compiled = CompiledLayers(layers, 20)
    for n in SIZES:
        x = generator.standard_normal((n, 20)) * (generator.random((n, 20)) >= zeros)
        wanted = x
        for i, (w, b) in enumerate(zip(dense, biases, strict=True)):
            wanted = wanted @ w.T + b
            wanted = np.maximum(wanted, 0) if i < 2 else wanted
        assert np.abs(compiled(x.astype(np.float32)) - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (17, 5), (5, 129), (150, 260), (37, 401)])
@pytest.mark.parametrize("density", [0.02, 0.12, 0.5])
def test_tiles_groups_and_fours_on_odd_sizes(shape, density, compiler):
    generator = np.random.default_rng(1)
    weight = (generator.standard_normal(shape) * (generator.random(shape) < density)).astype("f4")
    weight[::3] = 0  # outputs without a weight
    bias = generator.standard_normal(shape[0]).astype("f4")
    selected = generator.integers(0, shape[1] + 7, shape[1])  # in any order, some twice
    for n_features, chosen in ((shape[1], None), (shape[1] + 7, selected)):
        layer = Affine(csr_array(weight), bias, "LeakyReLU", 0.1)
        compiled = CompiledLayers([layer], n_features, chosen)
        for n in SIZES:
            x = generator.standard_normal((n, n_features)).astype("f4")
            x *= generator.random((n, n_features)) < 0.5
            wanted = (x if chosen is None else x[:, chosen]) @ weight.T + bias
            wanted = np.where(wanted < 0, 0.1 * wanted, wanted)
            assert np.abs(compiled(x) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def random_weight(n_out, n_in, density, seed=1):
    generator = np.random.default_rng(seed)
    dense = generator.standard_normal((n_out, n_in)) * (generator.random((n_out, n_in)) < density)
    return dense.astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("at_once", [2, 8])
@pytest.mark.parametrize("tile", [16, 128])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 5), (5, 300), (37, 129), (9, 600)])
def test_weights_by_output_are_all_there(shape, density, tile, at_once, dtype, monkeypatch):
    monkeypatch.setattr(kernels, "_TILED", {2: 3, 8: 3})
    n_out, n_in = shape
    dense = random_weight(n_out, n_in, density)
    if dtype is np.int8:
        dense = (100 * np.tanh(dense)).astype(dtype)
    dense[: n_out // 3] = 0  # outputs without a weight
    made = by_output(csr_array(dense), tile, at_once)
    built, bias, activated = np.zeros((n_out + 1, n_in)), np.zeros(n_out + 1), np.zeros(n_out + 1)
    first = k = 0
    for feature, begins, ends, outputs, steps, n_bundles in made.runs.tolist():
        assert outputs in (2, at_once)
        for _ in range(n_bundles):
            rows = made.output[first : first + outputs]
            assert (rows < n_out).sum() > (2 if outputs > 2 else 0)  # few outputs, small bundles
            np.add.at(bias, rows, begins)
            assert not activated[rows].any() or n_out in rows
            np.add.at(activated, rows, ends)
            for j in range(4 * steps):
                built[rows[j % outputs], feature + made.column[k + j]] += made.value[k + j]
            k += 4 * steps
            first += outputs
    assert (first, k) == (len(made.output), len(made.value))
    assert built[:n_out] == pytest.approx(dense, rel=1e-6)
    assert not built[n_out].any()
    assert dtype is np.float32 or (made.value != 0).sum() == (dense != 0).sum()  # none in parts
    assert (bias[:n_out] == 1).all()
    assert (activated[:n_out] == 1).all()


@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (5, 300), (37, 129), (9, 600)])
@pytest.mark.parametrize("group", [1, 8])
def test_weights_by_input_are_all_there(shape, density, group):
    n_out, n_in = shape
    dense = random_weight(n_out, n_in, density)
    made = by_input(csr_array(dense), group)
    built = np.zeros((n_out + 8, n_in), np.float32)
    for column in range(n_in):
        for k in range(made.start[column], made.start[column + 1]):
            row, size = made.row[k] * made.group, made.group
            built[row : row + size, column] = made.value[k * size : (k + 1) * size]
    assert np.array_equal(built[:n_out], dense)
    assert not built[n_out:].any()
    assert made.group == 8 or (np.diff(made.start) % 4 == 0).all()


@pytest.mark.parametrize("n_out", [1, 2, 3, 10])
def test_outputs_with_very_different_numbers_of_weights(n_out, compiler):
    weight = random_weight(n_out, 300, 1.0)
    for row, kept in enumerate((300, 1, 0, 7, 150, 2, 299, 40, 3, 5)[:n_out]):
        weight[row, kept:] = 0
    bias = np.arange(1, n_out + 1, dtype=np.float32)
    compiled = CompiledLayers([Affine(csr_array(weight), bias, "ReLU")], 300)
    x = inputs(130, 300).numpy()
    for n in SIZES:
        wanted = np.maximum(x[:n] @ weight.T + bias, 0)
        assert np.abs(compiled(x[:n]) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_inputs_of_zeros_and_columns_without_weights(compiler):
    first, second = random_weight(40, 100, 0.2), random_weight(10, 40, 0.5, seed=2)
    first[:, 10:70] = 0
    second[:, ::2] = 0
    bias = np.linspace(-1, 1, 40, dtype=np.float32)
    layers = [Affine(csr_array(first), bias, "ReLU"), Affine(csr_array(second), bias[:10])]
    compiled = CompiledLayers(layers, 100)
    x = inputs(130, 100).numpy()
    for rows in (np.zeros_like(x), x):
        wanted = np.maximum(rows @ first.T + bias, 0) @ second.T + bias[:10]
        other = rows.copy()
        other[:, 10:70] = np.nan  # read by no weight
        for n in SIZES:
            for batch in (rows[:n], other[:n]):
                assert np.abs(compiled(batch) - wanted[:n]).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("n", [1, 7, 64])
def test_every_activation_is_torchs(name, density, n, compiler):
    weight = normal32(9, 6, seed=1)
    weight *= torch.rand(9, 6, generator=seeded(2)) < density
    x = inputs(n, 6)
    layer = Affine(csr_array(weight.numpy()), np.ones(9, np.float32), name, 0.2)
    for rows in (x, x * (x > 0.5)):  # the second is mostly 0: summed by input
        affine = F.linear(rows, weight, torch.ones(9))
        wanted = affine if name == "none" else Activation((9,), name, 0.2).run(affine)
        assert relative(CompiledLayers([layer], 6)(rows.numpy()), wanted) < 1e-6


def test_selected_features_are_read_in_order(compiler):
    weight = np.array([[1.0, 0.0, 10.0]], np.float32)
    layer = Affine(csr_array(weight), np.zeros(1, np.float32))
    compiled = CompiledLayers([layer], 5, np.array([4, 1, 0]))
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    assert compiled(x).ravel().tolist() == [4.0, 59.0]  # 1 * column 4 + 10 * column 0


def test_nan_spreads_through_weights_and_not_through_zeros(compiler):
    layer = Affine(csr_array(np.eye(10, dtype=np.float32)), np.zeros(10, np.float32), "ReLU")
    for rest in (1.0, 0.0):  # dot products, and sums by input
        for n in (1, 64):
            x = np.full((n, 10), rest, np.float32)
            x[:, 0] = np.nan
            actual = CompiledLayers([layer], 10)(x)
            assert np.isnan(actual[:, 0]).all()
            assert (actual[:, 1:] == rest).all()


def test_infinite_inputs_of_a_batch_stay_infinite(compiler):
    weight = np.array([[1, 2, 3], [0, 4, 0], [-1, 0, 0]], np.float32)  # stored in parts: 4 and -1
    layer = Affine(csr_array(weight), np.zeros(3, np.float32))
    for n in (7, 64):
        x = np.full((n, 3), np.inf, np.float32)
        assert (CompiledLayers([layer], 3)(x) == [np.inf, np.inf, -np.inf]).all()


def test_threads_may_call_one_runtime_at_the_same_time(compiler):
    made = as_runtime(sparse_mlp((20, 300, 3)), inputs(64))
    x = [inputs(64, seed=i) for i in range(4)]
    wanted = [made(rows) for rows in x]
    wrong = []

    def work(i):
        for _ in range(50):
            if not torch.equal(made(x[i]), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --------------------------------------------------------------------------------- the runtime


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", SIZES)
def test_equals_the_module_on_arrays_and_tensors(n, threads):
    net = sparse_mlp()
    made = as_runtime(net, inputs(64), threads=threads)
    x = inputs(n)
    with torch.no_grad():
        wanted = net(x)
    assert relative(made(x), wanted) < 1e-5
    actual = made(x.numpy())
    assert isinstance(actual, np.ndarray)
    assert actual.dtype == np.float32
    assert relative(actual, wanted) < 1e-5


def test_number_of_threads_changes_nothing(monkeypatch, compiler):
    fake_times(monkeypatch, "kernel")
    net, x = sparse_mlp(), inputs(300)
    assert torch.equal(as_runtime(net, x)(x), as_runtime(net, x, threads=3)(x))


def test_strided_read_only_and_empty_inputs():
    net = sparse_mlp()
    made = as_runtime(net, inputs(64))
    x = inputs(6)
    with torch.no_grad():
        wanted = net(x[::2])
    assert relative(made(x[::2]), wanted) < 1e-5
    assert relative(made(x.numpy()[::2]), wanted) < 1e-5
    frozen = x[::2].numpy().copy()
    frozen.flags.writeable = False
    assert relative(made(frozen), wanted) < 1e-5
    assert made(x[:0]).shape == (0, 3)
    assert made(x[:0].numpy()).shape == (0, 3)


def test_images_are_flattened_and_outputs_fresh():
    net = sparse_mlp((16, 8, 2))
    x = normal32(3, 1, 4, 4, seed=1)
    made = as_runtime(net, x)
    first = made(x)
    kept = first.clone()
    made(x + 1)
    assert torch.equal(first, kept)
    assert relative(first, net(x).detach()) < 1e-5


def test_the_module_is_copied():
    net = sparse_mlp()
    x = inputs(4)
    made = as_runtime(net, x)
    before = made(x)
    with torch.no_grad():
        net[1].weight.fill_(1.0)
    assert torch.equal(made(x), before)
    assert net[1].weight.requires_grad


def test_a_compacted_network_with_selected_features():
    net = sparse_mlp(density=0.3)
    with torch.no_grad():
        net[1].weight[:, ::2] = 0
        net[1].weight[5:15] = 0
    x = inputs(32)
    small = compact(net, x)
    layers = read_layers("test", small, (20,))
    assert any(isinstance(layer, Select) for layer in layers)
    assert relative(as_runtime(small, x)(x), net(x).detach()) < 1e-5


def residual():
    return Calling(lambda s, x: x + s.inner(x), inner=nn.Linear(4, 4))


def test_a_network_that_branches_runs_as_it_is():
    net = residual()
    made = as_runtime(net, inputs(4, 4))
    assert torch.equal(made(inputs(9, 4)), net(inputs(9, 4)).detach())
    assert {row.choice for row in made.plan} == {"torch"}
    assert "the module runs as it is: the network branches at 'add'" in made.plan[0].reason


def test_dropout_is_off_and_linear_on_sequences_stays_in_torch():
    net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.9), nn.ReLU(), nn.Linear(5, 2))
    x = normal32(3, 7, 4, seed=1)
    made = as_runtime(net, x)
    assert made.zeros == {}
    assert {row.choice for row in made.plan} == {"torch"}
    assert relative(made(x), net.eval()(x).detach()) < 1e-5


# ------------------------------------------------------------------------------------ the plan


def test_the_plan_follows_the_times():
    made = as_runtime(sparse_mlp((400, 300, 3), density=0.01), inputs(64, 400))
    assert [row.batch for row in made.plan] == [1, 64]
    for row in made.plan:
        assert isinstance(row, Plan)
        assert len(row.milliseconds) == 2
        assert row.choice == min(row.milliseconds, key=row.milliseconds.get)
    assert made.zeros["1"] == pytest.approx(0.99, abs=0.005)
    text = made.describe()
    assert text.count("batch 64") == 1
    assert "kernel: " in text
    assert "1: 99.0% zeros" in text


def fake_times(monkeypatch, fastest):
    """Fix which candidate is measured as the fastest."""

    def median_times(functions, example, **options):
        times = {name: 0.5 if name == fastest else 9.0 for name in functions}
        return {name: dict.fromkeys(runtime.BATCHES, ms) for name, ms in times.items()}

    monkeypatch.setattr(runtime, "median_times", median_times)


@pytest.mark.parametrize("fastest", ["torch", "kernel"])
def test_every_candidate_gives_the_same_numbers(monkeypatch, compiler, fastest):
    fake_times(monkeypatch, fastest)
    net, x = sparse_mlp(), inputs(70)
    made = as_runtime(net, inputs(64))
    assert {row.choice for row in made.plan} == {fastest}
    assert relative(made(x), net(x).detach()) < 1e-5
    assert relative(made(x[:1]), net(x[:1]).detach()) < 1e-5


def test_the_network_may_be_faster_as_plain_torch(monkeypatch):
    fake_times(monkeypatch, "torch")
    made = as_runtime(sparse_mlp(), inputs(64))
    assert {row.choice for row in made.plan} == {"torch"}
    assert all("faster as plain torch" in row.reason for row in made.plan)


def test_without_a_compiler_it_works_and_says_why(uncompiled):
    net = sparse_mlp()
    made = as_runtime(net, inputs(64))
    assert made.kernel.startswith("no C compiler")
    assert all("no compiled kernel" in row.reason for row in made.plan)
    assert "kernel" not in made.plan[0].milliseconds
    assert relative(made(inputs(70)), net(inputs(70)).detach()) < 1e-5


# ---------------------------------------------------------------------------------- bad inputs


def test_a_wrong_result_is_refused(monkeypatch, compiler):
    fake_times(monkeypatch, "kernel")

    class Wrong(runtime.CompiledLayers):
        def on_tensor(self, x):
            return super().on_tensor(x) * 1.0001

    monkeypatch.setattr(runtime, "CompiledLayers", Wrong)
    with pytest.raises(VerificationError, match="differ from the module"):
        as_runtime(sparse_mlp(), inputs(64))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(2, 19), ValueError, r"must have shape \(n, 20\), got \(2, 19\)"),
        (torch.zeros(2, 20).double(), TypeError, "float32 on the CPU, got torch.float64"),
        (np.zeros((2, 20)), TypeError, "must be float32, got float64"),
    ],
)
def test_other_inputs_are_refused(x, error, message):
    made = as_runtime(sparse_mlp(), inputs(4))
    with pytest.raises(error, match=message):
        made(x)


def test_other_modules_and_examples_are_refused():
    with pytest.raises(UnsupportedModelError, match=r"float32 on the CPU, but '1\.weight' is"):
        as_runtime(sparse_mlp().double(), inputs(4))
    with pytest.raises(ValueError, match="float32 batch"):
        as_runtime(sparse_mlp(), torch.zeros(0, 20))
    with pytest.raises(ValueError, match="threads must be > 0"):
        as_runtime(sparse_mlp(), inputs(4), threads=0)
