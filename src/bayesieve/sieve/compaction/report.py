"""What a compaction did, as plain data."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LayerChange:
    """One layer before and after; a layer that is gone has 0 of everything.

    Args:
        name: of the module, such as "layer1.0.conv1".
        kind: its class, such as "Conv2d".
        units: outputs (channels, heads) before and after.
        inputs: inputs before and after.
        parameters: weights and biases before and after.
    """

    name: str
    kind: str
    units: tuple[int, int]
    inputs: tuple[int, int]
    parameters: tuple[int, int]


@dataclass(frozen=True)
class CompactionReport:
    """What was removed, what was not and why, and how well the result was verified.

    Args:
        layers: one entry per layer with weights, in the order of the forward pass.
        parameters: of the whole network, before and after.
        n_inputs: features of one example: length of the flattened example if the network
            flattens it first, else of the channel (or last) axis it reads.
        input_features: those that are read, ascending; None if all are. The compacted module
            still takes the full input and picks them itself.
        kept: one sentence for each thing that had to stay, with the reason.
        max_difference: largest |compact - masked| found, relative to the scale of the outputs.
    """

    layers: tuple[LayerChange, ...]
    parameters: tuple[int, int]
    n_inputs: int
    input_features: tuple[int, ...] | None
    kept: tuple[str, ...]
    max_difference: float

    def to_dict(self) -> dict[str, Any]:
        """The same as dicts, lists and numbers, ready for JSON."""
        return _plain(asdict(self))

    def __str__(self) -> str:
        rows = [("layer", "kind", "units", "inputs", "parameters")]
        rows += [
            (c.name, c.kind, _arrow(c.units), _arrow(c.inputs), _arrow(c.parameters))
            for c in self.layers
        ]
        rows.append(("all", "", "", "", _arrow(self.parameters)))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        if self.input_features is not None:
            lines.append(f"reads {len(self.input_features)} of {self.n_inputs} input features")
        return "\n".join([*lines, *self.kept])


def _arrow(pair: tuple[int, int]) -> str:
    before, after = pair
    return str(after) if before == after else f"{before} -> {after}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
