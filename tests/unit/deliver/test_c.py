"""Headers are compiled with every warning an error, run, and compared with torch."""

import math
import re
import subprocess

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from bayesieve.data.images import image_recipe, prepare_images
from bayesieve.deliver.c import export_c, quantise_rows
from bayesieve.errors import UnsupportedModelError, VerificationError
from bayesieve.nets import PiecewiseLinear, lenet5, lenet5_caffe, mlp
from bayesieve.uncertainty.familiarity import Familiarity
from compiled import COMPILER, FLAGS, needs_compiler, run_c
from problems import normal32, seeded
from zoo import Calling


class Select(nn.Module):
    """Some features of the input, as compaction leaves them."""

    def __init__(self, *index):
        super().__init__()
        self.register_buffer("index", torch.tensor(index))

    def forward(self, x):
        return x.index_select(1, self.index)


class Functional(nn.Module):
    """The same layers written as calls."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.fc = nn.Linear(12, 4)
        self.register_buffer("kept", torch.tensor([0, 3]))

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.conv(x)), 2)
        x = F.dropout(x, training=self.training)
        x = torch.tanh(self.fc(x.view(x.size(0), -1)))
        return torch.sigmoid(F.silu(x))[:, self.kept]


class Compacted(nn.Module):
    """What compaction writes: features chosen, constants added before and after a pooling."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.fc = nn.Linear(4, 2)
        self.register_buffer("conv_inputs", torch.tensor([0, 2]))
        self.register_buffer("fc_inputs", torch.tensor([0, 1, 5, 11]))
        self.conv_shift = nn.Parameter(normal32(3, 1, 1))
        self.pool_shift = nn.Parameter(normal32(3, 1, 1, seed=1))

    def forward(self, x):
        x = torch.add(self.conv(torch.index_select(x, 1, self.conv_inputs)), self.conv_shift)
        x = torch.add(F.avg_pool2d(torch.relu(x), 2), self.pool_shift)
        return self.fc(torch.index_select(torch.flatten(x, 1), 1, self.fc_inputs))


def sparse(module, keep=0.1, seed=0):
    """Zero most weights."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() > 1:
                p.mul_(torch.rand(p.shape, generator=source) < keep)
    return module


def settled(module, x):
    """BatchNorm with statistics and parameters that are not the initial ones."""
    module.train()
    module(3 * x + 1)
    for m in module.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) and m.affine:
            nn.init.uniform_(m.weight, -2, 2)
            nn.init.normal_(m.bias)
    return module.eval()


def macro(path, name):
    actual = re.search(rf"#define {path.stem.upper()}_{name} (\d+)", path.read_text())
    return int(actual[1])


def conv_zoo():
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.Conv2d(4, 8, 3, groups=2, padding="same", bias=False),
        nn.MaxPool2d(2, stride=1, padding=1),
        nn.BatchNorm2d(8, affine=False),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.AvgPool2d((2, 3), stride=2, padding=1),
        nn.Dropout2d(),
        nn.AdaptiveAvgPool2d((None, 1)),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


CASES = {
    "mlp": (lambda: mlp((4, 4), 5, (12, 7), "tanh"), (4, 4)),
    "lenet5": (lambda: lenet5((1, 28, 28), 10), (1, 28, 28)),
    "lenet5_caffe": (lambda: lenet5_caffe((1, 16, 16), 10), (1, 16, 16)),
    "conv_zoo": (conv_zoo, (2, 9, 8)),
    "functional": (Functional, (1, 6, 6)),
    "batch_norm_first": (
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Sigmoid()),
        (6,),
    ),
    "selected": (lambda: nn.Sequential(Select(5, 0, 3), nn.Linear(3, 2)), (6,)),
    "channels": (lambda: nn.Sequential(Select(2, 0), nn.Conv2d(2, 3, 2)), (3, 4, 4)),
    "compacted": (Compacted, (3, 5, 5)),
    "binned": (
        lambda: nn.Sequential(PiecewiseLinear.of(normal32(60, 3), 5).layers(), nn.Linear(18, 2)),
        (3,),
    ),
    "one_layer": (lambda: nn.Linear(3, 2, bias=False), (3,)),
}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("keep", [1.0, 0.1], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", CASES)
def test_c_equals_torch(name, keep, tmp_path):
    build, shape = CASES[name]
    torch.manual_seed(1)
    x = normal32(5, *shape)
    module = settled(sparse(build(), keep), x)
    path = export_c(module, tmp_path / f"{name}.h", x)
    expected = module(x).detach().flatten(1)
    error = (run_c(path, x) - expected).abs().max()
    assert error <= 1e-4 * expected.abs().max()
    assert macro(path, "N_INPUTS") == x[0].numel()
    assert macro(path, "N_OUTPUTS") == expected.shape[1]


@needs_compiler
@pytest.mark.parametrize("shape", [(3,), (40,), (1, 8, 8), (2, 9, 12)])
def test_familiarity_in_c_equals_torch(shape, tmp_path):
    x = normal32(200, *shape).cumsum(-1)
    known = Familiarity.of(x[:150])
    module = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2))
    path = export_c(module, tmp_path / "net.h", x, familiarity=known)
    inputs = torch.cat([x[150:], 3 * x[:10], 1e9 * x[:2]])
    both = run_c(path, inputs, "y[0] = net_familiarity(x); fwrite(y, sizeof y[0], 1, stdout);")
    expected = known.score(inputs)
    assert expected.min() < 0.05 < 0.5 < expected.max()
    assert torch.allclose(both[:, 2], expected, atol=2e-4)
    assert torch.allclose(both[:-2, :2], module(inputs)[:-2].detach(), atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 4, 6), (3, 5, 2)])
def test_raw_pixels_are_prepared_by_the_header(shape, tmp_path):
    """Pixels lie row by row with channels side by side; the floats of a row hold them here."""
    channels, height, width = shape
    recipe = image_recipe(shape, [0.1 * c for c in range(channels)], [0.3] * channels)
    pixels = torch.randint(256, (6, height, width, channels), generator=seeded(0))
    x = prepare_images(pixels.numpy().astype(np.uint8), recipe)
    module = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2)).eval()
    names = ['a "quoted" \\ one??/', "schön"]
    path = export_c(module, tmp_path / "net.h", x, preprocessing=recipe, classes=names)
    again = (
        "uint8_t p[NET_N_INPUTS]; for (int i = 0; i < NET_N_INPUTS; i++) p[i] = (uint8_t)x[i]; "
        "net_predict_raw(p, y); fwrite(y, sizeof y[0], 2, stdout); "
        "y[0] = 0.0f; while (net_class(0)[(int)y[0]]) y[0] += 1.0f; "
        "y[1] = net_class(2) || net_class(-1) ? 1.0f : -1.0f; fwrite(y, sizeof y[0], 2, stdout);"
    )
    both = run_c(path, pixels.flatten(1), again)
    torch.testing.assert_close(both[:, 2:4], module(x).detach(), rtol=1e-5, atol=1e-5)
    assert (both[:, 4:] == torch.tensor([float(len(names[0])), -1.0])).all()
    with pytest.raises(ValueError, match=r"preprocessing is of images \(1, 1, 1\)"):
        export_c(module, path, x, preprocessing=image_recipe((1, 1, 1), [0.0], [1.0]))


@needs_compiler
@pytest.mark.parametrize("keep", [1.0, 0.1], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ["mlp", "conv_zoo"])
def test_int8_equals_its_stated_error(name, keep, tmp_path):
    build, shape = CASES[name]
    torch.manual_seed(1)
    x = normal32(50, *shape)
    module = settled(sparse(build(), keep), x)
    path = export_c(module, tmp_path / "small.h", x, int8=True)
    text = path.read_text()
    stated = float(re.search(r"is (\S+), where the largest output", text)[1])
    expected = module(x).detach()
    error = float((run_c(path, x) - expected).abs().max())
    assert error == pytest.approx(stated, rel=0.05, abs=1e-6)
    assert 0 < error < 0.05 * expected.abs().max()
    assert "int8_t" in text


@needs_compiler
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_uneven_margins_lie_where_torch_puts_them(tmp_path):
    torch.manual_seed(0)
    module, x = nn.Conv2d(1, 2, (4, 2), padding="same"), normal32(3, 1, 5, 6)
    path = export_c(module, tmp_path / "net.h", x)
    torch.testing.assert_close(run_c(path, x), module(x).detach().flatten(1))


@needs_compiler
def test_a_layer_of_zeros_compiles(tmp_path):
    module = nn.Sequential(nn.Linear(40, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.zeros_(module[0].weight)
    x = normal32(4, 40)
    path = export_c(module, tmp_path / "none.h", x)
    torch.testing.assert_close(run_c(path, x), module(x).detach())
    assert macro(path, "MACS") == 6


@needs_compiler
def test_header_may_be_included_twice_and_alone(tmp_path):
    export_c(nn.Linear(3, 2), tmp_path / "net.h", normal32(2, 3))
    (tmp_path / "a.c").write_text('#include "net.h"\n#include "net.h"\nint a(void) {return 0;}\n')
    (tmp_path / "b.c").write_text('#include "net.h"\nint main(void) {return 0;}\n')
    files = [str(tmp_path / "a.c"), str(tmp_path / "b.c")]
    command = [COMPILER, *FLAGS, *files, "-o", str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True)


def test_sizes_are_exact_and_sparse_is_chosen_when_smaller(tmp_path):
    layer = nn.Linear(100, 10)
    dense = export_c(layer, tmp_path / "dense.h", normal32(2, 100))
    assert macro(dense, "MACS") == 1000
    assert macro(dense, "WEIGHT_BYTES") == 4000 + 40
    assert "dense_0_index" not in dense.read_text()
    with torch.no_grad():
        layer.weight.fill_(0.5)[:, 7:] = 0
    path = export_c(layer, tmp_path / "few.h", normal32(2, 100))
    assert macro(path, "MACS") == 70
    assert macro(path, "WEIGHT_BYTES") == 70 * (4 + 1) + 11 + 40  # value, index; starts; biases
    small = export_c(layer, tmp_path / "few8.h", normal32(2, 100), int8=True)
    assert macro(small, "WEIGHT_BYTES") == 70 * (1 + 1) + 11 + 40 + 40  # and scales


def test_stack_bytes_are_the_two_buffers(tmp_path):
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1))
    path = export_c(module, tmp_path / "net.h", normal32(2, 3))
    assert macro(path, "STACK_BYTES") == 4 * (8 + 8)
    assert macro(path, "MACS") == 24 + 40 + 5


@pytest.mark.slow
def test_a_traced_module_gives_the_same_header(tmp_path):
    torch.manual_seed(0)
    module = CASES["lenet5_caffe"][0]()
    x = normal32(2, 1, 16, 16)
    one = export_c(module, tmp_path / "net.h", x).read_text()
    assert export_c(fx.symbolic_trace(module), tmp_path / "net.h", x).read_text() == one
    assert [p.name for p in tmp_path.iterdir()] == ["net.h"]


def test_the_module_is_left_as_it_was(tmp_path):
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    export_c(module, tmp_path / "net.h", normal32(4, 3).double())
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_unsupported_layers_are_named(tmp_path):
    inner = nn.Sequential()
    inner.add_module("norm", nn.LayerNorm(3))
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), inner)
    with pytest.raises(
        UnsupportedModelError,
        match=r"^export_c: layer '2.norm' \(LayerNorm\) is not supported; supported: Linear, ",
    ):
        export_c(module, tmp_path / "net.h", normal32(2, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (Calling(lambda s, x: x + s.fc(x), fc=nn.Linear(3, 3)), (3,), "branches at 'add'"),
        (
            Calling(lambda s, x: torch.add(x, s.one), one=nn.Parameter(torch.ones(1))),
            (3,),
            r"\(add\) is not supported of shape \(1,\) to \(3,\)",
        ),
        (Calling(lambda s, x: F.gelu(x)), (3,), r"layer 'gelu' \(gelu\)"),
        (Calling(lambda s, x: x if x.sum() > 0 else -x), (3,), "cannot be traced"),
        (Calling(lambda s, x: F.dropout(x)), (3,), r"layer 'dropout' \(dropout\)"),
        (nn.Identity(), (3,), "no layer that computes"),
        (nn.Linear(3, 2), (4, 3), r"inputs of shape \(4, 3\); flatten"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), (1, 4, 4), "padding_mode"),
        (nn.MaxPool2d(2, ceil_mode=True), (1, 5, 5), "ceil_mode"),
        (nn.MaxPool2d(2, dilation=2), (1, 5, 5), "dilation"),
        (nn.AvgPool2d(2, padding=1, count_include_pad=False), (1, 4, 4), "not counted"),
        (nn.AdaptiveAvgPool2d(2), (1, 5, 5), "sides must divide"),
        (nn.Flatten(0), (3,), "from axis 0"),
        (nn.BatchNorm1d(3, track_running_stats=False), (3,), "without running statistics"),
    ],
)
def test_what_is_not_supported(module, shape, message, tmp_path):
    with pytest.raises(UnsupportedModelError, match=message):
        export_c(module, tmp_path / "net.h", normal32(2, *shape))


def test_a_wrong_translation_is_refused(tmp_path):
    module = nn.Sequential(nn.Linear(3, 2))
    module[0].register_forward_hook(lambda module, args, output: 2 * output)  # fx does not see it
    with pytest.raises(VerificationError, match="differs from torch"):
        export_c(module, tmp_path / "net.h", normal32(2, 3))
    assert not list(tmp_path.iterdir())


def test_arguments_are_checked(tmp_path):
    layer, x = nn.Linear(3, 2), normal32(2, 3)
    with pytest.raises(ValueError, match=r"letters, digits and _, got 'my-net.h'"):
        export_c(layer, tmp_path / "my-net.h", x)
    with pytest.raises(FileNotFoundError, match="export_c: the folder"):
        export_c(layer, tmp_path / "none" / "net.h", x)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        export_c(layer, tmp_path, x)
    with pytest.raises(ValueError, match=r"batch of inputs, .* got shape \(3,\)"):
        export_c(layer, tmp_path / "net.h", x[0])
    with pytest.raises(TypeError, match="inputs must be one or more tensors"):
        export_c(layer, tmp_path / "net.h", [1.0])
    with pytest.raises(TypeError, match=r"floating point, got torch\.int64"):
        export_c(layer, tmp_path / "net.h", x.long())


def test_8_bit_rows_are_within_half_a_scale_and_use_the_whole_range():
    weight = normal32(6, 3, 5, 5) * torch.logspace(-30, 30, 6).view(-1, 1, 1, 1)
    whole, scale = quantise_rows(weight)
    assert whole.dtype == torch.int8
    assert whole.flatten(1).abs().amax(1).tolist() == [127] * 6
    error = (weight.double() - whole.double() * scale.double().view(-1, 1, 1, 1)).abs()
    assert bool((error.flatten(1).amax(1) <= 0.5001 * scale.double()).all())


def test_zeros_stay_zeros_in_8_bits():
    weight = normal32(4, 50)
    weight[:, ::2] = 0
    weight[3] = 0
    whole, scale = quantise_rows(weight)
    assert not whole[:, ::2].any()
    assert not whole[3].any()
    assert bool((scale > 0).all())


def test_8_bit_weights_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        quantise_rows(torch.tensor([[1.0, math.nan]]))
