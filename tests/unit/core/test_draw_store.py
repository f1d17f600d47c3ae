"""A file of draws against a list of them: order, overwriting, zeros, damage at any moment."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from bayesieve.core.draw_store import DrawStore
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.norm_statistics import flat_statistics, statistics_names
from problems import normal, seeded

K = 2


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def network_of(*, norm=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(4)] if norm else []
        model = nn.Sequential(nn.Linear(3, 4), *middle, nn.ReLU(), nn.Linear(4, 2))
    return Network.of(model, Categorical())


def positions(network, n=7):
    return normal(n, K, network.layout.size, seed=1, dtype=network.dtype)


def filled(path, network, w, capacity, keep=None, norms=None):
    store = DrawStore.create(path, network, K, capacity, network.dtype, keep)
    for i, own in enumerate(w):
        store.write(10 * (i + 1), own, None if norms is None else norms[i])
    return store


@pytest.mark.parametrize("capacity", [7, 20, 3])
def test_the_newest_draws_come_back_oldest_first(tmp_path, capacity):
    network = network_of()
    w = positions(network)
    store = filled(tmp_path / "a", network, w, capacity)
    for again in (store, DrawStore.open(tmp_path / "a", network)):
        chains = again.samples(network)
        assert len(chains) == K
        for i, own in enumerate(chains):
            assert torch.equal(own.draws, w[-capacity:, i])


def test_any_safetensors_reader_opens_the_file_from_the_beginning(tmp_path):
    network = network_of()
    store = DrawStore.create(tmp_path / "a", network, K, 4, torch.float32)
    tensors = load_file(tmp_path / "a")
    assert tensors["draws"].shape == (4, K, network.layout.size)
    assert not tensors["steps"].any()
    store.write(5, positions(network)[0], None)
    assert torch.equal(load_file(tmp_path / "a")["draws"][0], positions(network)[0])


def test_only_kept_weights_are_stored_and_the_rest_comes_back_as_zeros(tmp_path):
    network = network_of()
    keep = torch.rand(K, network.layout.size, generator=seeded(3)) < 0.3
    keep[1, 0] = True
    w = positions(network) * keep
    store = filled(tmp_path / "sparse", network, w, 7, keep)
    for i, own in enumerate(store.samples(network)):
        assert torch.equal(own.draws, w[:, i])
    reopened = DrawStore.open(tmp_path / "sparse", network)
    reopened.write(80, w[0] + 0, None)
    assert torch.equal(reopened.samples(network)[1].draws[-1], w[0, 1])
    filled(tmp_path / "dense", network, w, 7)
    sizes = [load_file(tmp_path / name)["draws"].numel() for name in ("sparse", "dense")]
    assert sizes[0] == 7 * K * int(keep.sum(1).max()) < sizes[1]


def test_statistics_go_with_their_draws(tmp_path):
    network = network_of(norm=True)
    names = statistics_names(network)
    rows = {name: normal(7 * K, 4, seed=i, dtype=torch.float32) for i, name in enumerate(names)}
    norms = flat_statistics(names, rows).view(7, K, -1)
    store = filled(tmp_path / "a", network, positions(network), 7, norms=norms)
    for i, own in enumerate(store.samples(network)):
        for name in names:
            expected = rows[name].view(7, K, 4)[:, i]
            assert torch.equal(own.draw_buffers[name], expected)
            torch.testing.assert_close(own.buffers[name], expected.mean(0))


def test_a_step_written_again_takes_its_old_place(tmp_path):
    network = network_of()
    w = positions(network)
    store = filled(tmp_path / "a", network, w[:3], 3)
    store.write(20, w[5], None)
    assert torch.equal(store.samples(network)[0].draws, torch.stack([w[0], w[5], w[2]])[:, 0])


class Killed(Exception):
    pass


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_write_broken_off_leaves_the_other_draws_and_no_wrong_one(tmp_path, monkeypatch, moment):
    network = network_of()
    w = positions(network)
    store = filled(tmp_path / "a", network, w[:3], 3)
    calls = 0

    def flush(_):
        nonlocal calls
        calls += 1
        if calls == moment:
            raise Killed

    monkeypatch.setattr("os.fsync", flush)
    with pytest.raises(Killed):
        store.write(40, w[3], None)
    monkeypatch.setattr("os.fsync", lambda _: None)
    draws = DrawStore.open(tmp_path / "a", network).samples(network)[1].draws
    whole = [w[1, 1], w[2, 1]] if moment < 3 else [w[1, 1], w[2, 1], w[3, 1]]
    assert torch.equal(draws, torch.stack(whole))
    store.write(40, w[3], None)
    assert torch.equal(store.samples(network)[1].draws, w[1:4, 1])


def test_what_is_no_file_of_this_network_is_refused(tmp_path):
    network, other = network_of(), network_of(norm=True)
    path = tmp_path / "a"
    filled(path, network, positions(network), 7)
    with pytest.raises(ValueError, match="exists; give another path"):
        DrawStore.create(path, network, K, 7, torch.float32)
    with pytest.raises(ValueError, match="of another network"):
        DrawStore.open(path, other)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="is damaged"):
        DrawStore.open(path, network)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        DrawStore.open(tmp_path / "b", network)
    empty = DrawStore.create(tmp_path / "c", network, K, 7, torch.float32)
    with pytest.raises(ValueError, match="holds no draw yet"):
        empty.samples(network)
    with pytest.raises(ValueError, match="float32 or float64"):
        DrawStore.create(tmp_path / "d", network, K, 7, torch.float16)
