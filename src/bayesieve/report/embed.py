"""The network inside the page: kept weights as 16-bit numbers with their places, and draws of them.

Only networks whose layers follow one another can be embedded. BatchNorm is folded into the layer
before it. A weight is stored as `value * scale[row]` with value between -32767 and 32767, so its
error is at most 1.6e-5 of the largest weight of its unit. The embedded network is read back and
run in torch on test examples before the page is written; the page runs it again in JavaScript when
it opens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from bayesieve.assess.predict import drawn_modules, predict
from bayesieve.core.likelihoods import ClassPrediction, Prediction, RealLikelihood
from bayesieve.core.posterior import Posterior, Samples, SparseModel, has_spread, posterior_of
from bayesieve.deliver.layers import (
    Activation,
    Conv,
    Layer,
    Linear,
    Pad,
    Pool,
    Scale,
    Weighted,
    read_layers,
)
from bayesieve.errors import UnsupportedModelError, VerificationError
from bayesieve.report.packing import Json, Packed, index_kind, pack, rounded, short, unpack
from bayesieve.report.quality import factor_90
from bayesieve.report.source import DRAWN_BYTES, MOST_DRAWS, WEIGHT_BYTES, Limits, Source

TOLERANCE = 1e-3  # of probabilities, or of the standard deviation of the targets
_CHECKED = 500  # test examples compared in torch when the page is built
_SHOWN = 8  # test examples whose answers the page compares itself with
_DRAWN = 2  # of them with the average over the embedded draws
_FEWEST_DRAWS = 4
_LAYERS = (Linear, Conv, Pad, Pool, Activation, Scale)


@dataclass(frozen=True, eq=False)
class Embedded:
    """A network as JSON, or the reason why there is none."""

    network: Json | None
    refusal: str | None = None


def embed(source: Source, levels: Tensor, limits: Limits) -> Embedded:
    """Embed the mean weights, and draws where there is room.

    Args:
        source: the run.
        levels: (d,), at how many positions of the slider each weight is kept.
        limits: how large it may get.
    """
    posterior = source.posterior
    shape = source.data.input_shape
    try:
        page = posterior.network.likelihood.page()
        module = posterior.to_module().cpu().float()
        layers = read_layers("report", module, shape)
        for layer in layers:
            if not isinstance(layer, _LAYERS):
                raise UnsupportedModelError(
                    f"the page does not know the layer {type(layer).__name__}"
                )
    except UnsupportedModelError as error:
        return Embedded(None, str(error).removeprefix("report: "))
    stored = sum(
        int(layer.weight.count_nonzero()) for layer in layers if isinstance(layer, Weighted)
    )
    taken = WEIGHT_BYTES * stored
    if taken > limits.model_bytes:
        return Embedded(
            None,
            f"its {stored:,} weights would take {taken / 1e6:.1f} MB of the page: prune it first",
        )
    # Pruned chains keep weights in different places: use only the draws of this one.
    pool = posterior if isinstance(source.model, SparseModel) else posterior_of(source.averaged)
    n_draws = _room_for_draws(pool, stored, limits)
    draws, drawn = posterior.mean.new_zeros((0, posterior.layout.size)), list[list[Layer]]()
    if n_draws:
        draws, modules = drawn_modules(pool, n_draws, seed=0)
        drawn = [read_layers("report", module.cpu().float(), shape) for module in modules]
    level_of = dict(posterior.layout.pieces(levels))
    steps = [
        _step(layer, [other[i] for other in drawn], level_of) for i, layer in enumerate(layers)
    ]
    network: Json = {
        "input_shape": list(shape),
        "output": page["output"],
        "n_draws": n_draws,
        "steps": steps,
        "noise_std": None,
        "noise": page.get("noise"),
        "df": page.get("df"),
        "factor_90": None,
    }
    likelihood = posterior.network.likelihood
    if likelihood.task == "regression":
        network["factor_90"] = factor_90(cast(RealLikelihood, likelihood))
        if network["noise"] is None:
            network["noise_std"] = _noise(posterior, draws)
    network["check"] = _check(network, source)
    return Embedded(network)


def _room_for_draws(posterior: Posterior, n_weights: int, limits: Limits) -> int:
    """How many draws of so many weights fit; none rather than a few."""
    if not has_spread(posterior):
        return 0
    fitting = min(MOST_DRAWS, limits.draw_bytes // max(DRAWN_BYTES * n_weights, 1))
    if fitting < _FEWEST_DRAWS:
        return 0
    return min(fitting, len(posterior.draws)) if isinstance(posterior, Samples) else fitting


def _step(layer: Layer, drawn: Sequence[Layer], levels: dict[str, Tensor]) -> Json:
    """One layer as JSON; see docs/report.md."""
    if isinstance(layer, Weighted):
        others = [other for other in drawn if isinstance(other, Weighted)]
        row = _rows(layer, others, levels.get(f"{layer.name}.weight"))
        row["name"] = layer.name
        if not isinstance(layer, Conv):
            return {"op": "linear", **row}
        return {
            "op": "conv",
            "source": list(layer.source),
            "kernel": list(layer.weight.shape[1:]),
            "stride": list(layer.stride),
            "dilation": list(layer.dilation),
            "groups": layer.groups,
            **row,
        }
    if isinstance(layer, Pad):
        return {"op": "pad", "source": list(layer.source), "margins": list(layer.margins)}
    if isinstance(layer, Pool):
        return {
            "op": "pool",
            "kind": layer.kind,
            "source": list(layer.source),
            "kernel": list(layer.kernel),
            "stride": list(layer.stride),
            "padding": list(layer.padding),
            "divisor": layer.divided_by,
        }
    if isinstance(layer, Activation):
        return {"op": "activation", "kind": layer.kind}
    assert isinstance(layer, Scale)
    pairs = [(each.factor, each.shift) for each in (layer, *drawn) if isinstance(each, Scale)]
    return {
        "op": "affine",
        "block": math.prod(layer.shape[1:]),
        "factor": pack(torch.stack([factor for factor, _ in pairs]), "f4"),
        "shift": pack(torch.stack([shift for _, shift in pairs]), "f4"),
    }


def _rows(layer: Weighted, drawn: Sequence[Weighted], levels: Tensor | None) -> Json:
    """Kept weights of a layer, of the mean first and then of every draw."""
    values = layer.weight.flatten(1)
    everywhere = torch.stack([values, *(other.weight.flatten(1) for other in drawn)])
    kept = (everywhere != 0).any(0)
    index = kept.flatten().nonzero().flatten()
    scale = everywhere.abs().amax(2).clamp(min=1e-30) / 32767
    whole = (everywhere / scale[..., None]).round()
    kinds = index_kind(max(kept.numel() - 1, 0))
    level = torch.full_like(index, 255) if levels is None else levels.cpu().flatten()[index]
    bias = torch.stack([each.bias for each in (layer, *drawn)])
    return {
        "rows": len(values),
        "columns": values.shape[1],
        "index": pack(index, kinds),
        "value": pack(whole[:, kept], "i2"),
        "scale": pack(scale, "f4"),
        "bias": pack(bias, "f4"),
        "level": pack(level, "u1"),
    }


def _noise(posterior: Posterior, draws: Tensor) -> list[float]:
    """Standard deviation of the noise under the mean weights and under every draw."""
    likelihood = cast(RealLikelihood, posterior.network.likelihood)
    w = torch.cat([posterior.mean[None], draws])
    _, noise = likelihood.moments(w.new_zeros(len(w), 1, 1), posterior.network.numbers(w))
    return rounded(noise.expand(len(w), 1, 1).flatten(), 6)


def _check(network: Json, source: Source) -> Json:
    """Compare with torch's own predictions; raise if they differ by more than the tolerance."""
    x = source.data.test.x[:_CHECKED].cpu()
    exact = predict(source.model, x)
    likelihood = source.posterior.network.likelihood_at(source.posterior.mean)
    embedded, expected = (
        _answers(prediction).cpu().float()
        for prediction in (likelihood.predictive(run_embedded(network, x)[None], {}), exact)
    )
    shown = min(_SHOWN, len(x))
    row: Json = {"n": len(x), "tolerance": TOLERANCE}
    if isinstance(exact, ClassPrediction):
        row["changed"] = int((embedded.argmax(1) != expected.argmax(1)).sum())
    row["max_difference"] = short(float((embedded - expected).abs().max()), 3)
    difference = row["max_difference"]
    if difference is None or difference > TOLERANCE:
        raise VerificationError(
            f"report: the embedded network differs from the run by {difference}, more than "
            f"{TOLERANCE:g}."
        )
    row["inputs"] = pack(x[:shown].flatten(1), "f4")
    row["expected"] = rounded(expected[:shown], 6)
    if network["n_draws"]:
        members = range(1, network["n_draws"] + 1)
        outputs = torch.stack([run_embedded(network, x[:_DRAWN], member) for member in members])
        row["expected_drawn"] = rounded(_answers(likelihood.predictive(outputs, {})), 6)
    return row


def _answers(prediction: Prediction) -> Tensor:
    """Probabilities or means, (n, ...)."""
    return prediction.probs if isinstance(prediction, ClassPrediction) else prediction.mean


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
        columns = (row["columns"],)
        return Linear(columns, "", *_dense(row, member, columns))
    if op == "conv":
        weight, bias = _dense(row, member, tuple(row["kernel"]))
        stride, dilation = tuple(row["stride"]), tuple(row["dilation"])
        return Conv(tuple(row["source"]), "", weight, bias, stride, dilation, row["groups"])
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
