"""Streams: order, resume, counts, sources; what workers and loaders must give."""

import random
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from bayesieve.data import streams
from bayesieve.data.streams import Stream, epoch_rows, shuffled
from bayesieve.errors import DataError

N = 23
X = torch.arange(N * 2, dtype=torch.float32).view(N, 2)
ROWS = TensorDataset(X, torch.arange(N))


class Counting(IterableDataset):
    """0, 1, ..., n - 1, shared by the workers."""

    def __init__(self, n=N, *, shared=True, shuffled=False):
        self.n, self.shared, self.shuffled = n, shared, shuffled

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker and self.shared else (0, 1)
        places = list(range(first, self.n, step))
        if self.shuffled:
            random.shuffle(places)
        for i in places:
            yield torch.full((2,), float(i)), i


class Noisy(Dataset):
    """Draws from every global generator, as augmentation does."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        noise = torch.rand(1).item() + random.random() + np.random.rand()  # noqa: NPY002
        return torch.tensor([i + noise]), i


def targets(stream, size=4, *, seed=0, start=0, stop=18):
    return [y.tolist() for _, y in stream.steps(size, seed=seed, start=start, stop=stop)]


@pytest.mark.parametrize("table", [0, 1 << 16])
@pytest.mark.parametrize("n", [1, 2, 5, 64, 1000])
def test_an_order_without_a_table_is_a_permutation(monkeypatch, table, n):
    monkeypatch.setattr(streams, "_TABLE", table)
    order = shuffled(np.arange(n), n, key=3)
    assert sorted(order.tolist()) == list(range(n))
    if n > 5:
        assert order.tolist() != shuffled(np.arange(n), n, key=4).tolist()


def test_an_order_without_a_table_is_as_random_as_one_with(monkeypatch):
    monkeypatch.setattr(streams, "_TABLE", 0)
    orders = np.stack([shuffled(np.arange(500), 500, streams._mixed(1, k)) for k in range(200)])
    z = (orders - 249.5) / (500 / 12**0.5)
    assert abs(z.mean(0).std() * 200**0.5 - 1) < 0.15  # each place is uniform
    assert abs((z[:, 1:] * z[:, :-1]).mean(0).std() * 200**0.5 - 1) < 0.15  # and neighbours free


@pytest.mark.parametrize("start", [0, 1, 3, 5])
def test_an_epoch_begins_anywhere(start):
    whole = [rows.tolist() for rows in epoch_rows(N, 4, 9)]
    assert sorted(chain(*whole)) == list(range(N))
    assert [rows.tolist() for rows in epoch_rows(N, 4, 9, start)] == whole[start:]


STREAMS = {
    "rows": lambda: Stream(ROWS),
    "in order": lambda: Stream(ROWS, shuffle=False),
    "workers": lambda: Stream(ROWS, workers=2),
    "loader": lambda: Stream(DataLoader(ROWS, batch_size=5, shuffle=True)),
    "sampler": lambda: Stream(
        DataLoader(ROWS, batch_size=5, sampler=WeightedRandomSampler([1.0] * N, N))
    ),
    "iterable": lambda: Stream(Counting(shuffled=True), n_data=N),
}


@pytest.mark.filterwarnings("ignore:.*cannot be repositioned")
@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS.keys())
def test_steps_are_those_of_the_seed_wherever_they_begin(make):
    stream, state = make(), torch.get_rng_state()
    whole = targets(stream)
    assert [len(y) for y in whole] == [4, 4, 4, 4, 4, 3] * 3
    assert targets(make()) == whole
    assert targets(make(), start=8) == whole[8:]
    assert torch.equal(torch.get_rng_state(), state)  # ours is not touched
    if stream.shuffle:
        assert targets(make(), seed=1) != whole
        assert whole[:6] != whole[6:12]


@pytest.mark.parametrize("make", [STREAMS["rows"], STREAMS["iterable"]], ids=["rows", "iterable"])
def test_processes_read_their_shares_of_each_batch(make):
    whole = targets(make())
    for i in range(2):
        share = [y.tolist() for _, y in make().steps(4, seed=0, stop=18, part=(i, 2))]
        assert share == [y[i::2] for y in whole]


def test_what_cannot_be_repositioned_says_so():
    stream = Stream(Counting(), n_data=N)
    assert not stream.repositionable
    with pytest.warns(UserWarning, match="2 batches are read again to find the place"):
        targets(stream, start=8)
    assert Stream(DataLoader(ROWS, shuffle=True)).repositionable
    assert not Stream(DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * N, N))).repositionable


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_is_a_function_of_seed_and_step(workers):
    def noise(start=0, workers=workers):
        steps = Stream(Noisy(), workers=workers).steps(4, seed=0, start=start, stop=9)
        return [x.tolist() for x, _ in steps]

    whole = noise()
    assert noise(start=7) == whole[7:]
    assert noise(workers=0) == whole  # whoever reads


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_sees_every_example_in_order(workers):
    for source in (ROWS, Counting(), DataLoader(ROWS, batch_size=7, num_workers=workers)):
        stream = Stream(source, n_data=N, workers=workers)
        seen = torch.cat([y for _, y in stream.epoch(5)]).tolist()
        assert sorted(seen) == list(range(N))
        if not isinstance(source, Counting):
            assert seen == list(range(N))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stream(Counting()), "has no length. Give n_data="),
        (lambda: Stream(ROWS, n_data=5), "n_data is 5, but the source has 23"),
        (lambda: Stream(DataLoader(ROWS, 5, drop_last=True)), "drop_last=True"),
        (lambda: Stream([1, 2]), "a Dataset or DataLoader is needed, got list"),
        (lambda: Stream(DataLoader(Counting()), n_data=0), "n_data must be > 0"),
    ],
)
def test_wrong_sources_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("source", "n", "message"),
    [
        (Counting(20), 23, "an epoch has 20 examples, but N is 23"),
        (Counting(30), 23, "an epoch has more examples, but N is 23"),
        (
            DataLoader(Counting(shared=False), num_workers=2),
            23,
            "Each of 2 workers reads an IterableDataset whole",
        ),
    ],
)
def test_an_epoch_of_another_size_raises(source, n, message):
    with pytest.raises(DataError, match=message):
        targets(Stream(source, n_data=n))


def test_batches_that_are_no_pairs_are_named():
    with pytest.raises(TypeError, match="must be a pair"):
        Stream(TensorDataset(X)).first(2)
