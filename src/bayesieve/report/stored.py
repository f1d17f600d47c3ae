"""An embedded network read back and run in torch: what the page holds, and nothing else."""

import torch
from torch import Tensor

from bayesieve.deliver.c_steps import ActivationStep, AffineStep, PadStep, PoolStep, Step
from bayesieve.deliver.c_weights import ConvStep, LinearStep, Weights
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
        step = _read(row, member)
        if isinstance(step, LinearStep):
            x = x.flatten(1)
        x = step.run(x)
    return x.flatten(1)


def _read(row: Json, member: int) -> Step:
    op = row["op"]
    if op == "linear":
        return LinearStep(_dense(row, member, (row["columns"],)))
    if op == "conv":
        weights = _dense(row, member, tuple(row["kernel"]))
        shape = tuple(row["source"])
        stride, dilation = tuple(row["stride"]), tuple(row["dilation"])
        return ConvStep(weights, shape, stride, dilation, row["groups"])
    if op == "pad":
        return PadStep(tuple(row["source"]), tuple(row["margins"]))
    if op == "pool":
        sizes = (tuple(row[key]) for key in ("kernel", "stride", "padding"))
        kernel, stride, padding = sizes
        shape = tuple(row["source"])
        return PoolStep(shape, row["kind"], kernel, stride, padding, row["divisor"])
    if op == "activation":
        return ActivationStep((), row["kind"])
    factor, shift = (_of_member(row[key], member) for key in ("factor", "shift"))
    return AffineStep((len(factor),), factor, shift)


def _dense(row: Json, member: int, columns: tuple[int, ...]) -> Weights:
    n_rows, n_columns = row["rows"], row["columns"]
    flat = torch.zeros(n_rows * n_columns)
    index = unpack(row["index"])
    scale = _of_member(row["scale"], member)[index // n_columns]
    flat[index] = _of_member(row["value"], member).float() * scale
    bias = _of_member(row["bias"], member)
    return Weights(flat.view(n_rows, *columns), bias, n_columns)


def _of_member(packed: Packed, member: int) -> Tensor:
    return unpack(packed)[member]
