"""The positions of the slider: what is left, how good it is and how long it takes at each of them.

The model is pruned further in one shot, by one ranking, from where it is to where no weight
is left. Positions are evenly spaced in the logarithm of what is kept. Before them are those of the
network that it is compared with, from dense to as many zeros as the run has.
"""

import math
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.assess.costs import BATCHES, Stopwatch, all_times, count_macs
from bayesieve.assess.evaluate import Evaluation, evaluate
from bayesieve.assess.predict import has_spread
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Model, Posterior, SparseModel, posterior_of
from bayesieve.deliver.bundle import stored_bytes
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.graph import evaluating
from bayesieve.report.packing import Json, pack, rounded, short
from bayesieve.report.source import Limits, Source
from bayesieve.report.verdicts import is_safe
from bayesieve.sieve.compact import compact, report_of
from bayesieve.sieve.prune import sparsity_curve
from bayesieve.sieve.ranking import score_of
from bayesieve.sieve.rules import keep_zeros

_EXAMPLES = 64
_ROUNDS = 15
_QUALITY = ("error", "rmse", "nll", "ece", "coverage_90")


def sieve_further(
    source: Source, limits: Limits, reference: Evaluation | None = None
) -> tuple[Json, Tensor]:
    """Prune the model of a run ever further and measure what is left.

    Args:
        source: the run.
        limits: how many positions, and how large a network is compacted.
        reference: what the error of each position is compared with; the first position unless
            given.

    Returns:
        The curve:

        points: one row per position, see docs/report.md.
        dense_macs: multiply-adds of the network with all its weights.
        times: of that network and of the one at position 0, see `_times`. A network that lost no
            weight is not timed against itself.
        compaction: what compacting the model at position 0 did; None if it cannot be compacted.
        not_compacted: why not.

        And at how many positions each weight is kept, (d,); position i keeps level > i.
    """
    masks = further_masks(source.model, source.score, limits.points)
    posterior, test = source.posterior, source.data.test
    scores = score_of(posterior, source.score)
    models = [SparseModel(posterior.masked(keep), keep) for keep in masks]
    points = []
    for model in models:
        evaluation = evaluate(model, test)
        reference = reference or evaluation
        safe = is_safe(reference, evaluation, source.data)
        points.append(_point(model, scores, evaluation) | {"safe": safe})
    sizes = limits.points if posterior.layout.size <= limits.compacted else 1
    example = test.x[:_EXAMPLES].to(posterior.network.device)
    compacted: list[nn.Module] = []
    refusal = None
    try:
        compacted = [compact(model, example).cpu() for model in models[:sizes]]
    except UnsupportedModelError as error:
        refusal = str(error)
    dense = posterior.to_module().cpu()
    example = example.cpu()
    small = compacted[0] if compacted and points[0]["zeros"] > 0 else None
    full = None if small is None or sizes == 1 else _without_zeros(posterior)
    times = _times(dense, small, full, example)
    for point, module in zip(points, compacted, strict=False):
        point |= _cost(module, example)
    curve = {
        "points": points,
        "dense_macs": count_macs(dense.eval(), example[:1])[0],
        "times": times,
        "compaction": report_of(compacted[0]).to_dict() if compacted else None,
        "not_compacted": refusal,
    }
    return curve, masks.sum(0)


def _times(
    dense: nn.Module, small: nn.Module | None, full: nn.Module | None, example: Tensor
) -> Json:
    """Times of the network with all its weights and of the compacted one, in turns.

    Processor time on one thread. With `full`, which has a weight in every place, both run as
    `as_runtime` makes them too, and the headline is about the runtime.

    Returns:
        latency_ms and runtime_ms: medians of "dense" and "sieved", by batch size; None where not
            measured.
        speedup: "where" ("runtime" or "torch"), "ratio" (median over turns, batches of 64),
            "interval" (quartiles over turns, at least 2 % wide on each side) and "busy": whether
            other work took the processor away for more than a sixth of the time; None if there is
            nothing to compare.
    """
    from bayesieve.deliver.runtime import as_runtime  # here: SciPy takes a third of a second

    candidates: dict[str, Callable[[Tensor], object]] = {"torch dense": dense}
    if small is not None:
        candidates["torch sieved"] = small
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with evaluating(*(m for m in (dense, small) if m is not None)), torch.no_grad():
            takes = example.dtype == torch.float32 and example.dim() > 1
            if small is not None and full is not None and takes:
                with suppress(UnsupportedModelError):
                    runtime = as_runtime(small, example)
                    candidates |= {"runtime dense": as_runtime(full, example)}
                    candidates |= {"runtime sieved": runtime}
            watch = Stopwatch()
            times = all_times(candidates, example, rounds=_ROUNDS, clock="cpu")
            busy = watch.busy
    finally:
        torch.set_num_threads(threads)

    def medians(name: str) -> Json | None:
        if name not in candidates:
            return None
        return {str(n): short(statistics.median(turns), 4) for n, turns in times[name].items()}

    where = "runtime" if "runtime sieved" in candidates else "torch"
    return {
        "latency_ms": {side: medians(f"torch {side}") for side in ("dense", "sieved")},
        "runtime_ms": {side: medians(f"runtime {side}") for side in ("dense", "sieved")},
        "speedup": _speedup(
            {name: turns[BATCHES[-1]] for name, turns in times.items()}, where, busy=busy
        )
        if small
        else None,
    }


def _speedup(times: Mapping[str, Sequence[float]], where: str, *, busy: bool) -> Json:
    """Return how many times faster the sieved network is, turn by turn.

    Example:
        >>> times = {"torch dense": [4.0, 4.4, 3.8, 4.0], "torch sieved": [2.0, 2.0, 2.0, 2.0]}
        >>> row = _speedup(times, "torch", busy=False)
        >>> row["ratio"], row["interval"]
        (2.0, [1.925, 2.15])
    """
    pairs = zip(times[f"{where} dense"], times[f"{where} sieved"], strict=True)
    ratios = sorted(a / b for a, b in pairs)
    low, _, high = statistics.quantiles(ratios, n=4)
    middle = statistics.median(ratios)
    interval = [short(min(low, 0.98 * middle), 4), short(max(high, 1.02 * middle), 4)]
    return {"where": where, "ratio": short(middle, 4), "interval": interval, "busy": busy}


def _without_zeros(posterior: Posterior) -> nn.Module:
    """The network with a weight in every place: what a runtime that skips zeros is compared on."""
    mean = posterior.mean
    typical = mean[mean != 0].abs().mean() if bool((mean != 0).any()) else mean.new_ones(())
    filled = torch.where(mean == 0, typical, mean)
    return materialise(posterior.network, filled, posterior.buffers).cpu()


def sieve_before(source: Source, limits: Limits, zeros: float) -> tuple[Json | None, Tensor | None]:
    """The network to compare with, by one-shot pruning; None without one.

    Args:
        source: the run.
        limits: how many positions.
        zeros: of the run. Positions with fewer are those of the slider on the way to it.

    Returns:
        The points of its curve, and at how many of the positions before the run each weight is
        kept, (d,).
    """
    if source.before is None:
        return None, None
    before, score = posterior_of(source.before), source.score  # or the nearest that it has
    if not has_spread(before):
        score = "magnitude"
    elif score == "inclusion" and before.inclusion is None:
        score = "snr"
    masks = further_masks(source.before, score, max(2, limits.points // 2 + 1))
    scores = score_of(before, score)
    points, on_the_way = [], 0
    example = source.data.test.x[:_EXAMPLES]
    for keep in masks:
        sparse = SparseModel(before.masked(keep), keep)
        row = _point(sparse, scores, evaluate(sparse, source.data.test))
        if row["zeros"] < zeros:
            on_the_way += 1
            with suppress(UnsupportedModelError):
                if before.layout.size <= limits.compacted:
                    row |= _cost(compact(sparse, example.to(before.network.device)).cpu(), example)
        else:
            row = {key: row[key] for key in ("zeros", "weights", *_QUALITY) if key in row}
        points.append(row)
    levels = masks[:on_the_way].sum(0)
    room = 2 * before.layout.n_sparse <= limits.shown_weights  # beside the pictures of the run
    pictures = layer_pictures(before, levels, limits) if on_the_way and room else []
    layers = [row["levels"] for row in pictures]
    curve = {"score": score, "points": points, "on_the_way": on_the_way, "layers": layers}
    return curve, levels if on_the_way else None


def further_masks(model: Model, score: Any, n: int) -> Tensor:
    """Nested masks from the model as it is to the empty network, (n or fewer, d) bool.

    The last but one leaves a single path of weights, the last none: biases alone answer.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.core.network import Network
        >>> from bayesieve.core.posterior import Samples
        >>> network = Network.of(nn.Linear(8, 1), Gaussian())
        >>> weights = torch.arange(9.0, 0.0, -1.0)[None]
        >>> further_masks(Samples(network, weights), "magnitude", 5).sum(1)
        tensor([9, 5, 3, 2, 1])
    """
    posterior = posterior_of(model)
    layout = posterior.layout
    now = model.keep if isinstance(model, SparseModel) else torch.ones_like(posterior.mean).bool()
    priorities = keep_zeros(0.0, score).priorities(posterior)
    most, least = int(now.sum()), int((priorities > layout.n_sparse).sum())
    least = min(max(least, 1), most)
    sizes = torch.linspace(math.log(most), math.log(least), max(n - 1, 1)).exp().tolist()[1:]
    kept = sorted({round(n_kept) for n_kept in sizes} - {most}, reverse=True)
    further = sparsity_curve(posterior, [1 - n_kept / layout.size for n_kept in kept], score=score)
    masks = torch.cat([now[None], further & now])
    empty = masks[-1:].clone()
    empty[:, layout.sparse] = False
    masks = torch.cat([masks, empty])
    unlike = torch.ones(len(masks), dtype=torch.bool, device=masks.device)
    unlike[1:] = (masks[1:] != masks[:-1]).any(1)
    return masks[unlike]


def _point(model: SparseModel, scores: Tensor, evaluation: Evaluation) -> Json:
    """Size, quality and the score of the weakest weight that is left."""
    numbers = evaluation.to_dict()
    row: Json = {key: numbers[key] for key in ("zeros", "removed", "weights")}
    row |= {key: short(numbers[key]) for key in _QUALITY if key in numbers}
    layout = model.layout
    left = scores[layout.sparse][model.keep[layout.sparse]]
    finite = left[left.isfinite()]
    row["threshold"] = short(float(finite.min()), 4) if len(finite) else None
    row["kept"] = [int(model.keep[layout.slices[name]].sum()) for name in layout.prunable]
    return row


def _cost(module: nn.Module, example: Tensor) -> Json:
    """Bytes and multiply-adds of a compacted network."""
    report = report_of(module)
    macs, nonzero = count_macs(module.eval(), example[:1])
    return {
        "bytes": stored_bytes(module),
        "parameters": report.parameters[1],
        "macs": macs,
        "nonzero_macs": nonzero,
        "units": {layer.name: layer.units[1] for layer in report.layers},
        "inputs": report.n_inputs if report.input_features is None else len(report.input_features),
    }


def layer_pictures(posterior: Posterior, kept: Tensor, limits: Limits) -> list[Json]:
    """One row per prunable tensor: its sizes, inclusion, and the level of each weight."""
    layout = posterior.layout
    stride = max(1, math.ceil(math.sqrt(layout.n_sparse / max(limits.shown_weights, 1))))
    levels = layout.unflatten(kept)
    return [
        {
            "name": name,
            "shape": list(levels[name].shape),
            "weights": levels[name].numel(),
            "levels": pack(levels[name].flatten(1)[::stride, ::stride], "u1"),
            "stride": stride,
            "inclusion_cdf": _cdf(posterior, layout.slices[name]),
        }
        for name in layout.prunable
    ]


def _cdf(posterior: Posterior, place: slice) -> list[float] | None:
    """Share of a tensor's weights with an inclusion probability <= 0, 0.02, ..., 1."""
    if posterior.inclusion is None:
        return None
    inclusion = posterior.inclusion[place].cpu().double().sort().values
    at = torch.linspace(0, 1, 51, dtype=torch.float64)
    return rounded(torch.searchsorted(inclusion, at, right=True) / len(inclusion), 4)


def processor() -> str:
    """The name of the machine's processor, as far as it tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()
