"""What a training run recorded."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Record:
    """Losses at one moment, without the penalty, so that runs with and without one compare.

    Args:
        step: batches seen so far.
        epoch: passes over the data so far; a fraction in between.
        train_loss: mean loss of the batches since the record before, each at its own weights.
        val_loss: loss of the validation data now; None without such data.
    """

    step: int
    epoch: float
    train_loss: float
    val_loss: float | None = None


@dataclass
class History:
    """Records in order.

    Example:
        >>> history = History([Record(1, 0.5, 2.5), Record(2, 1.0, 1.25)])
        >>> history
        History(2 records, epoch 1, train loss 1.25)
        >>> history.train_loss
        [2.5, 1.25]
    """

    records: list[Record] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "History(no records)"
        last = self.records[-1]
        validation = "" if last.val_loss is None else f", validation loss {last.val_loss:.4g}"
        return (
            f"History({len(self)} records, epoch {last.epoch:g}, "
            f"train loss {last.train_loss:.4g}{validation})"
        )

    @property
    def epoch(self) -> list[float]:
        """Epochs of all records."""
        return [record.epoch for record in self.records]

    @property
    def train_loss(self) -> list[float]:
        """Training losses of all records."""
        return [record.train_loss for record in self.records]

    @property
    def val_loss(self) -> list[float | None]:
        """Validation losses of all records; None where there were no validation data."""
        return [record.val_loss for record in self.records]
