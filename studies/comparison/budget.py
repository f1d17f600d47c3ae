"""Budget of a comparison: the arguments of `bayesieve compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bayesieve.runs.arguments import Place


@dataclass(frozen=True)
class Compare:
    """Arguments of a comparison; `bayesieve.runs.compare` says what each means."""

    out: Place
    parts: Sequence[Place] | None = None
    data: str | None = None
    net: str | None = None
    methods: str | Sequence[str] | None = None
    changes: Sequence[str] | None = None
    epochs: int = 20
    seeds: int = 3
    batch_size: int = 128
    zeros: str | Sequence[float] = "0.9,0.95,0.98,0.99"
    finetune: int = 5
    samples: int = 32
    outside: str | None = None
    attack: float = 0.1
    n_train: int | None = None
    n_test: int | None = None
    held_out: float | None = None
    shift: int = 0
    flip: bool = False
    target: str | None = None
    seed: int = 0
    device: str = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    force: bool = False
    figures: bool = True
    arguments: str | None = None
