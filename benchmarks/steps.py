"""What Bayes costs: our training step and predictive as multiples of plain PyTorch.

The records are the files results/steps-*.json; docs/performance.md tells what they say. Ratios of
single runs vary by about 0.05 to 0.1.

Baseline of the steps: the same network trained by plain PyTorch, eager, with AdamW at its default
settings (zero_grad, forward, backward, step); for the samplers SGD with momentum. Renewing masks
between steps is not part of a step. Baseline of the predictive: as many forward passes
of the plain network as there are draws. Time is CPU time of the process, so that a busy machine
does not inflate it. All cases of a table are built first, then run in interleaved rounds; `ms` is
the median over rounds, `ratio` the median over rounds of (time / baseline time of the SAME round).
On a GPU both sides replay a CUDA graph and the clock is the device's.

    python benchmarks/steps.py                                  # about 6 minutes on a CPU
    python benchmarks/steps.py --peers                          # also the libraries that import
    python -m benchmarks.steps --first                          # fits of one step, from a new start
    python benchmarks/steps.py --device cuda
"""

import argparse
import dataclasses
import gc
import importlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bayesieve.assess.predict import weight_vectors
from bayesieve.core.batch import Batch
from bayesieve.core.execution import Execution, Formats, KeptMoments
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.engines import Engine
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.fast import native
from bayesieve.fast.backend import Machine
from bayesieve.fast.evaluator import evaluator
from bayesieve.fast.stepper import fast_kernels, make_stepper
from bayesieve.nets import conv2_fc2, mlp
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from bayesieve.uncertainty.moments import MomentNetwork

BATCH, N_TRAIN, N_DRAWS = 128, 4096, 100
STEPS_PER_ROUND, WARM_UP = 10, 5
FORWARD = "one plain forward"
ADAMW, SGD = "plain PyTorch, AdamW", "plain PyTorch, SGD with momentum"
PRIOR_STD = 0.1  # of the peers
PEERS = ("ivon-opt", "torchbnn", "bayesian-torch", "posteriors")

Case = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """One measurement; ratio and target are None where they do not apply."""

    name: str
    net: str
    median_ms: float | None
    ratio: float | None
    target: float | None = None
    count: int | None = None
    against: str | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        value = self.count if self.count is not None else self.ratio
        return None if self.target is None or value is None else value <= self.target


# ------------------------------------------------------------------------------------ problems


def lenet5_relu() -> nn.Sequential:
    """LeNet-5 as the other libraries' benchmarks have it: 6-16-120 maps, ReLU, max pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 120, 5), nn.ReLU(), nn.Flatten(),
        nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


MLP, LENET, CNN = "MLP 784-400-400-10", "LeNet-5", "2-Conv-2-FC"
SHORT = {"mlp": MLP, "lenet": LENET, "cnn": CNN}
NETS: dict[str, Callable[[], nn.Module]] = {
    MLP: lambda: mlp((1, 28, 28), 10),
    LENET: lenet5_relu,
    CNN: lambda: conv2_fc2((1, 28, 28), 10),
}
PREDICTIVE_TARGET, KEPT_TARGET, PEAK_TARGET, FIRST_TARGET = 1.2, 6, 10, 3


@dataclass(frozen=True)
class Entry:
    """An engine, the case its step is held against and the ratio to reach on each device."""

    engine: Engine[Any]
    against: str = ADAMW
    cpu: float | None = None
    cuda: float | None = None


def entries(net: str) -> dict[str, Entry]:
    """The engines timed on one network, by name."""
    if net == CNN:
        adaptive = SGHMC(GaussianLaplace(0.5, 1.0), 1e-6, adapt="sa")
        return {
            "MAP, SGD": Entry(MAP(optimizer="sgd"), SGD),
            "SGLD": Entry(SGLD(step_size=1e-6), SGD, 1.15, 1.15),
            "SGHMC-SA": Entry(adaptive, SGD, 1.15, 1.15),
        }
    target = {MLP: 1.12, LENET: 1.1}[net]
    return {
        "MAP": Entry(MAP()),
        "FlatVI": Entry(FlatVI(), cpu=target),
        "SBNN": Entry(SBNN(), cpu=target),
        "SBNN local": Entry(SBNN(local=True), cpu=1.6, cuda=1.0),
        "BMR": Entry(BMR(), cpu=1.3, cuda=1.5),
        "BMR local": Entry(BMR(local=True)),
        "HorseshoeVI": Entry(HorseshoeVI(), cpu=1.5, cuda=2.1),
    }


def baselines(net: str) -> dict[str, Callable[[nn.Module], torch.optim.Optimizer]]:
    """The plain optimisers of one network; as CUDA graphs need them on that device."""
    if net == CNN:
        return {SGD: lambda model: torch.optim.SGD(
            model.parameters(), lr=1e-3, momentum=0.9, foreach=True)}  # fmt: skip
    return {ADAMW: lambda model: torch.optim.AdamW(
        model.parameters(), capturable=next(model.parameters()).is_cuda)}  # fmt: skip


def random_images(n: int) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(0)
    x = torch.rand(n, 1, 28, 28, generator=generator)
    return x, torch.randint(10, (n,), generator=generator)


def batches() -> Callable[[], Batch]:
    """A source of batches that walks through the training data again and again."""
    x, y = random_images(N_TRAIN)
    parts = [Batch(*pair) for pair in zip(x.split(BATCH), y.split(BATCH), strict=True)]
    position = 0

    def following() -> Batch:
        nonlocal position
        position = (position + 1) % len(parts)
        return parts[position]

    return following


# -------------------------------------------------------------------------------------- timing


def interleaved(
    cases: dict[str, Case], rounds: int, repeats: int, clock: Clock
) -> dict[str, list[float]]:
    """Milliseconds per call of each round, by name."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            start = clock()
            for _ in range(repeats):
                case()
            times[name].append((clock() - start) / repeats * 1e3)
    return times


def compared(times: dict[str, list[float]], name: str, against: str) -> tuple[float, float]:
    """Median milliseconds, and median over rounds of the ratio to another case."""
    steps = times[name]
    ratio = statistics.median(a / b for a, b in zip(steps, times[against], strict=True))
    return statistics.median(steps), ratio


def warmed(case: Case) -> Case:
    for _ in range(WARM_UP):
        case()
    return case


# ------------------------------------------------------------------------------- steps on a CPU


def plain_step(net: str, kind: str, following: Callable[[], Batch]) -> Case:
    model = NETS[net]()
    optimizer = baselines(net)[kind](model)

    def step() -> None:
        batch = following()
        optimizer.zero_grad()
        F.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()

    return step


def our_step(
    engine: Engine[Any], net: str, following: Callable[[], Batch], *, compiled: bool
) -> Case:
    problem = Problem(NETS[net](), Categorical(), random_images(N_TRAIN))
    in_c = compiled and native.steps() is not None
    problem.execution = Execution(Machine(compiled=compiled, native=in_c))
    state = engine.init(problem, Generator().manual_seed(0))
    return lambda: engine.step(problem, state, following())


def step_rows(net: str, rounds: int, peers: bool) -> list[Row]:
    """Every engine, compiled and eager, and on request other libraries."""
    following = batches()
    cases = {kind: plain_step(net, kind, following) for kind in baselines(net)}
    against, targets = dict.fromkeys(cases, next(iter(cases))), dict[str, float | None]()
    for name, entry in entries(net).items():
        for compiled in (True, False):
            way = "compiled" if compiled else "eager"
            label = f"{name}, {way}"
            cases[label] = our_step(entry.engine, net, following, compiled=compiled)
            against[label] = entry.against if entry.against in cases else f"{entry.against}, {way}"
            targets[label] = entry.cpu if compiled else None
    if peers and net != CNN:
        other = peer_steps(net, following)
        against |= dict.fromkeys(other, ADAMW)
        cases |= other
    cases = {name: warmed(case) for name, case in cases.items()}
    steps = 3 if net == CNN else STEPS_PER_ROUND  # of 140 ms
    times = interleaved(cases, rounds, steps, time.process_time)
    return [
        Row(f"step: {name}", net, *compared(times, name, against[name]), targets.get(name),
            against=against[name])
        for name in cases
    ]  # fmt: skip


# --------------------------------------------------------------------------- first step on a CPU


def first_rows(net: str) -> list[Row]:
    """Seconds of a fit of one step with `compile="on"`, of each engine on its second start."""
    rows = []
    for name in entries(net):
        call = f"import benchmarks.steps as s; print(s.first_seconds({net!r}, {name!r}))"
        for _ in range(2):  # the first start may build what the second finds
            done = subprocess.run(
                [sys.executable, "-c", call], capture_output=True, text=True, check=True
            )
        seconds = float(done.stdout.split()[-1])
        rows.append(Row(f"first step: {name}", net, None, seconds, FIRST_TARGET, against="seconds"))
    return rows


def first_seconds(net: str, name: str) -> float:
    """Processor time, children counted and imports not, of a fit of one step in this process."""
    torch.set_num_threads(1)
    problem = Problem(NETS[net](), Categorical(), random_images(N_TRAIN))
    before = os.times()
    engine, schedule = entries(net)[name].engine, Schedule(compile="on")
    fit(problem, engine, steps=1, batch_size=BATCH, schedule=schedule)
    return sum(after - start for after, start in zip(os.times()[:4], before[:4], strict=True))


# -------------------------------------------------------------------------- predictive on a CPU


def predictive_rows(net: str, rounds: int) -> list[Row]:
    """Draw and evaluate, or only evaluate, 100 weight vectors on one batch of inputs."""
    problem = Problem(NETS[net](), Categorical(), random_images(N_TRAIN))
    engine, generator = FlatVI(), Generator().manual_seed(1)
    posterior = engine.posterior(problem, engine.init(problem, generator))
    model = NETS[net]().eval()
    network, buffers = posterior.network, posterior.buffers
    stored, moments = posterior.draw(N_DRAWS, generator), MomentNetwork(posterior)
    rows = []
    for n in (BATCH, 1000) if net == MLP else (BATCH,):  # convolutions hide draws anyway
        x = random_images(n)[0]

        def plain(x: Tensor = x) -> Tensor:
            with torch.no_grad():
                return torch.stack([model(x) for _ in range(N_DRAWS)])

        def drawn(x: Tensor = x) -> Tensor:
            vectors = weight_vectors(posterior, N_DRAWS, seed=0, reuse=True)  # as `predict`
            with evaluator(network, [x], buffers, posterior.mean) as evaluate:
                return torch.cat([evaluate(w) for w, _ in vectors])

        def evaluated(x: Tensor = x) -> Tensor:
            return network.outputs(stored, x, buffers)

        cases: dict[str, Case] = {
            f"{N_DRAWS} plain forwards": plain,
            f"{N_DRAWS} draws, made and evaluated": drawn,
            f"{N_DRAWS} stored draws, evaluated": evaluated,
        }
        for case in cases.values():
            case()
        first = next(iter(cases))
        times = interleaved(cases, max(3, rounds // 3), 1, time.process_time)
        for name in cases:
            target = None if name == first else PREDICTIVE_TARGET
            ratio = compared(times, name, first)
            rows.append(Row(f"predict {n:,}: {name}", net, *ratio, target, against=first))
        cases = {
            FORWARD: partial(without_gradient, model, x),
            "moments": partial(moments.predict, x),
        }
        times = interleaved({k: warmed(case) for k, case in cases.items()}, max(3, rounds // 3),
                            STEPS_PER_ROUND, time.process_time)  # fmt: skip
        ratio = compared(times, "moments", FORWARD)
        rows.append(Row(f"predict {n:,}: moments, no draw", net, *ratio, 3.0, against=FORWARD))
    return rows


def without_gradient(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


# ------------------------------------------------------------------------ memory between steps


def kept_rows(net: str) -> list[Row]:
    """Count the model-sized tensors that live from one step to the next, and the most at once."""
    cases: dict[str, Engine[Any]] = {
        "FlatVI": FlatVI(),
        "SBNN": SBNN(),
        "SBNN local": SBNN(local=True),
        "BMR": BMR(),
    }
    rows = []
    for name, engine in cases.items():
        kept, peak = n_kept(engine, net)
        plain = name in ("FlatVI", "SBNN", "BMR")
        kept_target = KEPT_TARGET if plain else None
        peak_target = PEAK_TARGET if plain and net == MLP else None  # else activations decide
        rows.append(Row(f"kept between steps: {name}", net, None, None, kept_target, kept))
        rows.append(Row(f"most in a step: {name}", net, None, peak, peak_target))
    return rows


def n_kept(engine: Engine[Any], net: str, moments: KeptMoments = "float32") -> tuple[int, float]:
    """Model-sized storages that state and workspace add to what the problem holds anyway.

    Also the most memory at once in a step in units of the model, activations included.
    """
    problem = Problem(NETS[net](), Categorical(), random_images(N_TRAIN))
    machine = Machine(native=native.steps() is not None)
    problem.execution = Execution(machine, Formats(moments=moments))
    following = batches()
    least = 0.9 * problem.initial.nbytes
    before = _large_storages(least)  # data, and the starting weights the problem remembers
    state = engine.init(problem, Generator().manual_seed(0))
    for _ in range(3):
        engine.step(problem, state, following())
    kept = len(_large_storages(least) - before)
    with torch.profiler.profile(profile_memory=True) as profiled:
        engine.step(problem, state, following())
    added = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            added += event.nbytes()
            most = max(most, added)
    return kept, kept + most / problem.initial.nbytes


def _large_storages(least: float) -> set[int]:
    gc.collect()
    tensors = (found for found in gc.get_objects() if type(found) in (Tensor, nn.Parameter))
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # left behind by torch.func.grad
    storages = (t.untyped_storage() for t in tensors if not (t.is_meta or wrapped(t)))
    return {storage.data_ptr() for storage in storages if storage.nbytes() >= least}


# --------------------------------------------------------------------------------------- peers


def peer_steps(net: str, following: Callable[[], Batch]) -> dict[str, Case]:
    """One mean-field step of each library that can be imported; says which cannot."""
    builders = dict(zip(PEERS, (_ivon, _torchbnn, _bayesian_torch, _posteriors), strict=True))
    cases: dict[str, Case] = {}
    for name, builder in builders.items():
        try:
            cases[name] = builder(NETS[net](), following)
        except ImportError as error:
            print(f"{name}: skipped, {error}")
    return cases


def _ivon(model: nn.Module, following: Callable[[], Batch]) -> Case:
    ivon = importlib.import_module("ivon")
    optimizer = ivon.IVON(model.parameters(), lr=0.1, ess=N_TRAIN, hess_init=0.5)

    def step() -> None:
        batch = following()
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()

    return step


def _torchbnn(model: nn.Module, following: Callable[[], Batch]) -> Case:
    bnn = importlib.import_module("torchbnn")
    prior = {"prior_mu": 0, "prior_sigma": PRIOR_STD}
    assert isinstance(model, nn.Sequential)
    for i, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            model[i] = bnn.BayesLinear(
                in_features=layer.in_features, out_features=layer.out_features, **prior
            )
        elif isinstance(layer, nn.Conv2d):
            model[i] = bnn.BayesConv2d(
                in_channels=layer.in_channels, out_channels=layer.out_channels,
                kernel_size=layer.kernel_size, padding=layer.padding, **prior,
            )  # fmt: skip
    kl = bnn.BKLLoss(reduction="sum")
    return _layered(model, following, lambda: kl(model).squeeze())


def _bayesian_torch(model: nn.Module, following: Callable[[], Batch]) -> Case:
    library = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    library.dnn_to_bnn(
        model,
        {
            "prior_mu": 0.0, "prior_sigma": PRIOR_STD, "posterior_mu_init": 0.0,
            "posterior_rho_init": -4.0, "type": "Reparameterization", "moped_enable": False,
            "moped_delta": 0.5,
        },
    )  # fmt: skip
    return _layered(model, following, lambda: library.get_kl_loss(model))


def _layered(model: nn.Module, following: Callable[[], Batch], kl: Callable[[], Tensor]) -> Case:
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)

    def step() -> None:
        batch = following()
        optimizer.zero_grad()
        (F.cross_entropy(model(batch.x), batch.y) + kl() / N_TRAIN).backward()
        optimizer.step()

    return step


def _posteriors(model: nn.Module, following: Callable[[], Batch]) -> Case:
    posteriors, torchopt = (importlib.import_module(name) for name in ("posteriors", "torchopt"))

    def log_posterior(parameters: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        output = torch.func.functional_call(model, parameters, (batch.x,))
        log_prior = posteriors.diag_normal_log_prob(parameters, 0.0, PRIOR_STD) / N_TRAIN
        return log_prior - F.cross_entropy(output, batch.y), output.detach()

    transform = posteriors.vi.diag.build(
        log_posterior, torchopt.adam(lr=1e-3), temperature=1 / N_TRAIN, init_log_sds=-4.6
    )
    state = transform.init({n: p.detach().clone() for n, p in model.named_parameters()})

    def step() -> None:
        nonlocal state
        state, _ = transform.update(state, following(), inplace=False)

    return step


# ---------------------------------------------------------------------------------------- CUDA


def cuda_rows(net: str, rounds: int, engines: Sequence[str] | None = None) -> list[Row]:
    """Replayed CUDA graphs: the plain step against ours, both picking examples by index."""
    device = torch.device("cuda")
    x, y = (part.to(device) for part in random_images(N_TRAIN))
    index = torch.arange(BATCH, device=device)
    cases = {kind: _graphed_plain_step(net, kind, x, y, index) for kind in baselines(net)}
    against, targets = dict.fromkeys(cases, next(iter(cases))), dict[str, float | None]()
    for name, entry in entries(net).items():
        if engines is not None and name not in engines:
            continue
        for way in ("compiled", "eager"):
            problem = Problem(NETS[net](), Categorical(), (x.cpu(), y.cpu())).to(device)
            problem.execution = Execution(Machine("cuda", compiled=way == "compiled"))
            state = entry.engine.init(problem, Generator(device).manual_seed(0))
            label = f"{name}, {way}"
            cases[label] = partial(make_stepper(problem, entry.engine, state), index)
            against[label] = entry.against if entry.against in cases else f"{entry.against}, {way}"
        targets[f"{name}, compiled"] = entry.cuda
    cases = {name: warmed(case) for name, case in cases.items()}
    times = interleaved(cases, rounds, 20 * STEPS_PER_ROUND, _synchronised)
    return [
        Row(f"graphed step: {name}", net, *compared(times, name, against[name]),
            targets.get(name), against=against[name])
        for name in cases
    ]  # fmt: skip


def _synchronised() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def _graphed_plain_step(net: str, kind: str, x: Tensor, y: Tensor, index: Tensor) -> Case:
    model = NETS[net]().to(x.device)
    optimizer = baselines(net)[kind](model)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warmed(step)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_alive: tuple[object, ...] = (model, optimizer)) -> None:
        graph.replay()  # reads and writes memory of what `_alive` keeps from being freed

    return replay


# --------------------------------------------------------------------------------------- report


def find_distribution(name: str) -> bool:
    return any(metadata.distributions(name=name))


def machine(device: str) -> dict[str, str]:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": (names or [platform.processor()])[0],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "date": time.strftime("%Y-%m-%d"),
    }
    return found | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def as_json(row: Row) -> dict[str, object]:
    return dataclasses.asdict(row) | {"met": row.met}


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| net | what | ms | ratio or count | of | target | met |",
             "|---|---|---:|---:|---|---:|---|"]  # fmt: skip
    for row in rows:
        ms = "" if row.median_ms is None else f"{row.median_ms:.3f}"
        value = f"{row.count}" if row.count is not None else f"{row.ratio or math.nan:.2f}"
        target = "" if row.target is None else f"{row.target:g}"
        met = {True: "yes", False: "NO", None: ""}[row.met]
        lines.append(
            f"| {row.net} | {row.name} | {ms} | {value} | {row.against or ''} | {target} | {met} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--nets", type=lambda text: text.split(","), default=list(SHORT),
                        help=f"comma list of {', '.join(SHORT)}; all unless given")  # fmt: skip
    parser.add_argument("--engines", type=lambda text: text.split(","),
                        help='on a GPU, comma list such as "SBNN,SBNN local"')  # fmt: skip
    parser.add_argument("--peers", action="store_true", help="also time other libraries' steps")
    parser.add_argument(
        "--first",
        action="store_true",
        help="time only the first step of each engine, in processes of their own",
    )
    parser.add_argument("--out", type=Path, help="JSON file to write the rows to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[Row] = []
    for net in (SHORT[name] for name in options.nets):
        if options.device == "cuda":
            with fast_kernels(torch.device("cuda")):
                rows += cuda_rows(net, options.rounds, options.engines)
        elif options.first:
            rows += first_rows(net)
        else:
            rows += step_rows(net, options.rounds, options.peers)
            if net != CNN:
                rows += predictive_rows(net, options.rounds)
                rows += kept_rows(net)
    about = machine(options.device)
    if options.peers:
        about |= {name: metadata.version(name) for name in PEERS if find_distribution(name)}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(table(rows))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": about, "rounds": options.rounds, "rows": [as_json(r) for r in rows]}
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
