"""Regression with honest error bars: noise of the data and doubt about the weights, apart.

python examples/regression.py       # some seconds on a CPU
"""

import torch
from torch import nn

import bayesieve as bs
from bayesieve.data import Examples


def make_data(n: int, seed: int) -> Examples:
    """Draw y = sin(3x) + noise of std 0.2 for x in [-1.5, 1.5]."""
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.rand(n, 1, generator=generator) - 1.5
    y = torch.sin(3 * x) + 0.2 * torch.randn(n, 1, generator=generator)
    return Examples(x, y)


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    train, test = make_data(1000, seed=1), make_data(400, seed=2)
    model = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1))
    problem = bs.Problem(model, bs.likelihoods.Gaussian(noise_std=0.5, learned=True), train)

    # A wide prior, and its full weight: there are more data than weights.
    engine = bs.FlatVI(prior=bs.priors.Normal(std=1.0), lr=1e-2, local=True)
    schedule = bs.Schedule(lr="cosine", kl_warmup_epochs=20)
    run = bs.fit(problem, engine, epochs=200, batch_size=100, schedule=schedule)

    report = bs.evaluate(run.posterior, test, n_samples=100)
    for name in ("rmse", "log_lik", "coverage_90"):
        print(f"{name:<24} {report[name]:.3f}")

    seen, far = torch.tensor([[-1.0], [1.0]]), torch.tensor([[-4.0], [4.0]])
    inside = bs.predict(run.posterior, seen, n_samples=100)
    outside = bs.predict(run.posterior, far, n_samples=100)
    print(f"noise of the data        {inside.aleatoric_std.mean():.3f} (truth 0.200)")
    print(f"doubt where data are     {inside.epistemic_std.mean():.3f}")
    print(f"doubt far away from them {outside.epistemic_std.mean():.3f}")
    low, high = inside.interval(0.9)
    print(f"90 % interval at x = 1   [{low[1].item():.2f}, {high[1].item():.2f}], sin(3) = 0.14")


if __name__ == "__main__":
    main()
