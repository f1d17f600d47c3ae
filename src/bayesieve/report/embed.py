"""The network inside the page: kept weights as 16-bit numbers with their places, and draws of them.

Only networks whose layers follow one another can be embedded. BatchNorm is folded into the layer
before it. A weight is stored as `value * scale[row]` with value between -32767 and 32767, so its
error is at most 1.6e-5 of the largest weight of its unit. The embedded network is read back and
run in torch on test examples before the page is written; the page runs it again in JavaScript when
it opens.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from bayesieve.assess.predict import has_spread, how_drawn, predict
from bayesieve.core.likelihoods import ClassPrediction, Prediction, RealLikelihood
from bayesieve.core.posterior import Posterior, SparseModel, posterior_of
from bayesieve.deliver.bundle.packing import gaps_of, places_of
from bayesieve.deliver.export import drawn_modules
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
from bayesieve.report.packing import Json, pack, rounded, short, unpack
from bayesieve.report.source import DRAWN_BYTES, MOST_DRAWS, WEIGHT_BYTES, Limits, Source

TOLERANCE = 1e-3  # of probabilities, or of the standard deviation of the targets
_CHECKED = 500  # test examples compared in torch when the page is built
_SHOWN = 8  # test examples whose answers the page compares itself with
_DRAWN = 2  # of them with the average over the embedded draws
_FEWEST_DRAWS = 4
_KINDS: dict[str, type[Layer]] = {
    "linear": Linear, "conv": Conv, "pad": Pad, "pool": Pool, "activation": Activation,
    "affine": Scale,
}  # fmt: skip
_OPS = {kind: op for op, kind in _KINDS.items()}
_FIELDS = {  # of a layer, besides its weights
    "linear": (),
    "conv": ("source", "stride", "dilation", "groups"),
    "pad": ("source", "margins"),
    "pool": ("kind", "source", "kernel", "stride", "padding", "divisor"),
    "activation": ("kind",),
    "affine": (),
}


def embed(source: Source, levels: Tensor, limits: Limits) -> Json:
    """Embed the mean weights, and draws where there is room; see docs/report.md.

    Args:
        source: the run.
        levels: (d,), at how many positions of the slider each weight is kept.
        limits: how large it may get.

    Raises:
        UnsupportedModelError: the page does not know a layer, or the network is too large for it.
    """
    posterior = source.posterior
    shape = source.data.input_shape
    page = posterior.network.likelihood.page()
    layers = read_layers("report", posterior.to_module().cpu().float(), shape)
    for layer in layers:
        if type(layer) not in _OPS:
            raise UnsupportedModelError(f"the page does not know the layer {type(layer).__name__}")
    stored = sum(
        int(layer.weight.count_nonzero()) for layer in layers if isinstance(layer, Weighted)
    )
    taken = WEIGHT_BYTES * stored
    if taken > limits.model_bytes:
        raise UnsupportedModelError(
            f"its {stored:,} weights would take {taken / 1e6:.1f} MB of the page: prune it first"
        )
    # Pruned chains keep weights in different places: use only the draws of this one.
    pool = posterior if isinstance(source.model, SparseModel) else posterior_of(source.averaged)
    n_draws = _room_for_draws(pool, stored, limits)
    draws, drawn = posterior.mean.new_zeros((0, posterior.layout.size)), list[list[Layer]]()
    if n_draws:
        draws, modules = drawn_modules(pool, n_draws, seed=0)
        drawn = [read_layers("report", module.cpu().float(), shape) for module in modules]
    level_of = dict(posterior.layout.pieces(levels))
    network: Json = {
        "input_shape": list(shape),
        "output": page["output"],
        "n_draws": n_draws,
        "drawn": how_drawn(pool, n_draws),
        "steps": [_step(each, level_of) for each in zip(layers, *drawn, strict=True)],
        "noise_std": None,
        "noise": page.get("noise"),
        "df": page.get("df"),
        "factor_90": None,
    }
    if posterior.network.likelihood.task == "regression":
        likelihood = cast(RealLikelihood, posterior.network.likelihood)
        network["factor_90"] = round(likelihood.half_width(0.9), 5)
        if network["noise"] is None:  # of the mean weights, then of every draw
            w = torch.cat([posterior.mean[None], draws])
            _, noise = likelihood.moments(w.new_zeros(len(w), 1, 1), posterior.network.numbers(w))
            network["noise_std"] = rounded(noise.expand(len(w), 1, 1).flatten(), 6)
    network["check"] = _check(network, source)
    return network


def _room_for_draws(posterior: Posterior, n_weights: int, limits: Limits) -> int:
    """Return how many draws of so many weights fit; none rather than a few."""
    if not has_spread(posterior):
        return 0
    fitting = min(MOST_DRAWS, limits.draw_bytes // max(DRAWN_BYTES * n_weights, 1))
    if fitting < _FEWEST_DRAWS:
        return 0
    return min(fitting, posterior.n_kept or fitting)


def _step(layers: Sequence[Layer], levels: dict[str, Tensor]) -> Json:
    """One layer as JSON, of the mean first and then of every draw."""
    layer = layers[0]
    op = _OPS[type(layer)]
    row: Json = {"op": op}
    for name in _FIELDS[op]:
        value = getattr(layer, name)
        row[name] = list(value) if isinstance(value, tuple) else value
    if isinstance(layer, Weighted):
        weighted = cast(Sequence[Weighted], layers)
        row |= _rows(weighted, levels.get(f"{layer.name}.weight")) | {"name": layer.name}
        if op == "conv":
            row["kernel"] = list(layer.weight.shape[1:])
    if isinstance(layer, Scale):
        scales = cast(Sequence[Scale], layers)
        row["block"] = math.prod(layer.shape[1:])
        row["factor"] = pack(torch.stack([each.factor for each in scales]), "f4")
        row["shift"] = pack(torch.stack([each.shift for each in scales]), "f4")
    return row


def _rows(layers: Sequence[Weighted], levels: Tensor | None) -> Json:
    """Weights of a layer that are kept in the mean or in a draw."""
    values = torch.stack([each.weight.flatten(1) for each in layers])
    _, n_rows, n_columns = values.shape
    kept = (values != 0).any(0)
    index = kept.flatten().nonzero().flatten()
    scale = values.abs().amax(2).clamp(min=1e-30) / 32767
    whole = (values / scale[..., None]).round()
    level = torch.full_like(index, 255) if levels is None else levels.cpu().flatten()[index]
    return {
        "rows": n_rows,
        "columns": n_columns,
        "gaps": pack(gaps_of(index.numpy(), kept.numel()), "u1"),
        "value": pack(whole[:, kept], "i2"),
        "scale": pack(scale, "f4"),
        "bias": pack(torch.stack([each.bias for each in layers]), "f4"),
        "level": pack(level, "u1"),
    }


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
        ...          "gaps": pack(torch.tensor([1]), "u1"), "level": pack(torch.ones(1), "u1"),
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
    """The layer of one step, with the weights of one member."""

    def own(name: str) -> Tensor:
        return unpack(row[name])[member]

    op, fields = row["op"], {name: row[name] for name in _FIELDS[row["op"]]}
    if op in ("linear", "conv"):
        n_rows, n_columns = row["rows"], row["columns"]
        flat, codes = torch.zeros(n_rows * n_columns), unpack(row["gaps"]).to(torch.uint8)
        index = torch.from_numpy(places_of(op, codes.numpy(), len(flat)))
        flat[index] = own("value").float() * own("scale")[index // n_columns]
        kernel = row.get("kernel", (n_columns,))
        fields |= {"name": "", "weight": flat.view(n_rows, *kernel), "bias": own("bias")}
    if op == "affine":
        fields |= {"factor": own("factor"), "shift": own("shift")}
    return _KINDS[op](**{"source": (row.get("columns", 0),), **fields})
