"""A callback of the Trainer of transformers: it trains, our schedule sieves.

    sieve = SieveCallback(model, Categorical(), GradualPruning(zeros=0.9), example=batch)
    Trainer(model, arguments, train_dataset=data, callbacks=[sieve]).train()
    sparse = sieve.sparse()

The Trainer clips gradients before it shows them; `max_grad_norm=0` leaves them as they are, which
the posterior wants. Its checkpoints do not hold masks: what is 0 stays 0 after a resume, the
running mean begins anew.
"""

from typing import Any

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "bayesieve.contrib.transformers needs transformers: `pip install transformers accelerate`."
    ) from error

from bayesieve.contrib.outside import Sieving


class SieveCallback(Sieving, TrainerCallback):  # type: ignore[misc]
    """`Sieving` at the hooks of the Trainer; the arguments are those of `Sieving`."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The network is on its device, the data are known."""
        loader = given["train_dataloader"]
        at_once = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self.begin(state.max_steps, n_data=len(loader.dataset), batch_size=int(at_once))
        if state.global_step:  # a resumed run
            sparse = self.network.layout.sparse
            self.keep[sparse] = self.network.weights_of(self.module)[sparse] != 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Set the learning rates."""
        self.before_step(state.global_step, given["optimizer"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Read the gradients."""
        self.after_backward()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Renew the mask; `global_step` counts this step."""
        self.after_step(state.global_step)
