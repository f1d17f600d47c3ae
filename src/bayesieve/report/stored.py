"""An embedded network read back and run in torch: what the page holds, and nothing else."""

import torch
from torch import Tensor

from bayesieve.deliver.layers import Activation, Conv, Layer, Linear, Pad, Pool, Scale
from bayesieve.report.packing import Json, Packed, unpack


def run_embedded(network: Json, x: Tensor, member: int = 0) -> Tensor:
    """Outputs of an embedded network in torch, from what is stored alone.

    Args:
        network: as `embed` makes it.
        x: inputs, (n, *input_shape).
        member: 0 for the mean weights, i for draw i.

    Returns:
        (n, n_outputs).

    Example:
        >>> from bayesieve.report.packing import pack
        >>> layer = {"op": "linear", "rows": 1, "columns": 2,
        ...          "index": pack(torch.tensor([1]), "u1"), "level": pack(torch.ones(1), "u1"),
        ...          "value": pack(torch.tensor([[300]]), "i2"),
        ...          "scale": pack(torch.tensor([[0.01]]), "f4"),
        ...          "bias": pack(torch.ones(1, 1), "f4")}
        >>> run_embedded({"steps": [layer]}, torch.tensor([[5.0, 2.0]]))  # 300 * 0.01 * 2 + 1
        tensor([[7.]])
    """
    x = x.float()
    for row in network["steps"]:
        layer = _read(row, member)
        if isinstance(layer, Linear):
            x = x.flatten(1)
        x = layer.run(x)
    return x.flatten(1)


def _read(row: Json, member: int) -> Layer:
    op = row["op"]
    if op == "linear":
        return Linear("", *_dense(row, member, (row["columns"],)))
    if op == "conv":
        weight, bias = _dense(row, member, tuple(row["kernel"]))
        stride, dilation = tuple(row["stride"]), tuple(row["dilation"])
        return Conv("", weight, bias, tuple(row["source"]), stride, dilation, row["groups"])
    if op == "pad":
        return Pad(tuple(row["source"]), tuple(row["margins"]))
    if op == "pool":
        kernel, stride, padding = (tuple(row[key]) for key in ("kernel", "stride", "padding"))
        return Pool(tuple(row["source"]), row["kind"], kernel, stride, padding, row["divisor"])
    if op == "activation":
        return Activation((), row["kind"])
    factor, shift = (_of_member(row[key], member) for key in ("factor", "shift"))
    return Scale((len(factor),), factor, shift)


def _dense(row: Json, member: int, columns: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Weight, (rows, *columns), and bias, (rows,)."""
    n_rows, n_columns = row["rows"], row["columns"]
    flat = torch.zeros(n_rows * n_columns)
    index = unpack(row["index"])
    scale = _of_member(row["scale"], member)[index // n_columns]
    flat[index] = _of_member(row["value"], member).float() * scale
    return flat.view(n_rows, *columns), _of_member(row["bias"], member)


def _of_member(packed: Packed, member: int) -> Tensor:
    return unpack(packed)[member]
