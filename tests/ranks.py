"""What two processes of one run do; `test_distributed.py` starts them and reads what they write.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python tests/ranks.py FOLDER
"""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import bayesieve.data.streams  # noqa: F401 - so that `Problem` reads a Dataset
from bayesieve.core.noise import WeightNoise
from bayesieve.core.priors import Normal
from bayesieve.core.reading import with_data
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.tdamp import TDAMP
from bayesieve.environment import rank_of_process
from bayesieve.errors import LostRankError
from bayesieve.training.distributed import join, shared_noise
from bayesieve.training.launch import fit
from bayesieve.training.progress import Interrupted
from bayesieve.training.schedule import Schedule
from bayesieve.training.validation import Validation
from engine_table import ENGINES
from problems import seeded
from zoo import BY_NAME, Case, chain

PLAIN = Case("plain", partial(chain, 3, 4, 3, act=nn.ReLU, seed=None), (3,))
# Noise on activations has the shape of the batch: two processes cannot draw that of one. In pairs
# each process halves its share, so that other examples meet than in one process.
SHAREABLE = {n: engine for n, engine in ENGINES.items() if not n.endswith("-local")}
N_DATA = 12


def start(arguments, rank, port, n=2):
    """One process as `torchrun` would start it."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "MASTER_PORT": port}
    paths = ["src", "tests", "."]
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in paths)
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def problem_of(engine, n_data=N_DATA):
    """A problem of few examples that the engine can learn."""
    return (PLAIN if isinstance(engine, TDAMP) else BY_NAME["layer_norm"]).problem(n_data)


def short_fit(engine, problem=None, **options):
    """Two epochs with a last batch of two."""
    settings = {"epochs": 2, "batch_size": 5, "seed": 1} | options
    return fit(problem or problem_of(engine), engine, **settings)


def streamed():
    """The same examples, read batch by batch."""
    problem = problem_of(SBNN())
    return with_data(problem, TensorDataset(problem.x, problem.y))


def clipped():
    """Schedule whose bound on the gradient is in force."""
    return Schedule(clip_norm=0.01)


@dataclass(frozen=True)
class Doomed(MAP):
    """Plain training in which something happens to the second process at its fourth step."""

    signal: int = 0

    def step(self, problem, state, batch):
        if rank_of_process() == 1 and int(state.step) == 3:
            if not self.signal:
                os._exit(9)
            os.kill(os.getpid(), self.signal)
        return super().step(problem, state, batch)


def gradients(engine, *, step=0, n_draws=1, n_data=N_DATA):
    """Gradients for mean and log std at fixed weights, of all data, one row per draw."""
    problem = problem_of(engine, n_data)
    ranks = join(problem.device)
    problem.execution = replace(problem.execution, sharing=ranks)
    state = engine.init(problem, seeded(0))
    index, rows = torch.arange(n_data), []
    for t in range(step, step + n_draws):
        ranks.begin(0, t)
        batch = problem.data.batch(ranks.part(index))._replace(n_shared=n_data)
        found, n = WeightNoise().gradients(problem, state, batch).flatten(), state.log_std.shape[1]
        spread = found.for_log_std(state.mean[:, :n], None, slice(0, n))
        rows.append(torch.cat([found.grad[0, :n], spread[0]]))
    return torch.stack(rows)


def main(folder: Path) -> None:
    """Go through all that is asked of two processes, and leave the results in a file."""
    found = {"own": {}, "shared": {}}
    for name, engine in ENGINES.items():
        found["own"][name] = short_fit(engine).posterior.mean
        if name in SHAREABLE:
            with shared_noise():
                found["shared"][name] = short_fit(engine).posterior.mean
    population = [SBNN(lr=0.01), SBNN(lr=0.02)]
    with shared_noise():
        found["clipped"] = short_fit(SBNN(lr=0.01), schedule=clipped()).posterior.mean
        found["parts"] = short_fit(ENGINES["tdamp-learned"], micro_batch=2).posterior.mean
        found["population"] = short_fit(population).posteriors[1].mean
        found["streamed"] = short_fit(SBNN(lr=0.01), streamed()).posterior.mean
    found["clipped-own"] = short_fit(BMR(lr=0.1), schedule=clipped()).posterior.mean
    many = {"n_draws": 300, "n_data": 600}  # halves of which are much alike
    engine = FlatVI(prior=Normal(0.3), init_std=0.1)
    found["gradient"] = gradients(engine, step=7)[0]
    found["variance-own"] = gradients(engine, **many).var(0)
    with shared_noise():
        found["variance-shared"] = gradients(engine, **many).var(0)
    normed = short_fit(MAP(lr=0.01), BY_NAME["batch_norm"].problem(N_DATA), batch_size=6)
    found["statistics"] = normed.posterior.buffers
    problem, calls = problem_of(MAP()), []
    run = short_fit(
        MAP(lr=0.01), problem, epochs=5, validation=Validation((problem.x, problem.y)),
        callbacks=[lambda progress: calls.append(progress.epoch) or progress.epoch == 2],
    )  # fmt: skip
    found["calls"], found["rows"] = calls, [row["val_nll"] for row in run.history]
    other = with_data(problem, (problem.x + rank_of_process(), problem.y))
    try:
        short_fit(MAP(), other)
    except ValueError as error:
        found["other data"] = str(error)
    try:
        short_fit(Doomed(lr=0.01, signal=signal.SIGTERM), folder=folder / "run")
    except Interrupted as stop:
        found["exit code"] = stop.exit_code
    found["resumed"] = short_fit(
        Doomed(lr=0.01, signal=signal.SIGTERM), folder=folder / "run", resume=True
    ).posterior.mean  # fmt: skip
    torch.save(found, folder / f"{rank_of_process()}.pt")
    try:
        short_fit(Doomed(lr=0.01))
    except LostRankError as error:
        (folder / "lost.txt").write_text(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
