"""Your own network, unmodified: train, prune on the way, evaluate, save, and use what is left.

python examples/own_model.py        # some seconds on a CPU
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import bayesieve as bs
from bayesieve.core.storage import load_sparse


class SmallConvNet(nn.Module):
    """A convolution with BatchNorm, a residual block and a linear head."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.inner = nn.Linear(256, 256)
        self.head = nn.Linear(256, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 1, 8, 8) to class scores (n, classes)."""
        h = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.head(h + torch.relu(self.inner(h)))


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    data = bs.load_data("digits")
    model = SmallConvNet(data.n_outputs)

    # Weights of Linear and Conv layers may be pruned; biases have a posterior and stay; BatchNorm's
    # scales are plain numbers. `roles` changes that by name or type: here the head is never pruned.
    roles = bs.Roles(keep=("head.*",))
    problem = bs.Problem(model, bs.likelihoods.Categorical(), data.train, roles=roles)
    print(f"{problem.layout.size:,} parameters, {problem.layout.n_sparse:,} of them prunable")

    run = bs.fit(
        problem,
        bs.SBNN(lr=1e-2),
        epochs=30,
        schedule=bs.Schedule(lr="cosine", kl=0.1, kl_warmup_epochs=5),
        pruning=bs.GradualPruning(zeros=0.9),
    )
    for row in run.history[::10]:
        print(f"epoch {row['epoch']:>2}  log-lik {row['log_lik']:8.1f}  zeros {row['zeros']:.2f}")

    sparse = run.sparse()
    print(bs.evaluate(sparse, data.test))

    # A saved model is one safetensors file; it is read back onto a network of the same structure.
    with tempfile.TemporaryDirectory() as folder:
        path = bs.save(sparse, Path(folder) / "digits.safetensors")
        again = load_sparse(path, problem)
    plain = again.to_module()  # a SmallConvNet with exact zeros, in eval mode
    with torch.no_grad():
        labels = plain(data.test.x).argmax(-1)
    print(f"{type(plain).__name__}: {(labels == data.test.y).double().mean():.3f} accuracy")


if __name__ == "__main__":
    main()
