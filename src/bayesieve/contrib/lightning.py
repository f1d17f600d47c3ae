"""A callback of Lightning: its Trainer trains, our schedule sieves.

    sieve = SieveCallback(module.net, Categorical(), GradualPruning(zeros=0.9))
    lightning.Trainer(max_epochs=20, callbacks=[sieve]).fit(module, loader)
    sparse = sieve.sparse()

Steps are those of the optimiser, so that accumulated gradients count once. Several processes see
the same averaged gradients and make the same masks. One optimiser, stepped by Lightning.
"""

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise ImportError(
        "bayesieve.contrib.lightning needs Lightning: `pip install lightning`."
    ) from error

from bayesieve.contrib.outside import Sieving


class SieveCallback(Sieving, Callback):  # type: ignore[misc]
    """`Sieving` at the hooks of Lightning's Trainer; the arguments are those of `Sieving`."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The network is on its device, the data are known."""
        if len(trainer.optimizers) != 1:
            raise ValueError(f"SieveCallback: needs one optimiser, got {len(trainer.optimizers)}.")
        loader, steps = trainer.train_dataloader, trainer.estimated_stepping_batches
        try:
            n_data, batch_size, n_steps = len(loader.dataset), loader.batch_size, int(steps)
        except (TypeError, AttributeError, OverflowError):
            raise ValueError(
                "SieveCallback: the training data must have a length and batches of one size, and "
                "the Trainer an end: max_epochs or max_steps."
            ) from None
        at_once = batch_size * trainer.accumulate_grad_batches * trainer.world_size
        self.begin(n_steps, n_data=n_data, batch_size=at_once)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Set the learning rates."""
        self.before_step(trainer.global_step, trainer.optimizers[0])

    def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
        """Read the gradients, which are whole and in their own scale here."""
        self.after_backward()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Renew the mask."""
        self.after_step(trainer.global_step)
