"""Streams: order, resume, counts, sources; what workers, files and loaders must give."""

import random
from itertools import chain

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
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
from bayesieve.data.stored import MappedArrays, TableFiles
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


@pytest.mark.parametrize("blocks", [None, [4, 4, 4, 4, 4, 3], [1] * N])
@pytest.mark.parametrize("start", [0, 1, 3, 5])
def test_an_epoch_begins_anywhere(blocks, start):
    whole = [rows.tolist() for rows in epoch_rows(N, 4, 9, blocks)]
    assert sorted(chain(*whole)) == list(range(N))
    assert [rows.tolist() for rows in epoch_rows(N, 4, 9, blocks, start)] == whole[start:]


def test_blocks_are_mixed_but_read_some_at_a_time():
    blocks = [10] * 40
    rows = np.concatenate(list(epoch_rows(400, 400, 1, blocks)))
    window = rows[: 10 * streams._WINDOW]
    assert len(set((window // 10).tolist())) == streams._WINDOW
    assert (np.diff(rows) != 1).mean() > 0.9


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


# Files.


def test_mapped_arrays_are_read_from_the_disk(tmp_path):
    x, y = (X.numpy() * 3).astype(np.uint8), np.arange(N)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    for rows in (
        MappedArrays(tmp_path / "x.npy", tmp_path / "y.npy", scale=1 / 255),
        MappedArrays(tmp_path / "both.npz", scale=1 / 255),
    ):
        assert isinstance(rows.x, np.memmap)
        taken = rows.take(np.array([7, 2]))
        torch.testing.assert_close(taken[0], torch.tensor(x[[7, 2]]) / 255)
        assert taken[1].tolist() == [7, 2]
        assert sorted(chain(*targets(Stream(rows), stop=6))) == y.tolist()


def test_damaged_arrays_are_named(tmp_path):
    np.savez_compressed(tmp_path / "c.npz", x=X.numpy(), y=np.arange(N))
    np.savez(tmp_path / "b.npz", x=X.numpy(), y=np.arange(3))
    np.savez(tmp_path / "o.npz", x=np.array([{}] * 2), y=np.arange(2))
    (tmp_path / "d.npz").write_bytes(b"nothing")
    for name, message in (
        ("c", "is compressed. Write it with numpy.savez"),
        ("b", "23 inputs and 3 targets"),
        ("o", "holds objects"),
        ("d", "is no .npz file"),
    ):
        with pytest.raises(DataError, match=message):
            MappedArrays(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match=r"has no array 'z', but x\.npy, y\.npy"):
        MappedArrays(tmp_path / "b.npz", names=("z", "y"))
    with pytest.raises(DataError, match="cannot be mapped"):
        MappedArrays(tmp_path / "d.npz", tmp_path / "d.npz")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables_are_read_group_by_group(tmp_path, kind):
    table = pyarrow.table({"a": X[:, 0].numpy(), "b": X[:, 1].long().numpy(), "y": np.arange(N)})
    files = [tmp_path / f"{i}.{kind}" for i in range(2)]
    for part, path in zip((table[:11], table[11:]), files, strict=True):
        if kind == "parquet":
            pyarrow.parquet.write_table(part, path, row_group_size=4)
        else:
            with pyarrow.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(part, max_chunksize=4)
    rows = TableFiles(files, "y")
    assert rows.blocks == [4, 4, 3, 4, 4, 4]
    x, y = rows.take(np.array([22, 3, 11]))
    assert y.tolist() == [22, 3, 11]
    assert torch.equal(x, X[[22, 3, 11]])
    assert torch.equal(TableFiles(files, "y", ["b"]).take(np.array([5]))[0], X[[5], 1:])
    assert sorted(chain(*targets(Stream(rows), stop=6))) == list(range(N))
    with pytest.raises(DataError, match="has no column z; its columns are a, b, y"):
        TableFiles(files, "z")


def test_columns_of_lists_are_axes_and_others_are_named(tmp_path):
    path = tmp_path / "t.parquet"
    pixels = [[[1, 2, 3], [4, 5, 6]]] * 2
    table = pyarrow.table(
        {"image": pixels, "ragged": [[1], [1, 2]], "word": ["a", "b"], "gap": [1.0, None],
         "y": [0.5, 1.5]}
    )  # fmt: skip
    pyarrow.parquet.write_table(table, path)
    x, y = TableFiles([path], "y", ["image"]).take(np.array([1]))
    assert x.tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert (x.dtype, y.dtype) == (torch.int64, torch.float32)
    for column, message in (
        ("ragged", "lists of column 'ragged' have several lengths"),
        ("word", "column 'word' holds string, not numbers"),
        ("gap", "column 'gap' has 1 missing values"),
    ):
        with pytest.raises(DataError, match=message):
            TableFiles([path], "y", [column]).take(np.array([0]))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read as a table"):
        TableFiles([tmp_path / "bad.parquet"], "y")
