"""What one-shot pruning of a trained sBNN costs ([Saha], tables 4 to 6 and 8, figure 11).

    python -m studies.sbnn_droprate --full --out results/sbnn_droprate.json
    python -m studies.sbnn_droprate --quick            # minutes on two CPU cores

A dense posterior is learned, then ever more weights are set to 0 with nothing trained afterwards:
by inclusion probability, as the paper does, and by signal to noise. Bayes by backprop (a scale
mixture prior, noise on weights, ranked by signal to noise) is the paper's baseline.

Rows: MNIST with two layers of 400, 800 and 1200 units; CIFAR-10 flattened, 2 x 1200; LeNet-300-100
and LeNet-5-Caffe under both of the paper's priors, set 1 (log slab std 0, log spike std -5) and
set 2 (-1, -3). Departures: Adam and fewer epochs; set 2 in tables 4 to 6, whose own spikes are
narrower still; the KL has its full weight in the LeNets, 0.3 of it in the other networks on MNIST
and 0.1 on CIFAR-10. `--held-out` scores 5,000 training images.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from bayesieve.assess.evaluate import error_curve, evaluate
from bayesieve.checks import check_choice
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.priors import SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.data.examples import Examples
from bayesieve.engines import Engine
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.sbnn import SBNN
from bayesieve.nets import lenet5_caffe, lenet_300_100, mlp
from bayesieve.sieve.prune import sparsity_curve
from bayesieve.sieve.scores import ScoreName
from bayesieve.training.fit import fit
from bayesieve.training.schedule import Schedule
from studies.aeb_arguments import numbers
from studies.records import add_common_flags, record_head, splits, write_record

DROPRATES = (
    0.5, 0.75, 0.9, 0.95, 0.96, 0.97, 0.98, 0.982, 0.985, 0.987, 0.99, 0.992, 0.995, 0.997, 0.999,
)  # fmt: skip
_SHOWN = (0.95, 0.98, 0.99, 0.995)
PRIORS = {1: (0.0, -5.0), 2: (-1.0, -3.0)}


@dataclass(frozen=True)
class Setting:
    """One trained posterior.

    Args:
        net: "l300", "l5", or the width of two hidden layers.
        data: a data set by name.
        prior: 1 or 2, the paper's sets.
        method: "sbnn" or "bbb", Bayes by backprop.
        epochs: passes over the data.
        kl: weight of the prior.
        start: starting means: small ("module") or by fan-in ("he").
    """

    net: str
    data: str = "mnist"
    prior: int = 2
    method: Literal["sbnn", "bbb"] = "sbnn"
    epochs: int = 60
    kl: float = 1.0
    start: Literal["module", "he"] = "module"


_WIDE = 0.3  # of 0.1, 0.3 and 1 the best of 400 units on held-out images with 5 to 10 % left
SETTINGS = {
    "m400": Setting("400", kl=_WIDE),
    "m800": Setting("800", kl=_WIDE),
    "m1200": Setting("1200", kl=_WIDE),
    "m1200-bbb": Setting("1200", method="bbb", kl=_WIDE),
    "cifar10": Setting("1200", "cifar10", kl=0.1),
    "cifar10-bbb": Setting("1200", "cifar10", method="bbb", kl=0.1),
    "l300-set1": Setting("l300", prior=1),
    "l300-set2": Setting("l300"),
    "l5-set1": Setting("l5", prior=1, epochs=40),
    "l5-set2": Setting("l5", epochs=40),
}


def build(setting: Setting, shape: tuple[int, ...]) -> nn.Module:
    """The network of a setting for ten classes."""
    if setting.net == "l300":
        return lenet_300_100(shape, 10)
    if setting.net == "l5":
        return lenet5_caffe(shape, 10)
    return mlp(shape, 10, widths=(int(setting.net),) * 2)


def engine(setting: Setting) -> Engine[Any]:
    """The variational engine of a setting."""
    slab, spike = (math.exp(own) for own in PRIORS[setting.prior])
    prior = SpikeSlab(slab_std=slab, spike_std=spike, slab_prob=0.5)
    if setting.method == "bbb":
        return FlatVI(prior, 1e-3, math.exp(-4), setting.start, local=False)
    return SBNN(prior=prior, lr=1e-3, init_std=math.exp(-4), start=setting.start, local=True)


def run_setting(
    name: str, setting: Setting, train: Examples, score_on: Examples, seeds: int, device: str
) -> dict[str, Any]:
    """Train all seeds of a setting as one population, then prune each in one shot."""
    started = time.perf_counter()
    problem = Problem(build(setting, tuple(train.x.shape[1:])), Categorical(), train).to(device)
    run = fit(
        problem,
        [engine(setting)] * seeds,
        epochs=setting.epochs,
        seed=1,
        schedule=Schedule(lr="cosine", kl=setting.kl, kl_warmup_epochs=min(10, setting.epochs / 6)),
    )
    scores: tuple[ScoreName, ...] = ("snr",) if setting.method == "bbb" else ("inclusion", "snr")
    score_on = score_on.to(device)  # once, not for every mask
    rows = [_seed(own, score_on, scores) for own in run.posteriors]
    return {
        "name": name,
        "setting": asdict(setting),
        "engine": repr(run.engine),
        "error_mean": statistics.fmean(row["error"] for row in rows),
        "mc_error_mean": statistics.fmean(row["mc_error"] for row in rows),
        "curves": {score: _mean_curve([row["curves"][score] for row in rows]) for score in scores},
        "below_a_quarter": _below_a_quarter(run.posterior),
        "seeds": rows,
        "seconds": time.perf_counter() - started,
    }


def _seed(
    posterior: Posterior, score_on: Examples, scores: tuple[ScoreName, ...]
) -> dict[str, Any]:
    dense = evaluate(posterior, score_on).to_dict()
    sampled = evaluate(posterior, score_on, n_samples=20).to_dict()
    curves = {}
    for score in scores:
        masks = sparsity_curve(posterior, DROPRATES, score=score)
        found = error_curve(posterior, masks, score_on)
        curves[score] = [{"zeros": row["zeros"], "error": row["error"]} for row in found]
    own = {"error": dense["error"], "nll": dense["nll"], "ece": dense["ece"]}
    return {**own, "mc_error": sampled["error"], "mc_nll": sampled["nll"], "curves": curves}


def _mean_curve(curves: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The error at each droprate, averaged over seeds."""
    return [
        {"droprate": rate, "error": statistics.fmean(own[i]["error"] for own in curves)}
        for i, rate in enumerate(DROPRATES)
    ]


def _below_a_quarter(posterior: Posterior) -> float | None:
    """Share of prunable weights with an inclusion probability below 1/4 (figure 11)."""
    if not isinstance(posterior, Factorised) or posterior.inclusion is None:
        return None
    return float((posterior.inclusion[posterior.layout.sparse] < 0.25).float().mean())


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen settings and write one JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="one seed, 2 epochs, 12,000 images")
    length.add_argument("--full", action="store_true", help="every image and epoch")
    parser.add_argument("--settings", help=f"comma list of {list(SETTINGS)}; all unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kl", type=numbers, help="comma list, in place of each setting's own")
    parser.add_argument("--epochs", type=int, help="in place of each setting's own")
    parser.add_argument("--budget", type=float, help="seconds after which no run begins")
    parser.add_argument("--figures", type=Path, help="folder for sbnn_droprate.png")
    parser.add_argument("--draw", type=Path, nargs="+", help="train nothing: draw these records")
    add_common_flags(parser)
    options = parser.parse_args(arguments)
    if options.draw is not None:
        files = [json.loads(path.read_text(encoding="utf-8")) for path in options.draw]
        _draw([record for file in files for record in file["records"]], options.figures)
        return 0
    names = (options.settings or ",".join(SETTINGS)).split(",")
    for name in names:
        check_choice("sbnn_droprate", "setting", name, SETTINGS)
    if options.quick and options.settings is None:
        names = ["m400", "l300-set1", "l300-set2"]
    result: dict[str, Any] = {
        **record_head("sbnn_droprate", arguments, options),
        "quick": options.quick,
        "skipped": [],
        "records": [],
    }
    began = time.perf_counter()
    for name, kl in product(names, options.kl or (None,)):
        setting, seeds = SETTINGS[name], options.seeds
        if kl is not None:
            setting = replace(setting, kl=kl)
        if options.epochs is not None:
            setting = replace(setting, epochs=options.epochs)
        if options.budget is not None and time.perf_counter() - began > options.budget:
            result["skipped"].append(name)
            print(f"{name}: left out, the budget of {options.budget:.0f} s is spent")
            write_record(options.out, result)
            continue
        train, score_on = splits(load_data(setting.data), held_out=options.held_out)
        if options.quick:
            setting, seeds = replace(setting, epochs=2), 1
            train = train.subset(torch.arange(min(12_000, len(train))))
        record = run_setting(name, setting, train, score_on, seeds, options.device)
        result["records"].append(record)
        print(_line(record), flush=True)
        write_record(options.out, result)
    if options.figures is not None:
        _draw(result["records"], options.figures)
    return 0


def _draw(records: list[dict[str, Any]], folder: Path | None) -> None:
    # Drawing needs matplotlib; the numbers do not.
    from studies.sbnn_droprate_figure import draw_droprates

    if folder is None:
        raise ValueError("sbnn_droprate: give a folder for the picture, --figures FOLDER.")
    draw_droprates(records, folder / "sbnn_droprate.png")


def _line(record: Mapping[str, Any]) -> str:
    """One run in words: dense error, then the errors of each curve at a few droprates."""
    parts = [f"{record['name']:<12} kl {record['setting']['kl']:g}"]
    parts.append(f"{100 * record['error_mean']:.2f} %")
    for score, curve in record["curves"].items():
        few = (f"{100 * p['error']:.2f}" for p in curve if p["droprate"] in _SHOWN)
        parts.append(f"{score} {' '.join(few)}")
    return "  ".join([*parts, f"{record['seconds']:.0f} s"])


if __name__ == "__main__":
    sys.exit(main())
