"""Recompute the frozen numbers of short runs and write them with their provenance.

    python tests/golden/update.py --why "the reason, also in the commit message"

Golden numbers catch drift; they never prove correctness. Runs are in float64 on one thread, so that
rounding on another machine stays far below the tolerance.
"""

import argparse
import datetime
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import bayesieve as bs

HERE = Path(__file__).parent
SEED = 3
ATOL = 1e-6


def sbnn_digits() -> float:
    """Test NLL (20 draws) on digits after three epochs of sBNN with gradual pruning to 80 %."""
    data = bs.load_data("digits")
    train, test = data.train.to(dtype=torch.float64), data.test.to(dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    problem = bs.Problem(model.double(), bs.likelihoods.Categorical(), train)
    prior = bs.priors.SpikeSlab(math.exp(-1), math.exp(-3))
    engine = bs.SBNN(prior, lr=0.01, init_std=prior.safe_init_std(0), local=False)
    run = bs.fit(
        problem, engine, epochs=3, batch_size=128, seed=SEED,
        schedule=bs.Schedule(lr="cosine", kl=0.3, kl_after=0.1, compile="off"),
        pruning=bs.GradualPruning(zeros=0.8, start=0.1, end=0.5),
    )  # fmt: skip
    return float(bs.evaluate(run.posterior, test, n_samples=20)["nll"])


def flat_vi_sine() -> float:
    """ELBO in nats of two mean-field models of a noisy sine, the second with twice the prior."""
    x = torch.linspace(-1, 1, 100, dtype=torch.float64)[:, None]
    source = torch.Generator().manual_seed(SEED)
    noise = torch.empty(100, dtype=torch.float64).normal_(generator=source)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    y = torch.sin(3 * x[:, 0]) + 0.1 * noise
    problem = bs.Problem(model.double(), bs.likelihoods.Gaussian(0.5, learned=True), (x, y))
    engines = [
        bs.FlatVI(bs.priors.Normal(std), lr=0.02, init_std=0.018, local=True) for std in (0.5, 1.0)
    ]
    schedule = bs.Schedule(compile="off")
    run = bs.fit(problem, engines, epochs=40, batch_size=32, seed=SEED, schedule=schedule)
    return float(run.history[-1]["elbo"][1])


RUNS: dict[str, Callable[[], float]] = {"sbnn_digits": sbnn_digits, "flat_vi_sine": flat_vi_sine}


def main() -> None:
    """Write one JSON file per run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--why", required=True, help="why the numbers change")
    parser.add_argument("--only", choices=sorted(RUNS), help="update this run alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [options.only] if options.only else RUNS:
        record = {
            "value": RUNS[name](),
            "atol": ATOL,
            "command": f"python tests/golden/update.py --only {name}",
            "seed": SEED,
            "torch": torch.__version__.partition("+")[0],
            "date": datetime.date.today().isoformat(),
            "why": options.why,
        }
        text = json.dumps(record, indent=2) + "\n"
        (HERE / f"{name}.json").write_text(text, encoding="utf-8")
        print(name, record["value"])


if __name__ == "__main__":
    main()
