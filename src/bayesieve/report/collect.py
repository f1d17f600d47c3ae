"""From a run to the plain data behind its page; docs/report.md describes every field."""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from bayesieve import __version__
from bayesieve.assess.diagnostics import effective_sample_size, moves, split_rhat, traces
from bayesieve.assess.evaluate import Evaluation
from bayesieve.core.posterior import Samples, posterior_of
from bayesieve.errors import UnsupportedModelError
from bayesieve.report import curve, inputs, quality, verdicts
from bayesieve.report.curve import processor
from bayesieve.report.embed import embed
from bayesieve.report.packing import Json, rounded, short
from bayesieve.report.source import WEIGHT_BYTES, Limits, Source
from bayesieve.text import tempering_words

FORMAT, VERSION = "bayesieve-report", 1
_MOST_EPOCHS = 400
_UNKNOWN: Json = {  # of a model that is only in memory
    "command": None, "config": {}, "meanings": {}, "versions": {}, "hashes": {}, "seconds": None,
    "folder": None,
}  # fmt: skip


def collect(
    sources: Sequence[Source],
    *,
    limits: Limits | None = None,
    ready: Mapping[str, Json] = MappingProxyType({}),
    tell: Callable[[str], None] = lambda text: None,
) -> Json:
    """Everything a page shows, as JSON.

    Args:
        sources: one or more runs.
        limits: how much all of them together may put into the page.
        ready: runs that were collected before, by their `key`; they are not computed again.
        tell: takes a remark on how far it is.
    """
    if not sources:
        raise ValueError("report: give at least one run.")
    limits = limits or Limits()
    weights = [source.posterior.layout.n_sparse for source in sources]
    weights = [
        2 * n if source.before is not None and 2 * n <= limits.shown_weights else n
        for source, n in zip(sources, weights, strict=True)
    ]
    shares = limits.shared(weights, [_stored(source, limits) for source in sources])
    runs = []
    for source, share in zip(sources, shares, strict=True):
        key = key_of(source, share)
        runs.append(ready.get(key) or {**collect_run(source, share, tell), "key": key})
    about = {"format": FORMAT, "version": VERSION, "bayesieve": __version__}
    return {**about, "runs": runs, "ranked": verdicts.ranked(runs)}


def _stored(source: Source, limits: Limits) -> int:
    """Weights that a page stores: those that are kept, and all before if both have room."""
    kept = int(source.posterior.mean.count_nonzero())
    both = kept + (0 if source.before is None else source.posterior.layout.size)
    return both if WEIGHT_BYTES * both <= limits.model_bytes else kept


def key_of(source: Source, limits: Limits) -> str:
    """A digest of all that the data of a run depend on: models, test examples, words, this code."""
    posteriors = [
        posterior_of(model)
        for model in (source.model, source.before, source.drawn, *source.members)
        if model is not None
    ]
    tensors = [q.draws if isinstance(q, Samples) else q.mean for q in posteriors]
    tensors += [source.data.test.x, source.data.test.y]
    words = [_code(), source.name, source.title, source.before_name, source.score, source.kl]
    records = [asdict(limits), source.certificate, source.provenance, len(source.data.train)]
    digest = hashlib.sha256(json.dumps([*words, *records], default=str).encode())
    for tensor in tensors:
        digest.update(tensor.detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()


@functools.cache
def _code() -> str:
    """A digest of this room's files: what other code collected is collected anew."""
    texts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"".join([__version__.encode(), *texts])).hexdigest()


def collect_run(source: Source, limits: Limits, tell: Callable[[str], None]) -> Json:
    """The data of one run."""
    with torch.random.fork_rng(devices=[]):
        tell(f"{source.name}: testing")
        evaluations = quality.evaluations(source, limits)
        tell(f"{source.name}: pruning further, {limits.points} positions of the slider")
        way = "sampled" if source.sampler else "after"
        reference = evaluations.get("before", evaluations["after"])
        sieved, levels = curve.sieve_further(source, limits, reference)
        before, before_levels = curve.sieve_before(source, limits, sieved["points"][0]["zeros"])
        tell(f"{source.name}: putting the network into the page")
        slopes = inputs.importance(source)
        network = refusal = None
        try:
            network = embed(source, levels, limits)
        except UnsupportedModelError as error:
            refusal = str(error).removeprefix("report: ")
        dense = _embedded_before(source, before_levels, network, limits)
        known = source.known
        checks = verdicts.checks_of(source, evaluations, way, known, sieved)
    best, data = evaluations.get("sampled", evaluations["after"]), source.data
    return {
        "name": source.name,
        "title": verdicts.title_of(data, sieved["points"][0]["zeros"]),
        "setup": source.title,
        "checks": checks,
        "reading": _reading(source, evaluations, way, checks),
        "task": source.data.task,
        "data": {
            "name": data.name,
            "n_train": len(data.train),
            "n_test": len(data.test),
            "input_shape": list(data.input_shape),
            "classes": None if data.classes is None else list(data.classes),
            "features": None if data.feature_names is None else list(data.feature_names),
            "target": data.preprocessing.get("target", {}).get("name"),
            "target_mean": data.test.target_mean.double().reshape(-1).tolist(),
            "target_std": data.test.target_std.double().reshape(-1).tolist(),
        },
        "headline": _headline(source, evaluations, way, sieved),
        "tempering": tempering_words(source.kl) if "sampled" in evaluations else "",
        "curve": {
            "score": source.score,
            "layers": source.posterior.layout.prunable,
            "points": sieved["points"],
            "before": before,
        },
        "layers": curve.layer_pictures(source.posterior, levels, limits),
        "compaction": sieved["compaction"],
        "not_compacted": sieved["not_compacted"],
        "quality": quality.calibration(evaluations, source.data),
        "map": quality.doubt_map(best, known, data),
        "losses": quality.losses(evaluations[way], data),
        "certificate": source.certificate,
        "confusion": quality.confusion(evaluations["after"], source.data),
        "examples": quality.examples(best, source.data, limits),
        "first_layer": inputs.first_layer(source),
        "attention": inputs.attention_maps(source, slopes),
        "features": inputs.feature_ranking(source, slopes),
        "dependence": inputs.dependence(source, slopes),
        "training": history_columns(source.history),
        "chains": chains(source),
        "inputs": inputs.describe_inputs(source.data),
        "familiarity": inputs.familiarity(known),
        "network": network,
        "network_before": dense,
        "not_embedded": refusal,
        "provenance": {**_UNKNOWN, **source.provenance, "timed_on": processor()},
    }


def _embedded_before(
    source: Source, levels: Tensor | None, network: Json | None, limits: Limits
) -> Json | None:
    """The network before, for the positions of the slider up to the run; None without room."""
    if source.before is None or levels is None or network is None:
        return None
    kept = sum(step["value"]["shape"][1] for step in network["steps"] if "value" in step)
    room = replace(limits, model_bytes=limits.model_bytes - WEIGHT_BYTES * kept, draw_bytes=0)
    try:
        made = embed(replace(source, model=source.before, drawn=None, members=()), levels, room)
    except UnsupportedModelError:
        return None
    return {**made, "check": {**made["check"], "inputs": None}}


def _reading(
    source: Source, evaluations: Mapping[str, Evaluation], way: str, checks: Sequence[Json]
) -> list[str]:
    """The headline in sentences, each of which was checked."""
    before = evaluations.get("before")
    first = verdicts.sentence_of(evaluations[way], checks, before, source.before_name)
    claims = verdicts.claims_of(evaluations, way, source.data)
    tempered = tempering_words(source.kl) if "sampled" in evaluations else ""
    return [first, *claims, *([tempered] if tempered else [])]


def _headline(
    source: Source, evaluations: Mapping[str, Evaluation], way: str, sieved: Json
) -> Json:
    """Numbers before and after; sizes and times of the dense network are always known."""
    layout, times = source.posterior.layout, sieved["times"]
    before: Json = {
        "name": source.before_name,
        "parameters": layout.size,
        "bytes": 4 * layout.size,
        "macs": sieved["dense_macs"],
        "latency_ms": times["latency_ms"]["dense"],
        "runtime_ms": times["runtime_ms"]["dense"],
        "quality": quality.numbers(evaluations["before"]) if "before" in evaluations else None,
    }
    now = sieved["points"][0]
    after: Json = {key: now.get(key) for key in ("weights", "zeros", "bytes", "macs")}
    after["parameters"] = now.get("parameters", now["weights"])
    after["latency_ms"] = times["latency_ms"]["sieved"]
    after["runtime_ms"] = times["runtime_ms"]["sieved"]
    after["quality"] = quality.numbers(evaluations["after"])
    sampled = quality.numbers(evaluations["sampled"]) if "sampled" in evaluations else None
    drawn = "" if sampled is None else f"average of {sampled['draws']} draws"
    others = {name: one for name, one in evaluations.items() if name != way}
    return {
        "way": way,
        "predictor": drawn if way == "sampled" else "mean weights",
        "before": before,
        "after": after,
        "sampled": sampled,
        "speedup": times["speedup"],
        "baselines": quality.baselines(source.data),
        "differences": {
            name: {
                key: verdicts.difference(check)
                for key, check in verdicts.compare(evaluations[way], one, source.data).items()
            }
            for name, one in others.items()
        },
    }


def history_columns(history: Sequence[Mapping[str, Any]]) -> Json | None:
    """Rows per epoch as columns of numbers; of a population the first member.

    Example:
        >>> history_columns([{"epoch": 1, "elbo": -2.0}, {"epoch": 2, "elbo": [-1.0, -3.0]}])
        {'epoch': [1, 2], 'elbo': [-2.0, -1.0]}
    """
    if not history:
        return None
    stride = math.ceil(len(history) / _MOST_EPOCHS)
    rows = [*history[:-1:stride], history[-1]]
    names = [name for name in rows[-1] if _number(rows[-1][name]) is not None]
    return {name: [_number(row.get(name)) for row in rows] for name in names}


def _number(value: Any) -> float | int | None:
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) else short(value)


def chains(source: Source) -> Json | None:
    """R-hat and effective draws of predictions, over all chains; None without chains."""
    models = source.members or (source.model,)
    posteriors = [q for model in models if isinstance(q := posterior_of(model), Samples)]
    n = min((len(posterior.draws) for posterior in posteriors), default=0)
    if len(posteriors) != len(models) or n < 4:
        return None
    walks = torch.stack([traces(posterior, source.data.test)[:n] for posterior in posteriors])
    moving = moves(walks)
    if not moving[1:].any():
        return None
    rhat, ess = split_rhat(walks[..., moving])[1:], effective_sample_size(walks[..., moving])[1:]
    return {
        "n_chains": len(posteriors),
        "n_draws": n,
        "rhat": rounded(rhat.sort().values, 4),
        "ess": rounded(ess.sort().values, 4),
    }
