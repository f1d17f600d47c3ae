"""Sizes and work are exact; times are taken in turns."""

import gzip
import json

import pytest
import torch
from safetensors.torch import load
from torch import nn

from bayesieve.assess.costs import (
    count_macs,
    count_units,
    peak_bytes,
    profile,
    ratio,
    resized,
    serialised,
)
from bayesieve.graph import costs
from bayesieve.graph.costs import interleaved
from bayesieve.nets import lenet5_caffe, lenet_300_100


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(costs, "_BURST", 1e-6)


def half_zero(layer):
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.weight.flatten()[::2] = 0
    return layer


# ---------------------------------------------------------------------------------------- work


def test_macs_of_the_lenets_are_those_of_the_literature():
    assert count_macs(lenet_300_100((1, 28, 28), 10), torch.zeros(1, 1, 28, 28))[0] == 266_200
    conv1, conv2 = 24 * 24 * 20 * 25, 8 * 8 * 50 * 20 * 25
    wanted = conv1 + conv2 + 800 * 500 + 500 * 10
    assert count_macs(lenet5_caffe((1, 28, 28), 10), torch.zeros(1, 1, 28, 28))[0] == wanted


@pytest.mark.parametrize(
    ("layer", "shape", "wanted"),
    [
        (nn.Linear(6, 4), (1, 6), 24),
        (nn.Linear(6, 4), (1, 5, 6), 5 * 24),  # five tokens
        (nn.Conv2d(4, 8, 3, padding=1, groups=2), (1, 4, 5, 5), 25 * 8 * 2 * 9),
        (nn.Conv1d(2, 3, 2, stride=2), (1, 2, 8), 4 * 3 * 2 * 2),
    ],
)
def test_zeros_are_skipped_in_the_second_number(layer, shape, wanted):
    assert count_macs(half_zero(layer), torch.zeros(shape)) == (wanted, wanted // 2)


def test_a_layer_called_twice_counts_twice():
    shared = nn.Linear(3, 3)
    assert count_macs(nn.Sequential(shared, shared), torch.zeros(1, 3))[0] == 18


class _SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x):
        return self.inner(x, x, x)[0]


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_counts_projections_and_products(batch_first):
    shape = (1, 5, 8) if batch_first else (5, 1, 8)
    total, _ = count_macs(_SelfAttention(batch_first=batch_first).eval(), torch.zeros(shape))
    assert total == 4 * 5 * 8 * 8 + 2 * 5 * 5 * 8


def test_hooks_do_not_stay():
    net = nn.Linear(2, 2)
    count_macs(net, torch.zeros(1, 2))
    assert not net._forward_hooks


def test_units_are_outputs_of_layers():
    assert count_units(lenet5_caffe((1, 28, 28), 10)) == 20 + 50 + 500 + 10


# -------------------------------------------------------------------------------------- memory


def test_peak_memory_is_the_largest_pair_of_neighbours():
    net = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 20), nn.Linear(20, 1))
    weights = 4 * sum(p.numel() for p in net.parameters())
    assert peak_bytes(net, torch.zeros(7, 10)) == weights + 4 * 7 * (30 + 30)


def test_work_in_place_and_views_need_no_memory():
    net = nn.Sequential(
        nn.Linear(10, 30), nn.ReLU(inplace=True), nn.Flatten(0), nn.Unflatten(0, (7, 30))
    )
    assert peak_bytes(net, torch.zeros(7, 10)) == 4 * 330 + 4 * 7 * 30


def test_buffers_count_as_weights():
    norm = nn.BatchNorm1d(3).eval()
    assert peak_bytes(norm, torch.zeros(2, 3)) >= 4 * (3 + 3 + 3 + 3 + 2)


# -------------------------------------------------------------------------------------- profile


def test_rows_have_their_sizes_and_units_removed_from_the_first():
    dense, small = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 2)), nn.Linear(8, 2)
    half_zero(small)
    rows = profile({"dense": dense, "small": small}, torch.zeros(3, 8), rounds=1)
    assert [(row["parameters"], row["units"], row["removed_units"]) for row in rows] == [
        (54 + 14, 8, 0), (18, 2, 6),
    ]  # fmt: skip
    assert rows[1]["zeros"] >= 8
    assert (rows[1]["macs"], rows[1]["nonzero_macs"]) == (16, 8)
    assert [name for name in rows[0] if "latency" in name] == [
        "latency_ms_batch_1", "latency_ms_batch_64",
    ]  # fmt: skip
    assert all(row[f"latency_ms_batch_{n}"] > 0 for row in rows for n in (1, 64))


def test_bytes_are_those_of_a_file_that_loads():
    net = nn.Linear(3, 2)
    data = serialised(net)
    assert torch.equal(load(data)["weight"], net.weight)
    row = profile({"net": net}, torch.zeros(1, 3), rounds=1)[0]
    assert (row["bytes"], row["gzip_bytes"]) == (len(data), len(gzip.compress(data, mtime=0)))


def test_a_file_given_is_the_one_measured(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\0" * 5000)
    row = profile({"net": nn.Linear(3, 2)}, torch.zeros(1, 3), files={"net": path}, rounds=1)[0]
    assert row["bytes"] == 5000
    assert row["gzip_bytes"] < 100


def test_tied_weights_are_written_once():
    first = nn.Linear(3, 3, bias=False)
    second = nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    assert list(load(serialised(nn.Sequential(first, second)))) == ["0.weight"]


class _Callable:
    def __init__(self, module):
        self.module, self.nbytes = module, 123

    def __call__(self, x):
        return self.module(x)


def test_functions_are_described_by_their_module_or_not_at_all():
    net = nn.Linear(4, 2)
    rows = profile({"fast": _Callable(net), "plain": lambda x: x}, torch.zeros(1, 4), rounds=1)
    assert (rows[0]["parameters"], rows[0]["peak_bytes"]) == (10, 123)
    assert (rows[1]["parameters"], rows[1]["bytes"], rows[1]["removed_units"]) == (None, None, None)
    assert rows[1]["latency_ms_batch_1"] > 0


def test_modules_run_in_eval_mode_without_gradients_and_get_their_mode_back():
    seen = []

    class Net(nn.Linear):
        def forward(self, x):
            seen.append((self.training, torch.is_grad_enabled(), len(x)))
            return super().forward(x)

    net = Net(2, 2).train()
    profile({"net": net}, torch.zeros(2, 2), rounds=1)
    assert {row[:2] for row in seen} == {(False, False)}
    assert {row[2] for row in seen} == {1, 64}
    assert net.training


def test_a_row_goes_into_json():
    row = profile({"net": nn.Linear(3, 2)}, torch.zeros(1, 3), rounds=1)[0]
    again = json.loads(json.dumps(row))
    assert again["parameters"] == 8
    assert {"latency_ms_batch_1", "latency_ms_batch_64"} <= again.keys()


def test_wrong_arguments():
    with pytest.raises(ValueError, match="at least one model"):
        profile({}, torch.zeros(1, 3))
    with pytest.raises(ValueError, match="rounds must be > 0"):
        profile({"net": nn.Linear(3, 2)}, torch.zeros(1, 3), rounds=0)
    with pytest.raises(ValueError, match="at least one row"):
        resized(torch.zeros(0, 3), 1)
    with pytest.raises(ValueError, match="clock must be one of wall, cpu"):
        interleaved({"a": lambda: None}, clock="gpu")


# --------------------------------------------------------------------------------------- timing


def test_cases_take_turns(monkeypatch):
    monkeypatch.setattr(costs, "_repeats", lambda case: 2)
    order = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert "".join(order) == "aaabbb" * 2  # one call to warm up, two that count
    assert [len(rounds) for rounds in times.values()] == [2, 2]


def test_a_time_is_that_of_one_call(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(costs, "_repeats", lambda case: 4)
    monkeypatch.setattr(costs, "_CLOCKS", {"wall": lambda: next(clock)})
    assert interleaved({"a": lambda: None}, rounds=2) == {"a": [250.0, 250.0]}


def test_ratios_are_taken_inside_rounds():
    slowed_in_the_middle = {"a": [2.0, 200.0, 2.2], "b": [1.0, 100.0, 1.0]}
    assert ratio(slowed_in_the_middle, "a", "b") == 2.0
