"""Two processes of one run on gloo: equal to one process, of less noise, and not to be torn apart.

All of it happens in one pair of processes, `tests/ranks.py`, since each takes seconds to start.
"""

import shutil
import signal

import pytest
import torch

import ranks
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.noise import WeightNoise
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.recipes import RunSize
from bayesieve.engines.sbnn import SBNN
from bayesieve.training.distributed import noise_key
from bayesieve.training.fit import check_run
from engine_table import ENGINES
from problems import seeded
from zoo import BY_NAME

pytestmark = pytest.mark.slow  # starts processes
EXACT = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The results of both processes, and the folder they were written to."""
    folder, port = tmp_path_factory.mktemp("ranks"), ranks.free_port()
    processes = [ranks.start([ranks.__file__, folder], rank, port) for rank in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 9], "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)], folder


@pytest.mark.parametrize("name", ranks.SHAREABLE)
def test_two_processes_with_one_noise_are_one_process(pair, name):
    alone = ranks.short_fit(ENGINES[name]).posterior.mean
    torch.testing.assert_close(pair[0][0]["shared"][name], alone, **EXACT)


@pytest.mark.parametrize("name", ENGINES)
def test_both_processes_end_with_the_same_bits(pair, name):
    first, second = (found["own"][name] for found in pair[0])
    assert torch.equal(first, second)
    assert first.isfinite().all()


def test_the_bound_of_the_gradient_and_populations_are_those_of_one_process(pair):
    found = pair[0][0]
    alone = ranks.short_fit(SBNN(lr=0.01), schedule=ranks.clipped()).posterior.mean
    torch.testing.assert_close(found["clipped"], alone, **EXACT)
    free = ranks.short_fit(SBNN(lr=0.01)).posterior.mean
    assert (free - alone).abs().max() > 1e-3
    second = ranks.short_fit([SBNN(lr=0.01), SBNN(lr=0.02)]).posteriors[1].mean
    torch.testing.assert_close(found["population"], second, **EXACT)
    assert torch.equal(found["clipped-own"], pair[0][1]["clipped-own"])


def test_micro_batches_of_unequal_number_are_those_of_one_process(pair):
    alone = ranks.short_fit(ENGINES["tdamp-learned"]).posterior.mean
    torch.testing.assert_close(pair[0][0]["parts"], alone, **EXACT)  # 3 examples and 2, by twos


def test_processes_share_a_stream_as_they_share_tensors(pair):
    alone = ranks.short_fit(SBNN(lr=0.01), ranks.streamed()).posterior.mean
    torch.testing.assert_close(pair[0][0]["streamed"], alone, **EXACT)


def test_a_gradient_is_the_sum_over_parts_each_at_its_own_draw(pair):
    engine = FlatVI(prior=Normal(0.3), init_std=0.1)
    problem, total = ranks.problem_of(engine), 0.0
    for rank in range(2):
        state = engine.init(problem, seeded(noise_key(0, 7, rank)))
        batch = problem.data.batch(torch.arange(ranks.N_DATA)[rank::2])
        found = WeightNoise().gradients(problem, state, batch).flatten()
        n = state.log_std.shape[1]
        shift = (found.weights - state.mean)[0, :n]
        half = found.grad[0, :n] / 2  # of half the data, scaled to all
        total = total + torch.cat([half, half * shift])
    torch.testing.assert_close(pair[0][0]["gradient"], total, **EXACT)


def test_own_noise_halves_the_variance_of_the_gradient(pair):
    own, shared = (pair[0][0][f"variance-{kind}"] for kind in ("own", "shared"))
    n = len(own) // 2
    for part in (slice(0, n), slice(n, None)):  # for the means, and for the log stds
        assert 0.4 < (own[part].sum() / shared[part].sum()).item() < 0.6


def test_running_statistics_are_the_same_everywhere(pair):
    first, second = (found["statistics"] for found in pair[0])
    assert any("running" in name for name in first)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_the_first_process_validates_and_calls_back_for_all(pair):
    first, second = pair[0]
    assert (first["calls"], second["calls"]) == ([1, 2], [])
    assert first["rows"] == second["rows"]
    assert len(first["rows"]) == 2


def test_other_data_in_one_process_are_an_error_in_all(pair):
    for found in pair[0]:
        assert found["other data"].startswith("fit: rank 1 of 2 has other data than rank 0.")


def test_a_signal_to_one_process_stops_all_and_the_run_goes_on_with_any_number(pair):
    (first, second), folder = pair
    assert first["exit code"] == second["exit code"] == 143
    doomed = ranks.Doomed(lr=0.01, signal=signal.SIGTERM)
    alone = ranks.short_fit(doomed).posterior.mean
    torch.testing.assert_close(first["resumed"], alone, **EXACT)
    assert torch.equal(first["resumed"], second["resumed"])
    checkpoints = sorted((folder / "run" / "checkpoints").iterdir())
    assert checkpoints[0].name == "checkpoint-000000004.safetensors"
    shutil.copytree(folder / "run", folder / "again")
    (folder / "again" / "checkpoints" / checkpoints[1].name).unlink()
    again = ranks.short_fit(doomed, folder=folder / "again", resume=True)
    torch.testing.assert_close(again.posterior.mean, alone, **EXACT)


def test_a_process_that_dies_is_named_by_the_others(pair):
    message = (pair[1] / "lost.txt").read_text()
    assert message.startswith("fit: rank 1 of 2 (process ")
    assert "resume=True" in message


@pytest.mark.parametrize(
    ("case", "batch_size", "n", "words"),
    [
        ("layer_norm", 5, 3, "less than one example for each of 3"),
        ("batch_norm", 4, 4, "BatchNorm"),
    ],
)
def test_batches_too_small_for_all_processes_are_refused(case, batch_size, n, words):
    size = RunSize.of(None, 12, 1, None, batch_size, task="classification", table=True)
    with pytest.raises(ValueError, match=words):
        check_run(BY_NAME[case].problem(12), size, None, None, None, n)


def test_without_torchrun_nothing_is_shared():
    problem = Problem(torch.nn.Linear(1, 1), Gaussian(), (torch.ones(4, 1), torch.ones(4)))
    assert ranks.short_fit(MAP(), problem).problem.execution.sharing is None
