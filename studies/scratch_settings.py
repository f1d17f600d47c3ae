"""The rows of the scratch study: what is trained, and what the course report says of it."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from bayesieve.scratch import Activation, ReLU, Sigmoid, Tanh

ActivationName = Literal["sigmoid", "tanh", "relu"]
Group = Literal["source", "account", "better"]
ACTIVATIONS: dict[ActivationName, Activation] = {
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "relu": ReLU(),
}

# Accuracies on training and test images, losses at the end, F1 of the digits on test images (of
# `relu-l2` on training images); None where the report gives none.
SOURCE: dict[str, dict[str, Any]] = {
    "sigmoid": {"train": 0.85, "test": 0.86, "train_loss": 0.4487, "val_loss": 0.4499,
                "f1": [0.93, 0.94, 0.86, 0.86, 0.84, 0.81, 0.90, 0.83, 0.84, 0.76]},
    "tanh": {"train": 0.93, "test": 0.93, "train_loss": 0.2275, "val_loss": 0.2076,
             "f1": [0.96, 0.98, 0.93, 0.92, 0.93, 0.91, 0.94, 0.92, 0.90, 0.89]},
    "relu": {"train": 0.94, "test": 0.94, "train_loss": 0.2233, "val_loss": 0.2131,
             "f1": [0.97, 0.98, 0.93, 0.93, 0.94, 0.93, 0.95, 0.94, 0.92, 0.92]},
    "torch": {"train": None, "test": 0.94, "train_loss": None, "val_loss": None,
              "f1": [0.97, 0.98, 0.96, 0.92, 0.95, 0.94, 0.93, 0.94, 0.92, 0.89]},
    "relu-l2": {"train": 0.78, "test": None, "train_loss": None, "val_loss": None,
                "f1": [0.92, 0.79, 0.79, 0.73, 0.81, 0.76, 0.87, 0.80, 0.66, 0.60]},
}  # fmt: skip
SOURCE_MINUTES, SOURCE_CORES = 44, 8


@dataclass(frozen=True)
class Setting:
    """One training run.

    Args:
        group: which table it belongs to.
        activation: of the hidden layers.
        lr: learning rate.
        l2: strength of the penalty; 0 for none.
        optimiser: gradient descent or Adam.
        decay: whether the learning rate falls linearly to 0.
        like: row of `SOURCE` it is compared with.
        twin: whether PyTorch trains beside it.
    """

    group: Group
    activation: ActivationName
    lr: float = 0.01
    l2: float = 0.0
    optimiser: Literal["gd", "adam"] = "gd"
    decay: bool = False
    like: str | None = None
    twin: bool = False


_L2 = Setting("account", "relu", l2=1e-4, like="relu-l2")
SETTINGS = {
    "relu": Setting("source", "relu", like="relu", twin=True),
    "sigmoid": Setting("source", "sigmoid", like="sigmoid"),
    "tanh": Setting("source", "tanh", like="tanh"),
    "relu-l2": replace(_L2, group="source"),
    "gd-decay-l2": Setting("better", "relu", lr=0.2, l2=1e-4, decay=True),
    "adam-decay-l2": Setting("better", "relu", lr=1e-3, l2=1e-4, optimiser="adam", decay=True),
    "tanh-0.001": Setting("account", "tanh", lr=1e-3, like="tanh"),
    "relu-0.001": Setting("account", "relu", lr=1e-3, like="relu"),
    "sigmoid-0.006": Setting("account", "sigmoid", lr=6e-3, like="sigmoid"),
    "sigmoid-0.0075": Setting("account", "sigmoid", lr=7.5e-3, like="sigmoid"),
    "relu-l2-0.001": replace(_L2, lr=1e-3),
    "relu-l2-0.0001": replace(_L2, lr=1e-4),
    "relu-l2-0.000045": replace(_L2, lr=4.5e-5),
    "relu-l2-times-64": replace(_L2, l2=64e-4),  # not divided by the batch size
    "relu-l2-times-1564": replace(_L2, l2=1564e-4),  # 2 c W, summed over the batches of an epoch
}
