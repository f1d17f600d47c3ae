"""Training on streams: every engine, exact resume, memory that does not grow with the data."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.core.state import snapshot
from bayesieve.data.augment import Augment
from bayesieve.data.streams import Stream
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.errors import DataError, UnsupportedModelError
from bayesieve.runs.memory import memory_need
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from engine_table import ONE_EACH
from problems import renew

N = 22
X = torch.randn(N, 3, generator=Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def streamed(source=None, **options):
    source = Stream(TensorDataset(X, Y), **options) if source is None else source
    return Problem(network(), Categorical(), source)


@pytest.mark.parametrize("engine", ONE_EACH.values(), ids=ONE_EACH.keys())
def test_a_stream_trains_as_the_same_batches_do(engine):
    stream = Stream(TensorDataset(X, Y))
    run = fit(streamed(stream), engine, steps=5, batch_size=8, seed=3, schedule=Schedule())
    pairs = list(stream.steps(8, seed=3, stop=5))
    in_memory, engine = Problem(network(), Categorical(), (X, Y)), run.engine
    state = engine.init(in_memory, Generator().manual_seed(3), 1)
    for step, (x, y) in enumerate(pairs):
        renew(engine, in_memory, state, step, 5)
        rows = torch.tensor([int((row == X).all(1).nonzero()) for row in x])
        assert torch.equal(Y[rows], y)
        engine.step(in_memory, state, in_memory.data.batch(rows))
    for name, value in snapshot(state).items():
        if not name.startswith("controls"):
            assert torch.equal(snapshot(run.state)[name], value), name


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_equals_the_unbroken_one(tmp_path, workers):
    def run(folder, callbacks=(), **options):
        problem = streamed(workers=workers)
        return fit(
            problem, SBNN(lr=0.01), epochs=4, batch_size=8, folder=folder, callbacks=callbacks,
            schedule=Schedule(lr="cosine", checkpoint_every=2), **options,
        )  # fmt: skip

    whole = run(tmp_path / "a")
    run(tmp_path / "b", callbacks=[lambda seen: seen.epoch == 2])
    newest = sorted((tmp_path / "b" / "checkpoints").iterdir())
    newest[-1].unlink()  # go on in the middle of an epoch
    again = run(tmp_path / "b", resume=True)
    assert torch.equal(again.posterior.mean, whole.posterior.mean)
    assert again.history[-1]["log_lik"] == whole.history[-1]["log_lik"]


class Reversed(IterableDataset):
    def __iter__(self):
        return zip(X.flip(0), Y.flip(0), strict=True)


def test_what_cannot_be_repositioned_goes_on_with_a_warning(tmp_path):
    def run(name, **options):
        problem = streamed(Stream(Reversed(), n_data=N))
        every = Schedule(checkpoint_every=4)
        return fit(problem, MAP(), steps=8, batch_size=8, folder=tmp_path / name, schedule=every,
                   **options)  # fmt: skip

    whole = run("a")
    run("b")
    checkpoints = sorted((tmp_path / "b" / "checkpoints").iterdir())
    checkpoints[-1].unlink()
    with pytest.warns(UserWarning, match="cannot be repositioned"):
        again = run("b", resume=True)
    assert torch.equal(again.posterior.mean, whole.posterior.mean)


def test_other_data_are_refused_on_resume(tmp_path):
    asked = {"steps": 3, "batch_size": 8, "folder": tmp_path, "schedule": Schedule()}
    fit(streamed(), MAP(), **asked)
    other = Problem(network(), Categorical(), TensorDataset(X + 1, Y))
    with pytest.raises(DataError, match="the data are not those"):
        fit(other, MAP(), **asked, resume=True)


def test_a_loader_sets_the_batch_and_populations_share_it():
    loader = DataLoader(TensorDataset(X, Y), batch_size=11, shuffle=True)
    run = fit(streamed(loader), [MAP()] * 2, epochs=2, micro_batch=4)
    assert run.history[-1]["step"] == 4
    assert run.n_models == 2


def test_a_wrong_n_raises_within_the_first_epoch():
    problem = streamed(Stream(Reversed(), n_data=30))
    assert problem.n_data == 30
    with pytest.raises(DataError, match="an epoch has 22 examples, but N is 30"):
        fit(problem, MAP(), epochs=1, batch_size=8)


def test_bad_examples_are_met_where_they_are():
    bad = X.clone()
    bad[-1, 0] = torch.nan
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        fit(streamed(TensorDataset(bad.repeat(9, 1), Y.repeat(9))), MAP(), epochs=1)
    labels = torch.cat([Y.repeat(9), torch.tensor([7])])
    with pytest.raises(ValueError, match="Categorical"):
        fit(streamed(TensorDataset(X.repeat(10, 1)[:199], labels)), MAP(), epochs=1)


def test_a_stream_has_no_tensor_of_all_inputs():
    problem = streamed()
    assert repr(problem).endswith("22 examples, on cpu)")
    with pytest.raises(UnsupportedModelError, match="a stream, so there is no tensor x"):
        _ = problem.x
    with pytest.raises(ValueError, match="rows and weight are of examples in memory"):
        Problem(network(), Categorical(), TensorDataset(X, Y), weight=torch.ones(N))
    with pytest.raises(ValueError, match="n_data is for streams"):
        Problem(network(), Categorical(), (X, Y), n_data=5)
    assert with_data(problem, (X, Y)).data.stream is None


def test_images_of_a_stream_are_changed_at_random():
    images = TensorDataset(torch.rand(N, 1, 4, 4), Y)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    means = []
    for augment in (None, Augment(shift=1)):
        problem = Problem(model, Categorical(), images, augment=augment)
        means.append(fit(problem, MAP(), steps=2, batch_size=8).posterior.mean)
    assert not torch.equal(*means)


class Made(Dataset):
    """N rows that are computed when they are asked for."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitems__(self, rows):
        x = torch.from_numpy(np.sin(np.array(rows)[:, None] * np.arange(1.0, 51.0))).float()
        return list(zip(x, x.sum(1), strict=True))


def anonymous_memory():
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def test_memory_does_not_grow_with_the_data():
    def run(n):
        problem = Problem(nn.Linear(50, 1), Gaussian(), Stream(Made(n)))
        return fit(problem, MAP(), steps=40, batch_size=256)

    run(10_000)
    before = anonymous_memory()
    run(1_000_000)  # 200 MB in memory
    assert anonymous_memory() - before < 4e6
    problem = Problem(nn.Linear(50, 1), Gaussian(), Stream(Made(1_000_000)))
    assert memory_need(problem, MAP(), batch_size=256).data < 1e6
