"""Lightning trains, our schedule sieves: nine tenths of the weights go on the way.

python examples/lightning_sieve.py       # some seconds on a CPU; pip install lightning
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayesieve as bs
from bayesieve.contrib.lightning import SieveCallback


class Digits(lightning.LightningModule):
    """A module as people have it: nothing of Bayesieve in it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The mean loss of a batch."""
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any optimiser; the callback scales its learning rate."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    data = bs.load_data("digits")
    loader = DataLoader(TensorDataset(data.train.x, data.train.y), batch_size=64, shuffle=True)
    module = Digits()
    sieve = SieveCallback(
        module.net,
        bs.likelihoods.Categorical(),
        bs.GradualPruning(zeros=0.9),
        schedule=bs.Schedule(lr="cosine"),
    )
    trainer = lightning.Trainer(
        max_epochs=30, accelerator="cpu", callbacks=[sieve], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    sparse = sieve.sparse()
    result = bs.evaluate(sparse, data.test)
    print(f"error {result['error']:.3f}  zeros {sparse.zeros:.2f}  weights {result['weights']:,}")
    print(bs.compact(sparse, data.test.x[:64]).compaction)


if __name__ == "__main__":
    main()
