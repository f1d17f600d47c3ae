"""The 200 lines of plain torch in examples/nano.py give the numbers of the library."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import Generator, nn

import bayesieve as bs
from bayesieve.training.progress import EverySteps

PATH = Path(__file__).parents[2] / "examples" / "nano.py"
SIZES = [6, 16, 12, 3]
SETTINGS = {"batch_size": 32, "seed": 3}  # the last of 80 examples make a smaller batch
N_EPOCHS, ZEROS = 30, 0.8


@pytest.fixture(scope="module")
def nano():
    spec = importlib.util.spec_from_file_location("nano", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["nano"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data():
    source = Generator().manual_seed(0)
    x = torch.randn(80, SIZES[0], dtype=torch.float64, generator=source)
    y = (x[:, 0] > 0).long() + (x[:, 1] * x[:, 2] > 0.3).long()  # three inputs do not matter
    return x, y


@pytest.fixture(scope="module")
def started(nano):
    """Weights drawn once, as they are in the library's network and in the flat vector."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)]
    model = nn.Sequential(*layers).double()
    tensors = dict(model.named_parameters())
    names = [f"{i}.{kind}" for kind in ("weight", "bias") for i in (0, 2, 4)]
    return model, torch.cat([tensors[name].detach().flatten() for name in names])


@pytest.fixture(scope="module")
def of_the_library(data, started):
    """Log-likelihoods and KLs of two runs with a sieve between them, and the sparse model."""
    x, y = data
    problem = bs.Problem(started[0], bs.likelihoods.Categorical(), (x, y))
    prior = bs.priors.SpikeSlab(slab_std=0.3, spike_std=0.05, slab_prob=0.5)
    engine = bs.SBNN(prior=prior, lr=1e-2, init_std=0.05, local=False)
    log_liks = []
    runs, sparse = [], None
    for _ in range(2):
        run = bs.fit(
            problem, engine, epochs=N_EPOCHS, **SETTINGS, start_from=sparse,
            schedule=bs.Schedule(kl=0.1, compile="off"),
            callbacks=[EverySteps(1, lambda seen: log_liks.append(seen.row["log_lik"]))],
        )  # fmt: skip
        runs.append(run)
        sparse = sparse or bs.prune(run.posterior, bs.rules.keep_zeros(ZEROS))
    kls = [row["kl"] for run in runs for row in run.history]
    return log_liks, kls, runs[1].sparse()


@pytest.fixture(scope="module")
def of_nano(nano, data, started):
    x, y = data
    mean = started[1].clone()
    q = nano.Posterior(
        mean, torch.full_like(mean, 0.05).log(), torch.ones_like(mean, dtype=torch.bool)
    )
    log_liks, kls = [], []
    for _ in range(2):
        steps = list(nano.train(q, SIZES, x, y, nano.SpikeSlab(), epochs=N_EPOCHS, **SETTINGS))
        log_liks += [log_lik for log_lik, _ in steps]
        kls += [kl for _, kl in steps[2::3]]
        if q.keep.all():
            q.keep = nano.sieve(q, SIZES, ZEROS)
    return log_liks, kls, q


def test_the_loss_of_every_step_is_that_of_sbnn(of_the_library, of_nano):
    assert len(of_nano[0]) == 2 * 3 * N_EPOCHS
    assert of_nano[0] == pytest.approx(of_the_library[0], rel=1e-9)
    assert of_nano[1] == pytest.approx(of_the_library[1], rel=1e-9)


def test_mask_and_posterior_are_those_of_sbnn(of_the_library, of_nano):
    sparse, q = of_the_library[2], of_nano[2]
    torch.testing.assert_close(q.keep, sparse.keep)
    assert int(q.keep.sum()) == round((1 - ZEROS) * len(q.keep))
    torch.testing.assert_close(q.mean * q.keep, sparse.posterior.mean)
    torch.testing.assert_close(q.log_std.exp() * q.keep, sparse.posterior.std)


def test_the_compacted_network_is_that_of_compact(nano, data, of_the_library, of_nano):
    x, _ = data
    q, module = of_nano[2], bs.compact(of_the_library[2], x)
    inputs, small = nano.compact(nano.layers_of(q.mean * q.keep, SIZES))
    torch.testing.assert_close(nano.forward(small, x[:, inputs]), module(x))
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert [weight.shape for weight, _ in small] == [layer.weight.shape for layer in linear]
    assert small[0][0].shape < (16, 6)  # units and inputs have gone
    read = module.compaction.input_features
    assert inputs.tolist() == list(range(6) if read is None else read)


def test_a_constant_unit_is_folded_and_an_unread_one_left_out(nano):
    first, last = torch.zeros(4, 2), torch.tensor([[0.0], [4.0]])
    first[0, 1], first[3, 0] = 2.0, 7.0
    middle = torch.tensor([[1.0, 3.0, 1.0, 0.0]])
    biases = torch.tensor([0.0, 5.0, -2.0, 0.0])
    whole = [(first, biases), (middle, torch.zeros(1)), (last, torch.zeros(2))]
    inputs, small = nano.compact(whole)
    assert inputs.tolist() == [1]  # unit 3 alone reads the other input, and nobody reads it
    assert small[0][0].shape == (1, 1)
    assert small[1][1].item() == 15.0  # unit 1 is always relu(5), unit 2 always relu(-2)
    x = torch.randn(5, 2)
    torch.testing.assert_close(nano.forward(small, x[:, inputs]), nano.forward(whole, x))


def test_it_is_short_and_imports_nothing_of_ours():
    text = PATH.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert "import bayesieve" not in text
    assert "from bayesieve" not in text
