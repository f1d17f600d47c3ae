"""Training and scoring of one row of the model-reduction study."""

import base64
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.assess.metrics import accuracy, ece, negative_log_likelihood
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.data.examples import Examples
from bayesieve.sieve.groups import units_of
from bayesieve.training.fit import Fit, fit
from bayesieve.training.options import Progress
from bayesieve.training.stepper import fast_kernels
from studies.bmr_settings import Net, Row, Sizes, build, setting

_BINS = 20
_QUANTILES = 41
_MAPS = 16
_FIRST = {"mlp": "fc1.weight", "lenet": "conv1.weight"}  # others: embed.weight


def standardised(train: Examples, other: Examples, net: Net) -> tuple[Examples, Examples]:
    """Zero mean and unit variance per channel of the training images; 28x28 padded for patches."""
    axes = (0, 2, 3)
    mean = train.x.mean(axes, keepdim=True)
    std = train.x.std(axes, correction=0, keepdim=True)

    def moved(own: Examples) -> Examples:
        x = (own.x - mean) / std
        if net in ("mixer", "vit") and x.shape[-1] == 28:
            x = nn.functional.pad(x, (2, 2, 2, 2))
        return Examples(x, own.y)

    return moved(train), moved(other)


def train_row(
    row: Row, sizes: Sizes, train: Examples, score_on: Examples, n_outputs: int, device: str,
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Train all seeds of a row, score each with many draws and describe its weights.

    Args:
        row: what.
        sizes: how long.
        train: training images, standardised.
        score_on: images for curves and scores.
        n_outputs: number of classes.
        device: where.
        say: receives one line when the time of the run is known.
    """
    own, started = setting(row), time.perf_counter()
    torch.manual_seed(0)
    shape = tuple(train.x.shape[1:])
    model = build(row.net, shape, n_outputs, dropout=own.dropout, small=sizes.small)
    augment = own.augment
    if augment is not None:  # what enters is black
        augment = replace(augment, fill=tuple(train.x.amin((0, 2, 3)).tolist()))
    problem = Problem(
        model, Categorical(), train, roles=own.roles, precision=sizes.precision, augment=augment
    ).to(device)
    score_on = score_on.to(device)
    curve: list[dict[str, float]] = []
    n_steps, block = sizes.epochs * sizes.steps, sizes.every * sizes.steps

    def watch(progress: Progress) -> bool:
        if progress.epoch == 1:
            seconds = (time.perf_counter() - started) * n_steps / progress.step
            say(f"  {row.name}: about {seconds:.0f} s, start included")
        due = progress.step // block > len(curve)
        if due and progress.step < n_steps:
            scores = _scores(progress.posterior(), score_on, sizes.curve_draws, row)
            curve.append({"epoch": progress.step / sizes.steps, **scores})
        return False

    # Each row has its own shapes: compiling its update would take longer than it saves.
    run = fit(
        problem, [own.engine] * sizes.seeds, steps=n_steps, batch_size=sizes.batch_size, seed=1,
        schedule=own.schedule, pruning=own.pruning, callbacks=(watch,),
    )  # fmt: skip
    fitted = time.perf_counter()
    seeds = [_scores(p, score_on, sizes.draws, row) for p in run.posteriors]
    curve.append({"epoch": float(sizes.epochs), **seeds[0]})
    return {
        "seeds": seeds,
        **{key: sum(one[key] for one in seeds) / len(seeds) for key in seeds[0]},
        "curve": curve,
        **_weights(run, row.net),
        "n_weights": problem.layout.size,
        "seconds": {"fit": run.seconds, "score": time.perf_counter() - fitted},
        "steps_per_second": n_steps / run.seconds,
    }


def _scores(posterior: Posterior, data: Examples, draws: int, row: Row) -> dict[str, float]:
    """Accuracy, calibration and likelihood of the averaged prediction, and what is pruned."""
    n_samples = 0 if row.method == "map" else draws
    at_once = 500 if row.net in ("mixer", "vit") else 2000
    with fast_kernels(data.x.device):
        found = predict(posterior, data.x, n_samples=n_samples, batch_size=at_once)
    assert isinstance(found, ClassPrediction)
    keep = _kept(posterior)
    return {
        "accuracy": accuracy(found.probs, data.y),
        "confidence": float(found.probs.max(1).values.double().mean()),
        "ece": ece(found.probs, data.y, _BINS, "equal-mass"),
        "nll": negative_log_likelihood(found.log_probs, data.y),
        "pruned": pruned_fraction(SparseModel(posterior, keep)),
        "zeros": 1 - float(keep.double().mean()),
    }


def _kept(posterior: Posterior) -> Tensor:
    """What is not 0 in every draw, (d,) bool."""
    std = getattr(posterior, "std", posterior.mean)
    return (posterior.mean != 0) | (std != 0)


def _weights(run: Fit, net: Net) -> dict[str, Any]:
    """Quantiles of |E w| in every matrix, and the first units' weights as bytes."""
    posterior = run.posterior
    named = {n: w for n, w in posterior.layout.pieces(posterior.mean) if w.dim() > 1}
    grid = torch.linspace(0, 1, _QUANTILES)
    quantiles = {}
    for name, weight in named.items():
        ordered = weight.detach().abs().flatten().sort().values.cpu()
        index = (grid * (len(ordered) - 1)).round().long()
        quantiles[name.removesuffix("weight").rstrip("._")] = [
            float(f"{v:.3g}") for v in ordered[index]
        ]
    first = named[_FIRST.get(net, "embed.weight")]
    return {"quantiles": quantiles, "first_layer": pack(first[:_MAPS], run.problem.x.shape[1])}


def pack(weight: Tensor, channels: int) -> dict[str, Any]:
    """Weights of units, (units, ...), as signed bytes of pictures with the channels side by side.

    Example:
        >>> pack(torch.ones(1, 4), 1)["shape"]
        [1, 2, 2]
    """
    flat = weight.detach().float().cpu().reshape(len(weight), channels, -1)
    side = round(flat.shape[-1] ** 0.5)
    pictures = flat.reshape(len(flat), channels, side, side).permute(0, 2, 1, 3)
    pictures = pictures.reshape(len(flat), side, channels * side)
    scale = float(pictures.abs().max()) or 1.0
    codes = (pictures / scale * 127).round().to(torch.int8)
    data = base64.b64encode(codes.contiguous().numpy().tobytes()).decode()
    return {"shape": list(pictures.shape), "scale": scale, "int8": data}


def pruned_fraction(sparse: SparseModel) -> float:
    """The reference's measure of sparsity.

    Counted are zeros of all layers but the last, biases included, and of the last layer those
    weights that read a unit whose whole row, bias included, is zero. The total is all entries of
    the layers but the last, and the last layer's weights. `SparseModel.zeros` is the plain share.
    """
    layout, gone = sparse.layout, ~sparse.keep
    names = [n for n in layout.names if layout.slices[n].start < layout.n_bayesian]
    matrices = [n for n, shape in zip(layout.names, layout.shapes, strict=True) if len(shape) > 1]
    last = [n for n in matrices if layout.slices[n].start < layout.n_sparse][-1]
    counted = [n for n in names if n.rpartition(".")[0] != last.rpartition(".")[0]]
    zeros = sum(int(gone[layout.slices[name]].sum()) for name in counted)
    total = sum(layout.sizes[layout.names.index(name)] for name in (*counted, last))
    units = units_of(sparse.network)
    for link in units.links:
        if link.consumer == last:
            silent = units.incoming(gone, link).all(-1)
            if link.bias is not None:
                silent = silent & gone[layout.slices[link.bias]]
            outgoing = units.outgoing(gone, link)
            zeros += int(silent[None, :, None].expand_as(outgoing).sum())
    return zeros / total
