"""From a network you have already trained to a sparse Bayesian one, step by step.

python examples/warm_start.py       # some seconds on a CPU
"""

import torch
from torch import nn
from torch.nn import functional as F

import bayesieve as bs
from bayesieve.core.posterior import Model, Samples, SparseModel
from bayesieve.data import DataSet
from bayesieve.nets import mlp


def train_the_usual_way(model: nn.Module, data: DataSet) -> None:
    """Plain PyTorch: nothing of Bayesieve in it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(data.train.x), data.train.y).backward()
        optimizer.step()


def report(label: str, model: Model, data: DataSet) -> None:
    """Print one line on the test set."""
    result = bs.evaluate(model, data.test)
    print(f"{label:<26} error {result['error']:.3f}  nll {result['nll']:.3f}  "
          f"weights {result['weights']:>6,}")  # fmt: skip


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    data = bs.load_data("digits")
    model = mlp(data.input_shape, data.n_outputs, widths=(100, 50))
    train_the_usual_way(model, data)

    # start="module" (the default) makes the model's own weights the starting means.
    problem = bs.Problem(model, bs.likelihoods.Categorical(), data.train)
    report("trained as usual", Samples(problem.network, problem.initial[None]), data)
    engine = bs.SBNN(lr=3e-3, local=True)
    run = bs.fit(problem, engine, epochs=20, schedule=bs.Schedule(kl=0.1, kl_warmup_epochs=5))
    report("its posterior", run.posterior, data)

    # Nine tenths go in one cut, then the rest is trained on from where it stands, zeros fixed.
    sparse = bs.prune(run.posterior, bs.rules.keep_zeros(0.9))
    report("90 % pruned", sparse, data)
    tuned = bs.fit(
        problem,
        engine,
        epochs=20,
        schedule=bs.Schedule(lr="cosine", kl=0.1),
        start_from=sparse,
    )
    sparse = SparseModel(tuned.posterior, sparse.keep)
    report("90 % pruned and tuned", sparse, data)


if __name__ == "__main__":
    main()
