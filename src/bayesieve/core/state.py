"""Controls that fit changes between steps, and how a state is listed, copied and restored."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Generator, Tensor

if TYPE_CHECKING:
    from bayesieve.core.posterior import Posterior


P = TypeVar("P", bound="Posterior")
_COLUMNS = 1 << 20  # summed at a time


@dataclass
class Controls:
    """Numbers and masks the training loop sets from outside; engines only read them.

    They are tensors so that a captured step sees new values without being captured again.

    Args:
        lr_scale: factor on the learning rate or step size, scalar.
        kl_scale: factor on the prior term, scalar.
        keep: (k, d) bool, False where a weight is pruned to exactly 0; None before any pruning.
        trained: (k, d) bool, False where a weight no longer moves; None before any pruning.
    """

    lr_scale: Tensor
    kl_scale: Tensor
    keep: Tensor | None = None
    trained: Tensor | None = None

    @classmethod
    def neutral(cls, like: Tensor) -> "Controls":
        """No scaling, nothing pruned; on the device and dtype of `like`."""
        return cls(like.new_ones(()), like.new_ones(()))

    def allow_masks_(self, like: Tensor) -> None:
        """Make all-True masks of the shape of `like`, (k, d), unless they exist."""
        if self.keep is None or self.trained is None:
            self.keep = torch.ones_like(like, dtype=torch.bool)
            self.trained = torch.ones_like(like, dtype=torch.bool)

    @property
    def factors(self) -> tuple[Tensor | None, Tensor | None]:
        """`keep` and `trained` as bytes of 0 and 1 to multiply by; they share their memory.

        On a CPU a compiled kernel multiplies by bytes up to ten times as fast as by bools.
        """
        keep, trained = self.keep, self.trained
        return (
            None if keep is None else keep.view(torch.uint8),
            None if trained is None else trained.view(torch.uint8),
        )

    def total(self, values: Tensor) -> Tensor:
        """Sum over the weights still trained of values of the first n, (k, n) -> (k,), float64."""
        return self.total_of(lambda part: part, values)

    def total_of(self, term: Callable[..., Tensor], *values: Tensor) -> Tensor:
        """Sum over the weights still trained of a function of values, (k, n) each -> (k,), float64.

        Some columns are taken at a time: no copy as large as the network is made.

        Args:
            term: elementwise.
            values: of the first n weights.
        """
        n = values[0].shape[1]
        total = values[0].new_zeros(len(values[0]), dtype=torch.float64)
        for start in range(0, n, _COLUMNS):
            part = slice(start, min(start + _COLUMNS, n))
            found = term(*(value[:, part] for value in values))
            if self.trained is not None:
                found = found * self.trained[:, part]
            total += found.sum(1, dtype=torch.float64)
        return total

    def masked(self, posterior: P, member: int) -> P:
        """The posterior of one model, exactly 0 where it is pruned."""
        return posterior if self.keep is None else posterior.masked(self.keep[member])


def named_tensors(state: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a state dataclass with a dotted name, nested dataclasses included."""
    for spec in dataclasses.fields(state):
        value = getattr(state, spec.name)
        name = prefix + spec.name
        if isinstance(value, Tensor):
            yield name, value
        elif dataclasses.is_dataclass(value):
            yield from named_tensors(value, name + ".")


def generators(state: Any) -> dict[str, Generator]:
    """Every generator of a state, by field name."""
    return {
        spec.name: getattr(state, spec.name)
        for spec in dataclasses.fields(state)
        if isinstance(getattr(state, spec.name), Generator)
    }


def snapshot(state: Any) -> dict[str, Tensor]:
    """Copies of every tensor and generator state, by name."""
    saved = {name: value.detach().clone() for name, value in named_tensors(state)}
    saved |= {f"{name}.rng": g.get_state() for name, g in generators(state).items()}
    return saved


def restore_(state: Any, saved: dict[str, Tensor]) -> None:
    """Write a snapshot back into the tensors and generators of a state, in place.

    Nothing is written unless everything fits. A state that has no masks yet needs
    `Controls.allow_masks_` before it can take a snapshot that has them.
    """
    tensors, sources = dict(named_tensors(state)), generators(state)
    names = {*tensors, *(f"{name}.rng" for name in sources)}
    for name in sorted(names ^ saved.keys()):
        side = "the checkpoint lacks" if name in names else "only the checkpoint holds"
        raise ValueError(f"resume: {side} {name!r}; it is of another engine or stage of pruning.")
    for name, value in tensors.items():
        if saved[name].shape != value.shape:
            raise ValueError(
                f"resume: {name!r} has shape {tuple(saved[name].shape)} in the checkpoint and "
                f"{tuple(value.shape)} here; the network or number of models differs."
            )
        if saved[name].dtype != value.dtype:
            raise ValueError(
                f"resume: {name!r} is {saved[name].dtype} in the checkpoint and {value.dtype} here."
            )
    with torch.no_grad():
        for name, value in tensors.items():
            value.copy_(saved[name])
    for name, generator in sources.items():
        generator.set_state(saved[f"{name}.rng"].cpu())
